"""What the entries tell the loops: one job, cut into tasks by its shape alone.

Words that have one meaning in all files of the loops:

    run         the values of a channel at one outer position, which are adjacent in memory; a long run is cut into
                segments
    row         of a Job: `widen` outer positions, or for long runs a segment of each channel's run; of a RowJob: the
                values that share one mean and variance
    column      an index into a row of a Job; a channel has widen * inner columns
    piece       the rows of a task; the channels of a task are a `group` (of a RowJob, the groups of a task are a `cut`)
    tile        channels whose columns are summed side by side, for all rows of a piece, before the next tile
    block       rows that are summed about one center; their sums are merged with those of earlier blocks once
    partial     the result of a piece; the parts of moments are count, mean, m2 and low
    step        STEP rows; a piece of rows has whole steps
    stripe      up to BN_STRIPE rows (stripes.h); their sums down the columns are made in the type of x
    batch       rows whose sums are all made before their maps, so that both find them in the first-level cache
    narrow      of a type that the loops do not compute in; wide means float64
    chunk       narrow values that are converted at a time
    line        values that are mapped at a time; in headers that have no such lines, a cache line
    far         of an input: fetched into the caches before it is read
    sent        of an output: stored past the caches; the job's flag for it is `stream`
"""

from libc.stdint cimport int64_t


cdef enum:
    TILE = 256      # a row of few channels is widened to at most this many columns; a run of more values may be long
    WIDE = 1024     # most columns of a tile: their sums fill half a first-level cache; a run of more values is long
    SCALAR_RUN = 32  # from this length on a run is mapped with the numbers of its channel in registers
    LANES = 64      # partial sums along a long run: four of the widest float32 vectors, so that additions overlap
    BLOCK = 1024    # most rows of a block (in a run: times LANES values); more rows: more rounding, less merging
    FIRST = 32      # rows of the first block of a task: only a few, as finding its center takes an extra pass
    BUFFER = 2048   # values in a batch of short rows: with dy and dx they fit the first-level cache
    FORWARD = 4096  # float32 values in a batch of a forward, which has no dy and dx; half as many float64 values
    PIECE = 1024    # values of gamma and beta that are converted at a time where rows are few and long
    STEP = 8        # rows that are handled together where they are long, and whose sums are made in the type of x
    CHUNK = 1 << 16     # bytes of a chunk after conversion: x and dy, twice that, stay in the second-level cache
    VECTOR = 16     # float32 values of the widest vector
    TOTALS = 16     # first blocks of a long run or piece whose sums of weights are computed once for all channels


# What comes after normalizing.
cdef extern from "formulas.h" nogil:
    ctypedef struct Activation "bn_activation":
        int kind
        double slope
    Activation identity "bn_identity"()
    ctypedef struct bn_rule:
        int mode
        double momentum, halflife, ddof
        bint whole

# The running statistics that a batch moves, and some channels of a batch.
cdef extern from "moving.h" nogil:
    enum:
        BN_MOVED
    ctypedef struct Target "bn_target":
        void* mean
        void* var
        double* low
        double* seen
        double* weight
        double* pairs
        double* last
        int64_t* counters
        double uncounted
        bint single
        bn_rule rule
        bint raises, propagates, replaces
    ctypedef struct Batch "bn_batches":
        double[64] count, mean, m2, low, seen, pairs, last      # [BN_MOVED]
        int64_t[64] moved
    void bn_read_numbers(bint, const void*, Py_ssize_t, Py_ssize_t, double*)


ctypedef struct Job:
    # The view: x[outer][channels][inner], contiguous.
    Py_ssize_t outer, channels, inner
    # Its plan. Short runs: `rows` rows of `widen` outer positions each, `tile` channels at a time; positions that do
    # not fill a row are left over. Long runs: a row is an outer position, or one of `segments` of `segment` values.
    bint runs
    Py_ssize_t segment, segments
    Py_ssize_t widen, rows, tile
    # The grid of tasks: `pieces` of `piece` rows times `groups` of `group` channels.
    Py_ssize_t piece, pieces, group, groups
    bint alone              # the caller runs all tasks
    bint across             # the groups are for the reduction only: tasks of the map that follows get all channels
    # The arrays: reductions read x (and dy), maps write y. Their type: 0 float32, 1 float64.
    bint wide
    int narrow              # the type of x (and dy), converted as it is read; BN_REAL (0): no conversion
    const void* x
    const void* dy
    void* y                 # of the type of x; float64 if x has integers
    const void* weight      # [outer][inner] or NULL
    int weighs              # the type of weights: BN_REAL for float64, BN_FLOAT32, or BN_BOOL or BN_UINT8 for a mask
    double* totals          # sums of weights that tasks share, TOTALS of each piece, or of each long run; or NULL
    int unsound             # a weight is negative or not finite: any task of moments may set it
    double unit             # a power of two near the largest weight, which may not fit the type of x
    bint skipna
    bint exact              # moments of float32 are summed in float64
    Activation act
    bint takes_back         # a reduction stores dy before the activation in y
    bint fused              # both passes over a group of channels before the next
    bint stream, far        # y, or x, is too large for the caches
    bint finite             # look for infinities in x while mapping it
    int infinite            # x has an infinity: any task may set this, none resets it
    # Per channel, float64.
    double* partial         # [pieces][4][channels]: count, mean, m2, low; or sum, dot and two unused
    double* stats           # [5][channels]: mean, var, rstd, scale, shift
    const double* mean      # given statistics, for stats; or NULL
    const double* var
    const double* gamma
    const double* beta
    double eps, count
    double* coefficients    # [3][channels]: a, b, c of the gradient
    const double* counts    # values per channel: one number for each channel, or one for all if counts_step is 0
    Py_ssize_t counts_step
    double* dgamma          # results of a backward, or NULL
    double* dbeta
    # Per channel, in the type that the loops compute in: the high part of the mean, scale, shift (which includes the
    # low part of the mean); a, b, c of the gradient.
    void* high
    void* scale
    void* shift
    void* a
    void* b
    void* c


# Layer, group, instance and RMS normalization: x[outer][groups][channels][inner], statistics over channels * inner.
ctypedef struct RowJob:
    Py_ssize_t outer, groups, channels, inner
    # The grid of tasks: `pieces`, which share `steps` of `step` outer positions evenly, times `cuts` of `group` groups.
    Py_ssize_t step, steps, pieces, group, cuts
    bint wide               # 0 float32, 1 float64
    int narrow              # BN_HALF or BN_BFLOAT: rows are converted to float32 and back; BN_REAL (0): no conversion
    Py_ssize_t chunk        # outer positions that are converted at a time
    char* room              # memory of the thread for converted rows, for sums of x and the residual, or for `before`
    size_t room_size        # its size in bytes; 0: none is needed
    size_t room_before      # bytes of it for `before`, at its end
    int failed              # a thread got no memory: any task may set it
    const void* x
    const void* dy
    void* y
    const void* residual    # rows of h = x + residual are normalized; or NULL
    void* h                 # an output, or NULL
    const void* dh          # the gradient of h, added to dx; or NULL
    const void* weight      # [outer][inner], of each position; or NULL
    int weighs              # what they are, as in Job
    void* near              # memory of the thread for the weights of an outer position, in the loops' type
    int rule                # what a row is divided by: a constant of formulas.h
    Activation act
    Activation before       # dy is taken back through it before its sums, in `room`; then `act` is none
    const void* given       # dy as it was given
    bint stream, far, params
    bint beside             # a backward also fetches while it stores results, not only while it sums
    bint early              # a forward that sends its results fetches while it sums, not while it stores
    bint paired             # a backward of float32 sums two rows at a time with AVX-512
    double eps
    const double* gamma     # [groups * channels] or NULL
    const double* beta
    bint single_gamma       # gamma is float32
    bint single_beta
    Py_ssize_t pieced       # values of rows whose gammas and betas are converted a few at a time; 0: all were before
    void* kept_gamma        # copies for a backward, in the type of x: of the thread with the first row; or NULL
    void* kept_beta
    double* mean            # [outer * groups]
    double* rstd
    double* partial         # [pieces][2][groups * channels]: dgamma, dbeta
    void* scale             # gamma and beta in the type of x, of the thread; if `pieced`, PIECE values of them
    void* shift
    void* columns           # [pieces][2][groups * channels + BN_WIDTH]: parts of dgamma and dbeta, in the type of x


ctypedef void (*task_t)(Job*, Py_ssize_t) noexcept nogil
ctypedef void (*read_t)(int, const void*, Py_ssize_t, Py_ssize_t, void*) noexcept nogil
ctypedef void (*write_t)(int, const void*, Py_ssize_t, void*) noexcept nogil
ctypedef void (*span_t)(Job*, Py_ssize_t, Py_ssize_t) noexcept nogil
ctypedef void (*row_task_t)(RowJob*, Py_ssize_t) noexcept nogil
ctypedef Py_ssize_t (*average_t)(
    void*, void*, bint, const double*, Py_ssize_t, Py_ssize_t, double, double, double
) noexcept nogil
ctypedef Py_ssize_t (*move_t)(const Target*, Py_ssize_t, Py_ssize_t, Batch*, bint) noexcept nogil
ctypedef double (*weight_t)(const void*, int, Py_ssize_t, int*) noexcept nogil
ctypedef double (*largest_t)(const void*, int, Py_ssize_t) noexcept nogil
ctypedef void (*halve_t)(const double*, Py_ssize_t, double*) noexcept nogil

# One build of the loops.
ctypedef struct Loops:
    task_t reduce           # moments, or gradient sums when dy is there: writes partial
    task_t map              # normalize, or the input gradient when dy is there: writes y
    span_t merge_moments    # merges the partials of all pieces into the first, for channels [begin, end)
    span_t merge_sums
    average_t average       # (mean, var, single, stats, n, begin, momentum, count, divisor): moves those of layers
    move_t move             # (target, first, n, batch, test): moves running statistics of up to BN_MOVED channels
    span_t finish_forward   # first partial -> stats
    span_t fold_forward     # stats -> high, scale, shift
    span_t center_sums      # first partial: dot about the high part -> dot about the mean
    span_t finish_backward  # first partial and stats -> coefficients
    span_t fold_backward    # coefficients -> a, b, c
    row_task_t rows         # forward, or backward when dy is there
    row_task_t columns      # gamma and beta -> scale and shift, each of the given number of bytes
    weight_t weight         # sums n weights of a type that is no mask; sets the flag if one is negative
    largest_t largest       # returns the largest of such weights, or 0
    halve_t halve           # (x, n, to): 2^x for x <= 0
    read_t[2] read          # (type, values, first, n, to): converts narrow values to float32 [0] or float64 [1]
    write_t write           # (type, values, n, to): converts float32 to narrow values
