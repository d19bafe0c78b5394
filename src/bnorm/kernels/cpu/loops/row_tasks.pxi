# Layer, group, instance and RMS norm. A row is channels * inner contiguous values with a statistic of its own; gamma
# and beta belong to its channels. The row is in cache while its statistics, its output and its gradient are made, so
# each array is read and written once.
#
# inner == 1 (layer norm, RMS norm): gamma and beta change from value to value. inner > 1: runs with one gamma each,
# which the functions for long runs serve.

cdef enum:
    NEXT = 1 << 18      # bytes at most that are fetched while the rows before are written
    NEAREST = 1 << 20   # bytes of x and dy that are taken to stay in the second-level cache


cdef double second_moment(const real* x, Py_ssize_t size) noexcept nogil:
    """sum x^2."""
    cdef real[LANES] m
    cdef double[LANES] count, s, q
    cdef double total = 0.0, center = 0.0
    cdef Py_ssize_t i = 0, j, n, rows
    for j in range(LANES):
        m[j] = 0
    while i < size:
        n = min(<Py_ssize_t>BLOCK * LANES, size - i)
        rows = n // LANES
        zero(s, LANES)
        zero(q, LANES)
        center_sums_of_rows(x + i, rows, LANES, LANES, m, s, q, NULL)
        center_sums_of_rows(x + i + rows * LANES, 1, 0, n % LANES, m, s, q, NULL)
        gather(q, 1, 1, LANES)
        if real is float and not (1e-36 * n <= q[0] < INFINITY):
            careful_sums(x + i, NULL, rows, LANES, n % LANES, 1, 1, LANES, False, &center, count, s, q)
        total += q[0]
        i += n
    return total


cdef void row_moments(const real* x, Py_ssize_t size, int rule, double eps, double* mean, double* rstd) noexcept nogil:
    cdef double n = 0.0, m2 = 0.0, low = 0.0
    cdef Py_ssize_t i = 0, k
    mean[0] = 0.0
    if rule == BN_MEAN_SQUARE:
        rstd[0] = bn_rstd(second_moment(x, size) / size, eps, size)
        return
    while i < size:
        k = min(block_rows(NULL, i // LANES) * LANES, size - i)
        block_moments(x + i, NULL, k // LANES, LANES, k % LANES, 1, 1, LANES, False, NULL, &n, mean, &m2, &low)
        i += k
    mean[0] += low
    rstd[0] = bn_rstd(m2 / n, eps, n)


cdef inline void affine_columns(
    const real* x, real* y, Py_ssize_t n, real h, real r, real b, const real* gamma, const real* beta, Activation act
) noexcept nogil:
    """y = ((x - h) r + b) gamma + beta."""
    cdef Py_ssize_t j
    if act.kind != BN_IDENTITY:
        for j in range(n):
            y[j] = activated(act, ((x[j] - h) * r + b) * gamma[j] + beta[j])
    elif real is float:
        bn_affine_float(x, y, n, h, r, b, gamma, beta)
    else:
        bn_affine_double(x, y, n, h, r, b, gamma, beta)


cdef inline void gradient_of_columns(
    const real* dy, const real* x, real* dx, Py_ssize_t n, real h, real r, real b, real tilt, real rest,
    const real* gamma, const real* beta, Activation act
) noexcept nogil:
    """dx = r (g + tilt (x - h) + rest), g being `scaled`."""
    cdef Py_ssize_t j
    if act.kind != BN_IDENTITY:
        for j in range(n):
            dx[j] = r * (scaled(act, dy[j], x[j], h, r, b, gamma[j], beta[j]) + (tilt * (x[j] - h) + rest))
    elif real is float:
        bn_row_gradient_float(dy, x, dx, n, h, r, tilt, rest, gamma)
    else:
        bn_row_gradient_double(dy, x, dx, n, h, r, tilt, rest, gamma)


cdef void forward_map(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t i, Py_ssize_t end, const real* x, real* y
) noexcept nogil:
    """Values i to end of a row of group g into y."""
    cdef Py_ssize_t p = g * job.channels, c, n
    cdef double scale, mean = job.mean[row], rstd = job.rstd[row]
    cdef real h = <real>mean
    x += row * job.channels * job.inner
    if job.scale != NULL:
        affine_columns(x + i, y, end - i, h, <real>rstd, <real>bn_fold(<double>h, mean, rstd, 0.0),
                       <const real*>job.scale + p + i, <const real*>job.shift + p + i, job.act)
        return
    c = i // job.inner
    while i < end:
        n = min(end, (c + 1) * job.inner) - i
        scale = rstd if job.gamma == NULL else rstd * job.gamma[p + c]
        normalize_run(x + i, y, n, h, <real>scale,
                      <real>bn_fold(<double>h, mean, scale, 0.0 if job.beta == NULL else job.beta[p + c]), job.act)
        i += n
        y += n
        c += 1


cdef void forward_maps(
    RowJob* job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t g, Output* out, const real* x
) noexcept nogil:
    """Rows that lie one after the other, from one of group g on."""
    cdef real[BATCH] h, r, b
    cdef Py_ssize_t size = job.channels * job.inner, i, k, n, end = row + rows
    cdef real* y
    if size > longest(x) or job.scale == NULL:
        while row < end:
            i = 0
            while i < size:
                n = min(longest(x), size - i)
                forward_map(job, row, g, i, i + n, x, room(out, row * size + i, n, x))
                i += n
            row += 1
            g = g + 1 if g + 1 < job.groups else 0
        return
    while row < end:
        n = min(min(longest(x) // max(<Py_ssize_t>1, size), <Py_ssize_t>BATCH), end - row)
        row_numbers(job, row, 1, n, h, r, b)
        y = room(out, row * size, n * size, x)
        for k in range(n):
            affine_columns(x + (row + k) * size, y + k * size, size, h[k], r[k], b[k],
                           <const real*>job.scale + g * size, <const real*>job.shift + g * size, job.act)
            g = g + 1 if g + 1 < job.groups else 0
        row += n


cdef void run_sums(
    const real* dy, const real* x, Py_ssize_t n, Py_ssize_t left, double mean, real a, real b, Activation act,
    double* sum, double* dot
) noexcept nogil:
    """sum dy and sum dy (x - mean) of a run, dy before the activation of (x - h) a + b, h being mean in its type."""
    cdef real[TILE] before
    cdef real h = <real>mean
    cdef Py_ssize_t i = 0, j, k
    if n <= TILE and act.kind == BN_IDENTITY:
        short_pair_sums(dy, x, n, left, mean, sum, dot)
        return
    if n <= TILE:
        for j in range(n):
            before[j] = pulled(act, (x[j] - h) * a + b, dy[j])
        short_pair_sums(&before[0], x, n, min(left, <Py_ssize_t>TILE), mean, sum, dot)
        return
    sum[0] = 0.0
    dot[0] = 0.0
    while i < n:
        k = min(<Py_ssize_t>BLOCK * LANES, n - i)
        block_sums(dy + i, x + i, k // LANES, LANES, k % LANES, 1, 1, LANES, act, False, NULL, &h, &a, &b, sum, dot)
        i += k
    dot[0] -= (mean - <double>h) * sum[0]


cdef void sums_of_runs(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t total, double* dgamma, double* dbeta,
    double* sum, double* dot, const real* x
) noexcept nogil:
    """sum and dot of dy gamma of a row of runs with one gamma each; their part in dgamma and dbeta."""
    cdef Py_ssize_t at = row * job.channels * job.inner, p = g * job.channels, c
    cdef double mean = job.mean[row], rstd = job.rstd[row], s, d, scale, shift
    cdef real h = <real>mean
    sum[0] = 0.0
    dot[0] = 0.0
    for c in range(p, p + job.channels):
        scale = 1.0 if job.gamma == NULL else job.gamma[c]
        shift = 0.0 if job.beta == NULL else job.beta[c]
        run_sums(<const real*>job.dy + at, x + at, job.inner, total - at, mean, <real>(rstd * scale),
                 <real>bn_fold(<double>h, mean, rstd * scale, shift), job.act, &s, &d)
        sum[0] += scale * s
        dot[0] += scale * d
        if job.params:
            dbeta[c] += s
            dgamma[c] += rstd * d
        at += job.inner


cdef inline void through_statistics(
    RowJob* job, Py_ssize_t row, double sum, double dot, real h, real* tilt, real* rest
) noexcept nogil:
    """What a row's statistics add to its gradient, as tilt (x - h) + rest."""
    cdef Py_ssize_t size = job.channels * job.inner
    cdef double rstd = job.rstd[row], b = bn_grad_b(rstd, dot, size)
    tilt[0] = <real>b
    rest[0] = <real>((0.0 if job.rule == BN_MEAN_SQUARE else bn_grad_c(sum, size)) - b * (job.mean[row] - <double>h))


cdef void backward_map(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, Py_ssize_t i, Py_ssize_t end, double sum, double dot,
    const real* x, real* y
) noexcept nogil:
    """The input gradient of values i to end of a row of group g, whose sums are known, into y."""
    cdef Py_ssize_t size = job.channels * job.inner, p = g * job.channels, c, n
    cdef const real* dy = <const real*>job.dy + row * size
    cdef double mean = job.mean[row], rstd = job.rstd[row], scale, shift
    cdef real h = <real>mean, r = <real>rstd, tilt, rest
    through_statistics(job, row, sum, dot, h, &tilt, &rest)
    x += row * size
    if job.scale != NULL:
        gradient_of_columns(dy + i, x + i, y, end - i, h, r, <real>bn_fold(<double>h, mean, rstd, 0.0), tilt,
                            rest, <const real*>job.scale + p + i, <const real*>job.shift + p + i, job.act)
        return
    c = i // job.inner
    while i < end:
        n = min(end, (c + 1) * job.inner) - i
        scale = 1.0 if job.gamma == NULL else job.gamma[p + c]
        shift = bn_fold(<double>h, mean, rstd * scale, 0.0 if job.beta == NULL else job.beta[p + c])
        gradient_run(dy + i, x + i, y, n, NULL, 1.0, h, r, tilt, rest, <real>scale,
                     <real>(rstd * scale), <real>shift, job.act, False)
        i += n
        y += n
        c += 1


cdef inline bn_ahead* walk_on(RowJob* job, Output* out) noexcept nogil:
    """The walk of a task whose output is streamed: memory has nothing else to do while sums are made."""
    return &out.ahead if job.far and job.stream else NULL


cdef void forward_rows(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t total, Output* out, const real* x
) noexcept nogil:
    """Rows that lie one after the other; the statistics of as many at a time as fit the buffer."""
    cdef Py_ssize_t size = job.channels * job.inner, groups = max(<Py_ssize_t>1, job.groups)
    cdef bint short = 0 < size <= SHORT
    cdef Py_ssize_t batch = max(<Py_ssize_t>1, min(<Py_ssize_t>BATCH, BUFFER // size)) if short else 1
    while row < end:
        batch = min(batch, end - row)
        if short:
            short_moments(x + row * size, batch, size, total - row * size, job.rule, job.eps,
                          job.mean + row, job.rstd + row, walk_on(job, out))
        else:
            row_moments(x + row * size, size, job.rule, job.eps, job.mean + row, job.rstd + row)
        forward_maps(job, row, batch, row % groups, out, x)
        row += batch


cdef void stripe(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t g, double* dgamma, double* dbeta, const real* x
) noexcept nogil:
    """dgamma and dbeta of the columns of group g, from `rows` outer positions."""
    cdef real[STRIPE] h, r, b
    cdef Py_ssize_t size = job.channels, at = (o * job.groups + g) * size, p = g * size
    row_numbers(job, o * job.groups + g, job.groups, rows, h, r, b)
    column_sums(<const real*>job.dy + at, x + at, rows, job.groups * size, size, h, r, b,
                <const real*>job.scale + p, <const real*>job.shift + p, job.act, dgamma + p, dbeta + p)


cdef void write_gradient(
    RowJob* job, Py_ssize_t row, Py_ssize_t g, double sum, double dot, Output* out, const real* x
) noexcept nogil:
    """dx of a row of group g."""
    cdef Py_ssize_t size = job.channels * job.inner, i = 0, n
    while i < size:
        n = min(longest(x), size - i)
        backward_map(job, row, g, i, i + n, sum, dot, x, room(out, row * size + i, n, x))
        i += n


cdef void short_gradients(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t g, Py_ssize_t total, Output* out, const real* x
) noexcept nogil:
    """dx of rows of at most TILE values that lie one after the other, from one of group g on."""
    cdef real[BATCH] h, r, b, tilt, rest
    cdef double[BATCH * EIGHTH] s, d
    cdef double[BATCH] sum, dot
    cdef Py_ssize_t size = job.channels, k, n, at, p = g * size
    cdef const real* dy = <const real*>job.dy
    cdef const real* gamma = <const real*>job.scale
    cdef const real* beta = <const real*>job.shift
    cdef bn_ahead* ahead = walk_on(job, out)
    cdef real* dx
    while row < end:
        n = min(min(longest(x) // max(<Py_ssize_t>1, size), <Py_ssize_t>BATCH), end - row)
        row_numbers(job, row, 1, n, h, r, b)
        zero(s, n * EIGHTH)
        zero(d, n * EIGHTH)
        at = row * size
        g = p
        for k in range(n):
            if ahead != NULL:
                bn_fetch_early(ahead, size * sizeof(real) // EARLY)
            scaled_sums(dy + at, x + at, size, total - at, h[k], r[k], b[k], gamma + g, beta + g, job.act,
                        s + k * EIGHTH, d + k * EIGHTH)
            at += size
            g = g + size if g + size < job.groups * size else 0
        finish_sums(job, row, 1, n, h, r, b, s, d, sum, dot, x)
        for k in range(n):
            through_statistics(job, row + k, sum[k], dot[k], h[k], &tilt[k], &rest[k])
        at = row * size
        dx = room(out, at, n * size, x)
        for k in range(n):
            gradient_of_columns(dy + at, x + at, dx, size, h[k], r[k], b[k], tilt[k], rest[k],
                                gamma + p, beta + p, job.act)
            at += size
            dx += size
            p = p + size if p + size < job.groups * size else 0
        row += n


cdef void backward_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t positions, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """Groups begin to end of some outer positions: the sums of their columns, then their own, and dx."""
    cdef Py_ssize_t k, g, row, total
    cdef double sum = 0.0, dot = 0.0
    if job.params and job.scale != NULL:
        k = 0
        while k < positions:
            for g in range(begin, end):
                stripe(job, o + k, min(<Py_ssize_t>STRIPE, positions - k), g, dgamma, dbeta, x)
            k += STRIPE
    if job.scale != NULL and job.cuts == 1:
        short_gradients(job, o * job.groups, (o + positions) * job.groups, 0, readable(job, o, last, end), out, x)
        return
    for k in range(o, o + positions):
        total = readable(job, k, last, end)
        if job.scale != NULL:
            short_gradients(job, k * job.groups + begin, k * job.groups + end, begin, total, out, x)
            continue
        for g in range(begin, end):
            row = k * job.groups + g
            sums_of_runs(job, row, g, total, dgamma, dbeta, &sum, &dot, x)
            write_gradient(job, row, g, sum, dot, out, x)


cdef void backward_long_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t rows, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end,
    double* dgamma, double* dbeta, Output* out, const real* x
) noexcept nogil:
    """The same of rows of more than TILE values, at most STRIPE positions, with a gamma for each value."""
    cdef double[STRIPE] sum, dot
    cdef Py_ssize_t g, k
    for g in range(begin, end):
        sums_of_long_rows(job, o, rows, g, last, end, dgamma, dbeta, sum, dot, walk_on(job, out), x)
        for k in range(rows):
            write_gradient(job, (o + k) * job.groups + g, g, sum[k], dot[k], out, x)


cdef void open_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t values, Output* out, const real* x
) noexcept nogil:
    """The output of a task that starts at outer position o, and its walk through memory: while `values` are written, of
    a row or of some that are read together, the next are fetched."""
    cdef Py_ssize_t size = job.channels * job.inner, at = (o * job.groups + begin) * size
    out.y = <char*>job.y
    out.streamed = job.stream
    if job.stream:
        bn_open(&out.lines)
        bn_stand(&out.ahead)
    if job.far:
        bn_walk(&out.ahead, x + at, NULL if job.dy == NULL else <const real*>job.dy + at,
                (end - begin) * size * sizeof(real), job.groups * size * sizeof(real))
        bn_fetch(&out.ahead, min(<Py_ssize_t>NEXT, max(<Py_ssize_t>BN_AHEAD, values * <Py_ssize_t>sizeof(real))))


cdef void row_task(RowJob* job, Py_ssize_t t, const real* x) noexcept nogil:
    cdef Py_ssize_t p = t // job.cuts, o = p * job.piece, last = min(o + job.piece, job.outer)
    cdef Py_ssize_t begin = (t % job.cuts) * job.group, end = min(begin + job.group, job.groups)
    cdef Py_ssize_t size = job.groups * job.channels, row = job.channels * job.inner, width = (end - begin) * row
    cdef bint deep = job.dy != NULL and job.scale != NULL and row > TILE
    cdef Py_ssize_t positions = STRIPE * max(<Py_ssize_t>1, BUFFER // max(<Py_ssize_t>1, STRIPE * width))
    cdef double* dgamma = job.partial + p * 2 * size
    cdef double* dbeta = dgamma + size
    cdef Output out
    if deep:
        positions = STRIPE if STRIPE * row * 2 * <Py_ssize_t>sizeof(real) <= NEAREST else STRIPE // 2
    open_rows(job, o, begin, end, positions * width if deep or job.params and job.scale != NULL else row, &out, x)
    if job.dy == NULL and job.cuts == 1:
        forward_rows(job, o * job.groups, last * job.groups, readable(job, o, last, end), &out, x)
    elif job.dy == NULL:
        while o < last:
            forward_rows(job, o * job.groups + begin, o * job.groups + end, readable(job, o, last, end), &out, x)
            o += 1
    else:
        if job.params:
            zero(dgamma + begin * job.channels, (end - begin) * job.channels)
            zero(dbeta + begin * job.channels, (end - begin) * job.channels)
        while o < last:
            positions = min(positions, last - o)
            if deep:
                backward_long_rows(job, o, positions, last, begin, end, dgamma, dbeta, &out, x)
            else:
                backward_rows(job, o, positions, last, begin, end, dgamma, dbeta, &out, x)
            o += positions
    if job.stream:
        bn_close(&out.lines, &out.ahead)
        bn_settle()


cdef void rows_float(RowJob* job, Py_ssize_t t) noexcept nogil:
    row_task(job, t, <const float*>job.x)


cdef void rows_double(RowJob* job, Py_ssize_t t) noexcept nogil:
    row_task(job, t, <const double*>job.x)
