"""The kernels of sparse matrices in plain NumPy: the oracle of their tests."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def moments(
    data: Array, indices: Array, indptr: Array, shape: tuple[int, int], by_column: bool, weight: Array | None = None
) -> tuple[Array, bool]:
    """Return (4, C), and whether the indices increase in each row or column.

    (4, C): count, mean, m2 and low of the values of each column that are not NaN, including zeros that are not stored.
    If the indices do not increase, there may be duplicate entries, which must be added up first.
    """
    lines = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    rows, columns = (indices, lines) if by_column else (lines, indices)
    ordered = bool(((np.diff(indices) > 0) | (np.diff(lines) > 0)).all())
    total = np.ones(shape[0]) if weight is None else weight
    w = np.where(np.isnan(data), 0, total[rows]).astype(np.longdouble)
    x = np.where(w > 0, data, 0).astype(np.longdouble)

    def per_column(values: Array) -> Array:
        sums = np.zeros(shape[1], np.longdouble)
        np.add.at(sums, columns, values)
        return sums

    lacks = np.ones(shape, bool)
    lacks[rows, columns] = False
    zeros = np.where(lacks, total.astype(np.longdouble).reshape(-1, 1), 0).sum(0)
    count = per_column(w) + zeros
    center = per_column(w * x) / np.where(count == 0, 1, count)
    m2 = per_column(w * (x - center[columns]) ** 2) + zeros * center**2
    mean = center.astype(np.float64)
    return np.stack(
        [count.astype(np.float64), mean, m2.astype(np.float64), (center - mean).astype(np.float64)]
    ), ordered


def scaled(data: Array, indices: Array, factor: Array, out: Array | None = None) -> Array:
    """Return data * factor[indices]: the stored values of a CSR matrix, with each column times a factor."""
    if np.isinf(data).any():
        raise FloatingPointError("data holds an infinity")
    y: Array = (data * factor[indices]).astype(data.dtype)
    if out is None:
        return y
    out[...] = y
    return out
