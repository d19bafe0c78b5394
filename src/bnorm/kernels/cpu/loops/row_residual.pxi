# Residuals of rows: h = x + r is computed for some rows just before they are normalized, and dh is added to dx just
# after dx was computed, while the first-level cache has the rows. If results go past the caches, h does too, and its
# rows are normalized where they were computed, in the memory of the thread.
#
# Uses nothing of its siblings.
# Gives SentSums, WRITTEN, add_gradient, add_narrow, add_narrow_gradient, close_sums, gradient_of_sums, open_sums,
# second_input, sums_of.

cdef enum:
    WRITTEN = 1024      # values that are converted to a narrow type at a time


# How h goes past the caches: narrow values are gathered, others are sent as they are computed; and the walk over x.
ctypedef struct SentSums:
    bn_output lines
    bn_ahead ahead
    bn_edge edge


cdef inline const char* second_input(const RowJob* job, Py_ssize_t at) noexcept nogil:
    """Return what is read beside x, from byte `at` on: dy, or what is added to x; or NULL."""
    cdef const void* second = job.given if job.given != NULL else job.residual
    return NULL if second == NULL else <const char*>second + at


cdef inline void open_sums(const RowJob* job, SentSums* sent) noexcept nogil:
    if job.residual != NULL and job.stream:
        bn_open(&sent.lines)
        bn_stand(&sent.ahead)
        bn_open_edge(&sent.edge, &sent.ahead)


cdef inline void close_sums(const RowJob* job, SentSums* sent) noexcept nogil:
    if job.residual != NULL and job.stream:
        bn_close(&sent.lines, &sent.ahead)
        bn_close_edge(&sent.edge)


cdef const real* sums_of(const RowJob* job, Py_ssize_t at, Py_ssize_t n, SentSums* sent, const real* x) noexcept nogil:
    """Compute n values of h from position `at` on. Return where h would begin if all of it were where these are."""
    cdef const real* r = <const real*>job.residual + at
    cdef real* to = <real*>job.h + at
    cdef real* h = to if job.room == NULL else <real*>(job.room + (-<size_t>job.room & 63))
    cdef Py_ssize_t j
    x += at
    if job.room != NULL and n * <Py_ssize_t>sizeof(real) >= BN_LINE:
        bn_sums(n, x, r, h, to, &sent.edge)
        return h - at
    for j in range(n):
        h[j] = x[j] + r[j]
    if job.room != NULL:
        bn_close_edge(&sent.edge)
        memcpy(to, h, n * sizeof(real))
    return h - at


cdef inline const real* gradient_of_sums(const RowJob* job, Py_ssize_t at, const real* x) noexcept nogil:
    """Return dh from position `at` on, or NULL."""
    return NULL if job.dh == NULL else <const real*>job.dh + at


cdef inline void add_gradient(const RowJob* job, Py_ssize_t at, Py_ssize_t n, real* dx) noexcept nogil:
    """Add dh, if there is one, to n values of dx from position `at` on."""
    cdef const real* dh = <const real*>job.dh
    cdef Py_ssize_t j
    if dh != NULL:
        dh += at
        for j in range(n):
            dx[j] += dh[j]


cdef void add_narrow(const RowJob* job, Py_ssize_t at, Py_ssize_t n, SentSums* sent, float* x) noexcept nogil:
    """Compute n narrow values of h from position `at` on, and replace those of x by them, converted to float32."""
    cdef float[WRITTEN] some
    cdef Py_ssize_t i = 0, j, m
    cdef char* h = <char*>job.h + 2 * at
    cdef char* to
    while i < n:
        m = min(<Py_ssize_t>WRITTEN, n - i)
        bn_read_float(job.narrow, job.residual, at + i, m, some)
        for j in range(m):
            some[j] += x[i + j]
        to = <char*>bn_room(&sent.lines, h + 2 * i, 2 * m, &sent.ahead) if job.stream else h + 2 * i
        bn_write_float(job.narrow, some, m, to)
        bn_read_float(job.narrow, to, 0, m, x + i)
        i += m


cdef void add_narrow_gradient(const RowJob* job, Py_ssize_t at, Py_ssize_t n, float* dx) noexcept nogil:
    """add_gradient for a dh of a narrow type."""
    cdef float[WRITTEN] some
    cdef Py_ssize_t i = 0, j, m
    while job.dh != NULL and i < n:
        m = min(<Py_ssize_t>WRITTEN, n - i)
        bn_read_float(job.narrow, job.dh, at + i, m, some)
        for j in range(m):
            dx[i + j] += some[j]
        i += m
