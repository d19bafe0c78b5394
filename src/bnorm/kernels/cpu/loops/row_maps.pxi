# The maps of rows: y, and dx from the sums of a row.
#
# inner == 1: gamma and beta change from value to value. inner > 1: runs with one gamma each, which the maps of channels
# serve.
#
# Uses activated (activations), bounded, one_nan (channel_columns), Output, longest, room (channel_maps),
# add_gradient, gradient_of_sums (row_residual), Affine, BATCH, scaled (row_short), affine_of, row_numbers (row_sums).
# Gives backward_map, edge_of, forward_maps, gradients_of_rows, row_room, short_runs.

cdef inline void affine_columns(
    Activation act, const real* x, real* y, Py_ssize_t n, real h, real r, real b, const real* gamma, const real* beta
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        y[j] = activated(act, ((x[j] - h) * r + b) * gamma[j] + beta[j])


cdef inline bn_edge* edge_of(Output* out) noexcept nogil:
    """Where the rows of a task that sends them as they are computed meet, or NULL."""
    return &out.edge if out.direct else NULL


cdef inline real* row_room(Output* out, Py_ssize_t at, Py_ssize_t n, const real* x) noexcept nogil:
    """`room`, but for rows that are sent as they are computed their own place."""
    return <real*>out.y + at if out.direct else room(out, at, n, x)


cdef inline void maps_of_rows_by(
    Activation act, Py_ssize_t rows, Py_ssize_t n, const real* x, real* y, const Affine* of, Py_ssize_t k, bn_edge* edge
) noexcept nogil:
    cdef const real* h = <const real*>of.h + k
    cdef const real* r = <const real*>of.r + k
    cdef const real* b = <const real*>of.b + k
    cdef const real* gamma = <const real*>of.gamma
    cdef const real* beta = <const real*>of.beta
    cdef Py_ssize_t i
    if act.kind == BN_IDENTITY:
        bn_row_maps(rows, n, x, y, h, r, b, gamma, beta, edge)
        return
    for i in range(rows):
        affine_columns(act, x + i * n, y + i * n, n, h[i], r[i], b[i], gamma, beta)


cdef inline void maps_of_rows(
    Activation act, Py_ssize_t rows, Py_ssize_t n, const real* x, real* y, const Affine* of, Py_ssize_t k, bn_edge* edge
) noexcept nogil:
    """y, the activation of ((x - h) r + b) gamma + beta, of n values of each row from row k on; they share gamma."""
    by_kind(maps_of_rows_by[real], act, rows, n, x, y, of, k, edge)


cdef inline void gradient_of_columns(
    Activation act, const real* dy, const real* x, real* dx, Py_ssize_t n, real h, real r, real b,
    real tilt, real rest, const real* gamma, const real* beta
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        dx[j] = r * (scaled(act, dy[j], x[j], h, r, b, gamma[j], beta[j]) - (tilt * (x[j] - h) + rest))


cdef inline void gradients_of_rows_by(
    Activation act, Py_ssize_t rows, Py_ssize_t n, const real* dy, const real* x, real* dx, const Affine* of,
    Py_ssize_t k, const real* tilt, const real* rest, const real* dh, bn_edge* edge
) noexcept nogil:
    cdef const real* h = <const real*>of.h + k
    cdef const real* r = <const real*>of.r + k
    cdef const real* b = <const real*>of.b + k
    cdef const real* gamma = <const real*>of.gamma
    cdef const real* beta = <const real*>of.beta
    cdef Py_ssize_t i, at = 0
    if act.kind == BN_IDENTITY:
        if dh == NULL:
            bn_row_gradients(rows, n, dy, x, dx, h, r, tilt, rest, gamma, edge)
        else:
            bn_row_added_gradients(rows, n, dy, x, dx, h, r, tilt, rest, gamma, dh, edge)
        return
    for i in range(rows):
        gradient_of_columns(act, dy + at, x + at, dx + at, n, h[i], r[i], b[i], tilt[i], rest[i], gamma, beta)
        at += n
    if dh != NULL:
        for i in range(at):
            dx[i] += dh[i]


cdef inline void gradients_of_rows(
    Activation act, Py_ssize_t rows, Py_ssize_t n, const real* dy, const real* x, real* dx, const Affine* of,
    Py_ssize_t k, const real* tilt, const real* rest, const real* dh, bn_edge* edge
) noexcept nogil:
    """dx = r (g - (tilt (x - h) + rest)) of n values of each row from row k on, g being `scaled`; they share gamma.
    dh, if there is one, is added."""
    by_kind(gradients_of_rows_by[real], act, rows, n, dy, x, dx, of, k, tilt, rest, dh, edge)


cdef void forward_map(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t i, Py_ssize_t end, const real* x, real* y, bn_edge* edge
) noexcept nogil:
    """Values i to end of a row of group g into y."""
    cdef Py_ssize_t p = g * job.channels, c, n
    cdef double gain, mean = job.mean[row], rstd = job.rstd[row]
    cdef real h = <real>mean, r, b
    cdef Affine of
    x += row * job.channels * job.inner
    if job.scale != NULL:
        row_numbers(job, row, 1, 1, &h, &r, &b)
        of = affine_of(job, &h, &r, &b, p + i)
        maps_of_rows(job.act, 1, end - i, x + i, y, &of, 0, edge)
        return
    c = i // job.inner
    while i < end:
        n = min(end, (c + 1) * job.inner) - i
        gain = bounded(rstd if job.gamma == NULL else rstd * job.gamma[p + c], x)
        h = <real>mean
        r = <real>gain
        b = <real>bn_fold(<double>h, mean, gain, 0.0 if job.beta == NULL else job.beta[p + c])
        one_nan(&h, &r, &b)
        bn_plane_maps(job.act, 1, n, x + i, y, &h, &r, &b, edge)
        i += n
        y += n
        c += 1


cdef inline bint short_runs(const RowJob* job, const real* x) noexcept nogil:
    """Whether the rows are short runs of a few channels, with nothing after normalizing."""
    return job.scale == NULL and 0 < job.channels <= BATCH and 0 < job.inner <= longest(x) \
        and job.act.kind == BN_IDENTITY


cdef inline void run_numbers(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t g, real* h, real* r, real* b
) noexcept nogil:
    """row_numbers of each run of some rows, from one of group g on, its gamma and beta included."""
    cdef Py_ssize_t k, c, i = 0
    cdef double mean, gain
    if job.gamma == NULL and job.beta == NULL and job.channels == 1:
        row_numbers(job, row, 1, rows, h, r, b)
        return
    for k in range(row, row + rows):
        mean = job.mean[k]
        for c in range(g * job.channels, (g + 1) * job.channels):
            gain = bounded(job.rstd[k] if job.gamma == NULL else job.rstd[k] * job.gamma[c], h)
            h[i] = <real>mean
            r[i] = <real>gain
            b[i] = <real>bn_fold(<double>h[i], mean, gain, 0.0 if job.beta == NULL else job.beta[c])
            one_nan(&h[i], &r[i], &b[i])
            i += 1
        g = g + 1 if g + 1 < job.groups else 0


cdef void forward_maps(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t g, Output* out, const real* x
) noexcept nogil:
    """Rows that lie one after the other, from one of group g on."""
    cdef real[BATCH] h, r, b
    cdef Py_ssize_t size = job.channels * job.inner, most = size if out.direct else longest(x), i, k, n
    cdef Py_ssize_t end = row + rows
    cdef Affine of
    cdef real* y
    if short_runs(job, x):
        n = max(<Py_ssize_t>1, min(BATCH // job.channels, longest(x) // size))
        while row < end:
            n = min(n, end - row)
            run_numbers(job, row, n, g, h, r, b)
            y = row_room(out, row * size, n * size, x)
            bn_plane_maps(identity(), n * job.channels, job.inner, x + row * size, y, h, r, b, edge_of(out))
            row += n
            g = (g + n) % job.groups
        return
    if size > longest(x) or job.scale == NULL:
        while row < end:
            i = 0
            while i < size:
                n = min(most, size - i)
                forward_map(job, row, g, i, i + n, x, row_room(out, row * size + i, n, x), edge_of(out))
                i += n
            row += 1
            g = g + 1 if g + 1 < job.groups else 0
        return
    while row < end:
        n = min(min(longest(x) // max(<Py_ssize_t>1, size), <Py_ssize_t>BATCH), end - row)
        y = row_room(out, row * size, n * size, x)
        row_numbers(job, row, 1, n, h, r, b)
        k = 0
        while k < n:
            of = affine_of(job, h, r, b, g * size)
            i = n if job.groups == 1 else 1     # rows that share gamma
            maps_of_rows(job.act, i, size, x + (row + k) * size, y + k * size, &of, k, edge_of(out))
            k += i
            g = (g + i) % job.groups
        row += n


cdef inline void through_statistics(
    RowJob* job, Py_ssize_t row, double sum, double dot, real* h, real* tilt, real* rest
) noexcept nogil:
    """What a row's statistics add to its gradient, with the other sign: tilt (x - h) + rest."""
    cdef Py_ssize_t size = job.channels * job.inner
    cdef double rstd = job.rstd[row], b = bounded(-bn_grad_b(rstd, dot, size), h)
    cdef double c = 0.0 if job.rule == BN_MEAN_SQUARE else -bn_grad_c(sum, size)
    tilt[0] = <real>b
    rest[0] = <real>(c - b * (job.mean[row] - <double>h[0]))
    one_nan(h, tilt, rest)


cdef void backward_map(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t i, Py_ssize_t end, double sum, double dot,
    const real* x, real* y, bn_edge* edge
) noexcept nogil:
    """The input gradient of values i to end of a row of group g, whose sums are known, into y."""
    cdef Py_ssize_t size = job.channels * job.inner, p = g * job.channels, c, n
    cdef const real* dy = <const real*>job.dy + row * size
    cdef double mean = job.mean[row], rstd = job.rstd[row], scale, shift
    cdef real h, r, b, tilt, rest, run_gain
    cdef Affine of
    cdef Run run
    row_numbers(job, row, 1, 1, &h, &r, &b)
    through_statistics(job, row, sum, dot, &h, &tilt, &rest)
    x += row * size
    if job.scale != NULL:
        of = affine_of(job, &h, &r, &b, p + i)
        gradients_of_rows(job.act, 1, end - i, dy + i, x + i, y, &of, 0, &tilt, &rest,
                          gradient_of_sums(job, row * size + i, x), edge)
        return
    run.h = h
    run.a = r
    run.b = tilt
    run.c = rest
    run.frozen = False
    c = i // job.inner
    while i < end:
        n = min(end, (c + 1) * job.inner) - i
        scale = 1.0 if job.gamma == NULL else job.gamma[p + c]
        shift = bn_fold(<double>h, mean, rstd * scale, 0.0 if job.beta == NULL else job.beta[p + c])
        run_gain = <real>scale
        if edge != NULL:
            bn_run_gradients(1, n, dy + i, x + i, y, &h, &r, &tilt, &rest, &run_gain, edge)
        else:
            run.gain = run_gain
            run.scale = <real>(rstd * scale)
            run.shift = <real>shift
            bn_gradient_run(job.act, dy + i, x + i, y, n, &run, NULL, 1.0)
            add_gradient(job, row * size + i, n, y)
        i += n
        y += n
        c += 1
