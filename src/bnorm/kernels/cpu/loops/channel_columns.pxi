# A row of columns is `widen` copies of `channels` runs of `run` values: column (q * channels + c) * run + l belongs to
# channel c. These helpers go from channels to columns and back.
#
# Uses nothing of its siblings.
# Gives Block, FETCH_COLUMNS, Folds, ROWS, begin_sums, block_rows, bounded, centered_planes, columns_of, fetch_rows,
# gather, gather_sums, head_of, lane_sum, plane_sums, planes_of, pour, row_weights, run_block, spread, values_of,
# weigh_block, weights_at, weights_from, weights_of_row, width_of, zero.

cdef enum:
    FETCH_COLUMNS = 32  # columns between two fetches of what comes next, by rows: few lines at a time
    ROWS = 16           # rows that are summed side by side
    MANY_COLUMNS = 128  # from so many on it pays to begin with whole cache lines


# Sums of 512 weights of a block each, of which the last may be of more, or of fewer.
ctypedef struct Folds:
    double[2 * BLOCK + 2] sums
    Py_ssize_t done     # how many weights have been added up
    int negative        # set where one is


# A block: `rows` rows of `widen * channels * run` columns, `stride` values apart, and below them the
# first `extra` columns of one more.
ctypedef struct Block:
    Py_ssize_t rows, stride, extra
    Py_ssize_t widen, channels, run
    const void* w       # the weight of its first position, of the others behind it; NULL: all weigh 1
    int weighs          # what they are, as in Job
    int* unsound        # set where one is negative or not finite
    double* total       # their sum, if it is known, for the next channel; or NULL
    Folds* folds        # where their sums go as they are read, or NULL
    bn_ahead* ahead     # the walk through memory that the reader is on, or NULL


cdef inline double bounded(double v, const real* x) noexcept nogil:
    """v as the type of x can multiply by it."""
    return bn_bounded(v) if real is float else v


cdef inline Py_ssize_t width_of(const Block* b) noexcept nogil:
    return b.widen * b.channels * b.run


cdef inline Py_ssize_t head_of(const real* x, const Block* b) noexcept nogil:
    """How many columns come before the first whole cache line, if that is the same in all rows."""
    if width_of(b) < MANY_COLUMNS or b.stride * sizeof(real) % BN_LINE != 0:
        return 0
    return (-<size_t>x & (BN_LINE - 1)) // sizeof(real)


cdef inline Py_ssize_t values_of(const Block* b) noexcept nogil:
    """Of each channel."""
    return (b.rows * width_of(b) + b.extra) // b.channels


cdef inline void fetch_rows(const Block* b, Py_ssize_t rows, size_t size) noexcept nogil:
    """What comes after so many last rows of a block, and the part of one below them; its walk ends with the block."""
    if b.ahead != NULL:
        bn_fetch(b.ahead, (rows * width_of(b) + b.extra) * size)


cdef inline Block run_block(Py_ssize_t n) noexcept nogil:
    """n values of one channel that lie one after the other: LANES partial sums side by side."""
    cdef Block b
    b.rows = n // LANES
    b.stride = b.run = LANES
    b.extra = n % LANES
    b.widen = b.channels = 1
    b.w = NULL
    b.weighs = BN_REAL
    b.unsound = NULL
    b.total = NULL
    b.folds = NULL
    b.ahead = NULL
    return b


cdef inline bint planes_of(const Block* b) noexcept nogil:
    """Whether planes.h has the sums of a block, all of whose values weigh 1."""
    return b.run >= BN_WIDTH and b.widen == 1 and b.rows > 0 and (b.extra == 0 or b.channels == 1)


cdef inline Block plane_of(const Block* b) noexcept nogil:
    """The block as planes: a long run is a single one."""
    cdef Block plane = b[0]
    if b.stride == b.run:
        plane.run = b.rows * b.run + b.extra
        plane.rows = 1
    return plane


cdef inline void whole_sums(Py_ssize_t channels, double* eight, double* sums) noexcept nogil:
    """8 parts of each channel to one number."""
    cdef Py_ssize_t c
    for c in range(channels):
        sums[c] = bn_whole(eight + 8 * c)


cdef inline void zero(double* values, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        values[i] = 0.0


cdef void plane_sums(
    Activation act, const real* dy, const real* x, const Block* b, const Numbers* of, double* s, double* q
) noexcept nogil:
    """sum g and sum g (x - h) per channel of a block that is planes, g being dy before the activation, or x - h."""
    cdef double[WIDE >> 2] sums, dots
    cdef Block p = plane_of(b)
    zero(sums, 8 * p.channels)
    zero(dots, 8 * p.channels)
    bn_plane_sums(act, p.rows, p.stride, p.channels, p.run, dy, x, of, p.ahead, sums, dots)
    whole_sums(p.channels, sums, s)
    whole_sums(p.channels, dots, q)


cdef inline void centered_planes(const real* x, const Block* b, const real* m, double* s, double* q) noexcept nogil:
    """sum (x - m) and sum (x - m)^2 of such a block."""
    cdef Numbers of = no_numbers()
    of.h = m
    plane_sums(identity(), <const real*>NULL, x, b, &of, s, q)


cdef void spread(
    const real* values, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, real* columns
) noexcept nogil:
    """Write each channel's value into all its columns."""
    cdef Py_ssize_t q, c, i, j = 0
    for q in range(widen):
        if run == 1:
            for c in range(channels):
                columns[j + c] = values[c]
            j += channels
        else:
            for c in range(channels):
                for i in range(run):
                    columns[j + i] = values[c]
                j += run


cdef inline const real* columns_of(const real* values, const Block* b, real* columns) noexcept nogil:
    """The same for who only reads them: the values themselves where each channel is one column."""
    if b.widen * b.run == 1:
        return values
    spread(values, b.widen, b.channels, b.run, columns)
    return columns


cdef inline void pour(real* some, Py_ssize_t n, double* all) noexcept nogil:
    """Add sums of a few values to those of all, in float64, and begin new ones."""
    cdef Py_ssize_t j
    for j in range(n):
        all[j] += <double>some[j]
        some[j] = 0


cdef inline double lane_sum(const double* lanes, Py_ssize_t n) noexcept nogil:
    """Sum of n values in one fixed order: eight running sums, then a tree."""
    cdef double[8] a
    cdef Py_ssize_t i, j
    for i in range(8):
        a[i] = 0.0
    j = 0
    while j + 8 <= n:
        for i in range(8):
            a[i] += lanes[j + i]
        j += 8
    for i in range(n - j):
        a[i] += lanes[j + i]
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))


cdef void gather(double* columns, const Block* b) noexcept nogil:
    """Sum over the columns of each channel, into the first `channels` of them; widen is a power of two."""
    cdef Py_ssize_t c, j, widen = b.widen, run = b.run, half = width_of(b) // 2
    while widen > 1:    # one half of the row onto the other
        for j in range(half):
            columns[j] += columns[half + j]
        half //= 2
        widen //= 2
    if run > 1:
        for c in range(b.channels):
            columns[c] = lane_sum(columns + c * run, run)


cdef inline void begin_sums(const Block* b, double* s, double* q) noexcept nogil:
    """Room for two sums of every column."""
    zero(s, width_of(b))
    zero(q, width_of(b))


cdef inline void gather_sums(const Block* b, double* s, double* q) noexcept nogil:
    gather(s, b)
    gather(q, b)


cdef inline const void* weights_from(const void* weight, int weighs, Py_ssize_t i) noexcept nogil:
    """Those from position i on, of whatever type, or NULL."""
    if weight == NULL:
        return weight
    return <const char*>weight + i * (<Py_ssize_t>sizeof(double) if weighs == BN_REAL else 1)


cdef inline void weigh_block(Job* job, Py_ssize_t at, double* total, Block* b) noexcept nogil:
    """Give a block its weights, if there are any, from a position on. total: their sum for all channels, or NULL."""
    b.w = weights_from(job.weight, job.weighs, at)
    b.weighs = job.weighs
    b.unsound = &job.unsound
    b.total = total
    b.folds = NULL


cdef inline const double* weights_at(
    const void* weight, int weighs, Py_ssize_t i, Py_ssize_t n, double* room
) noexcept nogil:
    """n weights from position i on: where they lie, or in the room if they are bytes."""
    if weighs == BN_REAL:
        return <const double*>weight + i
    bn_read_double(weighs, weight, i, n, room)
    return room


cdef inline Py_ssize_t block_rows(const Job* job, Py_ssize_t done) noexcept nogil:
    """Rows of the next block after so many; of moments at most three times as many, see channel_moments.pxi."""
    return BLOCK if job != NULL and job.dy != NULL else max(<Py_ssize_t>FIRST, min(<Py_ssize_t>BLOCK, 3 * done))


cdef inline const double* row_weights(const Block* b, Py_ssize_t r, Py_ssize_t width, double* room) noexcept nogil:
    """The weights of row r of a block, of which so many columns are there."""
    return weights_at(b.w, b.weighs, r * b.widen * b.run, width // b.channels, room)


cdef inline void weights_of_row(
    const double* w, double scale, Py_ssize_t channels, Py_ssize_t run, Py_ssize_t width, real* columns
) noexcept nogil:
    """The weights of the first `width` columns of a row, times a power of two; the channels share w[q * run + i]."""
    cdef Py_ssize_t c, i, j = 0
    cdef real one
    while j < width:
        if run == 1:
            one = <real>(w[0] * scale)
            if channels <= VECTOR and j + VECTOR <= width:
                for c in range(VECTOR):     # whole vectors: what is too much is written over
                    columns[j + c] = one
            else:
                for c in range(channels):
                    columns[j + c] = one
            j += channels
        else:
            for c in range(channels):
                for i in range(min(run, width - j)):
                    columns[j + i] = <real>(w[i] * scale)
                j += run
        w += run
