"""Running statistics as the kernels take them, and the calls that move them."""

import numpy as np

from backends import Backend
from bnorm.running import CHANNELS, Statistics


def rule(mean, var, momentum, seen=None, ddof=0, nonfinite="skip"):
    """That of a layer's statistics, on these very arrays: averaged, or pooled where `seen` is given."""
    statistics = Statistics(mean, var, None if seen is not None else momentum, ddof, nonfinite)
    if seen is not None:
        statistics.place({"seen": seen})
    return statistics.rule


def forward(kernels, x, *args, running, **options):
    """A forward whose batch moves the statistics: y, stats, count, and the channels that were left alone."""
    if not isinstance(kernels, Backend):
        kernels = Backend("", kernels)
    there = [kernels.up(a) for a in (x, *args)]
    options = {name: kernels.up(a) for name, a in options.items()}
    y, stats, count, left = kernels.kernels.forward(*there, running=running, **options)
    left = kernels.kernels.settle(running, stats, count, x.size, left)
    return kernels.down((y, stats, count, left_alone(running, left)))


def move(kernels, running, count, mean, var):
    """Move them by a batch known by its variance."""
    if not isinstance(kernels, Backend):
        kernels = Backend("", kernels)
    with np.errstate(all="ignore"):
        parts = np.stack([count, mean, var * count, np.zeros_like(count)])
    return left_alone(running, kernels.kernels.move(running, kernels.up(parts)))


def left_alone(running, left):
    """The channels that a batch has left alone: of statistics on a device, which counts them itself, that any has."""
    return left if running.left is None else int(running.left[CHANNELS:][: running.mean.size].sum())
