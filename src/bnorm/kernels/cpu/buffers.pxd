cimport numpy as cnp


cdef cnp.ndarray empty(int ndim, const cnp.npy_intp* shape, int type_num, const void* beside=*)
