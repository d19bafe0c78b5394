# Numbers that are neither float32 nor float64, in the loops over channels, which know only these; narrow.h says what is
# converted to what. A map converts in registers (narrow_maps.h) or, if it has weights or a smooth activation, each line
# before it is computed, and after. A reduction converts some rows of a block, or some planes, at a time, so that they
# stay in the cache while they are summed.
#
# Integers of 8 and 16 bits without weights need no center: their sums and sums of squares fit 64 bits, and are exact.
#
# Uses Block, ROWS, begin_sums, columns_of, gather_sums, next_part, plane_of, planes_of, values_of, weights_from,
# whole_sums, width_of, zero (channel_columns), numbers_of_columns, products_beyond_float, sums_of_pairs
# (channel_grads), Output, numbers_of (channel_maps), Parts (channel_moments), centered_sums, exact_sums
# (channel_sums), add_block, parts_at (channel_tasks).
# Gives done, in_integers, integer_task, merge_integers, narrow_at, narrow_block, narrow_room, read_doubles,
# read_floats, taken, write_floats.


cdef void read_values(int kind, const void* values, Py_ssize_t at, Py_ssize_t n, real* to) noexcept nogil:
    """Convert n values from position `at` on. Not inline, since few arrays are narrow."""
    if real is float:
        bn_read_float(kind, values, at, n, to)
    else:
        bn_read_double(kind, values, at, n, to)


cdef inline const real* taken(
    int kind, const void* values, Py_ssize_t at, Py_ssize_t n, double* line, const real* x
) noexcept nogil:
    """Return where n values from position `at` on can be read: in `line`, converted, if they are narrow."""
    if kind == BN_REAL:
        return <const real*>values + at
    read_values(kind, values, at, n, <real*>line)
    return <const real*>line


cdef inline const void* narrow_at(const void* values, Py_ssize_t at) noexcept nogil:
    """Return where value `at` of an array of float16 or bfloat16 is; NULL if there is no array."""
    return NULL if values == NULL else <const char*>values + 2 * at


cdef inline void* narrow_room(Output* out, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
    """Return where to write n values of y, converted to float16 or bfloat16, from position `at` on."""
    cdef char* y = out.y + 2 * at
    return bn_room(&out.lines, y, 2 * n, &out.ahead) if out.streamed else y


cdef inline void done(Output* out, Py_ssize_t at, Py_ssize_t n, const real* y) noexcept nogil:
    """Finish n values of y, written where `room` said: if y is narrow, convert them and write them to their place."""
    if real is float and out.narrow != BN_REAL:
        write_line(out, at, n, y)


cdef void write_line(Output* out, Py_ssize_t at, Py_ssize_t n, const real* line) noexcept nogil:
    """Convert n values and write them to y, from position `at` on."""
    if real is float:
        bn_write_float(out.narrow, line, n, narrow_room(out, at, n))


cdef enum:
    NEAR = 1 << 14      # bytes of a chunk after conversion, which stays in the first-level cache while it is summed
    FETCHED = 512       # values that are converted between two fetches


cdef void read_run(
    Job* job, const void* values, Py_ssize_t at, Py_ssize_t n, bn_ahead* ahead, real* to
) noexcept nogil:
    """Convert n values from position `at` on, and fetch as many."""
    cdef Py_ssize_t i = 0, m
    while i < n:
        m = min(<Py_ssize_t>FETCHED, n - i)
        if ahead != NULL:
            bn_fetch(ahead, m * bn_size_of(job.narrow))
        read_values(job.narrow, values, at + i, m, to + i)
        i += m


cdef void read_rows(
    Job* job, const void* values, Py_ssize_t at, Py_ssize_t stride, const Block* chunk, bn_ahead* ahead, real* to
) noexcept nogil:
    """Convert the rows of a chunk, which begin at position `at`, one after the other."""
    cdef Py_ssize_t n = chunk.stride, i = 0, all = chunk.rows * n + chunk.extra
    if stride == n:     # they are contiguous
        n = all
    while i < all:
        n = min(n, all - i)
        read_run(job, values, at, n, ahead, to + i)
        at += stride
        i += n


cdef bint next_chunk(
    Job* job, Py_ssize_t at, const Block* b, Py_ssize_t most, Py_ssize_t* begin, Block* chunk, real* x, real* dy
) noexcept nogil:
    """Convert the next rows of a block at position `at`, `most` at most, from begin[0] on. Return whether there are
    any."""
    cdef Py_ssize_t r = begin[0]
    if r > b.rows or r == b.rows and b.extra == 0:
        return False
    chunk[0] = b[0]
    chunk.ahead = NULL
    chunk.stride = width_of(b)
    chunk.rows = min(most, b.rows - r)
    chunk.extra = b.extra if r + chunk.rows == b.rows and chunk.rows < most else 0
    chunk.w = weights_from(b.w, b.weighs, r * b.widen * b.run)
    if values_of(chunk) < values_of(b):
        chunk.total = NULL
    read_rows(job, job.x, at + r * b.stride, b.stride, chunk, b.ahead, x)
    if job.dy != NULL:
        read_rows(job, job.dy, at + r * b.stride, b.stride, chunk, NULL, dy)
    begin[0] = r + chunk.rows + (chunk.extra > 0)
    return True


cdef void chunks_of_block(
    Job* job, Py_ssize_t at, const Block* b, Py_ssize_t c, double* partial, const real* x
) noexcept nogil:
    """Add a block as several blocks, one for each chunk. Without dy chunks are twice as long."""
    cdef double[2 * (CHUNK >> 3)] values
    cdef real* gradients = <real*>&values[CHUNK >> 3]
    cdef Py_ssize_t most = (CHUNK << (job.dy == NULL)) // <Py_ssize_t>sizeof(real) // width_of(b), r = 0
    cdef Block chunk
    while next_chunk(job, at, b, most, &r, &chunk, <real*>values, gradients):
        add_block(job, <const real*>values, gradients, &chunk, c, partial)


cdef void narrow_planes(
    Job* job, Py_ssize_t at, const Block* b, const Numbers* of, double* s, double* q
) noexcept nogil:
    """plane_sums for float16 and bfloat16. Some planes, or a part of one, are converted and summed in the first-level
    cache. A part has at least BN_WIDTH values."""
    cdef double[WIDE >> 2] sums, dots
    cdef float[NEAR >> 2] x, dy
    cdef Block p = plane_of(b)
    cdef Numbers numbers = of[0]
    cdef Py_ssize_t most = NEAR >> 2 if job.dy == NULL else NEAR >> 3, r, c, i, n, planes
    zero(sums, 8 * p.channels)
    zero(dots, 8 * p.channels)
    for r in range(p.rows):
        c = 0
        while c < p.channels:
            planes = max(<Py_ssize_t>1, min(most // p.run, p.channels - c))
            numbers.h = <const float*>of.h + c
            if job.dy != NULL:
                numbers.scale = <const float*>of.scale + c
                numbers.shift = <const float*>of.shift + c
            i = 0
            while i < p.run:
                n = next_part(p.run - i, most, BN_WIDTH)
                read_run(job, job.x, at + r * p.stride + c * p.run + i, planes * n, p.ahead, &x[0])
                if job.dy != NULL:
                    read_run(job, job.dy, at + r * p.stride + c * p.run + i, planes * n, NULL, &dy[0])
                bn_plane_sums(job.act, False, 1, 0, planes, n, &dy[0] if job.dy != NULL else NULL, &x[0], &numbers,
                              <bn_ahead*>NULL, sums + 8 * c, dots + 8 * c)
                i += n
            c += planes
    whole_sums(p.channels, sums, s)
    whole_sums(p.channels, dots, q)


cdef bint moments_of_block(Job* job, Py_ssize_t at, const Block* b, Parts to, const real* x) noexcept nogil:
    """Add a block to moments that have a mean already: it is summed in chunks that stay in the first-level cache, and
    merged once. Return False, without adding it, if a square is not finite or may be too small for float32; those of
    float16 and of integers never are."""
    cdef real[ROWS * WIDE] values
    cdef real[WIDE] center, columns
    cdef double[WIDE] wide, s, q, spread_center
    cdef const real* m
    cdef const double* mean
    cdef Py_ssize_t fit = NEAR // <Py_ssize_t>sizeof(real) // width_of(b), most, c, r = 0
    cdef Block chunk
    cdef Numbers of = no_numbers()
    cdef bint odd = False, exact = real is double or job.exact
    cdef double least = 0.0 if exact or job.narrow == BN_HALF else BN_LEAST_SQUARE * <double>values_of(b)
    most = max(<Py_ssize_t>ROWS, fit // ROWS * ROWS)
    for c in range(b.channels):
        wide[c] = to.mean[c] + to.low[c]
        center[c] = <real>wide[c]
        if not exact:
            wide[c] = center[c]
    if not exact and planes_of(b):
        of.h = center
        narrow_planes(job, at, b, &of, s, q)
    else:
        m = columns_of(&center[0], b, &columns[0])
        mean = columns_of(&wide[0], b, &spread_center[0])
        begin_sums(b, s, q)
        while next_chunk(job, at, b, most, &r, &chunk, &values[0], &values[0]):
            if exact:
                exact_sums(<const real*>values, &chunk, mean, s, q)
            else:
                centered_sums(<const real*>values, &chunk, m, s, q)
        gather_sums(b, s, q)
    for c in range(b.channels):
        odd |= not (least <= q[c] < INFINITY)
    if not odd:
        bn_add_blocks(b.channels, <double>values_of(b), wide, s, q, to.n, to.mean, to.m2, to.low)
    return not odd


cdef bint gradients_of_block(Job* job, Py_ssize_t at, const Block* b, Py_ssize_t c, double* partial) noexcept nogil:
    """The same for gradient sums. Return False if a product may be too large or too small for float32."""
    cdef float[CHUNK >> 2] values, gradients
    cdef float[WIDE] high, scale, shift
    cdef double[WIDE] s, d
    cdef Py_ssize_t most = max(<Py_ssize_t>8, NEAR // 8 // width_of(b) // 8 * 8), j, r = 0
    cdef Block chunk
    cdef Numbers of
    cdef Numbers channels = numbers_of(job, c, <const float*>job.x)
    if planes_of(b):
        narrow_planes(job, at, b, &channels, s, d)
    else:
        of = numbers_of_columns(job.act, b, &channels, &high[0], &scale[0], &shift[0])
        begin_sums(b, s, d)
        while next_chunk(job, at, b, most, &r, &chunk, &values[0], &gradients[0]):
            sums_of_pairs(job.act, job.act.kind != BN_IDENTITY, <const float*>gradients, <const float*>values, &chunk,
                          &of, False, s, d)
        gather_sums(b, s, d)
    if products_beyond_float(b.channels, <double>values_of(b), s, d):
        return False
    for j in range(b.channels):
        partial[c + j] += s[j]
        partial[job.channels + c + j] += d[j]
    return True


cdef void narrow_block(
    Job* job, Py_ssize_t at, const Block* b, Py_ssize_t c, double* partial, const real* x
) noexcept nogil:
    """reduce_block for narrow numbers. The first block of moments has to find a center first, and is small."""
    cdef bint added = False
    if b.w == NULL and job.dy == NULL:
        added = partial[c] != 0.0 and moments_of_block(job, at, b, parts_at(job, c, partial), x)
    elif real is float and b.w == NULL:
        added = gradients_of_block(job, at, b, c, partial)
    if not added:
        chunks_of_block(job, at, b, c, partial, x)


cdef inline bint in_integers(const Job* job) noexcept nogil:
    """Whether moments are made of sums of integers, whose squares have 32 bits at most."""
    return BN_BOOL <= job.narrow <= BN_INT16 and job.weight == NULL


cdef void integer_sums(
    Job* job, Py_ssize_t at, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t width, Py_ssize_t channels, Py_ssize_t run,
    int64_t* s, int64_t* q
) noexcept nogil:
    """Sum rows of columns, and add this to the sums of `channels` channels, which take turns at `run` columns each."""
    cdef int64_t[WIDE] of_s, of_q
    cdef Py_ssize_t j, i = 0, c = 0
    for j in range(width):
        of_s[j] = of_q[j] = 0
    bn_integer_sums(job.narrow, job.x, at, rows, stride, width, of_s, of_q)
    for j in range(width):
        s[c] += of_s[j]
        q[c] += of_q[j]
        i += 1
        if i == run:
            i = 0
            c = c + 1 if c + 1 < channels else 0


cdef Py_ssize_t integer_run(Job* job, Py_ssize_t r, Py_ssize_t c, int64_t* s, int64_t* q) noexcept nogil:
    """The same for row r of a long run of channel c. Return how many values it has; the last row may be shorter."""
    cdef Py_ssize_t i = (r % job.segments) * job.segment, n = min(i + job.segment, job.inner) - i
    cdef Py_ssize_t at = (r // job.segments * job.channels + c) * job.inner + i, rows = n // BN_STRIP
    integer_sums(job, at, rows, BN_STRIP, BN_STRIP, 1, BN_STRIP, s, q)
    if n > rows * BN_STRIP:
        integer_sums(job, at + rows * BN_STRIP, 1, BN_STRIP, n - rows * BN_STRIP, 1, BN_STRIP, s, q)
    return n


cdef void integer_task(Job* job, Py_ssize_t t) noexcept nogil:
    """Sum integers without weights in 64 bits, as a task of the moments. The sums are stored where the moments will
    be; if there are several pieces, merge_integers makes the moments later."""
    cdef Py_ssize_t p = t // job.groups, first = p * job.piece, last = min(first + job.piece, job.rows)
    cdef Py_ssize_t begin = (t % job.groups) * job.group, end = min(begin + job.group, job.channels), c, r, n
    cdef Py_ssize_t size = job.channels, plane = job.widen * job.inner
    cdef Py_ssize_t values = 0
    cdef double* partial = job.partial + p * 4 * size
    cdef int64_t* s = <int64_t*>partial
    cdef int64_t* q = s + size
    cdef int64_t* count = q + size
    for c in range(begin, end):
        s[c] = q[c] = 0
    c = begin
    while c < end and job.inner > 0:
        n = 1 if job.runs else min(job.tile, end - c)
        values = 0 if job.runs else max(<Py_ssize_t>0, last - first) * plane
        if job.runs:
            for r in range(first, last):
                values += integer_run(job, r, c, s + c, q + c)
        else:
            integer_sums(job, first * plane * size + c * job.inner, last - first, plane * size, n * plane, n,
                         job.inner, s + c, q + c)
            if last == job.rows and job.outer > job.rows * job.widen:
                integer_sums(job, last * plane * size, 1, 0, (job.outer - job.rows * job.widen) * n * job.inner, n,
                             job.inner, s, q)
                values += (job.outer - job.rows * job.widen) * job.inner
        c += n
    for c in range(begin, end):
        count[c] = values
    if job.pieces == 1:
        merge_integers(job, begin, end)


cdef inline int64_t sum_at(const double* partial, Py_ssize_t i) noexcept nogil:
    """Return a 64-bit sum that is stored as a double: by memcpy, as the compiler may delay another kind of read until
    the double is overwritten."""
    cdef int64_t sum
    memcpy(&sum, partial + i, sizeof(int64_t))
    return sum


cdef void merge_integers(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Store the moments of channels in the first piece, from the exact sums of all pieces."""
    cdef Py_ssize_t c, size = job.channels
    cdef const double* partial
    cdef const double* last = job.partial + job.pieces * 4 * size
    cdef int64_t n, s, center
    cdef bn_square_sum q
    for c in range(begin, end):
        n = s = q.high = q.low = 0
        partial = job.partial
        while partial < last:
            n += sum_at(partial, 2 * size + c)
            s += sum_at(partial, c)
            partial += 4 * size
        center = bn_center(n, s)
        partial = job.partial
        while partial < last:
            bn_add_squares(&q, sum_at(partial, 2 * size + c), sum_at(partial, c), sum_at(partial, size + c), center)
            partial += 4 * size
        bn_integer_moments(job.narrow, n, s, &q, center, job.partial + c, size)


cdef void read_floats(int kind, const void* values, Py_ssize_t at, Py_ssize_t n, void* to) noexcept nogil:
    read_values(kind, values, at, n, <float*>to)


cdef void read_doubles(int kind, const void* values, Py_ssize_t at, Py_ssize_t n, void* to) noexcept nogil:
    read_values(kind, values, at, n, <double*>to)


cdef void write_floats(int kind, const void* values, Py_ssize_t n, void* to) noexcept nogil:
    bn_write_float(kind, <const float*>values, n, to)
