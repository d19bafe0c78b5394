"""Tables for the transformer: their moments and their map, in one pass and without a temporary as large as they are.

A table is a checked array, float16, float32 or float64 (rows, features), that may hold NaN. Infinity is refused, and
shows in what a pass computes anyway; only then is the table searched for it.
"""

from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from sklearn.utils.validation import _check_sample_weight

from bnorm import checks
from bnorm.kernels import BACKENDS, view
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
    """Weights as float64 (rows,), not negative and not all zero."""
    w: ndarray = _check_sample_weight(sample_weight, x, dtype=np.float64)
    if (lowest := w.min()) < 0:
        raise ValueError(f"Negative values in data passed to `sample_weight`: expected none, got {lowest}")
    if not checks.total_weight(WHO, "sample_weight", w):
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return w


def refuse_infinity(x: ndarray, among: ndarray | None = None) -> None:
    """ValueError, in scikit-learn's words, if there is infinity in x, or in those of its rows."""
    for rows in _pieces(x, _copied_rows(x)):
        if np.isinf(x[rows] if among is None else x[rows][among[rows]]).any():
            raise _infinite(x)


def whole(x: ndarray, weight: ndarray | None) -> list[Step]:
    """All rows as one step."""
    parts = [_moments(x[rows], None if weight is None else weight[rows]) for rows in _dense_pieces(x)]
    _refuse_infinity_seen(x, weight, parts)
    m = Moments.of(*parts[0]) if len(parts) == 1 else Moments.merge(Moments.of(*p) for p in parts)
    return [Step(m, m.count)]


def faded(x: ndarray, weight: ndarray | None, halflife: float, ddof: int) -> list[Step]:
    """Rows weighed by age, 1 for the last row of a step, in steps of few enough rows."""
    n = len(x)
    size = min(n, ROWS, _dense_rows(x))
    fade = np.exp2(-np.minimum(np.arange(size - 1, -1, -1.0) / halflife, OLDEST))
    first = n % size
    slices = ([slice(0, first)] if first else []) + [slice(i, i + size) for i in range(first, n, size)]
    parts, steps = [], []
    for rows in slices:
        f = fade[-(rows.stop - rows.start) :]
        w = None if weight is None else weight[rows]
        part, values, square = _faded(x[rows], w, f, ddof)
        parts.append(part)
        steps.append(Step(Moments.of(*part), values, square, len(f)))
    _refuse_infinity_seen(x, weight, parts)
    return steps


def mapped(x: ndarray, mean: ndarray, scale: ndarray, shift: ndarray, in_place: bool) -> ndarray:
    """(x - mean) scale + shift, written over x or in its memory order."""
    kernels = BACKENDS[type(x)]
    if in_place:  # before anything is overwritten
        refuse_infinity(x)
    try:
        if _dense(x):
            block, layout = view.channels(x, 1)
            out = block if in_place else None
            y = kernels.normalize(block, mean, scale, shift, False, out, finite=not in_place)
            return x if in_place else view.restore(y, layout)
        y = x if in_place else np.empty_like(x, order="C")
        for rows in _pieces(x, _copied_rows(x)):
            piece = np.ascontiguousarray(x[rows])
            y[rows] = kernels.normalize(piece, mean, scale, shift, False, None, finite=not in_place)
        return y
    except FloatingPointError:
        raise _infinite(x) from None


def _infinite(x: ndarray) -> ValueError:
    """In scikit-learn's words."""
    return ValueError(f"Input X contains infinity or a value too large for {x.dtype!r}.")


def _dense(x: ndarray) -> bool:
    """Whether kernels take x as it lies in memory."""
    flags = x.flags
    return bool(flags.forc and flags.aligned and x.dtype.char != "e" and x.dtype.isnative)


def _copied_rows(x: ndarray) -> int:
    return max(1, PIECE // max(1, int(x.shape[1]) * int(x.itemsize)))


def _dense_rows(x: ndarray) -> int:
    return len(x) if _dense(x) else _copied_rows(x)


def _pieces(x: ndarray, rows: int) -> list[slice]:
    return [slice(i, i + rows) for i in range(0, len(x), rows)]


def _dense_pieces(x: ndarray) -> list[slice]:
    return _pieces(x, _dense_rows(x))


def _moments(x: ndarray, weight: ndarray | None) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Count, mean, m2, low of the values that are not NaN."""
    block, layout = view.channels(x, 1)
    w = None if weight is None else view.weights(weight, layout)
    parts: tuple[ndarray, ndarray, ndarray, ndarray] = BACKENDS[type(x)].moments(block, w, True)
    return parts


def _faded(x: ndarray, weight: ndarray | None, f: ndarray, ddof: int) -> tuple[Any, ndarray, ndarray | None]:
    """Moments of rows that have faded to f; their weights before; with ddof the sum of w f^2."""
    w = f if weight is None else weight * f
    total = w.sum()
    part = _moments(x, w)
    if w.min() > 1e-9 * total and part[0].min() > total * (1 - 1e-10):  # no NaN, or the count would have lost that much
        values = np.full_like(part[0], len(x) if weight is None else weight.sum())
        return part, values, np.full_like(part[0], w @ f) if ddof else None
    return part, _moments(x, weight)[0], _moments(x, w * f)[0] if ddof else None


def _refuse_infinity_seen(x: ndarray, weight: ndarray | None, parts: list[Any]) -> None:
    """Infinity shows in moments, as does the overflow of finite values, which passes; weight 0 hides it."""
    with np.errstate(all="ignore"):
        suspect = not all([isfinite(mean.dot(m2)) for _, mean, m2, _ in parts])
    if suspect:
        refuse_infinity(x)
    elif weight is not None and not weight.all():
        refuse_infinity(x, weight == 0)
