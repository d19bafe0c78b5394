# The maps of channels: every value is read once and written once, a line of values at a time; lines.h and rows.h have
# the arithmetic. A large output is gathered in a small buffer, or sent as it is computed, past the caches to memory.
#
# Uses next_part, spread, weights_at, weights_of_row (channel_columns), done, narrow_at, narrow_room, taken
# (channel_narrow).
# Gives LINE, Lines, Output, RARE, by_lines, longest, map_columns, map_runs, numbers_of, plain, room.

cdef enum:
    RARE = 8            # shorter runs are mapped like those of SCALAR_RUN if there are at most so many rows
    LINE = 1024         # values of a line, half as many float64: with their numbers they fit the first-level cache
    TURN = 32           # from this many lines on it pays to begin them where cache lines begin
    EDGED = 64          # from this many values on it pays to send a row or run that is not whole lines
    PLANES = 64         # planes whose gradient is computed by one call if they have weights
    LOOK = 512          # values checked before they are mapped: enough to pay, and few enough to overlap with the map


ctypedef struct Lines:      # a line of values, converted or to be converted
    double[LINE >> 1] x, dy, y


ctypedef struct Output:
    char* y
    int narrow          # the type that y is converted to, line by line
    bint streamed       # y goes past the caches; then input is fetched as output is sent, as many bytes
    bint direct         # y is sent row by row, as it is computed
    bn_output lines
    bn_ahead ahead
    bn_edge edge
    Lines* narrow_lines     # more than a page; tasks of rows do not need it
    const char* x           # for rows that narrow_maps.h maps: x before it was converted


cdef inline bint plain(const Job* job, const Output* out) noexcept nogil:
    """Whether lines.h and rows.h have the map of a job: y is not converted, and a gradient has b."""
    return out.narrow == BN_REAL and (job.dy == NULL or job.b != NULL)


cdef inline bint by_lines(const Job* job) noexcept nogil:
    """Whether runs are converted, or checked for infinities, a line at a time."""
    return job.narrow != BN_REAL or job.finite


cdef inline Py_ssize_t longest(const real* x) noexcept nogil:
    """Return how many values are mapped at a time."""
    return LINE if real is float else LINE // 2


cdef inline real* room(Output* out, Py_ssize_t at, Py_ssize_t n, const real* x) noexcept nogil:
    """Return where to write the n values of y from position `at` on. Call `done` when they are written."""
    if real is float and out.narrow != BN_REAL:
        return <real*>out.narrow_lines.y
    if not out.streamed:
        return <real*>out.y + at
    return <real*>bn_room(&out.lines, <real*>out.y + at, n * sizeof(real), &out.ahead)


cdef inline Numbers numbers_of(const Job* job, Py_ssize_t c, const real* x) noexcept nogil:
    """Return the numbers of the channels from c on."""
    cdef Numbers of = no_numbers()
    of.h = <const real*>job.high + c
    of.scale = <const real*>job.scale + c
    of.shift = <const real*>job.shift + c
    if job.dy != NULL and job.a != NULL:
        of.a = <const real*>job.a + c
    if job.dy != NULL and job.b != NULL:
        of.b = <const real*>job.b + c
        of.c = <const real*>job.c + c
    return of


cdef inline void map_run(
    Job* job, Py_ssize_t at, Py_ssize_t i, Py_ssize_t n, Py_ssize_t c, Lines* lines, const real* x, real* y
) noexcept nogil:
    """Map n values of channel c, which x has already, into y. Their dy begins at position `at`, their weights at i."""
    cdef Numbers of = numbers_of(job, c, x)
    cdef double[LINE] near
    cdef const real* dy
    if job.dy == NULL:
        bn_map_rows(job.act, 1, n, x, y, &of, <bn_edge*>NULL)
        return
    dy = taken(job.narrow, job.dy, at, n, lines.dy, x)
    if job.weight == NULL or of.b == NULL:
        bn_gradient_rows(job.act, 1, n, dy, x, y, &of, <bn_edge*>NULL)
    else:
        by_kind(bn_weighted_run, job.act, dy, x, y, n, &of, weights_at(job.weight, job.weighs, i, n, near), job.unit)


cdef void map_planes(
    Job* job, Py_ssize_t at, Py_ssize_t planes, Py_ssize_t n, Py_ssize_t c, Output* out, const real* x
) noexcept nogil:
    """Map `planes` contiguous runs of n values, from position `at` and channel c on."""
    cdef bn_edge* edge = &out.edge if out.direct else NULL
    cdef Numbers of = numbers_of(job, c, x)
    cdef real* y = <real*>out.y + at
    if job.dy == NULL:
        bn_map_rows(job.act, planes, n, x + at, y, &of, edge)
    else:
        bn_gradient_rows(job.act, planes, n, <const real*>job.dy + at, x + at, y, &of, edge)


cdef void weighted_planes(
    Job* job, Py_ssize_t o, Py_ssize_t i, Py_ssize_t stop, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Compute dx of values i to `stop` of the planes of outer position o: of several planes, or of a part of one, after
    their weights have been converted."""
    cdef real[LINE] w
    cdef real[PLANES] ones
    cdef double[LINE] near
    cdef Py_ssize_t most = longest(x), planes = PLANES if job.inner <= most else 1, j = i, n, at
    cdef Numbers of
    for n in range(PLANES):
        ones[n] = 1
    while begin < end:
        n = min(most, stop - j)
        planes = min(planes, end - begin)
        weights_of_row(weights_at(job.weight, job.weighs, o * job.inner + j, n, near), 1.0 / job.unit, 1, n, n, w)
        of = numbers_of(job, begin, x)
        of.gain = ones
        of.w = w
        at = (o * job.channels + begin) * job.inner + j
        bn_gradient_rows(job.act, planes, n, <const real*>job.dy + at, x + at, <real*>out.y + at, &of,
                         &out.edge if out.direct else <bn_edge*>NULL)
        j += n
        if j == stop:
            j = i
            begin += planes


cdef inline bint fuses(const Job* job, const Output* out) noexcept nogil:
    """Whether narrow_maps.h has the map of a job, which converts in registers."""
    return BN_FUSES and out.narrow != BN_REAL and job.act.kind < BN_SILU and not job.finite \
        and (job.dy == NULL or job.weight == NULL)


cdef void narrow_runs(
    Job* job, Py_ssize_t o, Py_ssize_t i, Py_ssize_t stop, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Map values i to `stop` of the channels of outer position o, converted in registers: several runs at a time, or a
    part of one that is at least two vectors."""
    cdef Py_ssize_t most = longest(x), runs = most // job.inner if stop - i == job.inner else 0, j = i, n, at
    cdef Numbers of
    while begin < end:
        runs = max(<Py_ssize_t>1, min(runs, end - begin))
        n = next_part(stop - j, most, BN_TWO)
        of = numbers_of(job, begin, x)
        at = (o * job.channels + begin) * job.inner + j
        bn_narrow_runs(job.act, out.narrow, out.streamed, runs, n, narrow_at(job.dy, at), narrow_at(job.x, at),
                       narrow_room(out, at, runs * n), &of)
        j += n
        if j == stop:
            j = i
            begin += runs


cdef void map_runs(
    Job* job, Py_ssize_t first, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Map rows `first` to `last` of channels that are runs of some length, with the numbers of each in registers: by
    rows.h, or line by line if values are weighted, converted or checked for infinities.
    """
    cdef Py_ssize_t r, c, o, i, j, n, at, stop, most = LOOK if job.finite else longest(x)
    cdef const real* line
    cdef real* y
    cdef bint planes = plain(job, out) and not by_lines(job), fused = fuses(job, out)
    for r in range(first, last):
        o = r // job.segments
        i = (r % job.segments) * job.segment
        stop = min(i + job.segment, job.inner)
        if planes and job.dy != NULL and job.weight != NULL:
            weighted_planes(job, o, i, stop, begin, end, out, x)
            continue
        if fused and stop - i >= BN_TWO:
            narrow_runs(job, o, i, stop, begin, end, out, x)
            continue
        if planes and job.segments == 1:
            map_planes(job, (o * job.channels + begin) * job.inner, end - begin, job.inner, begin, out, x)
            continue
        for c in range(begin, end):
            at = (o * job.channels + c) * job.inner
            if planes and stop - i >= SCALAR_RUN:
                map_planes(job, at + i, 1, stop - i, c, out, x)
                continue
            j = i
            while j < stop:
                n = min(most, stop - j)
                line = taken(job.narrow, job.x, at + j, n, out.narrow_lines.x, x)
                if job.finite and bn_any_infinite(line, n):
                    bn_set(&job.infinite)
                y = room(out, at + j, n, x)
                map_run(job, at + j, o * job.inner + j, n, c, out.narrow_lines, line, y)
                done(out, at + j, n, y)
                j += n


cdef inline Py_ssize_t repeats(Py_ssize_t plane, Py_ssize_t vector, Py_ssize_t most) noexcept nogil:
    """Return how many outer positions make a line of whole vectors, of up to `most` values: it has no odd end then."""
    cdef Py_ssize_t n = 1, enough = max(<Py_ssize_t>1, most // (4 * plane))
    while n * plane % vector and 2 * n * plane <= most:
        n *= 2
    return n * max(<Py_ssize_t>1, enough // n)


cdef inline const real* spread_of(
    const void* values, Py_ssize_t c, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, bint turns, real* columns
) noexcept nogil:
    """Return the numbers of all columns of a line: copied to `columns`, or where they are if each channel is a column
    and no turn is needed."""
    if values == NULL:
        return NULL
    if widen == 1 and run == 1 and not turns:
        return <const real*>values + c
    spread(<const real*>values + c, widen, channels, run, columns)
    return columns


cdef inline void turn(const real* columns, Py_ssize_t width, Py_ssize_t by, real* turned) noexcept nogil:
    """Rotate the columns so that column `by` comes first."""
    cdef real[2 * VECTOR] first
    if columns != turned:   # this number is not used
        return
    memcpy(first, turned, by * sizeof(real))
    memmove(turned, turned + by, (width - by) * sizeof(real))
    memcpy(turned + width - by, first, by * sizeof(real))


cdef void map_columns(
    Job* job, Py_ssize_t first, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Map rows `first` to `last` of channels whose runs are short, so that each column needs numbers of its own.

    If all channels fit a line, memory is mapped in lines of as many outer positions as fill whole vectors. The first
    line is shorter and ends where a cache line ends, so that no vector of y lies in two. Otherwise, for a group of
    channels or more of them than fit a line, lines are the part of each row that belongs to the group.
    """
    cdef real[LINE] h, scale, shift, a, b, c, wr
    cdef double[LINE] near
    cdef const void* weight = NULL if job.dy == NULL else job.weight       # a forward needs no weights
    cdef Numbers line
    cdef bn_edge* edge
    cdef real* y
    cdef const real* v
    cdef const real* g
    cdef Py_ssize_t most = longest(x), run = job.inner, plane = job.channels * run
    cdef Py_ssize_t at = first * job.widen * plane, stop = last * job.widen * plane, step = plane, widen = 1
    cdef Py_ssize_t channels, width, lead = 0, positions, lines, i, j, k, n
    cdef bint whole = end - begin == job.channels and plane <= most
    cdef bint several = weight == NULL and job.narrow == out.narrow == BN_REAL and not out.streamed
    cdef bint fused = fuses(job, out), brisk
    if last == job.rows:
        stop = job.outer * plane
    if whole:
        widen = repeats(plane, 2 * VECTOR if fused else VECTOR, most)
        widen = max(<Py_ssize_t>1, min(widen, (stop - at) // plane))
        step = widen * plane
        if weight == NULL and out.narrow == BN_REAL and step >= VECTOR and stop - at >= TURN * step:
            lead = (-<size_t>(<real*>out.y + at) & (BN_LINE - 1)) // sizeof(real)
        elif fused and out.streamed and step % (2 * VECTOR) == 0 and stop - at >= TURN * step:
            lead = (-<size_t>(out.y + 2 * at) & (BN_LINE - 1)) // 2
    # Lines of forwards are sent several at a time; full lines of float64 would be sent faster than memory takes them.
    brisk = out.direct and job.dy == NULL and (real is float or lead == 0)
    line.w = NULL if weight == NULL else <const void*>wr
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
            lines = (stop - i - n) // step + 1 if several and n == width <= most else 1
            if n == step and (brisk and n >= EDGED or fused and n >= BN_TWO):    # contiguous lines
                lines = min((stop - i) // n, max(<Py_ssize_t>1, most // n))
            while k < n:
                j = min(most, n - k)
                if fused and j >= BN_TWO:
                    bn_narrow_lines(job.act, out.narrow, lines, j, narrow_at(job.dy, i + k), narrow_at(job.x, i + k),
                                    narrow_room(out, i + k, lines * j), &line, k)
                    k += j
                    continue
                v = taken(job.narrow, job.x, i + k, j, out.narrow_lines.x, x)
                g = NULL if job.dy == NULL else taken(job.narrow, job.dy, i + k, j, out.narrow_lines.dy, x)
                edge = &out.edge if out.direct and j >= EDGED else NULL
                if weight != NULL:
                    positions = (j + channels * run - 1) // (channels * run) * run
                    weights_of_row(weights_at(weight, job.weighs, i // plane * run, positions, near), 1.0 / job.unit,
                                   min(channels, j), run, j, wr)
                y = room(out, i + k, j, x) if edge == NULL else <real*>out.y + i + k
                if g != NULL:
                    bn_gradient_columns(job.act, lines, step, g, v, y, j, &line, k, edge)
                else:
                    bn_map_columns(job.act, lines, step, v, y, j, &line, k,
                                   &job.infinite if job.finite else <int*>NULL, edge)
                done(out, i + k, j, y)
                k += j
            if lead == 0:
                i += lines * step
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
