"""The kernels on the CPU: arrays in, arrays out, one call into compiled code each.

An entry divides its work into tasks by shape alone (plan.pxi), gets the number of threads from threads.pyx, and passes
the tasks to the loops of the SIMD build in use. bnorm.functional checks what arguments mean; entries refuse only what
would crash (guards.pxi). The signatures are those of bnorm.kernels.reference, where each entry is a few lines of NumPy.
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from cython.parallel cimport prange
from libc.math cimport INFINITY, NAN, frexp, ldexp
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from bnorm.kernels.cpu.buffers cimport Memory, empty, scratch
from bnorm.kernels.cpu.dtypes cimport integer_kind, is_bfloat
from bnorm.kernels.cpu.extremes.entries cimport begin as begin_extremes
from bnorm.kernels.cpu.extremes.entries cimport find as find_extremes
from bnorm.kernels.cpu.extremes.entries cimport space as space_of_extremes
from bnorm.kernels.cpu.extremes.jobs cimport bn_extremes_job
from bnorm.kernels.cpu.jobs cimport (
    BUFFER,
    CHUNK,
    FIRST,
    FORWARD,
    LANES,
    PIECE,
    SCALAR_RUN,
    STEP,
    TILE,
    TOTALS,
    VECTOR,
    WIDE,
    BN_MOVED,
    Activation,
    Batch,
    Job,
    Loops,
    RowJob,
    Target,
    bn_read_numbers,
    identity,
    task_t,
)
from bnorm.kernels.cpu.kinds cimport BN_BFLOAT, BN_BOOL, BN_FLOAT32, BN_HALF, BN_REAL
from bnorm.kernels.cpu.threads cimport share, threads_for

from bnorm.kernels.activation import IDENTITY

cdef extern from "formulas.h" nogil:
    enum:
        BN_IDENTITY
        BN_SILU
        BN_AVERAGE
        BN_POOL
        BN_FADE
    double bn_mean_weight(double, double, int)
    void bn_merge(double*, double*, double*, double*, double, double, double, double)
    bint bn_constant(double, double)
    double bn_rstd(double, double, double, double)
    bint bn_finite(double)
    void bn_invert(double*, double*, double*, bint)
    double bn_plain(double)
    double bn_squares(double, double)

cdef extern from "lanes.h" nogil:
    enum:
        BN_BATCH
        BN_BEYOND
        BN_WIDTH

cdef extern from "stripes.h" nogil:
    enum:
        BN_STRIPE

cdef extern from "weights.h" nogil:
    cnp.int64_t bn_sum_bytes(int, const void*, Py_ssize_t)

cdef extern from "streams.h" nogil:
    enum:
        BN_LINE
        BN_STREAMS
    void bn_fence()
    void bn_fetch_line(const char*)
    void bn_send_line(void*, const void*)

cdef extern from "narrow.h" nogil:
    size_t bn_size_of(int)

cdef extern from "memory.h" nogil:
    int bn_processor_level()
    int bn_far_third_level()
    int bn_is_amd()
    int bn_is_zen_5()
    double bn_take_over(double*)
    void bn_set(int*)

cdef extern from "nearby.h" nogil:
    enum:
        BN_PAST
        BN_THROUGH
        BN_FOUND
    ctypedef struct bn_habit:
        int through, calls, excess, wait, most, pretended, near
    bn_habit bn_habits
    int bn_caches(const void*, const void*, size_t, const void*, size_t)
    bint bn_are_near(const void*, const void*, size_t)

cdef extern from "touched.h" nogil:
    ctypedef struct bn_watch:
        size_t watched
        int calls, others, alone, next, pretended
    bn_watch bn_watches
    bint bn_is_touched(const void*, size_t, int)

cnp.import_array()

cdef Loops* loops = NULL


def use(capsule):
    """Use the loops of this SIMD build from now on."""
    global loops
    loops = <Loops*>PyCapsule_GetPointer(capsule, "bnorm.loops")


def processor_level():
    """Return the widest SIMD level of this processor: 0 baseline, 1 AVX2, 2 AVX-512."""
    return bn_processor_level()


include "guards.pxi"
include "plan.pxi"
include "arrays.pxi"
include "merging.pxi"
include "statistics.pxi"
include "weights.pxi"
include "moments.pxi"
include "channels.pxi"
include "rows.pxi"
include "online.pxi"
include "copies.pxi"
