# Blocks, channels and columns. A row of columns is `widen` times `channels` runs of `run` values: column
# (q * channels + c) * run + l belongs to channel c. These functions copy numbers of channels to columns, and add up the
# sums of the columns of each channel.
#
# Uses nothing of its siblings.
# Gives Block, FETCH_COLUMNS, Folds, ROWS, begin_sums, block_rows, bounded, centered_planes, columns_of, fetch_rows,
# gather, gather_sums, head_of, is_mask, lane_sum, next_part, plane_of, plane_sums, planes_of, pour, row_weights,
# run_block, size_of_weight, spread, values_of, weigh_block, weights_at, weights_from, weights_of_row, whole_sums,
# width_of, zero.

cdef enum:
    FETCH_COLUMNS = 32  # columns that are summed between two fetches, so that few lines are fetched at a time
    ROWS = 16           # rows that are summed as one tree
    MANY_COLUMNS = 128  # from this many columns on it pays to begin with whole cache lines


# Sums of the weights of a block, of 512 weights each; the last may be of more or fewer.
ctypedef struct Folds:
    double[2 * BLOCK + 2] sums
    Py_ssize_t done     # how many weights have been added up
    int negative        # set if a weight is negative


# A block: `rows` rows of `widen * channels * run` columns, which are `stride` values apart, and below them the first
# `extra` columns of one more row.
ctypedef struct Block:
    Py_ssize_t rows, stride, extra
    Py_ssize_t widen, channels, run
    const void* w       # the weights from the first position on; NULL: all are 1
    int weighs          # their type, as in Job
    int* unsound        # set if a weight is negative or not finite
    double* total       # their sum, which the first channel stores for the others (-1: not yet); or NULL
    Folds* folds        # where fold_weights keeps the sums of weights that were read, or NULL
    bn_ahead* ahead     # the walk that fetches what is read, or NULL


cdef inline double bounded(double v, const real* x) noexcept nogil:
    """Return v, or the largest number of the type of x if v is finite and larger."""
    return bn_bounded(v) if real is float else v


cdef inline Py_ssize_t width_of(const Block* b) noexcept nogil:
    return b.widen * b.channels * b.run


cdef inline Py_ssize_t head_of(const real* x, const Block* b) noexcept nogil:
    """Return how many columns come before the first whole cache line; 0 if that differs between rows, or if there are
    few columns."""
    if width_of(b) < MANY_COLUMNS or b.stride * sizeof(real) % BN_LINE != 0:
        return 0
    return (-<size_t>x & (BN_LINE - 1)) // sizeof(real)


cdef inline Py_ssize_t next_part(Py_ssize_t left, Py_ssize_t most, Py_ssize_t least) noexcept nogil:
    """Return how many of the last `left` values are taken next: up to `most`, but so that no part is shorter than
    `least`, if the values are not."""
    cdef Py_ssize_t n = min(most, left)
    return n - least if 0 < left - n < least else n


cdef inline Py_ssize_t values_of(const Block* b) noexcept nogil:
    """Return how many values of each channel a block has."""
    return (b.rows * width_of(b) + b.extra) // b.channels


cdef inline void fetch_rows(const Block* b, Py_ssize_t rows, size_t size) noexcept nogil:
    """Move the walk on by the last `rows` rows of a block and the partial row below them, so that it keeps its lead."""
    if b.ahead != NULL:
        bn_fetch(b.ahead, (rows * width_of(b) + b.extra) * size)


cdef inline Block run_block(Py_ssize_t n) noexcept nogil:
    """Return a block of n contiguous values of one channel, with LANES partial sums side by side."""
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
    """Whether planes.h can sum a block whose weights are all 1."""
    return b.run >= BN_WIDTH and b.widen == 1 and b.rows > 0 and (b.extra == 0 or b.channels == 1)


cdef inline Block plane_of(const Block* b) noexcept nogil:
    """Return the block as planes: contiguous values of one channel are a single plane."""
    cdef Block plane = b[0]
    plane.widen = 1
    plane.extra = 0
    if b.channels == 1 and b.stride == b.widen * b.run:
        plane.run = b.rows * b.stride + b.extra
        plane.rows = 1
    elif b.widen > 1:   # then rows follow each other
        plane.stride = b.channels * b.run
        plane.rows = b.rows * b.widen + b.extra // plane.stride
    return plane


cdef inline void whole_sums(Py_ssize_t channels, double* eight, double* sums) noexcept nogil:
    """Add up the 8 parts of each channel."""
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
    """Compute sum g and sum g (x - h) per channel of a block of planes. g is dy before the activation, or x - h if
    there is no dy. With weights x enters only where g is not 0."""
    cdef double[WIDE >> 2] sums, dots
    cdef Block p = plane_of(b)
    zero(sums, 8 * p.channels)
    zero(dots, 8 * p.channels)
    bn_plane_sums(act, p.w != NULL, p.rows, p.stride, p.channels, p.run, dy, x, of, p.ahead, sums, dots)
    whole_sums(p.channels, sums, s)
    whole_sums(p.channels, dots, q)


cdef inline void centered_planes(const real* x, const Block* b, const real* m, double* s, double* q) noexcept nogil:
    """Compute sum (x - m) and sum (x - m)^2 per channel of a block of planes."""
    cdef Numbers of = no_numbers()
    of.h = m
    plane_sums(identity(), <const real*>NULL, x, b, &of, s, q)


cdef void spread(
    const real* values, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, real* columns
) noexcept nogil:
    """Write the value of each channel into all its columns."""
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
    """The same for values that are only read: return the values themselves if each channel is one column."""
    if b.widen * b.run == 1:
        return values
    spread(values, b.widen, b.channels, b.run, columns)
    return columns


cdef inline void pour(real* some, Py_ssize_t n, double* all) noexcept nogil:
    """Add n partial sums to the totals, in float64, and set them to 0."""
    cdef Py_ssize_t j
    for j in range(n):
        all[j] += <double>some[j]
        some[j] = 0


cdef inline double lane_sum(const double* lanes, Py_ssize_t n) noexcept nogil:
    """Return the sum of n values in one fixed order: eight running sums, then a tree."""
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
    """Add up the columns of each channel, into the first `channels` columns. widen is a power of two."""
    cdef Py_ssize_t c, j, widen = b.widen, run = b.run, half = width_of(b) // 2
    while widen > 1:    # add the second half of the row to the first
        for j in range(half):
            columns[j] += columns[half + j]
        half //= 2
        widen //= 2
    if run > 1:
        for c in range(b.channels):
            columns[c] = lane_sum(columns + c * run, run)


cdef inline void begin_sums(const Block* b, double* s, double* q) noexcept nogil:
    """Set two sums of every column to 0."""
    zero(s, width_of(b))
    zero(q, width_of(b))


cdef inline void gather_sums(const Block* b, double* s, double* q) noexcept nogil:
    gather(s, b)
    gather(q, b)


cdef inline Py_ssize_t size_of_weight(int weighs) noexcept nogil:
    return sizeof(double) if weighs == BN_REAL else sizeof(float) if weighs == BN_FLOAT32 else 1


cdef inline bint is_mask(int weighs) noexcept nogil:
    """Whether weights are bytes, whose sum is exact and takes little time."""
    return weighs != BN_REAL and weighs != BN_FLOAT32


cdef inline const void* weights_from(const void* weight, int weighs, Py_ssize_t i) noexcept nogil:
    """Return the weights from position i on, of whatever type, or NULL if there are none."""
    if weight == NULL:
        return weight
    return <const char*>weight + i * size_of_weight(weighs)


cdef inline void weigh_block(Job* job, Py_ssize_t at, double* total, Block* b) noexcept nogil:
    """Give a block its weights, if there are any, from position `at` on. total: see Block."""
    b.w = weights_from(job.weight, job.weighs, at)
    b.weighs = job.weighs
    b.unsound = &job.unsound
    b.total = total
    b.folds = NULL


cdef inline const double* weights_at(
    const void* weight, int weighs, Py_ssize_t i, Py_ssize_t n, double* room
) noexcept nogil:
    """Return n weights from position i on: where they are, or converted to `room` if they are not float64."""
    if weighs == BN_REAL:
        return <const double*>weight + i
    bn_read_weights(weighs, weight, i, n, room)
    return room


cdef inline Py_ssize_t block_rows(const Job* job, Py_ssize_t done) noexcept nogil:
    """Return how many rows the block after `done` rows has: for moments at most three times as many as done, see
    channel_moments.pxi."""
    return BLOCK if job != NULL and job.dy != NULL else max(<Py_ssize_t>FIRST, min(<Py_ssize_t>BLOCK, 3 * done))


cdef inline const double* row_weights(const Block* b, Py_ssize_t r, Py_ssize_t width, double* room) noexcept nogil:
    """Return the weights of row r of a block, of which the first `width` columns exist."""
    return weights_at(b.w, b.weighs, r * b.widen * b.run, width // b.channels, room)


cdef inline void weights_of_row(
    const double* w, double scale, Py_ssize_t channels, Py_ssize_t run, Py_ssize_t width, real* columns
) noexcept nogil:
    """Write the weights of the first `width` columns of a row, times a power of two, to `columns`. All channels share
    w[q * run + i]."""
    cdef Py_ssize_t c, i, j = 0
    cdef real one
    while j < width:
        if run == 1:
            one = <real>(w[0] * scale)
            if channels <= VECTOR and j + VECTOR <= width:
                for c in range(VECTOR):     # a whole vector: what is too much is overwritten
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
