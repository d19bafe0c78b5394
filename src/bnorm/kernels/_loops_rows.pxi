# Layer, group, instance and RMS norm. A row is channels * inner contiguous values with a statistic of its own; gamma
# and beta belong to its channels. The row is in cache while its statistics, its output and its gradient are made, so
# each array is read and written once.
#
# inner == 1 (layer norm, RMS norm): gamma and beta change from value to value. inner > 1: runs with one gamma each,
# which the functions for long runs serve.

cdef double second_moment(const real* x, Py_ssize_t size) noexcept nogil:
    """sum x^2."""
    cdef real[LANES] m
    cdef double[LANES] s, q
    cdef double total = 0.0, center = 0.0, count, dump, sum
    cdef Py_ssize_t i = 0, j, n, rows
    for j in range(LANES):
        m[j] = 0
    while i < size:
        n = min(<Py_ssize_t>BLOCK * LANES, size - i)
        rows = n // LANES
        zero(s, LANES)
        zero(q, LANES)
        center_sums_of_rows(x + i, rows, LANES, LANES, m, s, q, False)
        center_sums_of_rows(x + i + rows * LANES, 1, 0, n % LANES, m, s, q, False)
        sum = lane_sum(q, LANES)
        if real is float and not (1e-36 * n <= sum < INFINITY):
            careful_sums(x + i, NULL, rows, LANES, n % LANES, 1, 1, LANES, False, &center, &count, &dump, &sum)
        total += sum
        i += n
    return total


cdef void row_moments(const real* x, Py_ssize_t size, bint rms, double eps, double* mean, double* rstd) noexcept nogil:
    cdef double n = 0.0, m2 = 0.0, low = 0.0
    cdef Py_ssize_t i = 0, k
    mean[0] = 0.0
    if rms:
        rstd[0] = bn_rstd(second_moment(x, size) / size, eps, size)
        return
    while i < size:
        k = min(block_rows(NULL, i // LANES) * LANES, size - i)
        block_moments(x + i, NULL, k // LANES, LANES, k % LANES, 1, 1, LANES, False, False, &n, mean, &low, &m2)
        i += k
    mean[0] += low
    rstd[0] = bn_rstd(m2 / n, eps, n)


cdef inline void affine_columns(
    const real* x, real* y, Py_ssize_t n, real h, real r, real b, const real* gamma, const real* beta, bint relu
) noexcept nogil:
    """y = ((x - h) r + b) gamma + beta."""
    cdef Py_ssize_t j
    cdef real v
    if relu:
        for j in range(n):
            v = ((x[j] - h) * r + b) * gamma[j] + beta[j]
            y[j] = 0 if v <= 0 else v
    else:
        for j in range(n):
            y[j] = ((x[j] - h) * r + b) * gamma[j] + beta[j]


cdef inline void scaled_gradient(
    const real* dy, const real* x, real* g, Py_ssize_t n, real h, real r, real b,
    const real* gamma, const real* beta, bint relu
) noexcept nogil:
    """g = dy gamma, 0 where the forward's ReLU cut."""
    cdef Py_ssize_t j
    if relu:
        for j in range(n):
            g[j] = 0 if ((x[j] - h) * r + b) * gamma[j] + beta[j] <= 0 else dy[j] * gamma[j]
    else:
        for j in range(n):
            g[j] = dy[j] * gamma[j]


cdef inline void stripe_sums(
    const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t n,
    const real* h, const real* r, const real* b, const real* gamma, const real* beta, bint relu,
    double* dgamma, double* dbeta
) noexcept nogil:
    """dgamma += sum dy ((x - h) r + b), dbeta += sum dy over the rows of a stripe, per column."""
    cdef Py_ssize_t i, j
    cdef real g0, g1, g2, g3, t0, t1, t2, t3
    if rows == STRIPE:
        for j in range(n):
            t0 = (x[j] - h[0]) * r[0] + b[0]
            t1 = (x[stride + j] - h[1]) * r[1] + b[1]
            t2 = (x[2 * stride + j] - h[2]) * r[2] + b[2]
            t3 = (x[3 * stride + j] - h[3]) * r[3] + b[3]
            g0 = 0 if relu and t0 * gamma[j] + beta[j] <= 0 else dy[j]
            g1 = 0 if relu and t1 * gamma[j] + beta[j] <= 0 else dy[stride + j]
            g2 = 0 if relu and t2 * gamma[j] + beta[j] <= 0 else dy[2 * stride + j]
            g3 = 0 if relu and t3 * gamma[j] + beta[j] <= 0 else dy[3 * stride + j]
            dbeta[j] += <double>((g0 + g1) + (g2 + g3))
            dgamma[j] += <double>((g0 * t0 + g1 * t1) + (g2 * t2 + g3 * t3))
        return
    for i in range(rows):
        for j in range(n):
            t0 = (x[i * stride + j] - h[i]) * r[i] + b[i]
            g0 = 0 if relu and t0 * gamma[j] + beta[j] <= 0 else dy[i * stride + j]
            dbeta[j] += <double>g0
            dgamma[j] += <double>(g0 * t0)


cdef void scaled_sums(
    const real* dy, const real* x, real* scaled, Py_ssize_t size, real h, real r, real b,
    const real* gamma, const real* beta, bint relu, bint careful, double* sum, double* dot
) noexcept nogil:
    """sum g and sum g (x - h) of one row, g = dy gamma; the last BUFFER values of g stay in `scaled`."""
    cdef real[LANES] lanes
    cdef double[LANES] s, d
    cdef Py_ssize_t i = 0, j, n
    for j in range(LANES):
        lanes[j] = h
    zero(s, LANES)
    zero(d, LANES)
    sum[0] = 0.0
    dot[0] = 0.0
    while i < size:
        n = min(<Py_ssize_t>BUFFER, size - i)
        scaled_gradient(dy + i, x + i, scaled, n, h, r, b, gamma + i, beta + i, relu)
        if careful:
            careful_pair_sums(scaled, x + i, n // LANES, LANES, LANES, n % LANES, lanes, NULL, NULL, False, False, s, d)
            sum[0] += lane_sum(s, LANES)
            dot[0] += lane_sum(d, LANES)
        else:
            pair_sums_of_rows(scaled, x + i, n // LANES, LANES, LANES, lanes, s, d, False)
            j = n - n % LANES
            pair_sums_of_rows(scaled + j, x + i + j, 1, 0, n - j, lanes, s, d, False)
        i += n
    if not careful:
        sum[0] = lane_sum(s, LANES)
        dot[0] = lane_sum(d, LANES)


cdef void forward_row(RowJob* job, Py_ssize_t o, Py_ssize_t g, const real* x) noexcept nogil:
    cdef real[BUFFER] buffer
    cdef Py_ssize_t size = job.channels * job.inner, row = o * job.groups + g, at = row * size, i = 0, n, c, p
    cdef bint columns = job.inner == 1 and job.scale != NULL, whole = size <= BUFFER
    cdef real* y = <real*>job.y + at
    cdef double scale, mean
    cdef real h, r, b
    row_moments(x + at, size, job.rms, job.eps, &job.mean[row], &job.rstd[row])
    mean = job.mean[row]
    h = <real>mean
    r = <real>job.rstd[row]
    b = <real>bn_fold(<double>h, mean, job.rstd[row], 0.0)
    while i < size:
        c = i // job.inner
        n = min(<Py_ssize_t>BUFFER, size - i if columns else (c + 1) * job.inner - i)
        y = &buffer[i if whole else 0] if job.stream else <real*>job.y + at + i
        p = g * job.channels + c
        if columns:
            affine_columns(x + at + i, y, n, h, r, b, <const real*>job.scale + p, <const real*>job.shift + p, job.relu)
        else:
            scale = job.rstd[row] if job.gamma == NULL else job.rstd[row] * job.gamma[p]
            normalize_run(x + at + i, y, n, h, <real>scale,
                          <real>bn_fold(<double>h, mean, scale, 0.0 if job.beta == NULL else job.beta[p]), job.relu)
        i += n
        if job.stream and not whole:
            bn_stream(<real*>job.y + at + i - n, buffer, n * sizeof(real))
    if job.stream and whole:
        bn_stream(<real*>job.y + at, buffer, size * sizeof(real))


cdef void backward_columns(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t g, double* dgamma, double* dbeta, const real* x
) noexcept nogil:
    """`rows` rows of group g from outer position o; gamma changes from value to value."""
    cdef real[BUFFER] scaled
    cdef real[STRIPE] h, r, b
    cdef const real* dy = <const real*>job.dy
    cdef const real* gamma = <const real*>job.scale + g * job.channels
    cdef const real* beta = <const real*>job.shift + g * job.channels
    cdef Py_ssize_t size = job.channels, stride = job.groups * size, at = (o * job.groups + g) * size, row
    cdef Py_ssize_t i, k, n
    cdef double sum, dot, mean, rstd, gap, slope, rest
    for k in range(rows):
        row = (o + k) * job.groups + g
        mean = job.mean[row]
        h[k] = <real>mean
        r[k] = <real>job.rstd[row]
        b[k] = <real>bn_fold(<double>h[k], mean, job.rstd[row], 0.0)
    if job.params:
        stripe_sums(dy + at, x + at, rows, stride, size, h, r, b, gamma, beta, job.relu,
                    dgamma + g * size, dbeta + g * size)
    for k in range(rows):
        row = (o + k) * job.groups + g
        at = row * size
        rstd = job.rstd[row]
        scaled_sums(dy + at, x + at, scaled, size, h[k], r[k], b[k], gamma, beta, job.relu, False, &sum, &dot)
        if real is float and products_beyond_float(1, size, &sum, &dot):
            scaled_sums(dy + at, x + at, scaled, size, h[k], r[k], b[k], gamma, beta, job.relu, True, &sum, &dot)
        gap = job.mean[row] - <double>h[k]
        dot -= gap * sum
        slope = bn_grad_b(rstd, dot, size)
        rest = (0.0 if job.rms else bn_grad_c(sum, size)) - slope * gap
        i = 0
        while i < size:
            n = min(<Py_ssize_t>BUFFER, size - i)
            if size > BUFFER:   # otherwise it is still there
                scaled_gradient(dy + at + i, x + at + i, scaled, n, h[k], r[k], b[k], gamma + i, beta + i, job.relu)
            gradient_run(scaled, x + at + i, &scaled[0] if job.stream else <real*>job.y + at + i, n, NULL, 1.0,
                         h[k], r[k], <real>slope, <real>rest, 1, 0, 0, False, False)
            if job.stream:
                bn_stream(<real*>job.y + at + i, scaled, n * sizeof(real))
            i += n


cdef void backward_runs(
    RowJob* job, Py_ssize_t o, Py_ssize_t g, double* dgamma, double* dbeta, const real* x
) noexcept nogil:
    """One row of runs that have one gamma each."""
    cdef real[BUFFER] buffer
    cdef const real* dy = <const real*>job.dy
    cdef Py_ssize_t size = job.channels * job.inner, row = o * job.groups + g, at = row * size, i = 0, n, c, p
    cdef double mean = job.mean[row], rstd = job.rstd[row], sum = 0.0, dot = 0.0, s, d, scale, shift, slope, rest, gap
    cdef real h = <real>mean, a, b
    gap = mean - <double>h
    for c in range(job.channels):
        p = g * job.channels + c
        scale = 1.0 if job.gamma == NULL else job.gamma[p]
        shift = 0.0 if job.beta == NULL else job.beta[p]
        a = <real>(rstd * scale)
        b = <real>bn_fold(<double>h, mean, rstd * scale, shift)
        s = 0.0
        d = 0.0
        i = 0
        while i < job.inner:
            n = min(<Py_ssize_t>BLOCK * LANES, job.inner - i)
            block_sums(dy + at + c * job.inner + i, x + at + c * job.inner + i, n // LANES, LANES, n % LANES,
                       1, 1, LANES, job.relu, False, False, &h, &a, &b, &s, &d)
            i += n
        d -= gap * s
        sum += scale * s
        dot += scale * d
        if job.params:
            dbeta[p] += s
            dgamma[p] += rstd * d
    slope = bn_grad_b(rstd, dot, size)
    rest = (0.0 if job.rms else bn_grad_c(sum, size)) - slope * gap
    i = 0
    while i < size:
        c = i // job.inner
        p = g * job.channels + c
        n = min(<Py_ssize_t>BUFFER, (c + 1) * job.inner - i)
        scale = 1.0 if job.gamma == NULL else job.gamma[p]
        shift = bn_fold(<double>h, mean, rstd * scale, 0.0 if job.beta == NULL else job.beta[p])
        gradient_run(dy + at + i, x + at + i, &buffer[0] if job.stream else <real*>job.y + at + i, n, NULL, 1.0,
                     h, <real>rstd, <real>slope, <real>rest, <real>scale, <real>(rstd * scale), <real>shift, job.relu,
                     False)
        if job.stream:
            bn_stream(<real*>job.y + at + i, buffer, n * sizeof(real))
        i += n


cdef void row_task(RowJob* job, Py_ssize_t t, const real* x) noexcept nogil:
    cdef Py_ssize_t p = t // job.cuts, first = p * job.piece, last = min(first + job.piece, job.outer)
    cdef Py_ssize_t begin = (t % job.cuts) * job.group, end = min(begin + job.group, job.groups), o, g, rows
    cdef Py_ssize_t size = job.groups * job.channels
    cdef double* dgamma = job.partial + p * 2 * size
    cdef double* dbeta = dgamma + size
    cdef bint columns = job.inner == 1 and job.scale != NULL
    if job.dy != NULL and job.params:
        zero(dgamma + begin * job.channels, (end - begin) * job.channels)
        zero(dbeta + begin * job.channels, (end - begin) * job.channels)
    o = first
    while o < last:
        rows = min(<Py_ssize_t>STRIPE, last - o) if columns and job.dy != NULL else 1
        for g in range(begin, end):
            if job.dy == NULL:
                forward_row(job, o, g, x)
            elif columns:
                backward_columns(job, o, rows, g, dgamma, dbeta, x)
            else:
                backward_runs(job, o, g, dgamma, dbeta, x)
        o += rows
    if job.stream:
        bn_stream_end()


cdef void rows_float(RowJob* job, Py_ssize_t t) noexcept nogil:
    row_task(job, t, <const float*>job.x)


cdef void rows_double(RowJob* job, Py_ssize_t t) noexcept nogil:
    row_task(job, t, <const double*>job.x)
