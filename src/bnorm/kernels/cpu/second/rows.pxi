# Second derivatives where statistics are per row, for a row at a time.

ctypedef struct Row:
    double mean, rstd, low      # low: what rounding the mean to the type of x has added, times rstd
    double[SUMS] s
    double count
    const double* weight        # of each position of a run, or NULL
    double tilt, level, v_mean, v_tilt, along_v, along_h    # coefficients: d_dy and dx are linear in u, 1, v and h


# One channel of a row: its parameters, and the scale and shift of the forward's map.
ctypedef struct Gain:
    double gamma, beta, k, q, scale, shift


cdef inline Gain gain_of(const Second* job, Py_ssize_t c, const Row* row, double high) noexcept nogil:
    cdef Gain gain
    gain.gamma, gain.beta, gain.k, gain.q = job.scale[c], job.shift[c], job.k[c], job.q[c]
    gain.scale = row.rstd * gain.gamma
    gain.shift = bn_fold(high, row.mean, gain.scale, gain.beta)
    return gain


cdef inline real before_activation(
    const Second* job, real x, const Row* row, const Gain* gain, const real* high
) noexcept nogil:
    """Return the argument of the activation, rounded as in the forward. The forward has one formula for rows with a
    gamma for each value, and another for runs of a channel."""
    if job.inner == 1:
        return ((x - high[0]) * <real>row.rstd + <real>row.low) * <real>gain.gamma + <real>gain.beta
    return (x - high[0]) * <real>gain.scale + <real>gain.shift


cdef void add_run(const Second* job, const real* dy, const real* x, const real* v, Py_ssize_t n, Row* row,
                  const Gain* gain, const real* high) noexcept nogil:
    """Add a run with one gamma to the sums of its row. If there are weights, x may be NaN where w and g are 0."""
    cdef double h0, h1, v0, v1, t, k0, k1, g, u, h, w = 1.0
    cdef Py_ssize_t i, begin = 0, end
    while begin < n:
        end = min(n, begin + BLOCK)
        h0 = h1 = v0 = v1 = t = k0 = k1 = 0.0
        for i in range(begin, end):
            g = <double>pulled(job, before_activation(job, x[i], row, gain, high), dy[i])
            u = (<double>x[i] - row.mean) * row.rstd
            if row.weight != NULL:
                w = row.weight[i]
                u = 0.0 if w == 0.0 and g == 0.0 else u
            h = g * gain.gamma
            h0 += h
            h1 += h * u
            v0 += w * <double>v[i]
            v1 += w * <double>v[i] * u
            t += <double>v[i] * h
            k0 += gain.k * g
            k1 += gain.k * g * u
        row.s[H0] += h0
        row.s[H1] += h1
        row.s[V0] += v0
        row.s[V1] += v1
        row.s[T] += t
        row.s[K0] += k0
        row.s[K1] += k1
        begin = end


cdef void add_columns(const real* dy, const real* x, const real* v, const double* gamma, const double* k, Py_ssize_t n,
                      Row* row) noexcept nogil:
    """Do the same for a full row with a gamma for each value, without an activation: in lanes, which vectorize."""
    cdef double[SUMS * WIDTH] s
    cdef double u, h, mean = row.mean, rstd = row.rstd
    cdef Py_ssize_t i = 0, e, lanes = WIDTH
    memset(s, 0, sizeof(s))
    while i < n:
        lanes = min(<Py_ssize_t>WIDTH, n - i)
        for e in range(lanes):
            u = (<double>x[i + e] - mean) * rstd
            h = <double>dy[i + e] * gamma[i + e]
            s[H0 * WIDTH + e] += h
            s[H1 * WIDTH + e] += h * u
            s[V0 * WIDTH + e] += <double>v[i + e]
            s[V1 * WIDTH + e] += <double>v[i + e] * u
            s[T * WIDTH + e] += <double>v[i + e] * h
            s[K0 * WIDTH + e] += k[i + e] * <double>dy[i + e]
            s[K1 * WIDTH + e] += k[i + e] * <double>dy[i + e] * u
        i += lanes
    for i in range(SUMS):
        for e in range(WIDTH):
            row.s[i] += s[i * WIDTH + e]


cdef void finish_row(const Second* job, Row* row) noexcept nogil:
    """Compute the coefficients of a row's map from its sums."""
    cdef double n = row.count, r = row.rstd, centered = job.rule != BN_MEAN_SQUARE
    cdef const double* s = row.s
    row.tilt = -(r * (s[T] - (centered * s[H0] * s[V0] + 3.0 * s[H1] * s[V1]) / n) + s[K1]) / n
    row.level = -centered * (s[K0] - (s[H1] * s[V0] + s[V1] * s[H0]) * r / n) / n
    row.v_mean = centered * s[V0] / n
    row.v_tilt = s[V1] / n
    row.along_v = -s[H1] * r / n
    row.along_h = -s[V1] * r / n


cdef double map_run(const Second* job, const real* dy, const real* x, const real* v, Py_ssize_t n, const Row* row,
                    const Gain* gain, const real* high, real* d_dy, real* dx, real* curved) noexcept nogil:
    """Compute d_dy and dx of a run with one gamma. Return its part of dgamma."""
    cdef double sum = 0.0, g, u, h, w = 1.0
    cdef real y, e
    cdef Py_ssize_t i
    for i in range(n):
        y = before_activation(job, x[i], row, gain, high)
        g = <double>pulled(job, y, dy[i])
        u = (<double>x[i] - row.mean) * row.rstd
        h = row.rstd * (<double>v[i] - row.v_mean - row.v_tilt * u)
        e = <real>(gain.gamma * h + gain.k * u + gain.q)
        d_dy[i] = pulled(job, y, e)
        if row.weight != NULL:
            w = row.weight[i]
            u = 0.0 if w == 0.0 else u      # below, u is multiplied by w, h and e by g: 0 times NaN must be 0
            if w == 0.0 and g == 0.0:
                h = 0.0
                e = 0
        sum += g * h
        if curved != NULL:
            curved[i] = bent(job, y, dy[i], e)
        dx[i] = <real>(row.rstd * (
            gain.k * g + row.along_v * w * <double>v[i] + row.along_h * gain.gamma * g
            + w * (row.tilt * u + row.level)))
    return sum


cdef void map_columns(const real* dy, const real* x, const real* v, const double* gamma, const double* k,
                      const double* q, Py_ssize_t n, const Row* row, real* d_dy, real* dx,
                      double* dgamma) noexcept nogil:
    """Do the same for a full row, as in add_columns."""
    cdef double u, h, mean = row.mean, rstd = row.rstd, v_mean = row.v_mean, v_tilt = row.v_tilt
    cdef double along_v = row.along_v, along_h = row.along_h, tilt = row.tilt, level = row.level
    cdef Py_ssize_t i
    for i in range(n):
        u = (<double>x[i] - mean) * rstd
        h = rstd * (<double>v[i] - v_mean - v_tilt * u)
        dgamma[i] += <double>dy[i] * h
        d_dy[i] = <real>(gamma[i] * h + k[i] * u + q[i])
        dx[i] = <real>(rstd * (
            k[i] * <double>dy[i] + along_v * <double>v[i] + along_h * gamma[i] * <double>dy[i] + tilt * u + level))


cdef void one_row(const Second* job, Py_ssize_t o, Py_ssize_t group, double* dgamma, const real* x) noexcept nogil:
    """Compute d_dy and dx of one row, and add its part of dgamma."""
    cdef Py_ssize_t L = job.inner, size = job.channels * L, at_row = o * job.groups + group, c, p = group * job.channels
    cdef const real* dy = <const real*>job.dy + at_row * size
    cdef const real* v = <const real*>job.v + at_row * size
    cdef real* d_dy = <real*>job.d_dy + at_row * size
    cdef real* dx = <real*>job.dx + at_row * size
    cdef real* curved = NULL
    cdef Row row
    cdef Gain gain
    cdef real high = <real>job.mean[at_row]
    if job.bent != NULL:
        curved = <real*>job.bent + at_row * size
    x += at_row * size
    memset(&row, 0, sizeof(Row))
    row.mean, row.rstd = job.mean[at_row], job.rstd[at_row]
    row.low = bn_fold(<double>high, row.mean, row.rstd, 0.0)
    row.count = <double>size
    if job.weight != NULL:
        row.weight = job.weight + o * L
        row.count = 0.0
        for c in range(L):
            row.count += row.weight[c]
        row.count *= <double>job.channels
        row.count = 1.0 if row.count == 0.0 else row.count
    if L == 1 and job.act.kind == BN_IDENTITY and job.weight == NULL:
        add_columns(dy, x, v, job.scale + p, job.k + p, size, &row)
        finish_row(job, &row)
        map_columns(dy, x, v, job.scale + p, job.k + p, job.q + p, size, &row, d_dy, dx, dgamma + p)
        return
    for c in range(job.channels):
        gain = gain_of(job, p + c, &row, <double>high)
        add_run(job, dy + c * L, x + c * L, v + c * L, L, &row, &gain, &high)
    finish_row(job, &row)
    for c in range(job.channels):
        gain = gain_of(job, p + c, &row, <double>high)
        dgamma[p + c] += map_run(job, dy + c * L, x + c * L, v + c * L, L, &row, &gain, &high, d_dy + c * L, dx + c * L,
                                 NULL if curved == NULL else curved + c * L)


cdef void rows_of_piece(Second* job, Py_ssize_t p, const real* x) noexcept nogil:
    cdef Py_ssize_t o, group
    for o in range(p * job.piece, min((p + 1) * job.piece, job.outer)):
        for group in range(job.groups):
            one_row(job, o, group, job.sums + p * job.groups * job.channels, x)


cdef void run_rows(Second* job, const real* x) noexcept nogil:
    cdef Py_ssize_t p
    cdef int threads = threads_for(job.outer * job.groups * job.channels * job.inner, job.pieces)
    for p in prange(job.pieces, schedule="static", num_threads=threads):
        rows_of_piece(job, p, x)
