# Moments of one block whose positions have weights. All channels share the weights, and so the sum of the weights.
#
# Blocks are summed about a center in float64, as in channel_moments.pxi. There the center of a block is near enough
# since no block has more than three times as many values as those before it. But weights may grow without bound from
# block to block. So a block that weighs more than three times as much as those before it is summed again if its center
# turns out to be far from its mean. That mean may be far off too, by 2^-52 of its distance from the first center, which
# may be a value of almost no weight. So this is repeated until the center is near.
#
# Uses Block, Folds, begin_sums, columns_of, gather_sums, is_mask, lane_sum, values_of, weights_at, weights_from
# (channel_columns), Parts, add_unmarked, careful_moments (channel_moments), has_planes, in_columns, in_eights,
# sums_of_columns, sums_of_planes, sums_of_rows (channel_weights).
# Gives MOST_CENTERS, fold_weights, halve, largest_weight, recenter, weight_of, weighted_moments.

cdef enum:
    FOLD = 512      # weights that are summed as eight rows of LANES
    SIDE = 16       # weights that are compared side by side
    MOST_CENTERS = 24   # of a block: each is 15 digits nearer to the mean, and the squares of 308 digits are finite


cdef inline double lesser(double a, double b) noexcept nogil:
    return a if a < b else b


cdef double weight_of(const void* weight, int weighs, Py_ssize_t n, int* negative) noexcept nogil:
    """Return the sum of n weights, of float64 or float32: of FOLD at a time, then in pairs. negative: set if a weight
    is."""
    cdef Py_ssize_t half = n // (2 * FOLD) * FOLD
    if half > 0:
        return weight_of(weight, weighs, half, negative) + weight_of(
            weights_from(weight, weighs, half), weighs, n - half, negative)
    return weight_of_fold(weight, weighs, n, negative)


cdef double halved_sum(const double* w, Py_ssize_t n) noexcept nogil:
    """Return the sum of up to LANES weights, or of more in halves: in one run of additions, equal weights would all be
    rounded the same way."""
    cdef Py_ssize_t half = max(<Py_ssize_t>LANES, n // (2 * LANES) * LANES)
    return lane_sum(w, n) if n <= LANES else halved_sum(w, half) + halved_sum(w + half, n - half)


cdef double weight_of_fold(const void* weight, int weighs, Py_ssize_t n, int* negative) noexcept nogil:
    """The same for less than 2 * FOLD weights."""
    cdef double[2 * FOLD] near
    cdef double[LANES] lanes, low
    cdef const double* w = weights_at(weight, weighs, 0, n, near)
    cdef Py_ssize_t j
    cdef int found = 0
    if n < FOLD:
        for j in range(n):
            found |= w[j] < 0.0
        negative[0] |= found
        return halved_sum(w, n)
    for j in range(LANES):
        low[j] = lesser(lesser(lesser(w[j], w[LANES + j]), lesser(w[2 * LANES + j], w[3 * LANES + j])),
                        lesser(lesser(w[4 * LANES + j], w[5 * LANES + j]), lesser(w[6 * LANES + j], w[7 * LANES + j])))
        lanes[j] = ((w[j] + w[LANES + j]) + (w[2 * LANES + j] + w[3 * LANES + j])) + (
            (w[4 * LANES + j] + w[5 * LANES + j]) + (w[6 * LANES + j] + w[7 * LANES + j]))
    for j in range(LANES):
        found |= low[j] < 0.0
    negative[0] |= found
    return lane_sum(lanes, LANES) + (weight_of_fold(w + FOLD, BN_REAL, n - FOLD, negative) if n > FOLD else 0.0)


cdef inline double largest(const term* w, Py_ssize_t n) noexcept nogil:
    """Return the largest of n weights, or 0, in lanes that vectorize."""
    cdef term[SIDE] most
    cdef Py_ssize_t i = 0, j
    for j in range(SIDE):
        most[j] = 0
    while i + SIDE <= n:
        for j in range(SIDE):
            most[j] = w[i + j] if w[i + j] > most[j] else most[j]
        i += SIDE
    for j in range(n - i):
        most[j] = w[i + j] if w[i + j] > most[j] else most[j]
    for j in range(SIDE // 2):
        most[j] = most[SIDE // 2 + j] if most[SIDE // 2 + j] > most[j] else most[j]
    for j in range(1, SIDE // 2):
        most[0] = most[j] if most[j] > most[0] else most[0]
    return most[0]


cdef double largest_weight(const void* weight, int weighs, Py_ssize_t n) noexcept nogil:
    """The same for weights of float64 or float32."""
    return largest(<const double*>weight, n) if weighs == BN_REAL else largest(<const float*>weight, n)


cdef void halve(const double* x, Py_ssize_t n, double* to) noexcept nogil:
    """Write 2^x for n x <= 0, the weights of values that are -x half-lives old."""
    cdef Py_ssize_t i
    for i in range(n):
        to[i] = bn_exp2(x[i])


cdef inline bint recenter(
    Py_ssize_t channels, const double* count, Py_ssize_t step, const double* s, const double* q, const double* n,
    double* center
) noexcept nogil:
    """Move the center of each channel to the mean of the block if it is far from it and the block outweighs the n
    before it more than three times. Return whether any were moved.

    count: the weight of the block for each channel, or for all if step is 0. Far is more than sqrt(3) standard
    deviations: q is then four times as large as about the mean, and so is its rounding error.
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


cdef inline bint counts(const Block* b, Py_ssize_t i) noexcept nogil:
    """Whether the weight of position i of a block is not 0."""
    if b.weighs == BN_REAL:
        return (<const double*>b.w)[i] != 0.0
    if b.weighs == BN_FLOAT32:
        return (<const float*>b.w)[i] != 0
    return (<const unsigned char*>b.w)[i] != 0


cdef inline Py_ssize_t first_of(const Block* b, bint counted) noexcept nogil:
    """Return the first position whose weight is not 0 (`counted`), or is 0; the number of positions if there is none.
    """
    cdef Py_ssize_t p = 0, n = values_of(b)
    while p < n and counts(b, p) != counted:
        p += 1
    return p


cdef inline double known_weight(const Block* b) noexcept nogil:
    """Return the sum of the weights if it is known, or can be computed at once, as for bytes; else -1."""
    cdef double known = -1.0 if b.total == NULL else bn_shared(b.total)
    if known >= 0.0:
        return known
    return <double>bn_sum_bytes(b.weighs, b.w, values_of(b)) if is_mask(b.weighs) else -1.0


cdef inline void fold_weights(const Block* b, Py_ssize_t end) noexcept nogil:
    """Add up the weights before position `end`, or a few more, unless that is done. They are read next, so that this
    brings them into the first-level cache."""
    cdef Folds* f = b.folds
    cdef Py_ssize_t n = values_of(b), last = max(n // FOLD - 1, <Py_ssize_t>0), size
    while f.done < min(end, n):
        size = FOLD if f.done // FOLD < last else n - f.done
        f.sums[f.done // FOLD] = weight_of(weights_from(b.w, b.weighs, f.done), b.weighs, size, &f.negative)
        f.done += size


cdef double sum_of_folds(const double* sums, Py_ssize_t n) noexcept nogil:
    """Return the sum of n folds of weights, with the bits that weight_of gives."""
    return sum_of_folds(sums, n // 2) + sum_of_folds(sums + n // 2, n - n // 2) if n > 1 else sums[0]


cdef void weighted_sums(const real* x, const Block* b, const double* center, double* s, double* q) noexcept nogil:
    """Compute s = sum w (x - center) and q = sum w (x - center)^2 per channel. s and q need space for all columns."""
    cdef double[WIDE] columns
    cdef const double* m
    cdef Block again = b[0]
    if has_planes(b):
        sums_of_planes(x, b, center, s, q)
        return
    begin_sums(b, s, q)
    if b.run == 1 and not in_columns(x, b):
        sums_of_rows(x, b, center, s, q)
        return
    m = columns_of(center, b, columns)
    sums_of_columns(x, b, m, False, s, q)
    gather_sums(b, s, q)
    if not_finite(b.channels, q) and first_of(b, False) < values_of(b):
        again.ahead = NULL
        begin_sums(b, s, q)
        sums_of_columns(x, &again, m, True, s, q)
        gather_sums(b, s, q)


cdef void weighted_moments(const real* x, const Block* b, bint skipna, Parts to) noexcept nogil:
    """block_moments with weights."""
    cdef double[WIDE] center, s, q
    cdef Py_ssize_t c, p, row = b.widen * b.run, n = values_of(b)
    cdef int _
    cdef int[WIDE] odd
    cdef double count = known_weight(b)
    cdef bint holes = False
    cdef Folds folds
    cdef Block first = in_eights(x, b), again = first
    again.ahead = NULL
    if count < 0.0:
        folds.done = folds.negative = 0
        first.folds = &folds
    p = first_of(b, True)
    if p == n or 0.0 <= count and not 1.0 / count < INFINITY:   # the block weighs nothing, or too little to divide by
        if b.ahead != NULL:
            bn_advance(b.ahead, n * b.channels * sizeof(real))
        return
    p = p // row * b.stride + p % row // b.run * b.channels * b.run + p % b.run
    for c in range(b.channels):     # the first value that counts, if there is no mean yet
        center[c] = x[p + c * b.run] if to.n[c] == 0.0 else to.mean[c] + to.low[c]
    weighted_sums(x, &first, center, s, q)
    if count < 0.0:
        count = sum_of_folds(folds.sums, max(n // FOLD, <Py_ssize_t>1))
        if folds.negative or not (count < INFINITY):
            bn_set(b.unsound)
    if b.total != NULL:
        bn_share_number(b.total, count)
    if not 1.0 / count < INFINITY:
        return
    for _ in range(MOST_CENTERS):
        if not recenter(b.channels, &count, 0, s, q, to.n, center):
            break
        weighted_sums(x, &again, center, s, q)
    for c in range(b.channels):
        odd[c] = q[c] != q[c]
        holes |= odd[c]
    if skipna and holes:
        careful_moments(x, &again, skipna, odd, to)
        add_unmarked(b.channels, count, odd, center, s, q, to)
    else:
        bn_add_blocks(b.channels, count, center, s, q, to.n, to.mean, to.m2, to.low)
