# Gradient sums of rows with one gamma for each value: down the columns for dgamma and dbeta, along each row for dx. Of
# long rows both are made of a chunk of columns while it is in the first-level cache, for some rows together.
#
# Uses identity, leaky, pulled, relu (activations), bounded, one_nan, zero (channel_columns), products_beyond_float
# (channel_grads), Affine, EIGHTH, FETCH_SHARE, careful_short_sums, short_scaled_sums (row_short).
# Gives affine_of, column_sums, finish_sums, readable, row_numbers, sums_of_long_rows.

cdef enum:
    CHUNK = 256         # columns of long rows that stay in the first-level cache for all sums they are part of


cdef inline Py_ssize_t readable(RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t end) noexcept nogil:
    """Where the values end that may be read with those of outer position o: what another task has, it may overwrite.

    The task has the positions before `last`, and of each the groups before `end`.
    """
    return (last * job.groups if job.cuts == 1 else o * job.groups + end) * job.channels * job.inner


cdef inline void four_of_column(
    Activation act, const real* dy, const real* x, Py_ssize_t stride, const real* h, const real* r, const real* b,
    real gamma, real beta, real* sum, real* dot
) noexcept nogil:
    """sum dy and sum dy ((x - h) r + b) down four rows, dy before the activation."""
    cdef real g0 = dy[0], g1 = dy[stride], g2 = dy[2 * stride], g3 = dy[3 * stride]
    cdef real t0 = (x[0] - h[0]) * r[0] + b[0], t1 = (x[stride] - h[1]) * r[1] + b[1]
    cdef real t2 = (x[2 * stride] - h[2]) * r[2] + b[2], t3 = (x[3 * stride] - h[3]) * r[3] + b[3]
    g0 = pulled(act, t0 * gamma + beta, g0)
    g1 = pulled(act, t1 * gamma + beta, g1)
    g2 = pulled(act, t2 * gamma + beta, g2)
    g3 = pulled(act, t3 * gamma + beta, g3)
    sum[0] = (g0 + g1) + (g2 + g3)
    dot[0] = (g0 * t0 + g1 * t1) + (g2 * t2 + g3 * t3)


cdef inline void stripe_sums(
    Activation act, const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t n,
    const Affine* of, Py_ssize_t k, double* dgamma, double* dbeta
) noexcept nogil:
    """column_sums of eight rows from row k on, of four, or of one."""
    cdef const real* h = <const real*>of.h + k
    cdef const real* r = <const real*>of.r + k
    cdef const real* b = <const real*>of.b + k
    cdef const real* gamma = <const real*>of.gamma
    cdef const real* beta = <const real*>of.beta
    cdef Py_ssize_t j, four = 4 * stride
    cdef real sum, dot, more, more_dot
    if rows == 8:
        for j in range(n):
            four_of_column(act, dy + j, x + j, stride, h, r, b, gamma[j], beta[j], &sum, &dot)
            four_of_column(act, dy + four + j, x + four + j, stride, h + 4, r + 4, b + 4, gamma[j], beta[j],
                           &more, &more_dot)
            dbeta[j] += <double>(sum + more)
            dgamma[j] += <double>(dot + more_dot)
    elif rows == 4:
        for j in range(n):
            four_of_column(act, dy + j, x + j, stride, h, r, b, gamma[j], beta[j], &sum, &dot)
            dbeta[j] += <double>sum
            dgamma[j] += <double>dot
    else:
        for j in range(n):
            more = (x[j] - h[0]) * r[0] + b[0]
            sum = pulled(act, more * gamma[j] + beta[j], dy[j])
            dbeta[j] += <double>sum
            dgamma[j] += <double>(sum * more)


cdef inline void column_sums(
    Activation act, const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t n,
    const Affine* of, double* dgamma, double* dbeta
) noexcept nogil:
    """dgamma += sum dy ((x - h) r + b), dbeta += sum dy over the rows of a stripe, per column."""
    cdef Py_ssize_t k = 0, step, at
    while k < rows:
        step = 8 if k + 8 <= rows else 4 if k + 4 <= rows else 1
        at = k * stride
        if act.kind == BN_IDENTITY:
            stripe_sums(identity(), dy + at, x + at, step, stride, n, of, k, dgamma, dbeta)
        elif act.kind == BN_RELU:
            stripe_sums(relu(act), dy + at, x + at, step, stride, n, of, k, dgamma, dbeta)
        else:
            stripe_sums(leaky(act), dy + at, x + at, step, stride, n, of, k, dgamma, dbeta)
        k += step


cdef inline void finish_sums(
    RowJob* job, Py_ssize_t row, Py_ssize_t step, Py_ssize_t rows, Affine of,
    const double* s, const double* d, double* sum, double* dot, const real* x
) noexcept nogil:
    """sum g and sum g (x - mean) of `rows` rows, each `step` after the other, from EIGHTH parts of both."""
    cdef const real* h = <const real*>of.h
    cdef Py_ssize_t size = job.channels, k, at, p
    for k in range(rows):
        sum[k] = bn_whole(s + k * EIGHTH)
        dot[k] = bn_whole(d + k * EIGHTH)
    if sizeof(real) == sizeof(float) and products_beyond_float(rows, size, sum, dot):
        for k in range(rows):
            if products_beyond_float(1, size, sum + k, dot + k):
                at = (row + k * step) * size
                p = (row + k * step) % job.groups * size
                of.gamma = <const real*>job.scale + p
                of.beta = <const real*>job.shift + p
                careful_short_sums(BN_SCALED, job.act, <const real*>job.dy + at, x + at, size, &of, k, sum + k, dot + k)
    for k in range(rows):
        dot[k] -= (job.mean[row + k * step] - <double>h[k]) * sum[k]


cdef inline void row_numbers(
    RowJob* job, Py_ssize_t row, Py_ssize_t step, Py_ssize_t rows, real* h, real* r, real* b
) noexcept nogil:
    """What makes (x - h) r + b of the values of `rows` rows, each `step` after the other."""
    cdef Py_ssize_t k
    cdef double gain
    cdef const double* mean = job.mean + row
    cdef const double* rstd = job.rstd + row
    for k in range(rows):
        h[k] = <real>mean[k * step]
        gain = bounded(rstd[k * step], h)
        r[k] = <real>gain
        b[k] = <real>bn_fold(<double>h[k], mean[k * step], gain, 0.0)
        one_nan(&h[k], &r[k], &b[k])


cdef inline Affine affine_of(RowJob* job, const real* h, const real* r, const real* b, Py_ssize_t p) noexcept nogil:
    """Those numbers, with gamma and beta from channel p on."""
    cdef Affine of
    of.h = h
    of.r = r
    of.b = b
    of.gamma = <const real*>job.scale + p
    of.beta = <const real*>job.shift + p
    return of


cdef void sums_of_long_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t g, Py_ssize_t last, Py_ssize_t end,
    double* dgamma, double* dbeta, double* sum, double* dot, bn_ahead* ahead, const real* x
) noexcept nogil:
    """sum and dot of dy gamma of group g at `rows` outer positions, and their part in dgamma and dbeta."""
    cdef real[STRIPE] h, r, b
    cdef double[STRIPE * EIGHTH] s, d
    cdef double[CHUNK] along, across    # of their own: dgamma and dbeta of float64 might be x and dy, for the compiler
    cdef Py_ssize_t size = job.channels, p = g * size, stride = job.groups * size, at = o * stride + p
    cdef Py_ssize_t row = o * job.groups + g, i = 0, j, k, n
    cdef const real* dy = <const real*>job.dy
    cdef Affine of
    row_numbers(job, row, job.groups, rows, h, r, b)
    zero(s, rows * EIGHTH)
    zero(d, rows * EIGHTH)
    while i < size:
        n = min(<Py_ssize_t>CHUNK, size - i)
        of = affine_of(job, h, r, b, p + i)
        zero(along, n)
        zero(across, n)
        j = at + i
        if job.params:
            column_sums(job.act, dy + j, x + j, rows, stride, n, &of, along, across)
        for k in range(rows):
            if ahead != NULL:
                bn_fetch_early(ahead, n * sizeof(real) // FETCH_SHARE)
            short_scaled_sums(job.act, dy + j, x + j, n, readable(job, o + k, last, end) - j, &of, k,
                              s + k * EIGHTH, d + k * EIGHTH)
            j += stride
        if job.params:
            for j in range(n):
                dgamma[p + i + j] += along[j]
                dbeta[p + i + j] += across[j]
        i += n
    finish_sums(job, row, job.groups, rows, of, s, d, sum, dot, x)
