"""What a call on a device does around its launches, on arrays that have an address there and on kernels to be called.

CuPy's arrays are seen as any objects: nothing of CuPy or CUDA is needed to build or to import this.
"""

cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_Empty(int, cnp.npy_intp*, cnp.dtype, bint)


def places(index, tuple arrays not None):
    """The addresses of arrays on the device of this number; 0 where there is none."""
    cdef list found = []
    for array in arrays:
        if array is None:
            found.append(0)
            continue
        memory = array.data
        if memory.device_id != index:
            raise ValueError(f"expected arrays on device {index}, where x is, got one on device {memory.device_id}")
        found.append(memory.ptr)
    return found


cdef job_of(bytes call, bytes geometry, cnp.dtype dtype):
    """A job: an array of one element, which CuPy passes by value."""
    cdef cnp.npy_intp one = 1
    cdef Py_ssize_t size = len(call), more = len(geometry)
    Py_INCREF(dtype)                    # which PyArray_Empty takes
    cdef cnp.ndarray job = PyArray_Empty(1, &one, dtype, False)
    if cnp.PyArray_NBYTES(job) != size + more:
        raise ValueError(f"job: expected {cnp.PyArray_NBYTES(job)} bytes, got {size + more}")
    cdef char* to = <char*>cnp.PyArray_DATA(job)
    memcpy(to, <const char*>call, size)
    memcpy(to + size, <const char*>geometry, more)
    return job


def launch(list prepared not None, holder=None):
    """Launch what plans have prepared, one after the other. Then `holder`, a layer or what holds one forward of it, has
    no forward any more. Nothing of Python's own runs meanwhile, so no signal does."""
    cdef list launches
    cdef bytes call
    for launches, call in prepared:
        for kernel, grid, block, shared, geometry, dtype in launches:
            kernel(grid, block, (job_of(call, geometry, dtype),), shared)
    if holder is not None:
        holder._saved = None


cdef bint away(begin, end, kind, other) except -1:
    """Whether these bytes certainly do not belong to an array of this type; False means unknown."""
    if other is None:
        return True
    if type(other) is not kind or not other.flags.c_contiguous:
        return False
    at = other.data.ptr
    return at >= end or begin >= at + other.nbytes


def ready(out, x, layout, tuple given not None):
    """As that of the entries: `out`, if a kernel may write to it as it is, or None. Kernels on a device see an address:
    the shape stays that of the layout."""
    kind = type(x)
    if type(out) is not kind or layout.order is not None or out.shape != layout.shape:
        return None
    dtype = out.dtype
    if dtype != x.dtype or dtype.kind in "bui" or not out.flags.c_contiguous:
        return None
    begin = out.data.ptr
    end = begin + out.nbytes
    for arrays in given:
        if type(arrays) is not dict:
            return None
        for array in (<dict>arrays).values():
            if not away(begin, end, kind, array):
                return None
    return out


def separate(tuple totals not None, size, dtype, tuple others not None):
    """Whether arrays on a device have this size and dtype, in one piece, and certainly share no memory with others."""
    for total in totals:
        if total is None:
            continue
        if total.size != size or total.dtype != dtype or not total.flags.c_contiguous:
            return False
        begin = total.data.ptr
        end = begin + total.nbytes
        for other in others:
            if not away(begin, end, type(total), other):
                return False
    return True


cdef class Part:
    """Numbers of an array of float64 that only kernels read, such as statistics between a forward and its backward. An
    array of their own would take CuPy as long as the whole. It is its own `data`: an address that keeps the memory."""

    cdef readonly object whole, ptr, device_id
    cdef readonly Py_ssize_t size

    def __init__(self, whole, Py_ssize_t begin, Py_ssize_t size):
        memory = whole.data
        self.whole, self.ptr, self.device_id, self.size = whole, memory.ptr + 8 * begin, memory.device_id, size

    @property
    def data(self):
        return self


def parts_of(whole, tuple sizes not None):
    """Parts of an array, one behind the other, of so many numbers; None where a size is None."""
    cdef list found = []
    cdef Py_ssize_t begin = 0
    for size in sizes:
        found.append(None if size is None else Part(whole, begin, size))
        begin += 0 if size is None else size
    return found
