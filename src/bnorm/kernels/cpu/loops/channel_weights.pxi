# Sums of a block whose positions have weights, about given centers, in one of three ways. Many values of a channel
# side by side are a plane, and are read in their order. Of many channels, rows are summed that have one weight each. Of
# few, columns are, to which weights are copied in registers (weights.h).
#
# Uses Block, FETCH_COLUMNS, ROWS, is_mask, plane_of, pour, size_of_weight, values_of, weights_at, weights_from,
# whole_sums, width_of, zero (channel_columns), ACROSS (channel_sums), fold_weights (channel_weighted).
# Gives has_planes, in_columns, in_eights, sums_of_columns, sums_of_planes, sums_of_rows.

cdef enum:
    FOURS = 16      # groups of four rows that are summed before their sum is added to the total
    BROAD = 16      # from this many values side by side on they are summed as planes
    SPREAD = 48     # columns of float32: weights are copied to the columns of shorter rows,
    SPREAD_EVEN = 32    # but not from this many on if they fill vectors,
    SPREAD_WIDE = 24    # nor from this many on if they are of float64
    PART = 512      # most values of a plane whose sums begin anew


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
    cdef Py_ssize_t begin = 0, j
    cdef double s0, s1, q0, q1
    if real is float:
        begin = bn_weighted_four(x, stride, row, w, n, m, begins, s, q)
    for j in range(begin, n):
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
            fetch_weights(b, <const char*>weights_from(b.w, b.weighs, r), n)
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


cdef inline void sums_of_planes(const real* x, const Block* b, const double* m, double* s, double* q) noexcept nogil:
    """The same sums, per channel, for a block for which has_planes is true. Values of weight 0 may be anything."""
    cdef double[WIDE >> 1] sums, squares    # 8 parts for each channel
    cdef double[PART] near
    cdef Block p = plane_of(b)
    # Weights of several channels are converted once, but it takes less to look at a mask. Without AVX2 bytes are, too.
    cdef bint bytes = is_mask(b.weighs), direct = p.channels == 1 or b.weighs == BN_BOOL
    cdef int kind = b.weighs if direct and (BN_PERMUTES > 1 or not bytes) else BN_REAL
    cdef const void* w
    cdef Py_ssize_t r, i, n
    zero(sums, 8 * p.channels)
    zero(squares, 8 * p.channels)
    for r in range(p.rows):
        i = 0
        while i < p.run:
            n = min(<Py_ssize_t>PART, p.run - i) if p.channels == 1 else p.run
            w = weights_from(b.w, b.weighs, r * p.run + i)
            if b.folds != NULL:
                fold_weights(b, r * p.run + i + n)
                fetch_weights(b, <const char*>w, n)
            if kind == BN_REAL:
                w = weights_at(w, b.weighs, 0, n, near)
            bn_weighted_planes(p.channels, n, x + r * p.stride + i, kind, w, m, b.ahead, sums, squares)
            i += n
    whole_sums(p.channels, sums, s)
    whole_sums(p.channels, squares, q)


cdef inline bint has_planes(const Block* b) noexcept nogil:
    """Whether many values of a channel are side by side."""
    return b.run >= BROAD or (b.channels == 1 and b.stride == b.widen * b.run)


cdef inline bint in_columns(const real* x, const Block* b) noexcept nogil:
    """Whether the values of a row that is no run are so few that their weights are copied to columns."""
    cdef Py_ssize_t all = b.stride // b.widen, many = SPREAD if all % 8 else SPREAD_EVEN    # all channels of the array
    if real is double:
        many = SPREAD_WIDE
    return b.run == 1 and all < many


cdef inline Block in_eights(const real* x, const Block* b) noexcept nogil:
    """Return the block with eight positions in a row, whose weights fill the widest vector, if it has fewer."""
    cdef Block wide = b[0]
    while in_columns(x, b) and wide.widen < 8 and wide.stride == wide.widen * wide.channels:
        wide.widen *= 2
        wide.extra += wide.rows % 2 * wide.stride
        wide.stride *= 2
        wide.rows //= 2
    return wide


cdef inline void sums_of_columns(
    const real* x, const Block* b, const double* m, bint guarded, double* s, double* q
) noexcept nogil:
    """The same sums of the columns of any block. Weights are copied to columns, in registers if runs are single values.

    guarded: values of weight 0 may be infinite or NaN, so that 0 times them is not 0.
    """
    cdef double[4 * WIDE + BROAD] over_row, near
    cdef double[WIDE] of_s, of_q
    cdef int64_t[8 * SPREAD] order  # of as many columns as a vector has weights
    cdef const double* w
    cdef Py_ssize_t all = width_of(b), width = all, plane = b.widen * b.run, r = 0, rows, j, n
    cdef bint turns = BN_SIDE > 1 and not guarded and b.run == 1 and b.widen % BN_SIDE == 0
    zero(of_s, all)
    zero(of_q, all)
    if turns and BN_PERMUTES > 1 and b.weighs == BN_BOOL:
        bn_spread_byte_order(b.channels, <unsigned char*>order)
    elif turns:
        bn_spread_order(b.channels, all, order)
    while r < b.rows + (b.extra > 0):
        rows = 4 if r + 4 <= b.rows else 1
        if turns and rows == 4:
            rows = min(<Py_ssize_t>ROWS, (b.rows - r) // 4 * 4)
        if b.folds != NULL:
            fold_weights(b, (r + rows) * plane)
        if turns and rows > 1:
            columns_by_turns(x, b, m, r, rows, order, of_s, of_q)
            r += rows
            if r % (4 * FOURS) == 0:
                pour(of_s, all, s)
                pour(of_q, all, q)
            continue
        if r == b.rows:
            width = b.extra
        n = (rows - 1) * plane + width // b.channels
        w = weights_at(b.w, b.weighs, r * plane, n, near)
        if b.run == 1:
            bn_spread(w, n, b.channels, over_row)
        else:
            if w != near:   # more than n are read
                memcpy(near, w, n * sizeof(double))
            bn_spread_runs(near, n // b.run, b.channels, b.run, over_row)
        j = 0
        if BN_SIDE > 1 and rows == 4 and not guarded:
            j = bn_weighted_columns(1, x + r * b.stride, b.stride, all, BN_ALONG, over_row, all, 0, order, m, b.ahead,
                                    of_s, of_q)
        if b.ahead != NULL:
            bn_fetch(b.ahead, rows * (width - j) * sizeof(real))
        if rows == 4:
            four_weighted(x + r * b.stride + j, b.stride, over_row + j, all, width - j, m + j, of_s + j, of_q + j)
        else:
            one_weighted(x + r * b.stride + j, over_row + j, width - j, m + j, of_s + j, of_q + j)
        r += rows
        if r % (4 * FOURS) == 0:
            pour(of_s, all, s)
            pour(of_q, all, q)
    pour(of_s, all, s)
    pour(of_q, all, q)


cdef inline void columns_by_turns(
    const real* x, const Block* b, const double* m, Py_ssize_t r, Py_ssize_t rows, const int64_t* order,
    double* s, double* q
) noexcept nogil:
    """Add the sums of some rows (by fours, at most ROWS) from row r on to those of their columns. Weights are spread in
    registers."""
    cdef double[3 * TILE] near  # a byte for each column of the rows, or a number for each position
    cdef Py_ssize_t all = width_of(b)
    cdef int how = BN_SHARED if b.weighs == BN_REAL or BN_PERMUTES == 1 else BN_SHARED_FLOATS \
        if b.weighs == BN_FLOAT32 else BN_SHARED_BYTES
    cdef const void* w = weights_from(b.w, b.weighs, r * b.widen)
    x += r * b.stride
    if BN_PERMUTES == 1:
        w = weights_at(w, b.weighs, 0, rows * b.widen, near)
    if BN_PERMUTES > 1 and b.weighs == BN_BOOL:
        bn_spread_bytes(<const unsigned char*>w, rows * b.widen, b.channels, <const unsigned char*>order,
                        <unsigned char*>near)
        bn_weighted_columns(rows // 4, x, b.stride, all, BN_BOOLS, near, all, 0, order, m, b.ahead, s, q)
    else:
        bn_weighted_columns(rows // 4, x, b.stride, all, how, w, b.widen, b.channels, order, m, b.ahead, s, q)


cdef inline void fetch_weights(const Block* b, const char* w, Py_ssize_t n) noexcept nogil:
    """Fetch weights ahead of n that are read: those of the next BLOCK rows, as a block first adds up its weights."""
    cdef Py_ssize_t size = size_of_weight(b.weighs)
    cdef const char* end
    if b.ahead != NULL and not is_mask(b.weighs):
        w += BLOCK * size
        end = w + n * size
        while w < end:
            bn_fetch_line(w)
            w += BN_LINE
