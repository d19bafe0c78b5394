"""Ticks of the displays: as many as fit, whatever the size of the axes and the length of the labels."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy import ndarray

MOST_TICKS = 6
WIDTH = 0.68  # of a character, in font sizes
BETWEEN = 1.6  # characters between two labels
DECADES = 12  # of a logarithmic axis, to either side


def spaced(axis: Any, integer: bool = False) -> None:
    """Give the x axis as many ticks as keep their labels apart. Its formatter must be set before.

    Labels are complete values, however close these are: otherwise the part that they have in common would be drawn in
    the corner, over the name of the axis.
    """
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    if isinstance(formatter := axis.get_major_formatter(), ScalarFormatter):
        formatter.set_useOffset(False)
        formatter.set_powerlimits((-5, 9))
    axis.get_offset_text().set_fontsize(8)
    coarser = (MaxNLocator(n, steps=[1, 2, 5, 10], integer=integer) for n in range(MOST_TICKS, 0, -1))
    axis.set_major_locator(_locator([locator.tick_values for locator in coarser]))


def symlog(ax: Any, least: float, most: float) -> float:
    """A logarithmic x axis for numbers of both signs, whose sizes are from least to most.

    Returns the number below which it is linear.
    """
    from matplotlib.ticker import LogFormatterSciNotation, NullLocator

    first = int(np.floor(np.log10(max(least, most * 10.0**-DECADES, 1e-300))))
    last = int(np.ceil(np.log10(most)))
    ax.set_xscale("symlog", linthresh=10.0**first)

    def every(step: int) -> Any:
        def values(low: float, high: float) -> ndarray:
            powers = 10.0 ** np.arange(last, first, -step)[::-1]
            ticks = np.concatenate([-powers[::-1], [0], powers])
            return ticks[(ticks >= low) & (ticks <= high)]

        return values

    ax.xaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, linthresh=10.0**first))
    ax.xaxis.set_major_locator(_locator([every(step) for step in range(1, max(2, last - first + 1))]))
    ax.xaxis.set_minor_locator(NullLocator())
    return float(10.0**first)


def _locator(finer_first: list[Any]) -> Any:
    """Return a locator that takes the first of these choices of ticks whose labels fit."""
    from matplotlib.ticker import Locator

    class Spaced(Locator):
        def __call__(self) -> Any:
            axis: Any = self.axis
            return self.tick_values(*sorted(axis.get_view_interval()))

        def tick_values(self, vmin: float, vmax: float) -> Any:
            for values in finer_first:
                ticks = np.asarray(values(vmin, vmax))
                if not any(_crowded(self.axis, ticks)):
                    break
            return ticks

    return Spaced()


def _crowded(axis: Any, ticks: ndarray) -> Iterator[bool]:
    """Whether each label comes too near to the next one."""
    inside = ticks[(ticks >= min(axis.get_view_interval())) & (ticks <= max(axis.get_view_interval()))]
    labels = axis.get_major_formatter().format_ticks(inside)
    unit = axis.get_major_ticks(1)[0].label1.get_size() * WIDTH / 72 * axis.axes.figure.dpi
    places = axis.axes.transData.transform([(tick, 0) for tick in inside])[:, 0] if len(inside) else []
    lengths = [len(re.sub(r"\$|\\[a-z]+|[{}^]", "", label)) for label in labels]
    for k in range(len(inside) - 1):
        room = (places[k + 1] - places[k]) / unit
        yield bool(room < (lengths[k] + lengths[k + 1]) / 2 + BETWEEN)
