"""The extremes for other entries: `begin` needs the GIL, the functions after it do not."""

cimport numpy as cnp

from bnorm.kernels.cpu.extremes.jobs cimport bn_extremes_job

# Set up a job, with checks. The job only points to the memory of x and weight, which must live as long as the job.
cdef int begin(bn_extremes_job* job, cnp.ndarray x, Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner,
               cnp.ndarray weight, bint skipna) except -1
# Return the bytes of memory that `find` needs.
cdef size_t space(const bn_extremes_job* job) noexcept nogil
# Run the job: the least value of channel c goes to found[c], the greatest to found[step + c].
cdef void find(bn_extremes_job* job, void* memory, double* found, Py_ssize_t step) noexcept nogil
