"""A bounded record of a stream: what mean and variance of each feature were at moments spread evenly over it."""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels import moved
from bnorm.running import Statistics


class Moment(NamedTuple):
    """One, or several as arrays with a row each: rows of the stream before it, mean and variance of each feature."""

    rows: Any
    mean: ndarray
    var: ndarray


class History:
    """Every batch is a moment until there are more than `limit`; then every second one goes, and so do those to come.

    The first stays for good, so that there is something to compare with.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.every = 1  # batches from one moment to the next
        self.batches = 0
        self.moments: list[Moment] = []

    def record(self, statistics: Statistics) -> None:
        """What a batch has made of them."""
        if self.batches % self.every == 0:
            self.moments.append(moment(statistics))
            self.thin()
        self.batches += 1

    def thin(self) -> None:
        """Let go of moments, as many as `limit` wants."""
        while len(self.moments) > self.limit:
            self.moments, self.every = self.moments[::2], 2 * self.every

    def until(self, now: Moment) -> Moment:
        """All of them and now, in NumPy arrays."""
        moments = [_host(moment) for moment in (*self.moments, now)]
        if len(moments) > 1 and all(map(_same, moments[-1], moments[-2])):
            moments.pop()
        return Moment(*map(np.stack, zip(*moments, strict=True)))


def moment(statistics: Statistics) -> Moment:
    """A copy of what they are."""
    return Moment(statistics.rows, statistics.mean.copy(), statistics.var.copy())


def _same(a: Any, b: Any) -> bool:
    return np.array_equal(a, b, equal_nan=True)


def _host(given: Moment) -> Moment:
    return Moment(given.rows, moved(given.mean, ndarray), moved(given.var, ndarray))
