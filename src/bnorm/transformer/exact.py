"""Exact statistics of a transformer: rows can be taken out again, and equal rows give an equal digest."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from bnorm.exact import ExactMoments
from bnorm.running import Statistics


class Exact:
    """The part of a transformer for exact statistics."""

    exact: bool
    _state: Any
    _table: Callable[[Any], Any]
    _check_fitted: Callable[[], None]

    def forget(self, X: Any, sample_weight: Any = None) -> Self:
        """Take rows out that were learned before, in any order and any cut. It needs exact=True.

        The result has the same bits as if they had never been learned. gamma_ and beta_, and `history_`, do not change.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            The rows, with the values that they had.
        sample_weight : array-like of shape (n_samples,), default=None
            The weights that they had.

        Returns
        -------
        self : BatchNormTransformer

        Raises
        ------
        ValueError
            If these cannot be rows that were learned: a feature would have a negative count, or sums that no values
            have. Other rows that were never learned cannot be detected.
        """
        state = self._exact_state("forget")
        x = self._table(X)
        sums = x.exact(None if sample_weight is None else x.weights(sample_weight))
        state.forget(sums, x.rows)
        return self

    def digest(self) -> str:
        """A short hexadecimal string of the exact sums: equal for equal rows, whatever their order and their batches.

        It needs exact=True. It is that of `bnorm.functional.moments(X, exact=True, skipna=True)`.
        """
        sums: ExactMoments = self._exact_state("digest").sums
        return sums.digest()

    def _exact_state(self, method: str) -> Any:
        self._check_fitted()
        if self._state.sums is None:
            raise ValueError(
                f"BatchNormTransformer: {method}: expected a transformer with exact=True and momentum=None, whose sums "
                "are integers, got one whose statistics are rounded"
            )
        return self._state


def emptied(statistics: Statistics) -> Statistics:
    """Return a copy with the same settings that has seen no values."""
    empty = statistics.copy()
    for name, a in empty.arrays().items():
        a.fill(np.nan if name in ("mean", "var") else 0)
    return empty


def rounded(statistics: Statistics, sums: ExactMoments, rows: int, batches: int) -> Statistics:
    """Return statistics with the same settings and the values of exact sums, each number rounded once."""
    trial = emptied(statistics)
    trial.counters[...] = 0
    trial.begin(sums._parts.copy(), rows)
    var = sums.var(statistics.ddof)
    np.copyto(trial.var, var, where=~np.isnan(var))  # NaN for at most ddof values: `begin` divided by their count
    trial.counters[0] = batches
    return trial
