"""The job that the entry of the exact sums gives to its loops: see tasks.h."""

from libc.stdint cimport int64_t

cdef extern from "tasks.h" nogil:
    enum:
        BN_LIMBS
    ctypedef struct bn_total:
        int64_t* limbs
        int64_t* odd
        Py_ssize_t begin, channels
        int any_odd
        int[2] low
        int[2] size
        unsigned char[208] used
    ctypedef struct bn_exact_job:
        const void* x
        const unsigned char* mask
        int kind
        int runs
        Py_ssize_t outer, channels, inner
        Py_ssize_t pieces, groups
        bn_total* totals
        int failed

ctypedef void (*exact_task_t)(bn_exact_job*, Py_ssize_t) noexcept nogil
