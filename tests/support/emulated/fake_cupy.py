"""What stands in for CuPy where there is no GPU: arrays that NumPy cannot see into, and kernels on the emulator.

The fixture `cupy` puts this module in the place of CuPy. Its arrays hold NumPy memory, and are as strict as CuPy's: no
conversion to NumPy but by `get`, no NumPy arrays among their operands, only the functions and methods listed here, of
which each was found in CuPy 14, with the arguments it takes there. Reductions and elements are arrays of no axes.

`waits` counts what makes the host wait for the device: `get` and all that is made of it (`float`, `bool`, `item`,
`asnumpy`, printing, indexing by a mask). `uploads` counts arrays that come from the host. `nothing_waits()` fails where
either has happened. `ufuncs` counts arithmetic on arrays, each of which is a launch. New memory is full of NaN.

Kernels run when they are launched (`Device` in launching.py does not know the difference): `RawModule` compiles them
for the emulator. Where only launches matter, and no result, `launches_nothing()` saves that. What a stream captures
runs with its graph, kernels and what is set to 0; everything else runs at once.
"""

import ctypes
import math
import sys
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from bnorm.kernels import BACKENDS, gpu
from bnorm.kernels.gpu import launching
from emulated import fake_array
from emulated.device import RESIDENT, emulated
from emulated.fake_array import FUNCTIONS, Device, ndarray, nothing_waits, opened, uploaded, wrapped
from emulated.fake_streams import MemoryPool, Stream, default_pool, do, of_thread, using_allocator

__all__ = ["fake_cupy", "ndarray", "nothing_waits", "wrapped"]  # beside what a module of that name has
__version__ = "14.0"
launched = []  # names of kernels
launching_too = True


def __getattr__(name):
    if name in ("waits", "uploads", "ufuncs"):
        return getattr(fake_array, name)
    raise AttributeError(f"module 'cupy' has no attribute {name!r}")


@contextmanager
def launches_nothing():
    """Results are not to be looked at."""
    global launching_too
    launching_too = False
    try:
        yield
    finally:
        launching_too = True


# Functions -----------------------------------------------------------------------------------------------------------


def function(made):
    FUNCTIONS[made.__name__] = made
    return made


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    if hasattr(obj, "__cupy_get_ndarray__"):
        obj = obj.__cupy_get_ndarray__()
    if isinstance(obj, ndarray):
        return obj.astype(obj.dtype if dtype is None else dtype, order=order or "K", copy=bool(copy))
    if isinstance(obj, list | tuple) and obj and all(isinstance(item, ndarray) for item in obj):
        if len({(item.shape, item.dtype) for item in obj}) > 1:
            raise ValueError("arrays in a sequence are of one shape and type")
        return wrapped(np.stack([item.host for item in obj]))
    uploaded()
    host = np.array(obj, dtype)  # in the byte order of the machine
    if host.dtype.kind not in "buifcV":
        raise ValueError(f"Unsupported dtype {host.dtype}")
    return wrapped(host.astype(host.dtype.newbyteorder("=")) if host.dtype.kind != "V" else host)


FUNCTIONS["array"] = array  # as np.array(..., like=a)


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    return array(a, dtype, copy, order)


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get(order=order) if isinstance(a, ndarray) else np.asarray(a, order=order)


def empty(shape, dtype=float, order="C"):
    return ndarray(shape, dtype, order=order)


def zeros(shape, dtype=float, order="C"):
    made = ndarray(shape, dtype, order=order)
    do(partial(ctypes.memset, made.data.ptr, 0, made.nbytes))
    return made


def ones(shape, dtype=float, order="C"):
    return wrapped(np.ones(shape, dtype, order))


def full(shape, fill_value, dtype=None, order="C"):
    return wrapped(np.full(shape, opened(fill_value), dtype, order))


FUNCTIONS |= {"empty": empty, "zeros": zeros, "ones": ones, "full": full}  # with like=a, too


@function
def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    made = wrapped(np.empty_like(prototype.host, dtype, order, shape=shape))
    if made.size:
        made.host.fill(np.nan if made.dtype.kind == "f" else 1)
    return made


@function
def zeros_like(a, dtype=None, order="K", subok=None, shape=None):
    return wrapped(np.zeros_like(a.host, dtype, order, shape=shape))


@function
def ones_like(a, dtype=None, order="K", subok=None, shape=None):
    return wrapped(np.ones_like(a.host, dtype, order, shape=shape))


@function
def full_like(a, fill_value, dtype=None, order="K", subok=None, shape=None):
    return wrapped(np.full_like(a.host, opened(fill_value), dtype, order, shape=shape))


@function
def where(condition, x=None, y=None):
    if x is None or y is None:
        raise NotImplementedError("the stand-in has no nonzero")
    return wrapped(np.where(condition.astype("?", copy=False).host, opened(x), opened(y)))


@function
def stack(tup, axis=0, out=None, *, dtype=None, casting="same_kind"):
    """That addresses go to the device here makes it an upload of CuPy's own, which does not wait."""
    return wrapped(np.stack([arrays_only(a) for a in tup], axis, dtype=dtype, casting=casting))


@function
def concatenate(tup, axis=0, out=None, *, dtype=None, casting="same_kind"):
    return wrapped(np.concatenate([arrays_only(a) for a in tup], axis, dtype=dtype, casting=casting))


def arrays_only(a):
    if not isinstance(a, ndarray):
        raise TypeError("Only cupy arrays can be concatenated")
    return a.host


@function
def copyto(dst, src, casting="same_kind", where=None):
    if isinstance(src, np.ndarray) and src.size != 1:
        raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
    source = src.host if isinstance(src, ndarray) else src
    np.copyto(dst.host, source, casting, **({} if where is None else {"where": opened(where)}))


@function
def broadcast_to(array, shape):
    return wrapped(np.broadcast_to(arrays_only(array), shape))


@function
def cumsum(a, axis=None, dtype=None, out=None):
    return wrapped(np.cumsum(a.host, axis, dtype))


@function
def count_nonzero(a, axis=None):
    return wrapped(np.count_nonzero(a.host, axis=axis))


@function
def may_share_memory(a, b, max_work=None):
    if max_work is not None:
        raise NotImplementedError("Only supported for `max_work` is `None`")
    return np.may_share_memory(arrays_only(a), arrays_only(b))


# The device ----------------------------------------------------------------------------------------------------------


class Kernel:
    def __init__(self, code, name):
        self.code, self.name = code, name
        static = launching.plans.STATIC_SHARED.get(family_of(code), 0)
        self.max_dynamic_shared_size_bytes = launching.SHARED_AT_FIRST - static

    ptr, kernel = 0, property(lambda self: self)  # of the current device

    def __call__(self, grid, block, args, shared_mem=0, stream=None, enable_cooperative_groups=False):
        (job,) = args
        if enable_cooperative_groups and math.prod(grid) > RESIDENT * emulated().limits.processors:
            raise RuntimeError("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in cooperative launch")
        assert type(job) is np.ndarray and job.size == 1, "CuPy passes an array of one element by value"
        assert shared_mem <= self.max_dynamic_shared_size_bytes, self.name
        launched.append(self.name)
        if launching_too:
            do(partial(compiled(self.code, self.name).launch, self.name, grid, block, shared_mem, (job.tobytes(),)))


def family_of(code):
    return next((family for family in launching.FAMILIES if launching.source(family) == code), None)


def compiled(code, name):
    """Among the kernels that the tests of this process share."""
    shared = emulated()
    return shared.emulators.get(name) or shared.compiled(family_of(code), name)


class RawModule:
    def __init__(self, *, code, options=(), name_expressions=None):
        assert options == launching.OPTIONS
        self.code = code

    def get_function(self, name):
        return Kernel(self.code, name)

    def compile(self, log_stream=None):
        pass


cuda = SimpleNamespace(
    driver=SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: RESIDENT),
    Device=Device,
    MemoryPool=MemoryPool,
    Stream=Stream,
    get_allocator=lambda: of_thread.allocator,
    get_current_stream=lambda: of_thread.stream,
    using_allocator=using_allocator,
    is_available=lambda: True,
    runtime=SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1),
)


def get_default_memory_pool():
    return default_pool


def forget():
    gpu.available.cache_clear()
    launching._device.cache_clear()
    launching.current_stream.cache_clear()


@pytest.fixture(name="cupy")
def fake_cupy(monkeypatch):
    """This module in the place of CuPy."""
    me = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "cupy", me)
    forget()
    yield me
    forget()
    BACKENDS.pop(ndarray, None)
