# dx of rows, and the gradients of their parameters. The sums and dx of a batch of rows are computed before the next
# batch is read. If each value has its own gamma, one pass computes both the sums along rows and those down columns.
#
# Uses Block, bounded, pour, run_block, zero (channel_columns), block_sums, products_beyond_float (channel_grads),
# Output, longest (channel_maps), take_back (row_before), edge_of, gradient_of_runs, numbers_of_runs, row_room,
# short_runs, through_statistics (row_maps), add_gradient, gradient_of_sums (row_residual), BATCH, EIGHTH, WIDTH,
# short_pair_sums (row_short), affine_of, finish_sums, piece_of, readable, row_numbers, sums_of_stripe, walk_on
# (row_sums).
# Gives AT_ONCE, backward_long_rows, backward_rows, backward_short_rows, sums_of_runs.

cdef enum:
    AT_ONCE = 128   # most values of a row whose lines can be fetched one after the other without waiting


cdef inline void run_sums(
    Activation act, const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, double mean, real a, real b,
    double* sum, double* dot
) noexcept nogil:
    """short_pair_sums for a run of any length."""
    cdef real h = <real>mean
    cdef Numbers of = numbers_of_runs(&h, &a, &b)
    cdef Block block
    cdef Py_ssize_t i = 0, k
    if n <= TILE:
        short_pair_sums(act, dy, x, n, left, mean, a, b, sum, dot)
        return
    sum[0] = 0.0
    dot[0] = 0.0
    while i < n:
        k = min(<Py_ssize_t>BLOCK * LANES, n - i)
        block = run_block(k)
        block_sums(dy + i, x + i, &block, &of, act, <real*>NULL, sum, dot)
        i += k
    dot[0] -= (mean - <double>h) * sum[0]


cdef inline void weighted_run_sums(
    Activation act, const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, double mean, real a, real b,
    double* sum, double* dot
) noexcept nogil:
    """The same with weights: if dy is 0, x does not enter."""
    cdef real h = <real>mean
    cdef Numbers of = numbers_of_runs(&h, &a, &b)
    by_kind(bn_weighted_products, act, n, dy, x, left, &of, sum, dot)
    if real is float and products_beyond_float(1, n, sum, dot):
        sum[0] = dot[0] = 0.0
        bn_careful_sums(act, BN_WEIGHED_PAIRS, dy, x, n, &of, 0, sum, dot)
    dot[0] -= (mean - <double>h) * sum[0]


cdef inline void sums_of_runs(
    RowJob* job, bint weighted, Py_ssize_t row, Py_ssize_t g, Py_ssize_t total, double* dgamma, double* dbeta,
    bn_ahead* ahead, double* sum, double* dot, const real* x
) noexcept nogil:
    """Compute sum and dot of dy gamma for a row of runs with one gamma each, and add to dgamma and dbeta."""
    cdef Py_ssize_t at = row * job.channels * job.inner, p = g * job.channels, n = job.inner, c
    cdef double mean = job.mean[row], rstd = job.rstd[row], s, d, scale, gain, shift
    cdef const real* dy = <const real*>job.dy
    cdef real h = <real>mean, a, b
    sum[0] = 0.0
    dot[0] = 0.0
    for c in range(p, p + job.channels):
        scale = 1.0 if job.gamma == NULL else job.gamma[c]
        shift = 0.0 if job.beta == NULL else job.beta[c]
        gain = bounded(rstd * scale, x)
        a = <real>gain
        b = <real>bn_fold(<double>h, mean, gain, shift)
        if ahead != NULL:
            bn_fetch_on(ahead, x + at, dy + at, n * sizeof(real), job.stream)
        if weighted:
            weighted_run_sums(job.act, dy + at, x + at, n, total - at, mean, a, b, &s, &d)
        else:
            run_sums(job.act, dy + at, x + at, n, total - at, mean, a, b, &s, &d)
        sum[0] += scale * s
        dot[0] += scale * d
        if job.params:
            dbeta[c] += s
            dgamma[c] += rstd * d
        at += n


cdef void gradient_of_row(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, double sum, double dot, Output* out, const real* x
) noexcept nogil:
    """Compute dx of a row of group g with a gamma for each value, from its sums."""
    cdef Py_ssize_t size = job.channels, most = size if out.direct else longest(x), i = 0, n, at
    cdef real h, r, b, tilt, rest
    cdef Numbers of
    row_numbers(job, row, 1, 1, &h, &r, &b)
    through_statistics(job, row, size, sum, dot, &h, &tilt, &rest)
    while i < size:
        n = min(most, size - i)
        at = row * size + i
        of = affine_of(job, &h, &r, &b, g * size + i)
        of.b = &tilt
        of.c = &rest
        of.dh = gradient_of_sums(job, at, x)
        bn_gradient_rows(job.act, 1, n, <const real*>job.dy + at, x + at, row_room(out, at, n, x), &of, edge_of(out))
        i += n


# The sums down the columns of a task's groups: over a few outer positions in the type of x, then in float64.
ctypedef struct Sums:
    void* along
    void* across
    double* dgamma
    double* dbeta
    Py_ssize_t begin, end   # columns
    Py_ssize_t seen         # outer positions since the sums were last added in float64


cdef inline void pour_stripe(Sums* sums, const real* x) noexcept nogil:
    cdef Py_ssize_t p = sums.begin, n = sums.end - p
    pour(<real*>sums.along + p, n, sums.dgamma + p)
    pour(<real*>sums.across + p, n, sums.dbeta + p)
    sums.seen = 0


cdef void sums_of_batch(
    RowJob* job, Py_ssize_t row, Py_ssize_t step, Py_ssize_t rows, Py_ssize_t total, Sums* sums, Py_ssize_t p,
    bn_ahead* ahead, Numbers of, double* s, double* d, const real* x
) noexcept nogil:
    """Compute EIGHTH parts of both sums along `rows` rows, which are `step` rows apart and begin with channel p, and
    add to the sums down the columns: a stripe at a time if the rows share their gamma, else row by row."""
    cdef Py_ssize_t size = job.channels, pitch = step * size, at = row * size, k = 0, n, left
    cdef Py_ssize_t most = BN_STRIPE if job.act.kind >= BN_SILU else rows, beyond = WIDTH if job.cuts == 1 else 0
    cdef const real* dy = <const real*>job.dy
    if job.params and sums.end - sums.begin == size:
        while k < rows:
            n = min(most, rows - k)
            sums_of_stripe(job, n, at + k * pitch, pitch, total, ahead, &of, k, sums.dgamma + p, sums.dbeta + p,
                           s + k * EIGHTH, d + k * EIGHTH, x)
            k += n
        return
    zero(s, rows * EIGHTH)
    zero(d, rows * EIGHTH)
    for k in range(rows):
        if ahead != NULL:
            bn_fetch_on(ahead, x + at, dy + at, size * sizeof(real), job.stream)
        of.gamma = <const real*>job.scale + p
        of.beta = <const real*>job.shift + p
        if job.params:
            left = min(total - at, sums.end + beyond - p)
            by_kind(bn_row_sums, job.act, dy + at, x + at, size, left, &of, k, <real*>sums.along + p,
                    <real*>sums.across + p, s + k * EIGHTH, d + k * EIGHTH)
        else:
            by_kind(bn_short_sums, job.act, BN_SCALED, dy + at, x + at, size, total - at, &of, k, s + k * EIGHTH,
                    d + k * EIGHTH)
        at += pitch
        p += size
        if p == sums.end:
            p = sums.begin
            sums.seen += 1
            if job.params and sums.seen == STEP:
                pour_stripe(sums, x)


cdef void short_gradients(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t total, Sums* sums, Output* out, const real* x
) noexcept nogil:
    """Compute dx of contiguous short rows, the first of which belongs to the first group of the task."""
    cdef real[BATCH] h, r, b, tilt, rest
    cdef double[BATCH * EIGHTH] s, d
    cdef double[BATCH] sum, dot
    cdef Py_ssize_t size = job.channels, most = min(<Py_ssize_t>BUFFER, 2 * longest(x)) // max(<Py_ssize_t>1, size)
    cdef Py_ssize_t batch = max(<Py_ssize_t>1, min(<Py_ssize_t>BATCH, most))
    cdef Py_ssize_t k, n, at, same, last, p = sums.begin, fit = 2 * longest(x) // max(<Py_ssize_t>1, size)
    cdef bint shared = sums.end - sums.begin == size, striped = job.params and shared
    cdef const real* dy
    cdef Numbers of
    cdef real* dx
    if striped:     # whole stripes, even if they are more values
        batch = max(<Py_ssize_t>1, batch // BN_STRIPE) * BN_STRIPE
    while row < end:
        n = min(batch, end - row)
        at = row * size
        take_back(job, row, n, x)
        dy = <const real*>job.dy
        row_numbers(job, row, 1, n, h, r, b)
        of = affine_of(job, h, r, b, p)
        sums_of_batch(job, row, 1, n, total, sums, p, walk_on(job, out), of, s, d, x)
        finish_sums(job, row, 1, n, of, s, d, sum, dot, x)
        bn_row_slopes(n, <double>size, job.rule != BN_MEAN_SQUARE, job.mean + row, job.rstd + row, &sum[0], &dot[0],
                      &h[0], &tilt[0], &rest[0])
        row += n
        k = 0
        while k < n:
            last = min(k + fit, n)      # as many as can be gathered at once
            dx = row_room(out, at, (last - k) * size, x)
            same = last - k if shared else 1
            while k < last:
                of = affine_of(job, h + k, r + k, b + k, p)
                of.b = tilt + k
                of.c = rest + k
                of.dh = gradient_of_sums(job, at, x)
                bn_gradient_rows(job.act, same, size, dy + at, x + at, dx, &of, edge_of(out))
                k += same
                at += same * size
                dx += same * size
                p = p + size if p + size < sums.end else sums.begin


cdef void backward_short_rows(
    RowJob* job, Py_ssize_t p, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """Compute dx of groups `begin` to `end` of piece p, with a gamma for each value of a row; add to dgamma, dbeta."""
    cdef Py_ssize_t size = job.channels, width = job.groups * size + WIDTH, i
    cdef Py_ssize_t o = piece_of(job, p), last = piece_of(job, p + 1)
    cdef bint by_turns = job.params and end - begin > 1     # stripes keep their sums down the columns in registers
    cdef Sums sums
    sums.along = <real*>job.columns + p * 2 * width
    sums.across = <real*>sums.along + width
    sums.dgamma = dgamma
    sums.dbeta = dbeta
    sums.begin = begin * size
    sums.end = end * size
    sums.seen = 0
    if by_turns:
        for i in range(sums.begin, width if job.cuts == 1 else sums.end):
            (<real*>sums.along)[i] = (<real*>sums.across)[i] = 0
    if job.cuts == 1:
        short_gradients(job, o * job.groups, last * job.groups, readable(job, o, last, end), &sums, out, x)
    else:
        while o < last:
            short_gradients(job, o * job.groups + begin, o * job.groups + end, readable(job, o, last, end), &sums,
                            out, x)
            o += 1
    if by_turns:
        pour_stripe(&sums, x)


cdef inline const term* each_run(const term* rows, Py_ssize_t n, Py_ssize_t channels, term* runs) noexcept nogil:
    """Return the numbers of n rows, copied to their runs; the same array if each row is one run."""
    if channels == 1:
        return rows
    bn_each(n, channels, rows, runs)
    return runs


cdef inline const double* each_row(const double* runs, Py_ssize_t n, Py_ssize_t channels, double* rows) noexcept nogil:
    """Return the sums of n rows, added up from those of their runs."""
    if channels == 1:
        return runs
    bn_gather_runs(n, channels, runs, rows)
    return rows


cdef void sums_of_short_runs(
    RowJob* job, Py_ssize_t at, Py_ssize_t runs, Py_ssize_t total, bn_ahead* ahead, const real* h,
    double* sum, double* dot, const real* x
) noexcept nogil:
    """Compute sum dy and sum dy (x - h) of contiguous runs, from position `at` on."""
    cdef double[BATCH * EIGHTH] s, d
    cdef Py_ssize_t size = job.inner, i
    cdef const real* dy = <const real*>job.dy
    cdef Numbers of = no_numbers()
    of.h = h
    bn_run_sums(runs, size, dy + at, x + at, total - at, &of, ahead, job.stream, s, d)
    bn_wholes(runs, s, sum)
    bn_wholes(runs, d, dot)
    if real is float and products_beyond_float(runs, size, sum, dot):
        for i in range(runs):
            if products_beyond_float(1, size, sum + i, dot + i):
                sum[i] = dot[i] = 0.0
                bn_careful_sums(identity(), BN_PAIRS, dy + at + i * size, x + at + i * size, size, &of, i, sum + i,
                                dot + i)


cdef void gradients_of_short_runs(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t begin, Py_ssize_t stop, Py_ssize_t total,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """Compute dx of contiguous rows for which short_runs is true, from group `begin` on; groups end before `stop`."""
    cdef real[BATCH] h, r, b, tilt, rest, gain, of_h, of_r, of_tilt, of_rest
    cdef double[BATCH] sum, dot, off, of_rstd, of_off, row_sum, row_dot
    cdef Py_ssize_t channels = job.channels, size = channels * job.inner, first = begin * channels, p = first
    cdef Py_ssize_t values = min(<Py_ssize_t>BUFFER, 2 * longest(x)), most
    cdef Py_ssize_t n, runs, at, i, k
    cdef const double* rstds
    cdef const double* offs
    cdef real* dx
    cdef Numbers of = no_numbers()
    of.gain = gain
    if out.direct and out.ahead.reach == 0 and size > AT_ONCE:
        values = BUFFER // 4    # memory has nothing to do while sums are computed, so keep that short
    most = max(<Py_ssize_t>1, min(BATCH // channels, values // size))
    if most > EIGHTH:
        most -= most % EIGHTH   # so that their numbers fill whole vectors
    while row < end:
        n = min(most, end - row)
        runs = n * channels
        at = row * size
        take_back(job, row, n, x)
        row_numbers(job, row, 1, n, h, r, b)
        for k in range(n):
            off[k] = job.mean[row + k] - <double>h[k]
        rstds = each_run(job.rstd + row, n, channels, of_rstd)
        offs = each_run(off, n, channels, of_off)
        sums_of_short_runs(job, at, runs, total, walk_on(job, out), each_run(h, n, channels, of_h), sum, dot, x)
        i = 0
        while i < runs:     # up to where channels begin again
            k = min(runs - i, stop * channels - p)
            bn_run_totals(k, NULL if job.gamma == NULL else job.gamma + p, rstds + i, offs + i, &sum[i],
                          &dot[i], &gain[i], dgamma + p if job.params else NULL, dbeta + p)
            i += k
            p = p + k if p + k < stop * channels else first
        bn_row_slopes(n, <double>size, job.rule != BN_MEAN_SQUARE, job.mean + row, job.rstd + row,
                      each_row(sum, n, channels, row_sum), each_row(dot, n, channels, row_dot), &h[0], &tilt[0],
                      &rest[0])
        dx = row_room(out, at, n * size, x)
        of.h = each_run(h, n, channels, of_h)
        of.a = of.scale = of.shift = each_run(r, n, channels, of_r)     # scale and shift are read by activations only
        of.b = each_run(tilt, n, channels, of_tilt)
        of.c = each_run(rest, n, channels, of_rest)
        bn_gradient_rows(job.act, runs, job.inner, <const real*>job.dy + at, x + at, dx, &of, edge_of(out))
        add_gradient(job, at, n * size, dx)
        row += n


cdef void backward_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """Compute dx of rows that are runs with one gamma each: the sums of a row, then its dx."""
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
            take_back(job, row, 1, x)
            sums_of_runs(job, False, row, g, total, dgamma, dbeta, NULL, &sum, &dot, x)
            gradient_of_runs(job, row, g, <const real*>NULL, job.channels * job.inner, sum, dot, out, x)


cdef void backward_long_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """The same for rows longer than a line, with a gamma for each value, at STEP outer positions or fewer."""
    cdef real[STEP] h, r, b
    cdef double[STEP] sum, dot
    cdef double[STEP * EIGHTH] s, d
    cdef Py_ssize_t groups = job.groups, total = readable(job, o, last, end), g, k, row
    cdef Sums sums
    cdef Numbers of
    sums.dgamma = dgamma
    sums.dbeta = dbeta
    sums.seen = 0
    for g in range(begin, end):
        row = o * groups + g
        sums.begin = g * job.channels
        sums.end = sums.begin + job.channels
        take_back(job, row, rows, x)     # if there are several groups, this does nothing
        row_numbers(job, row, groups, rows, h, r, b)
        of = affine_of(job, h, r, b, sums.begin)
        sums_of_batch(job, row, groups, rows, total, &sums, sums.begin, walk_on(job, out), of, s, d, x)
        finish_sums(job, row, groups, rows, of, s, d, sum, dot, x)
        for k in range(rows):
            dot[k] -= (job.mean[row + k * groups] - <double>h[k]) * sum[k]
            gradient_of_row(job, row + k * groups, g, sum[k], dot[k], out, x)
