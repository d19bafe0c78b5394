"""Which module computes on an array: a dictionary from array type to backend.

A backend is a module with the functions of `reference.py`. Nothing is imported here that the user did not import: the
types of other libraries are recognized through `sys.modules`.
"""

import sys
from types import ModuleType

import numpy as np

from bnorm.kernels import cpu


class Backends(dict[type, ModuleType]):
    """The backend of CuPy's arrays comes in when the first of them does; of any other type there is none."""

    def __missing__(self, kind: type) -> ModuleType:
        if kind is not getattr(sys.modules.get("cupy"), "ndarray", None):
            raise KeyError(kind)
        from bnorm.kernels import gpu

        self[kind] = gpu
        return gpu


BACKENDS = Backends({np.ndarray: cpu})


def kernels_for(value: object, who: str, name: str = "x") -> ModuleType:
    """The backend of a value, which may be anything that `np.asarray` takes; TypeError where there is none.

    `who` is the function that was called and `name` the parameter, for the message.
    """
    module = BACKENDS.get(type(value))
    if module is not None:
        return module
    cupy_array = getattr(sys.modules.get("cupy"), "ndarray", None)
    if cupy_array is not None and isinstance(value, cupy_array):
        mixed = "" if name == "x" else ", and x is not one: NumPy and CuPy arrays do not mix"
        raise TypeError(
            f"{who}: {name}: expected a NumPy array (this version computes on NumPy arrays only), "
            f"got a CuPy array{mixed}; cupy.asnumpy({name}) converts it"
        )
    return BACKENDS[np.ndarray]
