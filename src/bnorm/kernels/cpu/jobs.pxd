"""What the entries tell the loops: one job, cut into tasks by its shape alone."""

cdef enum:
    TILE = 256      # columns that one row of few channels is widened to; from more values a run may be long
    WIDE = 1024     # most columns whose sums are made together; from more values a run is long
    LANES = 64      # partial sums along one long run, the same at every vector width
    BLOCK = 1024    # most rows between two merges of the running moments; BLOCK * LANES values of a long run
    FIRST = 32      # rows of the first block of a task; the next blocks have three times what was before, BLOCK at most
    BUFFER = 2048   # values of short rows that are worked on together
    STRIPE = 8      # rows summed in the type of x before the sum is added in float64


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
    const double* weight    # [outer][inner] or NULL
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
    Py_ssize_t together     # so many outer positions at a time,
    char* room              # in memory of the thread, of as many bytes
    size_t room_size
    int failed              # there is none: any task may set it
    const void* x
    const void* dy
    void* y
    int rule                # what a row is divided by, of formulas.h
    Activation act
    bint stream, far, params
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

# One build of the loops; index 0 is float32, 1 float64.
ctypedef struct Loops:
    task_t[2] reduce        # moments, or gradient sums when dy is there: writes partial
    task_t[2] map           # normalize, or the input gradient when dy is there: writes y
    span_t merge_moments    # partials of all pieces into the first, for channels [begin, end)
    span_t merge_sums
    span_t finish_forward   # first partial -> stats
    span_t[2] fold_forward  # stats -> high, scale, shift
    span_t[2] center_sums   # first partial: dot about the high part -> dot about the mean
    span_t finish_backward  # first partial and stats -> coefficients
    span_t[2] fold_backward  # coefficients -> a, b, c
    row_task_t[2] rows      # forward, or backward when dy is there
    row_task_t narrow_rows
    read_t[2] read          # narrow values from a place on, so many, into an array of the type of the loops
    write_t write           # so many float32 into narrow values
