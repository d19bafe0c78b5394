"""Running statistics as the kernels take them, and the calls that move them."""

import numpy as np

from bnorm.running import Statistics


def rule(mean, var, momentum, seen=None, ddof=0, nonfinite="skip"):
    """That of a layer's statistics, on these very arrays: averaged, or pooled where `seen` is given."""
    statistics = Statistics(mean, var, None if seen is not None else momentum, ddof, nonfinite)
    if seen is not None:
        statistics.place({"seen": seen})
    return statistics.rule


def forward(kernels, x, *args, running, **options):
    """A forward whose batch moves the statistics: y, stats, count, and the channels that were left alone."""
    y, stats, count, left = kernels.forward(x, *args, running=running, **options)
    return y, stats, count, kernels.settle(running, stats, count, x.size, left)


def move(kernels, running, count, mean, var):
    """Move them by a batch known by its variance."""
    with np.errstate(all="ignore"):
        parts = np.stack([count, mean, var * count, np.zeros_like(count)])
    return kernels.move(running, parts)
