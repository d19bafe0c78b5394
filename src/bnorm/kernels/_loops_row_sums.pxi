# Gradient sums of rows with one gamma for each value: down the columns for dgamma and dbeta, along each row for dx. Of
# long rows both are made of a chunk of columns while it is in the first-level cache, for some rows together.

cdef enum:
    CHUNK = 512         # columns of long rows that stay in the first-level cache for all sums they are part of
    DEEP = 8            # long rows whose sums are made together; beyond NEAREST it is STRIPE


cdef inline real passed(real dy, real t, real gamma, real beta) noexcept nogil:
    """dy where the forward's ReLU let the value through."""
    return 0 if t * gamma + beta <= 0 else dy


cdef inline void column_sums(
    const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t n,
    const real* h, const real* r, const real* b, const real* gamma, const real* beta, bint relu,
    double* dgamma, double* dbeta
) noexcept nogil:
    """dgamma += sum dy ((x - h) r + b), dbeta += sum dy over the rows of a stripe, per column."""
    cdef Py_ssize_t i, j
    cdef real g0, g1, g2, g3, t0, t1, t2, t3
    if rows == STRIPE and not relu:
        for j in range(n):
            g0 = dy[j]
            g1 = dy[stride + j]
            g2 = dy[2 * stride + j]
            g3 = dy[3 * stride + j]
            t0 = (x[j] - h[0]) * r[0] + b[0]
            t1 = (x[stride + j] - h[1]) * r[1] + b[1]
            t2 = (x[2 * stride + j] - h[2]) * r[2] + b[2]
            t3 = (x[3 * stride + j] - h[3]) * r[3] + b[3]
            dbeta[j] += <double>((g0 + g1) + (g2 + g3))
            dgamma[j] += <double>((g0 * t0 + g1 * t1) + (g2 * t2 + g3 * t3))
    elif rows == STRIPE:
        for j in range(n):
            t0 = (x[j] - h[0]) * r[0] + b[0]
            t1 = (x[stride + j] - h[1]) * r[1] + b[1]
            t2 = (x[2 * stride + j] - h[2]) * r[2] + b[2]
            t3 = (x[3 * stride + j] - h[3]) * r[3] + b[3]
            g0 = passed(dy[j], t0, gamma[j], beta[j])
            g1 = passed(dy[stride + j], t1, gamma[j], beta[j])
            g2 = passed(dy[2 * stride + j], t2, gamma[j], beta[j])
            g3 = passed(dy[3 * stride + j], t3, gamma[j], beta[j])
            dbeta[j] += <double>((g0 + g1) + (g2 + g3))
            dgamma[j] += <double>((g0 * t0 + g1 * t1) + (g2 * t2 + g3 * t3))
    else:
        for i in range(rows):
            for j in range(n):
                t0 = (x[i * stride + j] - h[i]) * r[i] + b[i]
                g0 = passed(dy[i * stride + j], t0, gamma[j], beta[j]) if relu else dy[i * stride + j]
                dbeta[j] += <double>g0
                dgamma[j] += <double>(g0 * t0)


cdef inline real masked(real dy, real x, real h, real r, real b, real gamma, real beta) noexcept nogil:
    """g = dy gamma, 0 where the forward's ReLU cut."""
    return 0 if ((x - h) * r + b) * gamma + beta <= 0 else dy * gamma


cdef inline void scaled_gradient(
    const real* dy, const real* x, real* g, Py_ssize_t n, real h, real r, real b,
    const real* gamma, const real* beta, bint relu
) noexcept nogil:
    """g = dy gamma, 0 where the forward's ReLU cut."""
    cdef Py_ssize_t j
    if relu:
        for j in range(n):
            g[j] = masked(dy[j], x[j], h, r, b, gamma[j], beta[j])
    else:
        for j in range(n):
            g[j] = dy[j] * gamma[j]


cdef inline void four_scaled(
    const real* dy, const real* x, real h, const real* gamma, real* sum, real* dot
) noexcept nogil:
    """sum g and sum g (x - h), g = dy gamma, of four values WIDTH apart."""
    cdef real g0 = dy[0] * gamma[0], g1 = dy[WIDTH] * gamma[WIDTH]
    cdef real g2 = dy[2 * WIDTH] * gamma[2 * WIDTH], g3 = dy[3 * WIDTH] * gamma[3 * WIDTH]
    sum[0] = (g0 + g1) + (g2 + g3)
    dot[0] = (g0 * (x[0] - h) + g1 * (x[WIDTH] - h)) + (g2 * (x[2 * WIDTH] - h) + g3 * (x[3 * WIDTH] - h))


cdef inline void four_masked(
    const real* dy, const real* x, real h, real r, real b, const real* gamma, const real* beta, real* sum, real* dot
) noexcept nogil:
    """The same with ReLU."""
    cdef real g0 = masked(dy[0], x[0], h, r, b, gamma[0], beta[0])
    cdef real g1 = masked(dy[WIDTH], x[WIDTH], h, r, b, gamma[WIDTH], beta[WIDTH])
    cdef real g2 = masked(dy[2 * WIDTH], x[2 * WIDTH], h, r, b, gamma[2 * WIDTH], beta[2 * WIDTH])
    cdef real g3 = masked(dy[3 * WIDTH], x[3 * WIDTH], h, r, b, gamma[3 * WIDTH], beta[3 * WIDTH])
    sum[0] = (g0 + g1) + (g2 + g3)
    dot[0] = (g0 * (x[0] - h) + g1 * (x[WIDTH] - h)) + (g2 * (x[2 * WIDTH] - h) + g3 * (x[3 * WIDTH] - h))


cdef inline void lane_sums(
    const real* dy, const real* x, Py_ssize_t n, real h, real r, real b,
    const real* gamma, const real* beta, bint relu, double* s, double* d
) noexcept nogil:
    """s += sum g, d += sum g (x - h) over every WIDTH-th value of a part of a row: eight at a time, then one."""
    cdef Py_ssize_t i = 0, j, k
    cdef real g, sum, dot, more, more_dot
    while i + 8 * WIDTH <= n:
        if relu:
            for j in range(WIDTH):
                k = i + j
                four_masked(dy + k, x + k, h, r, b, gamma + k, beta + k, &sum, &dot)
                k += 4 * WIDTH
                four_masked(dy + k, x + k, h, r, b, gamma + k, beta + k, &more, &more_dot)
                s[j] += <double>(sum + more)
                d[j] += <double>(dot + more_dot)
        else:
            for j in range(WIDTH):
                k = i + j
                four_scaled(dy + k, x + k, h, gamma + k, &sum, &dot)
                k += 4 * WIDTH
                four_scaled(dy + k, x + k, h, gamma + k, &more, &more_dot)
                s[j] += <double>(sum + more)
                d[j] += <double>(dot + more_dot)
        i += 8 * WIDTH
    while i < n:
        for j in range(i, min(n, i + WIDTH)):
            g = masked(dy[j], x[j], h, r, b, gamma[j], beta[j]) if relu else dy[j] * gamma[j]
            s[j - i] += <double>g
            d[j - i] += <double>(g * (x[j] - h))
        i += WIDTH


cdef void careful_scaled_sums(
    const real* dy, const real* x, Py_ssize_t size, real h, real r, real b,
    const real* gamma, const real* beta, bint relu, double* sum, double* dot
) noexcept nogil:
    """sum g and sum g (x - h) of one row, where a product left the range of float32."""
    cdef real[BUFFER] scaled
    cdef real[LANES] lanes
    cdef double[LANES] s, d
    cdef Py_ssize_t i = 0, j, n
    for j in range(LANES):
        lanes[j] = h
    sum[0] = 0.0
    dot[0] = 0.0
    while i < size:
        n = min(<Py_ssize_t>BUFFER, size - i)
        scaled_gradient(dy + i, x + i, scaled, n, h, r, b, gamma + i, beta + i, relu)
        careful_pair_sums(scaled, x + i, n // LANES, LANES, LANES, n % LANES, lanes, NULL, NULL, False, False, s, d)
        sum[0] += lane_sum(s, LANES)
        dot[0] += lane_sum(d, LANES)
        i += n


cdef inline void row_numbers(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t g, real* h, real* r, real* b
) noexcept nogil:
    """What makes (x - h) r + b of the values of group g at `rows` outer positions."""
    cdef Py_ssize_t k, row
    for k in range(rows):
        row = (o + k) * job.groups + g
        h[k] = <real>job.mean[row]
        r[k] = <real>job.rstd[row]
        b[k] = <real>bn_fold(<double>h[k], job.mean[row], job.rstd[row], 0.0)


cdef void sums_of_long_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t g, double* dgamma, double* dbeta,
    double* sum, double* dot, const real* x
) noexcept nogil:
    """sum and dot of dy gamma of group g at `rows` outer positions, and their part in dgamma and dbeta."""
    cdef real[DEEP] h, r, b
    cdef double[DEEP * WIDTH] s, d
    cdef double[CHUNK] along, across    # of their own: dgamma and dbeta of float64 might be x and dy, for the compiler
    cdef Py_ssize_t size = job.channels, p = g * size, stride = job.groups * size, at = o * stride + p
    cdef Py_ssize_t i = 0, j, k, n, end
    cdef const real* dy = <const real*>job.dy + at
    cdef const real* gamma = <const real*>job.scale + p
    cdef const real* beta = <const real*>job.shift + p
    x += at
    row_numbers(job, o, rows, g, h, r, b)
    zero(s, rows * WIDTH)
    zero(d, rows * WIDTH)
    while i < size:
        n = min(<Py_ssize_t>CHUNK, size - i)
        zero(along, n)
        zero(across, n)
        k = 0
        while k < rows:
            end = min(k + STRIPE, rows)
            j = k * stride + i
            if job.params:
                column_sums(dy + j, x + j, end - k, stride, n, h + k, r + k, b + k, gamma + i, beta + i, job.relu,
                            along, across)
            while k < end:
                j = k * stride + i
                lane_sums(dy + j, x + j, n, h[k], r[k], b[k], gamma + i, beta + i, job.relu,
                          s + k * WIDTH, d + k * WIDTH)
                k += 1
        if job.params:
            for j in range(n):
                dgamma[p + i + j] += along[j]
                dbeta[p + i + j] += across[j]
        i += n
    for k in range(rows):
        sum[k] = lane_sum(s + k * WIDTH, WIDTH)
        dot[k] = lane_sum(d + k * WIDTH, WIDTH)
        if sizeof(real) == sizeof(float) and products_beyond_float(1, size, sum + k, dot + k):
            j = k * stride
            careful_scaled_sums(dy + j, x + j, size, h[k], r[k], b[k], gamma, beta, job.relu, sum + k, dot + k)
        dot[k] -= (job.mean[(o + k) * job.groups + g] - <double>h[k]) * sum[k]
