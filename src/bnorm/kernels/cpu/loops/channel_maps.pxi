# The maps, one read and one write: y = (x - h) scale + shift, and dx = a (dy + w (b (x - h) + c)). h is the high part
# of the mean in the type of x, so x - h is exact near the mean; the low part is folded into shift and c. With a outside
# the brackets b is of the size of 1 / std, which float32 holds wherever it holds x. A weight of 0 keeps whatever stands
# under it out, NaN too. Without b (statistics that are constants) dx = a dy. b and c are negative here, and subtracted:
# `one_nan` says why.
#
# Infinities are looked for in the pass that reads x anyway: among columns in the loop that maps them, elsewhere just
# before, a few cache lines at a time.
#
# Outputs larger than the cache are finished in a small buffer and streamed to memory past the cache.
#
# Uses activated, identity, leaky, pulled, relu (activations), Columns, from_position, spread (channel_columns),
# weights_of_row (channel_moments), done, taken (channel_narrow).
# Gives Lines, Output, Run, SCALAR_RUN, gradient_run, longest, map_columns, map_runs, normalize_run, room.

cdef enum:
    SCALAR_RUN = 32     # from this length a run is mapped with its channel's numbers in registers
    LINE = 1024         # values mapped at a time, half as many float64: the first cache holds the numbers of so many
    TURN = 32           # lines from which it pays to begin them where lines of the cache do
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
    const real* x, real* y, Py_ssize_t n, const Columns* of, Activation act
) noexcept nogil:
    """normalize_columns of a multiple of 16 columns; whether an infinity was among them."""
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef Py_ssize_t j
    cdef int32_t found = 0
    cdef int64_t found_double = 0
    for j in range(n):
        if real is float:
            found |= bn_infinite_float(x[j])
        else:
            found_double |= bn_infinite_double(x[j])
        y[j] = activated(act, (x[j] - h[j]) * scale[j] + shift[j])
    return found != 0 or found_double != 0


cdef inline void normalize_columns_by(
    Activation act, const real* x, real* y, Py_ssize_t n, const Columns* of
) noexcept nogil:
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef Py_ssize_t j
    for j in range(n):
        y[j] = activated(act, (x[j] - h[j]) * scale[j] + shift[j])


cdef inline void normalize_columns(
    const real* x, real* y, Py_ssize_t n, const Columns* of, Activation act
) noexcept nogil:
    if act.kind == BN_IDENTITY:
        normalize_columns_by(identity(), x, y, n, of)
    elif act.kind == BN_RELU:
        normalize_columns_by(relu(act), x, y, n, of)
    else:
        normalize_columns_by(leaky(act), x, y, n, of)


cdef inline void normalize_run_by(
    Activation act, const real* x, real* y, Py_ssize_t n, real h, real scale, real shift
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        y[j] = activated(act, (x[j] - h) * scale + shift)


cdef inline void normalize_run(
    const real* x, real* y, Py_ssize_t n, real h, real scale, real shift, Activation act
) noexcept nogil:
    if act.kind == BN_IDENTITY:
        normalize_run_by(identity(), x, y, n, h, scale, shift)
    elif act.kind == BN_RELU:
        normalize_run_by(relu(act), x, y, n, h, scale, shift)
    else:
        normalize_run_by(leaky(act), x, y, n, h, scale, shift)


cdef inline void gradient_columns_by(
    Activation act, const real* dy, const real* x, real* dx, Py_ssize_t n, const Columns* of
) noexcept nogil:
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef const real* a = <const real*>of.a
    cdef const real* b = <const real*>of.b
    cdef const real* c = <const real*>of.c
    cdef const real* w = <const real*>of.w
    cdef Py_ssize_t j
    cdef real t, g
    if b == NULL:
        for j in range(n):
            dx[j] = pulled(act, (x[j] - h[j]) * scale[j] + shift[j], a[j] * dy[j])
    elif w == NULL:
        for j in range(n):
            t = x[j] - h[j]
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale[j] + shift[j], dy[j])
            dx[j] = a[j] * (g - (b[j] * t + c[j]))
    else:
        for j in range(n):
            t = x[j] - h[j]
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale[j] + shift[j], dy[j])
            t = b[j] * t + c[j]
            dx[j] = a[j] * (g - (0 if w[j] == 0 else w[j] * t))


cdef inline void gradient_columns(
    const real* dy, const real* x, real* dx, Py_ssize_t n, const Columns* of, Activation act
) noexcept nogil:
    if act.kind == BN_IDENTITY:
        gradient_columns_by(identity(), dy, x, dx, n, of)
    elif act.kind == BN_RELU:
        gradient_columns_by(relu(act), dy, x, dx, n, of)
    else:
        gradient_columns_by(leaky(act), dy, x, dx, n, of)


# The numbers of one channel or row, all of them numbers of the type of x.
ctypedef struct Run:
    double h, scale, shift      # as in Columns
    double a, b, c              # b and c negative
    double gain                 # a factor of dy alone, for group norm
    bint frozen                 # without b and c


cdef inline void gradient_run_by(
    Activation act, const real* dy, const real* x, real* dx, Py_ssize_t n, const Run* of, const double* w, double unit
) noexcept nogil:
    cdef real h = <real>of.h, scale = <real>of.scale, shift = <real>of.shift
    cdef real a = <real>of.a, b = <real>of.b, c = <real>of.c, gain = <real>of.gain
    cdef double inverse = 1.0 / unit
    cdef Py_ssize_t j
    cdef real t, g
    if of.frozen:
        for j in range(n):
            dx[j] = pulled(act, (x[j] - h) * scale + shift, a * (gain * dy[j]))
    elif w == NULL:
        for j in range(n):
            t = x[j] - h
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale + shift, dy[j])
            dx[j] = a * (gain * g - (b * t + c))
    else:
        for j in range(n):
            t = x[j] - h
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale + shift, dy[j])
            t = b * t + c
            dx[j] = a * (gain * g - (0 if w[j] == 0 else <real>(w[j] * inverse) * t))


cdef inline void gradient_run(
    const real* dy, const real* x, real* dx, Py_ssize_t n, const Run* of, Activation act, const double* w, double unit
) noexcept nogil:
    """gradient_columns with one channel's numbers; w is in units of `unit`."""
    if act.kind == BN_IDENTITY:
        gradient_run_by(identity(), dy, x, dx, n, of, w, unit)
    elif act.kind == BN_RELU:
        gradient_run_by(relu(act), dy, x, dx, n, of, w, unit)
    else:
        gradient_run_by(leaky(act), dy, x, dx, n, of, w, unit)


cdef void look(Job* job, const real* x, Py_ssize_t n) noexcept nogil:
    """Note an infinity among n values that are about to be mapped, and are in the first-level cache from now on."""
    if infinite(x, n & -16) or last_infinite(x, n):
        bn_set(&job.infinite)


cdef void checked_columns(
    Job* job, const real* x, real* y, Py_ssize_t n, const Columns* of
) noexcept nogil:
    """normalize_columns that notes an infinity."""
    cdef Py_ssize_t k = n & -16
    cdef bint found = last_infinite(x, n)   # before y, which may be x, is written
    cdef Columns rest = from_column(of, k, x)
    found |= finite_columns(x, y, k, of, job.act)
    normalize_columns(x + k, y + k, n - k, &rest, job.act)
    if found:
        bn_set(&job.infinite)


ctypedef struct Lines:      # converted, or to be converted
    double[LINE >> 1] x, dy, y


ctypedef struct Output:
    char* y
    int narrow          # what y is converted to, line by line
    bint streamed       # past the caches; then what is read is fetched ahead, as much as is written
    bn_output lines
    bn_ahead ahead
    Lines* narrow_lines     # as much as a page and more, which rows do without


cdef inline Py_ssize_t longest(const real* x) noexcept nogil:
    """Values mapped at a time."""
    return LINE if real is float else LINE // 2


cdef inline real* room(Output* out, Py_ssize_t at, Py_ssize_t n, const real* x) noexcept nogil:
    """Where to write the n values of y from position `at`; x is read there. `done` comes after that."""
    if real is float and out.narrow != BN_REAL:
        return <real*>out.narrow_lines.y
    if not out.streamed:
        return <real*>out.y + at
    return <real*>bn_room(&out.lines, <real*>out.y + at, n * sizeof(real), &out.ahead)


cdef inline double number(const void* values, Py_ssize_t c, const real* x) noexcept nogil:
    """That of channel c; 0 where there are none."""
    return 0.0 if values == NULL else <double>(<const real*>values)[c]


cdef inline void map_run(
    Job* job, Py_ssize_t at, const double* w, Py_ssize_t n, Py_ssize_t c, Lines* lines, const real* x, real* y
) noexcept nogil:
    """n values of channel c, from position `at` of the arrays, of which x is there already, into y."""
    cdef Run of
    of.h = number(job.high, c, x)
    of.scale = number(job.scale, c, x)
    of.shift = number(job.shift, c, x)
    if job.dy == NULL:
        normalize_run(x, y, n, <real>of.h, <real>of.scale, <real>of.shift, job.act)
        return
    of.a = number(job.a, c, x)
    of.b = number(job.b, c, x)
    of.c = number(job.c, c, x)
    of.gain = 1.0
    of.frozen = job.b == NULL
    gradient_run(taken(job.narrow, job.dy, at, n, lines.dy, x), x, y, n, &of, job.act, w, job.unit)


cdef void map_runs(
    Job* job, Py_ssize_t first, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Rows first to last of channels that are runs of some length, each with its numbers in registers."""
    cdef Py_ssize_t r, c, o, i, j, n, at, stop, most = LOOK if job.finite else longest(x)
    cdef const real* line
    cdef real* y
    for r in range(first, last):
        o = r // job.segments
        i = (r % job.segments) * job.segment
        stop = min(i + job.segment, job.inner)
        for c in range(begin, end):
            at = (o * job.channels + c) * job.inner
            j = i
            while j < stop:
                n = min(most, stop - j)
                line = taken(job.narrow, job.x, at + j, n, out.narrow_lines.x, x)
                if job.finite:
                    look(job, line, n)
                y = room(out, at + j, n, x)
                map_run(job, at + j, from_position(job.weight, o * job.inner + j), n, c, out.narrow_lines, line, y)
                done(out, at + j, n, y)
                j += n


cdef inline Py_ssize_t repeats(Py_ssize_t plane, Py_ssize_t most) noexcept nogil:
    """How many outer positions make a line of whole vectors, of up to `most` values: then it has no odd end."""
    cdef Py_ssize_t n = 1, enough = max(<Py_ssize_t>1, most // (4 * plane))
    while n * plane % 16 and 2 * n * plane <= most:
        n *= 2
    return n * max(<Py_ssize_t>1, enough // n)


cdef inline const real* spread_of(
    const void* values, Py_ssize_t c, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, bint turns, real* columns
) noexcept nogil:
    """The numbers of all columns of a line; where it is one row of as many channels, they lie there already."""
    if values == NULL:
        return NULL
    if widen == 1 and run == 1 and not turns:
        return <const real*>values + c
    spread(<const real*>values + c, widen, channels, run, columns)
    return columns


cdef inline void turn(const real* columns, Py_ssize_t width, Py_ssize_t by, real* turned) noexcept nogil:
    """Let the columns begin with another, and end with those before it."""
    cdef real[16] first
    if columns != turned:   # there are none
        return
    memcpy(first, turned, by * sizeof(real))
    memmove(turned, turned + by, (width - by) * sizeof(real))
    memcpy(turned + width - by, first, by * sizeof(real))


cdef inline const void* from_number(const void* columns, Py_ssize_t k, const real* x) noexcept nogil:
    return columns if columns == NULL else <const real*>columns + k


cdef inline Columns from_column(const Columns* of, Py_ssize_t k, const real* x) noexcept nogil:
    """The numbers of the columns from k on."""
    cdef Columns rest
    rest.h = from_number(of.h, k, x)
    rest.scale = from_number(of.scale, k, x)
    rest.shift = from_number(of.shift, k, x)
    rest.a = from_number(of.a, k, x)
    rest.b = from_number(of.b, k, x)
    rest.c = from_number(of.c, k, x)
    rest.w = of.w
    return rest


cdef void map_columns(
    Job* job, Py_ssize_t first, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Rows first to last of channels that change from value to value, or nearly so: each column has its numbers.

    All channels are one piece of memory, walked in lines of as many outer positions as fill whole vectors; a group of
    channels, or more of them than fit a line, in lines that are its part of each row. The first line of the former ends
    where a line of the cache does, so that no vector of y lies in two.
    """
    cdef real[LINE] h, scale, shift, a, b, c, wr
    cdef double[LINE] wj
    cdef Columns line, of
    cdef real* y
    cdef const real* v
    cdef const real* g
    cdef Py_ssize_t most = longest(x), run = job.inner, plane = job.channels * run
    cdef Py_ssize_t at = first * job.widen * plane, stop = last * job.widen * plane, step = plane, widen = 1
    cdef Py_ssize_t channels, width, lead = 0, i, j, k, n, e
    cdef bint whole = end - begin == job.channels and plane <= most
    if last == job.rows:
        stop = job.outer * plane
    if whole:
        widen = max(<Py_ssize_t>1, min(repeats(plane, most), (stop - at) // plane))
        step = widen * plane
        if job.weight == NULL and out.narrow == BN_REAL and step >= 16 and stop - at >= TURN * step:
            lead = (-<size_t>(<real*>out.y + at) & 63) // sizeof(real)
    line.w = NULL if job.weight == NULL else <const void*>wr
    while begin < end:
        channels = end - begin if whole or run == 1 else min(end - begin, most // run)
        width = widen * channels * run
        line.h = spread_of(job.high, begin, widen, channels, run, lead, h)
        line.scale = spread_of(job.scale, begin, widen, channels, run, lead, scale)
        line.shift = spread_of(job.shift, begin, widen, channels, run, lead, shift)
        line.a = spread_of(job.a, begin, widen, channels, run, lead, a)
        line.b = spread_of(job.b, begin, widen, channels, run, lead, b)
        line.c = spread_of(job.c, begin, widen, channels, run, lead, c)
        i = at + begin * run
        while i < stop:
            k = 0
            n = min(lead if lead else width, stop - i)
            while k < n:
                j = min(most, n - k)
                y = room(out, i + k, j, x)
                of = from_column(&line, k, x)
                if job.weight != NULL:
                    weights_of_row(job.weight + i // plane * run, min(channels, j), run, j, wj)
                    for e in range(j):
                        wr[e] = <real>(wj[e] / job.unit)
                v = taken(job.narrow, job.x, i + k, j, out.narrow_lines.x, x)
                if job.dy != NULL:
                    g = taken(job.narrow, job.dy, i + k, j, out.narrow_lines.dy, x)
                    gradient_columns(g, v, y, j, &of, job.act)
                elif job.finite:
                    checked_columns(job, v, y, j, &of)
                else:
                    normalize_columns(v, y, j, &of, job.act)
                done(out, i + k, j, y)
                k += j
            if lead == 0:
                i += step
                continue
            i += lead
            turn(<const real*>line.h, width, lead, h)
            turn(<const real*>line.scale, width, lead, scale)
            turn(<const real*>line.shift, width, lead, shift)
            turn(<const real*>line.a, width, lead, a)
            turn(<const real*>line.b, width, lead, b)
            turn(<const real*>line.c, width, lead, c)
            lead = 0
        begin += channels
