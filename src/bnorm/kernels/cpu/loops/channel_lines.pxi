# The maps of a line: y = (x - h) scale + shift, and dx = a (dy + w (b (x - h) + c)). h is the high part of the mean in
# the type of x, so x - h is exact near the mean; the low part is folded into shift and c. With a outside the brackets b
# is of the size of 1 / std, which float32 holds wherever it holds x. A weight of 0 keeps whatever stands under it out,
# NaN too. Without b (statistics that are constants) dx = a dy. b and c are negative here, and subtracted: `one_nan`
# says why.
#
# Infinities are looked for in the pass that reads x anyway: among columns in the loop that maps them, elsewhere just
# before, a few cache lines at a time.
#
# Uses activated, pulled (activations), Columns (channel_columns).
# Gives Run, checked_columns, from_column, gradient_columns, gradient_run, look, normalize_columns, normalize_run.


cdef inline bint infinite(const real* x, Py_ssize_t n) noexcept nogil:
    """Whether an infinity is among n values."""
    cdef Py_ssize_t j
    cdef int32_t found = 0
    cdef int64_t found_double = 0   # as wide as what is compared, for whole vectors
    for j in range(n):
        if real is float:
            found |= bn_infinite_float(x[j])
        else:
            found_double |= bn_infinite_double(x[j])
    return found != 0 or found_double != 0


cdef inline bint last_infinite(const real* x, Py_ssize_t n) noexcept nogil:
    """The same of what does not fill a vector; looking at some twice, as whole vectors, is faster than one by one."""
    if n % VECTOR == 0:
        return False
    return infinite(x, n) if n < VECTOR else infinite(x + n - VECTOR, <Py_ssize_t>VECTOR)


cdef inline bint finite_columns(const real* x, real* y, Py_ssize_t n, const Columns* of) noexcept nogil:
    """normalize_columns of a multiple of 16 columns without an activation; whether an infinity was among them."""
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef Py_ssize_t j
    cdef int32_t found = 0
    cdef int64_t found_double = 0
    for j in range(n):
        if real is float:
            found |= bn_infinite_float(x[j])
        else:
            found_double |= bn_infinite_double(x[j])
        y[j] = (x[j] - h[j]) * scale[j] + shift[j]
    return found != 0 or found_double != 0


cdef inline void normalize_columns_by(
    Activation act, const real* x, real* y, Py_ssize_t n, const Columns* of
) noexcept nogil:
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef Py_ssize_t j
    for j in range(n):
        y[j] = activated(act, (x[j] - h[j]) * scale[j] + shift[j])


cdef inline void normalize_columns(
    const real* x, real* y, Py_ssize_t n, const Columns* of, Activation act
) noexcept nogil:
    by_kind(normalize_columns_by[real], act, x, y, n, of)


cdef inline void normalize_run_by(
    Activation act, const real* x, real* y, Py_ssize_t n, real h, real scale, real shift
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        y[j] = activated(act, (x[j] - h) * scale + shift)


cdef inline void normalize_run(
    const real* x, real* y, Py_ssize_t n, real h, real scale, real shift, Activation act
) noexcept nogil:
    by_kind(normalize_run_by[real], act, x, y, n, h, scale, shift)


cdef inline void gradient_columns_by(
    Activation act, const real* dy, const real* x, real* dx, Py_ssize_t n, const Columns* of
) noexcept nogil:
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef const real* a = <const real*>of.a
    cdef const real* b = <const real*>of.b
    cdef const real* c = <const real*>of.c
    cdef const real* w = <const real*>of.w
    cdef Py_ssize_t j
    cdef real t, g
    if b == NULL:
        for j in range(n):
            dx[j] = pulled(act, (x[j] - h[j]) * scale[j] + shift[j], a[j] * dy[j])
    elif w == NULL:
        for j in range(n):
            t = x[j] - h[j]
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale[j] + shift[j], dy[j])
            dx[j] = a[j] * (g - (b[j] * t + c[j]))
    else:
        for j in range(n):
            t = x[j] - h[j]
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale[j] + shift[j], dy[j])
            t = b[j] * t + c[j]
            dx[j] = a[j] * (g - (0 if w[j] == 0 else w[j] * t))


cdef inline void gradient_columns(
    const real* dy, const real* x, real* dx, Py_ssize_t n, const Columns* of, Activation act
) noexcept nogil:
    by_kind(gradient_columns_by[real], act, dy, x, dx, n, of)


# The numbers of one channel or row, all of them numbers of the type of x.
ctypedef struct Run:
    double h, scale, shift      # as in Columns
    double a, b, c              # b and c negative
    double gain                 # a factor of dy alone, for group norm
    bint frozen                 # without b and c


cdef inline void gradient_run_by(
    Activation act, const real* dy, const real* x, real* dx, Py_ssize_t n, const Run* of, const double* w, double unit
) noexcept nogil:
    cdef real h = <real>of.h, scale = <real>of.scale, shift = <real>of.shift
    cdef real a = <real>of.a, b = <real>of.b, c = <real>of.c, gain = <real>of.gain
    cdef double inverse = 1.0 / unit
    cdef Py_ssize_t j
    cdef real t, g
    if of.frozen:
        for j in range(n):
            dx[j] = pulled(act, (x[j] - h) * scale + shift, a * (gain * dy[j]))
    elif w == NULL:
        for j in range(n):
            t = x[j] - h
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale + shift, dy[j])
            dx[j] = a * (gain * g - (b * t + c))
    else:
        for j in range(n):
            t = x[j] - h
            g = dy[j] if act.kind == BN_IDENTITY else pulled(act, t * scale + shift, dy[j])
            t = b * t + c
            dx[j] = a * (gain * g - (0 if w[j] == 0 else <real>(w[j] * inverse) * t))


cdef inline void gradient_run(
    const real* dy, const real* x, real* dx, Py_ssize_t n, const Run* of, Activation act, const double* w, double unit
) noexcept nogil:
    """gradient_columns with one channel's numbers; w is in units of `unit`."""
    by_kind(gradient_run_by[real], act, dy, x, dx, n, of, w, unit)


cdef inline const void* from_number(const void* columns, Py_ssize_t k, const real* x) noexcept nogil:
    return columns if columns == NULL else <const real*>columns + k


cdef inline Columns from_column(const Columns* of, Py_ssize_t k, const real* x) noexcept nogil:
    """The numbers of the columns from k on."""
    cdef Columns rest
    rest.h = from_number(of.h, k, x)
    rest.scale = from_number(of.scale, k, x)
    rest.shift = from_number(of.shift, k, x)
    rest.a = from_number(of.a, k, x)
    rest.b = from_number(of.b, k, x)
    rest.c = from_number(of.c, k, x)
    rest.w = of.w
    return rest


cdef void look(Job* job, const real* x, Py_ssize_t n) noexcept nogil:
    """Note an infinity among n values that are about to be mapped, and are in the first-level cache from now on."""
    if infinite(x, n // VECTOR * VECTOR) or last_infinite(x, n):
        bn_set(&job.infinite)


cdef void checked_columns(
    Job* job, const real* x, real* y, Py_ssize_t n, const Columns* of
) noexcept nogil:
    """normalize_columns that notes an infinity."""
    cdef Py_ssize_t k = n // VECTOR * VECTOR
    cdef bint found = last_infinite(x, n)   # before y, which may be x, is written
    cdef Columns rest = from_column(of, k, x)
    if job.act.kind != BN_IDENTITY:
        look(job, x, n)
        normalize_columns(x, y, n, of, job.act)
        return
    found |= finite_columns(x, y, k, of)
    normalize_columns(x + k, y + k, n - k, &rest, job.act)
    if found:
        bn_set(&job.infinite)
