"""The job that the entry of the extremes gives to its loops: see job.h."""

cdef extern from "job.h" nogil:
    enum:
        BN_FAR
    ctypedef struct bn_extremes_job:
        const void* x
        const double* weight
        int kind
        int skipna, far
        Py_ssize_t outer, channels, inner
        Py_ssize_t piece, pieces
        int threads
        double* least
        double* greatest

ctypedef void (*extremes_task_t)(bn_extremes_job*, Py_ssize_t) noexcept nogil
