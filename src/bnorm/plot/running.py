"""Running statistics over a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

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

LINES = {  # what is drawn in a panel, and how it looks
    "mean": {"color": FIRST, "linewidth": 1.6},
    "one standard deviation to either side": {"color": FIRST, "linewidth": 8, "alpha": 0.25},
    "mean at the start": {"color": GRAY, "linewidth": 1, "linestyle": ":"},
}
NOW = {
    "mean": {"color": "black", "marker": "|", "linestyle": "none", "markersize": 7},
    "one standard deviation to either side": {"color": FIRST, "linewidth": 4, "alpha": 0.6},
}
RULE = (
    "Orange: drifts. Its mean has moved by more than one standard deviation from the start, or its standard deviation "
    "has halved or doubled."
)
PANELS = 12  # the most features that get a panel each; more share a map


class RunningStatsDisplay(Display):
    """Mean and spread of each feature over the stream, as recorded by `BatchNormTransformer(history=N)`.

    Up to 12 features have a panel each: a line for the mean, a band of one standard deviation to either side, and a
    dotted line for the mean at the start. A panel is orange, and says why, if the mean has moved from the start by more
    than one present standard deviation, or if the standard deviation has halved or doubled. More features share two
    maps: the distance of the mean from the start, in present standard deviations, and the ratio of the standard
    deviation to that at the start; gray means unknown. Without a record only the present statistics are drawn.

    Parameters
    ----------
    rows : array-like of shape (n_moments,)
        The number of rows of the stream before each moment.
    mean, std : array-like of shape (n_moments, n_features)
        Mean and standard deviation at each moment.
    feature_names : sequence of str
        Names of the features.
    times : array-like of shape (n_moments,), default=None
        The time of the newest row at each moment, as time stamps or seconds; then the horizontal axis is time.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    ax_ : matplotlib Axes
        The outer axes, which contain the panels.
    axes_ : ndarray of matplotlib Axes
        The panels.

    Examples
    --------
    >>> import numpy as np
    >>> from bnorm import BatchNormTransformer
    >>> from bnorm.plot import RunningStatsDisplay
    >>> t = BatchNormTransformer(halflife=200, history=100)
    >>> for batch in np.random.default_rng(0).normal(size=(50, 20, 3)):
    ...     t = t.partial_fit(batch)
    >>> display = RunningStatsDisplay.from_estimator(t)
    >>> display.mean.shape, len(display.axes_)
    ((50, 3), 3)
    """

    def __init__(
        self, rows: ArrayLike, mean: ArrayLike, std: ArrayLike, feature_names: Sequence[str], times: Any = None
    ) -> None:
        self.rows = np.asarray(rows)
        self.times = None if times is None else np.asarray(times)
        self.mean = np.asarray(mean, np.float64)
        self.std = np.asarray(std, np.float64)
        self.feature_names = list(feature_names)

    @classmethod
    def from_estimator(cls, estimator: Any, *, features: Sequence[int | str] | None = None, ax: Any = None) -> Self:
        """Draw the record of a fitted transformer.

        Parameters
        ----------
        estimator : BatchNormTransformer
            Fitted. Without a record only the present statistics are drawn, so a StandardScaler works too.
        features : sequence of int or str, default=None
            Indices or names of the features to draw; all by default.
        ax : matplotlib Axes, default=None
            The place to draw; a new figure by default.

        Returns
        -------
        display : RunningStatsDisplay
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator)
        if not hasattr(estimator, "mean_"):
            name = type(estimator).__name__
            raise TypeError(f"{cls.__name__}: expected one with mean_ and var_, got {name}: see GroupsDisplay")
        rows, mean, var, *times = getattr(estimator, "history_", None) or _now(estimator)
        names = names_of(estimator, mean.shape[1])
        places = chosen(cls.__name__, features, names)
        return cls(rows, mean[:, places], np.sqrt(var[:, places]), [names[i] for i in places], *times).plot(ax)

    def _draw(self, ax: Any) -> None:
        n = len(self.feature_names)
        if len(self.rows) == 1:
            self._divide(ax, (6, height(n)), (1, 1), 1)
            self._draw_now(self.ax_)
        elif n <= PANELS:
            columns = 1 if n == 1 else 2 if n <= 4 else 3
            lines = -(-n // columns)
            size = (3.4 * columns + 1, 1.9 * lines + 1.1)
            self._divide(ax, size, (lines, columns), n)
            drifts = self._drifts()
            key(self.axes_, LINES, RULE if any(drifts) else "")
            for i, (panel, name) in enumerate(zip(self.axes_, labels(self.feature_names), strict=True)):
                self._draw_feature(panel, i, name, drifts[i])
                if i + columns < n:  # there is a panel below
                    panel.set_xlabel(" " if n % columns else "")  # " " keeps the space, so that all rows are equal
        else:
            self._divide(ax, (9, height(n)), (1, 2), 2)
            self._draw_maps(*self.axes_)

    def shift(self) -> ndarray:
        """The distance of each mean from the start, in present standard deviations, for each moment.

        If the present standard deviation is 0, the largest one is the unit. If it was always 0, the distance is 0 or
        infinite.
        """
        unit = np.where(self.std[-1] > 0, self.std[-1], np.nan_to_num(self.std).max(axis=0))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            away = self.mean - _start(self.mean)
            shift: ndarray = np.where(away == 0, 0.0, away / unit)
        return shift

    def widening(self) -> ndarray:
        """log2 of the ratio of each standard deviation to its first one above 0, for each moment."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            widening: ndarray = np.log2(self.std / _start(np.where(self.std > 0, self.std, np.nan)))
        return widening

    def _drifts(self) -> list[str]:
        """Return for each feature why it is said to drift, or an empty text."""
        shift, widening = (np.where(np.isnan(a), 0, a) for a in (self.shift(), self.widening()))
        reasons = []
        for i, (far, wide) in enumerate(
            zip(np.abs(shift).argmax(axis=0), np.abs(widening).argmax(axis=0), strict=True)
        ):
            moved, power = float(shift[far, i]), float(widening[wide, i])
            by = f" by {moved:+.2g} deviations" if np.isfinite(moved) else ""
            ratio = f"deviation × {np.exp2(power):.2g}" if abs(power) < 1000 else "deviation changed"
            reasons.append(", ".join([f"mean moved{by}"] * (abs(moved) > 1) + [ratio] * (abs(power) > 1)))
        return reasons

    def _draw_now(self, ax: Any) -> None:
        mean, std = within(self.mean[0]), within(self.std[0])
        left, right = mean - std, mean + std
        ax.set_xlabel("value", fontsize=8)
        strips(ax, np.array([left, left, left, mean, right, right, right]), FIRST)
        label_lines(ax, self.feature_names)
        key(self.axes_, NOW)

    def _draw_feature(self, ax: Any, i: int, name: str, drift: str) -> None:
        mean, std = within(self.mean[:, i]), within(self.std[:, i])
        start = _start(mean[:, None])[0]
        color = SECOND if drift else FIRST
        x = self.rows if self.times is None else self.times
        ax.fill_between(x, mean - std, mean + std, color=color, alpha=0.25, linewidth=0)
        ax.plot(x, mean, color=color, linewidth=1.6)
        ax.axhline(start, color=GRAY, linewidth=1, linestyle=":")
        ax.margins(y=0.2)  # space for the name, which is inside the panel because there may be a title above
        ax.text(0.02, 0.96, name, transform=ax.transAxes, fontsize=9, verticalalignment="top", parse_math=False)
        ax.text(0.02, 0.03, drift, transform=ax.transAxes, fontsize=8, color=color)
        self._along(ax, x[0] if x is self.times else 0, x[-1])

    def _along(self, ax: Any, start: Any, end: Any) -> None:
        """Label the axis of rows or times."""
        if start != end:
            ax.set_xlim(start, end)
        ax.tick_params(labelsize=8)
        for axis in (ax.xaxis, ax.yaxis):
            axis.get_offset_text().set_fontsize(8)
        if self.times is not None and self.times.dtype.kind == "M":
            from matplotlib import dates

            places = dates.AutoDateLocator(minticks=2, maxticks=5)  # type: ignore[no-untyped-call]
            ax.set_xlabel("time", fontsize=8)
            ax.xaxis.set_major_locator(places)
            ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(places))  # type: ignore[no-untyped-call]
        elif self.times is not None:
            ax.set_xlabel("seconds", fontsize=8)
            spaced(ax.xaxis)
        else:
            ax.set_xlabel("rows", fontsize=8)
            _count_rows(ax)

    def _draw_maps(self, shifts: Any, spreads: Any) -> None:
        x = self.rows if self.times is None else self.times
        before = np.zeros(1, x.dtype) if self.times is None else x[:1] - (x[1:2] - x[:1])
        edges = np.concatenate([before, x])
        lines = np.arange(len(self.feature_names) + 1) - 0.5
        for ax, values, title in (
            (shifts, self.shift(), "mean: standard deviations\naway from the start"),
            (spreads, self.widening(), "standard deviation:\ntimes that at the start"),
        ):
            ax.set_facecolor("#d0d0d0")  # unknown values
            values = within(values)
            known = np.abs(values[~np.isnan(values)])
            limit = max(1.0, float(np.quantile(known, 0.99, method="higher"))) if known.size else 1.0
            mesh = ax.pcolormesh(
                edges, lines, np.ma.masked_invalid(values.T), cmap="RdBu_r", vmin=-limit, vmax=limit, rasterized=True
            )
            pad = 0.2 * ax.figure.dpi / ax.get_window_extent().height
            bar = ax.figure.colorbar(mesh, ax=ax, extend="both", location="bottom", aspect=30, pad=pad)
            if ax is spreads:
                bar.ax.xaxis.set_major_formatter(lambda power, _: f"{2.0**power:.3g}")
            spaced(bar.ax.xaxis, integer=ax is spreads)
            bar.ax.tick_params(labelsize=8)
            bar.set_label("gray: unknown", fontsize=8)
            ax.set_title(title, fontsize=10)
            self._along(ax, edges[0], edges[-1])
        label_lines(shifts, self.feature_names)
        spreads.set_yticks([])
        spreads.set_ylim(shifts.get_ylim())


def _now(estimator: Any) -> tuple[ndarray, ndarray, ndarray]:
    return np.zeros(1, np.int64), host(estimator.mean_)[None], host(estimator.var_)[None]


def _start(values: ndarray) -> ndarray:
    """The first finite value of each feature."""
    known = np.isfinite(values)
    start: ndarray = np.take_along_axis(values, known.argmax(axis=0)[None], axis=0)[0]
    return start


def _count_rows(ax: Any) -> None:
    from matplotlib.ticker import EngFormatter

    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    spaced(ax.xaxis, integer=True)
