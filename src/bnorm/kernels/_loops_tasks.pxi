# A task is one piece of rows times one group of channels. Partial results lie by piece, so merging them in index order
# gives the same bits whoever computed them.


cdef void reduce_block(
    Job* job, Py_ssize_t at, const double* w, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t extra,
    Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, Py_ssize_t c, double* partial, const real* x
) noexcept nogil:
    cdef Py_ssize_t size = job.channels
    cdef bint far = job.far and job.tile >= min(job.group, size)    # else the whole block was walked over
    if job.dy == NULL:
        block_moments(x + at, w, rows, stride, extra, widen, channels, run, job.skipna, far,
                      partial + c, partial + size + c, partial + 2 * size + c, partial + 3 * size + c)
    else:
        block_sums(<const real*>job.dy + at, x + at, rows, stride, extra, widen, channels, run, job.relu, w != NULL,
                   far, <const real*>job.high + c, <const real*>job.scale + c, <const real*>job.shift + c,
                   partial + c, partial + size + c)


cdef void reduce_long(
    Job* job, Py_ssize_t r, Py_ssize_t done, Py_ssize_t c, double* partial, const real* x
) noexcept nogil:
    """A long run of channel c, which has `done` values already: LANES partial sums side by side, a block at a time."""
    cdef Py_ssize_t o = r // job.segments, i = (r % job.segments) * job.segment, n
    cdef Py_ssize_t end = min(i + job.segment, job.inner)
    while i < end:
        n = min(block_rows(job, done // LANES) * LANES, end - i)
        reduce_block(job, (o * job.channels + c) * job.inner + i, from_position(job.weight, o * job.inner + i),
                     n // LANES, LANES, n % LANES, 1, 1, LANES, c, partial, x)
        i += n
        done += n


cdef void reduce_task(Job* job, Py_ssize_t t, const real* x) noexcept nogil:
    cdef Py_ssize_t p = t // job.groups, first = p * job.piece, last = min(first + job.piece, job.rows)
    cdef Py_ssize_t begin = (t % job.groups) * job.group, end = min(begin + job.group, job.channels)
    cdef Py_ssize_t run = job.inner, plane = job.widen * run, stride = plane * job.channels
    cdef Py_ssize_t r, rows, c, extra, i
    cdef double* partial = job.partial + p * 4 * job.channels
    for i in range(4):
        zero(partial + i * job.channels + begin, end - begin)
    if job.inner == 0:
        return
    if job.runs:
        for r in range(first, last):
            for c in range(begin, end):
                reduce_long(job, r, (r - first) * job.segment, c, partial, x)
        return
    r = first
    while r < last:
        rows = min(block_rows(job, r - first), last - r)
        if job.far and job.tile < end - begin:
            rows = min(rows, max(<Py_ssize_t>8, WALK // ((end - begin) * run)))
            touch(x + r * stride + begin * run, rows, stride, (end - begin) * run)
            if job.dy != NULL:
                touch(<const real*>job.dy + r * stride + begin * run, rows, stride, (end - begin) * run)
        extra = (job.outer - job.rows * job.widen) * job.channels * run if r + rows == job.rows else 0
        c = begin
        while c < end:
            reduce_block(job, r * stride + c * run, from_position(job.weight, r * plane),
                         rows, stride, extra, job.widen, min(job.tile, end - c), run, c, partial, x)
            c += job.tile
        r += rows


cdef void map_task(Job* job, Py_ssize_t t, const real* x) noexcept nogil:
    cdef Py_ssize_t first = (t // job.groups) * job.piece, last = min(first + job.piece, job.rows)
    cdef Py_ssize_t begin = (t % job.groups) * job.group, end = min(begin + job.group, job.channels)
    cdef Py_ssize_t r, c, extra
    if job.inner == 0:
        return
    if job.runs:
        for r in range(first, last):
            for c in range(begin, end):
                map_long(job, r, c, x)
    else:
        extra = (job.outer - job.rows * job.widen) * job.channels * job.inner if last == job.rows else 0
        c = begin
        while c < end:
            map_short(job, first, last, extra, c, min(job.tile, end - c), x)
            c += job.tile
    if job.stream:
        bn_stream_end()


cdef void reduce_float(Job* job, Py_ssize_t t) noexcept nogil:
    reduce_task(job, t, <const float*>job.x)


cdef void reduce_double(Job* job, Py_ssize_t t) noexcept nogil:
    reduce_task(job, t, <const double*>job.x)


cdef void map_float(Job* job, Py_ssize_t t) noexcept nogil:
    map_task(job, t, <const float*>job.x)


cdef void map_double(Job* job, Py_ssize_t t) noexcept nogil:
    map_task(job, t, <const double*>job.x)


# Between the passes: loops over channels of the formulas of formulas.h.

cdef void merge_moments(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Moments of all pieces, in index order, into the first."""
    cdef double[4 * TILE] a, b
    cdef Py_ssize_t p, c, i, n, size = job.channels
    while begin < end:
        n = min(<Py_ssize_t>TILE, end - begin)
        for i in range(4):
            memcpy(a + i * TILE, job.partial + i * size + begin, n * sizeof(double))
        for p in range(1, job.pieces):
            for i in range(4):
                memcpy(b + i * TILE, job.partial + (4 * p + i) * size + begin, n * sizeof(double))
            for c in range(n):
                bn_merge(&a[c], &a[TILE + c], &a[2 * TILE + c], &a[3 * TILE + c],
                         b[c], b[TILE + c], b[2 * TILE + c], b[3 * TILE + c])
        for i in range(4):
            memcpy(job.partial + i * size + begin, a + i * TILE, n * sizeof(double))
        begin += n


cdef void merge_sums(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t p, c, size = job.channels
    cdef double* b
    for p in range(1, job.pieces):
        b = job.partial + p * 4 * size
        for c in range(begin, end):
            job.partial[c] += b[c]
            job.partial[size + c] += b[size + c]


cdef void finish_forward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Rows of stats; mean and var from the first partial where there is one, else they stand there already."""
    cdef Py_ssize_t c, size = job.channels
    cdef double* mean = job.stats
    cdef double* var = mean + size
    cdef double* rstd = var + size
    cdef double* scale = rstd + size
    cdef double* shift = scale + size
    cdef double* n = job.partial
    if n != NULL:
        for c in range(begin, end):
            mean[c] = n[size + c] + n[2 * size + c]
            var[c] = n[3 * size + c] / (n[c] if n[c] > 0.0 else 1.0)
    for c in range(begin, end):
        rstd[c] = bn_rstd(var[c], job.eps, job.count)
        scale[c] = rstd[c] if job.gamma == NULL else job.gamma[c] * rstd[c]
        shift[c] = 0.0 if job.beta == NULL else job.beta[c]


cdef void fold_forward(Job* job, Py_ssize_t begin, Py_ssize_t end, real* high) noexcept nogil:
    cdef Py_ssize_t c, size = job.channels
    cdef const double* mean = job.stats
    cdef const double* scale = mean + 3 * size
    cdef const double* shift = mean + 4 * size
    cdef real* a = <real*>job.scale
    cdef real* b = <real*>job.shift
    for c in range(begin, end):
        high[c] = <real>mean[c]
        if a != NULL:
            a[c] = <real>scale[c]
            b[c] = <real>bn_fold(<double>high[c], mean[c], scale[c], shift[c])


cdef void center_sums(Job* job, Py_ssize_t begin, Py_ssize_t end, const real* high) noexcept nogil:
    """sum dy (x - mean) from sum dy (x - high)."""
    cdef Py_ssize_t c, size = job.channels
    for c in range(begin, end):
        job.partial[size + c] -= (job.stats[c] - <double>high[c]) * job.partial[c]


cdef void fold_backward(Job* job, Py_ssize_t begin, Py_ssize_t end, real* high) noexcept nogil:
    cdef Py_ssize_t c, size = job.channels
    cdef const double* mean = job.stats
    cdef const double* rstd = mean + 2 * size
    cdef const double* scale = mean + 3 * size
    cdef real* a = <real*>job.a
    cdef real* b = <real*>job.b
    cdef real* g = <real*>job.c
    cdef double slope, rest
    for c in range(begin, end):
        slope = job.unit * bn_grad_b(rstd[c], job.partial[size + c], job.count)
        rest = job.unit * bn_grad_c(job.partial[c], job.count)
        a[c] = <real>scale[c]
        b[c] = <real>slope
        g[c] = <real>bn_fold(<double>high[c], mean[c], slope, rest)


cdef void fold_forward_float(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    fold_forward(job, begin, end, <float*>job.high)


cdef void fold_forward_double(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    fold_forward(job, begin, end, <double*>job.high)


cdef void center_sums_float(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    center_sums(job, begin, end, <const float*>job.high)


cdef void center_sums_double(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    center_sums(job, begin, end, <const double*>job.high)


cdef void fold_backward_float(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    fold_backward(job, begin, end, <float*>job.high)


cdef void fold_backward_double(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    fold_backward(job, begin, end, <double*>job.high)
