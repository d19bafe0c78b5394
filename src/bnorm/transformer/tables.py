"""The moments and the map of tables for the transformer, in one pass, without a temporary of the size of the table.

A table is a checked array (rows, features) of float16, float32 or float64, which may contain NaN; or of bools or 8- or
16-bit integers, whose result is float64. Infinity is refused. It shows in the results of a pass, and only then the
table is searched for it.

A table on a device is processed in one piece, and a strided one is copied. The host synchronizes once for each pass
over a table, and once more each for sample weights, for rows that fade, and to find infinity.
"""

from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import checks
from bnorm.arrow import Columns
from bnorm.kernels import BACKENDS, kernels_for, kind_of, moved, view
from bnorm.transformer.blocks import WHO as WHO
from bnorm.transformer.blocks import Blocks

PIECE = 1 << 20  # bytes of a piece, if a table is copied in pieces: they stay in the cache
SPAN = 1 << 10  # rows whose weights are computed one by one
DEEP, SHALLOW = 1000.0, 300.0  # half-lives: see `faded`


class Faded(NamedTuple):
    """Rows of a stream that fade with age, as `Statistics.move` takes them."""

    parts: ndarray  # of the values, with their weights at the row `last`
    seen: ndarray  # the number of values of each feature, or the sum of their sample weights
    pairs: ndarray
    last: ndarray  # the row with full weight, counted back from the end of the table: zero or negative
    split: int  # if not 0: the rows before it have no weight, but are needed for an unbiased variance


def sample_weights(sample_weight: Any, x: Any, some: bool = True) -> Any:
    """Weights as float64 (rows,), on the device of x: not negative, with `some` not all zero. Blocks check later."""
    from bnorm.transformer.sklearn_private import check_sample_weight

    if isinstance(x, Blocks):
        return x.weights(sample_weight)
    kind = ndarray if isinstance(x, Columns) else type(x)
    kernels_for(sample_weight, WHO, "sample_weight", kind)
    if kind is ndarray and _plainly_good(sample_weight, len(x)):
        return sample_weight
    if not some or (kind is not ndarray and kind_of(sample_weight) is not None):
        return _weights_by_numbers(checks.real(WHO, "sample_weight", sample_weight, kind), len(x), some)
    rows = x if type(x) is ndarray else np.empty((len(x), 0))
    w: ndarray = check_sample_weight(sample_weight, rows, dtype=np.float64)
    _check_weights(w.min(), w, some)
    return moved(w, kind)


def _plainly_good(given: Any, n: int) -> bool:
    """Whether weights are clearly valid for n rows: scikit-learn's check of a million weights takes a millisecond."""
    if type(given) is not ndarray or given.dtype != np.float64 or given.shape != (n,) or not n:
        return False
    with np.errstate(over="ignore"):
        return bool(given.min() >= 0 and checks.LIGHTEST <= given.sum() < np.inf)


def _weights_by_numbers(given: ndarray, n: int, some: bool) -> ndarray:
    """Weights of n rows on a device, or of a block, in which all may be zero.

    For its error messages scikit-learn is called with a small array that has the same fault.
    """
    from bnorm.transformer.sklearn_private import check_sample_weight

    if given.shape != (n,):
        check_sample_weight(np.ones(given.shape), np.empty((n, 0)))
    w: ndarray = view.dense(given, np.float64)
    lowest, highest, total = BACKENDS[type(w)].numbers(w.min(), w.max(), w.sum())
    check_sample_weight(np.array([lowest, highest, 1.0]), np.empty((3, 0)))  # an error for NaN or infinity
    _check_weights(lowest, np.array(total), some)
    return w


def _check_weights(lowest: float, w: ndarray, some: bool) -> None:
    """w: the weights, or their sum."""
    if lowest < 0:
        raise ValueError(f"Negative values in data passed to `sample_weight`: expected none, got {lowest}")
    if some:
        refuse_no_weight(w)


def refuse_no_weight(w: Any) -> None:
    """ValueError if all weights, or their sum, are zero."""
    if not checks.total_weight(WHO, "sample_weight", np.asarray(w)):
        raise ValueError("Sample weights must contain at least one non-zero number.")


def refuse_infinity(x: ndarray | Columns, among: ndarray | None = None) -> None:
    """ValueError, in scikit-learn's words, if there is infinity in x, or in its rows `among`."""
    x = dense(x)
    if x.dtype.kind in "bui":
        return
    for rows in _pieces(x, _copied_rows(x)):
        if np.isinf(x[rows] if among is None else x[rows][among[rows]]).any():
            raise infinite(x)


def dense(x: Any) -> ndarray:
    """A table as an array: Columns are copied, Blocks are an error."""
    if isinstance(x, Blocks):
        raise TypeError(f"{WHO}: backward: X: expected an array in memory, got a Dask collection")
    return x.dense() if isinstance(x, Columns) else x


def whole(x: ndarray | Columns, weight: ndarray | None) -> ndarray:
    """Count, mean, m2 and low of each feature, (4, C), all rows weighing the same."""
    if isinstance(x, Columns):
        parts = x.parts(weight)
    else:
        pieces = _dense_pieces(x)
        parts = [_moments(x[rows], None if weight is None else weight[rows]) for rows in pieces]
    return merged(parts)


@np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")
def faded(x: ndarray | Columns, weight: ndarray | None, halflife: float, ddof: int) -> Faded:
    """Rows weighed by age: half as much for each half-life before the last row.

    Rows that are DEEP half-lives old have no weight beside younger ones. A feature without values in the last SHALLOW
    half-lives is computed separately: the age of its rows counts from its own last value, so no weight underflows.
    Sample weights count in units of the largest, and a feature whose values weigh much less is computed separately too.
    """
    x, n = dense(x), len(x)
    near = slice(n - int(min(n, DEEP * halflife + 1)), n)
    f = _fading(n - near.start, halflife, x)
    unit = _unit(weight)
    w = f if weight is None else f * (weight[near] / unit)
    parts = None if near.start else _complete(x, w, weight)
    if parts is None:
        parts, seen = _weighted(x[near], w), _seen(x, weight, near.start)
    else:
        seen = np.zeros(x.shape[1], like=x) + (n if weight is None else weight.sum())
    last = np.zeros(seen.shape, like=seen)
    lost = moved((parts[0] < 2.0**-SHALLOW) & (seen > 0), ndarray)
    if weight is not None:
        parts = np.concatenate([parts[:1] * unit, parts[1:2], parts[2:3] * unit, parts[3:]])
    pairs = _pairs(x[near], w * unit, f, parts, seen) if ddof else np.zeros(seen.shape, like=seen)
    for c in np.flatnonzero(lost).tolist():
        there = ~np.isnan(x[:, c]) if weight is None else ~np.isnan(x[:, c]) & (weight > 0)
        end = int(np.flatnonzero(moved(there, ndarray))[-1]) + 1
        own = None if weight is None else np.where(there, weight, 0)[:end]
        if end == n and bool(_unit(own) == unit):  # it is as it should be: what weighs most is old
            continue
        one = faded(x[:end, c : c + 1], own, halflife, ddof)
        parts[:, c], pairs[c], last[c] = one.parts[:, 0], one.pairs[0], end - n
    split = 0
    if ddof and near.start and bool(((pairs == 0) & (parts[2] == 0) & (seen > parts[0])).any()):
        split = near.start
    return Faded(parts, seen, pairs, last, split)


def _unit(weight: ndarray | None) -> Any:
    """The largest power of two that is not above the largest weight; 1 without any."""
    if weight is None:
        return 1.0
    most = weight.max()
    return np.where(most > 0, np.exp2(np.floor(np.log2(most))), 1.0)


def _fading(n: int, halflife: float, like: Any) -> ndarray:
    """The weights of n rows that fade; the last is 1. They are products of a weight for a long and for a short time."""
    short = min(n, SPAN)
    ages = (np.arange(m - 1, -1, -1.0, like=like) for m in (short, -(-n // short)))
    of_short, of_long = (np.exp2(age * step / -halflife) for age, step in zip(ages, (1, short), strict=True))
    weights: ndarray = (of_long[:, None] * of_short).reshape(-1)[-n:]
    return weights


def _weighted(x: ndarray, w: ndarray, skipna: bool = True) -> ndarray:
    """Moments of weighted rows."""
    return merged([_moments(x[rows], w[rows], skipna) for rows in _dense_pieces(x)])


def _complete(x: ndarray, w: ndarray, weight: ndarray | None) -> ndarray | None:
    """Moments of rows of weight w; None if a value is missing, or may be missing in a row that has no weight left."""
    parts = _weighted(x, w, skipna=False)
    with np.errstate(all="ignore"):
        some: list[Any] = [_dot(parts[1], parts[2])]
    if weight is not None:
        some.append(np.count_nonzero(weight) - np.count_nonzero(w))
    shown, *gone = BACKENDS[type(parts)].numbers(*some)
    return parts if isfinite(shown) and not any(gone) else None


def merged(parts: list[ndarray]) -> ndarray:
    """The parts of several sets of rows, merged."""
    if len(parts) == 1:
        return parts[0]
    together: ndarray = BACKENDS[type(parts[0])].merge(parts)
    return together if type(together) is not ndarray else together.copy()


def _seen(x: ndarray, weight: ndarray | None, near: int) -> ndarray:
    """The count of each feature before fading. Infinity in rows too old to have any weight is refused here."""
    counted: Any = whole(x, weight)
    if near:
        refuse_infinity_in(counted, x, weight)
    return counted[0]  # type: ignore[no-any-return]


def _pairs(x: ndarray, w: ndarray, f: ndarray, parts: ndarray, seen: ndarray) -> ndarray:
    """The square of the sum of all weights minus the sum of their squares, for each feature.

    A row of sample weight s stands for s values that have faded to f. If one row outweighs the others by far, the
    difference would cancel, and products of weights are added instead.
    """
    count = parts[0]
    pairs: ndarray = count * count - _weighted(x, w * f)[0]
    cancelled = moved((np.abs(pairs) < 1e-3 * count * count) & (seen > 0), ndarray)
    for c in np.flatnonzero(cancelled).tolist():
        there = ~np.isnan(x[:, c])
        mine, faded_to = w[there], f[there]
        before = np.concatenate([mine[:1] * 0, np.cumsum(mine[:-1])])
        pairs[c] = (2 * mine * before + mine * (mine - faded_to)).sum()
    most: ndarray = np.minimum(pairs, np.finfo(np.float64).max)
    return most


def refuse_infinity_in(parts: ndarray, x: ndarray | Columns, weight: ndarray | None) -> None:
    """ValueError if x contains infinity, which shows in the parts. So does an allowed overflow of finite values."""
    with np.errstate(all="ignore"):
        shown = BACKENDS[type(parts)].numbers(_dot(parts[1], parts[2]))
    if not isfinite(shown[0]):
        refuse_infinity(x)
    refuse_infinity_unseen(x, weight)


def refuse_infinity_unseen(x: ndarray | Columns, weight: ndarray | None) -> None:
    """ValueError if rows of weight 0, which do not show in the parts, contain infinity."""
    if weight is not None and not BACKENDS[type(weight)].numbers(weight.all())[0]:
        refuse_infinity(x, weight == 0)


def mapped(x: Any, stats: ndarray, in_place: bool) -> Any:
    """(x - mean) scale + shift, by `stats` as the kernels take them. It is written over x, or has its memory order.

    For Blocks it is lazy, with a copy of `stats`.
    """
    if isinstance(x, Blocks):
        return x.mapped(_block_mapped, stats)
    if in_place and not isinstance(x, Columns):  # before anything is overwritten
        refuse_infinity(x)
    try:
        if isinstance(x, Columns):
            return x.mapped(stats)
        kernels = BACKENDS[type(x)]
        if _at_once(x):
            block, layout = view.channels(x, 1)
            out = block if in_place else None
            y = view.restore(kernels.normalize(block, stats, 1.0, out, finite=not in_place), layout)
            if in_place and not x.flags.forc:  # `block` is a copy
                x[...] = y
            return x if in_place else y
        y = x if in_place else np.empty_like(x, np.float64 if x.dtype.kind in "bui" else x.dtype, order="C")
        for rows in _pieces(x, _copied_rows(x)):
            piece = np.ascontiguousarray(x[rows])
            y[rows] = kernels.normalize(piece, stats, 1.0, None, finite=not in_place)
        return y
    except FloatingPointError:
        raise infinite(x) from None


def _block_mapped(x: ndarray, stats: ndarray) -> Any:
    return mapped(x, stats, False)


def infinite(x: Any) -> ValueError:
    """The error for a table with infinity, in scikit-learn's words."""
    return ValueError(f"Input X contains infinity or a value too large for {x.dtype!r}.")


def _at_once(x: ndarray) -> bool:
    """Whether kernels can read x directly, or it is on a device, where pieces would only cost launches."""
    if type(x) is not ndarray:
        return True
    flags = x.flags
    return bool(flags.forc and flags.aligned)


def _copied_rows(x: ndarray) -> int:
    return max(1, PIECE // max(1, int(x.shape[1]) * int(x.itemsize))) if type(x) is ndarray else len(x)


def _dense_rows(x: ndarray) -> int:
    return len(x) if _at_once(x) else _copied_rows(x)


def _pieces(x: ndarray, rows: int) -> list[slice]:
    return [slice(i, i + rows) for i in range(0, len(x), rows)]


def _dense_pieces(x: ndarray) -> list[slice]:
    return _pieces(x, _dense_rows(x))


def _moments(x: ndarray, weight: ndarray | None, skipna: bool = True) -> ndarray:
    """(4, C): count, mean, m2, low of the values that are not NaN."""
    block, layout = view.channels(x, 1)
    w = None if weight is None else view.weights(weight, layout)
    parts: ndarray = BACKENDS[type(x)].moments(block, w, skipna)
    return parts


def _dot(a: ndarray, b: ndarray) -> Any:
    """The inner product of vectors. CuPy's own would load cuBLAS, which may not be installed."""
    return a.dot(b) if type(a) is ndarray else (a * b).sum()
