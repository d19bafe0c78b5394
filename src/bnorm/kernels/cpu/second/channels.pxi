# Second derivatives where statistics are per channel, for a tile of columns at a time: some channels with short runs,
# or the lanes of one channel's long runs.

cdef void open_tile(const Second* job, Py_ssize_t begin, Py_ssize_t width, Py_ssize_t run, double* mean, double* rstd,
                    real* high, real* scale, real* shift) noexcept nogil:
    """Write the statistics and parameters of each column of a tile; a channel has `run` columns."""
    cdef Py_ssize_t j, c
    for j in range(width):
        c = begin + j // run
        mean[j] = job.mean[c]
        rstd[j] = job.rstd[c]
        high[j] = <real>mean[j]
        scale[j] = <real>job.scale[c]
        shift[j] = <real>bn_fold(<double>high[j], mean[j], job.scale[c], job.shift[c])


cdef inline Py_ssize_t span_of(const Second* job, Py_ssize_t o, Py_ssize_t width) noexcept nogil:
    """Return how many columns of a tile there are at o on the outer axis."""
    if job.channels == 1:
        return min(job.inner, job.single - o * job.inner)
    return job.inner if job.inner > LANES else width


cdef const double* weights_of(
    const Second* job, Py_ssize_t o, Py_ssize_t i, Py_ssize_t width, double* room
) noexcept nogil:
    """Return the weights of a row of columns, from position i of the run on; NULL if all are 1."""
    cdef Py_ssize_t j, k = 0
    cdef const double* w
    if job.weight == NULL:
        return NULL
    w = job.weight + o * job.inner
    if job.inner > LANES:
        return w + i
    for j in range(width):
        room[j] = w[k]
        k = k + 1 if k + 1 < job.inner else 0
    return room


cdef void add_row(const Second* job, const real* dy, const real* x, const real* v, const double* weight, Py_ssize_t n,
                  const double* mean, const double* rstd, const real* high, const real* scale, const real* shift,
                  double* s) noexcept nogil:
    """Add a row of columns to their sums. If there are weights, a g or weight of 0 adds nothing, even if x is NaN."""
    cdef Py_ssize_t j
    cdef double g, u, w
    if job.act.kind == BN_IDENTITY and weight == NULL:
        for j in range(n):
            u = (<double>x[j] - mean[j]) * rstd[j]
            s[H0 * TILE + j] += <double>dy[j]
            s[H1 * TILE + j] += <double>dy[j] * u
            s[V0 * TILE + j] += <double>v[j]
            s[V1 * TILE + j] += <double>v[j] * u
            s[T * TILE + j] += <double>v[j] * <double>dy[j]
        return
    for j in range(n):
        u = (<double>x[j] - mean[j]) * rstd[j]
        g = <double>pulled(job, (x[j] - high[j]) * scale[j] + shift[j], dy[j])
        w = 1.0 if weight == NULL else weight[j]
        if g != 0.0 or weight == NULL:
            s[H0 * TILE + j] += g
            s[H1 * TILE + j] += g * u
            s[T * TILE + j] += <double>v[j] * g
        if w != 0.0:
            s[V0 * TILE + j] += w * <double>v[j]
            s[V1 * TILE + j] += w * <double>v[j] * u


cdef void sums_of_tile(Second* job, Py_ssize_t p, Py_ssize_t begin, Py_ssize_t channels, const real* x) noexcept nogil:
    """Compute the sums of some channels over one piece of the outer axis."""
    cdef Py_ssize_t run = min(job.inner, <Py_ssize_t>LANES), o, i, at_row
    cdef Py_ssize_t width = channels * run, span, rows = 0
    cdef double[TILE] mean, rstd, room
    cdef real[TILE] high, scale, shift
    cdef double[SUMS * TILE] s
    cdef double* total = job.sums + p * SUMS * job.channels + begin
    open_tile(job, begin, width, run, mean, rstd, high, scale, shift)
    memset(s, 0, sizeof(s))
    for o in range(p * job.piece, min((p + 1) * job.piece, job.outer)):
        i, span = 0, span_of(job, o, width)
        while i < span:
            at_row = (o * job.channels + begin) * job.inner + i
            add_row(job, <const real*>job.dy + at_row, x + at_row, <const real*>job.v + at_row,
                    weights_of(job, o, i, width, room), min(width, span - i), mean, rstd, high, scale, shift, s)
            i += width
            rows += 1
            if rows == BLOCK:
                gather(job, s, width, run, total)
                rows = 0
    gather(job, s, width, run, total)


cdef void gather(const Second* job, double* s, Py_ssize_t width, Py_ssize_t run, double* total) noexcept nogil:
    """Add the sums of columns to those of their channels, and reset them."""
    cdef Py_ssize_t e, j
    for e in range(T + 1):
        for j in range(width):
            total[e * job.channels + j // run] += s[e * TILE + j]
            s[e * TILE + j] = 0.0


cdef void open_map(const Second* job, Py_ssize_t begin, Py_ssize_t width, Py_ssize_t run, Map* m) noexcept nogil:
    """Compute the coefficients of the map of a tile from the sums of its channels."""
    cdef Py_ssize_t C = job.channels, c, j
    cdef const double* s
    cdef double n = job.count, a, k
    for j in range(width):
        c = begin + j // run
        s = job.sums + c
        a, k = job.scale[c], at(job.k, c, 0.0)
        m.a[j], m.of_u[j], m.rest[j] = a, k - a * s[V1 * C] / n, at(job.q, c, 0.0) - a * s[V0 * C] / n
        m.through[j] = -a * s[H1 * C] / n
        m.tilt[j] = -(a * (s[T * C] - (s[H0 * C] * s[V0 * C] + 3.0 * s[H1 * C] * s[V1 * C]) / n) + k * s[H1 * C]) / n
        m.level[j] = -(m.through[j] * s[V0 * C] + m.of_u[j] * s[H0 * C]) / n


cdef void map_row(const Second* job, const real* dy, const real* x, const real* v, const double* weight, Py_ssize_t n,
                  const Map* m, const double* mean, const double* rstd, const real* high, const real* scale,
                  const real* shift, real* d_dy, real* dx, real* curved) noexcept nogil:
    """Map a row of columns. curved: gets `bent`, or NULL."""
    cdef Py_ssize_t j
    cdef double g, u, w
    cdef real y, e
    if job.act.kind == BN_IDENTITY and weight == NULL and not job.frozen:
        for j in range(n):
            u = (<double>x[j] - mean[j]) * rstd[j]
            g = m.of_u[j] * <double>dy[j] + (m.through[j] * <double>v[j] + m.tilt[j] * u + m.level[j])
            d_dy[j] = <real>(m.a[j] * <double>v[j] + m.of_u[j] * u + m.rest[j])
            dx[j] = <real>(rstd[j] * g)
        return
    for j in range(n):
        y = (x[j] - high[j]) * scale[j] + shift[j]
        u = (<double>x[j] - mean[j]) * rstd[j]
        g = <double>pulled(job, y, dy[j])
        e = <real>(m.a[j] * <double>v[j] + m.of_u[j] * u + m.rest[j])
        d_dy[j] = pulled(job, y, e)
        w = 1.0 if weight == NULL else weight[j]
        if curved != NULL:                  # x may be NaN if w is 0
            curved[j] = 0 if w == 0.0 and g == 0.0 else bent(job, y, dy[j], e)
        g = 0.0 if g == 0.0 else m.of_u[j] * g
        if w != 0.0 and not job.frozen:
            g += w * (m.through[j] * <double>v[j] + m.tilt[j] * u + m.level[j])
        dx[j] = <real>(rstd[j] * g)


cdef void map_of_tile(Second* job, Py_ssize_t p, Py_ssize_t begin, Py_ssize_t channels, const real* x) noexcept nogil:
    """Compute d_dy and dx of some channels over one piece, from the total sums, which the first piece has."""
    cdef Py_ssize_t run = min(job.inner, <Py_ssize_t>LANES), o, i, at_row
    cdef Py_ssize_t width = channels * run, span
    cdef double[TILE] mean, rstd, room
    cdef real[TILE] high, scale, shift
    cdef Map m
    open_tile(job, begin, width, run, mean, rstd, high, scale, shift)
    open_map(job, begin, width, run, &m)
    for o in range(p * job.piece, min((p + 1) * job.piece, job.outer)):
        i, span = 0, span_of(job, o, width)
        while i < span:
            at_row = (o * job.channels + begin) * job.inner + i
            map_row(job, <const real*>job.dy + at_row, x + at_row, <const real*>job.v + at_row,
                    weights_of(job, o, i, width, room), min(width, span - i), &m, mean, rstd, high, scale, shift,
                    <real*>job.d_dy + at_row, <real*>job.dx + at_row,
                    NULL if job.bent == NULL else <real*>job.bent + at_row)
            i += width


cdef void run_channels(Second* job, const real* x) noexcept nogil:
    cdef Py_ssize_t C = job.channels, group, groups, n, i, j, p
    cdef int threads
    if job.outer * C * job.inner == 0:
        return
    group = 1 if job.inner > LANES else min(C, TILE // job.inner)
    groups = (C + group - 1) // group
    n = job.pieces * groups
    threads = threads_for(job.outer * C * job.inner, n)
    for i in prange(n, schedule="static", num_threads=threads):
        sums_of_tile(job, i // groups, i % groups * group, min(group, C - i % groups * group), x)
    for p in range(1, job.pieces):
        for j in range(SUMS * C):
            job.sums[j] += job.sums[p * SUMS * C + j]
    if job.frozen:
        for j in range(V0 * C, (V1 + 1) * C):
            job.sums[j] = 0.0
    for i in prange(n, schedule="static", num_threads=threads):
        map_of_tile(job, i // groups, i % groups * group, min(group, C - i % groups * group), x)
