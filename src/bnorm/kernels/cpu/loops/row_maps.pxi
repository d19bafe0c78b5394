# The maps of rows: y, and dx from the sums of a row.
#
# If inner == 1, each value of a row has its own gamma and beta. If inner > 1, rows are runs with one gamma each, which
# are mapped as runs of channels are.
#
# Uses bounded, next_part (channel_columns), LINE, Output, longest, room (channel_maps), narrow_at, narrow_room
# (channel_narrow), add_gradient (row_residual), BATCH (row_short), affine_of, row_numbers (row_sums).
# Gives edge_of, forward_maps, gradient_of_runs, map_by_pieces, numbers_of_runs, params_in, row_room, short_runs,
# through_statistics.

cdef inline bn_edge* edge_of(Output* out) noexcept nogil:
    """Return the edge between the rows of a task that sends them as they are computed, or NULL."""
    return &out.edge if out.direct else NULL


cdef inline real* row_room(Output* out, Py_ssize_t at, Py_ssize_t n, const real* x) noexcept nogil:
    """`room`, but rows that are sent as they are computed go to their own place in y."""
    return <real*>out.y + at if out.direct else room(out, at, n, x)


cdef inline Py_ssize_t part_of(const Output* out, Py_ssize_t left, const real* x) noexcept nogil:
    """Return how many of the last `left` values of a run are mapped next: all, if they are sent as they are computed.
    If they are converted, no part is shorter than two vectors."""
    return left if out.direct else next_part(left, longest(x), 1 if out.narrow == BN_REAL else BN_TWO)


cdef void map_narrow_runs(
    Activation act, Py_ssize_t runs, Py_ssize_t n, Py_ssize_t at, const Numbers* of, Output* out
) noexcept nogil:
    """Map contiguous runs of float16 or bfloat16, from position `at` on: as many at a time as can be gathered."""
    cdef Py_ssize_t most = max(<Py_ssize_t>1, 2 * LINE // n), k = 0, m
    cdef Numbers some = of[0]
    while k < runs:
        m = min(most, runs - k)
        some.h = <const float*>of.h + k
        some.scale = <const float*>of.scale + k
        some.shift = <const float*>of.shift + k
        bn_narrow_runs(act, out.narrow, out.streamed, m, n, NULL, narrow_at(out.x, at), narrow_room(out, at, m * n),
                       &some)
        k += m
        at += m * n


cdef inline void map_of_some(
    Activation act, Py_ssize_t runs, Py_ssize_t n, Py_ssize_t at, const Numbers* of, Output* out, const real* x
) noexcept nogil:
    """Map contiguous runs of n values each, from position `at` on."""
    if real is float and out.narrow != BN_REAL:
        map_narrow_runs(act, runs, n, at, of, out)
    else:
        bn_map_rows(act, runs, n, x + at, row_room(out, at, runs * n, x), of, edge_of(out))


cdef inline Numbers numbers_of_runs(const real* h, const real* r, const real* b) noexcept nogil:
    cdef Numbers of = no_numbers()
    of.h = h
    of.scale = r
    of.shift = b
    return of


cdef inline void run_of(
    RowJob* job, Py_ssize_t row, Py_ssize_t c, const real* x, real* scale, real* shift
) noexcept nogil:
    """Compute scale and shift of (x - h) scale + shift for a channel; h is the mean of the row, rounded to its type."""
    cdef double mean = job.mean[row], gain = job.rstd[row] if job.gamma == NULL else job.rstd[row] * job.gamma[c]
    gain = bounded(gain, x)
    scale[0] = <real>gain
    shift[0] = <real>bn_fold(<double><real>mean, mean, gain, 0.0 if job.beta == NULL else job.beta[c])


cdef inline void run_number(RowJob* job, Py_ssize_t row, Py_ssize_t c, real* h, real* r, real* b) noexcept nogil:
    """The same with h. If one of the numbers is NaN, only h becomes NaN."""
    h[0] = <real>job.mean[row]
    run_of(job, row, c, h, r, b)
    bn_one_nan(h, r, b)


cdef void map_of_runs(RowJob* job, Py_ssize_t row, Py_ssize_t g, Output* out, const real* x) noexcept nogil:
    """Map a row of group g that consists of runs: a few short runs at a time, or a part of a long one."""
    cdef real[BATCH] h, r, b
    cdef Py_ssize_t inner = max(<Py_ssize_t>1, job.inner), at = row * job.channels * job.inner, c = 0, i, k, n
    cdef Py_ssize_t runs = min(<Py_ssize_t>BATCH, max(<Py_ssize_t>1, longest(x) // inner))
    cdef Numbers of = numbers_of_runs(h, r, b)
    while c < job.channels:
        runs = min(runs, job.channels - c)
        for k in range(runs):
            run_number(job, row, g * job.channels + c + k, &h[k], &r[k], &b[k])
        i = 0
        while i < job.inner:    # whole runs, if there are several
            n = part_of(out, job.inner - i, x)
            map_of_some(job.act, runs, n, at, &of, out, x)
            at += runs * n
            i += n
        c += runs


cdef inline bint short_runs(const RowJob* job, const real* x) noexcept nogil:
    """Whether the rows are short runs of a few channels; those of a backward without an activation. If a gradient is
    added to dx, whole rows of dx wait for it in memory of limited size."""
    return job.scale == NULL and 0 < job.channels <= BATCH and 0 < job.inner <= longest(x) \
        and (job.dy == NULL or job.act.kind == BN_IDENTITY) \
        and (job.dh == NULL or job.channels * job.inner <= 2 * longest(x))


cdef inline void run_numbers(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t g, real* h, real* r, real* b
) noexcept nogil:
    """row_numbers for each run of some rows, including gamma and beta. The first row belongs to group g."""
    cdef Py_ssize_t k, c, i = 0
    if job.gamma == NULL and job.beta == NULL and job.channels == 1:
        row_numbers(job, row, 1, rows, h, r, b)
        return
    for k in range(row, row + rows):
        for c in range(g * job.channels, (g + 1) * job.channels):
            run_number(job, k, c, &h[i], &r[i], &b[i])
            i += 1
        g = g + 1 if g + 1 < job.groups else 0


cdef void forward_maps(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t g, Output* out, const real* x
) noexcept nogil:
    """Map contiguous rows, the first of which belongs to group g."""
    cdef real[BATCH] h, r, b
    cdef Py_ssize_t size = job.channels * job.inner, most = size if out.direct else longest(x), i, k, n, at, part
    cdef Py_ssize_t end = row + rows
    cdef Numbers of
    if short_runs(job, x) and (out.direct or not out.streamed or size <= 2 * longest(x)):   # or a part is gathered
        of = numbers_of_runs(h, r, b)
        n = max(<Py_ssize_t>1, min(BATCH // job.channels, longest(x) // size))
        while row < end:
            n = min(n, end - row)
            run_numbers(job, row, n, g, h, r, b)
            map_of_some(job.act, n * job.channels, job.inner, row * size, &of, out, x)
            row += n
            g = (g + n) % job.groups
        return
    while row < end and job.scale == NULL:
        map_of_runs(job, row, g, out, x)
        row += 1
        g = g + 1 if g + 1 < job.groups else 0
    while row < end:
        n = max(<Py_ssize_t>1, min(min(longest(x) // max(<Py_ssize_t>1, size), <Py_ssize_t>BATCH), end - row))
        row_numbers(job, row, 1, n, h, r, b)
        rows = n if job.groups == 1 else 1      # rows that share gamma
        k = i = 0
        while k < n:    # some rows, or a part of a long one
            part = min(most, size - i)
            at = (row + k) * size + i
            of = affine_of(job, h + k, r + k, b + k, g * size + i)
            bn_map_rows(job.act, rows, part, x + at, row_room(out, at, rows * part, x), &of, edge_of(out))
            i += part
            if i == size:
                i = 0
                k += rows
                g = (g + rows) % job.groups
        row += n


cdef inline void param_in(
    const double* values, bint single, real absent, Py_ssize_t i, Py_ssize_t n, void* kept, real* to
) noexcept nogil:
    """Convert n values of gamma or beta from the i-th on; `absent` stands for each if there are none (NULL). kept: a
    copy, whose values are stored too; or NULL. single: the values are float32."""
    cdef Py_ssize_t c
    if values == NULL:
        for c in range(n):
            to[c] = absent
    elif single:
        for c in range(n):
            to[c] = (<const float*>values)[i + c]
    else:
        for c in range(n):
            to[c] = <real>values[i + c]
    if kept != NULL:
        memcpy(<real*>kept + i, to, n * sizeof(real))


cdef inline void params_in(RowJob* job, Py_ssize_t i, Py_ssize_t n, const real* x) noexcept nogil:
    """Store n values of gamma and beta, from the i-th on, where the maps of rows read them."""
    # Without an activation no gradient depends on beta.
    cdef bint none = job.dy != NULL and job.act.kind == BN_IDENTITY == job.before.kind
    cdef const double* beta = NULL if none else job.beta
    param_in(job.gamma, job.single_gamma, <real>1.0, i, n, job.kept_gamma, <real*>job.scale)
    param_in(beta, job.single_beta, <real>0.0, i, n, job.kept_beta, <real*>job.shift)


cdef void map_by_pieces(RowJob* job, Py_ssize_t row, Py_ssize_t rows, Output* out, const real* x) noexcept nogil:
    """Map some long rows, a piece of each at a time. So gamma and beta are converted piece by piece, and read from the
    first-level cache; all of them would take longer to store, and to read again, than a row."""
    cdef real[BATCH] h, r, b
    cdef Py_ssize_t size = job.channels, i = 0, k, n, at
    cdef Numbers of
    row_numbers(job, row, 1, rows, h, r, b)
    while i < size:
        n = min(<Py_ssize_t>PIECE, size - i)
        params_in(job, i, n, x)
        for k in range(rows):
            of = affine_of(job, h + k, r + k, b + k, 0)
            at = (row + k) * size + i
            bn_map_rows(job.act, 1, n, x + at, <real*>out.y + at, &of, <bn_edge*>NULL)
        i += n
    job.kept_gamma = job.kept_beta = NULL


cdef inline void through_statistics(
    RowJob* job, Py_ssize_t row, double count, double sum, double dot, real* h, real* tilt, real* rest
) noexcept nogil:
    """Compute what the statistics of a row add to its gradient, with the opposite sign: tilt (x - h) + rest."""
    cdef double rstd = job.rstd[row], b = bounded(-bn_grad_b(rstd, dot, count), h)
    cdef double c = 0.0 if job.rule == BN_MEAN_SQUARE else -bn_grad_c(sum, count)
    tilt[0] = <real>b
    rest[0] = <real>(c - b * (job.mean[row] - <double>h[0]))
    bn_one_nan(h, tilt, rest)


cdef void gradient_of_runs(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, const real* w, double count, double sum, double dot, Output* out,
    const real* x
) noexcept nogil:
    """Compute dx of a row of group g that consists of runs, from its sums: a few short runs at a time, or a part of a
    long one.

    w: the weights of each run, or NULL. count: how many values, or how much weight, the row has.
    """
    cdef real[BATCH] h, r, tilt, rest, gain, scale, shift
    cdef Py_ssize_t inner = max(<Py_ssize_t>1, job.inner), at = row * job.channels * job.inner, c = 0, i, k, n, p
    cdef Py_ssize_t runs = min(<Py_ssize_t>BATCH, max(<Py_ssize_t>1, longest(x) // inner))
    cdef real* dx
    cdef Numbers of = numbers_of_runs(h, scale, shift)
    of.a = r
    of.b = tilt
    of.c = rest
    of.gain = gain
    row_numbers(job, row, 1, 1, h, r, shift)
    through_statistics(job, row, count, sum, dot, &h[0], &tilt[0], &rest[0])
    for k in range(1, min(runs, job.channels)):
        h[k], r[k], tilt[k], rest[k] = h[0], r[0], tilt[0], rest[0]
    while c < job.channels:
        runs = min(runs, job.channels - c)
        for k in range(runs):
            p = g * job.channels + c + k
            gain[k] = 1 if job.gamma == NULL else <real>job.gamma[p]
            run_of(job, row, p, x, &scale[k], &shift[k])
        i = 0
        while i < job.inner:    # whole runs, if there are several
            n = job.inner if out.direct else min(longest(x), job.inner - i)
            dx = row_room(out, at, runs * n, x)
            of.w = NULL if w == NULL else w + i
            bn_gradient_rows(job.act, runs, n, <const real*>job.dy + at, x + at, dx, &of, edge_of(out))
            add_gradient(job, at, runs * n, dx)
            at += runs * n
            i += n
        c += runs
