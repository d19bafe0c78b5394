# Moments of one block whose positions have weights, which its channels share: so one sum of weights serves them all.
#
# Summed about a center in float64, as in channel_moments.pxi. But there the center of a block is near enough because no
# block has more than three times the values before it. Weights may grow without bounds from block to block; so a block
# that outweighs what was before it by more is summed again where its center turns out to be far from its mean.
#
# Uses Block, FETCH_COLUMNS, ROWS, columns_of, gather, lane_sum, pour, values_of, width_of, zero (channel_columns),
# ACROSS, Parts, add_unmarked, careful_moments (channel_moments).
# Gives recenter, weight_of, weighted_moments.

cdef enum:
    FOURS = 16      # times four rows that are summed before their sum is added
    BROAD = 16      # values side by side that are worth a loop of their own
    FOLD = 512      # weights that are summed as eight rows


cdef inline void two(double x0, double w0, double x1, double w1, double m, double* sum, double* square) noexcept nogil:
    """sum w (x - m) and sum w (x - m)^2 of two values."""
    cdef double d0 = x0 - m, d1 = x1 - m, p0 = w0 * d0, p1 = w1 * d1
    sum[0] = p0 + p1
    square[0] = p0 * d0 + p1 * d1


cdef inline void four_rows(
    const real* x, Py_ssize_t stride, const Py_ssize_t* row, const double* w, Py_ssize_t n, const double* m,
    bint begins, double* s, double* q
) noexcept nogil:
    """s += sum w (x - m), q += sum w (x - m)^2 per column, of four rows with one weight each; begins: from nothing."""
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
    """The same of a block whose positions are rows of channels; those of weight 0 are stepped over."""
    cdef Py_ssize_t[4 * FOURS + 4] row
    cdef double[4 * FOURS + 4] w
    cdef double[ACROSS] of_s, of_q
    cdef double[WIDE] some_s, some_q
    cdef Py_ssize_t width = b.channels, stride = b.stride // b.widen, rows = values_of(b)
    cdef Py_ssize_t most = ACROSS if b.ahead == NULL else 4 * FETCH_COLUMNS
    cdef Py_ssize_t r = 0, i, f, j, k, n, found, done = 0, end, passed
    zero(some_s, width)
    zero(some_q, width)
    while r < rows:
        found = 0
        while r < rows and found < 4 * FOURS:
            row[found] = r
            w[found] = b.w[r]
            found += b.w[r] != 0.0
            r += 1
        for i in range(found, found + 4):   # to whole fours
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


cdef inline real counted(real x, double w, bint guarded) noexcept nogil:
    """x, or where guarded 0 if it does not count, whatever it is."""
    return x if w != 0.0 or not guarded else 0


cdef inline void two_weighted(
    const real* x, Py_ssize_t stride, const double* w, Py_ssize_t step, double m, bint guarded, double* sum,
    double* square
) noexcept nogil:
    """`two` down a column."""
    cdef double w0 = w[0], w1 = w[step]
    two(counted(x[0], w0, guarded), w0, counted(x[stride], w1, guarded), w1, m, sum, square)


cdef inline void four_weighted(
    const real* x, Py_ssize_t stride, const double* w, Py_ssize_t step, Py_ssize_t n, const double* m, bint guarded,
    double* s, double* q
) noexcept nogil:
    """four_rows, where the n columns have weights of their own, `step` apart from row to row."""
    cdef Py_ssize_t j
    cdef double s0, s1, q0, q1
    for j in range(n):
        two_weighted(x + j, stride, w + j, step, m[j], guarded, &s0, &q0)
        two_weighted(x + 2 * stride + j, stride, w + 2 * step + j, step, m[j], guarded, &s1, &q1)
        s[j] += s0 + s1
        q[j] += q0 + q1


cdef inline void one_weighted(
    const real* x, const double* w, Py_ssize_t n, const double* m, double* s, double* q
) noexcept nogil:
    cdef Py_ssize_t j
    cdef double d
    for j in range(n):
        d = <double>counted(x[j], w[j], True) - m[j]
        s[j] += w[j] * d
        q[j] += w[j] * d * d


cdef inline void sums_of_columns(
    const real* x, const Block* b, const double* m, bint guarded, double* s, double* q
) noexcept nogil:
    """The same of any block: weights are read where they lie if a run is broad, else they are spread over the row.

    guarded: what weighs nothing may be something that times 0 is not 0.
    """
    cdef double[4 * WIDE + BROAD] over_row, near
    cdef double[WIDE] of_s, of_q
    cdef int64_t[8 * BROAD] order
    cdef const double* w
    cdef bint broad = b.run >= BROAD or b.channels == 1
    cdef Py_ssize_t all = width_of(b), width = all, plane = b.widen * b.run, step = plane if broad else all
    cdef Py_ssize_t piece = b.run if broad and b.channels > 1 else all, r = 0, rows, i, j, c, n
    zero(of_s, all)
    zero(of_q, all)
    if not broad and b.run == 1:
        bn_spread_order(b.channels, order)
    while r < b.rows + (b.extra > 0):
        rows = 4 if r + 4 <= b.rows else 1
        if r == b.rows:
            width = b.extra
        w = b.w + r * plane
        if not broad:
            n = (rows - 1) * plane + width // b.channels
            if b.run == 1:
                bn_spread(w, n, b.channels, order, over_row)
            else:
                memcpy(near, w, n * sizeof(double))
                bn_spread_runs(near, n // b.run, b.channels, b.run, over_row)
            w = over_row
        j = i = c = 0
        while j < width:
            n = min(min(<Py_ssize_t>LANES, piece - i), width - j)
            if b.ahead != NULL:
                bn_fetch(b.ahead, rows * n * sizeof(real))
            if rows == 4:
                four_weighted(x + r * b.stride + j, b.stride, w + i, step, n, m + j, guarded, of_s + j, of_q + j)
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


cdef double weight_of(const double* w, Py_ssize_t n) noexcept nogil:
    """The sum of n weights: of so many at a time, then in pairs."""
    cdef double[LANES] lanes
    cdef Py_ssize_t j, half = n // (2 * FOLD) * FOLD
    if half > 0:
        return weight_of(w, half) + weight_of(w + half, n - half)
    if n < FOLD:
        return lane_sum(w, n)
    for j in range(LANES):
        lanes[j] = ((w[j] + w[LANES + j]) + (w[2 * LANES + j] + w[3 * LANES + j])) + (
            (w[4 * LANES + j] + w[5 * LANES + j]) + (w[6 * LANES + j] + w[7 * LANES + j]))
    return lane_sum(lanes, LANES) + lane_sum(w + FOLD, n - FOLD)


cdef inline bint recenter(
    Py_ssize_t channels, const double* count, Py_ssize_t step, const double* s, const double* q, const double* n,
    double* center
) noexcept nogil:
    """Move centers far from the mean of a block that outweighs the n before it there; whether there are any.

    count: of each channel, or one for all where the step is 0. Far is sqrt(3) standard deviations: q is then four times
    what it could be, and so is its rounding.
    """
    cdef Py_ssize_t c
    cdef bint moved = False
    for c in range(channels):
        if count[c * step] > 3.0 * n[c] and s[c] * (s[c] / count[c * step]) > 0.75 * q[c]:
            center[c] += s[c] / count[c * step]
            moved = True
    return moved


cdef inline bint not_finite(Py_ssize_t channels, const double* q) noexcept nogil:
    """Whether a sum of squares is not finite."""
    cdef Py_ssize_t c
    cdef int found = 0
    for c in range(channels):
        found |= not (q[c] < INFINITY)
    return found != 0


cdef inline bint any_zero(const double* w, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef int found = 0
    for i in range(n):
        found |= w[i] == 0.0
    return found != 0


cdef void weighted_sums(const real* x, const Block* b, const double* center, double* s, double* q) noexcept nogil:
    """Per channel s = sum w (x - center), q = sum w (x - center)^2; room for all columns."""
    cdef double[WIDE] columns
    cdef const double* m = columns_of(center, b, columns)
    cdef Block again = b[0]
    zero(s, width_of(b))
    zero(q, width_of(b))
    if b.run == 1 and b.stride >= b.widen * BROAD:   # all columns of the array, whichever of them are in the block
        sums_of_rows(x, b, center, s, q)
        return
    sums_of_columns(x, b, m, False, s, q)
    gather(s, b)
    gather(q, b)
    if not_finite(b.channels, q) and any_zero(b.w, values_of(b)):
        again.ahead = NULL
        zero(s, width_of(b))
        zero(q, width_of(b))
        sums_of_columns(x, &again, m, True, s, q)
        gather(s, b)
        gather(q, b)


cdef void weighted_moments(const real* x, const Block* b, bint skipna, Parts to) noexcept nogil:
    """block_moments with weights."""
    cdef double[WIDE] center, s, q
    cdef Py_ssize_t c, p = 0, row = b.widen * b.run, n = values_of(b)
    cdef int[WIDE] odd
    cdef double count = weight_of(b.w, n)
    cdef bint holes = False
    cdef Block again = b[0]
    again.ahead = NULL
    if not 1.0 / count < INFINITY:  # it weighs nothing, or not enough to divide by
        if b.ahead != NULL:
            bn_advance(b.ahead, n * b.channels * sizeof(real))
        return
    while b.w[p] == 0.0:
        p += 1
    p = p // row * b.stride + p % row // b.run * b.channels * b.run + p % b.run
    for c in range(b.channels):     # the first value that counts, where there is no mean yet
        center[c] = x[p + c * b.run] if to.n[c] == 0.0 else to.mean[c] + to.low[c]
    weighted_sums(x, b, center, s, q)
    if recenter(b.channels, &count, 0, s, q, to.n, center):
        weighted_sums(x, &again, center, s, q)
    for c in range(b.channels):
        holes |= q[c] != q[c]
    if skipna and holes:
        for c in range(b.channels):
            odd[c] = q[c] != q[c]
        careful_moments(x, &again, skipna, odd, to)
        add_unmarked(b.channels, count, odd, center, s, q, to)
    else:
        bn_add_blocks(b.channels, count, center, s, q, to.n, to.mean, to.m2, to.low)
