# A row of columns is `widen` copies of `channels` runs of `run` values: column (q * channels + c) * run + l belongs to
# channel c. These helpers go from channels to columns and back.

cdef enum:
    NEAR = 16           # columns between two fetches of what comes next, by rows: few lines at a time


cdef inline void zero(double* values, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        values[i] = 0.0


cdef inline void spread(
    const real* values, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, real* columns
) noexcept nogil:
    """Write each channel's value into all its columns."""
    cdef Py_ssize_t q, c, i, j = 0
    for q in range(widen):
        if run == 1:
            for c in range(channels):
                columns[j + c] = values[c]
            j += channels
        else:
            for c in range(channels):
                for i in range(run):
                    columns[j + i] = values[c]
                j += run


cdef inline const real* columns_of(
    const real* values, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run, real* columns
) noexcept nogil:
    """The same for who only reads them: the values themselves where each channel is one column."""
    if widen * run == 1:
        return values
    spread(values, widen, channels, run, columns)
    return columns


cdef inline double lane_sum(const double* lanes, Py_ssize_t n) noexcept nogil:
    """Sum of n values in one fixed order: eight running sums, then a tree."""
    cdef double[8] a
    cdef Py_ssize_t i, j
    for i in range(8):
        a[i] = 0.0
    j = 0
    while j + 8 <= n:
        for i in range(8):
            a[i] += lanes[j + i]
        j += 8
    for i in range(n - j):
        a[i] += lanes[j + i]
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))


cdef inline void gather(double* columns, Py_ssize_t widen, Py_ssize_t channels, Py_ssize_t run) noexcept nogil:
    """Sum over the columns of each channel, into the first `channels` of them; widen is a power of two."""
    cdef Py_ssize_t c, j, half = widen * channels * run // 2
    while widen > 1:    # one half of the row onto the other
        for j in range(half):
            columns[j] += columns[half + j]
        half //= 2
        widen //= 2
    if run > 1:
        for c in range(channels):
            columns[c] = lane_sum(columns + c * run, run)


cdef inline const double* from_position(const double* weight, Py_ssize_t i) noexcept nogil:
    if weight == NULL:
        return weight
    return weight + i


cdef inline Py_ssize_t block_rows(const Job* job, Py_ssize_t done) noexcept nogil:
    """Rows of the next block after so many; of moments at most three times as many, see channel_moments.pxi."""
    return BLOCK if job != NULL and job.dy != NULL else max(<Py_ssize_t>FIRST, min(<Py_ssize_t>BLOCK, 3 * done))
