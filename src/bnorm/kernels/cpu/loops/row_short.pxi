# Sums of one short row or run. What starts and ends a sum costs as much here as its values do, so it is kept small:
# WIDTH partial sums in the type of x, of which EIGHTH in float64 are left after every CHAIN values of each; no blocks
# and no merging. What does not fill a vector is read together with what lies behind it, which counts as nothing: `left`
# is how many values there are to be read, and only the last ones of a task are taken one by one.
#
# float32 has no room for the squares of what is very large or small. Then the sums are made again, all in float64.

cdef enum:
    SHORT = 8192        # values up to which this is faster than the blocks of channel_moments.pxi
    WIDTH = 32          # partial sums; a loop of 16 would be unrolled before it could be vectorized
    CHAIN = 8           # values that are added to one of them before it is added in float64
    EIGHTH = 8          # partial sums that are left: a vector of float64
    BATCH = 64          # rows whose statistics are finished together
    EARLY = 2           # one part in so many of what is fetched ahead is fetched while sums are made


cdef inline void narrow(const real* wide, double* eight) noexcept nogil:
    """Add WIDTH partial sums to EIGHTH in float64."""
    if real is float:
        bn_narrow_float(wide, eight)
    else:
        bn_narrow_double(wide, eight)


cdef inline void clear(real* s, real* q) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(WIDTH):
        s[j] = 0
        q[j] = 0


cdef inline void short_sums(
    const real* x, Py_ssize_t n, Py_ssize_t left, real center, double* sum, double* square
) noexcept nogil:
    """sum (x - center) and sum (x - center)^2, added to EIGHTH parts of each."""
    cdef real[WIDTH] s, q
    cdef Py_ssize_t i = 0, end
    cdef int32_t j, rest = n % WIDTH     # as wide as a float32, for the masks
    cdef real d
    while i < n:
        end = min(i + CHAIN * WIDTH, n)
        clear(s, q)
        while i + WIDTH <= end:
            for j in range(WIDTH):
                d = x[i + j] - center
                s[j] += d
                q[j] += d * d
            i += WIDTH
        if i < end and i + WIDTH <= left:
            for j in range(WIDTH):
                d = x[i + j] - center if j < rest else 0
                s[j] += d
                q[j] += d * d
        elif i < end:
            for j in range(rest):
                d = x[i + j] - center
                s[j] += d
                q[j] += d * d
        i = end
        narrow(s, sum)
        narrow(q, square)


cdef void careful_short_sums(const real* x, Py_ssize_t n, real center, double* sum, double* square) noexcept nogil:
    """Both sums in float64."""
    cdef Py_ssize_t i
    cdef double d
    sum[0] = 0.0
    square[0] = 0.0
    for i in range(n):
        d = <double>x[i] - <double>center
        sum[0] += d
        square[0] += d * d


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
    const real* x, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t left, int rule, double eps, double* mean, double* rstd,
    bn_ahead* ahead
) noexcept nogil:
    """mean and rstd of `rows` rows of `size` values: the sums of each, then the divisions of all. ahead: NULL, or the
    walk through memory that the maps after it are on.

    Summed about the mean of a sample, which is at most about two standard deviations from the mean (Cauchy-Schwarz).
    """
    cdef real[BATCH] center
    cdef double[BATCH * EIGHTH] s, q
    cdef double[BATCH] sum, square
    cdef double values = 1.0, low, m2, n = size
    cdef bint about_zero = rule == BN_MEAN_SQUARE
    cdef Py_ssize_t k
    for k in range(rows):
        center[k] = 0 if about_zero else x[k * size]
    zero(s, rows * EIGHTH)
    zero(q, rows * EIGHTH)
    if not about_zero:
        for k in range(rows):
            values = short_sample(x + k * size, size, left - k * size, &s[k * EIGHTH])
        for k in range(rows):
            center[k] += <real>(bn_whole(&s[k * EIGHTH]) / values)
        zero(s, rows * EIGHTH)
    for k in range(rows):
        if ahead != NULL:
            bn_fetch_early(ahead, size * sizeof(real) // EARLY)
        short_sums(x + k * size, size, left - k * size, center[k], &s[k * EIGHTH], &q[k * EIGHTH])
    for k in range(rows):
        sum[k] = bn_whole(&s[k * EIGHTH])
        square[k] = bn_whole(&q[k * EIGHTH])
    if real is float:
        for k in range(rows):
            if not (1e-36 * n <= square[k] < INFINITY):
                center[k] = 0 if about_zero else x[k * size]
                careful_short_sums(x + k * size, size, center[k], &sum[k], &square[k])
    for k in range(rows):
        low = 0.0 if about_zero else sum[k] / n
        m2 = square[k] - low * sum[k]
        mean[k] = <double>center[k] + low
        rstd[k] = bn_rstd((0.0 if m2 < 0.0 else m2) / n, eps, n)


cdef void careful_short_pair_sums(
    const real* dy, const real* x, Py_ssize_t n, real h, double* sum, double* dot
) noexcept nogil:
    """sum dy and sum dy (x - h) in float64."""
    cdef Py_ssize_t i
    sum[0] = 0.0
    dot[0] = 0.0
    for i in range(n):
        sum[0] += <double>dy[i]
        dot[0] += <double>dy[i] * (<double>x[i] - <double>h)


cdef inline void short_pair_sums(
    const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, double mean, double* sum, double* dot
) noexcept nogil:
    """sum dy and sum dy (x - mean)."""
    cdef real[WIDTH] s, d
    cdef double[2 * EIGHTH] sums
    cdef Py_ssize_t i = 0, end
    cdef int32_t j, rest = n % WIDTH
    cdef real g, t, h = <real>mean
    zero(sums, 2 * EIGHTH)
    while i < n:
        end = min(i + CHAIN * WIDTH, n)
        clear(s, d)
        while i + WIDTH <= end:
            for j in range(WIDTH):
                g = dy[i + j]
                s[j] += g
                d[j] += g * (x[i + j] - h)
            i += WIDTH
        if i < end and i + WIDTH <= left:
            for j in range(WIDTH):
                g = dy[i + j] if j < rest else 0
                t = x[i + j] - h if j < rest else 0
                s[j] += g
                d[j] += g * t
        elif i < end:
            for j in range(rest):
                s[j] += dy[i + j]
                d[j] += dy[i + j] * (x[i + j] - h)
        i = end
        narrow(s, sums)
        narrow(d, sums + EIGHTH)
    sum[0] = bn_whole(sums)
    dot[0] = bn_whole(sums + EIGHTH)
    if real is float and products_beyond_float(1, n, sum, dot):
        careful_short_pair_sums(dy, x, n, h, sum, dot)
    dot[0] -= (mean - <double>h) * sum[0]
