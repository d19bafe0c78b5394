# Sums of one short row or run. To begin and finish a sum takes as long here as to add its values, so little is done:
# WIDTH partial sums in the type of x are added to EIGHTH float64 sums after every few values, without blocks or
# merging. The last values, which do not fill a vector, are read together with what is behind them, which counts as 0.
# `left` is how many values may be read; only the last values of a task are added one by one.
#
# float32 cannot hold the squares of very large or very small values. Then the sums are computed again, in float64.
#
# Uses zero (channel_columns), products_beyond_float (channel_grads), numbers_of_runs (row_maps).
# Gives BATCH, EIGHTH, SHORT, WIDTH, short_moments, short_pair_sums.

cdef enum:
    SHORT = 8192        # up to this many values, this is faster than the blocks of channel_moments.pxi
    WIDTH = BN_WIDTH
    EIGHTH = 8          # partial sums that are left: a vector of float64
    BATCH = BN_BATCH

cdef inline int poor(double n, double first, double center, double square, const real* x) noexcept nogil:
    """Whether the sums of a row must be computed again: the first value, about which all were summed, is more than
    four standard deviations from their mean, or the squares left the range of float32."""
    cdef double off = first - center
    cdef int good = off * off * n <= 16.0 * square
    if real is float:
        good &= (BN_LEAST_SQUARE * n <= square) & (square < INFINITY)
    return not good


cdef void sum_again(
    const real* x, Py_ssize_t n, Py_ssize_t left, double first, double* center, double* sum, double* square
) noexcept nogil:
    """Compute both sums of a row about its center; if float32 cannot hold the squares, about its first value and in
    float64."""
    cdef double[EIGHTH] eight
    cdef real h = <real>center[0]
    cdef Numbers of = no_numbers()
    bn_row_sum(False, x, n, left, h, eight)
    sum[0] = bn_whole(eight)
    bn_row_sum(True, x, n, left, h, eight)
    square[0] = bn_whole(eight)
    if sizeof(real) == sizeof(float) and not (BN_LEAST_SQUARE * n <= square[0] < INFINITY):
        center[0] = first
        h = <real>first
        of.h = &h
        sum[0] = square[0] = 0.0
        bn_careful_sums(identity(), BN_SQUARES, x, x, n, &of, 0, sum, square)


cdef void short_moments(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t left, bn_ahead* ahead, const real* x
) noexcept nogil:
    """Store mean and rstd of `rows` rows of `size` values from x on: the sums of each row, then the divisions for all.

    The mean of a row is computed about its first value, then the squares about that mean.

    ahead: NULL, or the walk of the task, which the maps go on with.
    """
    cdef real[BATCH] center
    cdef double[BATCH * EIGHTH] eight
    cdef double[BATCH] first, sum, square, about
    cdef double n = size
    cdef int bad = 0
    cdef bint about_zero = job.rule == BN_MEAN_SQUARE
    cdef Py_ssize_t k
    for k in range(rows):
        first[k] = about[k] = sum[k] = 0.0
    if not about_zero:
        for k in range(rows):
            if ahead != NULL:
                bn_fetch_on(ahead, x + k * size, NULL, size * sizeof(real), job.stream)
            bn_row_sum(False, x + k * size, size, left - k * size, x[k * size], eight + k * EIGHTH)
        bn_wholes(rows, eight, sum)
        for k in range(rows):
            first[k] = x[k * size]
    for k in range(rows):
        center[k] = <real>(first[k] + sum[k] / n)
    for k in range(rows):
        bn_row_sum(True, x + k * size, size, left - k * size, center[k], eight + k * EIGHTH)
    bn_wholes(rows, eight, square)
    for k in range(rows):
        about[k] = center[k]
        sum[k] += (first[k] - about[k]) * n
        bad |= poor(n, first[k], about[k], square[k], x)
    if bad:
        for k in range(rows):
            if poor(n, first[k], about[k], square[k], x):
                sum_again(x + k * size, size, left - k * size, first[k], &about[k], &sum[k], &square[k])
    bn_row_statistics(rows, n, job.eps, not about_zero, about, sum, square, job.mean + row, job.rstd + row)


cdef inline void short_pair_sums(
    Activation act, const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, double mean, real a, real b,
    double* sum, double* dot
) noexcept nogil:
    """Compute sum dy and sum dy (x - mean), with dy before the activation of (x - h) a + b, where h is the mean
    rounded to the type of x."""
    cdef double[2 * EIGHTH] sums
    cdef real h = <real>mean
    cdef Numbers of = numbers_of_runs(&h, &a, &b)
    zero(sums, 2 * EIGHTH)
    by_kind(bn_short_sums, act, BN_PAIRS, dy, x, n, left, &of, 0, &sums[0], &sums[EIGHTH])
    sum[0] = bn_whole(sums)
    dot[0] = bn_whole(sums + EIGHTH)
    if real is float and products_beyond_float(1, n, sum, dot):
        sum[0] = dot[0] = 0.0
        bn_careful_sums(act, BN_PAIRS, dy, x, n, &of, 0, sum, dot)
    dot[0] -= (mean - <double>h) * sum[0]
