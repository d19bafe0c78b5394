"""Running statistics as the kernels take them, and the calls that update them."""

import numpy as np

from backends import Backend
from bnorm.running import CHANNELS, Statistics


def rule(mean, var, momentum, seen=None, ddof=0, nonfinite="skip"):
    """Return the rule of a layer's statistics, which uses these arrays: averaged, or pooled if `seen` is given."""
    statistics = Statistics(mean, var, None if seen is not None else momentum, ddof, nonfinite)
    if seen is not None:
        statistics.place({"seen": seen})
    return statistics.rule


def forward(kernels, x, *args, running, **options):
    """Run a forward whose batch updates the statistics: y, stats, count, and how many channels were left alone."""
    if not isinstance(kernels, Backend):
        kernels = Backend("", kernels)
    there = [kernels.up(a) for a in (x, *args)]
    options = {name: kernels.up(a) for name, a in options.items()}
    y, stats, count, left = kernels.kernels.forward(*there, running=running, **options)
    left = kernels.kernels.settle(running, stats, count, x.size, left)
    return kernels.down((y, stats, count, left_alone(running, left)))


def move(kernels, running, count, mean, var):
    """Update statistics by a batch that is given by its variance."""
    if not isinstance(kernels, Backend):
        kernels = Backend("", kernels)
    with np.errstate(all="ignore"):
        parts = np.stack([count, mean, var * count, np.zeros_like(count)])
    return left_alone(running, kernels.kernels.move(running, kernels.up(parts)))


def left_alone(running, left):
    """Return how many channels a batch has left alone; on a device, which counts them itself, any batch so far."""
    return left if running.left is None else int(running.left[CHANNELS:][: running.mean.size].sum())
