# Sums of the columns of one block: of x - m and its square for moments, of dy and dy (x - m) for gradients.
#
# Uses Block, FETCH_COLUMNS, ROWS, fetch_rows, head_of, width_of (channel_columns).
# Gives ACROSS, centered_sums, column_sums, exact_sums, product.

cdef enum:
    ACROSS = 128    # columns of which four rows are summed before the next four
    PAGE = 4096     # addresses this many bytes apart share lines of the first-level cache


cdef inline term product(term g, term t, int what) noexcept nogil:
    """Return g t; for BN_WEIGHED_PAIRS 0 where g is 0, even if t is NaN or infinite."""
    return 0 if what == BN_WEIGHED_PAIRS and g == 0 else g * t


cdef inline void four(
    int what, const real* dy, const real* x, Py_ssize_t stride, term m, term minus, term* sum, term* dot
) noexcept nogil:
    """Compute sum g and sum g (x - m) of four rows of a column, in the type of m. g is x - m for BN_SQUARES, else dy.
    minus: from bn_minus_one."""
    cdef term d0 = bn_less(x[0], m, minus), d1 = bn_less(x[stride], m, minus)
    cdef term d2 = bn_less(x[2 * stride], m, minus), d3 = bn_less(x[3 * stride], m, minus)
    cdef term g0, g1, g2, g3
    if what == BN_SQUARES:
        sum[0] = (d0 + d1) + (d2 + d3)
        dot[0] = (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
    else:
        g0, g1, g2, g3 = dy[0], dy[stride], dy[2 * stride], dy[3 * stride]
        sum[0] = (g0 + g1) + (g2 + g3)
        dot[0] = (product(g0, d0, what) + product(g1, d1, what)) + (product(g2, d2, what) + product(g3, d3, what))


cdef inline void last_sums(
    int what, const real* dy, const real* x, const Block* b, Py_ssize_t r, const term* m, double* s, double* q
) noexcept nogil:
    """Add both sums of the last rows, from r on: four rows at a time, then one by one."""
    cdef Py_ssize_t j, at
    cdef term d, g, sum, dot, minus = bn_minus_one(m)
    fetch_rows(b, b.rows - r, sizeof(real))
    while r + 4 <= b.rows:
        for j in range(width_of(b)):
            at = r * b.stride + j
            four(what, dy + at, x + at, b.stride, m[j], minus, &sum, &dot)
            s[j] += <double>sum
            q[j] += <double>dot
        r += 4
    while r < b.rows + (b.extra > 0):
        for j in range(width_of(b) if r < b.rows else b.extra):
            d = x[r * b.stride + j] - m[j]
            g = d if what == BN_SQUARES else dy[r * b.stride + j]
            s[j] += <double>g
            q[j] += <double>product(g, d, what)
        r += 1


cdef inline void paged_sums(
    int what, Py_ssize_t rows, const real* dy, const real* x, const Block* b, const real* m, double* s, double* q
) noexcept nogil:
    """column_sums for rows that are whole pages apart, four at a time: the lines of more rows, which share places in
    the first-level cache, would drive each other out. The order of additions is the same."""
    cdef real[2 * ACROSS] of_s, of_q
    cdef real* pair_s
    cdef real* pair_q
    cdef real s0, q0, minus = bn_minus_one(m)
    cdef Py_ssize_t i, j, k, n, at, r = 0, stride = b.stride, width = width_of(b)
    cdef Py_ssize_t step = ACROSS if b.ahead == NULL else FETCH_COLUMNS, head = head_of(x, b)
    while r + rows <= b.rows:
        k = 0
        while k < width:
            n = head if k < head else min(step, width - k)
            if b.ahead != NULL:
                bn_fetch(b.ahead, rows * n * sizeof(real))
            for i in range(rows // 4):
                at = (r + 4 * i) * stride + k
                pair_s = &of_s[i // 2 * ACROSS]
                pair_q = &of_q[i // 2 * ACROSS]
                if i % 2 == 0:
                    for j in range(n):
                        four(what, dy + at + j, x + at + j, stride, m[k + j], minus, &pair_s[j], &pair_q[j])
                    continue
                for j in range(n):
                    four(what, dy + at + j, x + at + j, stride, m[k + j], minus, &s0, &q0)
                    pair_s[j] += s0
                    pair_q[j] += q0
            for j in range(n):
                s[k + j] += <double>(of_s[j] if rows == 8 else of_s[j] + of_s[ACROSS + j])
                q[k + j] += <double>(of_q[j] if rows == 8 else of_q[j] + of_q[ACROSS + j])
            k += n
        r += rows
    last_sums(what, dy, x, b, r, m, s, q)


cdef inline void column_sums(
    int what, Py_ssize_t rows, const real* dy, const real* x, const Block* b, const real* m, double* s, double* q
) noexcept nogil:
    """Add s += sum g, q += sum g (x - m) per column: `rows` (8 or 16) rows in the type of x, then in float64."""
    cdef Py_ssize_t j, k, end, at, r = 0, stride = b.stride, width = width_of(b)
    cdef Py_ssize_t step = width if b.ahead == NULL else FETCH_COLUMNS, head = head_of(x, b)
    cdef real s0, s1, s2, s3, q0, q1, q2, q3, minus = bn_minus_one(m)
    if stride * sizeof(real) % PAGE == 0:
        paged_sums(what, rows, dy, x, b, m, s, q)
        return
    while r + rows <= b.rows:
        k = 0
        while k < width:
            end = head if k < head else min(width, k + step)
            if b.ahead != NULL:
                bn_fetch(b.ahead, rows * (end - k) * sizeof(real))
            for j in range(k, end):
                at = r * stride + j
                four(what, dy + at, x + at, stride, m[j], minus, &s0, &q0)
                four(what, dy + at + 4 * stride, x + at + 4 * stride, stride, m[j], minus, &s1, &q1)
                if rows == 8:
                    s[j] += <double>(s0 + s1)
                    q[j] += <double>(q0 + q1)
                    continue
                four(what, dy + at + 8 * stride, x + at + 8 * stride, stride, m[j], minus, &s2, &q2)
                four(what, dy + at + 12 * stride, x + at + 12 * stride, stride, m[j], minus, &s3, &q3)
                s[j] += <double>((s0 + s1) + (s2 + s3))
                q[j] += <double>((q0 + q1) + (q2 + q3))
            k = end
        r += rows
    last_sums(what, dy, x, b, r, m, s, q)


cdef inline void centered_sums(const real* x, const Block* b, const real* m, double* s, double* q) noexcept nogil:
    """Add s += sum (x - m), q += sum (x - m)^2 per column."""
    column_sums(BN_SQUARES, ROWS, x, x, b, m, s, q)


cdef inline void four_exact(
    int i, const real* x, Py_ssize_t stride, Py_ssize_t n, const double* m, double* of_s, double* of_q,
    double* s, double* q
) noexcept nogil:
    """Sum the i-th four of sixteen rows of n columns in of_s and of_q, and add these to s and q after the last four. i
    is a constant to the compiler: 0, 1 for both in the middle, or 3."""
    cdef double s0, q0, minus = bn_minus_one(m)
    cdef Py_ssize_t begin = 0, j
    if real is float:
        begin = bn_widened_four(i, x, stride, n, m, of_s, of_q, s, q)
    for j in range(begin, n):
        four(BN_SQUARES, x, x + j, stride, m[j], minus, &s0, &q0)
        if i == 0:
            of_s[j], of_q[j] = s0, q0
        elif i < 3:
            of_s[j] += s0
            of_q[j] += q0
        else:
            s[j] += of_s[j] + s0
            q[j] += of_q[j] + q0


cdef inline void exact_sums(const real* x, const Block* b, const double* m, double* s, double* q) noexcept nogil:
    """The same in float64, to which float32 is converted in registers. Sixteen rows are summed at once, or four at a
    time, in the same order of additions: more would not fit the first-level cache if rows are whole pages apart, or
    would not be fetched as fast."""
    cdef double[ACROSS] of_s, of_q
    cdef double s0, s1, s2, s3, q0, q1, q2, q3, minus = bn_minus_one(m)
    cdef Py_ssize_t i, j, k, n, r = 0, stride = b.stride, width = width_of(b)
    cdef Py_ssize_t most = ACROSS if b.ahead == NULL else 2 * FETCH_COLUMNS
    cdef bint at_once = b.ahead == NULL and stride * sizeof(real) % PAGE != 0 and (real is double or BN_PERMUTES > 1)
    cdef const real* row
    while at_once and r + ROWS <= b.rows:
        row = x + r * stride
        k = 0
        if real is float:
            k = bn_widened_columns(row, stride, width, m, s, q)
        for j in range(k, width):
            four(BN_SQUARES, row, row + j, stride, m[j], minus, &s0, &q0)
            four(BN_SQUARES, row, row + 4 * stride + j, stride, m[j], minus, &s1, &q1)
            four(BN_SQUARES, row, row + 8 * stride + j, stride, m[j], minus, &s2, &q2)
            four(BN_SQUARES, row, row + 12 * stride + j, stride, m[j], minus, &s3, &q3)
            s[j] += ((s0 + s1) + s2) + s3
            q[j] += ((q0 + q1) + q2) + q3
        r += ROWS
    while r + ROWS <= b.rows:
        k = 0
        while k < width:
            n = min(most, width - k)
            for i in range(4):
                row = x + (r + 4 * i) * stride + k
                if b.ahead != NULL:
                    bn_fetch(b.ahead, 4 * n * sizeof(real))
                if i == 0:
                    four_exact(0, row, stride, n, m + k, of_s, of_q, s + k, q + k)
                elif i < 3:
                    four_exact(1, row, stride, n, m + k, of_s, of_q, s + k, q + k)
                else:
                    four_exact(3, row, stride, n, m + k, of_s, of_q, s + k, q + k)
            k += n
        r += ROWS
    last_sums(BN_SQUARES, x, x, b, r, m, s, q)
