# Weights of positions: the types that they may have, and what is found of all at once: their sum, whether they can be
# used, and the size of the largest.
#
# Uses data, itemsize, narrow_of (arrays), expect (guards), bypasses, parts, rounded_up, sizes (plan).
# Gives expect_weights, kind_of_weights, share_totals, size_of_totals, unit_of, weigh.

cdef enum:
    PART = 2048     # weights that are summed and then copied, while they are in the first-level cache


cdef inline int expect_weights(cnp.ndarray weight, Py_ssize_t positions) except -1:
    """Check weights, which may be None: one for each position, of float64, float32, bool or uint8."""
    cdef int kind = cnp.NPY_DOUBLE
    if weight is not None and cnp.PyArray_TYPE(weight) in (cnp.NPY_FLOAT, cnp.NPY_BOOL, cnp.NPY_UINT8):
        kind = cnp.PyArray_TYPE(weight)
    return expect("weight", weight, kind, positions)


cdef inline int kind_of_weights(cnp.ndarray weight) noexcept:
    if weight is None or cnp.PyArray_TYPE(weight) == cnp.NPY_DOUBLE:
        return BN_REAL
    return BN_FLOAT32 if cnp.PyArray_TYPE(weight) == cnp.NPY_FLOAT else narrow_of(weight)


cdef inline void weigh(Job* job, cnp.ndarray weight) noexcept:
    """Give the job the weights of its positions, or None. Long runs of float32 are fetched ahead too if they are summed
    with weights that are no mask."""
    job.weight = data(weight)
    job.weighs = kind_of_weights(weight)
    if weight is not None and job.dy == NULL and not job.wide and cnp.PyArray_ITEMSIZE(weight) > 1:
        job.far = job.far or job.outer * job.channels * job.inner * itemsize(job) >= sizes.far


cdef inline size_t size_of_totals(const Job* job) noexcept nogil:
    """Return the bytes of the sums of weights that the tasks of a forward share, if it has several groups of channels
    and both passes over one before the next: in full cache lines."""
    if job.weight == NULL or not job.fused or job.groups == 1:
        return 0
    return rounded_up((job.rows if job.runs else job.pieces) * TOTALS * sizeof(double), BN_LINE)


cdef inline void share_totals(Job* job, double* totals, size_t size) noexcept nogil:
    """Let the tasks share these sums of weights, none of which is known yet."""
    cdef size_t i
    if size > 0:
        job.totals = totals
        for i in range(size // sizeof(double)):
            totals[i] = -1.0


cdef struct Keep:       # weights that are summed, if they are no mask, and copied, unless `copy` is NULL
    const char* weight
    char* copy
    double* sums        # of each part: NaN if one of its weights is negative
    Py_ssize_t n, parts, size
    int threads, weighs     # weighs: the type of weights, as in Job
    bint sent           # the copy is stored past the caches


cdef void keep_share(void* keep, Py_ssize_t i) noexcept nogil:
    """Handle the parts of the i-th thread."""
    cdef Keep* k = <Keep*>keep
    cdef Py_ssize_t p, n, at
    cdef int negative
    for p in range(k.parts * i // k.threads, k.parts * (i + 1) // k.threads):
        at = p * PART * k.size
        n = min(<Py_ssize_t>PART, k.n - p * PART)
        negative = 0
        k.sums[p] = loops.weight(k.weight + at, k.weighs, n, &negative) if k.size > 1 else 0.0
        if negative:
            k.sums[p] = NAN
        n *= k.size
        while k.sent and n >= BN_LINE:
            bn_fetch_line(k.weight + at + PART * k.size)    # of the next part
            bn_send_line(k.copy + at, k.weight + at)
            at += BN_LINE
            n -= BN_LINE
        if k.copy != NULL:
            memcpy(k.copy + at, k.weight + at, n)
    bn_fence()


def keep_weights(cnp.ndarray weight not None, bint copy):
    """Return weights or a copy of them, their sum (0 for bytes), and how many are above 0 (2 stands for 2 or more).

    The sum is NaN if a weight is negative.
    """
    cdef cnp.ndarray kept = weight
    cdef Py_ssize_t i = 0
    cdef Keep k
    cdef int above = 0
    cdef double sum = 0.0
    k.n = cnp.PyArray_SIZE(weight)
    expect_weights(weight, k.n)
    k.weight = <const char*>data(weight)
    k.copy = NULL
    k.sent = False
    if copy:
        kept = empty(cnp.PyArray_NDIM(weight), cnp.PyArray_DIMS(weight), cnp.PyArray_TYPE(weight), k.weight)
        k.copy = <char*>data(kept)
        k.sent = bypasses(cnp.PyArray_NBYTES(kept), sizes.stream) and <size_t>k.copy % BN_LINE == 0
    k.weighs = kind_of_weights(weight)
    k.size = cnp.PyArray_ITEMSIZE(weight)
    k.parts = parts(k.n, PART)
    k.threads = threads_for(k.n, k.parts)
    cdef Memory sums = scratch(k.parts * sizeof(double))
    k.sums = <double*>sums.at
    with nogil:
        share(keep_share, &k, k.threads)
        for i in range(k.parts):
            sum += k.sums[i]
        i = 0
        while i < k.n and above < 2:
            above += (<const double*>k.weight)[i] > 0.0 if k.weighs == BN_REAL \
                else (<const float*>k.weight)[i] > 0 if k.weighs == BN_FLOAT32 else k.weight[i] != 0
            i += 1
    return kept, sum, above


cdef double unit_of(cnp.ndarray weight) except *:
    """Return a power of two near the largest weight; 1 without weights."""
    cdef int exponent = 0
    if weight is not None and cnp.PyArray_ITEMSIZE(weight) == 1:
        frexp(<double>weight.max(initial=0), &exponent)
    elif weight is not None:
        frexp(loops.largest(data(weight), kind_of_weights(weight), cnp.PyArray_SIZE(weight)), &exponent)
    return ldexp(1.0, max(-1000, min(1000, exponent)))
