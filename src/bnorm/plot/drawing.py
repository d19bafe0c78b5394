"""Helpers of the displays: panels, names of features, and strips, which show many distributions on one axis."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy import ndarray

from bnorm.checks import missing, type_name
from bnorm.kernels import kind_of, moved
from bnorm.plot.ticks import spaced, symlog

LABELS = 60  # names of features on one axis
LONGEST = 30  # characters of a name
MOST = 1e200  # drawn values are at most this far from zero, so that limits of axes, their powers and sums are finite
LETTERS = 18  # letters of a key in an inch of axes, before these are laid out
FIRST, SECOND, GRAY = "#0072b2", "#d55e00", "#8a8a8a"  # safe for color-blind readers


class Display:
    """The base class of displays: what is drawn, and where."""

    figure_: Any
    ax_: Any  # the outer axes
    axes_: ndarray  # the panels

    def plot(self, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            The place to draw; a new figure by default.

        Returns
        -------
        display : object
            The display itself.
        """
        self._draw(ax)
        return self

    def _draw(self, ax: Any) -> None:
        raise NotImplementedError

    def _divide(self, ax: Any, size: tuple[float, float], shape: tuple[int, int], n: int) -> None:
        """Make n panels in lines and columns, in a new figure or in the place of ax."""
        who = type(self).__name__
        try:
            from matplotlib import axes
            from matplotlib import pyplot as plt
        except ImportError as error:
            raise missing(who, "matplotlib", "plot", error) from error
        if ax is None:
            _, ax = plt.subplots(figsize=size, layout="constrained")
        elif not isinstance(ax, axes.Axes):
            raise TypeError(f"{who}: ax: expected one matplotlib Axes, got {type_name(ax)}")
        place, panels = ax.get_subplotspec(), [ax]
        if n > 1:
            if place is None:
                raise ValueError(
                    f"{who}: ax: expected axes of a grid, as plt.subplots makes them, got axes placed by hand"
                )
            ax.set_axis_off()
            lines, columns = shape
            grid = place.subgridspec(1 + lines, columns, height_ratios=[1e-3] + [1.0] * lines)  # line 0 is for a key
            panels = [ax.figure.add_subplot(grid[1 + i // columns, i % columns]) for i in range(n)]
        self.figure_, self.ax_, self.axes_ = ax.figure, ax, np.array(panels)


def height(features: int) -> float:
    """The height in inches for a line per feature, up to a limit."""
    return min(0.2 * features, 24.0) + 1.4


def names_of(estimator: Any, n: int) -> list[str]:
    """The feature names of a fitted estimator, or x0, x1 and so on."""
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{i}" for i in range(n)] if names is None else [str(name) for name in names]


def chosen(who: str, features: Sequence[int | str] | None, names: list[str]) -> list[int]:
    """The indices of features that are given by index or name."""
    if features is None:
        return list(range(len(names)))
    if isinstance(features, str) or not isinstance(features, Iterable):
        raise TypeError(f"{who}: features: expected a sequence of indices or names, got {features!r}")
    places = []
    for feature in features:
        place = names.index(feature) if isinstance(feature, str) and feature in names else feature
        if isinstance(place, bool) or not isinstance(place, int | np.integer) or not -len(names) <= place < len(names):
            raise ValueError(f"{who}: features: expected indices or names of {len(names)} features, got {feature!r}")
        places.append(int(place) % len(names))
    if not places:
        raise ValueError(f"{who}: features: expected at least one, got none")
    return places


def labels(names: list[str]) -> list[str]:
    """Return names, the long ones without their middle, and with their index in front if several would be the same."""
    cut = [name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[1 - LONGEST // 2 :]}" for name in names]
    return [name if cut.count(name) == 1 else f"[{i}] {name}" for i, name in enumerate(cut)]


def label_lines(ax: Any, names: list[str]) -> None:
    """Label the y axis with the names of features, or some of them if there are too many."""
    every = max(1, -(-len(names) // LABELS))
    ax.set_yticks(range(0, len(names), every), labels(names)[::every], fontsize=8, parse_math=False)
    ax.set_ylim(max(1, len(names)) - 0.5, -0.5)


def key(panels: ndarray, entries: Mapping[str, Mapping[str, Any]], note: str = "") -> None:
    """Draw the key above the panels: an example of each line, with its meaning, and below them a note."""
    from matplotlib.lines import Line2D

    ax = panels[0]
    if len(panels) > 1:  # there is an empty line above them
        ax = ax.figure.add_subplot(ax.get_subplotspec().get_gridspec()[0, :])
        ax.set_axis_off()
    width = ax.get_window_extent().width / ax.figure.dpi  # in inches
    most = max(1, int(width * LETTERS / (max(map(len, entries), default=1) + 6)))
    lines = -(-len(entries) // most) or 1
    ax.legend(
        [Line2D([], [], **style) for style in entries.values()],
        list(entries),
        loc="lower left",
        bbox_to_anchor=(0, 1.02),
        ncols=-(-len(entries) // lines) or 1,
        title=textwrap.fill(note, max(20, int(width * LETTERS))),
        alignment="left",
        fontsize=8,
        title_fontsize=8,
        frameon=False,
        borderaxespad=0,
        borderpad=0.2,
        columnspacing=1.4,
    )


def strips(ax: Any, quantiles: ndarray, color: str) -> None:
    """Draw a line for each feature from its 7 quantiles, (7, C): dots, a thin line, a thick line, and a mark.

    Dots that are too far away become arrows at the edge.
    """
    least, low, left, middle, right, high, most = quantiles
    lines = np.arange(len(middle))
    ax.hlines(lines, low, high, color=color, linewidth=1)
    ax.hlines(lines, left, right, color=color, linewidth=4, alpha=0.6)
    ax.plot(middle, lines, "|", color="black", markersize=7)
    start, end = _limits(ax, quantiles)
    for ends, inner, arrow in ((least, low, "<"), (most, high, ">")):
        beyond, far = ends != inner, (ends < start) | (ends > end)
        ax.plot(ends[beyond & ~far], lines[beyond & ~far], ".", color=color, markersize=4)
        ax.plot(np.clip(ends, start, end)[far], lines[far], arrow, color=color, markersize=4)
    ax.grid(axis="x", linewidth=0.4, alpha=0.6)
    ax.tick_params(labelsize=8)


def _limits(ax: Any, quantiles: ndarray) -> tuple[float, float]:
    """The limits of the x axis, which is linear, or symlog if the sizes of features differ by more than a hundred."""
    known = quantiles[:, np.isfinite(quantiles[3])]
    size = np.abs(known).max(axis=0)
    size = size[size > 0]
    if len(size) and size.max() > 100 * size.min():
        usual = np.abs(known[2:5]).max(axis=0)
        linear = symlog(ax, float(np.min(usual[usual > 0], initial=size.max())), float(size.max()))
        ax.set_xlabel(f"logarithmic, linear within ±{linear:g}", fontsize=8)
        return -np.inf, np.inf
    spaced(ax.xaxis)
    low, high = (known[1].min(), known[5].max()) if known.size else (0.0, 1.0)
    room = 0.5 * (high - low) or 0.5
    start, end = max(known[0].min(initial=np.inf), low - room), min(known[6].max(initial=-np.inf), high + room)
    if start < end:
        ax.set_xlim(start - 0.04 * (end - start), end + 0.04 * (end - start))
    return start, end


def within(values: ndarray) -> ndarray:
    """Return values as they are drawn: infinity as NaN, and others limited to MOST."""
    within: ndarray = np.where(np.isfinite(values), np.clip(values, -MOST, MOST), np.nan)
    return within


def host(values: Any) -> ndarray:
    """Return a table of any type, on any device, as a NumPy array of float64."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    on_device = kind_of(values) not in (None, ndarray)
    return np.asarray(moved(values, ndarray) if on_device else values, np.float64)
