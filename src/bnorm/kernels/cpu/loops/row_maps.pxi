# The maps of rows: y, and dx from the sums of a row.
#
# inner == 1: gamma and beta change from value to value. inner > 1: runs with one gamma each, which the maps of channels
# serve.
#
# Uses bounded (channel_columns), Output, longest, room (channel_maps), add_gradient, gradient_of_sums (row_residual),
# BATCH (row_short), affine_of, row_numbers (row_sums).
# Gives backward_map, edge_of, forward_maps, numbers_of_runs, row_room, run_of, short_runs, through_statistics.

cdef inline bn_edge* edge_of(Output* out) noexcept nogil:
    """Where the rows of a task that sends them as they are computed meet, or NULL."""
    return &out.edge if out.direct else NULL


cdef inline real* row_room(Output* out, Py_ssize_t at, Py_ssize_t n, const real* x) noexcept nogil:
    """`room`, but for rows that are sent as they are computed their own place."""
    return <real*>out.y + at if out.direct else room(out, at, n, x)


cdef inline Numbers numbers_of_runs(const real* h, const real* r, const real* b) noexcept nogil:
    cdef Numbers of = no_numbers()
    of.h = h
    of.scale = r
    of.shift = b
    return of


cdef inline void run_of(
    RowJob* job, Py_ssize_t row, Py_ssize_t c, const real* x, real* scale, real* shift
) noexcept nogil:
    """The forward of a channel: (x - h) scale + shift, h being the mean of the row in its type."""
    cdef double mean = job.mean[row], gain = job.rstd[row] if job.gamma == NULL else job.rstd[row] * job.gamma[c]
    gain = bounded(gain, x)
    scale[0] = <real>gain
    shift[0] = <real>bn_fold(<double><real>mean, mean, gain, 0.0 if job.beta == NULL else job.beta[c])


cdef inline void run_number(RowJob* job, Py_ssize_t row, Py_ssize_t c, real* h, real* r, real* b) noexcept nogil:
    """The same with h, of which no number but h is NaN."""
    h[0] = <real>job.mean[row]
    run_of(job, row, c, h, r, b)
    bn_one_nan(h, r, b)


cdef void forward_map(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t i, Py_ssize_t end, const real* x, real* y, bn_edge* edge
) noexcept nogil:
    """Values i to end of a row of group g into y."""
    cdef Py_ssize_t p = g * job.channels, c, n
    cdef real h, r, b
    cdef Numbers of
    x += row * job.channels * job.inner
    if job.scale != NULL:
        row_numbers(job, row, 1, 1, &h, &r, &b)
        of = affine_of(job, &h, &r, &b, p + i)
        bn_map_rows(job.act, 1, end - i, x + i, y, &of, edge)
        return
    of = numbers_of_runs(&h, &r, &b)
    c = i // job.inner
    while i < end:
        n = min(end, (c + 1) * job.inner) - i
        run_number(job, row, p + c, &h, &r, &b)
        bn_map_rows(job.act, 1, n, x + i, y, &of, edge)
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
    """Rows that lie one after the other, from one of group g on."""
    cdef real[BATCH] h, r, b
    cdef Py_ssize_t size = job.channels * job.inner, most = size if out.direct else longest(x), i, k, n
    cdef Py_ssize_t end = row + rows
    cdef Numbers of
    cdef real* y
    if short_runs(job, x):
        of = numbers_of_runs(h, r, b)
        n = max(<Py_ssize_t>1, min(BATCH // job.channels, longest(x) // size))
        while row < end:
            n = min(n, end - row)
            run_numbers(job, row, n, g, h, r, b)
            y = row_room(out, row * size, n * size, x)
            bn_map_rows(identity(), n * job.channels, job.inner, x + row * size, y, &of, edge_of(out))
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
            of = affine_of(job, h + k, r + k, b + k, g * size)
            i = n if job.groups == 1 else 1     # rows that share gamma
            bn_map_rows(job.act, i, size, x + (row + k) * size, y + k * size, &of, edge_of(out))
            k += i
            g = (g + i) % job.groups
        row += n


cdef inline void through_statistics(
    RowJob* job, Py_ssize_t row, double count, double sum, double dot, real* h, real* tilt, real* rest
) noexcept nogil:
    """What a row's statistics add to its gradient, with the other sign: tilt (x - h) + rest."""
    cdef double rstd = job.rstd[row], b = bounded(-bn_grad_b(rstd, dot, count), h)
    cdef double c = 0.0 if job.rule == BN_MEAN_SQUARE else -bn_grad_c(sum, count)
    tilt[0] = <real>b
    rest[0] = <real>(c - b * (job.mean[row] - <double>h[0]))
    bn_one_nan(h, tilt, rest)


cdef void backward_map(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t i, Py_ssize_t end, double sum, double dot,
    const real* x, real* y, bn_edge* edge
) noexcept nogil:
    """The input gradient of values i to end of a row of group g, whose sums are known, into y."""
    cdef Py_ssize_t size = job.channels * job.inner, p = g * job.channels, c, n
    cdef const real* dy = <const real*>job.dy + row * size
    cdef double mean = job.mean[row], rstd = job.rstd[row], gamma
    cdef real h, r, b, tilt, rest, scale, gain
    cdef Numbers of
    row_numbers(job, row, 1, 1, &h, &r, &b)
    through_statistics(job, row, size, sum, dot, &h, &tilt, &rest)
    x += row * size
    of = affine_of(job, &h, &r, &b, p + i) if job.scale != NULL else numbers_of_runs(&h, &scale, &b)
    of.a = &r
    of.b = &tilt
    of.c = &rest
    if job.scale != NULL:
        of.dh = gradient_of_sums(job, row * size + i, x)
        bn_gradient_rows(job.act, 1, end - i, dy + i, x + i, y, &of, edge)
        return
    of.gain = &gain
    c = i // job.inner
    while i < end:
        n = min(end, (c + 1) * job.inner) - i
        gamma = 1.0 if job.gamma == NULL else job.gamma[p + c]
        gain = <real>gamma
        scale = <real>(rstd * gamma)
        b = <real>bn_fold(<double>h, mean, rstd * gamma, 0.0 if job.beta == NULL else job.beta[p + c])
        bn_gradient_rows(job.act, 1, n, dy + i, x + i, y, &of, edge)
        add_gradient(job, row * size + i, n, y)
        i += n
        y += n
        c += 1
