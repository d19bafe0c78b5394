"""Runs the CUDA kernels on the emulator under the sanitizers that are named: what they find ends the process."""

import sys
from functools import partial

import numpy as np

from bnorm.kernels import gpu, reference
from bnorm.kernels.gpu import jobs, launching
from compare import assert_close
from cuda_on_cpu.emulator import Emulator
from gpu_device import EmulatedDevice

SHAPES = [(70, 6), (1200, 70), (100, 3), (9, 2, 1100), (5, 3, 333)]  # one launch, chunks, widened, runs, scalar loads
WEIGHTED = SHAPES[2::2]
ROWS = [(30, 1, 700, 1), (6, 1, 40, 1), (3, 4, 2, 49)]  # blocks that go on to another row, warps, groups


def main(sanitize: str) -> None:
    device = EmulatedDevice(emulator=partial(Emulator, sanitize=sanitize))
    launching.device_of = lambda x: device
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x, dy = rng.standard_normal((2, *shape)).astype("float32")
        weight = rng.random((shape[0], shape[2] if len(shape) > 2 else 1))
        gamma, beta = rng.standard_normal((2, shape[1]))
        for w in (None, weight) if shape in WEIGHTED else (None,):
            y, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5, weight=w, slope=0.0)
            want = reference.forward(x.astype("f8"), gamma, beta, 1e-5, weight=w, slope=0.0)
            assert_close(y, want[0], 1e-5, shape=shape)
            dx = gpu.backward(dy, x, stats, count, w, slope=0.0)[0]
            want = reference.backward(dy.astype("f8"), x.astype("f8"), stats, float(count), w, slope=0.0)
            assert_close(dx, want[0], 1e-4, shape=shape)
    for shape in ROWS:
        x, dy = rng.standard_normal((2, *shape)).astype("float32")
        gamma = rng.standard_normal(shape[1] * shape[2])
        y, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
        assert_close(y, reference.rows_forward(x.astype("f8"), gamma, gamma, 1e-5)[0], 1e-5, shape=shape)
        gpu.rows_backward(dy, x, mean, rstd, gamma, gamma, slope=0.0)
    print(f"{len(device.log)} launches of {len(device.emulators)} kernels, {jobs.JOB.size} bytes of arguments each")


if __name__ == "__main__":
    main(sys.argv[1])
