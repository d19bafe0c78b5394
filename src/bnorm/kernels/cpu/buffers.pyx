"""Memory of large results, which is used again when the results are freed.

The system clears every page of a new array, which takes as long as the kernel that fills it. So a large result is a
view of a buffer. When the result and all views of it are gone, the buffer is used for the next one.
Its data starts on a cache line, unlike that of NumPy's arrays, and as far into a page as the line of x does that it is
made from. To see whether a load must wait for a store a processor compares the last 12 bits of their addresses: when a
result lay a little further into its page than x, each load waited for the store before it, for up to twice the time.
"""

import operator
import os
import sys

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject, PyTypeObject

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject*)

cdef extern from "numpy/arrayobject.h":
    object PyArray_New(PyTypeObject*, int, const cnp.npy_intp*, int, const cnp.npy_intp*, void*, int, int, PyObject*)

cnp.import_array()

cdef enum:
    LEAST = 1 << 17     # bytes from which a result comes from here: from so many on malloc asks the system for pages
    LINE = 64           # bytes of a cache line
    PAGE = 4096         # bytes after which addresses look alike to a processor that compares loads and stores
    OLD = 256           # a buffer that has not been used for so many results is freed
    MANY = 512          # buffers at most, as each is looked at for every result

cdef list buffers = []
cdef size_t limit = 0   # bytes of all buffers together
cdef size_t total = 0
cdef long clock = 0     # results so far


@cython.final
@cython.internal
cdef class Buffer:
    cdef cnp.ndarray memory     # bytes
    cdef size_t size
    cdef long used              # when it was last used


cdef inline bint is_free(Buffer buffer):
    return Py_REFCNT(<PyObject*>buffer.memory) == 1     # a result holds it, and so does every view of a result


cdef void drop(bint all_free, size_t room):
    """Free unused buffers: old ones, and then the longest unused until there is room for that many bytes."""
    global total
    cdef Buffer buffer
    for buffer in sorted(buffers, key=lambda b: (<Buffer>b).used):
        if is_free(buffer) and (all_free or total + room > limit or clock - buffer.used > OLD):
            total -= buffer.size
            buffers.remove(buffer)


cdef cnp.ndarray memory_for(size_t size):
    """The bytes of an unused buffer that fits, or of a new one if the limit allows it, or None."""
    global total, clock
    cdef Buffer buffer, best = None
    cdef cnp.npy_intp length
    clock += 1
    for buffer in buffers:
        if size <= buffer.size <= size + size // 4 and is_free(buffer) and (best is None or buffer.used > best.used):
            best = buffer       # the last used is the most likely to be in the cache
    if best is None:
        drop(False, size)
        if total + size > limit or len(buffers) >= MANY:
            return None
        best = Buffer.__new__(Buffer)
        length = size + PAGE
        best.memory = cnp.PyArray_EMPTY(1, &length, cnp.NPY_UINT8, 0)
        best.size = size
        total += size
        buffers.append(best)
    best.used = clock
    return best.memory


cdef cnp.ndarray empty(int ndim, const cnp.npy_intp* shape, int type_num, const void* beside=NULL):
    """An array that is not initialized, C-contiguous. beside: the data that is going to be read while it is written."""
    cdef size_t size = 8 if type_num == cnp.NPY_DOUBLE else 4 if type_num in (cnp.NPY_FLOAT, cnp.NPY_INT32) else 2
    cdef int i
    for i in range(ndim):
        size *= shape[i]
    cdef cnp.ndarray memory = memory_for(size) if LEAST <= size <= limit else None
    if memory is None:
        return cnp.PyArray_EMPTY(ndim, <cnp.npy_intp*>shape, type_num, 0)
    cdef size_t address = <size_t>cnp.PyArray_DATA(memory)
    address += (<size_t>beside // LINE * LINE - address) % PAGE
    cdef cnp.ndarray a = PyArray_New(<PyTypeObject*>cnp.ndarray, ndim, shape, type_num, NULL, <void*>address, 0,
                                     cnp.NPY_ARRAY_CARRAY, NULL)
    cnp.set_array_base(a, memory)
    return a


def set_buffer_limit(n_bytes):
    """Set how much memory of freed large results is kept for the next ones. More than that is freed at once.

    The default is 1/16 of the machine's memory, or the value of the environment variable BNORM_BUFFER_LIMIT.

    Parameters
    ----------
    n_bytes : int
        The limit in bytes. With 0 nothing is kept.
    """
    global limit
    if isinstance(n_bytes, bool):
        raise TypeError("set_buffer_limit: n_bytes: expected an integer, got a bool")
    try:
        n = operator.index(n_bytes)
    except TypeError:
        raise TypeError(f"set_buffer_limit: n_bytes: expected an integer, got {type(n_bytes).__name__}") from None
    if not 0 <= n < 1 << 62:
        raise ValueError(f"set_buffer_limit: n_bytes: expected 0 or more, got {n}")
    if n and not getattr(sys, "_is_gil_enabled", lambda: True)():
        n = 0       # without the GIL a reference count does not tell whether a buffer is unused
    limit = n
    drop(n == 0, 0)


def get_buffer_limit():
    """The limit of the memory that is kept for large results, in bytes."""
    return limit


def kept_bytes():
    """The bytes of all buffers, used or unused."""
    return total


def _at_start():
    wanted = os.environ.get("BNORM_BUFFER_LIMIT", "")
    if wanted:
        try:
            return int(wanted)
        except ValueError:
            raise ImportError(f"BNORM_BUFFER_LIMIT: expected a number of bytes, got {wanted!r}") from None
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16
    except (AttributeError, OSError, ValueError):
        return 1 << 29


set_buffer_limit(_at_start())
