"""What a launch of a plan is: the fields of its job, what its kernel was made for, and how its sums are joined."""

from math import prod

import numpy as np

from bnorm.kernels import gpu
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import jobs


def drawn(shape, dtype="float32"):
    """x and dy."""
    return np.random.default_rng(0).standard_normal((2, *shape)).astype(dtype)


def names(device):
    """The kernels that were launched since the last question, without what they were made for."""
    return [name.partition("<")[0] for name in device.kernels()]


def fields(launch):
    return (jobs.ROW_JOB if launch.family == "rows" else jobs.JOB).placed(launch.geometry)


def parameters(launch):
    """The name, T, V, K, BX, BY and a mode or kind out of the name of an instance."""
    name, inside = launch.kernel.rstrip(">").split("<")
    first, *numbers = inside.split(", ")
    return name, first, *map(int, numbers)


def wide_of(launch):
    return prod(parameters(launch)[3:5])


def has_few(launch):
    """As joins.cu decides it."""
    if launch.family == "rows":
        return False
    f, width = fields(launch), wide_of(launch)
    if launch.grid[0] * f["chunks"] == 1:
        return False
    return parameters(launch)[3] > 1 and f["copies"] > 1 and f["inner"] == 1 and 2 * f["channels"] <= width


def assert_same_in_every_order(device, monkeypatch, x, dy):
    """A forward and its backward have the same bits, whichever blocks and threads come first."""
    found = set()
    for order in (0, 1, 2, 3, 4):
        monkeypatch.setattr(device, "order", order)
        y, stats, count, _ = gpu.forward(x, None, None, 1e-5, act=RELU)
        found.add(tuple(a.tobytes() for a in (y, stats, *gpu.backward(dy, x, stats, count, act=RELU))))
    assert len(found) == 1
