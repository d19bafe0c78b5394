# Sums of the columns of a block whose positions have weights, about given centers. If there are many channels, rows
# are summed that have one weight each; else columns, to which weights are copied in registers (weights.h).
#
# Uses Block, FETCH_COLUMNS, ROWS, pour, values_of, weights_at, weights_from, width_of, zero (channel_columns), ACROSS
# (channel_moments), fold_weights (channel_weighted).
# Gives BROAD, sums_of_columns, sums_of_rows.

cdef enum:
    FOURS = 16      # groups of four rows that are summed before their sum is added to the total
    BROAD = 16      # from this many values side by side on a loop of their own pays


cdef inline void two(double x0, double w0, double x1, double w1, double m, double* sum, double* square) noexcept nogil:
    """Compute sum w (x - m) and sum w (x - m)^2 of two values."""
    cdef double d0 = x0 - m, d1 = x1 - m, p0 = w0 * d0, p1 = w1 * d1
    sum[0] = p0 + p1
    square[0] = p0 * d0 + p1 * d1


cdef inline void four_rows(
    const real* x, Py_ssize_t stride, const Py_ssize_t* row, const double* w, Py_ssize_t n, const double* m,
    bint begins, double* s, double* q
) noexcept nogil:
    """Add s += sum w (x - m), q += sum w (x - m)^2 per column, of four rows with one weight each. begins: store the
    sums, and add nothing."""
    cdef const real* x0 = x + row[0] * stride
    cdef const real* x1 = x + row[1] * stride
    cdef const real* x2 = x + row[2] * stride
    cdef const real* x3 = x + row[3] * stride
    cdef Py_ssize_t j
    cdef double s0, s1, q0, q1
    for j in range(n):
        two(x0[j], w[0], x1[j], w[1], m[j], &s0, &q0)
        two(x2[j], w[2], x3[j], w[3], m[j], &s1, &q1)
        s[j] = s0 + s1 if begins else s[j] + (s0 + s1)
        q[j] = q0 + q1 if begins else q[j] + (q0 + q1)


cdef inline void sums_of_rows(const real* x, const Block* b, const double* m, double* s, double* q) noexcept nogil:
    """The same for a block whose positions are rows of channels. Rows of weight 0 are skipped."""
    cdef Py_ssize_t[4 * FOURS + 4] row
    cdef double[4 * FOURS + 4] w
    cdef double[4 * FOURS] near
    cdef const double* given
    cdef double[ACROSS] of_s, of_q
    cdef double[WIDE] some_s, some_q
    cdef Py_ssize_t width = b.channels, stride = b.stride // b.widen, rows = values_of(b)
    cdef Py_ssize_t most = ACROSS if b.ahead == NULL else 2 * FETCH_COLUMNS
    cdef Py_ssize_t r = 0, i, f, j, k, n, found, done = 0, end, passed
    zero(some_s, width)
    zero(some_q, width)
    if b.folds != NULL:
        fold_weights(b, rows)
    while r < rows:
        found = 0
        while r < rows and found < 4 * FOURS:   # as many as fit, even if all of them count
            n = min(4 * FOURS - found, rows - r)
            given = weights_at(b.w, b.weighs, r, n, near)
            fetch_weights(b, <const char*>given, n)
            for i in range(n):
                row[found] = r + i
                w[found] = given[i]
                found += given[i] != 0.0
            r += n
        for i in range(found, found + 4):   # fill up to whole fours
            row[i] = row[0]
            w[i] = 0.0
        i = 0
        while i < found:
            end = min(i + <Py_ssize_t>ROWS, found)
            k = 0
            while k < width:
                n = min(most, width - k)
                for f in range(i, end, 4):
                    if b.ahead != NULL:
                        passed = (row[f + 4] if f + 4 < found else r) - (done if f == 0 else row[f])
                        bn_fetch(b.ahead, passed * n * sizeof(real))
                    if f == i:
                        four_rows(x + k, stride, row + f, w + f, n, m + k, True, of_s, of_q)
                    else:
                        four_rows(x + k, stride, row + f, w + f, n, m + k, False, of_s, of_q)
                for j in range(n):
                    some_s[k + j] += of_s[j]
                    some_q[k + j] += of_q[j]
                k += n
            i = end
        if found > 0:
            done = r
        pour(some_s, width, s)
        pour(some_q, width, q)
    if b.ahead != NULL:
        bn_advance(b.ahead, (rows - done) * width * sizeof(real))


cdef inline real counted(real x, double w) noexcept nogil:
    """Return x, or 0 if its weight is 0, whatever x is."""
    return x if w != 0.0 else 0


cdef inline void four_weighted(
    const real* x, Py_ssize_t stride, const double* w, Py_ssize_t step, Py_ssize_t n, const double* m,
    double* s, double* q
) noexcept nogil:
    """four_rows for n columns with weights of their own, which are `step` apart from row to row."""
    cdef Py_ssize_t j
    cdef double s0, s1, q0, q1, w0, w1, w2, w3
    for j in range(n):
        w0, w1, w2, w3 = w[j], w[step + j], w[2 * step + j], w[3 * step + j]
        two(counted(x[j], w0), w0, counted(x[stride + j], w1), w1, m[j], &s0, &q0)
        two(counted(x[2 * stride + j], w2), w2, counted(x[3 * stride + j], w3), w3, m[j], &s1, &q1)
        s[j] += s0 + s1
        q[j] += q0 + q1


cdef inline void one_weighted(
    const real* x, const double* w, Py_ssize_t n, const double* m, double* s, double* q
) noexcept nogil:
    cdef Py_ssize_t j
    cdef double d
    for j in range(n):
        d = <double>counted(x[j], w[j]) - m[j]
        s[j] += w[j] * d
        q[j] += w[j] * d * d


cdef inline void sums_of_columns(
    const real* x, const Block* b, const double* m, bint guarded, double* s, double* q
) noexcept nogil:
    """The same sums for any block. Weights are read where they are if a run is broad, else they are copied to columns.

    guarded: values of weight 0 may be infinite or NaN, so that 0 times them is not 0.
    """
    cdef double[4 * WIDE + BROAD] over_row, near
    cdef double[WIDE] of_s, of_q
    cdef int64_t[8 * BROAD] order
    cdef const double* w
    cdef bint broad = b.run >= BROAD or b.channels == 1
    cdef Py_ssize_t all = width_of(b), width = all, plane = b.widen * b.run, step = plane if broad else all
    cdef Py_ssize_t piece = b.run if broad and b.channels > 1 else all, r = 0, rows, i, j, c, n
    cdef bint turns = BN_PERMUTES > 1 and b.run == 1 and b.widen % BN_SIDE == 0     # spread in registers
    cdef bint whole = BN_SIDE > 1 and not guarded and (broad or turns)              # whole vectors, down ROWS rows
    zero(of_s, all)
    zero(of_q, all)
    if turns and not broad and b.weighs == BN_BOOL:
        bn_spread_byte_order(b.channels, <unsigned char*>order)
    elif turns and not broad:
        bn_spread_order(b.channels, order)
    while r < b.rows + (b.extra > 0):
        rows = ROWS if whole and r + ROWS <= b.rows else 4 if r + 4 <= b.rows else 1
        if b.folds != NULL:
            fold_weights(b, (r + rows) * plane)
        if whole and rows > 1:
            columns_of_fours(x, b, m, r, rows, broad, order, of_s, of_q)
            r += rows
            if r % (4 * FOURS) == 0:
                pour(of_s, all, s)
                pour(of_q, all, q)
            continue
        if r == b.rows:
            width = b.extra
        n = (rows - 1) * plane + width // b.channels
        w = weights_at(b.w, b.weighs, r * plane, n, near)
        if not broad:
            if b.run == 1:
                bn_spread(w, n, b.channels, over_row)
            else:
                if w != near:   # more than n are read
                    memcpy(near, w, n * sizeof(double))
                bn_spread_runs(near, n // b.run, b.channels, b.run, over_row)
            w = over_row
        if BN_SIDE > 1 and rows == 4 and not guarded:   # not broad: spread in memory
            n = bn_weighted_columns(1, x + r * b.stride, b.stride, all, BN_ALONG, w, all, 0, order, m, b.ahead, of_s,
                                    of_q)
            j = i = n
            c = 0
        else:
            j = i = c = 0
        while j < width:
            n = min(min(<Py_ssize_t>LANES, piece - i), width - j)
            if b.ahead != NULL:
                bn_fetch(b.ahead, rows * n * sizeof(real))
            if rows == 4:
                four_weighted(x + r * b.stride + j, b.stride, w + i, step, n, m + j, of_s + j, of_q + j)
            else:
                one_weighted(x + r * b.stride + j, w + i, n, m + j, of_s + j, of_q + j)
            j += n
            i += n
            if i == piece:
                i = 0
                c += 1
                if c == b.channels:
                    c = 0
                    w += piece
        r += rows
        if r % (4 * FOURS) == 0:
            pour(of_s, all, s)
            pour(of_q, all, q)
    pour(of_s, all, s)
    pour(of_q, all, q)


cdef void columns_of_fours(
    const real* x, const Block* b, const double* m, Py_ssize_t r, Py_ssize_t rows, bint broad, const int64_t* order,
    double* s, double* q
) noexcept nogil:
    """Add the sums of `rows` rows, a multiple of four, from row r on, to those of their columns."""
    cdef double[2 * TILE] near  # a byte for each column of sixteen rows
    cdef Py_ssize_t all = width_of(b), plane = b.widen * b.run, piece, i = 0, j = 0, n
    cdef int how = BN_ALONG if b.weighs == BN_REAL else BN_BOOLS if b.weighs == BN_BOOL else BN_BYTES
    cdef Py_ssize_t size = sizeof(double) if b.weighs == BN_REAL else 1
    cdef const char* w = <const char*>weights_from(b.w, b.weighs, r * plane)
    x += r * b.stride
    if not broad and b.weighs == BN_BOOL:
        bn_spread_bytes(<const unsigned char*>w, rows * plane, b.channels, <const unsigned char*>order,
                        <unsigned char*>near)
        bn_weighted_columns(rows // 4, x, b.stride, all, how, near, all, 0, order, m, b.ahead, s, q)
        return
    if not broad:
        how = BN_SHARED if b.weighs == BN_REAL else BN_SHARED_BYTES
        bn_weighted_columns(rows // 4, x, b.stride, all, how, w, plane, b.channels, order, m, b.ahead, s, q)
        return
    piece = b.run if b.channels > 1 else all
    while j < all:
        if i == 0 and piece % BN_SIDE:
            last_weights(b, rows, w, piece, near)
        n = bn_weighted_columns(rows // 4, x + j, b.stride, piece, how, w, plane, 0, order, m + j, b.ahead, s + j,
                                q + j)
        j += piece
        if n < piece:
            last_columns(x + j, b, rows, piece - n, near, j == all, m + j, s + j, q + j)
        i += 1
        if i == b.channels:
            i = 0
            w += piece * size


cdef inline void fetch_weights(const Block* b, const char* w, Py_ssize_t n) noexcept nogil:
    """Fetch the weights of the next block at the places of these n, as a block first adds up its weights."""
    cdef const char* end
    if b.ahead != NULL and b.weighs == BN_REAL:
        w += values_of(b) * <Py_ssize_t>sizeof(double)
        end = w + n * <Py_ssize_t>sizeof(double)
        while w < end:
            bn_fetch_line(w)
            w += BN_LINE


cdef void last_weights(const Block* b, Py_ssize_t rows, const char* w, Py_ssize_t n, double* last) noexcept nogil:
    """Copy the last of n weights, which do not fill a vector, to a vector for each row, with zeros behind them."""
    cdef double[BN_SIDE] near
    cdef Py_ssize_t r, rest = n % BN_SIDE
    zero(last, rows * BN_SIDE)
    for r in range(rows):
        memcpy(last + r * BN_SIDE, weights_at(w, b.weighs, r * b.widen * b.run + n - rest, rest, near),
               rest * sizeof(double))


cdef void last_columns(
    const real* x, const Block* b, Py_ssize_t rows, Py_ssize_t n, const double* w, bint ends, const double* m,
    double* s, double* q
) noexcept nogil:
    """Add the last n columns before x, which do not fill a vector. They are summed with the columns behind them, whose
    sums are dropped, unless the block ends here."""
    cdef double[BN_SIDE] of_s, of_q
    cdef Py_ssize_t r
    x -= n
    m -= n
    s -= n
    q -= n
    if ends:
        for r in range(0, rows, 4):
            four_weighted(x + r * b.stride, b.stride, w + r * BN_SIDE, BN_SIDE, n, m, s, q)
    else:
        memcpy(of_s, s, sizeof(of_s))
        memcpy(of_q, q, sizeof(of_q))
        bn_weighted_columns(rows // 4, x, b.stride, BN_SIDE, BN_ALONG, w, BN_SIDE, 0, NULL, m, NULL, of_s, of_q)
        memcpy(s, of_s, n * sizeof(double))
        memcpy(q, of_q, n * sizeof(double))
    if b.ahead != NULL:
        bn_fetch(b.ahead, rows * n * sizeof(real))
