"""Groups around the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from bnorm import checks
from bnorm.plot.drawing import FIRST, GRAY, Display, chosen, height, key, label_lines, names_of, within
from bnorm.plot.ticks import spaced

MOST_FEATURES = 6  # panels, unless features are chosen
ENTRIES = {  # what is drawn, and how it looks
    "mean of a group": {"color": FIRST, "marker": "o", "linestyle": "none", "markersize": 4},
    "one deviation around it": {"color": FIRST, "linewidth": 1.5, "alpha": 0.6},
    "all rows": {"color": GRAY, "linewidth": 1.5},
    "one deviation around them": {"color": GRAY, "linewidth": 8, "alpha": 0.25},
}


class GroupsDisplay(Display):
    """The mean and the standard deviation of each group, around those of all rows.

    Each feature has a panel, in which the groups are sorted by their means. Of many groups only those with the least
    and the greatest means are drawn, with their names; the number of groups between them is written where the two
    halves meet.

    Parameters
    ----------
    groups : sequence
        The keys of the groups.
    means, stds : array-like of shape (n_groups, n_features)
        Of each group; NaN where it has no values.
    whole_mean, whole_std : array-like of shape (n_features,)
        Of all rows.
    feature_names : sequence of str
        Names of the features.
    most : int, default=30
        How many groups are drawn in a panel, at most.

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
    >>> from bnorm import GroupedTransformer
    >>> from bnorm.plot import GroupsDisplay
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> x[:, 0] = np.arange(200) % 5
    >>> display = GroupsDisplay.from_estimator(GroupedTransformer(0).fit(x))
    >>> len(display.axes_)
    2
    """

    _note = ""

    def __init__(
        self,
        groups: Sequence[Any],
        means: ArrayLike,
        stds: ArrayLike,
        whole_mean: ArrayLike,
        whole_std: ArrayLike,
        feature_names: Sequence[str],
        most: int = 30,
    ) -> None:
        self.groups = [", ".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in groups]
        self.means, self.stds, self.whole_mean, self.whole_std = (
            np.asarray(a, np.float64) for a in (means, stds, whole_mean, whole_std)
        )
        self.feature_names = list(feature_names)
        self.most = checks.positive(type(self).__name__, "most", most)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, features: Sequence[int | str] | None = None, most: int = 30, ax: Any = None
    ) -> Self:
        """Draw the groups of a fitted GroupedTransformer.

        Parameters
        ----------
        estimator : GroupedTransformer
            Fitted.
        features : sequence of int or str, default=None
            Indices or names of the features to draw, keys not counted; by default the first six.
        most : int, default=30
            How many groups are drawn in a panel, at most.
        ax : matplotlib Axes, default=None
            The place to draw; a new figure by default.

        Returns
        -------
        display : GroupsDisplay
        """
        if not hasattr(type(estimator), "means_"):
            raise TypeError(f"{cls.__name__}: expected a GroupedTransformer, got {checks.type_name(estimator)}")
        means, whole = estimator.means_, estimator.whole_
        every, keys = names_of(estimator, estimator.n_features_in_), set(estimator.key_places_)
        names = [name for i, name in enumerate(every) if i not in keys]
        places = chosen(cls.__name__, features, names)
        if features is None:
            places = places[:MOST_FEATURES]
        given = (means, np.sqrt(estimator.vars_), whole.mean, whole.std())
        of_groups, stds, middle, spread = (a[..., places] for a in given)
        chosen_names = [names[i] for i in places]
        display = cls(list(estimator.groups_), of_groups, stds, middle, spread, chosen_names, most)
        if features is None and len(places) < len(names):
            display._note = f"The first {len(places)} of {len(names):,} features."
        return display.plot(ax)

    def _draw(self, ax: Any) -> None:
        n = len(self.feature_names)
        columns = min(3, n)
        lines = -(-n // columns)
        drawn = min(self.most, len(self.groups))
        size = (3.4 * columns + 1.0, lines * height(drawn) + 0.4)
        self._divide(ax, size, (lines, columns), n)
        for j, panel in enumerate(self.axes_):
            self._draw_feature(panel, j)
        key(self.axes_, ENTRIES, self._note)

    def _draw_feature(self, panel: Any, j: int) -> None:
        """Draw the panel of feature j."""
        known = np.flatnonzero(np.isfinite(self.means[:, j]))
        order = known[np.argsort(self.means[known, j], kind="stable")]
        left = len(order) - self.most
        low = (self.most + 1) // 2
        shown = order if left <= 0 else np.concatenate([order[:low], order[low + left :]])
        means, stds = within(self.means[shown, j]), within(self.stds[shown, j])
        lines = np.arange(len(shown))
        middle, spread = within(self.whole_mean[j : j + 1])[0], within(self.whole_std[j : j + 1])[0]
        if np.isfinite(middle):
            panel.axvspan(middle - spread, middle + spread, color=GRAY, alpha=0.25, linewidth=0)
            panel.axvline(middle, color=GRAY, linewidth=1.5)
        panel.hlines(lines, means - stds, means + stds, color=FIRST, linewidth=1.5, alpha=0.6)
        panel.plot(means, lines, "o", color=FIRST, markersize=4)
        label_lines(panel, [self.groups[g] for g in shown.tolist()])
        if left > 0:
            panel.axhline(low - 0.5, color="black", linewidth=0.6, linestyle=":")
            said = f"{left:,} groups between"
            panel.text(
                0.98, low - 0.5, said, transform=panel.get_yaxis_transform(), fontsize=7, ha="right", va="center"
            )
        panel.set_xlabel(self.feature_names[j], fontsize=8, parse_math=False)
        spaced(panel.xaxis)
        panel.tick_params(labelsize=8)
