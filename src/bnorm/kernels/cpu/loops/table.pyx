# The loops of the CPU kernels. setup.py compiles this source once for each SIMD level, as a module of its own.
#
# All loops are serial and run without the GIL; entries.pyx decides which thread runs which task. The compiler
# vectorizes loops over columns (or over the LANES of a long run). That never changes the order in which the values of a
# channel are added: a few rows as a tree in the type of x, the trees in float64, and blocks of rows by differences of
# means. So every build gives the same bits. The parts:
#
#   channel_columns.pxi    blocks, channels and columns: copy numbers of channels to columns, add up sums of columns
#   channel_sums.pxi       sums of the columns of a block, some rows side by side
#   channel_moments.pxi    count, mean, m2 and low of a block: the fast way, and the careful way in float64
#   channel_weights.pxi    sums of columns whose positions have weights
#   channel_weighted.pxi   moments of a block with weights
#   channel_grads.pxi      sum dy and sum dy (x - mean) of a block
#   channel_maps.pxi       the maps: y or dx, a line or a plane at a time
#   channel_narrow.pxi     integers and values of half precision, which are converted to float32 or float64
#   channel_tasks.pxi      the tasks of a Job: their blocks in order; the formulas of channels between the two passes
#   row_short.pxi          sums of a row or run of few values
#   row_sums.pxi           gradient sums of rows with a gamma for each value
#   row_maps.pxi           the maps of rows
#   row_gradients.pxi      dx of rows, and the gradients of their parameters
#   row_weighted.pxi       rows whose positions have weights
#   row_residual.pxi       a residual that is added to rows before they are normalized, and a gradient added to dx
#   row_tasks.pxi          the tasks of a RowJob: layer, group, instance and RMS norm
#   row_narrow.pxi         the same for float16 and bfloat16, some rows at a time by way of float32

from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport INFINITY, fabs
from libc.stdint cimport PTRDIFF_MAX, int64_t
from libc.string cimport memcpy, memmove, memset

from bnorm.kernels.cpu.jobs cimport (
    BLOCK,
    BN_MOVED,
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
    Activation,
    Batch,
    Job,
    Loops,
    RowJob,
    Target,
    identity,
)
from bnorm.kernels.cpu.kinds cimport BN_BOOL, BN_FLOAT32, BN_HALF, BN_INT16, BN_REAL

cdef extern from "formulas.h" nogil:
    enum:
        BN_IDENTITY
        BN_SILU
        BN_MEAN_SQUARE
    void by_each "BN_BY_EACH"(...)
    void by_kind "BN_BY_KIND"(...)
    void by_straight "BN_BY_STRAIGHT"(...)
    double bn_exp2(double)
    float bn_act_pull_float(Activation, float, float)
    double bn_act_pull_double(Activation, double, double)
    void bn_merge(double*, double*, double*, double*, double, double, double, double)
    void bn_add_block(double*, double*, double*, double*, double, double, double, double, double)
    double bn_rstd(double, double, double, double)
    double bn_fold(double, double, double, double)
    bint bn_finite(double)
    double bn_plain(double)
    double bn_bounded(double)
    double bn_grad_b(double, double, double)
    double bn_grad_c(double, double)

# `inline` must be an order here and not a hint: a loop is vectorized only if every function that it calls is inlined,
# and only then do branches on arguments that are constants in the caller disappear.
cdef extern from *:
    """
    #include "lanes.h"
    #include "rows.h"
    #undef CYTHON_INLINE
    #define CYTHON_INLINE BN_ALWAYS
    """

cdef extern from "streams.h" nogil:
    enum:
        BN_AHEAD
        BN_LINE
    ctypedef struct bn_ahead:
        const char* at
        Py_ssize_t apart, third, reach
        size_t span, left
    ctypedef struct bn_output:
        pass
    void bn_stand(bn_ahead*)
    void bn_walk(bn_ahead*, const void*, const void*, size_t, size_t)
    void bn_tiles(bn_ahead*, size_t, size_t)
    void bn_advance(bn_ahead*, size_t)
    void bn_fetch(bn_ahead*, size_t)
    void bn_fetch_on(bn_ahead*, const void*, const void*, size_t, bint)
    void bn_fetch_with(const bn_ahead*, const void*, const void*, size_t)
    void bn_reach(bn_ahead*, Py_ssize_t, int)
    void bn_open(bn_output*)
    void* bn_room(bn_output*, void*, size_t, bn_ahead*)
    void bn_close(bn_output*, bn_ahead*)
    void bn_fence()

cdef extern from "fetch.h" nogil:
    void bn_fetch_line(const char*)

cdef extern from "edges.h" nogil:
    ctypedef struct bn_edge:
        pass
    void bn_open_edge(bn_edge*, bn_ahead*)
    void bn_close_edge(bn_edge*)

cdef extern from "weighted.h" nogil:
    double bn_near_one(double)
    void bn_weighted_squares(...)
    void bn_weighted_products(...)

# (...) stands for a macro that chooses the function for the type of its arrays; the C compiler checks the arguments.
cdef extern from "lanes.h" nogil:
    ctypedef struct Numbers "bn_numbers":
        const void* h
        const void* scale
        const void* shift
        const void* gamma
        const void* beta
        const void* a
        const void* b
        const void* c
        const void* gain
        const void* w
        const void* dh
    Numbers no_numbers "bn_no_numbers"()
    double BN_LEAST_SQUARE
    double BN_LEAST_PRODUCT
    double bn_whole(const double*)
    void bn_row_statistics(Py_ssize_t, double, double, int, const double*, const double*, const double*,
                           double*, double*)
    void bn_wholes(Py_ssize_t, const double*, double*)
    enum:
        BN_SQUARES
        BN_PAIRS
        BN_SCALED
        BN_WEIGHED_SQUARES
        BN_WEIGHED_PAIRS
        BN_WIDTH
        BN_BATCH
    void bn_row_sums(...)
    void bn_row_numbers(...)
    void bn_row_slopes(...)
    void bn_row_sum(...)
    double bn_near_mean(...)
    void bn_row_squares(...)
    void bn_short_sums(...)
    void bn_careful_sums(...)
    void bn_sums(...)
    void bn_one_nan(...)
    void bn_map_rows(...)
    void bn_gradient_rows(...)
    double bn_minus_one(const void*)
    double bn_less(double, double, double)
    void bn_add_blocks(Py_ssize_t, double, const double*, const double*, const double*,
                       double*, double*, double*, double*)

cdef extern from "lines.h" nogil:
    void bn_map_columns(...)
    void bn_gradient_columns(...)
    void bn_weighted_run(...)
    bint bn_any_infinite(...)

cdef extern from "narrow_maps.h" nogil:
    enum:
        BN_TWO
        BN_FUSES
    void bn_narrow_runs(Activation, int, bint, Py_ssize_t, Py_ssize_t, const void*, const void*, void*, const Numbers*)
    void bn_narrow_lines(
        Activation, int, Py_ssize_t, Py_ssize_t, const void*, const void*, void*, const Numbers*, Py_ssize_t)

cdef extern from "planes.h" nogil:
    void bn_plane_sums(...)

cdef extern from "runs.h" nogil:
    void bn_run_sums(...)
    void bn_each(...)
    void bn_gather_runs(Py_ssize_t, Py_ssize_t, const double*, double*)
    void bn_run_totals(...)

cdef extern from "stripes.h" nogil:
    enum:
        BN_LINED
        BN_LONG
        BN_NARROW
        BN_SHORT
        BN_STRIPE
    void bn_stripe_sums(...)
    void bn_long_sums(...)

cdef extern from "moving.h" nogil:
    Py_ssize_t bn_move_channels(const Target*, Py_ssize_t, Py_ssize_t, Batch*, bint)

cdef extern from "memory.h" nogil:
    void bn_set(int*)
    double bn_shared(const double*)
    void bn_share_number(double*, double)

cdef extern from "doubles.h" nogil:
    enum:
        BN_PERMUTES
        BN_SIDE
    Py_ssize_t bn_widened_columns(const float*, Py_ssize_t, Py_ssize_t, const double*, double*, double*)
    Py_ssize_t bn_weighted_four(
        const float*, Py_ssize_t, const Py_ssize_t*, const double*, Py_ssize_t, const double*, bint, double*, double*)
    Py_ssize_t bn_widened_four(
        int, const float*, Py_ssize_t, Py_ssize_t, const double*, double*, double*, double*, double*)

cdef extern from "weights.h" nogil:
    enum:
        BN_ALONG
        BN_BOOLS
        BN_SHARED
        BN_SHARED_FLOATS
        BN_SHARED_BYTES
    void bn_read_weights(int, const void*, Py_ssize_t, Py_ssize_t, double*)
    void bn_spread_order(Py_ssize_t, Py_ssize_t, int64_t*)
    void bn_spread(const double*, Py_ssize_t, Py_ssize_t, double*)
    void bn_spread_runs(const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t, double*)
    void bn_spread_byte_order(Py_ssize_t, unsigned char*)
    void bn_spread_bytes(const unsigned char*, Py_ssize_t, Py_ssize_t, const unsigned char*, unsigned char*)
    int64_t bn_sum_bytes(int, const void*, Py_ssize_t)
    Py_ssize_t bn_weighted_columns(...)
    void bn_weighted_planes(...)

cdef extern from "narrow.h" nogil:
    enum:
        BN_STRIP
    size_t bn_size_of(int)
    void bn_read_float(int, const void*, Py_ssize_t, Py_ssize_t, float*)
    void bn_read_double(int, const void*, Py_ssize_t, Py_ssize_t, double*)
    void bn_write_float(int, const float*, Py_ssize_t, void*)
    void bn_integer_sums(int, const void*, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, int64_t*, int64_t*)
    ctypedef struct bn_square_sum:
        int64_t high, low
    int64_t bn_center(int64_t, int64_t)
    void bn_add_squares(bn_square_sum*, int64_t, int64_t, int64_t, int64_t)
    void bn_integer_moments(int, int64_t, int64_t, const bn_square_sum*, int64_t, double*, Py_ssize_t)

ctypedef fused real:
    float
    double

ctypedef fused term:    # the type in which sums are computed
    float
    double

include "channel_columns.pxi"
include "channel_sums.pxi"
include "channel_moments.pxi"
include "channel_weights.pxi"
include "channel_weighted.pxi"
include "channel_grads.pxi"
include "channel_maps.pxi"
include "channel_narrow.pxi"
include "channel_tasks.pxi"
include "row_short.pxi"
include "row_sums.pxi"
include "row_residual.pxi"
include "row_maps.pxi"
include "row_before.pxi"
include "row_gradients.pxi"
include "row_weighted.pxi"
include "row_tasks.pxi"
include "row_narrow.pxi"

cdef Loops table

table.reduce = task_of_reduction
table.map = task_of_map
table.merge_moments = merge_moments
table.merge_sums = merge_sums
table.average = average
table.move = bn_move_channels
table.finish_forward = finish_forward
table.fold_forward = fold_forward
table.center_sums = center_sums
table.finish_backward = finish_backward
table.fold_backward = fold_backward
table.read[0] = read_floats
table.read[1] = read_doubles
table.write = write_floats
table.rows = task_of_rows
table.columns = columns_of_rows
table.weight = weight_of
table.largest = largest_weight
table.halve = halve

loops = PyCapsule_New(&table, "bnorm.loops", NULL)
