# Gradient sums of one block, laid out as in channel_moments.pxi: sum dy and sum dy (x - h) per channel, where h is the
# high part of the mean. With an activation dy is first brought before it, by the forward's v, recomputed as there.
# With weights a dy of 0 adds nothing whatever x holds there: padding may be NaN.
#
# Uses pulled (activations), Block, FETCH_COLUMNS, columns_of, fetch_rows, gather, head_of, plane_of, planes_of,
# whole_sums, width_of, zero (channel_columns).
# Gives block_sums, pair_sums, products_beyond_float, pulled_pair_sums.


cdef inline real product(real g, real t, bint weighted) noexcept nogil:
    """g t; with weights 0 where g is, whatever t is."""
    return 0 if weighted and g == 0 else g * t


cdef inline void four_pairs(
    const real* dy, const real* x, Py_ssize_t stride, real h, bint weighted, real* sum, real* dot
) noexcept nogil:
    """sum dy and sum dy (x - h) down four rows."""
    cdef real g0 = dy[0], g1 = dy[stride], g2 = dy[2 * stride], g3 = dy[3 * stride]
    sum[0] = (g0 + g1) + (g2 + g3)
    dot[0] = (product(g0, x[0] - h, weighted) + product(g1, x[stride] - h, weighted)) + (
        product(g2, x[2 * stride] - h, weighted) + product(g3, x[3 * stride] - h, weighted))


cdef inline void pair_sums(
    const real* dy, const real* x, const Block* b, const real* h, bint weighted, double* s, double* d
) noexcept nogil:
    """s += sum dy, d += sum dy (x - h) per column: eight rows at a time, then four, then one."""
    cdef Py_ssize_t j, k, end, at, r = 0, rows = b.rows, stride = b.stride, width = width_of(b)
    cdef Py_ssize_t step = width if b.ahead == NULL else FETCH_COLUMNS, head = head_of(x, b)
    cdef real sum, dot, more, more_dot
    while r + 8 <= rows:
        k = 0
        while k < width:
            end = head if k < head else min(width, k + step)
            if b.ahead != NULL:
                bn_fetch(b.ahead, 8 * (end - k) * sizeof(real))
            for j in range(k, end):
                at = r * stride + j
                four_pairs(dy + at, x + at, stride, h[j], weighted, &sum, &dot)
                four_pairs(dy + at + 4 * stride, x + at + 4 * stride, stride, h[j], weighted, &more, &more_dot)
                s[j] += <double>(sum + more)
                d[j] += <double>(dot + more_dot)
            k = end
        r += 8
    fetch_rows(b, rows - r, sizeof(real))
    if r + 4 <= rows:
        for j in range(width):
            at = r * stride + j
            four_pairs(dy + at, x + at, stride, h[j], weighted, &sum, &dot)
            s[j] += <double>sum
            d[j] += <double>dot
        r += 4
    while r < rows + (b.extra > 0):
        for j in range(width if r < rows else b.extra):
            at = r * stride + j
            s[j] += <double>dy[at]
            d[j] += <double>product(dy[at], x[at] - h[j], weighted)
        r += 1


cdef inline void pulled_row(
    Activation act, const real* dy, const real* x, Py_ssize_t n, const Numbers* of, bint weighted, double* s, double* d
) noexcept nogil:
    """pair_sums of one row, dy before the activation; with weights only where that is not 0."""
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef Py_ssize_t j
    cdef real t, g
    for j in range(n):
        t = x[j] - h[j]
        g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale[j] + shift[j], dy[j])
        s[j] += <double>g
        d[j] += <double>product(g, t, weighted)


cdef inline void pulled_pair_sums(
    const real* dy, const real* x, const Block* b, const Numbers* of, Activation act, bint weighted,
    double* s, double* d
) noexcept nogil:
    """pair_sums, dy before the activation; with weights only where that is not 0."""
    cdef Py_ssize_t r, at, n
    for r in range(b.rows + (b.extra > 0)):
        at = r * b.stride
        n = width_of(b) if r < b.rows else b.extra
        if b.ahead != NULL:
            bn_fetch(b.ahead, n * sizeof(real))
        by_kind(pulled_row[real], act, dy + at, x + at, n, of, weighted, s, d)


cdef void careful_pair_sums(
    const real* dy, const real* x, const Block* b, const Numbers* of, Activation act, bint weighted,
    double* s, double* d
) noexcept nogil:
    """The same in float64, where a product left the range of float32; the activation is the forward's."""
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef Py_ssize_t j, r, at, width = width_of(b)
    cdef real t
    cdef double g
    zero(s, width)
    zero(d, width)
    for r in range(b.rows + (b.extra > 0)):
        at = r * b.stride
        for j in range(width if r < b.rows else b.extra):
            g = dy[at + j]
            if act.kind != BN_IDENTITY:
                t = x[at + j] - h[j]
                g = bn_act_pull_double(act, t * scale[j] + shift[j], g)
            s[j] += g
            d[j] += 0 if weighted and g == 0 else g * (<double>x[at + j] - <double>h[j])


cdef inline bint products_beyond_float(
    Py_ssize_t channels, double count, const double* s, const double* d
) noexcept nogil:
    """Whether the sum of products of some channel is not finite, or so small that float32 has lost digits of it."""
    cdef Py_ssize_t c
    cdef int bad = 0
    for c in range(channels):
        bad |= not (fabs(d[c]) < INFINITY)
        bad |= (fabs(d[c]) < BN_LEAST_PRODUCT * count) & (s[c] != 0.0)
    return bad != 0


cdef void plane_products(
    const real* dy, const real* x, const Block* b, const Numbers* of, Activation act, double* s, double* d
) noexcept nogil:
    """sum dy and sum dy (x - h) per channel of a block that is planes, dy before the activation."""
    cdef double[WIDE >> 2] sums, dots
    cdef Block p = plane_of(b)
    zero(sums, 8 * p.channels)
    zero(dots, 8 * p.channels)
    bn_plane_products(act, p.rows, p.stride, p.channels, p.run, dy, x, <const real*>of.h, <const real*>of.scale,
                      <const real*>of.shift, p.ahead, sums, dots)
    whole_sums(p.channels, sums, s)
    whole_sums(p.channels, dots, d)


cdef void block_sums(
    const real* dy, const real* x, const Block* b, const Numbers* channels, Activation act, double* sums, double* dots
) noexcept nogil:
    """Add one block to the gradient sums of its channels, whose numbers are `channels`."""
    cdef real[WIDE] high, scale, shift
    cdef double[WIDE] s, d, careful_s, careful_d
    cdef double count = <double>b.rows * b.widen * b.run
    cdef Numbers of
    cdef Py_ssize_t c
    cdef bint as_planes = b.w == NULL and planes_of(b)
    if as_planes:
        plane_products(dy, x, b, channels, act, s, d)
    else:
        of.h = columns_of(<const real*>channels.h, b, high)
        of.scale = NULL
        of.shift = NULL
        zero(s, width_of(b))
        zero(d, width_of(b))
        if act.kind != BN_IDENTITY:
            of.scale = columns_of(<const real*>channels.scale, b, scale)
            of.shift = columns_of(<const real*>channels.shift, b, shift)
            pulled_pair_sums(dy, x, b, &of, act, b.w != NULL, s, d)
        elif b.w != NULL:
            pair_sums(dy, x, b, <const real*>of.h, True, s, d)
        else:
            pair_sums(dy, x, b, <const real*>of.h, False, s, d)
        gather(s, b)
        gather(d, b)
    if real is float and products_beyond_float(b.channels, count, s, d):
        if as_planes:
            of.h = columns_of(<const real*>channels.h, b, high)
            of.scale = columns_of(<const real*>channels.scale, b, scale)
            of.shift = columns_of(<const real*>channels.shift, b, shift)
        careful_pair_sums(dy, x, b, &of, act, b.w != NULL, careful_s, careful_d)
        gather(careful_s, b)
        gather(careful_d, b)
        for c in range(b.channels):     # what one channel holds changes no bit of another
            if products_beyond_float(1, count, s + c, d + c):
                s[c] = careful_s[c]
                d[c] = careful_d[c]
    for c in range(b.channels):
        sums[c] += s[c]
        dots[c] += d[c]
