"""A bounded record of a stream: mean and variance of each feature at moments spread evenly over it."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels import moved
from bnorm.running import Statistics


class Moment(NamedTuple):
    """Rows of the stream so far, mean and variance of each feature; of several moments, arrays with a row for each."""

    rows: Any
    mean: ndarray
    var: ndarray


class TimedMoment(NamedTuple):
    """The same for a stream whose rows have times, with the time of the newest row."""

    rows: Any
    mean: ndarray
    var: ndarray
    times: Any  # in nanoseconds in a History


AnyMoment = Moment | TimedMoment


class History:
    """Records every batch until there are more than `limit` records.

    Then it drops every second record, and from then on records only every second batch. The first record is always
    kept, to compare with.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.every = 1  # batches from one moment to the next
        self.batches = 0
        self.moments: list[AnyMoment] = []

    def record(self, statistics: Statistics, newest: int | None) -> None:
        """Record the statistics after a batch, and the time of the newest row if it has one."""
        if self.batches % self.every == 0:
            self.moments.append(moment(statistics, newest))
            self.thin()
        self.batches += 1

    def thin(self) -> None:
        """Drop moments until there are no more than `limit`."""
        while len(self.moments) > self.limit:
            self.moments, self.every = self.moments[::2], 2 * self.every

    def until(self, now: AnyMoment) -> AnyMoment:
        """All recorded moments and `now`, as NumPy arrays."""
        moments = [m._replace(mean=moved(m.mean, ndarray), var=moved(m.var, ndarray)) for m in (*self.moments, now)]
        if len(moments) > 1 and all(map(partial(np.array_equal, equal_nan=True), moments[-1], moments[-2])):
            moments.pop()
        return type(now)(*map(np.stack, zip(*moments, strict=True)))


def moment(statistics: Statistics, newest: int | None) -> AnyMoment:
    """A copy of the present statistics."""
    found = statistics.rows, statistics.mean.copy(), statistics.var.copy()
    return Moment(*found) if newest is None else TimedMoment(*found, newest)
