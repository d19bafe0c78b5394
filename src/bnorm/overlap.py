"""Checks of shared memory: whether a result may be written to `out`, and whether that overwrites x.

All such tests are in this file. They use only the addresses, shapes and strides of NumPy and CuPy arrays, and read no
values.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.checks import type_name
from bnorm.kernels import BACKENDS, cpu, kernels_for, kind_of, view

Given = tuple[Mapping[str, object], ...]  # the arrays of a call by name, and those of its layer
MAX_WORK: Any = 1000  # candidates tried for a shared element; Any because NumPy's stub allows only two values


def output(
    who: str,
    out: Any,
    layout: view.Layout,
    dtype: np.dtype[Any],
    given: Given,
    kind: type,
    *,
    same: str = "x",
) -> tuple[ndarray, ndarray | None, bool]:
    """Check `out`. Return it as a base-class array, then the array that a kernel may write to, or None as `view.into`
    does, and whether `out` certainly overlaps no argument. If the kernels' `ready` accepts it, no check is needed.

    `out` may have either byte order and any memory order. It may be exactly the `given` array called `same`, or exactly
    x, and must not overlap any other given array. `layout` and `kind` are those of x.
    """
    target: ndarray = out
    if type(out) is not kind:
        kernels = kernels_for(out, who, "out", kind)
        if not isinstance(out, kind) or isinstance(out, np.ma.MaskedArray):
            library = "NumPy" if kind is ndarray else "CuPy"
            raise TypeError(f"{who}: out: expected a {library} array, got {type_name(out)}")
        target = kernels.asarray(out)
    if target.shape != layout.shape:
        raise ValueError(f"{who}: out: expected shape {layout.shape}, got {target.shape}")
    if target.dtype is not dtype and target.dtype != dtype and target.dtype.newbyteorder("=") != dtype:
        raise TypeError(f"{who}: out: expected dtype {dtype}, got {target.dtype}")
    if not view.writeable(target):
        raise ValueError(f"{who}: out: expected a writeable array, got a read-only one")
    to = view.into(target, layout)
    if to is None and _overlaps_itself(target):
        raise ValueError(f"{who}: out: expected memory of its own for every element, got strides {target.strides}")
    apart = BACKENDS[kind].apart
    for arrays in given:
        if not apart(target, arrays.values()):
            break
    else:
        return target, to, True
    named = (pair for arrays in given for pair in arrays.items())
    others = {name: value for name, value in named if value is not target or name not in (same, "x")}
    place = target
    if kind is not ndarray:
        place, others = _memory(target), {name: a if a is None else _memory(a) for name, a in others.items()}
    if cpu.apart(place, others.values()):
        return target, to, False
    for name, value in others.items():
        if value is None:
            continue
        a = _memory(value)
        if _overlap(place, a) and not (name in (same, "x") and same_memory(place, a)):
            raise ValueError(f"{who}: out: expected {same} itself or memory of its own, got one that overlaps {name}")
    return target, to, False


def same_memory(a: ndarray, b: ndarray) -> bool:
    """Whether two arrays have the same elements at the same addresses."""
    if a is b:
        return True
    if type(a) is not ndarray:
        a, b = _memory(a), _memory(b)
    if cpu.apart(a, (b,)) or a.shape != b.shape or a.dtype != b.dtype or _address(a) != _address(b):
        return False
    return all(s == t for s, t, n in zip(a.strides, b.strides, a.shape, strict=True) if n > 1)


def _address(a: ndarray) -> int:
    return int(a.__array_interface__["data"][0])


def _memory(value: Any) -> ndarray:
    """Return a NumPy array with the addresses of the value's memory, for tests of addresses only."""
    if type(value) is ndarray:
        return value
    kernels = BACKENDS[kind_of(value) or ndarray]
    place: ndarray = kernels.memory(kernels.asarray(value))
    return place


def _overlap(a: ndarray, b: ndarray) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=MAX_WORK)
    except np.exceptions.TooHardError:  # strides for which the test would take too long count as an overlap
        return True


def _overlaps_itself(a: ndarray) -> bool:
    """Whether two elements may share bytes (broadcast arrays, sliding windows), because the axes do not nest."""
    reach = a.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1 and a.size):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False
