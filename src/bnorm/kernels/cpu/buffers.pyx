"""Memory of large results, and of what calls need meanwhile, which is used again when it is free.

The system clears every page of a new array, which takes as long as the kernel that fills it. So a large result is a
view of a buffer. When the result and all views of it are gone, the buffer is used for the next one.
The data of such a result starts at the offset in its page that x has, or the first cache line of x. To see whether a
load must wait for a store, a processor compares only the last 12 bits of their addresses: when a result began a little
further into its page than x, each load waited for the store before it, and the kernel took up to twice the time.
"""

import operator
import os

from . import container

cimport cython
cimport numpy as cnp
from cpython.object cimport PyTypeObject
from libc.stdlib cimport free, malloc

cdef extern from *:
    """
    /* With the GIL, nothing in here lets another thread run. In free-threaded Python, a fork stops the other threads
     * where they hold no lock, so a child never inherits a locked mutex. */
    #ifdef Py_GIL_DISABLED
    static PyMutex bn_mutex;
    #define bn_lock() PyMutex_Lock(&bn_mutex)
    #define bn_unlock() PyMutex_Unlock(&bn_mutex)
    #else
    #define bn_lock() ((void)0)
    #define bn_unlock() ((void)0)
    #endif
    """
    void lock "bn_lock"()
    void unlock "bn_unlock"()

cdef extern from "numpy/arrayobject.h":
    object PyArray_New(PyTypeObject*, int, const cnp.npy_intp*, int, const cnp.npy_intp*, void*, int, int, void*)

cnp.import_array()

cdef enum:
    LEAST = 1 << 17     # a result of this many bytes or more gets a buffer: from this size malloc asks for new pages
    LINE = 64           # bytes of a cache line
    PAGE = 4096         # bytes after which the addresses that a processor compares repeat
    OLD = 256           # a buffer is freed if this many results were made since its last use
    MANY = 512          # the most buffers, as every result may search all of them

# All of these are read and changed under the lock, where no Python code may run.
cdef list buffers = []  # in the order of their last use
cdef size_t limit = 0   # bytes of all buffers together
cdef size_t total = 0
cdef long clock = 0     # number of results so far


@cython.final
@cython.internal
@cython.no_gc
cdef class Buffer:
    cdef cnp.ndarray memory     # bytes
    cdef size_t size
    cdef long used              # the clock at its last use
    cdef bint lent


@cython.final
@cython.internal
@cython.no_gc
cdef class Loan:
    """The base of a result. Every view of the result holds the result: when all are gone, the buffer is free again."""

    cdef Buffer buffer

    def __dealloc__(self):
        if self.buffer is not None:
            lock()
            self.buffer.lent = False
            unlock()


cdef void drop(bint all_free, size_t room, list gone):
    """Remove unused buffers from the list: the old ones, and the longest unused until `room` more bytes are allowed.

    all_free: remove all that are unused. gone: gets the removed buffers; the caller frees it without holding the lock.
    """
    global total
    cdef Py_ssize_t i = 0
    cdef Buffer buffer
    while i < len(buffers):
        buffer = buffers[i]
        if buffer.lent or not (all_free or total + room > limit or clock - buffer.used > OLD):
            i += 1
            continue
        gone.append(buffer)
        del buffers[i]
        total -= buffer.size


cdef Buffer unused(size_t size):
    """Return an unused buffer of a fitting size, moved to the end of the list, or None."""
    cdef Buffer buffer
    cdef Py_ssize_t i
    for i in range(len(buffers) - 1, -1, -1):   # the buffer used last is the most likely to be in a cache
        buffer = buffers[i]
        if not buffer.lent and size <= buffer.size <= size + size // 4:
            del buffers[i]
            buffers.append(buffer)
            return buffer
    return None


cdef Buffer another(size_t size):
    """Return a new buffer, or None if it would exceed the limit."""
    global total
    cdef cnp.npy_intp length = size + PAGE
    cdef Buffer buffer
    if total + size > limit or len(buffers) >= MANY:
        return None
    buffer = Buffer.__new__(Buffer)
    buffer.memory = cnp.PyArray_EMPTY(1, &length, cnp.NPY_UINT8, 0)
    buffer.size = size
    buffers.append(buffer)
    total += size
    return buffer


cdef Loan lend(size_t size):
    """Return a loan of a buffer of at least `size` bytes, or None."""
    global clock
    cdef Loan loan = Loan.__new__(Loan)
    cdef list gone = []
    cdef Buffer buffer
    lock()
    try:
        clock += 1
        buffer = unused(size)
        if buffer is None:
            drop(False, size, gone)
            try:
                buffer = another(size)
            except MemoryError:     # the caller asks again, when what is kept is free
                drop(True, 0, gone)
        if buffer is not None:
            buffer.lent = True
            buffer.used = clock
            loan.buffer = buffer
    finally:
        unlock()
    return None if buffer is None else loan


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Memory:
    """Memory that a call needs until it is over. A large one is a buffer."""

    def __dealloc__(self):
        free(self.owned)


cdef Memory scratch(size_t size):
    """Return uninitialized memory of `size` bytes."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef Loan loan = lend(size) if LEAST <= size <= limit else None
    if loan is None:
        memory.owned = malloc(size + LINE)
        memory.at = <char*>memory.owned
    else:
        memory.loan = loan
        memory.at = <char*>cnp.PyArray_DATA(loan.buffer.memory)
    if memory.at == NULL:
        raise MemoryError(f"bnorm: no memory for {size} bytes of partial results")
    memory.at += -<size_t>memory.at % LINE
    return memory


cdef cnp.ndarray empty(int ndim, const cnp.npy_intp* shape, int type_num, const void* beside=NULL,
                       bint on_line=True):
    """Return an uninitialized C-contiguous array. beside: the data that will be read while the array is written. A
    large array begins at the offset of that data in its page; on_line: at that of its first cache line."""
    cdef size_t size = 8 if type_num == cnp.NPY_DOUBLE else 4 if type_num in (cnp.NPY_FLOAT, cnp.NPY_INT32) else 2
    cdef int i
    for i in range(ndim):
        size *= shape[i]
    cdef Loan loan = lend(size) if LEAST <= size <= limit else None
    if loan is None:
        return cnp.PyArray_EMPTY(ndim, <cnp.npy_intp*>shape, type_num, 0)
    cdef size_t address = <size_t>cnp.PyArray_DATA(loan.buffer.memory)
    cdef size_t unit = LINE if on_line else 1
    address += (<size_t>beside // unit * unit - address) % PAGE
    cdef cnp.ndarray a = PyArray_New(<PyTypeObject*>cnp.ndarray, ndim, shape, type_num, NULL, <void*>address, 0,
                                     cnp.NPY_ARRAY_CARRAY, NULL)
    cnp.set_array_base(a, loan)
    return a


def set_buffer_limit(n_bytes):
    """Set how much memory of freed large results is kept for later ones. Any more is freed at once.

    The default is 1/16 of the memory of the machine, or of the container, or the value of the environment variable
    BNORM_BUFFER_LIMIT.

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
    cdef list gone = []
    lock()
    try:
        limit = n
        drop(n == 0, 0, gone)
    finally:
        unlock()


def get_buffer_limit():
    """Return the limit of the memory that is kept for large results, in bytes."""
    return limit


def kept_bytes():
    """Return the number of bytes of all buffers, used or unused."""
    return total


def _at_start():
    wanted = os.environ.get("BNORM_BUFFER_LIMIT", "")
    if wanted:
        if not wanted.isdecimal() or int(wanted) >= 1 << 62:
            raise ImportError(f"BNORM_BUFFER_LIMIT: expected a number of bytes, got {wanted!r}")
        return int(wanted)
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        there = 1 << 33
    allowed = container.memory()
    return (there if allowed is None else min(there, allowed)) // 16


set_buffer_limit(_at_start())
