# Running statistics: a batch updates them and is then normalized by them, in one call.
#
# Uses MOST_AXES, data, folded, partial_size, read_activation, result, seen_as, target, vector_size (arrays), expect,
# expect_block, need (guards), rounded_up, run, run_map (plan), counted, refuse, take, written (statistics), weigh
# (weights).
# Gives entries only.

ctypedef fused single_or_double:
    float
    double

cdef enum:
    CLIPPED = 16384     # values that one task clips


def online(cnp.ndarray x not None, rule not None, cnp.ndarray skipped not None, double eps, double clip=INFINITY,
           bint update=True, bint maps=True, cnp.ndarray weight=None, bint whole=False):
    """Return z = (x - mean) / std by running statistics, which x updates first; None without `maps`.

    x: rows of all channels, in any shape. skipped: int64 (C,); the number of values of each channel that are left out,
    as they are not finite, is added to it. weight: of each row, if rows fade one by one. whole: all rows fade as one.
    FloatingPointError if a value would be left out and the rule says "raise"; nothing has changed then.
    """
    cdef Job job
    cdef Target to
    cdef Py_ssize_t C = cnp.PyArray_SIZE(skipped), rows = cnp.PyArray_SIZE(x) // max(<Py_ssize_t>1, C), c
    cdef cnp.ndarray z = None, finite = None
    cdef cnp.int64_t* left
    cdef cnp.int64_t* missing
    expect_block(x, 0, MOST_AXES)
    need("skipped", skipped, cnp.NPY_INT64, C)
    expect("weight", weight, cnp.NPY_DOUBLE, rows)
    if rows * C != cnp.PyArray_SIZE(x):
        raise ValueError(f"x: expected rows of {C} numbers, got shape {(<object>x).shape}")
    take(&to, rule, C)
    left = <cnp.int64_t*>written(skipped)
    if maps:
        z = result(x, None)
    update = update and rows > 0
    seen_as(&job, x, rows, C, 1, update)
    cdef size_t size = vector_size(&job), partials = partial_size(&job) if update else 0
    cdef size_t vectors = rounded_up(6 * C * sizeof(double), BN_LINE)
    cdef Memory memory = scratch(partials + vectors + 3 * size)
    job.partial = <double*>memory.at
    job.stats = <double*>(memory.at + partials)
    missing = <cnp.int64_t*>(job.stats + 5 * C)
    if maps:
        target(&job, z, None, update)
        read_activation(&job.act, IDENTITY)
        folded(&job, memory.at + partials + vectors)
    if update:
        weigh(&job, weight)
        job.exact = True
        memset(missing, 0, C * sizeof(cnp.int64_t))
        if not sum_rows(&job):
            finite = only_finite(x, C, missing)
            if to.raises:
                refuse(with_any(missing, C), C)
            job.x = data(finite)
            job.skipna = True
            sum_rows(&job)
            job.x = data(x)
        if to.raises:
            refuse(follow(&to, &job, missing, rows, whole, True), C)
        follow(&to, &job, missing, rows, whole, False)
        for c in range(C):
            left[c] += missing[c]
        counted(&to, 1, 1 if whole else rows, False)
    if maps and rows > 0:
        with nogil:
            stats_online(&to, job.stats, C, eps)
            loops.fold_forward(&job, 0, C)
            if update:
                run_map(&job)
            else:
                run(loops.map, &job, True)
            if clip < INFINITY and job.wide:
                clip_all[double](<double*>job.y, rows * C, clip)
            elif clip < INFINITY:
                clip_all[float](<float*>job.y, rows * C, clip)
    return z


cdef bint sum_rows(Job* job) noexcept nogil:
    """Compute the moments of all rows. Return whether they are finite."""
    cdef Py_ssize_t C = job.channels, c
    cdef bint finite = True
    run(loops.reduce, job, False)
    loops.merge_moments(job, 0, C)
    for c in range(C):
        finite &= bn_finite(job.partial[2 * C + c]) & bn_finite(job.partial[C + c] + job.partial[3 * C + c])
    return finite


cdef cnp.ndarray only_finite(cnp.ndarray x, Py_ssize_t C, cnp.int64_t* missing):
    """Return a copy of x with NaN for each value that is not finite; `missing` counts these values per channel."""
    cdef cnp.ndarray copy = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(x), cnp.PyArray_DIMS(x), cnp.PyArray_TYPE(x), 0)
    if cnp.PyArray_TYPE(x) == cnp.NPY_DOUBLE:
        copy_finite[double](<const double*>data(x), <double*>data(copy), cnp.PyArray_SIZE(x), C, missing)
    else:
        copy_finite[float](<const float*>data(x), <float*>data(copy), cnp.PyArray_SIZE(x), C, missing)
    return copy


cdef void copy_finite(
    const single_or_double* x, single_or_double* copy, Py_ssize_t size, Py_ssize_t C, cnp.int64_t* missing
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(size):
        if x[i] - x[i] == 0:
            copy[i] = x[i]
        else:
            copy[i] = NAN
            missing[i % C] += 1


cdef Py_ssize_t with_any(const cnp.int64_t* missing, Py_ssize_t C) noexcept nogil:
    """Return the number of channels that have missing values."""
    cdef Py_ssize_t c, n = 0
    for c in range(C):
        n += missing[c] > 0
    return n


cdef Py_ssize_t follow(
    Target* to, const Job* job, cnp.int64_t* missing, Py_ssize_t rows, bint whole, bint test
) noexcept nogil:
    """Update all channels, or with `test` only try. Return the number of channels that cannot be updated.

    If the sums of a channel overflow float64, all its values are counted as missing.
    """
    cdef Py_ssize_t C = job.channels, at = 0, size, c, odd, bad = 0
    cdef const double* p = job.partial
    cdef double last = <double>(to.counters[2] + (1 if whole else rows))
    cdef Batch b
    while at < C:
        size = min(<Py_ssize_t>BN_MOVED, C - at)
        for c in range(size):
            b.count[c] = p[at + c]
            b.mean[c] = p[C + at + c] + p[3 * C + at + c]
            b.low[c] = (p[C + at + c] - b.mean[c]) + p[3 * C + at + c]
            b.m2[c] = p[2 * C + at + c]
            b.seen[c] = <double>(rows - missing[at + c])
            b.pairs[c] = 0.0
            b.last[c] = last
        for c in range(size):
            if not b.count[c] > 0.0:
                b.count[c] = NAN
            elif not (bn_finite(b.mean[c]) and bn_finite(b.m2[c])):
                b.count[c] = NAN
                bad += 1
                if not test:
                    missing[at + c] = rows
            elif whole:
                b.m2[c] = b.m2[c] / b.count[c]
                b.count[c] = 1.0
        odd = loops.move(to, at, size, &b, test)
        bad += odd
        for c in range(size if odd and not test else 0):
            if b.count[c] > 0.0 and not b.moved[c]:
                missing[at + c] = rows
        at += size
    return bad


cdef void stats_online(const Target* to, double* stats, Py_ssize_t C, double eps) noexcept nogil:
    """Write mean, var, 1 / std, scale and shift of the current statistics to `stats`. A channel without spread (no
    values, one value or equal values) has scale 1, whatever eps is: the rule of `kernels.rule.spread`.
    """
    cdef Py_ssize_t c
    cdef double mean, var, rstd
    for c in range(C):
        mean = (<float*>to.mean)[c] if to.single else (<double*>to.mean)[c]
        var = (<float*>to.var)[c] if to.single else (<double*>to.var)[c]
        rstd = 1.0 if to.seen[c] == 0.0 or bn_constant(mean, var) else bn_rstd(mean, var, eps, to.seen[c])
        stats[c] = mean
        stats[C + c] = var
        stats[2 * C + c] = stats[3 * C + c] = rstd
        stats[4 * C + c] = -(0.0 if to.low == NULL else to.low[c]) * rstd


cdef void clip_all(single_or_double* y, Py_ssize_t size, single_or_double most) noexcept nogil:
    """Clip all values to the range from -most to most. NaN stays."""
    cdef Py_ssize_t tasks = (size + CLIPPED - 1) // CLIPPED, t
    cdef int threads = threads_for(size, tasks)
    if threads == 1:
        clip_span(y, 0, size, most)
    else:
        for t in prange(tasks, schedule="static", num_threads=threads):
            clip_span(y, t * CLIPPED, min(size, (t + 1) * CLIPPED), most)


cdef void clip_span(single_or_double* y, Py_ssize_t begin, Py_ssize_t end, single_or_double most) noexcept nogil:
    cdef Py_ssize_t i
    cdef single_or_double v
    for i in range(begin, end):
        v = y[i]
        v = most if v > most else v
        y[i] = -most if v < -most else v
