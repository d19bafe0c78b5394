# dx of rows, and the gradients of their parameters. Sums and dx of some rows that lie together are made before the next
# are read; where gamma changes from value to value, one pass makes the sums of the rows and those of the columns.
#
# Uses identity, leaky, pulled, relu (activations), Block, Columns, run_block, zero (channel_columns), block_sums,
# products_beyond_float (channel_grads), Output, longest (channel_maps), backward_map, edge_of, gradients_of_rows,
# gradients_of_runs, row_room, short_runs (row_maps), Affine, BATCH, EIGHTH, WIDTH, careful_short_sums, fetch_on,
# short_pair_sums, short_scaled_sums, together (row_short), affine_of, finish_sums, hand_over, readable,
# row_and_column_sums, row_numbers, sums_of_long_rows, walk_on (row_sums).
# Gives backward_long_rows, backward_rows, backward_short_rows.

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


cdef void write_gradient(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, double sum, double dot, Output* out, const real* x
) noexcept nogil:
    """dx of a row of group g."""
    cdef Py_ssize_t size = job.channels * job.inner, most = size if out.direct else longest(x), i = 0, n
    while i < size:
        n = min(most, size - i)
        backward_map(job, row, g, i, i + n, sum, dot, x, row_room(out, row * size + i, n, x), edge_of(out))
        i += n


# The sums of the columns of a task's groups, down some outer positions: in the type of x down a few of them.
ctypedef struct Sums:
    void* along
    void* across
    double* dgamma
    double* dbeta
    Py_ssize_t begin, end   # columns
    Py_ssize_t seen         # outer positions since they were last added in float64


cdef inline void settle(Sums* sums, const real* x) noexcept nogil:
    cdef Py_ssize_t p = sums.begin
    hand_over(<real*>sums.along + p, <real*>sums.across + p, sums.end - p, sums.dgamma + p, sums.dbeta + p)
    sums.seen = 0


cdef inline void slopes(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, const double* sum, const double* dot, real* h, real* tilt, real* rest
) noexcept nogil:
    """through_statistics of some rows, dot being still about h."""
    cdef double size = job.channels * job.inner
    if real is float:
        bn_row_slopes_float(rows, size, job.rule != BN_MEAN_SQUARE, job.mean + row, job.rstd + row, sum, dot,
                            h, tilt, rest)
    else:
        bn_row_slopes_double(rows, size, job.rule != BN_MEAN_SQUARE, job.mean + row, job.rstd + row, sum, dot,
                             h, tilt, rest)


cdef inline void stripe_sums(
    Activation act, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t left, const real* dy, const real* x, const Affine* of,
    Py_ssize_t k, double* dgamma, double* dbeta, double* s, double* d
) noexcept nogil:
    if real is float:
        bn_stripe_sums_float(act.kind, <float>act.slope, rows, n, left, dy, x, <const float*>of.h + k,
                             <const float*>of.r + k, <const float*>of.b + k, <const float*>of.gamma,
                             <const float*>of.beta, dgamma, dbeta, s, d)
    else:
        bn_stripe_sums_double(act.kind, act.slope, rows, n, left, dy, x, <const double*>of.h + k,
                              <const double*>of.r + k, <const double*>of.b + k, <const double*>of.gamma,
                              <const double*>of.beta, dgamma, dbeta, s, d)


cdef void sums_of_stripes(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t total, Sums* sums, bn_ahead* ahead, const Affine* of,
    double* s, double* d, const real* x
) noexcept nogil:
    """EIGHTH parts of both sums of rows that share their gamma, and what they add to the sums of the columns."""
    cdef Py_ssize_t size = job.channels, at = row * size, k = 0, n
    cdef const real* dy = <const real*>job.dy
    cdef double* dgamma = sums.dgamma + sums.begin
    cdef double* dbeta = sums.dbeta + sums.begin
    while k < rows:
        n = min(<Py_ssize_t>BN_STRIPE, rows - k)
        if ahead != NULL:
            fetch_on(job, ahead, n * size * sizeof(real))
        if job.act.kind == BN_IDENTITY:
            stripe_sums(identity(), n, size, total - at, dy + at, x + at, of, k, dgamma, dbeta, s, d)
        elif job.act.kind == BN_RELU:
            stripe_sums(relu(job.act), n, size, total - at, dy + at, x + at, of, k, dgamma, dbeta, s, d)
        else:
            stripe_sums(leaky(job.act), n, size, total - at, dy + at, x + at, of, k, dgamma, dbeta, s, d)
        k += n
        at += n * size
        s += n * EIGHTH
        d += n * EIGHTH


cdef void sums_of_short_rows(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t total, Sums* sums, Py_ssize_t p, bn_ahead* ahead,
    Affine of, double* s, double* d, const real* x
) noexcept nogil:
    """The same of any rows, the first of which has channel p first."""
    cdef Py_ssize_t size = job.channels, at = row * size, k, left, beyond = WIDTH if job.cuts == 1 else 0
    cdef const real* dy = <const real*>job.dy
    zero(s, rows * EIGHTH)
    zero(d, rows * EIGHTH)
    for k in range(rows):
        if ahead != NULL:
            fetch_on(job, ahead, size * sizeof(real))
        of.gamma = <const real*>job.scale + p
        of.beta = <const real*>job.shift + p
        if job.params:
            left = min(total - at, sums.end + beyond - p)
            row_and_column_sums(job.act, dy + at, x + at, size, left, &of, k, <real*>sums.along + p,
                                <real*>sums.across + p, s + k * EIGHTH, d + k * EIGHTH)
        else:
            short_scaled_sums(job.act, dy + at, x + at, size, total - at, &of, k, s + k * EIGHTH, d + k * EIGHTH)
        at += size
        p += size
        if p == sums.end:
            p = sums.begin
            sums.seen += 1
            if job.params and sums.seen == STRIPE:
                settle(sums, x)


cdef void short_gradients(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t total, Sums* sums, Output* out, const real* x
) noexcept nogil:
    """dx of short rows that lie one after the other, from one of the first group of the task on."""
    cdef real[BATCH] h, r, b, tilt, rest
    cdef double[BATCH * EIGHTH] s, d
    cdef double[BATCH] sum, dot
    cdef Py_ssize_t size = job.channels, most = min(together(job, size), 2 * longest(x)) // max(<Py_ssize_t>1, size)
    cdef Py_ssize_t batch = max(<Py_ssize_t>1, min(<Py_ssize_t>BATCH, most))
    cdef Py_ssize_t k, n, at, same, p = sums.begin
    cdef bint striped = job.params and sums.end - sums.begin == size <= BN_SHORT and BN_STRIPE * size <= 2 * longest(x)
    cdef const real* dy = <const real*>job.dy
    cdef Affine of
    cdef real* dx
    if striped:     # whole stripes, however many values are together
        batch = max(<Py_ssize_t>1, batch // BN_STRIPE) * BN_STRIPE
    while row < end:
        n = min(batch, end - row)
        at = row * size
        row_numbers(job, row, 1, n, h, r, b)
        of = affine_of(job, h, r, b, p)
        if striped:
            sums_of_stripes(job, row, n, total, sums, walk_on(job, out), &of, s, d, x)
        else:
            sums_of_short_rows(job, row, n, total, sums, p, walk_on(job, out), of, s, d, x)
        finish_sums(job, row, 1, n, of, s, d, sum, dot, x)
        slopes(job, row, n, sum, dot, h, tilt, rest)
        dx = row_room(out, at, n * size, x)
        same = n if sums.end - sums.begin == size else 1    # rows that share gamma
        k = 0
        while k < n:
            of = affine_of(job, h, r, b, p)
            gradients_of_rows(job.act, same, size, dy + at, x + at, dx, &of, k, tilt + k, rest + k, edge_of(out))
            k += same
            at += same * size
            dx += same * size
            p = p + size if p + size < sums.end else sums.begin
        row += n


cdef void backward_short_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """Groups begin to end of the outer positions of a task, of rows with a gamma for each value."""
    cdef Py_ssize_t size = job.channels, width = job.groups * size + WIDTH, i
    cdef Sums sums
    sums.along = <real*>job.columns + o // job.piece * 2 * width
    sums.across = <real*>sums.along + width
    sums.dgamma = dgamma
    sums.dbeta = dbeta
    sums.begin = begin * size
    sums.end = end * size
    sums.seen = 0
    if job.params:
        for i in range(sums.begin, width if job.cuts == 1 else sums.end):
            (<real*>sums.along)[i] = (<real*>sums.across)[i] = 0
    if job.cuts == 1:
        short_gradients(job, o * job.groups, last * job.groups, readable(job, o, last, end), &sums, out, x)
    else:
        while o < last:
            short_gradients(job, o * job.groups + begin, o * job.groups + end, readable(job, o, last, end), &sums,
                            out, x)
            o += 1
    if job.params:
        settle(&sums, x)


cdef void sums_of_short_runs(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t total, bn_ahead* ahead, const real* h,
    double* sum, double* dot, const real* x
) noexcept nogil:
    """sum dy and sum dy (x - h) of each run of some rows."""
    cdef double[BATCH * EIGHTH] s, d
    cdef Py_ssize_t runs = rows * job.channels, size = job.inner, at = row * job.channels * size, i, k, first = at
    cdef const real* dy = <const real*>job.dy
    cdef Affine of
    of.h = h
    of.gamma = of.beta = x      # which nobody reads
    for k in range(rows):
        for i in range(k * job.channels, (k + 1) * job.channels):
            if ahead != NULL:
                fetch_on(job, ahead, size * sizeof(real))
            if real is float:
                bn_run_sums_float(dy + at, x + at, size, total - at, h[k], s + i * EIGHTH, d + i * EIGHTH)
            else:
                bn_run_sums_double(dy + at, x + at, size, total - at, h[k], s + i * EIGHTH, d + i * EIGHTH)
            at += size
    bn_wholes(runs, s, sum)
    bn_wholes(runs, d, dot)
    if real is float and products_beyond_float(runs, size, sum, dot):
        for i in range(runs):
            if products_beyond_float(1, size, sum + i, dot + i):
                at = first + i * size
                k = i // job.channels
                careful_short_sums(BN_PAIRS, identity(), dy + at, x + at, size, &of, k, sum + i, dot + i)


cdef void gradients_of_short_runs(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t begin, Py_ssize_t stop, Py_ssize_t total,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """dx of rows of `short_runs` that lie one after the other, from one of group `begin` to groups before `stop`."""
    cdef real[BATCH] h, r, b, tilt, rest, gain
    cdef double[BATCH] sum, dot, whole_sum, whole_dot
    cdef double scale
    cdef Py_ssize_t size = job.channels * job.inner, k, n, i, at, p = begin * job.channels
    cdef Py_ssize_t most = min(together(job, size), 2 * longest(x)) // size
    cdef const real* dy = <const real*>job.dy
    cdef real* dx
    most = max(<Py_ssize_t>1, min(BATCH // job.channels, most))
    while row < end:
        n = min(most, end - row)
        row_numbers(job, row, 1, n, h, r, b)
        sums_of_short_runs(job, row, n, total, walk_on(job, out), h, sum, dot, x)
        for k in range(n):
            whole_sum[k] = whole_dot[k] = 0.0
            for i in range(k * job.channels, (k + 1) * job.channels):
                scale = 1.0 if job.gamma == NULL else job.gamma[p]
                gain[i] = <real>scale
                whole_sum[k] += scale * sum[i]
                whole_dot[k] += scale * dot[i]
                if job.params:
                    dbeta[p] += sum[i]
                    dgamma[p] += job.rstd[row + k] * (dot[i] - (job.mean[row + k] - <double>h[k]) * sum[i])
                p += 1
            if p == stop * job.channels:
                p = begin * job.channels
        slopes(job, row, n, whole_sum, whole_dot, h, tilt, rest)
        for k in range(n - 1, -1, -1):      # the numbers of a row become those of each of its runs
            for i in range((k + 1) * job.channels - 1, k * job.channels - 1, -1):
                h[i] = h[k]
                r[i] = r[k]
                tilt[i] = tilt[k]
                rest[i] = rest[k]
        at = row * size
        dx = row_room(out, at, n * size, x)
        gradients_of_runs(n * job.channels, job.inner, dy + at, x + at, dx, h, r, tilt, rest, gain, edge_of(out))
        row += n


cdef void backward_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """The same of rows that are runs with one gamma each: the sums of each row, and its dx."""
    cdef Py_ssize_t k, g, row, total
    cdef double sum = 0.0, dot = 0.0
    if short_runs(job, x) and job.cuts == 1:
        total = readable(job, o, last, end)
        gradients_of_short_runs(job, o * job.groups, last * job.groups, 0, job.groups, total, dgamma, dbeta, out, x)
        return
    for k in range(o, last):
        total = readable(job, k, last, end)
        if short_runs(job, x):
            gradients_of_short_runs(job, k * job.groups + begin, k * job.groups + end, begin, end, total,
                                    dgamma, dbeta, out, x)
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
