# Divides a shape into tasks, and runs the tasks on threads. The pieces of rows, which are summed separately and then
# merged, do not depend on the number of threads, so neither do the bits of a result. Which columns share a task may
# depend on it, as the sums of a column do not depend on other columns.
#
# Uses nothing of its siblings.
# Gives FUSE, ROW, bypasses, crosses, fits, is_brief, is_far, is_touched, kept, near, parts, plan, plan_before,
# plan_rows, plan_sums, rounded_up, run, run_map, scattered, share_weights, sizes, threads_of, touched, weighed.

cdef enum:
    TASK = 16384            # values that make a task worth its overhead: they take a few microseconds
    MAX_TASKS = 128         # enough to keep many threads evenly busy
    WORTH = 4               # with more tasks, two threads are faster than one although their sums must be merged
    BRIEF = 1 << 13         # a job on fewer values keeps the GIL: other threads could do little in its time
    FEW_SUMS = 4            # this many pieces may be of one step, although their sums cost as much as two rows
    MIN_ROWS = 512          # least rows in a piece of columns, unless there are two: starting and merging it takes time
    FEW = 16                # with more pieces than this, pieces grow to four times MIN_ROWS before more are made
    FEW_ROWS = 32           # the map of so few rows takes about as long as to make the numbers of its channels
    FETCHED = 64            # values that are mapped while a core gets the numbers of one channel from another core
    SHARERS = 4             # tasks of a thread when the channels of a task share weights
    LEFT = 8                # widening leaves at least this many rows: as many are summed side by side
    FULL = 64               # in a row of this many columns, the rest that does not fill a vector costs little
    MANY_TILES = 8          # this many tiles keep the threads busy without being cut into pieces
    SLICE = 128             # least columns of a thread, if threads sum different columns of the same rows
    FUSE = 1 << 20          # bytes of channels that stay in the second-level cache from one pass over them to the next
    BEFORE = 1 << 19        # bytes of rows of dy that are taken back through an activation at a time
    SUMMED = 1 << 17        # bytes of a row of sums that stays in the second-level cache until it is normalized
    ROW = 64                # values that take as long as the statistics of a row
    SCATTERED = 9 << 20     # bytes of all arrays, for each thread, from which a group of channels is fetched ahead
    SPREAD = 1 << 26        # larger inputs of images are fetched ahead wherever they are
    LINED = 256             # values of a row of float32 from which that pays (`crosses`)
    LONG_RUN = 1 << 13      # values of a run that AMD's processors before Zen 5 read faster if nothing is fetched ahead


# From how many bytes an array is large, for each purpose. benchmarks/NOTES.md has the measurements.
ctypedef struct Sizes:
    Py_ssize_t stream      # an output that bypasses the caches
    Py_ssize_t stream_one  # stream, if one thread reads x, or if several read it twice
    Py_ssize_t stream_two  # stream, if x and dy are read, if one thread reads x twice, and for rows
    Py_ssize_t far         # an input of channels that is assumed to be in memory, and is prefetched
    Py_ssize_t far_maps    # far, for forwards of rows
    Py_ssize_t far_two     # far, if x and dy are read
    Py_ssize_t far_alone   # far, if x and dy are read by one thread
    Py_ssize_t far_rows    # far, for gradients of rows: x, dy and dx in turn, which no processor prefetches by itself
    Py_ssize_t looked      # an output, or images, for which a call looks into the caches
    Py_ssize_t beside      # gradients of rows that are also fetched while results are stored, not only while summing
    Py_ssize_t early       # rows that are fetched while summing, not while results are stored past the caches
    Py_ssize_t paired      # gradients of float32 rows that are summed two rows at a time, by full cache lines (AVX-512)
    Py_ssize_t touched     # a larger input is shared by threads although the program touches it between calls


cdef bint before_zen_5 = bn_is_amd() and not bn_is_zen_5()
cdef Py_ssize_t never = <Py_ssize_t>1 << 60
# Where the third-level cache is much faster than memory: measured on AMD's EPYCs, and used from Zen 5 on.
cdef Sizes near_level = Sizes(stream=16 << 20, stream_one=10 << 20, stream_two=15 << 19,
                              far=9 << 20, far_maps=14 << 20, far_two=9 << 20, far_alone=9 << 19,
                              far_rows=3 << 20, looked=never, beside=1 if bn_is_zen_5() else never,
                              early=never, paired=1 if bn_is_zen_5() else never, touched=1)
# On AMD's processors before Zen 5, where neighbors use most of that cache.
cdef Sizes zen_4 = Sizes(stream=16 << 20, stream_one=10 << 20, stream_two=9 << 19,
                         far=4 << 20, far_maps=3 << 20, far_two=4 << 20, far_alone=4 << 20,
                         far_rows=3 << 19, looked=never, beside=never, early=1, paired=never, touched=1 << 20)
# Where it is not: twice the size of the second-level cache, as what does not fit there might as well be in memory.
cdef Sizes far_level = Sizes(stream=4 << 20, stream_one=4 << 20, stream_two=4 << 20,
                             far=4 << 20, far_maps=4 << 20, far_two=4 << 20, far_alone=4 << 20,
                             far_rows=4 << 20, looked=1 << 20, beside=never, early=never, paired=never, touched=1)
cdef bint far_third_level = bn_far_third_level()
cdef Sizes sizes = far_level if far_third_level else zen_4 if before_zen_5 else near_level


def use_sizes(**changed):
    """Change some of the Sizes, for tests and `bnorm tune`. Return the old ones. No bit of a result depends on them."""
    global sizes
    before = sizes
    sizes = {**before, **changed}
    return before


def use_habit(**changed):
    """Change how this thread treats the caches when arrays are large, see nearby.h. For tests, and for `bnorm tune`,
    which does without. Return what it was."""
    global bn_habits
    before = bn_habits
    bn_habits = {**before, **changed}
    return before


def use_watch(**changed):
    """Change what this thread knows of arrays that a program touches, see touched.h. For tests. Return what it was."""
    global bn_watches
    before = bn_watches
    bn_watches = {**before, **changed}
    return before


cdef inline bint bypasses(Py_ssize_t n_bytes, Py_ssize_t least) noexcept nogil:
    """Whether an output of n_bytes bypasses the caches: if it has at least `least`, and the build has such stores."""
    return BN_STREAMS and n_bytes >= least


cdef inline int kept(bint stream, const void* x, const void* dy, Py_ssize_t x_bytes, const void* y,
                     Py_ssize_t y_bytes) noexcept nogil:
    """Return how a call treats the caches, whose output y bypasses them (`stream`) if only its size counts."""
    if stream and sizes.looked <= y_bytes <= bn_habits.most:
        return bn_caches(x, dy, x_bytes, y, y_bytes)
    return BN_PAST if stream else BN_THROUGH


cdef inline bint near(const Job* job, Py_ssize_t n_bytes) noexcept nogil:
    """Whether images, x and dy of n_bytes each, are found in the caches: then they need not be fetched ahead."""
    return job.inner > 1 and bn_habits.most > 0 and sizes.looked <= n_bytes <= SPREAD \
        and bn_are_near(job.x, job.dy, n_bytes)


cdef inline bint crosses(const RowJob* job) noexcept nogil:
    """Whether the rows are whole cache lines long, but begin within lines, as in NumPy's large arrays. To read full
    lines pays then on AMD's processors before Zen 5 too."""
    return before_zen_5 and job.channels >= LINED and job.channels % VECTOR == 0 and <size_t>job.x % BN_LINE != 0


cdef inline bint touched(const void* x, Py_ssize_t n_bytes, int threads) noexcept nogil:
    """Whether the caller handles a call on x alone that may have several threads, see touched.h."""
    return 2048 <= n_bytes <= sizes.touched and bn_is_touched(x, n_bytes, threads)


cdef inline bint is_far(const Job* job, Py_ssize_t n_bytes, Py_ssize_t least) noexcept nogil:
    """Whether an input of n_bytes is fetched ahead: if it has at least `least`, unless the processor follows its long
    runs better by itself: not those of narrow types, nor of float32 summed with weights (`weigh`)."""
    return n_bytes >= least and not (before_zen_5 and job.inner >= LONG_RUN and job.narrow == BN_REAL)


cdef Py_ssize_t parts(Py_ssize_t whole, Py_ssize_t part) noexcept nogil:
    """Return how many parts of the size `part` cover `whole`; at least one."""
    return max(<Py_ssize_t>1, (whole + part - 1) // part)


cdef Py_ssize_t rounded_up(Py_ssize_t n, Py_ssize_t unit) noexcept nogil:
    """Return n rounded up to a multiple of `unit`."""
    return (n + unit - 1) // unit * unit


cdef Py_ssize_t evenly(Py_ssize_t values) noexcept nogil:
    """Return the number of tasks for this many values: a power of two, so that two threads get equal shares."""
    cdef Py_ssize_t tasks = 1
    while tasks < MAX_TASKS and tasks * TASK < values:
        tasks *= 2
    return tasks


cdef Py_ssize_t power_of_two(Py_ssize_t most) noexcept nogil:
    """Return the largest power of two that is not above `most`; at least 1."""
    cdef Py_ssize_t n = 1
    while 2 * n <= most:
        n *= 2
    return n


cdef Py_ssize_t widening(Py_ssize_t outer, Py_ssize_t columns) noexcept nogil:
    """Return how many outer positions make one row, so that a row fills full vectors."""
    cdef Py_ssize_t widen = 1, width = columns
    while 0 < 2 * width <= TILE and outer // (2 * widen) >= LEFT and (width < FULL or width % VECTOR != 0):
        widen *= 2
        width *= 2
    return widen


cdef void plan(Job* job, Py_ssize_t itemsize, bint reduces) noexcept nogil:
    """Cut the view into pieces of rows and groups of channels; for a map alone, into pieces of contiguous memory."""
    cdef Py_ssize_t C = max(<Py_ssize_t>1, job.channels), inner = max(<Py_ssize_t>1, job.inner)
    cdef Py_ssize_t tasks = evenly(job.outer * C * inner)
    cdef Py_ssize_t units, pieces, groups, across
    # If there are enough outer positions for their number of columns, rows follow one another along the outer axis, and
    # each inner position is a column. Otherwise each run of a channel is processed separately.
    job.runs = inner > WIDE or (inner > TILE and job.outer < FIRST)
    job.widen = 1 if job.runs else widening(job.outer, C * inner)
    job.rows = job.outer // job.widen
    job.tile = C if job.widen > 1 else min(C, max(<Py_ssize_t>1, WIDE // inner))
    units = parts(C, job.tile)
    # A map whose columns need numbers that are made for a group of channels cuts these as a reduction does: the numbers
    # then serve for many rows. So does a map of few rows: to make the numbers of the channels takes as long.
    if not reduces and inner == 1 and units > 1 and job.rows <= FEW_ROWS:
        pieces = 1
        groups = min(units, tasks)
    elif not reduces and (inner == 1 or inner >= SCALAR_RUN or units == 1):
        pieces = max(<Py_ssize_t>1, min(job.rows, tasks))
        groups = min(units, tasks // pieces)
    elif inner == 1 or job.widen > 1:
        pieces = max(min(job.rows // MIN_ROWS, <Py_ssize_t>FEW), job.rows // (4 * MIN_ROWS))
        if pieces == 1 and tasks > WORTH:
            pieces = 2
        pieces = power_of_two(min(pieces, tasks))
        groups = min(units, tasks // pieces)
        across = min(parts(threads_for(job.outer * C, tasks), pieces), C // SLICE)
        # Not if values are converted: the length of a row decides how many rows are converted at a time, and that
        # decides how they are summed.
        if across > groups and job.widen == 1 and job.narrow == BN_REAL:
            job.across = True
            job.tile = rounded_up(parts(C, across), VECTOR)
            groups = units = parts(C, job.tile)
    else:
        groups = min(units, tasks)
        pieces = max(<Py_ssize_t>1, tasks // groups)
        # A tile of channels that fits in the cache is not cut: both passes go over it before the next tile.
        if units >= MANY_TILES and job.outer * job.tile * inner * itemsize <= FUSE:
            pieces = 1
    job.segments = 1
    job.segment = inner
    if job.runs and job.outer < pieces:     # few and long: a Fortran-ordered table is one run per column
        job.segment = parts(inner, min(pieces // max(<Py_ssize_t>1, job.outer), parts(inner, TASK)))
        job.segment = rounded_up(job.segment, LANES)
        job.segments = parts(inner, job.segment)
        job.rows = job.outer * job.segments
    pieces = max(<Py_ssize_t>1, min(job.rows, pieces))
    job.group = parts(units, groups) * job.tile
    job.groups = parts(C, job.group)
    job.piece = rounded_up(parts(job.rows, pieces), STEP if inner == 1 else 1)
    job.pieces = parts(job.rows, job.piece)


cdef inline Py_ssize_t weighed(Py_ssize_t values, bint wide, const void* dy) noexcept nogil:
    """Return the number of float32 values whose forward takes about as long."""
    return values * (1 + wide) * (1 if dy == NULL else 2)


cdef inline int threads_of(const Job* job) noexcept nogil:
    """Return the number of threads that share the tasks of a job."""
    if job.alone:
        return 1
    cdef Py_ssize_t values = weighed(job.outer * job.channels * job.inner, job.wide, job.dy)
    # With given statistics, other threads soon wait for the numbers of the channels, which the first thread has made.
    if job.mean != NULL and job.pieces > 1:
        values -= job.channels * FETCHED
    return threads_for(values, job.pieces * job.groups)


cdef inline bint is_touched(const Job* job, Py_ssize_t n_bytes) noexcept nogil:
    """`touched` for a job on x of n_bytes. Not if threads share the columns of rows: what lies beside a thread's part
    of a row would be fetched with it."""
    return not job.across and touched(job.x, n_bytes, threads_of(job))


cdef void share_weights(Job* job, Py_ssize_t most) noexcept nogil:
    """Put up to `most` channels into a task if inner > 1, so that the task sums their common weights only once."""
    cdef Py_ssize_t groups = parts(SHARERS * threads_of(job), job.pieces)
    most = min(most, parts(job.channels, groups)) // job.tile * job.tile
    if job.inner > 1 and most > job.group:
        job.group = most
        job.groups = parts(job.channels, job.group)


cdef inline bint is_brief(const Job* job) noexcept nogil:
    """Whether the job is so short that it should keep the GIL: to release it and to get it back takes 60 ns."""
    return job.outer * job.channels * job.inner < BRIEF


cdef bint fits(const Job* job, Py_ssize_t itemsize) noexcept nogil:
    """Whether a group of channels is one task whose data stays in the cache between its passes."""
    return job.pieces == 1 and not job.across and job.outer * job.group * job.inner * itemsize <= FUSE


cdef bint scattered(const Job* job, size_t n_bytes) noexcept nogil:
    """Whether both passes over a group of channels find their values outside the second-level cache, in pieces far
    apart that no processor prefetches by itself. n_bytes: the size of all arrays.
    """
    return n_bytes >= <size_t>threads_of(job) * SCATTERED


cdef struct Run:
    task_t task
    Job* job
    Py_ssize_t tasks
    int threads
    bint backwards


cdef void run_share(void* run, Py_ssize_t i) noexcept nogil:
    """Run the tasks of the i-th thread."""
    cdef Run* r = <Run*>run
    cdef Py_ssize_t begin = r.tasks * i // r.threads, end = r.tasks * (i + 1) // r.threads, t
    for t in range(begin, end):
        r.task(r.job, begin + end - 1 - t if r.backwards else t)


cdef void run(task_t task, Job* job, bint backwards) noexcept nogil:
    """Run all tasks of a job. A thread gets the same share in each pass, as its values may still be in its cache.

    backwards: each thread runs its tasks in reverse order, as the values of the last ones are in the cache.
    """
    cdef Py_ssize_t n = job.pieces * job.groups
    cdef int threads = threads_of(job)
    cdef Run r = Run(task, job, n, threads, backwards)
    share(run_share, &r, threads)


cdef void run_map(Job* job) noexcept nogil:
    """Run the map that follows a reduction. If the columns were summed in groups, the map gets full rows."""
    if job.inner == 1 and job.groups > 1:
        job.groups = 1
        job.group = job.channels
        job.piece = parts(job.rows, min(job.rows, evenly(job.outer * job.channels)))
        job.pieces = parts(job.rows, job.piece)
    run(loops.map, job, True)


cdef void plan_rows(RowJob* job) noexcept nogil:
    """Cut a job into pieces of outer positions, and if there are few of these, also into groups."""
    cdef Py_ssize_t size = max(<Py_ssize_t>1, job.channels * job.inner), groups = max(<Py_ssize_t>1, job.groups)
    cdef Py_ssize_t tasks = evenly(job.outer * groups * size)
    job.step = 1
    job.pieces = job.outer
    if job.params and job.inner == 1:
        # A piece has its own sums for the parameters, which are as long as a row. So there are few, of whole steps.
        job.step = STEP
        job.pieces = max(job.outer // (2 * STEP), min(job.outer // STEP, <Py_ssize_t>FEW_SUMS))
    job.steps = parts(job.outer, job.step)
    job.pieces = max(<Py_ssize_t>1, min(job.pieces, tasks))
    job.group = parts(groups, min(groups, parts(tasks, job.pieces)))
    job.cuts = parts(groups, job.group)
    # With sums for the parameters, a chunk of narrow rows has whole steps, if one fits the second-level cache.
    cdef Py_ssize_t width = job.group * size, arrays = 1 if job.dy == NULL else 2, itemsize = sizeof(float)
    job.chunk = max(<Py_ssize_t>1, CHUNK // (4 if job.dy == NULL else 1) // itemsize // width)
    if job.params and job.chunk < STEP and STEP * width * 2 * itemsize <= FUSE:
        job.chunk = STEP
    if job.chunk > STEP:
        job.chunk = job.chunk // STEP * STEP
    job.chunk = 1 if job.cuts > 1 else min(job.chunk, parts(job.steps, job.pieces) * job.step)
    if job.narrow == BN_REAL:
        return
    job.room_size = (job.chunk * width * arrays + VECTOR) * itemsize
    if job.params:
        job.room_size += 2 * job.group * job.channels * (sizeof(double) + sizeof(float)) + 2 * BN_BEYOND


cdef void plan_sums(RowJob* job) noexcept nogil:
    """Plan memory for sums x + residual, which h takes past the caches. If a row is too long for that, h does not."""
    cdef Py_ssize_t row = job.channels * job.inner
    cdef size_t size = max(row, <Py_ssize_t>FORWARD) * (sizeof(double) if job.wide else sizeof(float))
    if job.narrow == BN_REAL and job.stream and size <= SUMMED:
        job.room_size = size + BN_BEYOND + 64


cdef void plan_before(RowJob* job, bint columns) noexcept nogil:
    """Let a backward take dy back through its activation once, for the sums and for dx, if the rows that this is done
    for at a time stay in the second-level cache. columns: each value of a row has its own gamma.

    A ReLU is faster without, except in short runs, whose sums are computed for several rows at a time then.
    """
    cdef Py_ssize_t size = job.channels * job.inner, rows = 1
    cdef size_t itemsize = sizeof(double) if job.wide else sizeof(float)
    cdef bint smooth = job.act.kind >= BN_SILU
    if job.act.kind == BN_IDENTITY or job.weight != NULL:
        return
    if columns:
        rows = BN_STRIPE if size <= PIECE else STEP
        if not smooth or (job.groups > 1 and size > PIECE // 2):
            return
    elif not smooth and (job.channels > BN_BATCH or job.inner > PIECE // (1 + job.wide)):
        return
    size = max(<Py_ssize_t>BUFFER, rows * size)
    if size * itemsize > BEFORE:
        return
    job.before = job.act
    job.act = identity()
    job.room_before = size * itemsize + BN_BEYOND + BN_LINE
    job.room_size += job.room_before
