# Gradient sums of one block: sum dy and sum dy (x - h) per channel, where h is the mean rounded to the type of x. If
# there is an activation, dy is the gradient before it (lanes.h), at v, which is computed as in the forward. With
# weights, a dy of 0 adds nothing, whatever x is there: padding may be NaN.
#
# A loop over values is compiled for each kind of activation (listed in formulas.h): its caller gives it to `by_kind`,
# and its first argument is the activation.
#
# Uses Block, begin_sums, columns_of, gather_sums, plane_of, plane_sums, planes_of, width_of, zero (channel_columns),
# column_sums, product (channel_sums).
# Gives block_sums, numbers_of_columns, products_beyond_float, pulled, sums_of_pairs.


cdef inline real pulled(Activation act, real v, real g) noexcept nogil:
    """Return the gradient of v, where g is the gradient of the activation of v."""
    if real is float:
        return bn_act_pull_float(act, v, g)
    else:
        return bn_act_pull_double(act, v, g)


cdef inline void pulled_row(
    Activation act, const real* dy, const real* x, Py_ssize_t n, const Numbers* of, bint weighted, double* s, double* d
) noexcept nogil:
    """Add s += sum dy, d += sum dy (x - h) of one row, with dy before the activation; if weighted, x enters only where
    dy is not 0."""
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef Py_ssize_t j
    cdef real t, g
    for j in range(n):
        t = x[j] - h[j]
        g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale[j] + shift[j], dy[j])
        s[j] += <double>g
        d[j] += <double>product(g, t, BN_WEIGHED_PAIRS if weighted else BN_PAIRS)


cdef inline void pulled_pair_sums(
    const real* dy, const real* x, const Block* b, const Numbers* of, Activation act, bint weighted,
    double* s, double* d
) noexcept nogil:
    """The same for all rows of a block."""
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
    """Compute the same sums in float64, for products out of the range of float32; dy is taken back as in dx."""
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
                g = pulled(act, t * scale[j] + shift[j], dy[at + j])
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
        bad |= (fabs(d[c]) < BN_LEAST_PRODUCT * count) & ((s[c] != 0.0) | (d[c] != 0.0))
    return bad != 0


cdef inline void sums_of_pairs(
    Activation act, bint pulls, const real* dy, const real* x, const Block* b, const Numbers* of, bint weighted,
    double* s, double* d
) noexcept nogil:
    """Add s += sum dy, d += sum dy (x - h) per column, with dy before the activation if there is one. pulls: there was
    one, so that the order of additions does not depend on when dy is taken back."""
    if pulls:
        pulled_pair_sums(dy, x, b, of, act, weighted, s, d)
    elif weighted:
        column_sums(BN_WEIGHED_PAIRS, 8, dy, x, b, <const real*>of.h, s, d)
    else:
        column_sums(BN_PAIRS, 8, dy, x, b, <const real*>of.h, s, d)


cdef inline Numbers numbers_of_columns(
    Activation act, const Block* b, const Numbers* channels, real* h, real* scale, real* shift
) noexcept nogil:
    """Return the numbers of channels, copied to their columns; scale and shift only if there is an activation."""
    cdef Numbers of = no_numbers()
    of.h = columns_of(<const real*>channels.h, b, h)
    if act.kind != BN_IDENTITY:
        of.scale = columns_of(<const real*>channels.scale, b, scale)
        of.shift = columns_of(<const real*>channels.shift, b, shift)
    return of


cdef void take_block_back(
    Activation act, const real* dy, const real* x, const Block* b, const Numbers* columns, real* g
) noexcept nogil:
    """Compute dy before the activation of a block, which is dx of constant statistics for a = 1, and store it in g."""
    cdef real[WIDE] ones
    cdef Block p = plane_of(b)
    cdef Numbers of = columns[0]
    cdef Py_ssize_t j, r, width = width_of(b)
    cdef bint as_planes = planes_of(b)
    for j in range(p.channels if as_planes else width):
        ones[j] = 1
    of.a = ones
    of.b = of.c = NULL
    if as_planes:
        for r in range(p.rows):
            j = r * p.stride
            bn_gradient_rows(act, p.channels, p.run, dy + j, x + j, g + j, &of, <bn_edge*>NULL)
        return
    bn_gradient_columns(act, b.rows, b.stride, dy, x, g, width, &of, 0, <bn_edge*>NULL)
    if b.extra > 0:
        j = b.rows * b.stride
        bn_gradient_columns(act, 1, b.stride, dy + j, x + j, g + j, b.extra, &of, 0, <bn_edge*>NULL)


cdef void block_sums(
    const real* dy, const real* x, const Block* b, const Numbers* channels, Activation act, real* g, double* sums,
    double* dots
) noexcept nogil:
    """Add one block to the gradient sums of its channels. channels: what the loops need of each channel. g: where to
    store dy before the activation, or NULL."""
    cdef real[WIDE] high, scale, shift
    cdef double[WIDE] s, d, careful_s, careful_d
    cdef double count = <double>b.rows * b.widen * b.run
    cdef Numbers of = channels[0]
    cdef Py_ssize_t c
    cdef bint as_planes = planes_of(b), pulls = act.kind != BN_IDENTITY
    if not as_planes:
        of = numbers_of_columns(act, b, channels, high, scale, shift)
    if g != NULL:
        take_block_back(act, dy, x, b, &of, g)
        dy = g
        act = identity()
    if as_planes:
        plane_sums(act, dy, x, b, channels, s, d)
    else:
        begin_sums(b, s, d)
        sums_of_pairs(act, pulls, dy, x, b, &of, b.w != NULL, s, d)
        gather_sums(b, s, d)
    if real is float and products_beyond_float(b.channels, count, s, d):
        of = numbers_of_columns(act, b, channels, high, scale, shift)
        careful_pair_sums(dy, x, b, &of, act, b.w != NULL, careful_s, careful_d)
        gather_sums(b, careful_s, careful_d)
        for c in range(b.channels):     # what one channel holds changes no bit of another
            if products_beyond_float(1, count, s + c, d + c):
                s[c] = careful_s[c]
                d[c] = careful_d[c]
    for c in range(b.channels):
        sums[c] += s[c]
        dots[c] += d[c]
