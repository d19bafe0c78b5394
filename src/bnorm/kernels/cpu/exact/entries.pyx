"""Exact sums on the CPU: arrays in, integers out.

The integers of C channels are a number `first` and an int64 array (n, C) of limbs: limb i counts multiples of
2^(32 (first + i)). All limbs but the last are from 0 to 2^32 - 1, and the last, which has the sign, from -2^31 to
2^31 - 1. There are as few limbs as possible: neither the first nor the last can be left out for all channels. So equal
integers have equal arrays. `first` is 0 if there are no limbs.
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from cython.parallel cimport prange
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from bnorm.kernels.cpu.exact.jobs cimport bn_exact_job, bn_total, exact_task_t
from bnorm.kernels.cpu.dtypes cimport kind_of
from bnorm.kernels.cpu.kinds cimport BN_BFLOAT, BN_FLOAT32, BN_FLOAT64, BN_HALF
from bnorm.kernels.cpu.threads cimport threads_for

cdef extern from "plan.h" nogil:
    void bn_exact_plan(bn_exact_job*, Py_ssize_t)
    Py_ssize_t bn_most_channels(bn_exact_job*)
    void bn_set_channels(bn_exact_job*, Py_ssize_t)
    void bn_carry(int64_t*, Py_ssize_t, Py_ssize_t)
    Py_ssize_t bn_trim(int64_t*, Py_ssize_t, Py_ssize_t, Py_ssize_t*)
    Py_ssize_t bn_used(bn_exact_job*, int, Py_ssize_t*)
    void bn_gather(bn_exact_job*, int, Py_ssize_t, Py_ssize_t, int64_t*)

cdef extern from "rounding.h" nogil:
    ctypedef struct bn_rounding:
        Py_ssize_t channels
        Py_ssize_t[2] size, first
        const int64_t* counts
        const int64_t** limbs     # an array of two
        bint possible
        void* memory
    bint bn_begin_rounding(bn_rounding*)
    void bn_channel(bn_rounding*, Py_ssize_t)
    void bn_rounded_parts(bn_rounding*, double*)
    double bn_rounded_variance(bn_rounding*, double, bint)

cnp.import_array()

cdef enum:
    PER_THREAD = 4      # tasks per thread, so that others take tasks of a thread whose core is busy; but two tasks
    FEW = 1 << 22       # if there are fewer values than this, as every task has first and last steps


cdef exact_task_t task = NULL


def use(capsule):
    """Use the loops of this SIMD build from now on."""
    global task
    task = <exact_task_t>PyCapsule_GetPointer(capsule, "bnorm.exact")


cdef void limits(bn_total* total, int kind) noexcept:
    """Set where the limbs of both sums begin, and how many limbs can hold the sums of 2^63 values."""
    total.low[0] = total.low[1] = 0
    total.size[0] = 5
    total.size[1] = 8
    if kind == BN_FLOAT64:
        total.low[0] = -34
        total.low[1] = -68
        total.size[0] = 69
        total.size[1] = 135
    elif kind == BN_FLOAT32 or kind == BN_HALF or kind == BN_BFLOAT:
        total.low[0] = -5
        total.low[1] = -10
        total.size[0] = 12
        total.size[1] = 21


cdef tuple trimmed(cnp.ndarray limbs, Py_ssize_t first):
    """Carry limbs; the last has space for the carry. Return (first, limbs) without limbs that are not needed."""
    cdef Py_ssize_t n = cnp.PyArray_DIM(limbs, 0), C = cnp.PyArray_DIM(limbs, 1), begin = 0
    cdef int64_t* data = <int64_t*>cnp.PyArray_DATA(limbs)
    if n and C:
        bn_carry(data, n, C)
        n = bn_trim(data, n, C, &begin)
    else:
        n = 0
    return (first + begin if n else 0), limbs[begin:begin + n]


cdef cnp.ndarray zeros(Py_ssize_t n, Py_ssize_t C):
    cdef cnp.npy_intp[2] shape = [n, C]
    return cnp.PyArray_ZEROS(2, shape, cnp.NPY_INT64, 0)


cdef tuple collected(bn_exact_job* job, int which):
    """Return (first, limbs) of the sums (which = 0) or of the sums of squares (1) of all tasks."""
    cdef Py_ssize_t first = 0, n = bn_used(job, which, &first)
    cdef cnp.ndarray limbs = zeros(n + 1 if n else 0, job.channels)
    bn_gather(job, which, first, n, <int64_t*>cnp.PyArray_DATA(limbs))
    return trimmed(limbs, first + job.totals[0].low[which])


cdef cnp.ndarray odd_values(bn_exact_job* job):
    """Return how many values are NaN, infinity and minus infinity, (3, C), or None if all are finite."""
    cdef Py_ssize_t k, i, c
    cdef cnp.ndarray odd = None
    cdef bn_total* total
    for k in range(job.pieces * job.groups):
        total = job.totals + k
        if total.any_odd:
            if odd is None:
                odd = zeros(3, job.channels)
            for i in range(3):
                for c in range(total.channels):
                    (<int64_t*>cnp.PyArray_DATA(odd))[i * job.channels + total.begin + c] += \
                        total.odd[i * total.channels + c]
    return odd


def exact_sums(cnp.ndarray x not None, cnp.ndarray mask=None):
    """Return (odd, first, limbs, first, limbs): counts (3, C) of NaN, infinity and minus infinity, or None; the sum of
    all other values per channel; the sum of their squares.

    x: (outer, C, ...), contiguous. mask: bools (outer, inner); a value does not count where it is False.
    """
    cdef bn_exact_job job
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    cdef Py_ssize_t t, tasks, values = cnp.PyArray_SIZE(x)
    cdef int threads
    cdef char* memory
    cdef size_t row
    memset(&job, 0, sizeof(job))
    job.outer = shape[0]
    job.channels = shape[1]
    job.inner = cnp.PyArray_MultiplyList(shape + 2, cnp.PyArray_NDIM(x) - 2)
    job.kind = kind_of(x)
    job.x = cnp.PyArray_DATA(x)
    job.mask = <unsigned char*>(NULL if mask is None else cnp.PyArray_DATA(mask))
    if values == 0:
        return None, 0, zeros(0, job.channels), 0, zeros(0, job.channels)
    threads = threads_for(values, values)
    bn_exact_plan(&job, 1 if threads == 1 else threads * (2 if values < FEW else PER_THREAD))
    tasks = job.pieces * job.groups
    job.totals = <bn_total*>calloc(tasks, sizeof(bn_total))
    if job.totals == NULL:
        raise MemoryError("moments: no memory for exact sums")
    try:
        limits(&job.totals[0], job.kind)
        row = <size_t>bn_most_channels(&job) * sizeof(int64_t)
        row *= job.totals[0].size[0] + job.totals[0].size[1] + 3
        memory = <char*>malloc(row * tasks)
        if memory == NULL:
            raise MemoryError(f"moments: no memory for {row * tasks} bytes of exact sums")
        try:
            for t in range(tasks):
                limits(&job.totals[t], job.kind)
                bn_set_channels(&job, t)
                job.totals[t].odd = <int64_t*>(memory + t * row)
                job.totals[t].limbs = job.totals[t].odd + 3 * job.totals[t].channels
            with nogil:
                if threads == 1:
                    for t in range(tasks):
                        task(&job, t)
                else:
                    for t in prange(tasks, schedule="dynamic", chunksize=1, num_threads=threads):
                        task(&job, t)
            if job.failed:
                raise MemoryError("moments: no memory for exact sums")
            return (odd_values(&job), *collected(&job, 0), *collected(&job, 1))
        finally:
            free(memory)
    finally:
        free(job.totals)


def combined(items not None, list factors not None):
    """Return (first, limbs), the sum of integers (first, limbs) each times a factor below 2^31 in magnitude."""
    cdef Py_ssize_t first = 0, end = 0, at, n, C = 0, i, k
    cdef int64_t factor
    cdef int64_t* to
    cdef int64_t* a
    cdef cnp.ndarray limbs, sums
    cdef bint any_limbs = False
    for at, limbs in items:
        C = cnp.PyArray_DIM(limbs, 1)
        n = cnp.PyArray_DIM(limbs, 0)
        if n:
            first = min(first, at) if any_limbs else at
            end = max(end, at + n) if any_limbs else at + n
            any_limbs = True
    sums = zeros(end - first + 2 if any_limbs else 0, C)
    to = <int64_t*>cnp.PyArray_DATA(sums)
    for k in range(len(items)):
        at, limbs = items[k]
        factor = factors[k]
        a = <int64_t*>cnp.PyArray_DATA(limbs)
        n = cnp.PyArray_DIM(limbs, 0)
        for i in range(n * C):
            to[(at - first) * C + i] += factor * a[i]
        if n and (factor > 1 or factor < -1 or k & 0xFFFF == 0xFFFF):
            bn_carry(to, end - first + 2, C)
    return trimmed(sums, first)


cdef int expect(cnp.ndarray a, Py_ssize_t rows, Py_ssize_t channels) except -1:
    """A contiguous int64 array of so many rows, any number of them if that is negative, and channels."""
    if a is None or cnp.PyArray_NDIM(a) != 2 or cnp.PyArray_TYPE(a) != cnp.NPY_INT64 or not cnp.PyArray_ISCARRAY_RO(a) \
            or (rows >= 0 and cnp.PyArray_DIM(a, 0) != rows) or cnp.PyArray_DIM(a, 1) != channels:
        got = "None" if a is None else f"{a.dtype} {(<object>a).shape}"
        raise ValueError(f"moments: expected contiguous int64 of {channels} channels, got {got}")
    return 0


cdef int begin(bn_rounding* r, cnp.ndarray counts, tuple sums) except -1:
    """Read exact moments: counts (4, C) and both sums, each as (first, limbs)."""
    cdef Py_ssize_t i
    cdef cnp.ndarray limbs
    memset(r, 0, sizeof(bn_rounding))
    r.channels = counts.shape[1] if cnp.PyArray_NDIM(counts) == 2 else 0
    expect(counts, 4, r.channels)
    r.counts = <const int64_t*>cnp.PyArray_DATA(counts)
    for i in range(2):
        r.first[i], limbs = sums[i]
        expect(limbs, -1, r.channels)
        r.size[i] = cnp.PyArray_DIM(limbs, 0)
        r.limbs[i] = <const int64_t*>cnp.PyArray_DATA(limbs)
    if not bn_begin_rounding(r):
        raise MemoryError("moments: no memory for integers")
    return 0


def rounded(cnp.ndarray counts not None, tuple sums not None):
    """Return count, mean, m2 and low (4, C) of exact moments, each rounded once."""
    cdef bn_rounding r
    cdef Py_ssize_t c
    begin(&r, counts, sums)
    cdef cnp.npy_intp[2] shape = [4, r.channels]
    cdef double* parts
    try:
        result = cnp.PyArray_EMPTY(2, shape, cnp.NPY_DOUBLE, 0)
        parts = <double*>cnp.PyArray_DATA(<cnp.ndarray>result)
        with nogil:
            for c in range(r.channels):
                bn_channel(&r, c)
                bn_rounded_parts(&r, parts + c)
    finally:
        free(r.memory)
    return result


def variances(cnp.ndarray counts not None, tuple sums not None, double ddof, bint root):
    """Return the variance (C,), m2 / (count - ddof), rounded once; or its root, to within one last place."""
    cdef bn_rounding r
    cdef Py_ssize_t c
    begin(&r, counts, sums)
    cdef cnp.npy_intp size = r.channels
    cdef double* values
    try:
        result = cnp.PyArray_EMPTY(1, &size, cnp.NPY_DOUBLE, 0)
        values = <double*>cnp.PyArray_DATA(<cnp.ndarray>result)
        with nogil:
            for c in range(r.channels):
                bn_channel(&r, c)
                values[c] = bn_rounded_variance(&r, ddof, root)
    finally:
        free(r.memory)
    return result


def impossible(cnp.ndarray counts not None, tuple sums not None):
    """Return the first channel whose integers cannot be those of any values, or -1."""
    cdef bn_rounding r
    cdef Py_ssize_t c, found = -1
    begin(&r, counts, sums)
    with nogil:
        for c in range(r.channels):
            bn_channel(&r, c)
            if not r.possible:
                found = c
                break
    free(r.memory)
    return found
