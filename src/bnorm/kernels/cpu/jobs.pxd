"""What the entries tell the loops: one job, cut into tasks by its shape alone.

The words of the loops, each with one meaning in all files:

    run         the values of a channel at one outer position, which lie side by side; long ones are cut into segments
    row         of a Job `widen` outer positions, or a segment of each run; of a RowJob what has statistics of its own
    column      a place in a row of a Job: a channel has widen * inner of them
    piece       the rows of a task; a `group`, the channels of a task (of a RowJob: the groups of a task are a `cut`)
    tile        channels whose columns are summed side by side, all rows of a piece before the next tile
    block       rows summed about one center, whose sums are merged with what was before once
    partial     the result of a piece; the parts of moments are count, mean, m2 and low
    stripe      STRIPE rows, whose sums down the columns are made in the type of x
    batch       rows of which all sums are made before their maps, so that both find them in the first-level cache
    chunk       narrow values, of 8 or 16 bits, that are converted at a time; wide is float64
    line        values mapped at a time; those of the caches are called so, but in the headers, which know no others
    far, sent   fetched into the caches before it is read; stored past the caches (the output is a `stream` then)
"""

cdef enum:
    TILE = 256      # most columns that a row of few channels is widened to; from more values a run may be long
    WIDE = 1024     # most columns of a tile: their sums fill half a first-level cache; from more values a run is long
    LANES = 64      # partial sums along a long run: four of the widest vectors of float32, whose additions overlap
    BLOCK = 1024    # most rows of a block, of a run times LANES: rounding grows with them, what merging costs falls
    FIRST = 32      # rows of the first block of a task, few as its center costs a pass of its own
    BUFFER = 2048   # values of a batch of short rows: with dy and dx they fit the first-level cache
    FORWARD = 4096  # float32 values of a batch of a forward, which has no dy and dx; half as many of float64
    STRIPE = 8      # rows of a stripe: in the type of x so few lose little, and float64 sums cost a few rows' time
    CHUNK = 1 << 16     # bytes of converted values: twice so many, of x and dy, stay in the second-level cache
    VECTOR = 16     # values of the widest vector, of float32


# What comes after normalizing.
cdef extern from "formulas.h" nogil:
    ctypedef struct Activation "bn_activation":
        int kind
        double slope
    Activation identity "bn_identity"()


ctypedef struct Job:
    # The view: x[outer][channels][inner], contiguous.
    Py_ssize_t outer, channels, inner
    # Its plan. Short runs: `rows` rows of `widen` outer positions each, `tile` channels at a time, what
    # does not fill a row left over. Long runs: a row is an outer position, or one of `segments` of `segment` values.
    bint runs
    Py_ssize_t segment, segments
    Py_ssize_t widen, rows, tile
    # The grid of tasks: `pieces` of `piece` rows times `groups` of `group` channels.
    Py_ssize_t piece, pieces, group, groups
    bint across             # groups of a reduction only: the map that follows it has whole rows
    # The arrays: reductions read x (and dy), maps write y. Their type: 0 float32, 1 float64.
    bint wide
    int narrow              # of narrow.h: x (and dy) are converted to that type as they are read, or BN_REAL, 0
    const void* x
    const void* dy
    void* y                 # of the type of x, but of integers float64
    const void* weight      # [outer][inner] or NULL
    int weighs              # what they are, of narrow.h: BN_REAL, float64, or the bytes of a mask, BN_BOOL or BN_UINT8
    int unsound             # one of them is negative or not finite: any task of moments may set it
    double unit             # a power of two near the largest weight, which may not fit the type of x
    bint skipna
    bint exact              # moments of float32 are summed in float64
    Activation act
    bint fused              # both passes over a group of channels before the next
    bint stream, far        # y, or x, is too large for the caches
    bint unaided            # a map of columns reads x without fetching it ahead
    bint finite             # look for infinities in x while mapping it,
    int infinite            # and set this where there is one: any task may, and none takes it back
    # Per channel, float64.
    double* partial         # [pieces][4][channels]: count, mean, m2, low; or sum and dot in the first two
    double* stats           # [5][channels]: mean, var, rstd, scale, shift
    const double* gamma
    const double* beta
    double eps, count
    double* coefficients    # [3][channels]: a, b, c of the gradient
    const double* counts    # values per channel, one for each, or one for all where the step is 0
    Py_ssize_t counts_step
    # Per channel, in the type that the loops compute in: high part of the mean, scale, shift (low part folded in); a,
    # b, c of the gradient.
    void* high
    void* scale
    void* shift
    void* a
    void* b
    void* c


# Rows of one normalization each: x[outer][groups][channels][inner], statistics over channels * inner.
ctypedef struct RowJob:
    Py_ssize_t outer, groups, channels, inner
    # The grid of tasks: `pieces` of about as many of the `steps` times `step` outer positions, times `cuts` of `group`
    # groups.
    Py_ssize_t step, steps, pieces, group, cuts
    bint wide               # 0 float32, 1 float64
    int narrow              # BN_HALF or BN_BFLOAT, or BN_REAL, 0: then the rows are converted, by way of float32,
    Py_ssize_t chunk        # so many outer positions at a time,
    char* room              # in memory of the thread, of as many bytes; sums with a residual are made there too, if any
    size_t room_size
    int failed              # there is none: any task may set it
    const void* x
    const void* dy
    void* y
    const void* residual    # added to x, which makes h: then rows of h are normalized; or NULL
    void* h
    const void* dh          # the gradient of h, added to dx; or NULL
    const void* weight      # [outer][inner], of each position; or NULL
    int weighs              # what they are, as in Job
    void* near              # memory of the thread for those of an outer position, in the type that the loops compute in
    int rule                # what a row is divided by, of formulas.h
    Activation act
    bint stream, far, params
    bint beside             # gradients fetch as results are sent, too
    bint paired             # of float32, and with AVX-512, they sum two rows at a time
    double eps
    const double* gamma     # [groups * channels] or NULL
    const double* beta
    double* mean            # [outer * groups]
    double* rstd
    double* partial         # [pieces][2][groups * channels]: dgamma, dbeta
    void* scale             # gamma and beta in the type of x
    void* shift
    void* columns           # [pieces][2][groups * channels + BN_WIDTH]: parts of dgamma and dbeta, in the type of x


ctypedef void (*task_t)(Job*, Py_ssize_t) noexcept nogil
ctypedef void (*read_t)(int, const void*, Py_ssize_t, Py_ssize_t, void*) noexcept nogil
ctypedef void (*write_t)(int, const void*, Py_ssize_t, void*) noexcept nogil
ctypedef void (*span_t)(Job*, Py_ssize_t, Py_ssize_t) noexcept nogil
ctypedef void (*row_task_t)(RowJob*, Py_ssize_t) noexcept nogil
ctypedef double (*weight_t)(const double*, Py_ssize_t, int*) noexcept nogil

# One build of the loops.
ctypedef struct Loops:
    task_t reduce           # moments, or gradient sums when dy is there: writes partial
    task_t map              # normalize, or the input gradient when dy is there: writes y
    span_t merge_moments    # partials of all pieces into the first, for channels [begin, end)
    span_t merge_sums
    span_t finish_forward   # first partial -> stats
    span_t fold_forward     # stats -> high, scale, shift
    span_t center_sums      # first partial: dot about the high part -> dot about the mean
    span_t finish_backward  # first partial and stats -> coefficients
    span_t fold_backward    # coefficients -> a, b, c
    row_task_t rows         # forward, or backward when dy is there
    row_task_t columns      # gamma and beta -> scale and shift, of so many bytes each
    weight_t weight         # the sum of so many weights; the flag is set where one is negative
    read_t[2] read          # narrow values from a place on, so many, into an array of float32, or of float64
    write_t write           # so many float32 into narrow values
