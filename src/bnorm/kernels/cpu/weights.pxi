# What an entry asks of all weights at once: their sum, and the size of the largest.
#
# Uses data (arrays).
# Gives total, unit_of.

cdef double total(const Job* job, Py_ssize_t n) noexcept nogil:
    """The sum of n weights, with the rounding errors of the additions (Knuth): LANES sums in parallel, then these."""
    cdef double[LANES] sums, rests
    cdef Py_ssize_t i = 0, j
    cdef double sum = 0.0, rest = 0.0
    cdef const double* weight = <const double*>job.weight
    if job.weighs != BN_REAL:
        return <double>bn_sum_bytes(job.weighs, job.weight, n)
    for j in range(LANES):
        sums[j] = rests[j] = 0.0
    while i + LANES <= n:
        for j in range(LANES):
            add_exactly(&sums[j], &rests[j], weight[i + j])
        i += LANES
    while i < n:
        add_exactly(&sum, &rest, weight[i])
        i += 1
    for j in range(LANES):
        add_exactly(&sum, &rest, sums[j])
        rest += rests[j]
    return sum + rest


cdef inline void add_exactly(double* sum, double* rest, double v) noexcept nogil:
    """Add v to sum + rest, exactly up to the rounding of rest."""
    cdef double next = sum[0] + v, added = next - sum[0]
    rest[0] += (sum[0] - (next - added)) + (v - added)
    sum[0] = next


cdef double unit_of(cnp.ndarray weight) except *:
    """A power of two near the largest weight."""
    cdef const double* w = <const double*>data(weight)
    cdef double[LANES] most
    cdef int exponent = 0
    cdef Py_ssize_t i = 0, j, n
    if w != NULL and cnp.PyArray_TYPE(weight) != cnp.NPY_DOUBLE:
        frexp(<double>weight.max(), &exponent)
    elif w != NULL:
        n = cnp.PyArray_SIZE(weight)
        for j in range(LANES):
            most[j] = 0.0
        while i + LANES <= n:
            for j in range(LANES):
                most[j] = w[i + j] if w[i + j] > most[j] else most[j]
            i += LANES
        for j in range(n - i):
            most[0] = max(most[0], w[i + j])
        for j in range(1, LANES):
            most[0] = max(most[0], most[j])
        frexp(most[0], &exponent)
    return ldexp(1.0, max(-1000, min(1000, exponent)))
