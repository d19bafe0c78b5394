"""The clocks by which the values of a stream fade: one counts rows, the other reads their times."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels import cpu, moved

KEPT = 1 << 22  # rows whose weights are kept: 32 MB
SPAN = 1 << 10  # rows whose weights are computed one by one
DEEP = 1000.0  # a row that is this many half-lives older than another has no weight beside it


def _weights(halflife: float, rows: int, like: Any) -> ndarray:
    """Return the weights of `rows` rows. Each is the product of a weight for a long and one for a short time."""
    short = min(rows, SPAN)
    ages = (np.arange(m - 1, -1, -1.0) for m in (short, -(-rows // short)))
    halved = (cpu.halved(age * step / -halflife) for age, step in zip(ages, (1, short), strict=True))
    of_short, of_long = (moved(some, type(like)) for some in halved)
    weights: ndarray = (of_long[:, None] * of_short).reshape(-1)[-rows:]
    return weights


@lru_cache(maxsize=1)
def _kept_weights(halflife: float, rows: int) -> ndarray:
    """The same, kept for the next batch, which usually is as long: making them takes longer than plain moments."""
    weights = _weights(halflife, rows, np.empty(0))
    weights.flags.writeable = False
    return weights


class Rows(NamedTuple):
    """The clock that counts rows: a row weighs half as much as the row that comes `halflife` rows later."""

    halflife: float

    @property
    def end(self) -> None:
        """None: the time of the last row is the number of rows of the stream, which the statistics count."""

    def recent(self, n: int) -> int:
        """Return the position of the first of n rows that has any weight beside the last."""
        return n - int(min(n, DEEP * self.halflife + 1))

    def before(self, row: int, n: int) -> float:
        """Return the time of a row, counted from the last of n rows: zero or negative."""
        return float(row + 1 - n)

    def weights(self, start: int, n: int, like: Any) -> ndarray:
        """Return the weights of the rows from `start` to n; the last is 1. The array may be read-only."""
        if type(like) is ndarray and n - start <= KEPT:
            return _kept_weights(self.halflife, n - start)
        return _weights(self.halflife, n - start, like)

    def of(self, rows: slice) -> "Rows":
        """Return the clock of a slice of the rows."""
        return self

    def in_order(self, x: ndarray, weight: ndarray | None) -> tuple["Rows", ndarray, ndarray | None]:
        """Return the clock, the table and the weights, with the oldest row first."""
        return self, x, weight


class Ages(NamedTuple):
    """The clock that reads times: a row weighs half as much as one whose time is `halflife` nanoseconds later."""

    halflife: float
    ages: ndarray  # float64: how much older a row is than the newest
    end: float  # the time of the newest row, as the stream counts it
    order: ndarray | None = None  # the positions of the rows by time; None if they are in order

    def recent(self, n: int) -> int:
        """As in `Rows`; so are the other methods."""
        deep = DEEP * self.halflife
        return 0 if self.ages[0] <= deep else n - int(np.searchsorted(self.ages[::-1], deep, "right"))

    def before(self, row: int, n: int) -> float:
        return -float(self.ages[row])

    def weights(self, start: int, n: int, like: Any) -> ndarray:
        weights: ndarray = moved(cpu.halved(self.ages[start:] / -self.halflife), type(like))
        return weights

    def of(self, rows: slice) -> "Ages":
        some = self.ages[rows]
        return self._replace(ages=some - some[-1], end=self.end - float(some[-1]), order=None)

    def in_order(self, x: ndarray, weight: ndarray | None) -> tuple["Ages", ndarray, ndarray | None]:
        if self.order is None:
            return self, x, weight
        order = moved(self.order, type(x))
        return self._replace(order=None), x[order], None if weight is None else weight[order]


Clock = Rows | Ages


def clock_of(halflife: float | None) -> Rows | None:
    """The clock of a stream that counts rows; None if its values do not fade."""
    return None if halflife is None else Rows(float(halflife))
