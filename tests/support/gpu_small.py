"""A few small calls on a device, for compute-sanitizer to watch."""

import cupy

from bnorm.kernels import gpu
from bnorm.kernels.activation import RELU


def main() -> None:
    cupy.cuda.set_allocator(None)  # memory of the device for each array: in a pool, a neighbour's is not out of bounds
    channels = (9, 40, 7300)  # more than there are clusters
    for shape in ((70, 6), (3000, 40), (100, 3), (9, 2, 1100), (5, 3, 333), channels):
        x = cupy.random.default_rng(0).standard_normal(shape, dtype=cupy.float32)
        weight = cupy.ones((shape[0], shape[2] if len(shape) > 2 else 1))
        for w in (None, weight):
            _, stats, count, _ = gpu.forward(x, None, None, 1e-5, weight=w, act=RELU)
            gpu.backward(x, x, stats, count, w, act=RELU)
    long = (300, 1, 2, 9000)  # rows that blocks fetch while they map others
    for shape in ((30, 1, 700, 1), (300, 1, 36, 1), (3, 1, 9000, 1), (3, 4, 2, 49), long):
        x = cupy.random.default_rng(0).standard_normal(shape, dtype=cupy.float32)
        gamma = cupy.ones(shape[1] * shape[2])
        _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
        gpu.rows_backward(x, x, mean, rstd, gamma, gamma, act=RELU)
        gpu.exact_sums(x)
    x = cupy.ones((3000, 2, 3, 25), "float32")  # more rows than blocks
    gamma, weight = cupy.ones(6), cupy.ones((3000, 25))
    _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5, weight=weight)
    gpu.rows_backward(x, x, mean, rstd, gamma, gamma, weight=weight)
    cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main()
