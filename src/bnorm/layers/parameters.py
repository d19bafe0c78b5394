"""Parameters: an array and its gradient, for an optimizer to update."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, SupportsIndex

import numpy as np
from numpy import ndarray
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

from bnorm import checks, devices
from bnorm.kernels import moved, view, zeros_like
from bnorm.layers import state


class Parameter(NDArrayOperatorsMixin):
    """An array `data` and its gradient `grad`, to which backward calls add until `zero_grad`.

    It can be used like an array: operators, ufuncs and methods act on `data` and return plain arrays; in-place
    operators change `data`. Assigning to `data` or `grad` copies the values into the existing array, which others may
    share; `grad = None` sets zeros. `==` compares element by element. As a dictionary key, a parameter is compared by
    identity, not by its values. On a GPU both arrays are CuPy arrays.

    Parameters
    ----------
    data : array_like
        A float32 or float64 array is used without a copy if it is writeable and contiguous. Other types become float64.
    requires_grad : bool, default True
        False: backward calls neither compute nor add the gradient.

    Examples
    --------
    >>> p = Parameter([1.0, 2.0])
    >>> p.grad += [10.0, 20.0]
    >>> p.data -= 0.1 * p.grad
    >>> p
    Parameter([0., 0.])
    """

    __slots__ = ("_data", "_grad", "_requires_grad")

    _data: ndarray
    _grad: ndarray
    _requires_grad: bool

    def __init__(self, data: ArrayLike, requires_grad: bool = True) -> None:
        """See the class."""
        if isinstance(data, Parameter):
            data = data._data
        a = checks.real("Parameter", "data", data)
        a = view.dense(a, a.dtype.newbyteorder("=") if a.dtype.char in "fd" else np.float64)
        if not view.writeable(a):
            a = a.copy()
        self._data, self._grad = a, np.zeros_like(a)
        self.requires_grad = requires_grad

    @classmethod
    def _holding(cls, data: ndarray) -> Parameter:
        """Return a parameter of an array that a layer has just made, without checks."""
        made = cls.__new__(cls)
        made._data, made._grad, made._requires_grad = data, zeros_like(data), True
        return made

    @property
    def data(self) -> ndarray:
        """The array itself."""
        return self._data

    @data.setter
    def data(self, value: ArrayLike) -> None:
        self._write("data", self._data, value)

    @property
    def grad(self) -> ndarray:
        """The sum of the gradients since the last `zero_grad`."""
        return self._grad

    @grad.setter
    def grad(self, value: ArrayLike | None) -> None:
        self._write("grad", self._grad, np.zeros_like(self._grad) if value is None else value)

    @property
    def requires_grad(self) -> bool:
        """Whether backward calls compute and add the gradient."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._requires_grad = checks.flag("Parameter", "requires_grad", value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of data and grad, which never changes."""
        return self._data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or float32."""
        return self._data.dtype

    def zero_grad(self) -> None:
        """Set grad to zero, in place."""
        self._grad[...] = 0

    def _write(self, name: str, to: ndarray, value: ArrayLike) -> None:
        if value is to:
            return
        a = checks.real("Parameter", name, value, type(to), "data")
        if a.shape != to.shape:
            raise ValueError(f"Parameter: {name}: expected shape {to.shape}, got {a.shape}")
        state.rewrite(to, a)

    @property
    def __cupy_get_ndarray__(self) -> Any:
        """CuPy's protocol for objects that hold a CuPy array; it exists only if data is on a device."""
        if type(self._data) is ndarray:
            raise AttributeError("Parameter: data is on the CPU")
        return lambda: self._data

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> ndarray:
        if type(self._data) is not ndarray:
            raise TypeError("Parameter: expected data on the CPU, got it on the GPU: cupy.asnumpy(p.data) is a copy")
        if copy:
            return self._data.astype(dtype or self._data.dtype)
        if copy is False and dtype is not None and np.dtype(dtype) != self._data.dtype:
            raise ValueError(f"Parameter: a {np.dtype(dtype)} array of {self._data.dtype} data is a copy")
        return self._data if dtype is None else self._data.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out", ())
        if out:
            kwargs["out"] = tuple(_data(a) for a in out)
        result = getattr(ufunc, method)(*(_data(a) for a in inputs), **kwargs)
        return out[0] if len(out) == 1 else result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"Parameter has no attribute {name!r}")
        return getattr(self._data, name)

    __hash__ = object.__hash__  # the mixin's __eq__ removes it

    def __len__(self) -> int:
        return len(self._data)

    def __bool__(self) -> bool:
        return bool(self._data)

    def __float__(self) -> float:
        return float(self._data)

    def __int__(self) -> int:
        return int(self._data)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)

    def __format__(self, spec: str) -> str:
        return format(self._data, spec) if spec else str(self)

    def __getitem__(self, index: Any) -> Any:
        return self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._data[index] = _data(value)

    def _state(self) -> dict[str, ndarray]:
        return {"": self._data}

    def _loading(self, found: Mapping[str, ndarray], seen: ndarray | None) -> list[state.Change]:
        """Return the changes that load this array into the parameter."""
        return [state.write(self._data, a) for a in found.values()]

    def __copy__(self) -> Parameter:
        """Return a copy with its own arrays, like a copy of an array."""
        return copy.deepcopy(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return _restored, (type(self), self._data, self._grad, self.requires_grad), self.__getstate__()

    def __getstate__(self) -> tuple[Any, dict[str, Any]]:
        """Return the attributes that a subclass has added: its __dict__, and those in slots."""
        both: Any = super().__getstate__()
        own, slots = both
        return own, {name: value for name, value in slots.items() if name not in Parameter.__slots__}

    def __repr__(self) -> str:
        values = np.array2string(moved(self._data, ndarray), separator=", ", prefix="Parameter(")
        return f"Parameter({values}{'' if self.requires_grad else ', requires_grad=False'})"


def _data(a: Any) -> Any:
    return a._data if isinstance(a, Parameter) else a


def _restored(cls: type[Parameter], data: ndarray, grad: ndarray, requires_grad: bool) -> Parameter:
    p = cls.__new__(cls)  # not by its __init__, which a subclass may have with other arguments
    p._data, p._grad, p._requires_grad = devices.owned(data), devices.owned(grad), requires_grad
    return p
