# The loops of the extremes: one source for every SIMD build, like loops/table.pyx.

from cpython.pycapsule cimport PyCapsule_New

from bnorm.kernels.cpu.extremes.jobs cimport bn_extremes_job

cdef extern from "counted.h" nogil:
    void bn_extremes_task(bn_extremes_job*, Py_ssize_t)

task = PyCapsule_New(<void*>&bn_extremes_task, "bnorm.extremes", NULL)
