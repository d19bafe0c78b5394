"""Tables for the transformer: their moments and their map, in one pass and without a temporary as large as they are.

A table is a checked array, float16, float32 or float64 (rows, features), that may hold NaN. Infinity is refused, and
shows in what a pass computes anyway; only then is the table searched for it.

On a device a table goes through the kernels at once, and a strided one is copied. The host waits for few numbers, which
come together: once for each pass over a table, once more for sample weights, for rows that fade, and to find infinity.
"""

from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from sklearn.utils.validation import _check_sample_weight

from bnorm import checks
from bnorm.kernels import BACKENDS, kernels_for, kind_of, moved, view
from bnorm.moments import Moments

WHO = "BatchNormTransformer"
PIECE = 1 << 20  # bytes of a table that is copied or widened piece by piece: they stay in the cache
ROWS = 1 << 16  # of a piece with weights of its own
OLDEST = 500.0  # half-lives: what is older weighs as much as this, 2^-500, so that no weight underflows


class Step(NamedTuple):
    """Rows that the statistics move by."""

    moments: Moments
    values: ndarray  # how much has been seen of each feature: its values, or the sum of their sample weights
    square: ndarray | None = None  # sum of w f^2, as `Stream.pool` takes it
    rows: int = 0


def sample_weights(sample_weight: Any, x: ndarray) -> ndarray:
    """Weights as float64 (rows,), on the side of x, not negative and not all zero."""
    kind = type(x)
    kernels_for(sample_weight, WHO, "sample_weight", kind)
    if kind is not ndarray and kind_of(sample_weight) is not None:
        return _weights_on_device(checks.real(WHO, "sample_weight", sample_weight, kind), len(x))
    rows = x if kind is ndarray else np.empty((len(x), 0))
    w: ndarray = _check_sample_weight(sample_weight, rows, dtype=np.float64)
    _check_weights(w.min(), w)
    return moved(w, kind)  # type: ignore[no-any-return]


def _weights_on_device(given: ndarray, n: int) -> ndarray:
    """The same for n rows. scikit-learn, which has the words for what is wrong, is shown what it takes to see it."""
    if given.shape != (n,):
        _check_sample_weight(np.ones(given.shape), np.empty((n, 0)))
    w: ndarray = view.dense(given, np.float64)
    lowest, highest, total = BACKENDS[type(w)].numbers(w.min(), w.max(), w.sum())
    _check_sample_weight(np.array([lowest, highest]), np.empty((2, 0)))  # NaN or infinity, if there is any
    _check_weights(lowest, np.array(total))
    return w


def _check_weights(lowest: float, w: ndarray) -> None:
    """w: the weights, or their sum."""
    if lowest < 0:
        raise ValueError(f"Negative values in data passed to `sample_weight`: expected none, got {lowest}")
    if not checks.total_weight(WHO, "sample_weight", w):
        raise ValueError("Sample weights must contain at least one non-zero number.")


def refuse_infinity(x: ndarray, among: ndarray | None = None) -> None:
    """ValueError, in scikit-learn's words, if there is infinity in x, or in those of its rows."""
    for rows in _pieces(x, _copied_rows(x)):
        if np.isinf(x[rows] if among is None else x[rows][among[rows]]).any():
            raise _infinite(x)


def whole(x: ndarray, weight: ndarray | None) -> list[Step]:
    """All rows as one step."""
    parts = [_moments(x[rows], None if weight is None else weight[rows]) for rows in _dense_pieces(x)]
    _refuse_infinity_seen(x, weight, parts)
    m = Moments.merge(Moments.from_parts(p) for p in parts) if len(parts) > 1 else Moments.from_parts(parts[0])
    return [Step(m, m.count)]


def faded(x: ndarray, weight: ndarray | None, halflife: float, ddof: int) -> list[Step]:
    """Rows weighed by age, 1 for the last row of a step, in steps of few enough rows."""
    n = len(x)
    size = min(n, ROWS, _dense_rows(x)) if type(x) is ndarray else n
    fade = np.exp2(-np.minimum(np.arange(size - 1, -1, -1.0, like=x) / halflife, OLDEST))
    first = n % size
    slices = ([slice(0, first)] if first else []) + [slice(i, i + size) for i in range(first, n, size)]
    parts, steps = [], []
    for rows in slices:
        f = fade[-(rows.stop - rows.start) :]
        w = None if weight is None else weight[rows]
        part, values, square = _faded(x[rows], w, f, ddof)
        parts.append(part)
        steps.append(Step(Moments.from_parts(part.copy()), values, square, len(f)))
    _refuse_infinity_seen(x, weight, parts)
    return steps


def mapped(x: ndarray, stats: ndarray, in_place: bool) -> ndarray:
    """(x - mean) scale + shift, which `stats` has as the kernels take them, written over x or in its memory order."""
    kernels = BACKENDS[type(x)]
    if in_place:  # before anything is overwritten
        refuse_infinity(x)
    try:
        if _at_once(x):
            block, layout = view.channels(x, 1)
            out = block if in_place else None
            y = view.restore(kernels.normalize(block, stats, 1.0, out, finite=not in_place), layout)
            if in_place and not x.flags.forc:  # `block` is a copy
                x[...] = y
            return x if in_place else y
        y = x if in_place else np.empty_like(x, order="C")
        for rows in _pieces(x, _copied_rows(x)):
            piece = np.ascontiguousarray(x[rows])
            y[rows] = kernels.normalize(piece, stats, 1.0, None, finite=not in_place)
        return y
    except FloatingPointError:
        raise _infinite(x) from None


def _infinite(x: ndarray) -> ValueError:
    """In scikit-learn's words."""
    return ValueError(f"Input X contains infinity or a value too large for {x.dtype!r}.")


def _at_once(x: ndarray) -> bool:
    """Whether kernels take x as it lies in memory, or it is on a device, where pieces would only cost launches."""
    if type(x) is not ndarray:
        return True
    flags = x.flags
    return bool(flags.forc and flags.aligned and x.dtype.char != "e" and x.dtype.isnative)


def _copied_rows(x: ndarray) -> int:
    return max(1, PIECE // max(1, int(x.shape[1]) * int(x.itemsize))) if type(x) is ndarray else len(x)


def _dense_rows(x: ndarray) -> int:
    return len(x) if _at_once(x) else _copied_rows(x)


def _pieces(x: ndarray, rows: int) -> list[slice]:
    return [slice(i, i + rows) for i in range(0, len(x), rows)]


def _dense_pieces(x: ndarray) -> list[slice]:
    return _pieces(x, _dense_rows(x))


def _moments(x: ndarray, weight: ndarray | None) -> ndarray:
    """(4, C): count, mean, m2, low of the values that are not NaN."""
    block, layout = view.channels(x, 1)
    w = None if weight is None else view.weights(weight, layout)
    parts: ndarray = BACKENDS[type(x)].moments(block, w, True)
    return parts


def _faded(x: ndarray, weight: ndarray | None, f: ndarray, ddof: int) -> tuple[Any, ndarray, ndarray | None]:
    """Moments of rows that have faded to f; their weights before; with ddof the sum of w f^2."""
    w = f if weight is None else weight * f
    part = _moments(x, w)
    lowest, total, least = BACKENDS[type(w)].numbers(w.min(), w.sum(), part[0].min())
    if lowest > 1e-9 * total and least > total * (1 - 1e-10):  # no NaN, or the count would have lost that much
        none = np.zeros(part[0].shape, like=part[0])
        return part, none + (len(x) if weight is None else weight.sum()), none + _dot(w, f) if ddof else None
    return part, _moments(x, weight)[0], _moments(x, w * f)[0] if ddof else None


def _refuse_infinity_seen(x: ndarray, weight: ndarray | None, parts: list[Any]) -> None:
    """Infinity shows in moments, as does the overflow of finite values, which passes; weight 0 hides it."""
    with np.errstate(all="ignore"):
        sums = [_dot(mean, m2) for _, mean, m2, _ in parts]
    found = BACKENDS[type(x)].numbers(*sums, *(() if weight is None else (weight.all(),)))
    if not all(map(isfinite, found)):
        refuse_infinity(x)
    elif weight is not None and not found[-1]:
        refuse_infinity(x, weight == 0)


def _dot(a: ndarray, b: ndarray) -> Any:
    """Of vectors. CuPy's own would load cuBLAS, which may not be installed."""
    return a.dot(b) if type(a) is ndarray else (a * b).sum()
