# Copies from one memory order into another, on all threads.
#
# Uses nothing of its siblings.
# Gives entries only.

cdef extern from "copying.h" nogil:
    enum:
        BN_MOST_AXES
    ctypedef struct bn_axis:
        Py_ssize_t n, x, y
    ctypedef struct bn_copy:
        const char* x
        char* y
        Py_ssize_t itemsize, units
        int axes
    void bn_add_axis(bn_copy*, bn_axis)
    void bn_plan_copy(bn_copy*)
    void bn_copy_units(const bn_copy*, Py_ssize_t, Py_ssize_t)


cdef struct CopyRun:
    bn_copy* copy
    int threads


cdef void copy_share(void* run, Py_ssize_t i) noexcept nogil:
    """Copy the units of the i-th thread."""
    cdef CopyRun* r = <CopyRun*>run
    bn_copy_units(r.copy, r.copy.units * i // r.threads, r.copy.units * (i + 1) // r.threads)


cdef inline bint are_numbers(cnp.ndarray a) except -1:
    """Whether these are numbers in native byte order, of a size that copying.h knows."""
    cdef int kind = cnp.PyArray_TYPE(a)
    if cnp.PyArray_NDIM(a) > BN_MOST_AXES or cnp.PyArray_ITEMSIZE(a) > 8 or not cnp.PyArray_ISNOTSWAPPED(a):
        return False
    return cnp.PyTypeNum_ISNUMBER(kind) or cnp.PyTypeNum_ISBOOL(kind) or is_bfloat(a)


cdef void copy_all(cnp.ndarray y, cnp.ndarray x) noexcept:
    """Copy numbers into another array of the same shape and type."""
    cdef bn_copy c
    cdef bn_axis axis
    cdef CopyRun run
    cdef int i
    if cnp.PyArray_SIZE(x) == 0:
        return
    c.x = <const char*>cnp.PyArray_DATA(x)
    c.y = <char*>cnp.PyArray_DATA(y)
    c.itemsize = cnp.PyArray_ITEMSIZE(x)
    c.axes = 0
    for i in range(cnp.PyArray_NDIM(x)):
        axis.n = cnp.PyArray_DIM(x, i)
        axis.x = cnp.PyArray_STRIDE(x, i)
        axis.y = cnp.PyArray_STRIDE(y, i)
        if axis.n > 1:
            bn_add_axis(&c, axis)
    bn_plan_copy(&c)
    run.copy = &c
    run.threads = threads_for(cnp.PyArray_SIZE(x), c.units)
    with nogil:
        share(copy_share, &run, run.threads)


def contiguous(cnp.ndarray a not None):
    """Return a C-contiguous copy in native byte order."""
    cdef cnp.ndarray to
    if not are_numbers(a):
        return a.astype(a.dtype.newbyteorder("="), order="C")
    to = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(a), cnp.PyArray_DIMS(a), cnp.PyArray_TYPE(a), 0)
    copy_all(to, a)
    return to


def copy_into(cnp.ndarray to not None, cnp.ndarray a not None):
    """Copy `a` into `to`, which does not overlap it and has its shape."""
    cdef int i
    cdef bint alike = cnp.PyArray_TYPE(to) == cnp.PyArray_TYPE(a) and cnp.PyArray_NDIM(to) == cnp.PyArray_NDIM(a)
    for i in range(cnp.PyArray_NDIM(a) if alike else 0):
        alike = alike and cnp.PyArray_DIM(to, i) == cnp.PyArray_DIM(a, i)
    if alike and are_numbers(a) and are_numbers(to) and cnp.PyArray_ISWRITEABLE(to):
        copy_all(to, a)
    else:
        to[...] = a
