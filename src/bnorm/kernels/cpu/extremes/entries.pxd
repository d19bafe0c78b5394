"""The extremes for other entries: what needs the GIL first, then what does not."""

cimport numpy as cnp

from bnorm.kernels.cpu.extremes.jobs cimport bn_extremes_job

# Describe what is to be found. Of x and weight, which must live as long as the job, only the memory is kept.
cdef int begin(bn_extremes_job* job, cnp.ndarray x, Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner,
               cnp.ndarray weight, bint skipna) except -1
# Bytes of memory that it takes.
cdef size_t space(const bn_extremes_job* job) noexcept nogil
# Find it: the least value of channel c goes to found[c], the greatest to found[step + c].
cdef void find(bn_extremes_job* job, void* memory, double* found, Py_ssize_t step) noexcept nogil
