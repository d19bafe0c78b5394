"""The statistics of groups that appear as a stream goes on, and of all its rows together.

Each group has what a `BatchNormTransformer` of its rows alone would have: it moves when rows of it come, and its clock
counts its own rows. The whole is what one of all rows would have, whatever their keys.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels import cpu, view
from bnorm.kernels.cpu import groups as kernels
from bnorm.moments import Moments
from bnorm.running import AVERAGE, Statistics, Step
from bnorm.transformer import tables
from bnorm.transformer.clock import Rows
from bnorm.transformer.keys import Index, Keys
from bnorm.transformer.tables import Dense, InColumns

FAINT = 2.0**-tables.SHALLOW  # weights below it may have underflowed


class Batch(NamedTuple):
    """What a batch says about its groups.

    parts         (4, G, C) of each key; if values fade, at its last row
    seen, last    (G, C), if values fade: the weight before fading, and the row with full weight, counted from the last
    lengths       (G,) the rows of each key; 0 if values do not fade
    whole         the steps of all rows, keys missing or not
    """

    keys: Keys
    parts: ndarray
    seen: ndarray | None
    last: ndarray | None
    lengths: ndarray
    whole: list[Step]
    weighted: bool


def batch_of(keys: Keys, x: Dense, weight: ndarray | None, halflife: float | None, count: bool = False) -> Batch:
    """A batch, from the codes of its rows. Infinity in it is a ValueError. count: whether to count the rows of each key
    without a half-life too, for values that will fade.
    """
    n, rows = len(keys.keys), x.rows
    codes, outside = keys.codes, n
    if keys.gaps:  # rows without a key belong to the whole: they are one more group
        codes, outside = np.where(codes < 0, np.int32(n), codes), n + 1
    seen = last = None
    if halflife is None:
        every = _moments(_block(x), codes, outside, weight)
        parts = np.ascontiguousarray(every[:, :n])
        whole = [Step(together(every), rows)]
    else:
        parts, seen, last = _faded(x, codes, outside, weight, halflife)
        parts, seen, last = np.ascontiguousarray(parts[:, :n]), seen[:n], last[:n]
        whole = x.steps(weight, Rows(halflife), 0)
    tables.refuse_infinity_in(whole[0].parts, x, weight)
    counted = count or halflife is not None
    lengths = np.bincount(codes, minlength=outside)[:n] if counted else np.zeros(n, np.int64)
    return Batch(keys, parts, seen, last, lengths, whole, weight is not None)


def _block(x: Dense) -> Any:
    """A table as the kernels of groups read it: where it lies."""
    return x.x.alike() if isinstance(x, InColumns) else view.channels(x.dense(), 1)[0]


def mapped(x: Dense, codes: ndarray, numbers: ndarray) -> ndarray:
    """(x - mean) scale + shift by the numbers of each row's group, in the memory order of the table."""
    try:
        if isinstance(x, InColumns):
            columns: ndarray = kernels.normalize(_block(x), codes, numbers, None, True)[0]
            return columns.T
        block, layout = view.channels(x.dense(), 1)
        y: ndarray = view.restore(kernels.normalize(block, codes, numbers, None, True), layout)
    except FloatingPointError:
        raise tables.infinite(x) from None
    return y


def _moments(block: Any, codes: ndarray, n: int, weight: ndarray | None) -> ndarray:
    w = None if weight is None else view.dense(weight, np.float64)
    found: ndarray = kernels.moments(block, codes, n, w, True)
    return found


def _faded(
    x: Dense, codes: ndarray, n: int, weight: ndarray | None, halflife: float
) -> tuple[ndarray, ndarray, ndarray]:
    """Rows weighed by age, as `tables.faded` does, by the clock of each group: half as much for each `halflife` rows of
    the group that come after. Groups of which too little weight is left are computed one by one.
    """
    faded = np.exp2(kernels.later(codes, n) / -halflife)
    block = _block(x)
    parts = _moments(block, codes, n, faded if weight is None else faded * weight)
    seen = _moments(block, codes, n, weight)[0]
    last = np.zeros_like(seen)
    unit = 1.0 if weight is None else max(1.0, float(weight.max()))
    lost = np.flatnonzero(((parts[0] < FAINT * unit) & (seen > 0)).any(1))
    for g in lost.tolist():
        mine = np.flatnonzero(codes == g)
        step = tables.faded(x.dense()[mine], None if weight is None else weight[mine], Rows(halflife), 0)[0]
        parts[:, g], seen[g], last[g] = step.parts, step.seen, step.last
    return parts, seen, last


def together(parts: ndarray) -> ndarray:
    """The parts (4, C) of all groups of (4, G, C), merged half by half."""
    channels = parts.shape[2]
    while (n := parts.shape[1]) > 1:
        half = n // 2
        both = [np.ascontiguousarray(part).reshape(4, -1) for part in (parts[:, :half], parts[:, half : 2 * half])]
        merged = cpu.merge(both).reshape(4, half, channels)
        if n % 2:
            merged = merged.copy()
            merged[:, 0] = cpu.merge([merged[:, 0].copy(), parts[:, -1].copy()])
        parts = merged
    return parts[:, 0].copy() if parts.shape[1] else np.zeros((4, channels))


def united(who: str, batches: list[Batch]) -> Batch:
    """One batch of the rows of several, none of whose values fade."""
    names = [str(j) for j in range(len(batches[0].keys.kinds))]
    index, places = Index(len(names)), []
    for batch in batches:
        at = index.find(who, batch.keys, names)
        new = np.flatnonzero(at < 0)
        at[new] = len(index) + np.arange(len(new))
        index.add([batch.keys.keys[i] for i in new.tolist()], batch.keys.kinds)
        places.append(at)
    channels = batches[0].parts.shape[2]
    parts = np.zeros((4, len(index), channels))
    lengths = np.zeros(len(index), np.int64)
    for at, batch in zip(places, batches, strict=True):
        mine = np.ascontiguousarray(parts[:, at]).reshape(4, -1)
        parts[:, at] = cpu.merge([mine, batch.parts.reshape(4, -1)]).reshape(4, -1, channels)
        lengths[at] += batch.lengths
    steps = [step for batch in batches for step in batch.whole]
    whole = Step(cpu.merge([step.parts for step in steps]).copy(), sum(step.rows for step in steps))
    keys = Keys(index.kinds, np.empty(0, np.int32), index.keys)
    weighted = any(batch.weighted for batch in batches)
    return Batch(keys, parts, None, None, lengths, [whole], weighted)


class Groups:
    """The statistics of all groups, by the code of a key, and of the whole. An error changes nothing."""

    def __init__(self, columns: int, channels: int, momentum: float | None, halflife: float | None) -> None:
        self.index = Index(columns)
        self.channels, self.momentum, self.halflife = channels, momentum, halflife
        self.whole = self._empty(1)
        self.arrays: dict[str, ndarray] = {  # (at least G, C); there may be room for more groups
            name: a.reshape(1, channels)[:0] for name, a in self._empty(1).arrays().items()
        }
        self.lengths = np.empty(0, np.int64)  # rows of each group, by which its values fade
        self.batches = 0
        self.weighted = False

    def __len__(self) -> int:
        return len(self.index)

    def _empty(self, groups: int) -> Statistics:
        """Statistics of so many groups that have not been seen."""
        mean = np.full(groups * self.channels, np.nan)
        fade = None if self.halflife is None else float(self.halflife)
        return Statistics(mean, mean.copy(), self.momentum, 0, from_data=True, halflife=fade)

    def of(self, places: ndarray) -> Statistics:
        """A copy of the statistics of these groups, G times C channels; -1 is a group that has not been seen."""
        some, old = self._empty(len(places)), places >= 0
        wide = {name: a.reshape(len(places), self.channels) for name, a in some.arrays().items()}
        for name, a in wide.items():
            a[old] = self.arrays[name][places[old]]
        return some

    def begin(self, who: str, batch: Batch, names: list[str]) -> None:
        """Start from a whole table, whose rows all weigh the same. To be called once."""
        some = self._empty(len(batch.keys.keys))
        some.begin(batch.parts.reshape(4, -1), 0)
        self.whole.begin(batch.whole[0].parts, batch.whole[0].rows)
        if some.last is not None:
            some.last[...] = np.repeat(batch.lengths, self.channels)
        self._set(who, batch, names, some)

    def move(self, who: str, batch: Batch, names: list[str]) -> None:
        """Update by one batch of the stream."""
        at = self.index.find(who, batch.keys, names)
        some, whole = self.of(at), self.whole.copy()
        last = None
        lengths = np.where(at >= 0, self.lengths[at], 0) if len(self.lengths) else np.zeros(len(at), np.int64)
        if batch.last is not None:
            last = (batch.last + (lengths + batch.lengths)[:, None]).reshape(-1)
        seen = None if batch.seen is None else batch.seen.reshape(-1)
        pairs = None if seen is None else np.zeros_like(seen)
        whole.learn(batch.whole)
        if len(at):
            some.move(batch.parts.reshape(4, -1), seen, pairs, last, finite=False)
        self._set(who, batch, names, some, at)
        self.whole = whole

    def merge(self, who: str, other: "Groups", names: list[str]) -> None:
        """Unite with the groups of another stream by their keys. If values fade, both streams end now."""
        its = Keys(other.index.kinds, np.empty(0, np.int32), other.index.keys)
        at = self.index.find(who, its, names)
        n, old = len(other), at >= 0
        mine, theirs, whole = self.of(at), other.of(np.arange(n)), self.whole.copy()
        lengths = np.where(old, self.lengths[at], other.lengths) if len(self) else other.lengths.copy()
        if theirs.last is not None:
            theirs.last += np.repeat(lengths - other.lengths, self.channels)
        if n:
            mine.merge(theirs)
        whole.merge(other.whole)
        grown = lengths if self.halflife is not None else lengths + np.where(old, other.lengths, 0)
        nothing = np.zeros_like(grown)
        batch = Batch(its, np.empty(0), None, None, nothing, [], other.weighted)
        self._set(who, batch, names, mine, at)
        self.lengths[self.index.find(who, its, names)] = grown
        self.whole = whole
        self.batches += other.batches - 1

    def _set(self, who: str, batch: Batch, names: list[str], some: Statistics, at: ndarray | None = None) -> None:
        """Let these be the statistics of the groups of a batch."""
        at = self.index.find(who, batch.keys, names) if at is None else at.copy()
        new = np.flatnonzero(at < 0)
        at[new] = len(self) + np.arange(len(new))
        arrays = {name: a.reshape(len(at), self.channels) for name, a in some.arrays().items()}
        if len(self):
            self._grow(len(self) + len(new))
            for name, a in arrays.items():
                self.arrays[name][at] = a
            self.lengths[at] += batch.lengths
        else:
            self.arrays, self.lengths = arrays, batch.lengths.copy()
        self.index.add([batch.keys.keys[i] for i in new.tolist()], batch.keys.kinds)
        self.batches += 1
        self.weighted |= batch.weighted

    def _grow(self, groups: int) -> None:
        """Make room for so many groups."""
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
        """One of the arrays, (G, C)."""
        return self.arrays[name][: len(self)]

    def weight(self, places: Any) -> ndarray:
        """The number of values by which groups weigh against a prior; in a moving average those that have been seen."""
        name = "weight" if self.halflife is not None else "seen"
        weight: ndarray = self.arrays[name][places]
        return weight

    def known(self, places: ndarray, prior: float) -> tuple[ndarray, ndarray]:
        """Mean and variance of groups, (G, C), with `prior` values of the whole in each; NaN without any value."""
        n = self.weight(places)
        mean, var = self.arrays["mean"][places], self.arrays["var"][places]
        if not prior:
            return np.where(n > 0, mean, np.nan), np.where(n > 0, var, np.nan)
        low = self.arrays["low"][places]
        whole: Any = self.whole
        k = np.where(whole.seen > 0, prior, 0.0)
        added = [np.where(k > 0, a, 0.0) for a in (whole.mean, k * whole.var, whole.low)]
        wide = [np.broadcast_to(a, n.shape).reshape(-1) for a in (k, *added)]
        own = [np.where(n > 0, a, 0.0).reshape(-1) for a in (n, mean, var * n, low)]
        count, mean, m2, _ = cpu.merge([np.stack(own), np.stack(wide)]).reshape(4, *n.shape)
        return mean, np.where(count > 0, m2 / np.where(count > 0, count, 1), np.nan)

    def places(self, who: str, keys: Keys, names: list[str], refuse: bool) -> tuple[ndarray, ndarray]:
        """The groups of the keys of a table, -1 where one is new; and for each of its rows which of these is its own,
        one more where there is none. refuse: whether that is a ValueError.
        """
        at = self.index.find(who, keys, names)
        gone = keys.gaps
        if refuse and (gone or bool((at < 0).any())):
            lost = np.append(at < 0, True)[keys.codes]
            row = int(lost.argmax())
            key = "a missing key" if keys.codes[row] < 0 else repr(keys.keys[keys.codes[row]])
            raise ValueError(f"{who}: unseen: expected keys seen in fit, as unseen='error', got {key} in row {row}")
        return at, np.where(keys.codes < 0, np.int32(len(at)), keys.codes) if gone else keys.codes

    def numbers(self, places: ndarray, prior: float, fall_back: bool, eps: float, inverse: bool) -> ndarray:
        """What the map by groups takes, (3, G + 1, C): of these groups, and of rows without any.

        fall_back: whether the whole stands in for what has not been seen, -1 being a group; otherwise it is NaN.
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
            return np.stack([shift, 1 / scale, center] if inverse else [center, scale, shift])

    def moments(self) -> Moments:
        """Those of the whole; of a moving average, with the number of values seen."""
        whole = self.whole
        count = whole.seen if whole.weight is None or whole.mode == AVERAGE else whole.weight
        parts = np.stack([count, whole.mean, whole.var * count, whole.seen * 0 if whole.low is None else whole.low])
        return Moments.from_parts(np.where(count > 0, parts, 0.0))
