"""A few small calls on a device, for compute-sanitizer to watch."""

from collections.abc import Callable
from typing import Any

from bnorm.kernels import gpu
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import launching

CHANNELS = [  # (outer, C, inner)
    (70, 6, 1),
    (3000, 40, 1),  # blocks meet
    (100, 3, 1),
    (9, 2, 1100),
    (5, 3, 333),
    (9, 8, 49),  # small planes: a block reads several together
    (9, 1100, 128),  # more channels than blocks run at a time: a block continues with other channels
    (9, 56, 3700),  # and more than clusters run at a time
]
ROWS = [  # (N, G, K, L)
    (2200, 1, 700, 1),  # more rows than blocks run at a time, held in registers
    (300, 1, 36, 1),
    (3, 1, 9000, 1),
    (3, 4, 2, 49),
    (300, 1, 2, 9000),  # rows kept in shared memory: blocks fetch the next row while they map one
]
HALVES = (500, 1, 8000, 1)  # rows of a large block, which share gamma and beta
WEIGHTED = (3000, 2, 3, 25)  # more rows than blocks here too
FEW = 2  # processors: so few that the last rows belong to blocks that start late


def calls(draw: Callable[..., Any], ones: Callable[..., Any], device: Any) -> None:
    """Call the kernels. draw: makes random float32 of a shape; ones: makes float64 ones."""
    for shape in CHANNELS:
        x = draw(shape)
        x[:: len(x) // 2] = 100  # so that kernels that sum about a center must do so twice
        for w in (None, ones((shape[0], shape[2]))):
            _, stats, count, _ = gpu.forward(x, None, None, 1e-5, weight=w, act=RELU)
            gpu.backward(x, x, stats, count, w, act=RELU)
        gpu.forward(x, None, None, 1e-5, stats[0], stats[1], act=RELU)
    all_limits = device.limits
    for limits in (all_limits, all_limits._replace(processors=FEW)):
        device.limits = limits
        for rows in ROWS:
            x, gamma = draw(rows), ones(rows[1] * rows[2])
            of_row = x.reshape(rows[0] * rows[1], -1)
            of_row[::2, :: of_row.shape[1] // 2] = 100
            _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
            gpu.rows_backward(x, x, mean, rstd, gamma, gamma, act=RELU)
            gpu.exact_sums(x)
    device.limits = all_limits
    x, gamma = draw(HALVES).astype("float16"), ones(HALVES[2])
    _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
    gpu.rows_backward(x, x, mean, rstd, gamma, gamma)
    x, gamma, weight = draw(WEIGHTED), ones(6), ones((3000, 25))
    _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5, weight=weight)
    gpu.rows_backward(x, x, mean, rstd, gamma, gamma, weight=weight)


def main() -> None:
    import cupy

    cupy.cuda.set_allocator(None)  # each array has its own memory: in a pool, a neighbor's is not out of bounds
    draw = cupy.random.default_rng(0).standard_normal
    calls(lambda shape: draw(shape, dtype=cupy.float32), cupy.ones, launching.device_of(cupy.empty(1)))
    cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main()
