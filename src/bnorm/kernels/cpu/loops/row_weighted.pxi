# Rows whose positions have weights, which all rows of an outer position share. Only the ratios of weights matter to a
# row, so they are divided by a power of two near the largest, and then fit the type of x.
#
# Uses is_mask, weights_from (channel_columns), Output (channel_maps), MOST_CENTERS, largest_weight, recenter,
# weight_of (channel_weighted), sums_of_runs (row_gradients), forward_maps, gradient_of_runs (row_maps), readable,
# walk_on (row_sums).
# Gives weighted_backward, weighted_forward.

cdef enum:
    WEIGHTED = 1 << 16  # most values that are summed about one center: a part of a run, or several runs,
    TOGETHER = 64       # but not more, as the values of runs at one position may be added one after the other


cdef double near_weights(RowJob* job, Py_ssize_t o, real* near) noexcept nogil:
    """Store the weights of an outer position in the type of x, with a vector of zeros behind them. Return their sum,
    or 0 if it is too small to divide by."""
    cdef const void* w = weights_from(job.weight, job.weighs, o * job.inner)
    cdef double inverse, all
    cdef int negative = 0
    if is_mask(job.weighs):
        return near_bytes(job, o, near)
    inverse = bn_near_one(largest_weight(w, job.weighs, job.inner))
    if job.weighs == BN_REAL:
        make_near(<const double*>w, job.inner, inverse, near)
    else:
        make_near(<const float*>w, job.inner, inverse, near)
    all = weight_of(w, job.weighs, job.inner, &negative)
    return all * inverse if 1.0 / all < INFINITY else 0.0


cdef inline void make_near(const term* w, Py_ssize_t n, double scale, real* near) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        near[i] = <real>(w[i] * scale)
    for i in range(n, n + BN_WIDTH):
        near[i] = 0


cdef double near_bytes(RowJob* job, Py_ssize_t o, real* near) noexcept nogil:
    """The same for weights that are bytes."""
    cdef const unsigned char* w = <const unsigned char*>job.weight + o * job.inner
    cdef unsigned char most = 0, limit = 1 if job.weighs == BN_BOOL else 255
    cdef real inverse
    cdef Py_ssize_t i
    for i in range(job.inner):
        most = max(most, min(w[i], limit))
    inverse = <real>bn_near_one(most)
    for i in range(job.inner):
        near[i] = <real>min(w[i], limit) * inverse
    for i in range(job.inner, job.inner + BN_WIDTH):
        near[i] = 0
    return <double>bn_sum_bytes(job.weighs, w, job.inner) * <double>inverse


cdef inline void squares_of_runs(
    Py_ssize_t runs, Py_ssize_t n, Py_ssize_t pitch, const real* x, Py_ssize_t left, const real* w, double some,
    double center, double* s, double* q
) noexcept nogil:
    cdef real h = <real>center
    cdef Numbers of = no_numbers()
    cdef Py_ssize_t k
    bn_weighted_squares(runs, n, pitch, x, left, w, h, s, q)
    if real is float and not (BN_LEAST_SQUARE * some <= q[0] < INFINITY):
        of.h = &h
        of.w = w
        s[0] = q[0] = 0.0
        for k in range(runs):
            bn_careful_sums(identity(), BN_WEIGHED_SQUARES, x + k * pitch, x + k * pitch, n, &of, 0, s, q)


cdef inline double sum_near(const real* w, Py_ssize_t n) noexcept nogil:
    cdef double sum = 0.0
    cdef Py_ssize_t i
    for i in range(n):
        sum += <double>w[i]
    return sum


cdef void weighted_moments_of_row(
    RowJob* job, Py_ssize_t row, const real* w, Py_ssize_t first, double all, Py_ssize_t total, bn_ahead* ahead,
    const real* x
) noexcept nogil:
    """Store mean and rstd of a row. first: the first position of weight above 0; all: the sum of the weights of a run.
    """
    cdef double count = 0.0, mean = 0.0, m2 = 0.0, low = 0.0, center = 0.0, s, q, some
    cdef Py_ssize_t inner = job.inner, k = 0, i, n
    cdef Py_ssize_t runs = max(<Py_ssize_t>1, min(<Py_ssize_t>TOGETHER, WEIGHTED // max(<Py_ssize_t>1, inner)))
    cdef Py_ssize_t at = row * job.channels * inner, here
    cdef bint about_zero = job.rule == BN_MEAN_SQUARE
    cdef int _
    while k < job.channels and all > 0.0:
        runs = min(runs, job.channels - k)
        i = 0
        while i < inner:
            n = min(<Py_ssize_t>WEIGHTED, inner - i)
            some = runs * (all if n == inner else sum_near(w + i, n))
            here = at + k * inner + i
            if ahead != NULL:
                bn_fetch_on(ahead, x + here, NULL, runs * n * sizeof(real), job.stream)
            if some > 0.0:
                if not about_zero:
                    center = <double><real>(x[at + first] if count == 0.0 else mean + low)
                squares_of_runs(runs, n, inner, x + here, total - here, w + i, some, center, &s, &q)
                for _ in range(0 if about_zero else MOST_CENTERS):
                    if not recenter(1, &some, 0, &s, &q, &count, &center):
                        break
                    center = <double><real>center
                    squares_of_runs(runs, n, inner, x + here, total - here, w + i, some, center, &s, &q)
                if about_zero:
                    m2 += q
                    count += some
                else:
                    bn_add_blocks(1, some, &center, &s, &q, &count, &mean, &m2, &low)
            i += n
        k += runs
        if n == inner:
            count = k * all     # rounded once
    job.mean[row] = bn_plain(mean + low)
    job.rstd[row] = bn_plain(bn_rstd(mean + low, m2 / (count if count > 0.0 else 1.0), job.eps, count))


cdef void weighted_forward(
    RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, Output* out, const real* x
) noexcept nogil:
    """Normalize groups `begin` to `end` of outer positions o to last: the statistics of a few rows, then their maps."""
    cdef Py_ssize_t size = job.channels * job.inner, row, g, batch, first, total
    cdef Py_ssize_t most = max(<Py_ssize_t>1, BUFFER // max(<Py_ssize_t>1, size))
    cdef real* near = <real*>job.near
    cdef double all
    for o in range(o, last):
        all = near_weights(job, o, near)
        total = readable(job, o, last, end)
        first = 0
        while all > 0.0 and near[first] == 0:
            first += 1
        g = begin
        while g < end:
            batch = min(most, end - g)
            for row in range(o * job.groups + g, o * job.groups + g + batch):
                weighted_moments_of_row(job, row, near, first, all, total, walk_on(job, out), x)
            forward_maps(job, o * job.groups + g, batch, g, out, x)
            g += batch


cdef void weighted_backward(
    RowJob* job, Py_ssize_t o, Py_ssize_t last, Py_ssize_t begin, Py_ssize_t end, double* dgamma, double* dbeta,
    Output* out, const real* x
) noexcept nogil:
    """Compute dx of the same rows, and add their part to dgamma and dbeta."""
    cdef Py_ssize_t g, row, total
    cdef real* near = <real*>job.near
    cdef double count, sum = 0.0, dot = 0.0
    for o in range(o, last):
        count = job.channels * near_weights(job, o, near)
        total = readable(job, o, last, end)
        for g in range(begin, end):
            row = o * job.groups + g
            sums_of_runs(job, True, row, g, total, dgamma, dbeta, walk_on(job, out), &sum, &dot, x)
            gradient_of_runs(job, row, g, near, count, sum, dot, out, x)
