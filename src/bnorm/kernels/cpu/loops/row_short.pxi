# Sums of one short row or run. What starts and ends a sum costs as much here as its values do, so it is kept small:
# WIDTH partial sums in the type of x, of which EIGHTH in float64 are left after every few values of each; no blocks and
# no merging. What does not fill a vector is read together with what lies behind it, which counts as nothing: `left` is
# how many values there are to be read, and only the last ones of a task are taken one by one.
#
# float32 has no room for the squares of what is very large or small. Then the sums are made again, all in float64.
#
# Uses identity, leaky, pulled, relu (activations), zero (channel_columns), products_beyond_float (channel_grads).
# Gives Affine, BATCH, EIGHTH, FETCH_SHARE, SHORT, WIDTH, careful_short_sums, scaled, short_moments, short_pair_sums,
# short_scaled_sums, short_sums, together.

cdef enum:
    SHORT = 8192        # values up to which this is faster than the blocks of channel_moments.pxi
    WIDTH = BN_WIDTH
    EIGHTH = 8          # partial sums that are left: a vector of float64
    BATCH = BN_BATCH    # rows whose statistics are finished together
    FETCH_SHARE = 2     # one part in so many of what is fetched ahead is fetched while sums are made

# How the values of some rows become v = ((x - h) r + b) gamma + beta: a number for each row, or for each of its values.
ctypedef struct Affine:
    const void* h
    const void* r
    const void* b
    const void* gamma
    const void* beta


cdef inline real scaled(
    Activation act, real dy, real x, real h, real r, real b, real gamma, real beta
) noexcept nogil:
    """dy gamma, dy being brought before the activation of the forward."""
    if act.kind == BN_IDENTITY:
        return dy * gamma
    return pulled(act, ((x - h) * r + b) * gamma + beta, dy * gamma)


cdef inline void narrow(const real* wide, double* eight) noexcept nogil:
    """Add WIDTH partial sums to EIGHTH in float64."""
    if real is float:
        bn_narrow_float(wide, eight)
    else:
        bn_narrow_double(wide, eight)


cdef inline Py_ssize_t together(const RowJob* job) noexcept nogil:
    """Values of short rows whose gradients are made together. The more, the less their sums take of the time; but while
    those are made nothing is written, and while the maps are made little is read, so from further away fewer is faster.
    """
    return BUFFER // 4 if job.stream or job.far else BUFFER


cdef inline void short_sums(
    int what, Activation act, const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, const Affine* of,
    Py_ssize_t k, double* sum, double* dot
) noexcept nogil:
    """sum g and sum g (x - h) of n values of row k, added to EIGHTH parts of each; lanes.h says what g is."""
    cdef real h = (<const real*>of.h)[k]
    cdef real r = 0 if what != BN_SCALED else (<const real*>of.r)[k]
    cdef real b = 0 if what != BN_SCALED else (<const real*>of.b)[k]
    if real is float:
        bn_short_sums_float(what, act.kind, <float>act.slope, dy, x, n, left, h, r, b,
                            <const float*>of.gamma, <const float*>of.beta, sum, dot)
    else:
        bn_short_sums_double(what, act.kind, act.slope, dy, x, n, left, h, r, b,
                             <const double*>of.gamma, <const double*>of.beta, sum, dot)


cdef void careful_short_sums(
    int what, Activation act, const real* dy, const real* x, Py_ssize_t n, const Affine* of, Py_ssize_t k,
    double* sum, double* dot
) noexcept nogil:
    """Both sums of a whole row in float64, where a product left the range of float32."""
    cdef const real* gamma = <const real*>of.gamma
    cdef const real* beta = <const real*>of.beta
    cdef real h = (<const real*>of.h)[k]
    cdef Py_ssize_t i
    cdef double g, t
    sum[0] = 0.0
    dot[0] = 0.0
    for i in range(n):
        t = <double>x[i] - <double>h
        if what == BN_SQUARES:
            g = t
        elif what == BN_PAIRS:
            g = dy[i]
        else:
            g = scaled(act, dy[i], x[i], h, (<const real*>of.r)[k], (<const real*>of.b)[k], gamma[i], beta[i])
        sum[0] += g
        dot[0] += g * t


cdef inline double short_sample(const real* x, Py_ssize_t n, Py_ssize_t left, double* sum) noexcept nogil:
    """sum (x - x[0]) over the first quarter of whole vectors, added to EIGHTH parts; returns over how many values."""
    cdef real[WIDTH] s
    cdef Py_ssize_t i = 0, size = (n // WIDTH + 3) // 4 * WIDTH
    cdef int32_t j, rest = n % WIDTH
    cdef real first = x[0]
    for j in range(WIDTH):
        s[j] = 0
    while i < size:
        for j in range(WIDTH):
            s[j] += x[i + j] - first
        i += WIDTH
    if size == 0 and WIDTH <= left:
        for j in range(WIDTH):
            s[j] = x[j] - first if j < rest else 0
    elif size == 0:
        for j in range(rest):
            s[j] = x[j] - first
    narrow(s, sum)
    return size if size else n


cdef void short_moments(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t left, bn_ahead* ahead, const real* x
) noexcept nogil:
    """mean and rstd of `rows` rows of `size` values from x on: the sums of each, then the divisions of all.

    ahead: NULL, or the walk through memory that the maps after it are on.

    Summed about the mean of a sample, which is at most about two standard deviations from the mean (Cauchy-Schwarz).
    """
    cdef real[BATCH] center
    cdef double[BATCH * EIGHTH] s, q
    cdef double[BATCH] sum, square
    cdef double[BATCH] about
    cdef double values = 1.0, n = size
    cdef int bad = 0
    cdef bint about_zero = job.rule == BN_MEAN_SQUARE
    cdef Affine of
    cdef Py_ssize_t k
    of.h = center
    of.gamma = of.beta = x      # which nobody reads
    for k in range(rows):
        center[k] = 0 if about_zero else x[k * size]
    zero(s, rows * EIGHTH)
    zero(q, rows * EIGHTH)
    if not about_zero:
        for k in range(rows):
            values = short_sample(x + k * size, size, left - k * size, &s[k * EIGHTH])
        bn_wholes(rows, s, sum)
        for k in range(rows):
            center[k] += <real>(sum[k] / values)
        zero(s, rows * EIGHTH)
    for k in range(rows):
        if ahead != NULL:
            bn_fetch_early(ahead, size * sizeof(real) // FETCH_SHARE)
        short_sums(BN_SQUARES, identity(), x, x + k * size, size, left - k * size, &of, k,
                   &s[k * EIGHTH], &q[k * EIGHTH])
    bn_wholes(rows, s, sum)
    bn_wholes(rows, q, square)
    if real is float:
        for k in range(rows):
            bad |= not (1e-36 * n <= square[k])
            bad |= not (square[k] < INFINITY)
    if bad:
        for k in range(rows):
            if not (1e-36 * n <= square[k] < INFINITY):
                center[k] = 0 if about_zero else x[k * size]
                careful_short_sums(BN_SQUARES, identity(), x, x + k * size, size, &of, k, &sum[k], &square[k])
    for k in range(rows):
        about[k] = center[k]
    bn_row_statistics(rows, n, job.eps, not about_zero, about, sum, square, job.mean + row, job.rstd + row)


cdef inline void short_pair_sums(
    const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, double mean, double* sum, double* dot
) noexcept nogil:
    """sum dy and sum dy (x - mean)."""
    cdef double[2 * EIGHTH] sums
    cdef real h = <real>mean
    cdef Affine of
    of.h = &h
    of.gamma = of.beta = x      # which nobody reads
    zero(sums, 2 * EIGHTH)
    short_sums(BN_PAIRS, identity(), dy, x, n, left, &of, 0, sums, sums + EIGHTH)
    sum[0] = bn_whole(sums)
    dot[0] = bn_whole(sums + EIGHTH)
    if real is float and products_beyond_float(1, n, sum, dot):
        careful_short_sums(BN_PAIRS, identity(), dy, x, n, &of, 0, sum, dot)
    dot[0] -= (mean - <double>h) * sum[0]


cdef inline void short_scaled_sums(
    Activation act, const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, const Affine* of, Py_ssize_t k,
    double* sum, double* dot
) noexcept nogil:
    """sum g and sum g (x - h) of n values of row k, g being `scaled`: added to EIGHTH parts."""
    if act.kind == BN_IDENTITY:
        short_sums(BN_SCALED, identity(), dy, x, n, left, of, k, sum, dot)
    elif act.kind == BN_RELU:
        short_sums(BN_SCALED, relu(act), dy, x, n, left, of, k, sum, dot)
    else:
        short_sums(BN_SCALED, leaky(act), dy, x, n, left, of, k, sum, dot)
