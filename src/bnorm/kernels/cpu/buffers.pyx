"""Memory of large results, handed out again once nobody holds it.

The system clears every page of a fresh array, which for tens of megabytes takes as long as the kernel that fills it. So
the memory of a large result belongs to a buffer, of which the result is a view; when the result and all views of it are
gone, the buffer serves the next. Its data starts on a cache line, which NumPy's own does not.
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
    LEAST = 1 << 20     # bytes from which a result comes from here
    LINE = 64           # bytes of a cache line
    OLD = 64            # results since a buffer last served, after which it is given back

cdef list buffers = []
cdef size_t limit = 0   # bytes of all buffers together
cdef size_t total = 0
cdef long clock = 0     # results so far


@cython.final
@cython.internal
cdef class Buffer:
    cdef cnp.ndarray memory     # bytes
    cdef size_t size
    cdef long used              # when it last served


cdef inline bint is_free(Buffer buffer):
    return Py_REFCNT(<PyObject*>buffer.memory) == 1     # a result holds it, and so does every view of a result


cdef void drop(bint all_free, size_t room):
    """Give back free buffers: old ones, and more, the longest unused first, until there is room for so many bytes."""
    global total
    cdef Buffer buffer
    for buffer in sorted(buffers, key=lambda b: (<Buffer>b).used):
        if is_free(buffer) and (all_free or total + room > limit or clock - buffer.used > OLD):
            total -= buffer.size
            buffers.remove(buffer)


cdef cnp.ndarray memory_for(size_t size):
    """Bytes that nobody holds, or None: a free buffer that fits, else a new one if the limit allows it."""
    global total, clock
    cdef Buffer buffer, best = None
    cdef cnp.npy_intp length
    clock += 1
    for buffer in buffers:
        if size <= buffer.size <= size + size // 4 and is_free(buffer) and (best is None or buffer.used > best.used):
            best = buffer       # the last to serve: the likeliest to be in the cache
    if best is None:
        drop(False, size)
        if total + size > limit:
            return None
        best = Buffer.__new__(Buffer)
        length = size + LINE
        best.memory = cnp.PyArray_EMPTY(1, &length, cnp.NPY_UINT8, 0)
        best.size = size
        total += size
        buffers.append(best)
    best.used = clock
    return best.memory


cdef cnp.ndarray empty(int ndim, const cnp.npy_intp* shape, int type_num):
    """An array that is not initialized, C-contiguous."""
    cdef size_t size = 8 if type_num == cnp.NPY_DOUBLE else 4 if type_num == cnp.NPY_FLOAT else 2
    cdef int i
    for i in range(ndim):
        size *= shape[i]
    cdef cnp.ndarray memory = memory_for(size) if LEAST <= size <= limit else None
    if memory is None:
        return cnp.PyArray_EMPTY(ndim, <cnp.npy_intp*>shape, type_num, 0)
    cdef size_t address = <size_t>cnp.PyArray_DATA(memory)
    address = (address + LINE - 1) // LINE * LINE
    cdef cnp.ndarray a = PyArray_New(<PyTypeObject*>cnp.ndarray, ndim, shape, type_num, NULL, <void*>address, 0,
                                     cnp.NPY_ARRAY_CARRAY, NULL)
    cnp.set_array_base(a, memory)
    return a


def set_buffer_limit(n_bytes):
    """Keep at most so many bytes of memory to be used again for large results; 0: none.

    What nobody holds is given back at once where it is more than that. At the start it is 1/16 of the machine's memory,
    or what the environment variable BNORM_BUFFER_LIMIT says.
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
        n = 0       # without the GIL a count of references does not tell that nobody holds a buffer
    limit = n
    drop(n == 0, 0)


def get_buffer_limit():
    """The bytes that may be kept to be used again for large results."""
    return limit


def kept_bytes():
    """The bytes of all buffers, held by results or free."""
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
