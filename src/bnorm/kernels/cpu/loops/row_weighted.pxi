# Rows whose positions have weights, which all rows of an outer position share. Only shares matter to a row, so in the
# gradient the weights of a position are divided by a power of two near the largest, and fit the type of x.
#
# Uses bounded, one_nan (channel_columns), Output, longest (channel_maps), recenter, weight_of (channel_weighted),
# edge_of, forward_maps, row_room (row_maps), add_gradient (row_residual), walk_on (row_sums).
# Gives weighted_backward, weighted_forward.

cdef enum:
    WEIGHTED = 4096     # values that are summed about one center, of as many runs as there are of so many


cdef void weighted_moments_of_row(
    RowJob* job, Py_ssize_t row, const double* w, Py_ssize_t first, double all, bn_ahead* ahead, const real* x
) noexcept nogil:
    """mean and rstd of a row; the first weight above 0 is that of `first`, and the weights of a run add up to `all`."""
    cdef double count = 0.0, mean = 0.0, m2 = 0.0, low = 0.0, center = 0.0, s, q, some
    cdef Py_ssize_t inner = job.inner, runs = max(<Py_ssize_t>1, WEIGHTED // max(<Py_ssize_t>1, inner)), k = 0, i, n
    cdef bint about_zero = job.rule == BN_MEAN_SQUARE
    while k < job.channels and first < inner:
        runs = min(runs, job.channels - k)
        i = 0
        while i < inner:
            n = min(<Py_ssize_t>WEIGHTED, inner - i)
            some = runs * (all if n == inner else weight_of(w + i, n))
            if ahead != NULL:
                bn_fetch_on(ahead, runs * n * sizeof(real), job.stream)
            if 1.0 / some < INFINITY:   # else it weighs nothing, or not enough to divide by
                if not about_zero:
                    center = x[first] if count == 0.0 else mean + low
                bn_weighted_squares(runs, n, inner, x + k * inner + i, w + i, center, &s, &q)
                if not about_zero and recenter(1, &some, 0, &s, &q, &count, &center):
                    bn_weighted_squares(runs, n, inner, x + k * inner + i, w + i, center, &s, &q)
                if about_zero:
                    m2 += q
                    count += some
                else:
                    bn_add_blocks(1, some, &center, &s, &q, &count, &mean, &m2, &low)
            i += n
        k += runs
    job.mean[row] = bn_plain(mean + low)
    job.rstd[row] = bn_plain(bn_rstd(mean + low, m2 / (count if count > 0.0 else 1.0), job.eps, count))


cdef void weighted_forward(
    RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Groups begin to end of the outer positions from o to last: the statistics of a few rows, and their maps."""
    cdef Py_ssize_t size = job.channels * job.inner, row, g, batch, first
    cdef Py_ssize_t most = max(<Py_ssize_t>1, BUFFER // max(<Py_ssize_t>1, size))
    cdef const double* w
    cdef double all
    for o in range(o, last):
        w = job.weight + o * job.inner
        all = weight_of(w, job.inner)
        first = 0
        while first < job.inner and w[first] == 0.0:
            first += 1
        g = begin
        while g < end:
            batch = min(most, end - g)
            for row in range(o * job.groups + g, o * job.groups + g + batch):
                weighted_moments_of_row(job, row, w, first, all, walk_on(job, out), x + row * size)
            forward_maps(job, o * job.groups + g, batch, g, out, x)
            g += batch


# What the channels of a row have in common in its gradient.
ctypedef struct Tilted:
    double mean, rstd, tilt, rest


cdef void weighted_sums_of_row(
    RowJob* job, Py_ssize_t row, Py_ssize_t p, double count, double* dgamma, double* dbeta, bn_ahead* ahead, Tilted* of,
    const real* x
) noexcept nogil:
    """What passes through the statistics of a row, and its part in dgamma and dbeta. Its first channel is p."""
    cdef Py_ssize_t at = row * job.channels * job.inner, c
    cdef double mean = job.mean[row], rstd = job.rstd[row], sum = 0.0, dot = 0.0, s, d, gamma
    cdef real h = <real>mean
    for c in range(p, p + job.channels):
        gamma = 1.0 if job.gamma == NULL else job.gamma[c]
        if ahead != NULL:
            bn_fetch_on(ahead, job.inner * sizeof(real), job.stream)
        bn_weighted_products(
            job.act, job.inner, <const real*>job.dy + at, x + at, h, <real>bounded(rstd * gamma, x),
            <real>bn_fold(<double>h, mean, bounded(rstd * gamma, x), 0.0 if job.beta == NULL else job.beta[c]), &s, &d)
        d -= (mean - <double>h) * s
        sum += gamma * s
        dot += gamma * d
        if job.params:
            dbeta[c] += s
            dgamma[c] += rstd * d
        at += job.inner
    of.mean, of.rstd = mean, rstd
    of.tilt = bounded(-bn_grad_b(rstd, dot, count), x)
    of.rest = (0.0 if job.rule == BN_MEAN_SQUARE else -bn_grad_c(sum, count)) - of.tilt * (mean - <double>h)


cdef void weighted_map_of_row(
    RowJob* job, Py_ssize_t row, Py_ssize_t p, const real* w, const Tilted* of, Output* out, const real* x
) noexcept nogil:
    """dx of a row."""
    cdef Py_ssize_t at = row * job.channels * job.inner, most = job.inner if out.direct else longest(x), c, i, n
    cdef real h = <real>of.mean, r = <real>bounded(of.rstd, x), tilt = <real>of.tilt, rest = <real>of.rest
    cdef real gain, scale, shift
    cdef double gamma
    cdef real* dx
    one_nan(&h, &tilt, &rest)
    for c in range(p, p + job.channels):
        gamma = 1.0 if job.gamma == NULL else job.gamma[c]
        gain = <real>gamma
        scale = <real>bounded(of.rstd * gamma, x)
        shift = <real>bn_fold(<double>h, of.mean, bounded(of.rstd * gamma, x), 0.0 if job.beta == NULL else job.beta[c])
        i = 0
        while i < job.inner:
            n = min(most, job.inner - i)
            dx = row_room(out, at, n, x)
            bn_weighted_gradients(job.act, 1, n, <const real*>job.dy + at, x + at, dx, w + i, &h, &r, &gain, &scale,
                                  &shift, &tilt, &rest, edge_of(out))
            add_gradient(job, at, n, dx)
            at += n
            i += n


cdef void weighted_backward(
    RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, double* dgamma, double* dbeta,
    Output* out, const real* x
) noexcept nogil:
    """dx of the same rows, and their part in dgamma and dbeta."""
    cdef Py_ssize_t g, i
    cdef const double* w
    cdef real* near = <real*>job.near
    cdef double most, inverse, count
    cdef Tilted of
    for o in range(o, last):
        w = job.weight + o * job.inner
        most = 0.0
        for i in range(job.inner):
            most = max(most, w[i])
        inverse = bn_near_one(most)
        for i in range(job.inner):
            near[i] = <real>(w[i] * inverse)
        count = job.channels * (weight_of(w, job.inner) * inverse)
        for g in range(begin, end):
            weighted_sums_of_row(job, o * job.groups + g, g * job.channels, count, dgamma, dbeta, walk_on(job, out),
                                 &of, x)
            weighted_map_of_row(job, o * job.groups + g, g * job.channels, near, &of, out, x)
