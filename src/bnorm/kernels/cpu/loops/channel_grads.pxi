# Gradient sums of one block, laid out as in channel_moments.pxi: sum dy and sum dy (x - h) per channel, where h is the
# high part of the mean. With an activation dy is first brought before it, by the forward's v, recomputed as there.
# With weights a dy of 0 adds nothing whatever x holds there: padding may be NaN.


cdef inline void four_pairs(
    const real* dy, const real* x, Py_ssize_t stride, real h, real* sum, real* dot
) noexcept nogil:
    """sum dy and sum dy (x - h) down four rows."""
    cdef real g0 = dy[0], g1 = dy[stride], g2 = dy[2 * stride], g3 = dy[3 * stride]
    sum[0] = (g0 + g1) + (g2 + g3)
    dot[0] = (g0 * (x[0] - h) + g1 * (x[stride] - h)) + (g2 * (x[2 * stride] - h) + g3 * (x[3 * stride] - h))


cdef inline void pair_sums_of_rows(
    const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t width,
    const real* h, double* s, double* d, bn_ahead* ahead
) noexcept nogil:
    """s += sum dy, d += sum dy (x - h) per column: eight rows at a time, then four, then one."""
    cdef Py_ssize_t j, k, end, at, r = 0, step = width if ahead == NULL else NEAR
    cdef real sum, dot, more, more_dot
    while r + 8 <= rows:
        k = 0
        while k < width:
            end = min(width, k + step)
            if ahead != NULL:
                bn_fetch(ahead, 8 * (end - k) * sizeof(real))
            for j in range(k, end):
                at = r * stride + j
                four_pairs(dy + at, x + at, stride, h[j], &sum, &dot)
                four_pairs(dy + at + 4 * stride, x + at + 4 * stride, stride, h[j], &more, &more_dot)
                s[j] += <double>(sum + more)
                d[j] += <double>(dot + more_dot)
            k = end
        r += 8
    if r + 4 <= rows:
        for j in range(width):
            at = r * stride + j
            four_pairs(dy + at, x + at, stride, h[j], &sum, &dot)
            s[j] += <double>sum
            d[j] += <double>dot
        r += 4
    while r < rows:
        for j in range(width):
            at = r * stride + j
            s[j] += <double>dy[at]
            d[j] += <double>(dy[at] * (x[at] - h[j]))
        r += 1


cdef inline void masked_pair_sums_of_rows(
    const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t width,
    const real* h, const real* scale, const real* shift, Activation act, bint weighted, double* s, double* d,
    bn_ahead* ahead
) noexcept nogil:
    """The same of dy before the activation of (x - h) * scale + shift; with weights where that is not 0."""
    cdef Py_ssize_t j, r
    cdef const real* xr
    cdef const real* gr
    cdef real t, g
    for r in range(rows):
        if ahead != NULL:
            bn_fetch(ahead, width * sizeof(real))
        xr = x + r * stride
        gr = dy + r * stride
        for j in range(width):
            t = xr[j] - h[j]
            g = gr[j] if act.kind == BN_IDENTITY else pulled(act, t * scale[j] + shift[j], gr[j])
            s[j] += <double>g
            d[j] += <double>(0 if weighted and g == 0 else g * t)


cdef void careful_pair_sums(
    const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t width, Py_ssize_t extra,
    const real* h, const real* scale, const real* shift, Activation act, bint weighted, double* s, double* d
) noexcept nogil:
    """The same in float64, where a product left the range of float32; the activation is the forward's."""
    cdef Py_ssize_t j, r
    cdef real t
    cdef double g
    zero(s, width)
    zero(d, width)
    for r in range(rows + (extra > 0)):
        for j in range(width if r < rows else extra):
            g = dy[r * stride + j]
            if act.kind != BN_IDENTITY:
                t = x[r * stride + j] - h[j]
                g = bn_act_pull_double(act.kind, act.slope, t * scale[j] + shift[j], g)
            s[j] += g
            d[j] += 0 if weighted and g == 0 else g * (<double>x[r * stride + j] - <double>h[j])


cdef inline bint products_beyond_float(
    Py_ssize_t channels, double count, const double* s, const double* d
) noexcept nogil:
    """Whether the sum of products of some channel is not finite, or so small that float32 has lost digits of it."""
    cdef Py_ssize_t c
    cdef int bad = 0
    for c in range(channels):
        bad |= not (fabs(d[c]) < INFINITY)
        bad |= (fabs(d[c]) < 1e-30 * count) & (s[c] != 0.0)
    return bad != 0


cdef void block_sums(
    const real* dy, const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t extra,
    Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, Activation act, bint weighted, bn_ahead* ahead,
    const real* high, const real* scale, const real* shift, double* sums, double* dots
) noexcept nogil:
    """Add one block to the gradient sums of its channels."""
    cdef real[WIDE] centers, scales, shifts
    cdef double[WIDE] s, d
    cdef const real* h = columns_of(high, widen, channels, run, centers)
    cdef const real* a = NULL
    cdef const real* b = NULL
    cdef Py_ssize_t c, width = widen * channels * run, end = rows * stride
    zero(s, width)
    zero(d, width)
    if act.kind != BN_IDENTITY or weighted:
        if act.kind != BN_IDENTITY:
            a = columns_of(scale, widen, channels, run, scales)
            b = columns_of(shift, widen, channels, run, shifts)
        masked_pair_sums_of_rows(dy, x, rows, stride, width, h, a, b, act, weighted, s, d, ahead)
        masked_pair_sums_of_rows(dy + end, x + end, extra > 0, 0, extra, h, a, b, act, weighted, s, d, NULL)
    else:
        pair_sums_of_rows(dy, x, rows, stride, width, h, s, d, ahead)
        pair_sums_of_rows(dy + end, x + end, extra > 0, 0, extra, h, s, d, NULL)
    gather(s, widen, channels, run)
    gather(d, widen, channels, run)
    if real is float and products_beyond_float(channels, <double>rows * widen * run, s, d):
        careful_pair_sums(dy, x, rows, stride, width, extra, h, a, b, act, weighted, s, d)
        gather(s, widen, channels, run)
        gather(d, widen, channels, run)
    for c in range(channels):
        sums[c] += s[c]
        dots[c] += d[c]
