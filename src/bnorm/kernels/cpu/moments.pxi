# Moments: of the channels of an array, or of separate vectors, optionally with their extremes.
#
# Uses data, matrix, partial_size, seen_as, view (arrays), expect_block (guards), is_far, is_touched, run,
# share_weights, sizes (plan), expect_weights, weigh (weights).
# Gives entries only.

cdef int begin_moments(Job* job, cnp.ndarray x, cnp.ndarray weight, bint skipna) except -1:
    """Prepare a job whose view of x is set for `find_moments`."""
    expect_weights(weight, job.outer * job.inner)
    weigh(job, weight)
    if weight is not None:
        job.far = job.far or is_far(job, cnp.PyArray_NBYTES(x) + cnp.PyArray_NBYTES(weight), sizes.far)
        share_weights(job, job.channels)
    elif not job.wide:      # float32 is summed in float64, which takes longer
        job.far = cnp.PyArray_NBYTES(x) >= sizes.far
    job.skipna = skipna
    job.exact = True
    return 0


cdef void find_moments(Job* job, void* memory, double* n, Py_ssize_t step) noexcept nogil:
    """Write the moments of channel c to n[c], n[step + c], and so on. memory: of partial_size bytes."""
    cdef Py_ssize_t C = job.channels, c
    cdef double* mean = n + step
    cdef double* m2 = mean + step
    cdef double* low = m2 + step
    job.partial = <double*>memory
    run(loops.reduce, job, False)
    loops.merge_moments(job, 0, C)
    for c in range(C):
        n[c] = job.partial[c]
        mean[c] = bn_plain(job.partial[C + c] + job.partial[3 * C + c])
        m2[c] = bn_plain(bn_squares(mean[c], job.partial[2 * C + c]))
        low[c] = bn_plain((job.partial[C + c] - mean[c]) + job.partial[3 * C + c])
        job.unsound |= not (n[c] < INFINITY)
    if job.unsound:
        for c in range(C):
            n[c] = INFINITY


def moments(cnp.ndarray x, cnp.ndarray weight=None, bint skipna=False):
    """Return parts, (4, C): count, mean, m2 = sum w (x - mean)^2, and low, the rounding error of the float64 mean.

    All sums are in float64, even those of float32 values, which `forward` sums faster and less exactly. If any weight
    is negative or not finite, or the sum of the weights is not finite, every count is infinite.
    """
    cdef Job job
    view(&job, x)
    job.alone = is_touched(&job, cnp.PyArray_NBYTES(x))
    begin_moments(&job, x, weight, skipna)
    cdef cnp.ndarray parts = matrix(4, job.channels)
    cdef double* found = <double*>data(parts)
    cdef Memory memory = scratch(partial_size(&job))
    with nogil:
        find_moments(&job, memory.at, found, job.channels)
    return parts


cdef struct Column:
    Job moments
    bn_extremes_job extremes


def column_moments(list columns not None, cnp.ndarray weight=None, bint minmax=False):
    """Return parts, (4, C), of vectors of one length, and with minmax their extremes, (2, C), or else None.

    NaN does not count. weight: of each row, for all vectors. The results have the bits of `moments` and `extremes`. The
    GIL is released once for all vectors, so no vector waits for other threads, and each is in the cache for both.
    """
    cdef tuple kept = tuple(columns)    # another thread may change the list meanwhile
    cdef Py_ssize_t C = len(kept), rows = 0, c
    cdef cnp.ndarray x, parts = matrix(4, C), extremes = matrix(2, C) if minmax else None
    cdef double* found = <double*>data(parts)
    cdef double* ends = <double*>data(extremes)
    cdef Memory kept_jobs = scratch(C * sizeof(Column)), memory
    cdef Column* jobs = <Column*>kept_jobs.at
    cdef size_t size = 0
    for c in range(C):
        x = kept[c]
        expect_block(x, 1, 1)
        if c == 0:
            rows = cnp.PyArray_SIZE(x)
        if cnp.PyArray_SIZE(x) != rows or not cnp.PyArray_ISALIGNED(x):
            raise ValueError(f"columns: expected {rows} values each, aligned in memory, got {x.size}, or not so")
        seen_as(&jobs[c].moments, x, 1, 1, rows, True)
        begin_moments(&jobs[c].moments, x, weight, True)
        size = max(size, partial_size(&jobs[c].moments))
        if minmax:
            begin_extremes(&jobs[c].extremes, x, 1, 1, rows, weight, True)
            size = max(size, space_of_extremes(&jobs[c].extremes))
    memory = scratch(size)
    with nogil:
        for c in range(C):
            if minmax:
                find_extremes(&jobs[c].extremes, memory.at, ends + c, C)
            find_moments(&jobs[c].moments, memory.at, found + c, C)
    return parts, extremes
