"""Arrays of other libraries, read as NumPy or CuPy arrays through DLPack without a copy, and results converted back.

Such arrays have `__dlpack__`: those of PyTorch, JAX, and any library that follows the array API standard.
"""

import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS

_ON_HOST, _ON_GPU = {1, 3}, {2, 13}  # DLPack's numbers: CPU and pinned memory; CUDA and its managed memory


class MixedArraysError(AttributeError, TypeError, ValueError):
    """X and the fitted attributes are of different libraries, or on different devices.

    scikit-learn's own estimators raise any of the base classes, depending on the libraries, so code that expects one of
    them catches this error too.
    """


def is_foreign(value: object) -> bool:
    """Whether a value is an array of a library that has no backend here, and supports DLPack."""
    return type(value) not in BACKENDS and hasattr(value, "__dlpack__") and not isinstance(value, ndarray | np.generic)


def borrowed(x: Any) -> Any:
    """Return a NumPy or CuPy array in the memory of x, or None if no backend can compute with x.

    It is None for other devices, for dtypes that NumPy does not have, and for a tensor that requires a gradient, as its
    library would not record what the kernels compute.
    """
    device = x.__dlpack_device__()[0]
    try:
        if device in _ON_HOST:
            return np.from_dlpack(x)
        if device in _ON_GPU:
            import cupy

            return cupy.from_dlpack(x)
    except (BufferError, ImportError, RuntimeError, TypeError):
        pass
    return None


def given_back(a: Any, x: Any) -> Any:
    """Return a NumPy or CuPy array as an array of the library of x, on the device of x, without a copy.

    If that device does not support 64-bit numbers, they are converted to 32 bits.
    """
    if type(a) not in BACKENDS:  # a scalar
        a = np.asarray(a)
    xp, device = library(x), x.device
    if hasattr(xp, "__array_namespace_info__"):
        if a.dtype.name not in xp.__array_namespace_info__().dtypes(device=device):
            a = a.astype(f"{a.dtype.kind}4")
    result = xp.from_dlpack(a)
    if result.device == device:
        return result
    return result.to_device(device) if hasattr(result, "to_device") else result.to(device)


def library(x: Any) -> ModuleType:
    """Return the array library of x."""
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()  # type: ignore[no-any-return]
    for kind in type(x).__mro__:  # PyTorch's tensors have no __array_namespace__
        module = sys.modules[kind.__module__.partition(".")[0]]
        if hasattr(module, "from_dlpack"):
            return module
    return np


def refuse_mixture(call: str, name: str, fitted: Any, x: Any) -> None:
    """Raise MixedArraysError unless x and the fitted attribute `name` are of one library and on one device."""
    own, other = library(fitted), library(x)
    if own is not other or (own is not np and fitted.device != x.device):
        raise MixedArraysError(
            f"{call}: X: expected an array of {own.__name__} on the device of {name}, got one of {other.__name__}: "
            "they must use the same namespace and device; fit begins anew"
        )
