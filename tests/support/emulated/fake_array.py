"""The arrays of the stand-in for CuPy (fake_cupy.py), and what counts when the host waits for them."""

import math
import operator
from contextlib import contextmanager

import numpy as np

from emulated.fake_streams import memory

# So that small arrays are cut into chunks.
SMALL = {"MultiProcessorCount": 3, "MaxSharedMemoryPerBlockOptin": 64 << 10}
SCALARS = (bool, int, float, complex, np.generic)
COMPARISONS = {"greater", "greater_equal", "less", "less_equal", "equal", "not_equal"}
UFUNCS = {
    *COMPARISONS,
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "negative", "absolute", "square"),
    *(
        "sqrt",
        "exp",
        "frexp",
        "ldexp",
        "floor",
        "maximum",
        "minimum",
        "isfinite",
        "isnan",
        "isinf",
        "signbit",
        "copysign",
    ),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "logical_and", "logical_or", "logical_not"),
}
FUNCTIONS = {}  # that NumPy's are handed on to, by name
waits = uploads = ufuncs = 0  # ufuncs: launches of CuPy's own kernels


def waited():
    global waits
    waits += 1


def uploaded():
    global uploads
    uploads += 1


@contextmanager
def nothing_waits():
    """The host does not wait for the device here, nor does it send an array there."""
    before = waits, uploads
    yield
    assert (waits, uploads) == before, f"{waits - before[0]} waits and {uploads - before[1]} uploads"


class Flags:
    """CuPy knows neither writeable nor aligned nor carray."""

    def __init__(self, flags):
        self.c_contiguous, self.f_contiguous = flags.c_contiguous, flags.f_contiguous
        self.owndata, self.forc, self.fnc = flags.owndata, flags.forc, flags.fnc


class MemoryPointer:
    """An address, which keeps its memory."""

    device_id = 0

    def __init__(self, mem, ptr):
        self.mem, self.ptr = mem, ptr

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr + offset)


def unary(ufunc):
    return lambda self: ufunc(self)


def binary(ufunc):
    def forward(self, other):
        if hasattr(other, "__array_ufunc__") and other.__array_ufunc__ is None:
            return NotImplemented
        return ufunc(self, other)

    return forward, lambda self, other: ufunc(other, self), lambda self, other: ufunc(self, other, out=self)


def with_operators(cls):
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
        ufunc = {"sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide}.get(name)
        ufunc = ufunc or {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.get(name)
        ufunc = ufunc or {"pow": np.power, "mod": np.remainder, "add": np.add}[name]
        for prefix, method in zip(("", "r", "i"), binary(ufunc), strict=True):
            setattr(cls, f"__{prefix}{name}__", method)
    comparisons = ("less", "less_equal", "equal", "not_equal", "greater", "greater_equal")
    for name, ufunc in zip(("lt", "le", "eq", "ne", "gt", "ge"), comparisons, strict=True):
        setattr(cls, f"__{name}__", binary(getattr(np, ufunc))[0])
    for name, ufunc in (("neg", np.negative), ("abs", np.absolute), ("invert", np.invert)):
        setattr(cls, f"__{name}__", unary(ufunc))
    return cls


def refused(value):
    return TypeError(f"Unsupported type {type(value)}")


def opened(value):
    """The NumPy array inside, or a scalar; TypeError for NumPy arrays and whatever else CuPy refuses."""
    if isinstance(value, ndarray):
        return value.host
    if value is None or isinstance(value, SCALARS):
        return value
    if hasattr(value, "__cupy_get_ndarray__"):
        return value.__cupy_get_ndarray__().host
    raise refused(value)


def wrapped(host):
    """A result of the device, which has no scalars."""
    made = object.__new__(ndarray)
    made.host = host if isinstance(host, np.ndarray) else np.asarray(host)
    return made


@with_operators
class ndarray:
    """`host` is the memory: for tests to look into without being counted."""

    __module__ = "cupy"
    __slots__ = ("__weakref__", "host")
    __hash__ = None
    __array_priority__ = 100

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        if memptr is not None or strides is not None:
            raise NotImplementedError("the stand-in makes new arrays only")
        host = np.empty(0, dtype)
        size = math.prod(shape if isinstance(shape, tuple | list) else (shape,)) * host.itemsize
        self.host = np.ndarray(shape, dtype, memory(size) if size else None, order=order)

    shape = property(operator.attrgetter("host.shape"))
    strides = property(operator.attrgetter("host.strides"))
    dtype = property(operator.attrgetter("host.dtype"))
    ndim = property(operator.attrgetter("host.ndim"))
    size = property(operator.attrgetter("host.size"))
    nbytes = property(operator.attrgetter("host.nbytes"))
    itemsize = property(operator.attrgetter("host.itemsize"))
    flags = property(lambda self: Flags(self.host.flags))
    device = property(lambda self: Device(0))
    T = property(lambda self: wrapped(self.host.T))

    @property
    def data(self):
        return MemoryPointer(self.host, self.host.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        return self.host.__array_interface__ | {"version": 3}

    # What waits for the device ---------------------------------------------------------------------------------------

    def get(self, stream=None, order="C", out=None, blocking=True):
        waited()
        return np.array(self.host, order=order)

    def item(self):
        return self.get().item()

    def tolist(self):
        return self.get().tolist()

    def tobytes(self, order="C"):
        return self.get().tobytes(order)

    def __bool__(self):
        if self.size != 1:
            raise ValueError("The truth value of an array with more or less than one element is ambiguous.")
        return bool(self.get())

    def __float__(self):
        return float(self.get())

    def __int__(self):
        return int(self.get())

    def __repr__(self):
        return repr(self.get())

    __str__ = __repr__

    def __format__(self, spec):
        return format(self.get(), spec)

    def __reduce__(self):
        from emulated.fake_cupy import array

        return array, (self.get(order="A"),)

    # What does not ---------------------------------------------------------------------------------------------------

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        global ufuncs
        ufuncs += 1
        if method != "__call__" or ufunc.__name__ not in UFUNCS or options.keys() - {"dtype"}:
            return NotImplemented
        if ufunc.__name__ in COMPARISONS:  # the one place where NumPy arrays of no axes pass
            inputs = [x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs]
        with np.errstate(all="ignore"):  # a device has no floating-point exceptions
            if not out:
                found = ufunc(*map(opened, inputs), **options)
                return tuple(map(wrapped, found)) if isinstance(found, tuple) else wrapped(found)
            if not isinstance(out[0], ndarray):
                raise refused(out[0])
            ufunc(*map(opened, inputs), out=out[0].host, casting="same_kind", **options)
        return out[0]

    def __array_function__(self, function, types, args, kwargs):
        mine = FUNCTIONS.get(function.__name__)
        if mine is None or not all(issubclass(t, ndarray | np.ndarray) for t in types):
            return NotImplemented
        return mine(*args, **kwargs)

    def __len__(self):
        return len(self.host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        return wrapped(self.host[indices(index)])

    def __setitem__(self, index, value):
        if has_mask(index):
            self.host[indices(index)] = opened(value)
        elif isinstance(value, ndarray):
            with np.errstate(all="ignore"):
                self[index].host[...] = value.host
        else:
            self[index].fill(value)

    def fill(self, value):
        value = value.host if isinstance(value, ndarray) else np.asarray(value, self.dtype)
        if value.shape:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        self.host[...] = value

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def copy(self, order="C"):
        return wrapped(self.host.copy(order))

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if casting is not None or subok is not None:
            raise TypeError("casting and subok are not supported")
        with np.errstate(all="ignore"):
            made = self.host.astype(dtype, order=order, copy=copy)
        return self if made is self.host else wrapped(made)

    def reshape(self, *shape, order="C", copy=None):
        return wrapped(self.host.reshape(*shape, order=order))

    def transpose(self, *axes):
        return wrapped(self.host.transpose(*axes))

    def flatten(self, order="C"):
        return wrapped(self.host.flatten(order))

    def ravel(self, order="C"):
        return wrapped(np.ascontiguousarray(self.host.ravel(order)))

    def repeat(self, repeats, axis=None):
        return wrapped(self.host.repeat(repeats, axis))

    def view(self, dtype=None):
        if isinstance(dtype, type) and issubclass(dtype, ndarray):
            made = object.__new__(dtype)
            made.host = self.host
            return made
        return wrapped(self.host.view() if dtype is None else self.host.view(dtype))

    @np.errstate(all="ignore")
    def sum(self, axis=None, dtype=None, out=None, keepdims=False):
        return wrapped(self.host.sum(axis, dtype, keepdims=keepdims))

    @np.errstate(all="ignore")
    def mean(self, axis=None, dtype=None, out=None, keepdims=False):
        return wrapped(self.host.mean(axis, dtype, keepdims=keepdims))

    def min(self, axis=None, out=None, keepdims=False):  # of nothing: ValueError, and no `initial`
        return wrapped(self.host.min(axis, keepdims=keepdims))

    def max(self, axis=None, out=None, keepdims=False):
        return wrapped(self.host.max(axis, keepdims=keepdims))

    def all(self, axis=None, out=None, keepdims=False):
        return wrapped(self.host.all(axis, keepdims=keepdims))

    def any(self, axis=None, out=None, keepdims=False):
        return wrapped(self.host.any(axis, keepdims=keepdims))


def has_mask(index):
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, ndarray | np.ndarray | list) for part in parts)


def indices(index):
    """A mask has to be counted, and the host waits for that."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, ndarray) and part.dtype == bool for part in parts):
        waited()
    parts = tuple(part.host if isinstance(part, ndarray) else part for part in parts)
    return parts if any(part is ... for part in parts) else (*parts, ...)  # elements are views too


class Device:
    def __init__(self, device=None):
        self.id = device or 0
        self.attributes, self.compute_capability = SMALL, "80"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __eq__(self, other):
        return self.id == other.id

    def synchronize(self):
        waited()
