"""The statistics of groups that appear as a stream goes on, and of all its rows together.

Each group has the statistics that a `BatchNormTransformer` of its rows alone would have: a batch updates them if it has
rows of the group, and their clock counts only these rows. `whole` has the statistics of all rows, whatever their keys.
If rows have times, there is one clock for all groups.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import devices
from bnorm.kernels import cpu
from bnorm.moments import Moments
from bnorm.running import Statistics, Step
from bnorm.transformer.fitted import at_once, ticks
from bnorm.transformer.group_batches import FAINT, Batch
from bnorm.transformer.key_index import Index
from bnorm.transformer.keys import Keys
from bnorm.transformer.times import Zero


class Groups:
    """The statistics of all groups, by the code of a key, and of all rows. An error or an interrupt changes nothing.

    way     momentum and half-life, as they were given
    zero    the zero of the clock that reads the times of rows; None before the first
    latest  if rows fade by their times, that of the newest row; None if only the statistics show it
    """

    def __init__(self, columns: int, channels: int, momentum: float | None, halflife: Any) -> None:
        self.index = Index(columns)
        self.channels, self.momentum, self.halflife = channels, momentum, ticks(halflife)
        self.way = momentum, halflife
        self.zero: Zero | None = None
        self.latest: int | None = None
        self.whole = self._empty(1)
        self.arrays: dict[str, ndarray] = {  # (at least G, C): there may be memory for more groups
            name: a.reshape(1, channels)[:0] for name, a in self._empty(1).arrays().items()
        }
        self.lengths = np.empty(0, np.int64)  # rows of each group, by which its values fade
        self.batches = 0
        self.weighted = False

    def __len__(self) -> int:
        return len(self.index)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy arrays whose memory is read-only or shared, as memory from a file or another process may be."""
        self.__dict__.update(state)
        self.arrays = {name: devices.owned(a) for name, a in self.arrays.items()}
        self.lengths = devices.owned(self.lengths)

    def _empty(self, groups: int) -> Statistics:
        """Return the statistics of this many groups that have not been seen."""
        mean = np.full(groups * self.channels, np.nan)
        return Statistics(mean, mean.copy(), self.momentum, 0, from_data=True, halflife=self.halflife)

    def of(self, places: ndarray) -> Statistics:
        """Return a copy of the statistics of these groups, as G C channels; -1 is a group that has not been seen."""
        some, old = self._empty(len(places)), places >= 0
        wide = {name: a.reshape(len(places), self.channels) for name, a in some.arrays().items()}
        for name, a in wide.items():
            a[old] = self.arrays[name][places[old]]
        return some

    @property
    def newest(self) -> int | None:
        """The time of the newest row, with or without values; None if rows have no times."""
        if self.zero is None:
            return None
        return self.zero.newest(self.whole) if self.latest is None else self.latest

    def begin(self, who: str, batch: Batch, names: list[str]) -> None:
        """Start from a complete table, whose rows all weigh the same unless they have times. To be called once."""
        if batch.zero is not None:
            return self.move(who, batch, names)
        some = self._empty(len(batch.keys.keys))
        some.begin(batch.parts.reshape(4, -1), 0)
        whole = self.whole.copy()
        whole.begin(batch.whole[0].parts, batch.whole[0].rows)
        if some.last is not None:
            some.last[...] = np.repeat(batch.lengths, self.channels)
        at = self.index.find(who, batch.keys, names)
        self._set(batch.keys, at, some, batch.lengths, whole=whole, batches=1, weighted=batch.weighted)

    def move(self, who: str, batch: Batch, names: list[str]) -> None:
        """Update by one batch of the stream."""
        at = self.index.find(who, batch.keys, names)
        newest = batch.zero and batch.zero.origin
        zero, past, ahead = self._clock(who, batch.zero, newest)
        some, whole, last = _later(self.of(at), past), _later(self.whole.copy(), past), None
        lengths = np.where(at >= 0, self.lengths[at], 0) if len(self.lengths) else np.zeros(len(at), np.int64)
        if batch.last is not None:
            last = (batch.last + (ahead if zero else (lengths + batch.lengths)[:, None])).reshape(-1)
        seen = None if batch.seen is None else batch.seen.reshape(-1)
        pairs = None if seen is None else np.zeros_like(seen)
        whole.learn([step._replace(end=ahead) for step in batch.whole] if zero else batch.whole)
        if len(at):
            some.move(batch.parts.reshape(4, -1), seen, pairs, last, finite=False)
        besides = {"whole": whole, "zero": zero, "latest": self._latest(newest), "batches": self.batches + 1}
        self._set(batch.keys, at, some, lengths + batch.lengths, past, weighted=batch.weighted, **besides)

    def merge(self, who: str, other: "Groups", names: list[str]) -> None:
        """Unite with the groups of another stream by their keys. If values fade by rows, both streams end now."""
        its = Keys(other.index.kinds, np.empty(0, np.int32), other.index.keys)
        at = self.index.find(who, its, names)
        n, old = len(other), at >= 0
        rows = other.lengths[:n]
        zero, past, ahead = self._clock(who, other.zero, other.newest)
        mine, theirs, whole = _later(self.of(at), past), other.of(np.arange(n)), _later(self.whole.copy(), past)
        lengths = np.where(old, self.lengths[at], rows) if len(self) else rows.copy()
        if theirs.last is not None:
            theirs.last += ahead if zero else np.repeat(lengths - rows, self.channels)
        if n:
            mine.merge(theirs)
        whole.merge(other.whole, ahead if zero else None)
        grown = lengths if self.halflife is not None else lengths + np.where(old, rows, 0)
        besides = {"whole": whole, "zero": zero, "latest": self._latest(other.newest)}
        besides["batches"] = self.batches + other.batches
        self._set(its, at, mine, grown, past, weighted=other.weighted, **besides)

    def batch(self) -> Batch:
        """Return all rows as one batch, if they weigh the same or fade by their times."""
        n, whole, ahead = len(self), self.whole, 0.0
        every, zero = self.of(np.arange(n)), self.zero
        if zero is not None and self.newest is not None:
            ahead, zero = float(zero.origin - self.newest), zero._replace(origin=self.newest)
        parts = every.parts().reshape(4, n, self.channels)
        wide = n, self.channels
        seen, last = (None if a is None else a.reshape(wide) for a in (every.seen, _later(every, ahead).last))
        step = Step(whole.parts(), whole.rows, whole.seen, whole.pairs, _later(whole.copy(), ahead).last, 0.0)
        keys = Keys(self.index.kinds, np.empty(0, np.int32), self.index.keys)
        return Batch(keys, parts, seen, last, self.lengths[:n], [step], self.weighted, zero)

    def _clock(self, who: str, its: Zero | None, newest: int | None) -> tuple[Zero | None, float, float]:
        """Return the zero of the clock after rows until `newest`, whose clock has the zero `its`; and by how much the
        present zero and `its` are later than this new zero. ValueError if the times are of another kind.
        """
        if its is None or newest is None:
            return self.zero, 0.0, 0.0
        before = its if self.zero is None else self.zero
        before.check(who, its)
        zero = before.until(newest)
        column = its.column or zero.column
        return zero._replace(column=column), float(before.origin - zero.origin), float(its.origin - zero.origin)

    def _latest(self, newest: int | None) -> int | None:
        """Return the time of the newest row after rows until `newest`."""
        found = [time for time in (self.newest, newest) if time is not None]
        return max(found, default=None)

    def _set(
        self,
        keys: Keys,
        at: ndarray,
        some: Statistics,
        lengths: ndarray,
        later: float = 0.0,
        *,
        weighted: bool,
        **rest: Any,
    ) -> None:
        """Set the statistics and the numbers of rows of some groups, and the attributes in `rest`, all or none.

        at: the places of the keys, -1 for new ones. later: how far the zero of the clock moves back for all groups.
        """
        new = np.flatnonzero(at < 0)
        at = at.copy()
        at[new] = len(self) + np.arange(len(new))
        self._grow(len(self) + len(new))
        last = self.arrays.get("last")
        calls: list[Any] = [(np.add, last, later, last)] if later else []
        for name, a in some.arrays().items():
            calls.append((self.arrays[name].__setitem__, at, a.reshape(len(at), self.channels)))
        calls.append((self.lengths.__setitem__, at, lengths))
        added = keys.keys if len(new) == len(at) else [keys.keys[i] for i in new.tolist()]
        calls += self.index.added(added, keys.kinds)
        at_once([*calls, (self.__dict__.update, rest | {"weighted": self.weighted or weighted})])

    def _grow(self, groups: int) -> None:
        """Make the arrays long enough for this many groups."""
        room = len(self.lengths)
        if groups <= room:
            return
        more = max(groups, room + room // 2) - room
        self.arrays = {
            name: np.concatenate([a, np.zeros((more, self.channels), a.dtype)]) for name, a in self.arrays.items()
        }
        self.lengths = np.concatenate([self.lengths, np.zeros(more, np.int64)])

    def arrange(self, order: list[int]) -> None:
        """Put the features into this order."""
        self.arrays = {name: np.ascontiguousarray(a[:, order]) for name, a in self.arrays.items()}
        self.whole.assign(self.whole.picked(order))

    def row(self, name: str) -> ndarray:
        """Return one of the arrays, (G, C)."""
        return self.arrays[name][: len(self)]

    @np.errstate(over="ignore", under="ignore")
    def weight(self, places: Any) -> ndarray:
        """Return as how many values groups count against a prior; if values fade, what is left of them now."""
        if self.halflife is None:  # in a moving average too, the values that have been seen
            seen: ndarray = self.arrays["seen"][places]
            return seen
        faded = self._left(self.arrays["last"][places], self.lengths[places][:, None])
        left: ndarray = self.arrays["weight"][places] * faded
        return left

    @np.errstate(over="ignore", under="ignore")
    def _left(self, last: Any, rows: Any) -> ndarray:
        """Return what is left now of a weight of 1 at the times `last`. rows: now, if the clock counts rows."""
        newest, zero = self.newest, self.zero
        now = rows if newest is None or zero is None else float(newest - zero.origin)
        left: ndarray = cpu.halved((last - now) / self.halflife)
        return left

    @np.errstate(under="ignore")  # of variances of tiny values
    def known(self, places: ndarray, prior: float) -> tuple[ndarray, ndarray]:
        """Return mean and variance of groups, (G, C), each with `prior` values of the whole; NaN without any value."""
        seen = self.arrays["seen"][places] > 0
        mean, var = self.arrays["mean"][places], self.arrays["var"][places]
        if not prior:
            return np.where(seen, mean, np.nan), np.where(seen, var, np.nan)
        n, low = np.where(seen, self.weight(places), 0.0), self.arrays["low"][places]
        whole: Any = self.whole
        k = np.where(whole.seen > 0, prior, 0.0)
        added = [np.where(k > 0, a, 0.0) for a in (whole.mean, k * whole.var, whole.low)]
        wide = [np.broadcast_to(a, n.shape).reshape(-1) for a in (k, *added)]
        own = [np.where(n > 0, a, 0.0).reshape(-1) for a in (n, mean, var * n, low)]
        count, mean, m2, _ = cpu.merge([np.stack(own), np.stack(wide)]).reshape(4, *n.shape)
        return mean, np.where(count > 0, m2 / np.where(count > 0, count, 1), np.nan)

    def places(self, who: str, keys: Keys, names: list[str], refuse: bool, first: int = 0) -> tuple[ndarray, ndarray]:
        """Return the groups of the keys of a table, -1 for new keys; and the index of each row's key among these, or
        the number of keys for a row without one. refuse: whether a new or a missing key is a ValueError, which counts
        the rows from `first` on.
        """
        at = self.index.find(who, keys, names)
        gone = keys.gaps
        if refuse and (gone or bool((at < 0).any())):
            lost = np.append(at < 0, True)[keys.codes]
            row = int(lost.argmax())
            key = "a missing key" if keys.codes[row] < 0 else repr(keys.keys[keys.codes[row]])
            raise ValueError(
                f"{who}: unseen: expected keys seen in fit, as unseen='error', got {key} in row {first + row}"
            )
        return at, np.where(keys.codes < 0, np.int32(len(at)), keys.codes) if gone else keys.codes

    def numbers(self, places: ndarray, prior: float, fall_back: bool, eps: float, inverse: bool) -> ndarray:
        """Return the numbers that the map by groups takes, (G + 1, 3, C): of these groups, and of rows without a group.

        fall_back: whether values that were not seen, as those of group -1, are taken from the whole; otherwise NaN.
        """
        mean, var = np.full((2, len(places) + 1, self.channels), np.nan)
        old = np.flatnonzero(places >= 0)
        mean[old], var[old] = self.known(places[old], prior)
        if fall_back:
            unknown = np.isnan(mean)
            for a, whole in ((mean, self.whole.mean), (var, self.whole.var)):
                np.copyto(a, whole, where=unknown)
        stats = cpu.known(mean.reshape(-1), var.reshape(-1), None, None, eps)
        center, _, _, scale, shift = (row.reshape(mean.shape) for row in stats)
        with np.errstate(all="ignore"):
            return np.stack([shift, 1 / scale, center] if inverse else [center, scale, shift], axis=1)

    @np.errstate(under="ignore")
    def moments(self) -> Moments:
        """Return the moments of the whole; in a moving average, with the number of values seen.

        If values fade, the count is what is left of their weights now, but so much that mean and variance remain.
        """
        parts = self.whole.parts()
        if self.whole.last is not None:
            parts[[0, 2]] *= np.maximum(self._left(self.whole.last, self.whole.rows), FAINT)
        return Moments._from_parts(parts)


def _later(statistics: Statistics, zero: float) -> Statistics:
    """Add `zero` to the times of statistics, in place, because the zero of their clock was later by this much."""
    if zero and statistics.last is not None:
        statistics.last += zero
    return statistics
