"""Sparse matrices: moments and scaling of columns, by kernels that read only the stored values."""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels.cpu import sparse
from bnorm.moments import Moments
from bnorm.transformer.tables import infinite


def moments(x: Any, weight: ndarray | None) -> Moments:
    """Moments per column of CSR or CSC x. Zeros that are not stored count, NaN does not. weight: float64, per row."""
    parts, ordered = _moments(x, weight)
    if not ordered:  # there may be duplicate entries
        x = x.copy()
        x.sum_duplicates()
        parts, _ = _moments(x, weight)
    if not np.isfinite(parts[1:3]).all() or (weight is not None and not weight.all()):
        refuse_infinity(x)
    return Moments._from_parts(parts)


def scaled(x: Any, factor: ndarray, in_place: bool) -> Any:
    """Return CSR x with each column multiplied by a factor."""
    data, indices, indptr = _arrays(x)
    if in_place:  # before anything is overwritten
        refuse_infinity(x)
    try:
        y = sparse.scaled(data, indices, np.ascontiguousarray(factor, np.float64), data if in_place else None)
    except FloatingPointError:
        raise infinite(x) from None
    if not in_place:
        return type(x)((y, indices.copy(), indptr.copy()), shape=x.shape)
    if not np.may_share_memory(y, x.data):  # `data` is a copy
        x.data[: len(y)] = y
    return x


def refuse_infinity(x: Any) -> None:
    """Raise ValueError, in scikit-learn's words, if infinity is stored."""
    if np.isinf(x.data).any():
        raise infinite(x)


def _moments(x: Any, weight: ndarray | None) -> tuple[ndarray, bool]:
    return sparse.moments(*_arrays(x), x.shape, x.format == "csc", weight)


def _arrays(x: Any) -> tuple[ndarray, ndarray, ndarray]:
    """Return data, indices and indptr as the kernels take them: contiguous, native, of one index type, and trimmed."""
    n = x.indptr[-1]
    index = np.result_type(x.indices, x.indptr, np.int32)
    data = np.ascontiguousarray(x.data[:n], np.float64 if x.dtype.itemsize == 8 else np.float32)
    return data, np.ascontiguousarray(x.indices[:n], index), np.ascontiguousarray(x.indptr, index)
