"""Distributions before and after normalization."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm.checks import type_name
from bnorm.kernels import kernels_for
from bnorm.plot.drawing import (
    FIRST,
    GRAY,
    SECOND,
    Display,
    chosen,
    height,
    host,
    key,
    label_lines,
    labels,
    names_of,
    strips,
    within,
)
from bnorm.plot.ticks import spaced
from bnorm.transformer import times

HISTOGRAMS = 6  # the most features that get histograms; more become strips
SAMPLE = 100_000  # rows that are drawn, spread evenly over the table
BINS = 50
STRIP = {  # what the parts of a strip mean, and how they look
    "median": {"color": "black", "marker": "|", "linestyle": "none", "markersize": 7},
    "middle half": {"color": GRAY, "linewidth": 4},
    "98% of all values": {"color": GRAY, "linewidth": 1},
    "least and greatest": {"color": GRAY, "marker": ".", "linestyle": "none", "markersize": 5},
    "the same, beyond the edge": {"color": GRAY, "marker": ">", "linestyle": "none", "markersize": 4},
}
QUANTILES = (0, 0.01, 0.25, 0.5, 0.75, 0.99, 1)


class NormalizationDisplay(Display):
    """The distribution of each feature before and after a transformer.

    Up to 6 features have histograms: on the left in their own units, on the right all on the same axis. A few values
    far from all others are counted at the edge instead of drawn, so that the others can be seen. More features have a
    strip each: a mark for the median, a thick line for the middle half of all values, a thin line for 98%, and dots for
    the least and the greatest value, or arrows if these are beyond the edge. If features differ much in size, the axis
    is logarithmic in both directions, so that small ones can be seen.

    Parameters
    ----------
    before, after : array-like of shape (n_samples, n_features)
        The table before and after the transformer.
    feature_names : sequence of str
        Names of the features.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    ax_ : matplotlib Axes
        The outer axes, which contain the panels.
    axes_ : ndarray of matplotlib Axes
        The panels, before and after in turn.

    Examples
    --------
    >>> import numpy as np
    >>> from bnorm import BatchNormTransformer
    >>> from bnorm.plot import NormalizationDisplay
    >>> x = np.random.default_rng(0).normal([0.0, 500.0], [1.0, 90.0], (1000, 2))
    >>> display = NormalizationDisplay.from_estimator(BatchNormTransformer().fit(x), x)
    >>> len(display.axes_)
    4
    """

    def __init__(self, before: ArrayLike, after: ArrayLike, feature_names: Sequence[str]) -> None:
        self.before = np.asarray(before, np.float64)
        self.after = np.asarray(after, np.float64)
        self.feature_names = list(feature_names)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, *, features: Sequence[int | str] | None = None, ax: Any = None
    ) -> Self:
        """Draw a table before and after a fitted transformer.

        Parameters
        ----------
        estimator : BatchNormTransformer
            Fitted. Any transformer with one output for each feature will do, such as scikit-learn's StandardScaler.
        X : array-like of shape (n_samples, n_features)
            The table, whose columns of times or keys are not drawn. If it has more than 100,000 rows, an evenly spaced
            sample of about that size is drawn.
        features : sequence of int or str, default=None
            Indices or names of the features to draw; all by default.
        ax : matplotlib Axes, default=None
            The place to draw; a new figure by default.

        Returns
        -------
        display : NormalizationDisplay
        """
        if not hasattr(estimator, "transform"):
            raise TypeError(f"{cls.__name__}: estimator: expected a transformer, got {type_name(estimator)}")
        kernels_for(X, cls.__name__, "X")  # a TypeError if X is lazy
        after = host(estimator.transform(X))
        names = names_of(estimator, after.shape[1])
        if len(columns := times.names_of(X)) > after.shape[1] and hasattr(estimator, "get_feature_names_out"):
            names = [name for name in estimator.get_feature_names_out() if name in columns]
            for column in set(columns).difference(names):
                X = times.without(X, column)
        places = chosen(cls.__name__, features, names)
        every = -(-len(after) // SAMPLE)
        before = host(X)
        if before.shape != after.shape:
            raise ValueError(
                f"{cls.__name__}: estimator: expected one with one output for each feature, got "
                f"{type(estimator).__name__}, which transforms shape {before.shape} to {after.shape}"
            )
        return cls(before[::every, places], after[::every, places], [names[i] for i in places]).plot(ax)

    def _draw(self, ax: Any) -> None:
        n = len(self.feature_names)
        lines = n if n <= HISTOGRAMS else 1
        size = (8.0, 1.5 * n + 0.7) if n <= HISTOGRAMS else (9.0, height(n))
        self._divide(ax, size, (lines, 2), 2 * lines)
        (self._draw_histograms if n <= HISTOGRAMS else self._draw_strips)()
        self.axes_[0].set_title("before", fontsize=10)
        self.axes_[1].set_title("after", fontsize=10)

    def _draw_histograms(self) -> None:
        note = "Bars: the number of rows. Arrows: how many rows are beyond the edge."
        key(self.axes_, {}, note)
        before, after = within(self.before), within(self.after)
        ranges = [_range(column) for column in after.T]
        common = min(low for low, _ in ranges), max(high for _, high in ranges)
        for i, name in enumerate(labels(self.feature_names)):
            left, right = self.axes_[2 * i : 2 * i + 2]
            _histogram(left, before[:, i], _range(before[:, i]), FIRST)
            _histogram(right, after[:, i], common, SECOND)
            left.set_ylabel(name, fontsize=9, rotation=0, horizontalalignment="right", parse_math=False)
            if i + 1 < len(self.feature_names):
                right.tick_params(labelbottom=False)
        self.axes_[-2].set_xlabel("value, in the feature's own unit", fontsize=8)
        self.axes_[-1].set_xlabel("value, all features on one axis", fontsize=8)

    def _draw_strips(self) -> None:
        key(self.axes_, STRIP)
        for ax, values, color in zip(self.axes_, (self.before, self.after), (FIRST, SECOND), strict=True):
            ax.set_xlabel("value", fontsize=8)
            strips(ax, _quantiles(within(values)), color)
        label_lines(self.axes_[0], self.feature_names)
        self.axes_[1].set_yticks([])
        self.axes_[1].set_ylim(self.axes_[0].get_ylim())


def _quantiles(values: ndarray) -> ndarray:
    """Return the quantiles of each column, (7, C); NaN for a column without values."""
    columns = [column[np.isfinite(column)] for column in values.T]
    return np.array([np.quantile(c, QUANTILES) if len(c) else np.full(len(QUANTILES), np.nan) for c in columns]).T


def _range(column: ndarray) -> tuple[float, float]:
    """The range of a histogram: all values except a few that are far away from all others."""
    known = column[np.isfinite(column)]
    if not len(known):
        return 0.0, 1.0
    least, low, high, most = np.quantile(known, (0, 0.005, 0.995, 1))
    room = 0.5 * (high - low)
    low, high = max(least, low - room), min(most, high + room)
    narrow = 4 * BINS * float(np.spacing(max(abs(low), abs(high))))  # bins of a smaller range could not be told apart
    if high - low > narrow:
        return low, high
    room = max(0.5, narrow)
    return low - room, high + room


def _histogram(ax: Any, column: ndarray, shown: tuple[float, float], color: str) -> None:
    known = column[np.isfinite(column)]
    ax.hist(known, BINS, range=shown, color=color)
    room = 0.03 * (shown[1] - shown[0])
    ax.set_xlim(shown[0] - room, shown[1] + room)
    ax.set_yticks([])
    ax.tick_params(labelsize=8)
    spaced(ax.xaxis)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    write = partial(ax.text, y=0.95, transform=ax.transAxes, fontsize=8, verticalalignment="top")
    if below := int((known < shown[0]).sum()):
        write(0.0, s=f"← {below:,} more", horizontalalignment="left")
    if above := int((known > shown[1]).sum()):
        write(1.0, s=f"{above:,} more →", horizontalalignment="right")
    if not len(known):
        write(1.0, s="no values", horizontalalignment="right")
    elif np.ptp(known) == 0:
        write(1.0, s="constant", horizontalalignment="right")
