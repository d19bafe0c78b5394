# From NumPy arrays to the pointers and sizes of a Job, and from results to arrays.
#
# Uses expect, expect_block, need, readable (guards), bypasses, is_far, is_touched, kept, plan, rounded_up, sizes,
# threads_of (plan), expect_weights (weights).
# Gives MOST_AXES, data, expect_vectors, folded, in_float64, is_wide, itemsize, matrix, narrow_of, pair, partial_size,
# read_activation, result, seen_as, target, to_type, vector, vector_size, view.

cdef enum:
    MOST_AXES = 64      # the most axes that NumPy allows
    NARROW = 256        # most columns of a narrow table


cdef inline void* data(cnp.ndarray a) noexcept:
    return NULL if a is None else cnp.PyArray_DATA(a)


cdef inline cnp.ndarray vector(Py_ssize_t n):
    cdef cnp.npy_intp size = n
    return empty(1, &size, cnp.NPY_DOUBLE)


cdef inline cnp.ndarray matrix(Py_ssize_t rows, Py_ssize_t n):
    cdef cnp.npy_intp[2] shape = [rows, n]
    return empty(2, shape, cnp.NPY_DOUBLE)


cdef inline int read_activation(Activation* act, given) except -1:
    """Read a `kernels.activation.Activation` into `act`."""
    if not isinstance(given, tuple) or len(<tuple>given) != 2:
        raise TypeError(f"act: expected an Activation, got {type(given).__name__}")
    act.kind = (<tuple>given)[0]
    act.slope = (<tuple>given)[1]
    return 0


cdef inline bint is_narrow(cnp.ndarray x) noexcept:
    """Whether x is a narrow table. Maps of these read full cache lines, as they store them, if y begins where x does in
    a line: on Zen 4 in 0.85 to 0.95 of the time. Those of other arrays are faster if y begins a line."""
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    return cnp.PyArray_TYPE(x) == cnp.NPY_FLOAT and cnp.PyArray_NDIM(x) > 1 and shape[1] <= NARROW \
        and cnp.PyArray_SIZE(x) == shape[0] * shape[1]


cdef inline cnp.ndarray result(cnp.ndarray x, cnp.ndarray out):
    """Return `out` if it can hold the result for x (ValueError if not), or without `out` a new array of x's shape.

    The result has the type of x; for integers it is float64.
    """
    expect_block(x, 0, MOST_AXES)
    cdef int kind = type_of_result(x)
    if out is not None:
        if not cnp.PyArray_ISCARRAY(out) or cnp.PyArray_TYPE(out) != kind \
                or cnp.PyArray_SIZE(out) != cnp.PyArray_SIZE(x):
            dtype = x.dtype if kind == cnp.PyArray_TYPE(x) else "float64"
            raise ValueError("out: expected writeable, aligned and contiguous memory "
                             f"for {x.size} values of {dtype}")
        return out
    return empty(cnp.PyArray_NDIM(x), cnp.PyArray_DIMS(x), kind, cnp.PyArray_DATA(x), not is_narrow(x))


cdef inline int narrow_of(cnp.ndarray x) noexcept:
    """Return the type of x, BN_REAL if the loops compute in it. One that is not NumPy's own is some library's
    bfloat16."""
    cdef int kind = cnp.PyArray_TYPE(x)
    if kind == cnp.NPY_DOUBLE or kind == cnp.NPY_FLOAT:
        return BN_REAL
    return BN_HALF if kind == cnp.NPY_FLOAT16 else BN_BOOL if kind == cnp.NPY_BOOL \
        else integer_kind(x) if cnp.PyTypeNum_ISINTEGER(kind) else BN_BFLOAT


cdef inline bint is_wide(cnp.ndarray x) noexcept:
    """Whether the loops compute in float64."""
    return cnp.PyArray_TYPE(x) == cnp.NPY_DOUBLE or narrow_of(x) >= BN_BOOL


cdef inline int type_of_result(cnp.ndarray x) noexcept:
    return cnp.NPY_DOUBLE if is_wide(x) else cnp.PyArray_TYPE(x)


def widened(cnp.ndarray x):
    """Return x in the type that the loops compute in, for kernels that cannot read narrower types."""
    expect_block(x, 0, MOST_AXES)
    cdef int kind = narrow_of(x)
    if kind == BN_REAL:
        return x
    cdef bint wide = kind >= BN_BOOL
    cdef cnp.ndarray a = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(x), cnp.PyArray_DIMS(x),
                                           cnp.NPY_DOUBLE if wide else cnp.NPY_FLOAT, 0)
    loops.read[wide](kind, data(x), 0, cnp.PyArray_SIZE(x), data(a))
    return a


def narrowed(cnp.ndarray y, cnp.ndarray like):
    """Return y, which is float32, in the half-precision type of `like`; an overflow becomes infinite."""
    expect_block(like, 0, MOST_AXES)
    if narrow_of(like) == BN_REAL:
        return y
    if narrow_of(like) not in (BN_HALF, BN_BFLOAT):
        raise TypeError(f"like: expected float16, bfloat16, float32 or float64, got {like.dtype}")
    need("y", y, cnp.NPY_FLOAT, 0 if y is None else cnp.PyArray_SIZE(y))
    cdef cnp.ndarray a = empty(cnp.PyArray_NDIM(y), cnp.PyArray_DIMS(y), cnp.PyArray_TYPE(like), data(y))
    loops.write(narrow_of(like), data(y), cnp.PyArray_SIZE(y), data(a))
    return a


cdef int view(Job* job, cnp.ndarray x, bint reduces=True) except -1:
    """Set the job's view of x, its plan and its type. Axis 0 is outer, axis 1 is channels, the other axes are inner.

    A single channel is one run: memory does not tell where its axis is, so the bits must not depend on that.
    """
    expect_block(x, 2, MOST_AXES)
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    if shape[1] == 1:
        seen_as(job, x, 1, 1, cnp.PyArray_SIZE(x), reduces)
    else:
        seen_as(job, x, shape[0], shape[1], cnp.PyArray_MultiplyList(shape + 2, cnp.PyArray_NDIM(x) - 2), reduces)
    return 0


cdef void seen_as(
    Job* job, cnp.ndarray x, Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner, bint reduces
) noexcept:
    """Do what `view` does, with x seen in the shape (outer, channels, inner)."""
    memset(job, 0, sizeof(Job))
    job.unit = 1.0
    job.outer = outer
    job.channels = channels
    job.inner = inner
    job.wide = is_wide(x)
    job.narrow = narrow_of(x)
    job.x = cnp.PyArray_DATA(x)
    plan(job, itemsize(job), reduces)
    job.far = is_far(job, cnp.PyArray_NBYTES(x), sizes.far)


cdef inline int expect_vectors(const Job* job, cnp.ndarray weight, cnp.ndarray stats) except -1:
    """Check the weights, which may be None, and the five statistics of each channel."""
    expect_weights(weight, job.outer * job.inner)
    return need("stats", stats, cnp.NPY_DOUBLE, 5 * job.channels)


cdef inline Py_ssize_t itemsize(const Job* job) noexcept nogil:
    """Return the size of a value of x in bytes."""
    if job.narrow != BN_REAL:
        return bn_size_of(job.narrow)
    return sizeof(double) if job.wide else sizeof(float)


cdef inline void pair(Job* job, cnp.ndarray dy) noexcept:
    """Set dy, which is read together with x. It may be None."""
    cdef Py_ssize_t least
    job.dy = data(dy)
    if dy is not None:
        least = sizes.far_alone if threads_of(job) == 1 else sizes.far_two
        job.far = job.far or is_far(job, cnp.PyArray_NBYTES(dy), least)


cdef inline void target(Job* job, cnp.ndarray y, cnp.ndarray dy=None, bint reduces=False) noexcept:
    """Set the output of a map, and dy. The output bypasses the caches if it is too large for them."""
    cdef Py_ssize_t size = cnp.PyArray_NBYTES(y), least = sizes.stream
    cdef int caches
    job.alone = is_touched(job, job.outer * job.channels * job.inner * itemsize(job))
    cdef bint alone = threads_of(job) == 1
    if dy is not None or (alone and reduces):
        least = sizes.stream_two
    elif alone or reduces:
        least = sizes.stream_one
    job.y = cnp.PyArray_DATA(y)
    pair(job, dy)
    job.stream = bypasses(size, least)
    if dy is None and (job.inner == 1 or not reduces):  # channels of images stay in the second level between two passes
        caches = kept(job.stream, job.x, NULL, job.outer * job.channels * job.inner * itemsize(job), job.y, size)
        job.stream = caches == BN_PAST
        job.far = job.far and (caches != BN_FOUND or job.inner > 1)


cdef inline size_t partial_size(const Job* job) noexcept nogil:
    return rounded_up(job.pieces * 4 * job.channels * sizeof(double), BN_LINE)


cdef inline size_t vector_size(const Job* job) noexcept nogil:
    """Return the size of a per-channel vector in the type that the loops compute in: bytes, in full cache lines."""
    return rounded_up(job.channels * <Py_ssize_t>(sizeof(double) if job.wide else sizeof(float)), BN_LINE)


cdef inline void folded(Job* job, char* memory) noexcept nogil:
    """Place the per-channel vectors of the loops' type in `memory`: three of the forward, and three more with dy.

    memory: 3 or 6 times `vector_size` bytes, from a full cache line on.
    """
    cdef size_t size = vector_size(job)
    job.high = memory
    job.scale = memory + size
    job.shift = memory + 2 * size
    if job.dy != NULL:
        job.a = memory + 3 * size
        job.b = memory + 4 * size
        job.c = memory + 5 * size


cdef void to_type(const double* values, Py_ssize_t n, bint wide, void* typed) noexcept nogil:
    cdef Py_ssize_t c
    if wide:
        for c in range(n):
            (<double*>typed)[c] = values[c]
    else:
        for c in range(n):
            (<float*>typed)[c] = <float>values[c]


def in_float64(tuple vectors not None):
    """Return vectors of float32 or float64 in float64: those that have this type are not copied. None stays None."""
    cdef cnp.ndarray a, copy
    cdef Py_ssize_t i, n
    cdef const float* narrow
    cdef double* wide
    cdef list found = list(vectors)
    for k in range(len(found)):
        a = found[k]
        if a is None or cnp.PyArray_TYPE(a) == cnp.NPY_DOUBLE:
            continue
        n = cnp.PyArray_SIZE(a)
        need("vector", a, cnp.NPY_FLOAT, n)
        found[k] = copy = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(a), cnp.PyArray_DIMS(a), cnp.NPY_DOUBLE, 0)
        narrow = <const float*>data(a)
        wide = <double*>data(copy)
        for i in range(n):
            wide[i] = narrow[i]
    return tuple(found)


cdef enum:  # the fields of a view.Layout, a tuple
    SHAPE
    BLOCK
    ORDER
    PERMUTED
    INVERSE


cdef inline tuple layout_of(layout):
    if not isinstance(layout, tuple) or len(<tuple>layout) <= INVERSE:
        raise TypeError(f"layout: expected a Layout, got {type(layout).__name__}")
    return <tuple>layout


cdef cnp.ndarray shaped(cnp.ndarray a, tuple shape):
    """Return a.reshape(shape), in half the time."""
    cdef cnp.npy_intp[MOST_AXES] sizes
    cdef cnp.PyArray_Dims dims
    cdef int i
    dims.len = <int>min(len(shape), MOST_AXES)
    dims.ptr = sizes
    for i in range(dims.len):
        sizes[i] = shape[i]
    return cnp.PyArray_Newshape(a, &dims, cnp.NPY_CORDER)


def again(x, layout):
    """Return x in the shape of the block of a view.Layout, or None if x needs the longer way: unless it is a NumPy
    array of floats, in C order and aligned, of the shape that the layout was made for.
    """
    if layout is None or type(x) is not cnp.ndarray:
        return None
    cdef cnp.ndarray a = x
    cdef int kind = cnp.PyArray_TYPE(a)
    cdef tuple seen = layout_of(layout), shape = seen[SHAPE]
    cdef Py_ssize_t i, n = cnp.PyArray_NDIM(a)
    if kind != cnp.NPY_FLOAT and kind != cnp.NPY_DOUBLE and kind != cnp.NPY_FLOAT16 and not is_bfloat(a):
        return None
    if seen[ORDER] is not None or n != len(shape) or not (readable(a) and cnp.PyArray_ISALIGNED(a)):
        return None
    for i in range(n):
        if cnp.PyArray_DIMS(a)[i] != shape[i]:
            return None
    return a if seen[BLOCK] is shape else shaped(a, seen[BLOCK])


def restored(cnp.ndarray a not None, layout):
    """Return a view of a kernel's result in the shape and the axis order of the x of a view.Layout."""
    cdef tuple seen = layout_of(layout)
    if seen[BLOCK] is seen[SHAPE]:
        return a
    a = shaped(a, seen[PERMUTED])
    return a if seen[ORDER] is None else a.transpose(seen[INVERSE])


def add(cnp.ndarray total, cnp.ndarray part, cnp.ndarray other=None, cnp.ndarray other_part=None):
    """Do total += part and other += other_part, in one call that no interrupt can divide. A total may be None.

    The arrays of a pair are contiguous and of the same size, and the part is float64. Values that are not finite are
    added without a warning.
    """
    check_total(total, part)
    check_total(other, other_part)
    if total is not None:
        add_one(total, part)
    if other is not None:
        add_one(other, other_part)


cdef int check_total(cnp.ndarray total, cnp.ndarray part) except -1:
    if total is not None and part is None:
        raise TypeError("part: expected an array, got None")
    expect("part", part, cnp.NPY_DOUBLE, 0 if part is None else cnp.PyArray_SIZE(part))
    if total is not None and not (
        cnp.PyArray_ISCARRAY(total) and cnp.PyArray_SIZE(total) == cnp.PyArray_SIZE(part)
        and cnp.PyArray_TYPE(total) in (cnp.NPY_DOUBLE, cnp.NPY_FLOAT)
    ):
        raise ValueError(f"total: expected writeable, aligned and contiguous memory for {part.size} values of float32 "
                         "or float64")
    return 0


cdef void add_one(cnp.ndarray total, cnp.ndarray part) noexcept:
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(total)
    cdef double* wide = <double*>data(total)    # variables of their own, or the loops are not vectorized
    cdef float* narrow = <float*>data(total)
    cdef const double* b = <const double*>data(part)
    if cnp.PyArray_TYPE(total) == cnp.NPY_DOUBLE:
        for i in range(n):
            wide[i] += b[i]
    else:
        for i in range(n):
            narrow[i] = <float>(narrow[i] + b[i])


cdef void bounds(cnp.ndarray a, char** begin, char** end) noexcept:
    """Set `begin` to the address of the first byte of an array's elements, and `end` to that after their last byte."""
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(a)
    cdef cnp.npy_intp* strides = cnp.PyArray_STRIDES(a)
    cdef int i
    begin[0] = end[0] = <char*>cnp.PyArray_DATA(a)
    for i in range(cnp.PyArray_NDIM(a)):
        if shape[i] == 0:
            return
        if strides[i] < 0:
            begin[0] += (shape[i] - 1) * strides[i]
        else:
            end[0] += (shape[i] - 1) * strides[i]
    end[0] += cnp.PyArray_ITEMSIZE(a)


cdef bint away(const char* begin, const char* end, other):
    """Whether the bytes from `begin` to `end` certainly do not belong to `other`, of any type; False means unknown."""
    cdef char* first = NULL
    cdef char* last = NULL
    if other is None:
        return True
    if not isinstance(other, cnp.ndarray):
        return False
    bounds(other, &first, &last)
    return first >= end or begin >= last


def apart(cnp.ndarray a not None, others):
    """Whether an array certainly shares no memory with the others, which may be of any type; False means unknown."""
    cdef char* begin = NULL
    cdef char* end = NULL
    bounds(a, &begin, &end)
    for other in others:
        if not away(begin, end, other):
            return False
    return True


def ready(out, x, layout, tuple given):
    """Return `out` in the memory order of a view.Layout if a kernel may write to it directly; None means unknown.

    It may if `out` is in the layout's order and of the type of a result for x, and `apart` from the values of the dicts
    in `given`.
    """
    if type(out) is not cnp.ndarray or type(x) is not cnp.ndarray:
        return None
    cdef cnp.ndarray to = out
    cdef tuple seen = layout_of(layout), shape = seen[SHAPE]
    cdef Py_ssize_t i, n = cnp.PyArray_NDIM(to)
    cdef char* begin = <char*>data(to)
    cdef char* end = begin + cnp.PyArray_NBYTES(to)
    if n != len(shape) or cnp.PyArray_TYPE(to) != type_of_result(x):
        return None
    for i in range(n):
        if cnp.PyArray_DIMS(to)[i] != shape[i]:
            return None
    if seen[ORDER] is not None:
        to = to.transpose(seen[ORDER])
    if not cnp.PyArray_ISCARRAY(to):
        return None
    for arrays in given:
        if type(arrays) is not dict:
            return None
        for array in (<dict>arrays).values():
            if not away(begin, end, array):
                return None
    return to
