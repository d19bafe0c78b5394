ctypedef void (*part_t)(void* job, Py_ssize_t i) noexcept nogil

cdef int threads_for(Py_ssize_t values, Py_ssize_t tasks) noexcept nogil
cdef void share(part_t part, void* job, int threads) noexcept nogil
