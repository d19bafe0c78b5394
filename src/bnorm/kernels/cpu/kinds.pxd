"""The numbers of the types of arrays, from kinds.h."""

cdef extern from "kinds.h" nogil:
    enum:
        BN_REAL
        BN_HALF
        BN_BFLOAT
        BN_BOOL
        BN_UINT8
        BN_INT8
        BN_UINT16
        BN_INT16
        BN_FLOAT32
        BN_FLOAT64
        BN_INT32
        BN_UINT32
        BN_INT64
        BN_UINT64
