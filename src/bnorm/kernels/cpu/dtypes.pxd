"""The type of an array, as a number of kinds.pxd."""

cimport numpy as cnp

from bnorm.kernels.cpu.kinds cimport (
    BN_BFLOAT,
    BN_BOOL,
    BN_FLOAT32,
    BN_FLOAT64,
    BN_HALF,
    BN_INT8,
    BN_INT16,
    BN_INT32,
    BN_INT64,
    BN_UINT8,
    BN_UINT16,
    BN_UINT32,
    BN_UINT64,
)


cdef inline int integer_kind(cnp.ndarray x) noexcept:
    """Return the type of an array of integers. NumPy has more than one type of the same size."""
    cdef Py_ssize_t size = cnp.PyArray_ITEMSIZE(x)
    if cnp.PyTypeNum_ISSIGNED(cnp.PyArray_TYPE(x)):
        return BN_INT8 if size == 1 else BN_INT16 if size == 2 else BN_INT32 if size == 4 else BN_INT64
    return BN_UINT8 if size == 1 else BN_UINT16 if size == 2 else BN_UINT32 if size == 4 else BN_UINT64


cdef inline bint is_bfloat(cnp.ndarray x) except -1:
    """Whether the type is bfloat16, of any library."""
    return cnp.PyTypeNum_ISUSERDEF(cnp.PyArray_TYPE(x)) and x.dtype.type.__name__ == "bfloat16"


cdef inline int kind_of(cnp.ndarray x) except -1:
    """Return the type of x."""
    cdef int kind = cnp.PyArray_TYPE(x)
    if kind == cnp.NPY_FLOAT:
        return BN_FLOAT32
    if kind == cnp.NPY_DOUBLE:
        return BN_FLOAT64
    if kind == cnp.NPY_BOOL:
        return BN_BOOL
    if kind == cnp.NPY_FLOAT16:
        return BN_HALF
    if cnp.PyTypeNum_ISINTEGER(kind):
        return integer_kind(x)
    if is_bfloat(x):
        return BN_BFLOAT
    raise TypeError(f"x: expected floats, bools or integers, got {x.dtype}")
