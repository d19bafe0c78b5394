# The loops of the exact sums: one source for every SIMD build, like loops/table.pyx.

from cpython.pycapsule cimport PyCapsule_New

from bnorm.kernels.cpu.exact.jobs cimport bn_exact_job

cdef extern from "tasks.h" nogil:
    void bn_exact_task(bn_exact_job*, Py_ssize_t)

task = PyCapsule_New(<void*>&bn_exact_task, "bnorm.exact", NULL)
