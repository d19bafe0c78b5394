"""Runs the CUDA kernels on the emulator under the sanitizers that are named: what they find ends the process."""

import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends import CLUSTER_RUNS
from bnorm.kernels import gpu, reference
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import jobs, launching, plans
from bnorm.running import Statistics
from compare import assert_close
from cuda_on_cpu.emulator import Emulator
from emulated.device import CLUSTERED, EmulatedDevice, PlanningDevice

# One launch, chunks, widened, runs, scalar loads, planes, blocks that go on to other channels.
SHAPES = [(70, 6), (1200, 70), (100, 3), (9, 2, 1100), (5, 3, 333), (6, 8, 49), (2, 9, 700)]
WEIGHTED = SHAPES[2:5:2]
MEETING = plans.Limits(processors=6, shared=64 << 10, clusters=False)
ALONE = plans.Limits(processors=1, shared=99 << 10)
ROWS = [(30, 1, 700, 1), (6, 1, 40, 1), (9, 4, 2, 49), (2, 1, 2, 4400)]  # several rows to a block, warps, groups, long


def calls(check):
    """Everything once. check(got, error, name, *arguments): against that function of the reference."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x, dy = rng.standard_normal((2, *shape)).astype("float32")
        weight = rng.random((shape[0], shape[2] if len(shape) > 2 else 1))
        gamma, beta = rng.standard_normal((2, shape[1]))
        for w in (None, weight) if shape in WEIGHTED else (None,):
            arguments = gamma, beta, 1e-5, None, None, w, RELU
            y, stats, count, _ = gpu.forward(x, *arguments)
            check(y, 1e-5, "forward", x.astype("f8"), *arguments)
            dx = gpu.backward(dy, x, stats, count, w, RELU)[0]
            check(dx, 1e-4, "backward", dy.astype("f8"), x.astype("f8"), stats, float(count), w, RELU)
        sets = [gpu.moments(x), gpu.moments(dy)]
        gpu.exact_sums(x)
        gpu.exact_sums(x, weight < 0.5)
        moving = Statistics(np.zeros(shape[1]), np.ones(shape[1]))
        gpu.move(moving.rule, gpu.merge(sets))
        check(moving.mean, 1e-12, "merge", sets)
    for shape in ROWS:
        x, dy = rng.standard_normal((2, *shape)).astype("float32")
        gamma = rng.standard_normal(shape[1] * shape[2])
        y, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
        check(y, 1e-5, "rows_forward", x.astype("f8"), gamma, gamma, 1e-5)
        gpu.rows_backward(dy, x, mean, rstd, gamma, gamma, act=RELU)


def forward_and_backward(check, x, dy):
    arguments = None, None, 1e-5, None, None, None, RELU
    y, stats, count, _ = gpu.forward(x, *arguments)
    check(y, 1e-5, "forward", x.astype("f8"), *arguments)
    dx = gpu.backward(dy, x, stats, count, None, RELU)[0]
    check(dx, 1e-4, "backward", dy.astype("f8"), x.astype("f8"), stats, float(count), None, RELU)


def by_clusters(check):
    shape = CLUSTER_RUNS[0][0].shape
    forward_and_backward(check, *np.random.default_rng(0).standard_normal((2, *shape)).astype("float32"))


def meeting(check):
    """Blocks that sum once more, as the first values of their channels are far from the mean."""
    x, dy = np.random.default_rng(0).standard_normal((2, 1500, 24)).astype("float32")
    x[::750] = 100
    forward_and_backward(check, x, dy)


def by_blocks_alone(check):
    """Rows that one block keeps and fetches, one after the other, with more warps than places for a channel's sums."""
    x, dy = np.random.default_rng(0).standard_normal((2, 3, 1, 8, 1100)).astype("float32")
    gamma = np.linspace(-1.5, 0.5, 8)
    y, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
    check(y, 1e-5, "rows_forward", x.astype("f8"), gamma, gamma, 1e-5)
    got = gpu.rows_backward(dy, x, mean, rstd, gamma, gamma, act=RELU)
    check(got[0], 1e-4, "rows_backward", dy.astype("f8"), x.astype("f8"), mean, rstd, gamma, gamma, 0, RELU)


def check(got, error, name, *arguments):
    want = getattr(reference, name)(*arguments)
    want = want[1] if name == "merge" else want[0]  # the mean, which is all that stands behind statistics
    assert_close(got, want, error, what=name, shape=got.shape)


def main(sanitize: str) -> None:
    planned = PlanningDevice()
    launching.device_of = lambda x: planned
    with np.errstate(all="ignore"):
        calls(lambda *ignored: None)
        planned.limits = CLUSTERED
        by_clusters(lambda *ignored: None)
        planned.limits = MEETING
        meeting(lambda *ignored: None)
        planned.limits = ALONE
        by_blocks_alone(lambda *ignored: None)
    device = EmulatedDevice(emulator=partial(Emulator, sanitize=sanitize))
    for family in dict.fromkeys(launch.family for launch in planned.log):  # several compilers at a time
        device.build(family, sorted({launch.kernel for launch in planned.log if launch.family == family}))
    launching.device_of = lambda x: device
    calls(check)
    device.limits = CLUSTERED
    by_clusters(check)
    assert [launch.family for launch in device.log[-2:]] == ["clusters", "clusters"]
    device.limits = MEETING
    meeting(check)
    assert all(launch.meeting for launch in device.log[-2:])
    device.limits = ALONE
    by_blocks_alone(check)
    assert all(jobs.ROW_JOB.placed(launch.geometry)["keep"] for launch in device.log[-2:])
    print(f"{len(device.log)} launches of {len(device.emulators)} kernels, {jobs.JOB.size} bytes of arguments each")


if __name__ == "__main__":
    main(sys.argv[1])
