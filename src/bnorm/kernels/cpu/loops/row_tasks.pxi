# Layer, group, instance and RMS norm. A row is channels * inner contiguous values with a statistic of its own; gamma
# and beta belong to its channels. The row is in cache while its statistics, its output and its gradient are made, so
# each array is read and written once.
#
# inner == 1 (layer norm, RMS norm): gamma and beta change from value to value. inner > 1: runs with one gamma each,
# which the functions for long runs serve.
#
# Uses pulled (activations), Block, Columns, block_rows, gather, run_block, zero (channel_columns), block_sums
# (channel_grads), Output, longest, room (channel_maps), Parts, block_moments, careful_sums, centered_sums
# (channel_moments), backward_map, forward_maps, gradient_of_columns, through_statistics (row_maps), Affine, BATCH,
# EIGHTH, FETCH_SHARE, SHORT, short_moments, short_pair_sums, short_scaled_sums (row_short), affine_of, column_sums,
# finish_sums, readable, row_numbers, sums_of_long_rows (row_sums).
# Gives FETCH_BYTES, rows_double, rows_float.

cdef enum:
    FETCH_BYTES = 1 << 18   # bytes at most that are fetched while the rows before are written
    SECOND_CACHE = 1 << 20  # bytes of x and dy that are taken to stay in the second-level cache


cdef double second_moment(const real* x, Py_ssize_t size) noexcept nogil:
    """sum x^2."""
    cdef real[LANES] m
    cdef double[LANES] count, s, q
    cdef double total = 0.0, center = 0.0
    cdef Py_ssize_t i = 0, j, n
    cdef Block b
    for j in range(LANES):
        m[j] = 0
    while i < size:
        n = min(<Py_ssize_t>BLOCK * LANES, size - i)
        b = run_block(n, NULL)
        zero(s, LANES)
        zero(q, LANES)
        centered_sums(x + i, &b, m, s, q)
        gather(q, &b)
        if real is float and not (1e-36 * n <= q[0] < INFINITY):
            careful_sums(x + i, &b, False, &center, count, s, q)
        total += q[0]
        i += n
    return total


cdef void row_moments(RowJob* job, Py_ssize_t row, Py_ssize_t size, const real* x) noexcept nogil:
    """mean and rstd of the row of `size` values that begins at x."""
    cdef double n = 0.0, mean = 0.0, m2 = 0.0, low = 0.0
    cdef Py_ssize_t i = 0, k
    cdef Block b
    cdef Parts to
    if job.rule == BN_MEAN_SQUARE:
        job.mean[row] = 0.0
        job.rstd[row] = bn_plain(bn_rstd(second_moment(x, size) / size, job.eps, size))
        return
    to.n = &n
    to.mean = &mean
    to.m2 = &m2
    to.low = &low
    while i < size:
        k = min(block_rows(NULL, i // LANES) * LANES, size - i)
        b = run_block(k, NULL)
        block_moments(x + i, &b, False, False, to)
        i += k
    job.mean[row] = bn_plain(mean + low)
    job.rstd[row] = bn_plain(bn_rstd(m2 / n, job.eps, n))


cdef void run_sums(
    Activation act, const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, double mean, real a, real b,
    double* sum, double* dot
) noexcept nogil:
    """sum dy and sum dy (x - mean) of a run, dy before the activation of (x - h) a + b, h being mean in its type."""
    cdef real[TILE] before
    cdef real h = <real>mean
    cdef Columns of
    cdef Block block
    cdef Py_ssize_t i = 0, j, k
    if n <= TILE and act.kind == BN_IDENTITY:
        short_pair_sums(dy, x, n, left, mean, sum, dot)
        return
    if n <= TILE:
        for j in range(n):
            before[j] = pulled(act, (x[j] - h) * a + b, dy[j])
        short_pair_sums(&before[0], x, n, min(left, <Py_ssize_t>TILE), mean, sum, dot)
        return
    of.h = &h
    of.scale = &a
    of.shift = &b
    sum[0] = 0.0
    dot[0] = 0.0
    while i < n:
        k = min(<Py_ssize_t>BLOCK * LANES, n - i)
        block = run_block(k, NULL)
        block_sums(dy + i, x + i, &block, &of, act, sum, dot)
        i += k
    dot[0] -= (mean - <double>h) * sum[0]


cdef void sums_of_runs(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t total, double* dgamma, double* dbeta,
    double* sum, double* dot, const real* x
) noexcept nogil:
    """sum and dot of dy gamma of a row of runs with one gamma each; their part in dgamma and dbeta."""
    cdef Py_ssize_t at = row * job.channels * job.inner, p = g * job.channels, c
    cdef double mean = job.mean[row], rstd = job.rstd[row], s, d, scale, shift
    cdef real h = <real>mean
    sum[0] = 0.0
    dot[0] = 0.0
    for c in range(p, p + job.channels):
        scale = 1.0 if job.gamma == NULL else job.gamma[c]
        shift = 0.0 if job.beta == NULL else job.beta[c]
        run_sums(job.act, <const real*>job.dy + at, x + at, job.inner, total - at, mean, <real>(rstd * scale),
                 <real>bn_fold(<double>h, mean, rstd * scale, shift), &s, &d)
        sum[0] += scale * s
        dot[0] += scale * d
        if job.params:
            dbeta[c] += s
            dgamma[c] += rstd * d
        at += job.inner


cdef inline bn_ahead* walk_on(RowJob* job, Output* out) noexcept nogil:
    """The walk of a task whose output is streamed: memory has nothing else to do while sums are made."""
    return &out.ahead if job.far and job.stream else NULL


cdef void forward_rows(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t total, Output* out, const real* x
) noexcept nogil:
    """Rows that lie one after the other; the statistics of as many at a time as fit the buffer."""
    cdef Py_ssize_t size = job.channels * job.inner, groups = max(<Py_ssize_t>1, job.groups)
    cdef bint short = 0 < size <= SHORT
    cdef Py_ssize_t batch = max(<Py_ssize_t>1, min(<Py_ssize_t>BATCH, BUFFER // size)) if short else 1
    while row < end:
        batch = min(batch, end - row)
        if short:
            short_moments(job, row, batch, size, total - row * size, walk_on(job, out), x + row * size)
        else:
            row_moments(job, row, size, x + row * size)
        forward_maps(job, row, batch, row % groups, out, x)
        row += batch


cdef void stripe(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t g, double* dgamma, double* dbeta, const real* x
) noexcept nogil:
    """dgamma and dbeta of the columns of group g, from `rows` outer positions."""
    cdef real[STRIPE] h, r, b
    cdef Py_ssize_t size = job.channels, at = (o * job.groups + g) * size, p = g * size
    cdef Affine of = affine_of(job, h, r, b, p)
    row_numbers(job, o * job.groups + g, job.groups, rows, h, r, b)
    column_sums(job.act, <const real*>job.dy + at, x + at, rows, job.groups * size, size, &of, dgamma + p, dbeta + p)


cdef void write_gradient(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, double sum, double dot, Output* out, const real* x
) noexcept nogil:
    """dx of a row of group g."""
    cdef Py_ssize_t size = job.channels * job.inner, i = 0, n
    while i < size:
        n = min(longest(x), size - i)
        backward_map(job, row, g, i, i + n, sum, dot, x, room(out, row * size + i, n, x))
        i += n


cdef void short_gradients(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t g, Py_ssize_t total, Output* out, const real* x
) noexcept nogil:
    """dx of rows of at most TILE values that lie one after the other, from one of group g on."""
    cdef real[BATCH] h, r, b, tilt, rest
    cdef double[BATCH * EIGHTH] s, d
    cdef double[BATCH] sum, dot
    cdef Py_ssize_t size = job.channels, k, n, at, p = g * size
    cdef const real* dy = <const real*>job.dy
    cdef Affine of
    cdef bn_ahead* ahead = walk_on(job, out)
    cdef real* dx
    while row < end:
        n = min(min(longest(x) // max(<Py_ssize_t>1, size), <Py_ssize_t>BATCH), end - row)
        row_numbers(job, row, 1, n, h, r, b)
        zero(s, n * EIGHTH)
        zero(d, n * EIGHTH)
        at = row * size
        g = p
        for k in range(n):
            if ahead != NULL:
                bn_fetch_early(ahead, size * sizeof(real) // FETCH_SHARE)
            of = affine_of(job, h, r, b, g)
            short_scaled_sums(job.act, dy + at, x + at, size, total - at, &of, k, s + k * EIGHTH, d + k * EIGHTH)
            at += size
            g = g + size if g + size < job.groups * size else 0
        finish_sums(job, row, 1, n, affine_of(job, h, r, b, p), s, d, sum, dot, x)
        for k in range(n):
            through_statistics(job, row + k, sum[k], dot[k], &h[k], &tilt[k], &rest[k])
        at = row * size
        dx = room(out, at, n * size, x)
        for k in range(n):
            of = affine_of(job, h, r, b, p)
            gradient_of_columns(job.act, dy + at, x + at, dx, size, &of, k, tilt[k], rest[k])
            at += size
            dx += size
            p = p + size if p + size < job.groups * size else 0
        row += n


cdef void backward_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t positions, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """Groups begin to end of some outer positions: the sums of their columns, then their own, and dx."""
    cdef Py_ssize_t k, g, row, total
    cdef double sum = 0.0, dot = 0.0
    if job.params and job.scale != NULL:
        k = 0
        while k < positions:
            for g in range(begin, end):
                stripe(job, o + k, min(<Py_ssize_t>STRIPE, positions - k), g, dgamma, dbeta, x)
            k += STRIPE
    if job.scale != NULL and job.cuts == 1:
        short_gradients(job, o * job.groups, (o + positions) * job.groups, 0, readable(job, o, last, end), out, x)
        return
    for k in range(o, o + positions):
        total = readable(job, k, last, end)
        if job.scale != NULL:
            short_gradients(job, k * job.groups + begin, k * job.groups + end, begin, total, out, x)
            continue
        for g in range(begin, end):
            row = k * job.groups + g
            sums_of_runs(job, row, g, total, dgamma, dbeta, &sum, &dot, x)
            write_gradient(job, row, g, sum, dot, out, x)


cdef void backward_long_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """The same of rows of more than TILE values, at most STRIPE positions, with a gamma for each value."""
    cdef double[STRIPE] sum, dot
    cdef Py_ssize_t g, k
    for g in range(begin, end):
        sums_of_long_rows(job, o, rows, g, last, end, dgamma, dbeta, sum, dot, walk_on(job, out), x)
        for k in range(rows):
            write_gradient(job, (o + k) * job.groups + g, g, sum[k], dot[k], out, x)


cdef void open_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t values, Output* out, const real* x
) noexcept nogil:
    """The output of a task that starts at outer position o, and its walk through memory: while `values` are written, of
    a row or of some that are read together, the next are fetched."""
    cdef Py_ssize_t size = job.channels * job.inner, at = (o * job.groups + begin) * size
    out.y = <char*>job.y
    out.narrow = BN_REAL
    out.streamed = job.stream
    if job.stream:
        bn_open(&out.lines)
        bn_stand(&out.ahead)
    if job.far:
        bn_walk(&out.ahead, x + at, NULL if job.dy == NULL else <const real*>job.dy + at,
                (end - begin) * size * sizeof(real), job.groups * size * sizeof(real))
        bn_fetch(&out.ahead, min(<Py_ssize_t>FETCH_BYTES, max(<Py_ssize_t>BN_AHEAD, values * <Py_ssize_t>sizeof(real))))


cdef void row_task(RowJob* job, Py_ssize_t t, const real* x) noexcept nogil:
    cdef Py_ssize_t p = t // job.cuts, o = p * job.piece, last = min(o + job.piece, job.outer)
    cdef Py_ssize_t begin = (t % job.cuts) * job.group, end = min(begin + job.group, job.groups)
    cdef Py_ssize_t size = job.groups * job.channels, row = job.channels * job.inner, width = (end - begin) * row
    cdef bint deep = job.dy != NULL and job.scale != NULL and row > TILE
    cdef Py_ssize_t positions = STRIPE * max(<Py_ssize_t>1, BUFFER // max(<Py_ssize_t>1, STRIPE * width))
    cdef double* dgamma = job.partial + p * 2 * size
    cdef double* dbeta = dgamma + size
    cdef Output out
    if deep:
        positions = STRIPE if STRIPE * row * 2 * <Py_ssize_t>sizeof(real) <= SECOND_CACHE else STRIPE // 2
    open_rows(job, o, begin, end, positions * width if deep or job.params and job.scale != NULL else row, &out, x)
    if job.dy == NULL and job.cuts == 1:
        forward_rows(job, o * job.groups, last * job.groups, readable(job, o, last, end), &out, x)
    elif job.dy == NULL:
        while o < last:
            forward_rows(job, o * job.groups + begin, o * job.groups + end, readable(job, o, last, end), &out, x)
            o += 1
    else:
        if job.params:
            zero(dgamma + begin * job.channels, (end - begin) * job.channels)
            zero(dbeta + begin * job.channels, (end - begin) * job.channels)
        while o < last:
            positions = min(positions, last - o)
            if deep:
                backward_long_rows(job, o, positions, last, begin, end, dgamma, dbeta, &out, x)
            else:
                backward_rows(job, o, positions, last, begin, end, dgamma, dbeta, &out, x)
            o += positions
    if job.stream:
        bn_close(&out.lines, &out.ahead)
        bn_settle()


cdef void rows_float(RowJob* job, Py_ssize_t t) noexcept nogil:
    row_task(job, t, <const float*>job.x)


cdef void rows_double(RowJob* job, Py_ssize_t t) noexcept nogil:
    row_task(job, t, <const double*>job.x)
