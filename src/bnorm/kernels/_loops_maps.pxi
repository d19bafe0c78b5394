# The maps, one read and one write: y = (x - h) scale + shift, and dx = a (dy + w (b (x - h) + c)). h is the high part
# of the mean in the type of x, so x - h is exact near the mean; the low part is folded into shift and c. With a outside
# the brackets b is of the size of 1 / std, which float32 holds wherever it holds x. A weight of 0 keeps whatever stands
# under it out, NaN too. Without b (statistics that are constants) dx = a dy.
#
# Infinities are looked for in the pass that reads x anyway: among columns in the loop that maps them, elsewhere just
# before, a few cache lines at a time.
#
# Outputs larger than the cache are finished in a small buffer and streamed to memory past the cache.

cdef enum:
    SCALAR_RUN = 32     # from this length a run is mapped with its channel's numbers in registers
    LOOK = 512          # values looked at before they are mapped: enough to pay, and few enough to overlap with the map


cdef inline bint infinite(const real* x, Py_ssize_t n) noexcept nogil:
    """Whether an infinity is among n values."""
    cdef Py_ssize_t j
    cdef int32_t found = 0
    cdef int64_t found_double = 0   # as wide as what is compared, for whole vectors
    for j in range(n):
        if real is float:
            found |= bn_infinite_float(x[j])
        else:
            found_double |= bn_infinite_double(x[j])
    return found != 0 or found_double != 0


cdef inline bint last_infinite(const real* x, Py_ssize_t n) noexcept nogil:
    """The same of what does not fill 16 values; looking at some twice, as whole vectors, is faster than one by one."""
    if n % 16 == 0:
        return False
    return infinite(x, n) if n < 16 else infinite(x + n - 16, 16)


cdef inline bint finite_columns(
    const real* x, real* y, Py_ssize_t n, const real* h, const real* scale, const real* shift, bint relu
) noexcept nogil:
    """normalize_columns of a multiple of 16 columns; whether an infinity was among them."""
    cdef Py_ssize_t j
    cdef int32_t found = 0
    cdef int64_t found_double = 0
    cdef real v
    for j in range(n):
        if real is float:
            found |= bn_infinite_float(x[j])
        else:
            found_double |= bn_infinite_double(x[j])
        v = (x[j] - h[j]) * scale[j] + shift[j]
        y[j] = 0 if relu and v <= 0 else v
    return found != 0 or found_double != 0


cdef inline void normalize_columns(
    const real* x, real* y, Py_ssize_t n, const real* h, const real* scale, const real* shift, bint relu
) noexcept nogil:
    cdef Py_ssize_t j
    cdef real v
    if relu:
        for j in range(n):
            v = (x[j] - h[j]) * scale[j] + shift[j]
            y[j] = 0 if v <= 0 else v
    else:
        for j in range(n):
            y[j] = (x[j] - h[j]) * scale[j] + shift[j]


cdef inline void normalize_run(
    const real* x, real* y, Py_ssize_t n, real h, real scale, real shift, bint relu
) noexcept nogil:
    cdef Py_ssize_t j
    cdef real v
    if relu:
        for j in range(n):
            v = (x[j] - h) * scale + shift
            y[j] = 0 if v <= 0 else v
    else:
        for j in range(n):
            y[j] = (x[j] - h) * scale + shift


cdef inline void gradient_columns(
    const real* dy, const real* x, real* dx, Py_ssize_t n, const real* w,
    const real* h, const real* a, const real* b, const real* c, const real* scale, const real* shift, bint relu,
    bint frozen
) noexcept nogil:
    cdef Py_ssize_t j
    cdef real t, g
    if frozen:
        for j in range(n):
            dx[j] = 0 if (x[j] - h[j]) * scale[j] + shift[j] <= 0 else a[j] * dy[j]
    elif relu or w != NULL:
        for j in range(n):
            t = x[j] - h[j]
            g = 0 if relu and t * scale[j] + shift[j] <= 0 else dy[j]
            t = b[j] * t + c[j]
            if w != NULL:
                t = 0 if w[j] == 0 else w[j] * t
            dx[j] = a[j] * (g + t)
    else:
        for j in range(n):
            dx[j] = a[j] * (dy[j] + (b[j] * (x[j] - h[j]) + c[j]))


cdef inline void gradient_run(
    const real* dy, const real* x, real* dx, Py_ssize_t n, const double* w, double inverse,
    real h, real a, real b, real c, real gain, real scale, real shift, bint relu, bint frozen
) noexcept nogil:
    """The same with one channel's numbers; w is weight * inverse; gain is a factor of dy alone, for group norm."""
    cdef Py_ssize_t j
    cdef real t, g
    if frozen:
        for j in range(n):
            dx[j] = 0 if (x[j] - h) * scale + shift <= 0 else a * (gain * dy[j])
    elif relu or w != NULL:
        for j in range(n):
            t = x[j] - h
            g = 0 if relu and t * scale + shift <= 0 else dy[j]
            t = b * t + c
            if w != NULL:
                t = 0 if w[j] == 0 else <real>(w[j] * inverse) * t
            dx[j] = a * (gain * g + t)
    else:
        for j in range(n):
            dx[j] = a * (gain * dy[j] + (b * (x[j] - h) + c))


cdef void look(Job* job, const real* x, Py_ssize_t n) noexcept nogil:
    """Note an infinity among n values that are about to be mapped, and are in the first-level cache from now on."""
    if infinite(x, n & -16) or last_infinite(x, n):
        bn_set(&job.infinite)


cdef void checked_columns(
    Job* job, const real* x, real* y, Py_ssize_t n, const real* h, const real* scale, const real* shift
) noexcept nogil:
    """normalize_columns that notes an infinity."""
    cdef Py_ssize_t k = n & -16
    cdef bint found = last_infinite(x, n)   # before y, which may be x, is written
    found |= finite_columns(x, y, k, h, scale, shift, job.relu)
    normalize_columns(x + k, y + k, n - k, h + k, scale + k, shift + k, job.relu)
    if found:
        bn_set(&job.infinite)


cdef inline void map_run(
    Job* job, Py_ssize_t at, const double* w, Py_ssize_t n, Py_ssize_t c, real* y
) noexcept nogil:
    """n values of channel c, from position `at` of the arrays, into y."""
    cdef const real* x = <const real*>job.x + at
    cdef real h = (<const real*>job.high)[c]
    cdef real scale = (<const real*>job.scale)[c] if job.scale != NULL else 0
    cdef real shift = (<const real*>job.shift)[c] if job.shift != NULL else 0
    if job.dy == NULL:
        normalize_run(x, y, n, h, scale, shift, job.relu)
    else:
        gradient_run(<const real*>job.dy + at, x, y, n, w, 1.0 / job.unit, h, (<const real*>job.a)[c],
                     (<const real*>job.b)[c] if job.b != NULL else 0, (<const real*>job.c)[c] if job.b != NULL else 0,
                     1, scale, shift, job.relu, job.b == NULL)


cdef void map_long(Job* job, Py_ssize_t r, Py_ssize_t c, const real* x) noexcept nogil:
    """A long run of channel c."""
    cdef real[BUFFER] buffer
    cdef Py_ssize_t o = r // job.segments, i = (r % job.segments) * job.segment, n
    cdef Py_ssize_t at = (o * job.channels + c) * job.inner, end = min(i + job.segment, job.inner)
    cdef real* y = <real*>job.y + at
    while i < end:
        n = min(<Py_ssize_t>(LOOK if job.finite else BUFFER), end - i)
        if job.finite:
            look(job, x + at + i, n)
        map_run(job, at + i, from_position(job.weight, o * job.inner + i), n, c,
                &buffer[0] if job.stream else y + i)
        if job.stream:
            bn_stream(y + i, buffer, n * sizeof(real))
        i += n


cdef inline void spread_of(
    const void* values, Py_ssize_t c, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, real* columns
) noexcept nogil:
    if values != NULL:
        spread(<const real*>values + c, widen, channels, run, columns)


cdef void map_short(
    Job* job, Py_ssize_t first, Py_ssize_t last, Py_ssize_t extra, Py_ssize_t c0, Py_ssize_t channels, const real* x
) noexcept nogil:
    """Rows first to last of a tile of channels, and the `extra` columns below them.

    They are walked in lines: of a tile, a line is its part of a row; where the tile is all channels, memory is one
    piece, and a line is as many outer positions as fit TILE.
    """
    cdef real[BUFFER] buffer
    cdef real[TILE] h, scale, shift, a, b, c, wr
    cdef double[TILE] wj
    cdef real* y
    cdef const real* weights = NULL
    cdef const double* w
    cdef Py_ssize_t run = job.inner, plane = job.channels * run, width = channels * run, widen = 1
    cdef Py_ssize_t at = first * job.widen * plane + c0 * run, step = plane, lines = last - first, rest = 0
    cdef Py_ssize_t line = 0, chunk = 1, i, j, n, count
    cdef bint whole = channels == job.channels, scalar = job.widen == 1 and run >= SCALAR_RUN
    if whole and not scalar:
        widen = TILE // plane
        width = step = widen * plane
        rest = lines * job.widen * plane + extra
        lines = rest // width
        rest %= width
    if whole:
        chunk = BUFFER // width
    if not scalar:
        spread_of(job.high, c0, widen, channels, run, h)
        spread_of(job.scale, c0, widen, channels, run, scale)
        spread_of(job.shift, c0, widen, channels, run, shift)
        spread_of(job.a, c0, widen, channels, run, a)
        spread_of(job.b, c0, widen, channels, run, b)
        spread_of(job.c, c0, widen, channels, run, c)
    while line < lines + (rest > 0):
        count = min(chunk, lines - line) if line < lines else 1
        n = width if line < lines else rest
        y = &buffer[0] if job.stream else <real*>job.y + at
        for i in range(count):
            j = at + i * step
            w = from_position(job.weight, j // plane * run)
            if job.finite and scalar:
                look(job, x + j, n)
            if scalar:
                for j in range(channels):
                    map_run(job, at + i * step + j * run, w, run, c0 + j, y + i * width + j * run)
            elif job.dy == NULL and job.finite:
                checked_columns(job, x + j, y + i * width, n, h, scale, shift)
            elif job.dy == NULL:
                normalize_columns(<const real*>job.x + j, y + i * width, n, h, scale, shift, job.relu)
            else:
                if w != NULL:
                    weights_of_row(w, channels, run, n, wj)
                    for j in range(n):
                        wr[j] = <real>(wj[j] / job.unit)
                    weights = wr
                    j = at + i * step
                gradient_columns(<const real*>job.dy + j, <const real*>job.x + j, y + i * width, n, weights,
                                 h, a, b, c, scale, shift, job.relu, job.b == NULL)
        if job.stream:
            bn_stream(<real*>job.y + at, buffer, ((count - 1) * width + n) * sizeof(real))
        line += count
        at += count * step
