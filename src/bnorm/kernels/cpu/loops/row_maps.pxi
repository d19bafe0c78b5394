# The maps of rows: y, and dx from the sums of a row.
#
# inner == 1: gamma and beta change from value to value. inner > 1: runs with one gamma each, which the maps of channels
# serve.
#
# Uses activated, leaky, relu (activations), bounded, one_nan (channel_columns), Run, gradient_run, normalize_run
# (channel_lines), Output, longest, room (channel_maps), Affine, BATCH, scaled (row_short), affine_of, row_numbers
# (row_sums).
# Gives backward_map, edge_of, forward_maps, gradient_of_columns, row_room, run_gradient, short_runs.

cdef inline void affine_columns_by(
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


cdef inline void affine_columns(
    Activation act, const real* x, real* y, Py_ssize_t n, const Affine* of, Py_ssize_t k, bn_edge* edge
) noexcept nogil:
    """y, the activation of ((x - h) r + b) gamma + beta, of n values of row k."""
    cdef real h = (<const real*>of.h)[k], r = (<const real*>of.r)[k], b = (<const real*>of.b)[k]
    cdef const real* gamma = <const real*>of.gamma
    cdef const real* beta = <const real*>of.beta
    if act.kind == BN_RELU:
        affine_columns_by(relu(act), x, y, n, h, r, b, gamma, beta)
    elif act.kind == BN_LEAKY:
        affine_columns_by(leaky(act), x, y, n, h, r, b, gamma, beta)
    elif real is float:
        bn_affine_float(x, y, n, h, r, b, gamma, beta, edge)
    else:
        bn_affine_double(x, y, n, h, r, b, gamma, beta, edge)


cdef inline void gradient_of_columns_by(
    Activation act, const real* dy, const real* x, real* dx, Py_ssize_t n, real h, real r, real b,
    real tilt, real rest, const real* gamma, const real* beta
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        dx[j] = r * (scaled(act, dy[j], x[j], h, r, b, gamma[j], beta[j]) - (tilt * (x[j] - h) + rest))


cdef inline void gradient_of_columns(
    Activation act, const real* dy, const real* x, real* dx, Py_ssize_t n, const Affine* of, Py_ssize_t k,
    real tilt, real rest, bn_edge* edge
) noexcept nogil:
    """dx = r (g - (tilt (x - h) + rest)) of n values of row k, g being `scaled`."""
    cdef real h = (<const real*>of.h)[k], r = (<const real*>of.r)[k], b = (<const real*>of.b)[k]
    cdef const real* gamma = <const real*>of.gamma
    cdef const real* beta = <const real*>of.beta
    if act.kind == BN_RELU:
        gradient_of_columns_by(relu(act), dy, x, dx, n, h, r, b, tilt, rest, gamma, beta)
    elif act.kind == BN_LEAKY:
        gradient_of_columns_by(leaky(act), dy, x, dx, n, h, r, b, tilt, rest, gamma, beta)
    elif real is float:
        bn_row_gradient_float(dy, x, dx, n, h, r, tilt, rest, gamma, edge)
    else:
        bn_row_gradient_double(dy, x, dx, n, h, r, tilt, rest, gamma, edge)


cdef inline void run_map(
    const real* x, real* y, Py_ssize_t n, real h, real r, real b, bn_edge* edge
) noexcept nogil:
    if real is float:
        bn_run_map_float(x, y, n, h, r, b, edge)
    else:
        bn_run_map_double(x, y, n, h, r, b, edge)


cdef inline void run_gradient(
    const real* dy, const real* x, real* dx, Py_ssize_t n, real h, real r, real tilt, real rest, real gain,
    bn_edge* edge
) noexcept nogil:
    if real is float:
        bn_run_gradient_float(dy, x, dx, n, h, r, tilt, rest, gain, edge)
    else:
        bn_run_gradient_double(dy, x, dx, n, h, r, tilt, rest, gain, edge)


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
        affine_columns(job.act, x + i, y, end - i, &of, 0, edge)
        return
    c = i // job.inner
    while i < end:
        n = min(end, (c + 1) * job.inner) - i
        gain = bounded(rstd if job.gamma == NULL else rstd * job.gamma[p + c], x)
        h = <real>mean
        r = <real>gain
        b = <real>bn_fold(<double>h, mean, gain, 0.0 if job.beta == NULL else job.beta[p + c])
        one_nan(&h, &r, &b)
        if edge != NULL:
            run_map(x + i, y, n, h, r, b, edge)
        else:
            normalize_run(x + i, y, n, h, r, b, job.act)
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
    """row_numbers of rows of one channel each, from group g on, its gamma and beta included."""
    cdef Py_ssize_t k
    cdef double gain
    if job.gamma == NULL and job.beta == NULL:
        row_numbers(job, row, 1, rows, h, r, b)
        return
    for k in range(rows):
        gain = bounded(job.rstd[row + k] if job.gamma == NULL else job.rstd[row + k] * job.gamma[g], h)
        h[k] = <real>job.mean[row + k]
        r[k] = <real>gain
        b[k] = <real>bn_fold(<double>h[k], job.mean[row + k], gain, 0.0 if job.beta == NULL else job.beta[g])
        one_nan(&h[k], &r[k], &b[k])
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
    cdef bint single = job.channels == 1 and short_runs(job, x)
    if not single and (size > longest(x) or job.scale == NULL):
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
        if single:
            run_numbers(job, row, n, g, h, r, b)
            for k in range(n):
                run_map(x + (row + k) * size, y + k * size, size, h[k], r[k], b[k], edge_of(out))
            row += n
            g = (g + n) % job.groups
            continue
        row_numbers(job, row, 1, n, h, r, b)
        for k in range(n):
            of = affine_of(job, h, r, b, g * size)
            affine_columns(job.act, x + (row + k) * size, y + k * size, size, &of, k, edge_of(out))
            g = g + 1 if g + 1 < job.groups else 0
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
    cdef real h, r, b, tilt, rest
    cdef Affine of
    cdef Run run
    row_numbers(job, row, 1, 1, &h, &r, &b)
    through_statistics(job, row, sum, dot, &h, &tilt, &rest)
    x += row * size
    if job.scale != NULL:
        of = affine_of(job, &h, &r, &b, p + i)
        gradient_of_columns(job.act, dy + i, x + i, y, end - i, &of, 0, tilt, rest, edge)
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
        if edge != NULL:
            run_gradient(dy + i, x + i, y, n, h, r, tilt, rest, <real>scale, edge)
        else:
            run.gain = <real>scale
            run.scale = <real>(rstd * scale)
            run.shift = <real>shift
            gradient_run(dy + i, x + i, y, n, &run, job.act, NULL, 1.0)
        i += n
        y += n
        c += 1
