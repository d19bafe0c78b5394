"""The kernels on CuPy arrays: the functions of `reference.py`, as launches of plans.

Nothing here waits for the device unless a caller asks for it: by `normalize(finite=True)`, running statistics with
"raise", `exact_sums`, `numbers`, or by reading the number of channels left alone (`LeftAlone`). With weights, the count
that `forward` returns stays on the device too: it is an array of one number, which `backward` accepts.

A call can be captured in a CUDA graph if `out` is given, an earlier call has compiled its kernels, and the graph's
memory comes from a pool of its own.

Float32 and bfloat16 numbers below 1.2e-38 count as 0 in the maps and in dy, because CuPy's compiler options turn them
into 0. In statistics they keep their values.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..cpu.entries import settle_prepared as settle
from .channels import (
    backward,
    extremes,
    finish,
    finish_gradients,
    forward,
    grad_input,
    grad_moments,
    moments,
    normalize,
)
from .exact import exact_sums
from .launching import available, namespace
from .online import online
from .rows import rows_backward, rows_forward
from .shapes import NAMES
from .statistics import LeftAlone, add, assign, inverse, known, merge, move

__all__ = [
    "FLOATS",
    "INTEGERS",
    "LeftAlone",
    "add",
    "apart",
    "array_type",
    "asarray",
    "assign",
    "available",
    "backward",
    "exact_sums",
    "extremes",
    "finish",
    "finish_gradients",
    "forward",
    "grad_input",
    "grad_moments",
    "inverse",
    "known",
    "memory",
    "merge",
    "moments",
    "move",
    "normalize",
    "numbers",
    "online",
    "rows_backward",
    "rows_forward",
    "settle",
]

FLOATS = tuple(NAMES)
INTEGERS = ()
Array = Any  # cupy.ndarray


def array_type() -> Any:
    """Return the type of CuPy's arrays. CuPy is imported if need be."""
    return namespace().ndarray


def asarray(value: Any) -> Array:
    """Return a value as an array of CuPy's base class on the current device; values on the host are copied there."""
    kind = array_type()
    a = value if isinstance(value, kind) else namespace().asarray(value)
    return a if type(a) is kind else a.view(kind)


def memory(array: Array) -> Any:
    """Return a NumPy array at the address of this one: NumPy can tell whether two overlap, and reads no values."""
    place = {"data": (array.data.ptr, False), "shape": array.shape, "strides": array.strides}
    return np.asarray(SimpleNamespace(__array_interface__=place | {"typestr": array.dtype.str, "version": 3}))


def apart(array: Array, others: Iterable[Any]) -> bool:
    """Whether `array` certainly shares no memory with `others`; False too if one is not contiguous or not CuPy's."""
    kind, start = type(array), array.data.ptr
    stop = start + array.nbytes
    if not array.flags.c_contiguous:
        return False
    for other in others:
        if other is None:
            continue
        if type(other) is not kind or not other.flags.c_contiguous:
            return False
        at = other.data.ptr
        if at < stop and start < at + other.nbytes:
            return False
    return True


def numbers(*some: Array) -> list[float]:
    """Return arrays of one number each as Python numbers, by one transfer, for which the host waits."""
    found: list[float] = np.stack(some).tolist()
    return found
