"""The kernels by groups in plain NumPy: the oracle of their tests."""

from typing import Any

import numpy as np

from . import reference

Array = np.ndarray[Any, Any]


def moments(x: Array, codes: Array, groups: int, weight: Array | None = None, skipna: bool = False) -> Array:
    """Return parts, (4, G, C): for each group those that `reference.moments` finds at the positions with its code."""
    codes = codes.reshape(-1)
    _check(codes, groups)
    outer, channels = x.shape[:2]
    inner = x.shape[2] if x.ndim == 3 else 1
    rows = x.reshape(outer, channels, inner).transpose(0, 2, 1).reshape(outer * inner, channels)
    parts = np.zeros((4, groups, channels))
    for g in range(groups):
        mine = codes == g
        w = None if weight is None else weight.reshape(-1)[mine].reshape(-1, 1)
        parts[:, g] = reference.moments(rows[mine], w, skipna)
    return parts


@np.errstate(all="ignore")
def normalize(x: Array, codes: Array, numbers: Array, out: Array | None = None, finite: bool = False) -> Array:
    """Return (x - mean) scale + shift with the numbers of each position's group; NaN at positions without a group.

    It is computed in float64. numbers: (G, 3, C), mean, scale and shift.
    """
    groups = len(numbers)
    _check(codes, groups)
    if finite and np.isinf(x).any():
        raise FloatingPointError("x holds an infinity")
    outer, channels = x.shape[:2]
    inner = x.shape[2] if x.ndim == 3 else 1
    of = np.concatenate([numbers, np.full((1, 3, channels), np.nan)])[codes.reshape(outer, inner)]
    mean, scale, shift = (of[:, :, i].transpose(0, 2, 1).reshape(x.shape) for i in range(3))
    wide = (x.astype(np.float64) - mean) * scale + shift
    narrow = x.dtype.itemsize == 2 and x.dtype.kind not in "bui"  # float16 and bfloat16 are rounded from float32
    y: Array = (wide.astype(np.float32) if narrow else wide).astype(np.float64 if x.dtype.kind in "bui" else x.dtype)
    if out is None:
        return y
    out[...] = y
    return out


def later(codes: Array, groups: int) -> Array:
    """Return for each position how many later positions belong to its group, as float64; 0 if it has no group."""
    _check(codes, groups)
    ages = [0.0 if g < 0 else float((codes[i + 1 :] == g).sum()) for i, g in enumerate(codes)]
    return np.array(ages, np.float64)


def distinct(values: Array) -> tuple[Array, Array]:
    """Return the distinct numbers among int64 values, in the order in which they first appear, and the int32 codes."""
    sorted_, first, codes = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return sorted_[order], place[codes].astype(np.int32)


def _check(codes: Array, groups: int) -> None:
    if ((codes < -1) | (codes >= groups)).any():
        raise IndexError(f"codes: expected -1 to {groups - 1}, got others")
