"""A few small calls on a device, for compute-sanitizer to watch."""

from collections.abc import Callable
from typing import Any

from bnorm.kernels import gpu
from bnorm.kernels.activation import RELU

CHANNELS = [  # (outer, C, inner)
    (70, 6, 1),
    (3000, 40, 1),  # whose blocks meet
    (100, 3, 1),
    (9, 2, 1100),
    (5, 3, 333),
    (9, 8, 49),  # small planes, which a block reads together
    (9, 1100, 128),  # more channels than blocks run at a time, which go on to others
    (9, 56, 3700),  # and more than clusters do
]
ROWS = [  # (N, G, K, L)
    (2200, 1, 700, 1),  # more rows than run at a time, held in registers
    (300, 1, 36, 1),
    (3, 1, 9000, 1),
    (3, 4, 2, 49),
    (300, 1, 2, 9000),  # and kept in shared memory: blocks fetch the next one while they map
]
WEIGHTED = (3000, 2, 3, 25)  # more rows than blocks, too


def calls(draw: Callable[..., Any], ones: Callable[..., Any]) -> None:
    """draw: float32 of a shape; ones: float64."""
    for shape in CHANNELS:
        x = draw(shape)
        x[:: len(x) // 2] = 100  # so that those who meet sum twice
        for w in (None, ones((shape[0], shape[2]))):
            _, stats, count, _ = gpu.forward(x, None, None, 1e-5, weight=w, act=RELU)
            gpu.backward(x, x, stats, count, w, act=RELU)
    for rows in ROWS:
        x, gamma = draw(rows), ones(rows[1] * rows[2])
        _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5)
        gpu.rows_backward(x, x, mean, rstd, gamma, gamma, act=RELU)
        gpu.exact_sums(x)
    x, gamma, weight = draw(WEIGHTED), ones(6), ones((3000, 25))
    _, mean, rstd = gpu.rows_forward(x, gamma, gamma, 1e-5, weight=weight)
    gpu.rows_backward(x, x, mean, rstd, gamma, gamma, weight=weight)


def main() -> None:
    import cupy

    cupy.cuda.set_allocator(None)  # memory of the device for each array: in a pool, a neighbour's is not out of bounds
    calls(lambda shape: cupy.random.default_rng(0).standard_normal(shape, dtype=cupy.float32), cupy.ones)
    cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main()
