"""The kernels on CuPy arrays: the functions of `reference.py`, as launches of plans.

Nothing here waits for the device, but for three things that a caller has to ask for: `normalize(finite=True)`, running
statistics with "raise", and the number of channels left alone, which is transferred only when it is read (`LeftAlone`).
With weights the count that `forward` returns stays on the device too, an array of one number, for `backward` to take.

With `out` given, and after a first call that compiles its kernels, a call can be captured in a CUDA graph whose memory
comes from a pool of its own.

Float32 and bfloat16 numbers below 1.2e-38, which CuPy's compiler options turn into 0, count as 0 in the maps and in dy,
and as what they are in statistics.
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
from .statistics import LeftAlone, add, assign, known, merge, move

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
    """That of CuPy's arrays; CuPy is imported if need be."""
    return namespace().ndarray


def asarray(value: Any) -> Array:
    """Anything as an array on the current device, of CuPy's base class; what is on the host is copied there."""
    kind = array_type()
    a = value if isinstance(value, kind) else namespace().asarray(value)
    return a if type(a) is kind else a.view(kind)


def memory(array: Array) -> Any:
    """A NumPy array at the address of this one: NumPy knows well whether two overlap, and does not look into them."""
    place = {"data": (array.data.ptr, False), "shape": array.shape, "strides": array.strides}
    return np.asarray(SimpleNamespace(__array_interface__=place | {"typestr": array.dtype.str, "version": 3}))


def apart(array: Array, others: Iterable[Any]) -> bool:
    """Whether it is plain that none of these shares memory with an array: all are arrays in one piece, side by side."""
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
    """Arrays of one number each, as Python's numbers: one transfer, which the host waits for."""
    found: list[float] = np.stack(some).tolist()
    return found
