"""Arrays of other libraries, seen as NumPy's or CuPy's through DLPack without a copy, and results given back as theirs.

Such a library has arrays with `__dlpack__`: PyTorch, JAX, or any other that follows the array API standard.
"""

import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS

_ON_HOST, _ON_GPU = {1, 3}, {2, 13}  # DLPack's numbers: CPU and pinned memory; CUDA and its managed memory


class MixedArraysError(AttributeError, TypeError, ValueError):
    """X is of one library, or on one device, and what was fitted of another.

    scikit-learn's own estimators fail with any of these kinds, depending on the libraries: whoever expects one of them
    catches it.
    """


def is_foreign(value: object) -> bool:
    """Whether a value is an array of a library that has no kernels here, and can lend its memory."""
    return type(value) not in BACKENDS and hasattr(value, "__dlpack__") and not isinstance(value, ndarray | np.generic)


def borrowed(x: Any) -> Any:
    """A NumPy or CuPy array in the memory of x; None where there are no kernels for what lies there.

    There are none for other devices, for types that NumPy does not have, and for a tensor that records what is
    computed with it, for a gradient: what the kernels compute would be missing from the record.
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
    """A NumPy or CuPy array as one of the library of x, on the device of x, in the memory of `a`.

    Where that device has no numbers of 64 bits, they become numbers of 32.
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
    """The module whose functions make arrays of that kind."""
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()  # type: ignore[no-any-return]
    for kind in type(x).__mro__:  # PyTorch's tensors do not say
        module = sys.modules[kind.__module__.partition(".")[0]]
        if hasattr(module, "from_dlpack"):
            return module
    return np


def refuse_mixture(call: str, name: str, fitted: Any, x: Any) -> None:
    """MixedArraysError unless x and a fitted attribute of that name are of one library, and on one device."""
    own, other = library(fitted), library(x)
    if own is not other or (own is not np and fitted.device != x.device):
        raise MixedArraysError(
            f"{call}: X: expected an array of {own.__name__} on the device of {name}, got one of {other.__name__}: "
            "they must use the same namespace and device; fit begins anew"
        )
