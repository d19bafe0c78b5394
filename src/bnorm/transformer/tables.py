"""Tables in memory, as the transformer sees them: moments and map in one pass, without a temporary of their size.

The transformer knows one kind of table, the protocol `Table`. Arrays and Arrow columns are here, lazy collections in
`blocks`. A table is checked: (rows, features) of float16, float32 or float64, which may contain NaN; or of bools or 8-
or 16-bit integers, whose result is float64. Infinity is refused. It shows in the results of a pass, and only then the
table is searched for it.

A table on a device is processed in one piece, and a strided one is copied. The host synchronizes once for each pass
over a table, and once more each for sample weights, for rows that fade, and to find infinity.
"""

from math import isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy import ndarray

from bnorm.exact import moments as exact_moments
from bnorm.kernels import BACKENDS, moved, view
from bnorm.kernels.activation import IDENTITY
from bnorm.moments import Moments
from bnorm.running import Step, TooLarge
from bnorm.transformer.clock import Clock
from bnorm.transformer.weights import WHO as WHO
from bnorm.transformer.weights import sample_weights

PIECE = 1 << 20  # bytes of a piece, if a table is copied in pieces: they stay in the cache
SHALLOW = 300.0  # half-lives: see `_faded`


class Table(Protocol):
    """What the transformer asks of a table. Infinity in it is a ValueError, at the latest in `refuse_infinity`."""

    @property
    def kind(self) -> type:
        """NumPy's or CuPy's array type."""

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows, NaN if their number is not known, and features."""

    @property
    def rows(self) -> int:
        """The number of rows; of a lazy collection it may be known only after a pass."""

    @property
    def dtype(self) -> Any:
        """The dtype of the features."""

    def weights(self, sample_weight: Any, some: bool = True) -> Any:
        """Sample weights, checked: not negative, and with `some` not all zero."""

    def parts(self, weight: Any) -> ndarray:
        """Count, mean, m2 and low of each feature, (4, C), all rows weighing the same."""

    def exact(self, weight: Any) -> Moments:
        """The exact moments of each feature, all rows weighing the same."""

    def steps(self, weight: Any, clock: Clock | None, ddof: int) -> list[Step]:
        """The steps by which this table, as one batch, moves the statistics of a stream."""

    def mapped(self, stats: ndarray, in_place: bool) -> Any:
        """(x - mean) scale + shift, by `stats` as the kernels take them."""

    def refuse_infinity(self) -> None:
        """ValueError, in scikit-learn's words, if there is infinity."""

    def dense(self) -> ndarray:
        """The table as an array."""


class Dense:
    """An array as a table."""

    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x

    @property
    def kind(self) -> type:
        return type(self.x)

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        return self.x.dtype

    @property
    def rows(self) -> int:
        return len(self.x)

    def dense(self) -> ndarray:
        return self.x  # type: ignore[no-any-return]

    def weights(self, sample_weight: Any, some: bool = True) -> Any:
        return sample_weights(sample_weight, self.kind, self.x, some)

    def whole(self, weight: ndarray | None) -> ndarray:
        """As `parts`, but without an error for infinity."""
        return whole(self.x, weight)

    def parts(self, weight: ndarray | None) -> ndarray:
        parts = self.whole(weight)
        refuse_infinity_in(parts, self, weight)
        return parts

    def exact(self, weight: ndarray | None) -> Moments:
        x = self.dense()
        parts = [_exact(x[rows], None if weight is None else weight[rows]) for rows in _dense_pieces(x)]
        return self._merged(parts, weight)

    def _merged(self, parts: list[Any], weight: ndarray | None) -> Moments:
        """The merged exact moments of several sets of rows."""
        if any(part._infinite for part in parts):
            self.refuse_infinity()
        refuse_infinity_unseen(self, weight)
        return Moments.merge(parts)

    def steps(self, weight: ndarray | None, clock: Clock | None, ddof: int) -> list[Step]:
        steps = [Step(self.whole(weight), self.rows)] if clock is None else faded(self.dense(), weight, clock, ddof)
        refuse_infinity_unseen(self, weight)
        return steps

    def mapped(self, stats: ndarray, in_place: bool) -> Any:
        """The result is written over the table, or is a new array in the memory order of the table."""
        if in_place:  # before anything is overwritten
            self.refuse_infinity()
        return _mapped(self.x, stats, in_place)

    def refuse_infinity(self, among: ndarray | None = None) -> None:
        """among: a mask of the rows to search."""
        x = self.dense()
        if x.dtype.kind in "bui":
            return
        for rows in _pieces(x, _copied_rows(x)):
            if np.isinf(x[rows] if among is None else x[rows][among[rows]]).any():
                raise infinite(self)


class InColumns(Dense):
    """Columns of an Arrow table. Methods that need rows copy the columns to an array."""

    __slots__ = ()

    kind = ndarray

    def dense(self) -> ndarray:
        return self.x.dense()  # type: ignore[no-any-return]

    def weights(self, sample_weight: Any, some: bool = True) -> Any:
        return sample_weights(sample_weight, ndarray, np.empty((self.rows, 0)), some)

    def whole(self, weight: ndarray | None) -> ndarray:
        return merged(self.x.parts(weight))

    def exact(self, weight: ndarray | None) -> Moments:
        parts = [
            Moments._beside([_exact(column[:, None], w) for column, w in batch]) for batch in self.x.exactly(weight)
        ]
        return self._merged(parts, weight)

    def mapped(self, stats: ndarray, in_place: bool) -> Any:
        try:
            return self.x.mapped(stats)
        except FloatingPointError:
            raise infinite(self) from None


def _exact(x: ndarray, weight: ndarray | None) -> Any:
    return exact_moments(WHO, x, 1, weight, True, "sample_weight")


def whole(x: ndarray, weight: ndarray | None, skipna: bool = True) -> ndarray:
    """Count, mean, m2 and low of each feature, (4, C)."""
    return merged([_moments(x[rows], None if weight is None else weight[rows], skipna) for rows in _dense_pieces(x)])


class Faded(NamedTuple):
    """The fields of a `Step` for rows that fade with age, with times counted from the last row."""

    parts: ndarray
    seen: ndarray
    pairs: ndarray
    last: ndarray
    split: int  # if not 0, the rows before it have no weight, but an unbiased variance needs them


def faded(x: ndarray, weight: ndarray | None, clock: Clock, ddof: int) -> list[Step]:
    """The steps of rows that fade: one, or several in the rare case that one cannot represent them."""
    clock, x, weight = clock.in_order(x, weight)
    parts, seen, pairs, last, split = _faded(x, weight, clock, ddof)
    if not split:
        return [Step(parts, len(x), seen, pairs, last, clock.end)]
    halves = slice(0, split), slice(split, len(x))
    return [step for h in halves for step in faded(x[h], None if weight is None else weight[h], clock.of(h), ddof)]


@np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")
def _faded(x: ndarray, weight: ndarray | None, clock: Clock, ddof: int) -> Faded:
    """Rows weighed by age: half as much for each half-life before the last row.

    Rows that are very old have no weight beside younger ones. A feature without values in the last SHALLOW
    half-lives is computed separately: the age of its rows counts from its own last value, so no weight underflows.
    Sample weights count in units of the largest, and a feature whose values weigh much less is computed separately too.
    """
    n = len(x)
    near = slice(clock.recent(n), n)
    f = clock.weights(near.start, n, x)
    unit = _unit(weight)
    w = f if weight is None else f * (weight[near] / unit)
    parts = None if near.start else _complete(x, w, weight)
    if parts is None:
        parts, seen = whole(x[near], w), _seen(x, weight, near.start)
    else:
        seen = np.zeros(x.shape[1], like=x) + (n if weight is None else weight.sum())
        if weight is None and not ddof:  # all values are there, and those of the last row weigh 1
            none = np.zeros(seen.shape, like=seen)
            return Faded(parts, seen, none, none, 0)
    last = np.zeros(seen.shape, like=seen)
    lost = moved((parts[0] < 2.0**-SHALLOW) & (seen > 0), ndarray)
    if weight is not None:
        parts = np.concatenate([parts[:1] * unit, parts[1:2], parts[2:3] * unit, parts[3:]])
    pairs = _pairs(x[near], w * unit, f, parts, seen) if ddof else np.zeros(seen.shape, like=seen)
    for c in np.flatnonzero(lost).tolist():
        there = ~np.isnan(x[:, c]) if weight is None else ~np.isnan(x[:, c]) & (weight > 0)
        end = int(np.flatnonzero(moved(there, ndarray))[-1]) + 1
        own = None if weight is None else np.where(there, weight, 0)[:end]
        if end == n and bool(_unit(own) == unit):  # nothing to gain: its heaviest row is old
            continue
        one = _faded(x[:end, c : c + 1], own, clock.of(slice(0, end)), ddof)
        parts[:, c], pairs[c], last[c] = one.parts[:, 0], one.pairs[0], clock.before(end - 1, n)
    split = 0
    if ddof and near.start and bool(((pairs == 0) & (parts[2] == 0) & (seen > parts[0])).any()):
        split = near.start
    return Faded(parts, seen, pairs, last, split)


def _unit(weight: ndarray | None) -> Any:
    """The largest power of two that is not above the largest weight; 1 without any."""
    if weight is None:
        return 1.0
    most = weight.max()
    return np.where(most > 0, np.ldexp(1.0, np.frexp(most)[1] - 1), 1.0)


def _complete(x: ndarray, w: ndarray, weight: ndarray | None) -> ndarray | None:
    """Return moments of rows of weight w; None if a value is missing, or may be in a row that has no weight left."""
    parts = whole(x, w, skipna=False)
    some: list[Any] = [_dot(parts[1], parts[2])]
    if weight is not None:
        some.append(np.count_nonzero(weight) - np.count_nonzero(w))
    shown, *gone = BACKENDS[type(parts)].numbers(*some)
    return parts if isfinite(shown) and not any(gone) else None


def merged(parts: list[ndarray]) -> ndarray:
    """Merge the parts of several sets of rows."""
    if len(parts) == 1:
        return parts[0]
    together: ndarray = BACKENDS[type(parts[0])].merge(parts)
    return together if type(together) is not ndarray else together.copy()


def _seen(x: ndarray, weight: ndarray | None, near: int) -> ndarray:
    """Return the count of each feature before fading. Infinity in rows too old to have any weight is refused here."""
    counted: Any = whole(x, weight)
    if near:
        refuse_infinity_in(counted, Dense(x), weight)
    return counted[0]  # type: ignore[no-any-return]


def _pairs(x: ndarray, w: ndarray, f: ndarray, parts: ndarray, seen: ndarray) -> ndarray:
    """Return the square of the sum of all weights minus the sum of their squares, for each feature.

    A row of sample weight s stands for s values that have faded to f. If one row outweighs the others by far, the
    difference would cancel, and products of weights are added instead.
    """
    count = parts[0]
    pairs: ndarray = count * count - whole(x, w * f)[0]
    canceled = np.flatnonzero(moved((np.abs(pairs) < 1e-3 * count * count) & (seen > 0), ndarray)).tolist()
    step = max(1, PIECE // (8 * len(x)))
    for columns in (canceled[i : i + step] for i in range(0, len(canceled), step)):
        mine = np.where(np.isnan(x[:, columns]), 0, w[:, None])
        before = np.concatenate([mine[:1] * 0, np.cumsum(mine[:-1], axis=0)])
        pairs[columns] = (2 * mine * before + mine * (mine - f[:, None])).sum(axis=0)
    most: ndarray = np.minimum(pairs, np.finfo(np.float64).max)
    return most


def refuse_infinity_in(parts: ndarray, x: Dense, weight: ndarray | None) -> None:
    """Raise ValueError if x contains infinity. It shows in the parts, but so does an overflow, which is allowed."""
    with np.errstate(all="ignore"):
        shown = BACKENDS[type(parts)].numbers(_dot(parts[1], parts[2]))
    if not isfinite(shown[0]):
        x.refuse_infinity()
    refuse_infinity_unseen(x, weight)


def refuse_infinity_unseen(x: Dense, weight: ndarray | None) -> None:
    """Raise ValueError if rows of weight 0, which do not show in the parts, contain infinity."""
    if weight is not None and not BACKENDS[type(weight)].numbers(weight.all())[0]:
        x.refuse_infinity(weight == 0)


def _mapped(x: Any, stats: ndarray, in_place: bool) -> Any:
    kernels = BACKENDS[type(x)]
    try:
        if _at_once(x):
            block, layout = view.channels(x, 1)
            out = block if in_place else None
            y = view.restore(kernels.normalize(block, stats, IDENTITY, out, finite=not in_place), layout)
            if in_place and not x.flags.forc:  # `block` is a copy
                x[...] = y
            return x if in_place else y
        y = x if in_place else np.empty_like(x, np.float64 if x.dtype.kind in "bui" else x.dtype, order="C")
        for rows in _pieces(x, _copied_rows(x)):
            piece = view.dense(x[rows], x.dtype)
            y[rows] = kernels.normalize(piece, stats, IDENTITY, None, finite=not in_place)
        return y
    except FloatingPointError:
        raise infinite(x) from None


def infinite(x: Any) -> ValueError:
    """The error for a table with infinity, in scikit-learn's words."""
    return ValueError(f"Input X contains infinity or a value too large for {x.dtype!r}.")


def too_large(x: Table, error: TooLarge) -> ValueError:
    """The error for a table of finite values whose mean, or sum of weights, float64 cannot hold."""
    if error.weights:
        return ValueError(f"{WHO}: sample_weight: expected weights whose sum over the stream float64 can hold")
    return infinite(x)


def _at_once(x: ndarray) -> bool:
    """Whether kernels can read x directly, or it is on a device, where pieces would only cost launches."""
    if type(x) is not ndarray:
        return True
    flags = x.flags
    return bool(flags.forc and flags.aligned)


def _copied_rows(x: ndarray) -> int:
    return max(1, PIECE // max(1, int(x.shape[1]) * int(x.itemsize))) if type(x) is ndarray else len(x)


def _pieces(x: ndarray, rows: int) -> list[slice]:
    return [slice(i, i + rows) for i in range(0, len(x), rows)]


def _dense_pieces(x: ndarray) -> list[slice]:
    return _pieces(x, len(x) if _at_once(x) else _copied_rows(x))


def _moments(x: ndarray, weight: ndarray | None, skipna: bool) -> ndarray:
    """Return count, mean, m2 and low of the values that are not NaN: (4, C)."""
    block, layout = view.channels(x, 1)
    w = None if weight is None else view.weights(weight, layout)
    parts: ndarray = BACKENDS[type(x)].moments(block, w, skipna)
    return parts


def _dot(a: ndarray, b: ndarray) -> Any:
    """The inner product of vectors. CuPy's own would load cuBLAS, which may not be installed."""
    return a.dot(b) if type(a) is ndarray else (a * b).sum()
