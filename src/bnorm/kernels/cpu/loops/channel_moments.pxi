# Moments of one block of rows.
#
# Every block is summed about a center close to its mean, so nothing cancels. The center of the first block of a task
# is the mean of every fourth row, which is at most sqrt(4) standard deviations away from the mean of the block
# (Cauchy-Schwarz). The center of a later block is the mean so far, so its data is read once. If the mean of its n_b
# values is d away from that of the n values before it, its rounding error is eps n_b d^2. The merge adds
# n n_b / (n + n_b) d^2 to m2 anyway; as long as n_b <= 3 n, the error is at most 4 eps times that. So the first block
# is small, and each later block is at most three times as long as all blocks before it.
#
# Uses Block, begin_sums, centered_planes, columns_of, gather, gather_sums, planes_of, pour, row_weights, spread,
# values_of, weights_of_row, width_of, zero (channel_columns), centered_sums, exact_sums (channel_sums), MOST_CENTERS,
# recenter, weighted_moments (channel_weighted).
# Gives Parts, add_unmarked, block_moments, careful_moments, careful_sums.

cdef enum:
    CAREFUL = 32    # rows in a partial sum: rounding grows with this number, and with the number of partial sums

ctypedef struct Parts:      # one number for each channel of a block
    double* n
    double* mean
    double* m2
    double* low


cdef inline void weighted_row(
    const real* x, const double* w, Py_ssize_t width, bint skipna, const double* m, double* n, double* s, double* q
) noexcept nogil:
    """Add n += w, s += w (x - m), q += w (x - m)^2 per column, in float64, without values of weight 0 and, if skipna,
    without NaN."""
    cdef Py_ssize_t j
    cdef double v, wj, d
    cdef bint used
    for j in range(width):
        v = <double>x[j]
        used = (w[j] != 0.0) & ((v == v) | (not skipna))
        wj = w[j] if used else 0.0
        d = v - m[j] if used else 0.0
        n[j] += wj
        s[j] += wj * d
        q[j] += wj * d * d


cdef void careful_sums(
    const real* x, const Block* b, bint skipna, const double* center, double* n, double* s, double* q
) noexcept nogil:
    """Compute n = sum w, s = sum w (x - center) and q = sum w (x - center)^2 per channel, all in float64. n, s and q
    need space for all columns."""
    cdef double[WIDE] wj, columns, of_n, of_s, of_q, near
    cdef const double* m = columns_of(center, b, columns)
    cdef Py_ssize_t r, j, width = width_of(b), rows = b.rows + (b.extra > 0)
    zero(n, width)
    begin_sums(b, s, q)
    for j in range(width):
        wj[j] = 1.0
    zero(of_n, width)
    begin_sums(b, of_s, of_q)
    for r in range(rows):
        j = width if r < b.rows else b.extra
        if b.w != NULL:
            weights_of_row(row_weights(b, r, j, near), 1.0, b.channels, b.run, j, wj)
        weighted_row(x + r * b.stride, wj, j, skipna, m, of_n, of_s, of_q)
        if r % CAREFUL == CAREFUL - 1 or r == rows - 1:
            pour(of_n, width, n)
            pour(of_s, width, s)
            pour(of_q, width, q)
    gather(n, b)
    gather_sums(b, s, q)


cdef void first_values(
    const real* x, const Block* b, bint skipna, const double* n, double* center
) noexcept nogil:
    """Set the center of each channel that has no value yet (n == 0) to its first value that counts, or to 0 if the
    block has none."""
    cdef bint[WIDE] found
    cdef double[WIDE] wj, near
    cdef Py_ssize_t r, j, c, width, missing = 0
    cdef double v
    for c in range(b.channels):
        found[c] = n[c] > 0.0
        if not found[c]:
            center[c] = 0.0
            missing += 1
    for r in range(b.rows + (b.extra > 0)):
        if missing == 0:
            return
        width = width_of(b) if r < b.rows else b.extra
        if b.w != NULL:
            weights_of_row(row_weights(b, r, width, near), 1.0, b.channels, b.run, width, wj)
        for j in range(width):
            c = (j // b.run) % b.channels
            v = <double>x[r * b.stride + j]
            if not found[c] and (b.w == NULL or wj[j] != 0.0) and (v == v or not skipna):
                center[c] = v
                found[c] = True
                missing -= 1


cdef void add_unmarked(
    Py_ssize_t channels, double count, const int* odd, const double* center, const double* s, const double* q, Parts to
) noexcept nogil:
    """Add a block to the moments of the channels that are not marked as odd."""
    cdef Py_ssize_t c
    for c in range(channels):
        if not odd[c]:
            bn_add_block(&to.n[c], &to.mean[c], &to.m2[c], &to.low[c], count, 1.0 / count, center[c], s[c], q[c])


cdef void careful_moments(const real* x, const Block* b, bint skipna, const int* odd, Parts to) noexcept nogil:
    """Add a block to the moments of the channels marked in `odd`: those with NaN to leave out, with values that are
    not finite, or whose squares float32 cannot hold. What one channel holds changes no bit of another.
    """
    cdef double[WIDE] center, count, s, q
    cdef Py_ssize_t c
    cdef int _
    cdef bint fresh = False
    for c in range(b.channels):
        center[c] = to.mean[c] + to.low[c]
        fresh |= to.n[c] == 0.0
    if fresh:
        first_values(x, b, skipna, to.n, center)
    careful_sums(x, b, skipna, center, count, s, q)
    for _ in range(MOST_CENTERS):
        if not recenter(b.channels, count, 1, s, q, to.n, center):
            break
        careful_sums(x, b, skipna, center, count, s, q)
    for c in range(b.channels):
        if odd[c] and count[c] > 0.0:
            bn_add_block(&to.n[c], &to.mean[c], &to.m2[c], &to.low[c],
                         count[c], 1.0 / count[c], center[c], s[c], q[c])


cdef void rough_centers(const real* x, const Block* b, const double* n, real* center) noexcept nogil:
    """Set the center of each channel that has no mean yet (n == 0) to the mean of every fourth row, which is exact if
    the channel is constant."""
    cdef real[WIDE] first, columns
    cdef const real* m
    cdef double[WIDE] s, q
    cdef Block some
    cdef Py_ssize_t r, j, c, width = width_of(b) if b.rows else b.extra
    cdef Py_ssize_t sampled = (b.rows + 3) // 4 if b.rows else 1
    cdef double values = sampled * (width // b.channels)
    for c in range(b.channels):
        first[c] = x[c * b.run]
    if planes_of(b):
        some = b[0]
        some.rows = sampled
        some.stride = 4 * b.stride
        some.ahead = NULL
        centered_planes(x, &some, first, s, q)
    else:
        m = columns_of(first, b, columns)
        zero(s, width_of(b))
        for r in range(sampled):
            for j in range(width):
                s[j] += <double>(x[4 * r * b.stride + j] - m[j])
        gather(s, b)
    for c in range(b.channels):
        if n[c] == 0.0:
            center[c] = first[c] + <real>(s[c] / values)


cdef inline bint varying(const real* x, const Block* b, const real* center, const double* q, int* odd) noexcept nogil:
    """Mark channels whose sum of squares is 0 although a value differs from the center. Return whether there are
    any."""
    cdef real[WIDE] m
    cdef int[WIDE] other
    cdef Py_ssize_t r, j, c, width = width_of(b)
    cdef bint found = False
    spread(center, b.widen, b.channels, b.run, m)
    for j in range(width):
        other[j] = 0
    for r in range(b.rows + (b.extra > 0)):
        for j in range(width if r < b.rows else b.extra):
            other[j] |= x[r * b.stride + j] != m[j]
    for j in range(width):
        c = j // b.run % b.channels
        if q[c] == 0.0 and other[j]:
            odd[c] = found = True
    return found


cdef inline bint beyond_float(
    const real* x, const Block* b, const real* center, const double* q, int* odd
) noexcept nogil:
    """Mark channels whose squares left the range in which float32 is exact to its last digit. Return whether there are
    any."""
    cdef Py_ssize_t c
    cdef int bad = 0, small = 0
    cdef double floor = BN_LEAST_SQUARE * <double>values_of(b)
    for c in range(b.channels):
        odd[c] = (not (q[c] < INFINITY)) | ((q[c] < floor) & (q[c] != 0.0))
        bad |= odd[c]
        small |= q[c] == 0.0
    if small and varying(x, b, center, q, odd):
        bad = 1
    return bad != 0


cdef void exact_moments(const real* x, const Block* b, bint skipna, Parts to) noexcept nogil:
    """block_moments in float64, in whose range the squares of float32 stay."""
    cdef real[WIDE] rough
    cdef double[WIDE] center, columns, s, q
    cdef int[WIDE] odd
    cdef double count = values_of(b)
    cdef Py_ssize_t c
    cdef bint fresh = False, careful = False
    for c in range(b.channels):
        fresh |= to.n[c] == 0.0
    if fresh:
        rough_centers(x, b, to.n, rough)
    for c in range(b.channels):
        center[c] = <double>rough[c] if to.n[c] == 0.0 else to.mean[c] + to.low[c]
    if real is double and planes_of(b):
        centered_planes(x, b, center, s, q)
    else:
        begin_sums(b, s, q)
        exact_sums(x, b, columns_of(center, b, columns), s, q)
        gather_sums(b, s, q)
    for c in range(b.channels):     # a center made of differences of float32 may have overflowed
        odd[c] = (real is float) & (not (fabs(center[c]) < INFINITY)) | skipna & (q[c] != q[c])
        careful |= odd[c]
    if careful:
        careful_moments(x, b, skipna, odd, to)
        add_unmarked(b.channels, count, odd, center, s, q, to)
    else:
        bn_add_blocks(b.channels, count, center, s, q, to.n, to.mean, to.m2, to.low)


cdef void float_moments(const float* x, const Block* b, bint skipna, Parts to) noexcept nogil:
    """block_moments in float32, which is fast and exact enough for a forward."""
    cdef float[WIDE] center, columns
    cdef double[WIDE] wide, s, q
    cdef int[WIDE] odd
    cdef double count = values_of(b)
    cdef Py_ssize_t c
    cdef bint fresh = False
    for c in range(b.channels):
        center[c] = <float>(to.mean[c] + to.low[c])
        fresh |= to.n[c] == 0.0
    if fresh:
        rough_centers(x, b, to.n, &center[0])
    if planes_of(b):
        centered_planes(x, b, &center[0], s, q)
    else:
        begin_sums(b, s, q)
        centered_sums(x, b, columns_of(&center[0], b, &columns[0]), s, q)
        gather_sums(b, s, q)
    for c in range(b.channels):
        wide[c] = center[c]
    if beyond_float(x, b, &center[0], q, odd):
        careful_moments(x, b, skipna, odd, to)
        add_unmarked(b.channels, count, odd, wide, s, q, to)
    else:
        bn_add_blocks(b.channels, count, wide, s, q, to.n, to.mean, to.m2, to.low)


cdef void block_moments(const real* x, const Block* b, bint skipna, bint exact, Parts to) noexcept nogil:
    """Add one block to the moments of its channels. exact: sum float32 in float64."""
    if b.w != NULL:
        weighted_moments(x, b, skipna, to)
    elif real is float and not exact:
        float_moments(x, b, skipna, to)
    else:
        exact_moments(x, b, skipna, to)
