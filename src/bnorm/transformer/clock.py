"""The clock by which the values of a stream fade. That a tick is a row is known here, and nowhere else."""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

SPAN = 1 << 10  # rows whose weights are computed one by one
DEEP = 1000.0  # half-lives after which a row has no weight beside younger ones


class Rows(NamedTuple):
    """A row is half a weight older than the one that is `halflife` rows after it."""

    halflife: float

    def recent(self, n: int) -> int:
        """The first of n rows that has any weight beside the last."""
        return n - int(min(n, DEEP * self.halflife + 1))

    def before(self, row: int, n: int) -> float:
        """The time of a row, counted from the last of n rows: zero or negative."""
        return float(row + 1 - n)

    def weights(self, start: int, n: int, like: Any) -> ndarray:
        """The weights of the rows from `start` to n; the last is 1.

        They are products of a weight for a long and for a short time.
        """
        rows = n - start
        short = min(rows, SPAN)
        ages = (np.arange(m - 1, -1, -1.0, like=like) for m in (short, -(-rows // short)))
        of_short, of_long = (np.exp2(age * step / -self.halflife) for age, step in zip(ages, (1, short), strict=True))
        weights: ndarray = (of_long[:, None] * of_short).reshape(-1)[-rows:]
        return weights


def clock_of(halflife: float | None) -> Rows | None:
    """The clock of a stream; None if its values do not fade."""
    return None if halflife is None else Rows(float(halflife))
