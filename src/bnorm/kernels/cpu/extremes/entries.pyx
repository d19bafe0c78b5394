"""Extremes on the CPU: an array in, the least and the greatest value of each channel out."""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from cython.parallel cimport prange
from libc.math cimport INFINITY, NAN
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from bnorm.kernels.cpu.extremes.jobs cimport BN_FAR, bn_extremes_job, extremes_task_t
from bnorm.kernels.cpu.dtypes cimport kind_of
from bnorm.kernels.cpu.threads cimport threads_for

cnp.import_array()

cdef enum:
    PER_THREAD = 2      # tasks per thread, so that others take tasks of a thread whose core is busy

cdef extremes_task_t task = NULL


def use(capsule):
    """Use the loops of this SIMD build from now on."""
    global task
    task = <extremes_task_t>PyCapsule_GetPointer(capsule, "bnorm.extremes")


cdef int begin(bn_extremes_job* job, cnp.ndarray x, Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner,
               cnp.ndarray weight, bint skipna) except -1:
    cdef Py_ssize_t all_ = outer * inner if channels == 1 and weight is None else outer
    memset(job, 0, sizeof(bn_extremes_job))
    job.kind = kind_of(x)
    job.outer = outer
    job.channels = channels
    job.inner = inner
    job.skipna = skipna
    job.far = cnp.PyArray_NBYTES(x) >= BN_FAR
    job.x = cnp.PyArray_DATA(x)
    if weight is not None:
        if not (cnp.PyArray_TYPE(weight) == cnp.NPY_DOUBLE and cnp.PyArray_ISCARRAY_RO(weight)
                and cnp.PyArray_SIZE(weight) == outer * inner):
            raise ValueError(f"weight: expected {outer * inner} numbers of float64, contiguous and in native "
                             f"byte order, got shape {(<object>weight).shape} of {weight.dtype.str}")
        job.weight = <const double*>cnp.PyArray_DATA(weight)
    job.threads = threads_for(cnp.PyArray_SIZE(x), all_)
    job.pieces = 1 if job.threads == 1 else min(all_, <Py_ssize_t>job.threads * PER_THREAD)
    job.piece = (all_ + job.pieces - 1) // job.pieces
    return 0


cdef size_t space(const bn_extremes_job* job) noexcept nogil:
    return <size_t>(2 * job.pieces * job.channels) * sizeof(double)


cdef void find(bn_extremes_job* job, void* memory, double* found, Py_ssize_t step) noexcept nogil:
    cdef double low, high
    cdef Py_ssize_t t, c
    job.least = <double*>memory
    job.greatest = job.least + job.pieces * job.channels
    if job.threads == 1:
        for t in range(job.pieces):
            task(job, t)
    else:
        for t in prange(job.pieces, schedule="dynamic", chunksize=1, num_threads=job.threads):
            task(job, t)
    for c in range(job.channels):
        low = INFINITY
        high = -INFINITY
        for t in range(job.pieces):
            if not job.least[t * job.channels + c] >= low:      # true for NaN, which then stays
                low = job.least[t * job.channels + c]
            if not job.greatest[t * job.channels + c] <= high:
                high = job.greatest[t * job.channels + c]
            if low != low:
                break
        if not low <= high:
            low = high = NAN
        found[c] = low + 0.0
        found[step + c] = high + 0.0


def extremes(cnp.ndarray x not None, cnp.ndarray weight=None, bint skipna=False):
    """Return the least and the greatest value of each channel, float64 (2, C).

    A value of weight 0, even NaN, does not count. Any other NaN does not count if skipna is set, and otherwise makes
    both extremes NaN. They are also NaN if no value counts.
    """
    cdef bn_extremes_job job
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    cdef cnp.npy_intp[2] size
    cdef cnp.ndarray found
    cdef void* memory
    if cnp.PyArray_NDIM(x) < 2 or not cnp.PyArray_ISCARRAY_RO(x):
        raise ValueError(f"x: expected at least 2 axes, in contiguous memory of the machine's byte order, got shape "
                         f"{(<object>x).shape} of {x.dtype.str}")
    begin(&job, x, shape[0], shape[1], cnp.PyArray_MultiplyList(shape + 2, cnp.PyArray_NDIM(x) - 2), weight, skipna)
    size = [2, job.channels]
    found = cnp.PyArray_EMPTY(2, size, cnp.NPY_DOUBLE, 0)
    memory = malloc(space(&job) + 1)
    if memory == NULL:
        raise MemoryError("moments: no memory for extremes")
    with nogil:
        find(&job, memory, <double*>cnp.PyArray_DATA(found), job.channels)
    free(memory)
    return found
