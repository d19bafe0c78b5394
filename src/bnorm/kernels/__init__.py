"""Backends: a dictionary from the type of an array to the module that computes on it.

A backend is a module with the functions of `reference.py`, and these:

    asarray(value)   a value as an array of the backend
    memory(array)    a NumPy array at the same address, for tests of overlap; its values must not be read
    exact_sums(...)  that of `reference_exact.py`; its results are NumPy arrays
    numbers(*some)   results of reductions as Python numbers; synchronizes once
    FLOATS           names of the dtypes that it computes in
    INTEGERS         names of other dtypes that batch norm and moments read; the result is float64

Types of other libraries are recognized through `sys.modules`, so no library is imported that the user did not import.
"""

import sys
from types import ModuleType
from typing import Any

import numpy as np

from bnorm.kernels import cpu
from bnorm.kernels.engines import engine_of

Array = Any  # numpy.ndarray or cupy.ndarray

VARIANCE, MEAN_SQUARE = range(2)  # a row is divided by the square root of one of these; numbered as in formulas.h


class Backends(dict[type, ModuleType]):
    """Adds the backend of CuPy arrays when it is first needed. Any other missing type is a KeyError."""

    def __missing__(self, kind: type) -> ModuleType:
        if kind is not getattr(sys.modules.get("cupy"), "ndarray", None):
            raise KeyError(kind)
        from bnorm.kernels import gpu

        self[kind] = gpu
        return gpu


BACKENDS = Backends({np.ndarray: cpu})


def kind_of(value: object) -> type | None:
    """Return the array type of a value or of what it converts to (a Series, a tensor); None for lists and numbers."""
    if type(value) in BACKENDS:
        return type(value)
    cupy_array: type | None = getattr(sys.modules.get("cupy"), "ndarray", None)
    if cupy_array is not None and (isinstance(value, cupy_array) or hasattr(value, "__cupy_get_ndarray__")):
        return cupy_array
    return np.ndarray if hasattr(value, "__array__") and not isinstance(value, np.generic) else None


def kernels_for(value: object, who: str, name: str = "x", kind: type | None = None, beside: str = "x") -> ModuleType:
    """Return the backend for a value, which may be anything that `np.asarray` or `cupy.asarray` takes.

    who, name: the function and the parameter, for messages.
    kind, beside: the type of the arrays that the value is used with, and their name in messages: a parameter, or
    "the ..." for an object with a method `to`. Lists and numbers are accepted with either type; an array of the other
    library is a TypeError.
    """
    if type(value) is kind:
        return BACKENDS[kind]
    if (engine := engine_of(value)) is not None:
        raise TypeError(
            f"{who}: {name}: expected an array in memory, got a {engine.NAME} {type(value).__name__}, which is lazy: "
            f"{engine.in_memory(name)} returns an array"
        )
    own = kind_of(value)
    if kind is None or own is None or own is kind:
        return BACKENDS[kind or own or np.ndarray]
    on_device = own is not np.ndarray
    wanted, got = ("NumPy", "CuPy") if on_device else ("CuPy", "NumPy")
    here, there = ("asnumpy", "asarray") if on_device else ("asarray", "asnumpy")
    if beside.startswith("the "):
        reason = f"as {beside} is on the {'CPU' if on_device else 'GPU'}"
        way = f"{beside.removeprefix('the ')}.to({'cuda' if on_device else 'cpu'!r})"
    else:
        reason, way = f"as {beside} is one", f"cupy.{there}({beside})"
    raise TypeError(
        f"{who}: {name}: expected a {wanted} array, {reason}, got a {got} array: NumPy and CuPy arrays do not mix; "
        f"cupy.{here}({name}) moves the one, {way} the other"
    )


def zeros_like(a: Array, dtype: Any = None) -> Array:
    """Return zeros like `a`, on its device. NumPy's `zeros_like` takes three times as long for small arrays."""
    zeros = np.empty_like(a, dtype)
    zeros.fill(0)
    return zeros


def halved(x: Array) -> Array:
    """Return 2 ** x for numbers x <= 0, with the same bits everywhere: NumPy's differ in their last bits."""
    return moved(cpu.halved(moved(x, np.ndarray)), type(x))


def moved(a: Array, kind: type) -> Array:
    """Return `a` as an array of the type `kind`: `a` itself, or a copy on the other device."""
    if type(a) is kind:
        return a
    return a.get() if kind is np.ndarray else BACKENDS[kind].asarray(a)
