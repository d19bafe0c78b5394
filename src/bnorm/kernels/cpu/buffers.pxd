cimport numpy as cnp


cdef class Memory:
    cdef char* at           # where the memory begins: a full cache line
    cdef void* owned        # what to free, or NULL
    cdef object loan        # of a buffer, or None


cdef Memory scratch(size_t size)
cdef cnp.ndarray empty(int ndim, const cnp.npy_intp* shape, int type_num, const void* beside=*, bint on_line=*)
