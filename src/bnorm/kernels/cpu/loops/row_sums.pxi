# Gradient sums of rows with a gamma for each value: down the columns for dgamma and dbeta, along each row for dx. One
# pass over a stripe computes both, a few columns at a time.
#
# Uses products_beyond_float, pulled (channel_grads), Output (channel_maps).
# Gives affine_of, finish_sums, piece_of, readable, row_numbers, sums_of_stripe, walk_on.

cdef inline Py_ssize_t piece_of(const RowJob* job, Py_ssize_t p) noexcept nogil:
    """Return the outer position at which piece p begins."""
    return min(job.steps * p // job.pieces * job.step, job.outer)


cdef inline Py_ssize_t readable(RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t end) noexcept nogil:
    """Return where the values end that may be read beyond those of outer position o: another task may overwrite its
    own. This task has the outer positions before `last`, and of each the groups before `end`."""
    return (last * job.groups if job.cuts == 1 else o * job.groups + end) * job.channels * job.inner


cdef inline bn_ahead* walk_on(RowJob* job, Output* out) noexcept nogil:
    """Return what fetches while sums are computed, by walk or by reach; NULL if that is done while output is sent."""
    return &out.ahead if job.far and not out.direct or out.ahead.reach else NULL


cdef inline void finish_sums(
    RowJob* job, Py_ssize_t row, Py_ssize_t step, Py_ssize_t rows, Numbers of,
    const double* s, const double* d, double* sum, double* dot, const real* x
) noexcept nogil:
    """Add up the EIGHTH parts of sum g and sum g (x - h) of `rows` rows, which are `step` rows apart. Sums that
    float32 could not hold are computed again."""
    cdef Py_ssize_t size = job.channels, k, at, p
    bn_wholes(rows, s, sum)
    bn_wholes(rows, d, dot)
    if sizeof(real) == sizeof(float) and products_beyond_float(rows, size, sum, dot):
        for k in range(rows):
            if products_beyond_float(1, size, sum + k, dot + k):
                at = (row + k * step) * size
                p = (row + k * step) % job.groups * size
                of.gamma = <const real*>job.scale + p
                of.beta = <const real*>job.shift + p
                sum[k] = dot[k] = 0.0
                bn_careful_sums(job.act, BN_SCALED, <const real*>job.dy + at, x + at, size, &of, k, sum + k, dot + k)


cdef inline void row_numbers(
    RowJob* job, Py_ssize_t row, Py_ssize_t step, Py_ssize_t rows, real* h, real* r, real* b
) noexcept nogil:
    """Compute h, r and b of (x - h) r + b for `rows` rows, which are `step` rows apart."""
    cdef double[STEP] mean, rstd
    cdef Py_ssize_t k
    if step == 1:
        bn_row_numbers(rows, job.mean + row, job.rstd + row, h, r, b)
        return
    for k in range(rows):   # STEP at most
        mean[k] = job.mean[row + k * step]
        rstd[k] = job.rstd[row + k * step]
    bn_row_numbers(rows, <const double*>mean, <const double*>rstd, h, r, b)


cdef inline Numbers affine_of(RowJob* job, const real* h, const real* r, const real* b, Py_ssize_t p) noexcept nogil:
    """Return these numbers, with gamma and beta from channel p on."""
    cdef Numbers of = no_numbers()
    of.h = h
    of.scale = of.a = r
    of.shift = b
    of.gamma = <const real*>job.scale + p
    of.beta = <const real*>job.shift + p
    return of


cdef inline void pulled_values(Activation act, const real* dy, Py_ssize_t n, real* u) noexcept nogil:
    """Replace n values of u by dy before their activation."""
    cdef Py_ssize_t j
    for j in range(n):
        u[j] = pulled(act, u[j], dy[j])


cdef inline void smooth_stripe(
    Activation act, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t pitch, const real* dy, const real* x, const Numbers* of,
    Py_ssize_t k, Py_ssize_t i, const bn_ahead* ahead, real* g, real* near
) noexcept nogil:
    """Copy the rows of a stripe, one after the other: x to `near`, and dy before a smooth activation to g. The
    activation takes longest, and longest of all for the last values of a loop, so whole rows have one loop."""
    cdef const real* gamma = <const real*>of.gamma + i
    cdef const real* beta = <const real*>of.beta + i
    cdef Py_ssize_t r, j
    cdef real h, scale, b
    for r in range(rows):
        h = (<const real*>of.h)[k + r]
        scale = (<const real*>of.scale)[k + r]
        b = (<const real*>of.shift)[k + r]
        if ahead != NULL and ahead.reach:
            bn_fetch_with(ahead, x + r * pitch, dy + r * pitch, n * sizeof(real))
        for j in range(n):
            near[r * n + j] = x[r * pitch + j]
            g[r * n + j] = ((x[r * pitch + j] - h) * scale + b) * gamma[j] + beta[j]
        if n < pitch:
            pulled_values(act, dy + r * pitch, n, g + r * n)
    if n == pitch:
        pulled_values(act, dy, rows * n, g)


cdef void sums_of_stripe(
    RowJob* job, Py_ssize_t rows, Py_ssize_t at, Py_ssize_t pitch, Py_ssize_t total, bn_ahead* ahead, const Numbers* of,
    Py_ssize_t k, double* dgamma, double* dbeta, double* s, double* d, const real* x
) noexcept nogil:
    """Compute EIGHTH parts of both sums along `rows` rows that share their gamma, and add to the sums down the columns.
    The rows begin at position `at`, `pitch` values apart; their numbers are the k-th and the next of `of`. With a
    smooth activation there are BN_STRIPE rows at most."""
    cdef Py_ssize_t i = 0, n, most = BN_SHORT
    cdef const real* dy = <const real*>job.dy + at
    cdef real[BN_STRIPE * BN_SHORT] g, near
    cdef const real* of_dy
    cdef const real* of_x
    cdef Py_ssize_t apart = pitch, left
    cdef Activation act = job.act
    cdef bn_ahead* walk = ahead
    cdef bint paired = real is float and BN_LINED and job.paired
    if paired and act.kind < BN_SILU:
        most = BN_LONG
    x += at
    while i < job.channels:
        n = min(most, job.channels - i)
        of_dy, of_x, left = dy + i, x + i, total - at - i
        if job.act.kind >= BN_SILU:     # go on as without an activation: another copy of these loops would be large
            smooth_stripe(job.act, rows, n, pitch, of_dy, of_x, of, k, i, ahead, &g[0], &near[0])
            of_dy, of_x, apart, left, act = &g[0], &near[0], n, rows * n, identity()
            walk = NULL if ahead == NULL or ahead.reach else ahead
        if real is float and paired and n > BN_NARROW:
            bn_long_sums(act, rows, n, apart, left, i > 0, of_dy, of_x, of, k, i, dgamma, dbeta, s, d, walk, job.stream)
        else:
            by_straight(bn_stripe_sums, act, rows, n, apart, left, i > 0, of_dy, of_x, of, k, i, dgamma, dbeta, s, d,
                        walk, job.stream)
        i += n
