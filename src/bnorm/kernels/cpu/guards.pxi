# What every entry checks of its arrays, whoever calls it: an array of a wrong type, size or layout is an error, never a
# crash. Values are not checked.
#
# Uses nothing of its siblings.
# Gives channels_of, expect, expect_block, expect_like, need, readable.

cdef inline bint readable(cnp.ndarray a) noexcept:
    """Whether an array is contiguous and in native byte order. It may be unaligned if another process has sent it."""
    return cnp.PyArray_CHKFLAGS(a, cnp.NPY_ARRAY_C_CONTIGUOUS) and cnp.PyArray_ISNOTSWAPPED(a)


cdef inline int expect(str name, cnp.ndarray a, int kind, Py_ssize_t size) except -1:
    """Check that `a` is None, or contiguous memory of `size` numbers of the NumPy type number `kind`."""
    if a is not None and (
        not (cnp.PyArray_TYPE(a) == kind or cnp.PyArray_EquivTypenums(cnp.PyArray_TYPE(a), kind))
        or cnp.PyArray_SIZE(a) != size or not readable(a)
    ):
        dtype = cnp.PyArray_DescrFromType(kind)
        raise ValueError(f"{name}: expected {size} numbers of {dtype}, contiguous and in native byte order, "
                         f"got shape {(<object>a).shape} of {a.dtype.str}")
    return 0


cdef inline int need(str name, cnp.ndarray a, int kind, Py_ssize_t size) except -1:
    """Check that `a` is contiguous memory of `size` numbers of the NumPy type number `kind`."""
    if a is None:
        raise TypeError(f"{name}: expected an array, got None")
    return expect(name, a, kind, size)


cdef inline int expect_block(cnp.ndarray x, int least, int most) except -1:
    """Check that x is an array of `least` to `most` axes that the loops can read."""
    cdef int kind
    if x is None:
        raise TypeError("x: expected an array, got None")
    kind = cnp.PyArray_TYPE(x)
    if not (kind == cnp.NPY_DOUBLE or kind == cnp.NPY_FLOAT or kind == cnp.NPY_FLOAT16 or kind == cnp.NPY_BOOL
            or cnp.PyTypeNum_ISINTEGER(kind)) and not is_bfloat(x):
        raise TypeError(f"x: expected floats, bools or integers, got {x.dtype}")
    if not (least <= cnp.PyArray_NDIM(x) <= most and readable(x)):
        raise ValueError(f"x: expected at least {least} axes, in contiguous memory of the machine's byte order, got "
                         f"shape {(<object>x).shape} of {x.dtype.str}")
    return 0


cdef inline int expect_like(str name, cnp.ndarray a, cnp.ndarray x) except -1:
    """Check that `a` has the type and the size of x, as the gradient of x has."""
    return need(name, a, cnp.PyArray_TYPE(x), cnp.PyArray_SIZE(x))


cdef inline Py_ssize_t channels_of(str name, cnp.ndarray a, int rows) except -1:
    """Return the number of channels of an array of shape (rows, channels)."""
    if a is None or cnp.PyArray_NDIM(a) != 2:
        raise ValueError(f"{name}: expected {rows} rows of numbers, got {'None' if a is None else (<object>a).shape}")
    expect(name, a, cnp.NPY_DOUBLE, rows * cnp.PyArray_DIM(a, 1))
    return cnp.PyArray_DIM(a, 1)
