cdef int threads_for(Py_ssize_t values, Py_ssize_t tasks) noexcept nogil
