# A task is one piece of rows times one group of channels. Partial results are stored by piece and merged in this order,
# so the bits do not depend on which thread computed which piece.
#
# Uses Block, ROWS, block_rows, bounded, run_block, weigh_block, zero (channel_columns), block_sums (channel_grads),
# Lines, Output, RARE, by_lines, map_columns, map_runs, numbers_of, plain (channel_maps), Parts, block_moments
# (channel_moments), in_integers, integer_task, merge_integers, narrow_block (channel_narrow).
# Gives add_block, average, center_sums, finish_backward, finish_forward, fold_backward, fold_forward, merge_moments,
# merge_sums, parts_at, task_of_map, task_of_reduction.


cdef inline Parts parts_at(const Job* job, Py_ssize_t c, double* partial) noexcept nogil:
    """Return where the moments of a piece are stored, from channel c on."""
    cdef Parts to
    to.n = partial + c
    to.mean = to.n + job.channels
    to.m2 = to.mean + job.channels
    to.low = to.m2 + job.channels
    return to


cdef void add_block(
    Job* job, const real* x, const real* dy, const Block* b, Py_ssize_t c, double* partial
) noexcept nogil:
    """Add a block that starts with channel c to the partial results of a piece."""
    cdef Numbers of
    cdef real* g = NULL
    if job.dy == NULL:
        block_moments(x, b, job.skipna, job.exact, parts_at(job, c, partial))
    else:
        of = numbers_of(job, c, x)
        if job.takes_back:
            g = <real*>job.y + (dy - <const real*>job.dy)
        block_sums(dy, x, b, &of, job.act, g, partial + c, partial + c + job.channels)


cdef void reduce_block(
    Job* job, Py_ssize_t at, const Block* b, Py_ssize_t c, double* partial, const real* x
) noexcept nogil:
    """The same for a block at position `at` of the arrays, which is converted first if its values are narrow."""
    if job.narrow != BN_REAL:
        narrow_block(job, at, b, c, partial, x)
    else:
        add_block(job, x + at, NULL if job.dy == NULL else <const real*>job.dy + at, b, c, partial)


cdef void reduce_long(
    Job* job, Py_ssize_t r, Py_ssize_t done, Py_ssize_t c, double* totals, bn_ahead* ahead, double* partial,
    const real* x
) noexcept nogil:
    """Add row r of channel c, a long run or a segment of one, block by block, with LANES partial sums side by side.

    done: how many values of the channel the piece has added already.
    totals: the sums of the weights of the first blocks, which are the same for all channels.
    """
    cdef Py_ssize_t o = r // job.segments, i = (r % job.segments) * job.segment, n, block = 0
    cdef Py_ssize_t end = min(i + job.segment, job.inner)
    cdef Block b
    while i < end:
        n = min(block_rows(job, done // LANES) * LANES, end - i)
        b = run_block(n)
        weigh_block(job, o * job.inner + i, totals + block if block < TOTALS else NULL, &b)
        block += 1
        b.ahead = ahead
        reduce_block(job, (o * job.channels + c) * job.inner + i, &b, c, partial, x)
        i += n
        done += n


cdef void walk_of(
    Job* job, Py_ssize_t r, Py_ssize_t begin, Py_ssize_t end, bn_ahead* ahead, const real* x
) noexcept nogil:
    """Begin the walk that fetches what a task reads (streams.h): channels `begin` to `end` from row r on."""
    cdef Py_ssize_t at, span, step, size = sizeof(real) if job.narrow == BN_REAL else bn_size_of(job.narrow)
    if job.segments > 1:
        at = (r // job.segments * job.channels + begin) * job.inner + r % job.segments * job.segment
        span = job.segment
        step = job.inner
    else:
        step = job.widen * job.channels * job.inner
        at = r * step + begin * job.inner
        span = step - (job.channels - (end - begin)) * job.inner
    bn_walk(ahead, <const char*>job.x + at * size, NULL if job.dy == NULL else <const char*>job.dy + at * size,
            span * size, step * size)
    # Contiguous float32 that is summed in float64 is fetched as one row that never ends, without a pause between rows.
    if span == step and job.exact and not job.wide and job.weight == NULL:
        ahead.left = PTRDIFF_MAX
    # If the map of a group follows its reduction at once, its part of y is fetched as well, or every store of the map
    # would wait for it.
    if job.fused and not job.stream and job.narrow == BN_REAL:
        ahead.third = <const char*>job.y - <const char*>job.x


cdef void reduce_task(Job* job, Py_ssize_t t, const real* x) noexcept nogil:
    """Sum the rows of task t into its partial results."""
    cdef Py_ssize_t p = t // job.groups, first = p * job.piece, last = min(first + job.piece, job.rows)
    cdef Py_ssize_t begin = (t % job.groups) * job.group, end = min(begin + job.group, job.channels)
    cdef Py_ssize_t run = job.inner, plane = job.widen * run, r, c, i
    cdef Block b
    cdef double* partial = job.partial + p * 4 * job.channels
    cdef bn_ahead walk
    cdef double[TOTALS] own
    cdef double* totals = &own[0] if job.totals == NULL else job.totals + p * TOTALS
    for i in range(4 if job.dy == NULL else 2):
        zero(partial + i * job.channels + begin, end - begin)
    if job.inner == 0 or begin == end:  # a walk over rows without bytes would never end
        return
    for i in range(TOTALS):
        own[i] = -1.0
    if job.runs:
        for r in range(first, last):
            if job.far and (job.segments > 1 or r == first):
                walk_of(job, r, begin, end, &walk, x)
                bn_fetch(&walk, BN_AHEAD + ROWS * LANES * sizeof(real))
            for i in range(TOTALS):
                own[i] = -1.0
            if job.totals != NULL:
                totals = job.totals + r * TOTALS
            for c in range(begin, end):
                reduce_long(job, r, (r - first) * job.segment, c, totals, &walk if job.far else NULL, partial, x)
        return
    b.stride = plane * job.channels
    b.widen = job.widen
    b.run = run
    b.ahead = &walk if job.far else NULL
    c = begin
    if job.far:
        walk_of(job, first, begin, min(begin + job.tile, end), &walk, x)
        bn_tiles(&walk, last - first, walk.span // (min(begin + job.tile, end) - begin) * (job.channels - begin))
        bn_fetch(&walk, BN_AHEAD + ROWS * walk.span)
    while c < end:
        b.channels = min(job.tile, end - c)
        r = first
        i = 0
        while r < last:
            b.rows = min(block_rows(job, r - first), last - r)
            b.extra = 0
            if r + b.rows == job.rows:
                b.extra = (job.outer - job.rows * job.widen) * job.channels * run
            weigh_block(job, r * plane, totals + i if i < TOTALS else NULL, &b)
            i += 1
            reduce_block(job, r * b.stride + c * run, &b, c, partial, x)
            r += b.rows
        c += job.tile


cdef void map_task(Job* job, Py_ssize_t t, const real* x) noexcept nogil:
    """Write the part of y (or dx) that belongs to task t."""
    cdef Py_ssize_t first = (t // job.groups) * job.piece, last = min(first + job.piece, job.rows)
    cdef Py_ssize_t begin = (t % job.groups) * job.group, end = min(begin + job.group, job.channels)
    cdef Output out
    cdef Lines lines
    cdef bint straight, rare, runs
    if job.inner == 0 or begin == end:
        return
    out.y = <char*>job.y
    out.streamed = job.stream
    out.narrow_lines = &lines
    out.narrow = job.narrow if job.narrow < BN_BOOL else BN_REAL
    # For a map by columns, their numbers are written out first, which takes as long as some rows. What is sent as it is
    # computed has to fill a line of the cache.
    straight = plain(job, &out)
    rare = straight and not by_lines(job) and 1 < job.inner and last - first <= min(job.inner, <Py_ssize_t>RARE) \
        and (not job.stream or job.inner >= BN_LINE // <Py_ssize_t>sizeof(real))
    runs = job.widen == 1 and (rare or job.inner >= SCALAR_RUN)
    out.direct = out.streamed and straight and not (runs and by_lines(job))
    bn_open_edge(&out.edge, &out.ahead)
    if job.stream:
        bn_open(&out.lines)
        # No walk for bools and integers: less is read than written.
        if not job.far or job.narrow >= BN_BOOL:
            bn_stand(&out.ahead)
        elif job.fused and end < job.channels:   # this group is in cache: fetch the next
            walk_of(job, first, end, min(end + job.group, job.channels), &out.ahead, x)
        else:
            walk_of(job, first, begin, end, &out.ahead, x)
            bn_fetch(&out.ahead, BN_AHEAD)
    if runs:
        map_runs(job, first, last, begin, end, &out, x)
    else:
        map_columns(job, first, last, begin, end, &out, x)
    if job.stream:
        bn_close(&out.lines, &out.ahead)
        bn_close_edge(&out.edge)
        bn_fence()


cdef void task_of_reduction(Job* job, Py_ssize_t t) noexcept nogil:
    if not job.wide:
        reduce_task(job, t, <const float*>job.x)
    elif in_integers(job):
        integer_task(job, t)
    else:
        reduce_task(job, t, <const double*>job.x)


cdef void task_of_map(Job* job, Py_ssize_t t) noexcept nogil:
    if job.wide:
        map_task(job, t, <const double*>job.x)
    else:
        map_task(job, t, <const float*>job.x)


# Between the passes: the formulas of formulas.h, in loops over channels.

cdef void merge_moments(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Merge the moments of all pieces, in index order, into the first."""
    cdef double[4 * TILE] a, b
    cdef Py_ssize_t p, c, i, n, size = job.channels
    if in_integers(job):
        if job.pieces > 1:
            merge_integers(job, begin, end)
        return
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


cdef Py_ssize_t average_of(
    real* mean, real* var, const double* stats, Py_ssize_t n, Py_ssize_t begin, double momentum, double count,
    double divisor
) noexcept nogil:
    """Move running means and variances of n channels, from `begin` on, towards those of a batch in stats, BN_MOVED at a
    time. Return where a new one is not finite: these channels are not moved, nor any behind them. Or return n."""
    cdef real[BN_MOVED] new_mean, new_var
    cdef const double* batch_mean
    cdef const double* batch_var
    cdef Py_ssize_t c, size, odd
    while begin < n:
        size = min(<Py_ssize_t>BN_MOVED, n - begin)
        batch_mean = stats + begin
        batch_var = batch_mean + n
        odd = 0
        for c in range(size):
            new_mean[c] = <real>(mean[begin + c] + momentum * (batch_mean[c] - mean[begin + c]))
            new_var[c] = <real>(var[begin + c] + momentum * (batch_var[c] * count / divisor - var[begin + c]))
            odd += not (bn_finite(new_mean[c]) & bn_finite(new_var[c]))
        if odd:
            return begin
        memcpy(mean + begin, new_mean, size * sizeof(real))
        memcpy(var + begin, new_var, size * sizeof(real))
        begin += size
    return n


cdef Py_ssize_t average(
    void* mean, void* var, bint single, const double* stats, Py_ssize_t n, Py_ssize_t begin, double momentum,
    double count, double divisor
) noexcept nogil:
    if single:
        return average_of(<float*>mean, <float*>var, stats, n, begin, momentum, count, divisor)
    return average_of(<double*>mean, <double*>var, stats, n, begin, momentum, count, divisor)


cdef void merge_sums(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Add the gradient sums of all pieces, in index order, to the first."""
    cdef Py_ssize_t p, c, size = job.channels
    cdef double* b
    for p in range(1, job.pieces):
        b = job.partial + p * 4 * size
        for c in range(begin, end):
            job.partial[c] += b[c]
            job.partial[size + c] += b[size + c]


cdef void finish_forward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Fill in stats. Unless the job gives mean and var, they come from the first partial."""
    cdef Py_ssize_t c, size = job.channels
    cdef double eps = job.eps
    cdef double* mean = job.stats
    cdef double* var = mean + size
    cdef double* rstd = var + size
    cdef double* scale = rstd + size
    cdef double* shift = scale + size
    cdef const double* n = job.partial
    if job.mean == NULL:
        for c in range(begin, end):
            mean[c] = bn_plain(n[size + c] + n[3 * size + c])
            var[c] = bn_plain(n[2 * size + c] / (n[c] if n[c] > 0.0 else 1.0))
        for c in range(begin, end):
            rstd[c] = bn_plain(bn_rstd(mean[c], var[c], eps, n[c]))
    else:       # a separate loop: both vectorize
        memcpy(mean + begin, job.mean + begin, (end - begin) * sizeof(double))
        memcpy(var + begin, job.var + begin, (end - begin) * sizeof(double))
        for c in range(begin, end):
            rstd[c] = bn_plain(bn_rstd(mean[c], var[c], eps, 1.0))
    for c in range(begin, end):
        scale[c] = rstd[c] if job.gamma == NULL else bn_plain(job.gamma[c] * rstd[c])
        shift[c] = 0.0 if job.beta == NULL else job.beta[c]


cdef void fold_forward_of(Job* job, Py_ssize_t begin, Py_ssize_t end, real* high) noexcept nogil:
    """Convert what the map needs, high, scale and shift, to the type that the loops compute in."""
    cdef Py_ssize_t c, size = job.channels
    cdef const double* mean = job.stats
    cdef const double* scale = mean + 3 * size
    cdef const double* shift = mean + 4 * size
    cdef real* a = <real*>job.scale
    cdef real* b = <real*>job.shift
    cdef double gain
    for c in range(begin, end):
        gain = bounded(scale[c], high)
        high[c] = <real>mean[c]
        a[c] = <real>gain
        b[c] = <real>bn_fold(<double>high[c], mean[c], gain, shift[c])
    if job.dy == NULL:
        for c in range(begin, end):
            bn_one_nan(&high[c], &a[c], &b[c])


cdef void center_sums_of(Job* job, Py_ssize_t begin, Py_ssize_t end, const real* high) noexcept nogil:
    """Turn sum dy (x - high) into sum dy (x - mean)."""
    cdef Py_ssize_t c, size = job.channels
    for c in range(begin, end):
        job.partial[size + c] = bn_plain(job.partial[size + c] - (job.stats[c] - <double>high[c]) * job.partial[c])
        job.partial[c] = bn_plain(job.partial[c])


cdef void finish_backward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute the coefficients of the gradient from the sums in the first partial."""
    cdef Py_ssize_t c, size = job.channels
    cdef const double* rstd = job.stats + 2 * size
    cdef const double* scale = job.stats + 3 * size
    cdef double* a = job.coefficients
    cdef double* b = a + size
    cdef double* g = b + size
    cdef double count = job.counts[0] if begin < end else 0.0
    for c in range(begin, end):
        a[c] = scale[c]
    if job.counts_step == 0:    # a separate loop vectorizes
        for c in range(begin, end):
            b[c] = bn_grad_b(rstd[c], job.partial[size + c], count)
            g[c] = bn_grad_c(job.partial[c], count)
        return
    for c in range(begin, end):
        b[c] = bn_grad_b(rstd[c], job.partial[size + c], job.counts[c])
        g[c] = bn_grad_c(job.partial[c], job.counts[c])


cdef void fold_backward_of(Job* job, Py_ssize_t begin, Py_ssize_t end, real* high) noexcept nogil:
    """Convert the coefficients a, b and c to the type that the loops compute in; b and c times -job.unit."""
    cdef Py_ssize_t c, size = job.channels
    cdef const double* mean = job.stats
    cdef const double* scale = job.coefficients
    cdef const double* tilt = scale + size
    cdef const double* rest = tilt + size
    cdef real* a = <real*>job.a
    cdef real* b = <real*>job.b
    cdef real* g = <real*>job.c
    cdef double slope, unit = -job.unit     # a variable, since the loop would read job.unit again after every store
    for c in range(begin, end):
        slope = bounded(unit * tilt[c], high)
        a[c] = <real>bounded(scale[c], high)
        b[c] = <real>slope
        g[c] = <real>bn_fold(<double>high[c], mean[c], slope, unit * rest[c])
    for c in range(begin, end):     # separate loops vectorize
        bn_one_nan(&high[c], &b[c], &g[c])
    for c in range(begin, end):
        bn_one_nan(&high[c], &a[c], &g[c])


cdef void fold_forward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    if job.wide:
        fold_forward_of(job, begin, end, <double*>job.high)
    else:
        fold_forward_of(job, begin, end, <float*>job.high)


cdef void center_sums(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    if job.wide:
        center_sums_of(job, begin, end, <const double*>job.high)
    else:
        center_sums_of(job, begin, end, <const float*>job.high)


cdef void fold_backward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    if job.wide:
        fold_backward_of(job, begin, end, <double*>job.high)
    else:
        fold_backward_of(job, begin, end, <float*>job.high)
