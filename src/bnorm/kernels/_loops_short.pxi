# Sums of one short row or run. What starts and ends a sum costs as much here as its values do, so it is kept small:
# WIDTH partial sums, of which EIGHTH are left to be added when those of many rows are; no blocks and no merging. What
# does not fill a vector is padded with what adds nothing.

cdef enum:
    SHORT = 768         # values up to which this is faster than the blocks of _loops_moments.pxi
    WIDTH = 32          # partial sums; a loop of 16 would be unrolled before it could be vectorized
    EIGHTH = 8          # partial sums that are left: a vector of float64
    BATCH = 64          # rows whose statistics are finished together


cdef inline void remainder(const real* x, Py_ssize_t n, real filling, real* vector) noexcept nogil:
    """The last n % WIDTH values behind as much filling as makes a vector."""
    cdef int j, skip = WIDTH - n % WIDTH
    cdef real v
    if n > WIDTH:
        for j in range(WIDTH):
            v = x[n - WIDTH + j]
            vector[j] = v if j >= skip else filling
    else:
        for j in range(WIDTH):
            vector[j] = filling
        for j in range(n):
            vector[j] = x[j]


cdef inline void short_sums(const real* x, Py_ssize_t n, real center, double* sum, double* square) noexcept nogil:
    """sum (x - center) and sum (x - center)^2, EIGHTH parts of each, in float64."""
    cdef real[WIDTH] last
    cdef double[WIDTH] s, q
    cdef Py_ssize_t r, j, rows = n // WIDTH
    cdef double d, c = <double>center
    for j in range(WIDTH):
        s[j] = 0.0
        q[j] = 0.0
    for r in range(rows):
        for j in range(WIDTH):
            d = <double>x[r * WIDTH + j] - c
            s[j] += d
            q[j] += d * d
    if n % WIDTH:
        remainder(x, n, center, last)
        for j in range(WIDTH):
            d = <double>last[j] - c
            s[j] += d
            q[j] += d * d
    bn_narrow(s, sum)
    bn_narrow(q, square)


cdef inline double short_sample(const real* x, Py_ssize_t n, double* sum) noexcept nogil:
    """sum (x - x[0]) over every fourth vector, EIGHTH parts; returns over how many values."""
    cdef real[WIDTH] last
    cdef double[WIDTH] s
    cdef Py_ssize_t r, j, rows = n // WIDTH
    cdef double first = <double>x[0]
    for j in range(WIDTH):
        s[j] = 0.0
    if rows == 0:
        remainder(x, n, x[0], last)
        for j in range(WIDTH):
            s[j] = <double>last[j] - first
        bn_narrow(s, sum)
        return n
    for r in range(0, rows, 4):
        for j in range(WIDTH):
            s[j] += <double>x[r * WIDTH + j] - first
    bn_narrow(s, sum)
    return (rows + 3) // 4 * WIDTH


cdef void short_moments(
    const real* x, Py_ssize_t rows, Py_ssize_t size, bint rms, double eps, double* mean, double* rstd
) noexcept nogil:
    """mean and rstd of `rows` rows of `size` values: the sums of each, then the divisions of all.

    float32 is summed in float64 about the first value of the row: squares lose nothing of it and have room. float64 is
    summed about the mean of a sample, at most about two standard deviations from the mean (Cauchy-Schwarz).
    """
    cdef real[BATCH] center
    cdef double[BATCH * EIGHTH] s, q
    cdef Py_ssize_t k
    cdef double[BATCH] sum, square
    cdef double values = 1.0, low, m2, n = size
    for k in range(rows):
        center[k] = 0 if rms else x[k * size]
    if real is double and not rms:
        for k in range(rows):
            values = short_sample(x + k * size, size, &s[k * EIGHTH])
        for k in range(rows):
            center[k] += bn_whole(&s[k * EIGHTH]) / values
    for k in range(rows):
        short_sums(x + k * size, size, center[k], &s[k * EIGHTH], &q[k * EIGHTH])
    for k in range(rows):
        sum[k] = 0.0 if rms else bn_whole(&s[k * EIGHTH])
        square[k] = bn_whole(&q[k * EIGHTH])
    for k in range(rows):
        low = sum[k] / n
        m2 = square[k] - sum[k] * low
        mean[k] = <double>center[k] + low
        rstd[k] = bn_rstd((0.0 if m2 < 0.0 else m2) / n, eps, n)


cdef inline void short_pair_sums(
    const real* dy, const real* x, Py_ssize_t n, double mean, double* sum, double* dot
) noexcept nogil:
    """sum dy and sum dy (x - mean), in float64, where no product of float32 is too large or too small."""
    cdef real[WIDTH] last
    cdef real[WIDTH] last_dy
    cdef double[WIDTH] s, d
    cdef Py_ssize_t r, j, rows = n // WIDTH
    cdef double g
    for j in range(WIDTH):
        s[j] = 0.0
        d[j] = 0.0
    for r in range(rows):
        for j in range(WIDTH):
            g = <double>dy[r * WIDTH + j]
            s[j] += g
            d[j] += g * (<double>x[r * WIDTH + j] - mean)
    if n % WIDTH:
        remainder(x, n, <real>mean, last)
        remainder(dy, n, 0, last_dy)
        for j in range(WIDTH):
            g = <double>last_dy[j]
            s[j] += g
            d[j] += g * (<double>last[j] - mean)
    bn_narrow(s, s)
    bn_narrow(d, d)
    sum[0] = bn_whole(s)
    dot[0] = bn_whole(d)
