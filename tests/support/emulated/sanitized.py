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
from emulated.device import CLUSTERED, MEETING, SMALL, EmulatedDevice, PlanningDevice

# One launch, chunks, widened, runs, scalar loads, planes, blocks that go on to other channels.
SHAPES = [(70, 6), (1200, 70), (100, 3), (9, 2, 1100), (5, 3, 333), (6, 8, 49), (2, 9, 700)]
WEIGHTED = SHAPES[2:5:2]
ALONE = plans.Limits(processors=1, shared=99 << 10, clusters=False)
MANY = plans.Limits(processors=40, shared=64 << 10, clusters=False, meetings=False)
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


def batch_norm(check, shape, dtype="float32", error=1e-5):
    """Of channels whose first values, every third one's, are far from the mean: some blocks sum these twice."""
    x, dy = np.random.default_rng(0).standard_normal((2, *shape)).astype(dtype)
    x[:: len(x) // 2, ::3] = 100
    arguments = None, None, 1e-5, None, None, None, RELU
    y, stats, count, _ = gpu.forward(x, *arguments)
    check(y, error, "forward", x.astype("f8"), *arguments)
    dx = gpu.backward(dy, x, stats, count, None, RELU)[0]
    check(dx, 10 * error, "backward", dy.astype("f8"), x.astype("f8"), stats, float(count), None, RELU)


def group_norm(check, shape):
    x, dy = np.random.default_rng(0).standard_normal((2, *shape)).astype("float32")
    gamma = np.linspace(-1.5, 0.5, shape[1] * shape[2])
    y, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
    check(y, 1e-5, "rows_forward", x.astype("f8"), gamma, gamma, 1e-5)
    got = gpu.rows_backward(dy, x, mean, rstd, gamma, gamma, act=RELU)
    check(got[0], 1e-4, "rows_backward", dy.astype("f8"), x.astype("f8"), mean, rstd, gamma, gamma, 0, RELU)


def weighted_norm(check, shape):
    x, weight = np.random.default_rng(0).random((2, *shape))
    gamma = np.linspace(-1.5, 0.5, shape[1] * shape[2])
    _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5, weight=weight[:, 0, 0])
    gpu.rows_backward(x, x, mean, rstd, gamma, gamma, weight=weight[:, 0, 0])


# What threads do with a place that was another's before, or will be: warps, blocks, channels and rows that share one.
SHARING = [
    (MEETING, batch_norm, (1500, 24)),
    (MEETING, batch_norm, (560, 64)),  # two tiles that meet each for itself
    (MEETING, batch_norm, (4008, 3)),  # a tile has several columns of a channel
    (CLUSTERED, batch_norm, CLUSTER_RUNS[0][0].shape),
    (CLUSTERED, batch_norm, (2, 12, 8100)),  # six channels to a cluster
    (CLUSTERED._replace(processors=64), batch_norm, (2, 24, 8100)),  # clusters that begin late, or never
    (ALONE, batch_norm, (2, 25, 700)),  # twelve channels to a block
    (MANY, batch_norm, (20000, 40)),  # blocks that join in bunches
    (SMALL, batch_norm, (6, 16, 81)),  # more columns than a block has threads
    (SMALL, partial(batch_norm, dtype="float16", error=1e-2), (5, 16, 49)),  # two columns of a thread
    (ALONE, group_norm, (3, 1, 8, 1300)),  # kept and fetched; warps that share the places of channels, and do not
    (ALONE, group_norm, (3, 1, 40, 260)),
    (SMALL, group_norm, (2500, 1, 64, 1)),  # sums that are added to those of the block from time to time
    (SMALL, group_norm, (130, 6, 1, 16)),  # many rows to a block, of one channel
    (SMALL, group_norm, (7, 2, 40, 30)),  # and of many
    (SMALL, group_norm, (3, 1, 400, 40)),  # sums of channels in a pass of their own
    (SMALL, weighted_norm, (20, 2, 3, 25)),
]


def check(got, error, name, *arguments):
    want = getattr(reference, name)(*arguments)
    want = want[1] if name == "merge" else want[0]  # the mean, which is all that stands behind statistics
    assert_close(got, want, error, what=name, shape=got.shape)


def run(device, check):
    calls(check)
    for device.limits, call, shape in SHARING:
        before = len(device.log)
        call(check, shape)
        launches = device.log[before:]
        if device.limits == MEETING:
            assert all(launch.meeting for launch in launches)
        if device.limits.clusters:
            assert {launch.family for launch in launches} == {"clusters"}
        if (device.limits, call) == (ALONE, group_norm):
            assert all(jobs.ROW_JOB.placed(launch.geometry)["keep"] for launch in launches)


def main(sanitize: str) -> None:
    planned = PlanningDevice()
    launching.device_of = lambda x: planned
    with np.errstate(all="ignore"):
        run(planned, lambda *ignored: None)
    device = EmulatedDevice(emulator=partial(Emulator, sanitize=sanitize))
    for family in dict.fromkeys(launch.family for launch in planned.log):  # several compilers at a time
        device.build(family, sorted({launch.kernel for launch in planned.log if launch.family == family}))
    launching.device_of = lambda x: device
    run(device, check)
    print(f"{len(device.log)} launches of {len(device.emulators)} kernels, {jobs.JOB.size} bytes of arguments each")


if __name__ == "__main__":
    main(sys.argv[1])
