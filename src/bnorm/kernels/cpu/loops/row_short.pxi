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
    ONCE = 129          # from this many values on a row is read once for both sums


cdef inline int poor(double n, double off, double most, double square, const real* x) noexcept nogil:
    """Whether the sums of a row must be computed again: n off^2, where off is the distance of what was summed about
    from the mean, is more than `most` times the sum of squares, or the squares left the range of float32."""
    cdef int good = off * off * n <= most * square
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


cdef inline void sums_at_once(
    const real* x, Py_ssize_t rows, Py_ssize_t size, bn_ahead* ahead, int sent,
    double* center, double* off, double* sum, double* square
) noexcept nogil:
    """Compute both sums of each row about a center that a few of its values give, and how far that is from the mean."""
    cdef real[BATCH] near
    cdef double[BATCH * EIGHTH] of_sum, of_square
    cdef Py_ssize_t k
    if ahead == NULL:
        for k in range(rows):
            near[k] = <real>bn_near_mean(x + k * size, size)
    for k in range(rows):
        if ahead != NULL:   # row by row, as the rows behind have not been fetched yet
            near[k] = <real>bn_near_mean(x + k * size, size)
            bn_fetch_on(ahead, x + k * size, NULL, size * sizeof(real), sent)
        bn_row_squares(x + k * size, size, near[k], of_sum + k * EIGHTH, of_square + k * EIGHTH)
    bn_wholes(rows, of_sum, sum)
    bn_wholes(rows, of_square, square)
    for k in range(rows):
        center[k] = near[k]
        off[k] = sum[k] / size


cdef inline void sums_by_turns(
    const real* x, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t left, bn_ahead* ahead, int sent, bint about_zero,
    double* center, double* off, double* sum, double* square
) noexcept nogil:
    """Compute the mean of each row about its first value, then both sums about that mean, and how far the first value
    is from it; or the squares about 0 alone."""
    cdef real[BATCH] mean
    cdef double[BATCH * EIGHTH] eight
    cdef Py_ssize_t k
    if about_zero:
        for k in range(rows):
            sum[k] = mean[k] = off[k] = 0.0
    else:
        for k in range(rows):
            if ahead != NULL:
                bn_fetch_on(ahead, x + k * size, NULL, size * sizeof(real), sent)
            bn_row_sum(False, x + k * size, size, left - k * size, x[k * size], eight + k * EIGHTH)
        bn_wholes(rows, eight, sum)
        for k in range(rows):
            mean[k] = <real>(<double>x[k * size] + sum[k] / size)
            off[k] = <double>x[k * size] - <double>mean[k]
            sum[k] += off[k] * size
    for k in range(rows):
        if about_zero and ahead != NULL:
            bn_fetch_on(ahead, x + k * size, NULL, size * sizeof(real), sent)
        bn_row_sum(True, x + k * size, size, left - k * size, mean[k], eight + k * EIGHTH)
    bn_wholes(rows, eight, square)
    for k in range(rows):
        center[k] = mean[k]


cdef void short_moments(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t left, bn_ahead* ahead, const real* x
) noexcept nogil:
    """Store mean and rstd of `rows` rows of `size` values from x on: the sums of each row, then the divisions for all.

    ahead: NULL, or the walk of the task, which the maps go on with.
    """
    cdef double[BATCH] center, off, sum, square
    cdef double n = size, first
    cdef bint about_zero = job.rule == BN_MEAN_SQUARE, once = size >= ONCE and not about_zero
    cdef double most = 0.2 if once else 16.0    # so a quarter of the squares about the mean, or sixteen times as much
    cdef int bad = 0
    cdef Py_ssize_t k
    if once:
        sums_at_once(x, rows, size, ahead, job.stream, center, off, sum, square)
    else:
        sums_by_turns(x, rows, size, left, ahead, job.stream, about_zero, center, off, sum, square)
    for k in range(rows):
        bad |= poor(n, off[k], most, square[k], x)
    if bad:
        for k in range(rows):
            if poor(n, off[k], most, square[k], x):
                first = 0.0 if about_zero else x[k * size]
                center[k] = <real>(center[k] + (off[k] if once else 0.0))
                sum_again(x + k * size, size, left - k * size, first, &center[k], &sum[k], &square[k])
    bn_row_statistics(rows, n, job.eps, not about_zero, center, sum, square, job.mean + row, job.rstd + row)


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
