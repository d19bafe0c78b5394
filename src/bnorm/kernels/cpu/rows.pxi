# Layer, group, instance and RMS normalization.
#
# Uses data, in_float64, is_wide, narrow_of, read_activation, result, vector (arrays), expect, expect_block,
# expect_like, need (guards), ROW, bypasses, crosses, kept, plan_before, plan_rows, plan_sums, rounded_up, sizes,
# touched, weighed (plan), expect_weights, kind_of_weights (weights).
# Gives entries only.

cdef enum:
    FEW_LONG = 4            # rows of a thread beside which it pays to convert gamma and beta piece by piece, if all
    FEW_VALUES = 1 << 14    # rows have so few values; or one row of any length


cdef inline bint has_columns(const RowJob* job) noexcept nogil:
    """Whether gamma and beta, or their gradients, differ from value to value. Otherwise they need no memory."""
    return job.inner == 1 and (job.gamma != NULL or job.beta != NULL or job.params)


cdef inline bint is_single(cnp.ndarray a) noexcept:
    return a is not None and cnp.PyArray_TYPE(a) == cnp.NPY_FLOAT


cdef inline bint reads_single(cnp.ndarray x, cnp.ndarray weight) noexcept:
    """Whether gamma and beta are only read to be stored in float32: not as numbers of runs."""
    return cnp.PyArray_NDIM(x) == 4 and cnp.PyArray_DIM(x, 3) == 1 and weight is None and not is_wide(x)


cdef tuple parameters(cnp.ndarray x, cnp.ndarray weight, cnp.ndarray gamma, cnp.ndarray beta):
    """Return gamma and beta as the loops read them: in float32 if they are float32 and that is enough, else float64."""
    if (is_single(gamma) or is_single(beta)) and not reads_single(x, weight):
        return in_float64((gamma, beta))
    return gamma, beta


cdef int row_view(
    RowJob* job, cnp.ndarray x, cnp.ndarray y, cnp.ndarray gamma, cnp.ndarray beta, cnp.ndarray dy, bint params,
    act, cnp.ndarray weight
) except -1:
    """Check the arrays, and set the job's view of x, its arrays and its plan."""
    expect_block(x, 4, 4)
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    cdef int caches
    memset(job, 0, sizeof(RowJob))
    job.outer = shape[0]
    job.groups = shape[1]
    job.channels = shape[2]
    job.inner = shape[3]
    job.single_gamma = is_single(gamma)
    job.single_beta = is_single(beta)
    expect("gamma", gamma, cnp.NPY_FLOAT if job.single_gamma else cnp.NPY_DOUBLE, job.groups * job.channels)
    expect("beta", beta, cnp.NPY_FLOAT if job.single_beta else cnp.NPY_DOUBLE, job.groups * job.channels)
    job.wide = is_wide(x)
    job.narrow = narrow_of(x)
    if job.narrow >= BN_BOOL:
        raise TypeError(f"x: expected floats, got {x.dtype}")
    job.x = cnp.PyArray_DATA(x)
    job.y = cnp.PyArray_DATA(y)
    job.stream = bypasses(cnp.PyArray_NBYTES(y), sizes.stream_two)
    job.far = cnp.PyArray_NBYTES(x) >= (sizes.far_maps if dy is None else sizes.far_rows)
    job.beside = cnp.PyArray_NBYTES(x) >= sizes.beside
    job.early = not job.wide and cnp.PyArray_NBYTES(x) >= sizes.early
    job.paired = cnp.PyArray_NBYTES(x) >= sizes.paired or crosses(job)
    job.gamma = <const double*>data(gamma)
    job.beta = <const double*>data(beta)
    job.dy = job.given = data(dy)
    job.params = params
    read_activation(&job.act, act)
    if dy is None or not has_columns(job):
        caches = kept(job.stream, job.x, job.dy, cnp.PyArray_NBYTES(x), job.y, cnp.PyArray_NBYTES(y))
        job.stream = caches == BN_PAST
        if caches == BN_FOUND:
            job.far = job.beside = False
    if job.inner == 1 and not has_columns(job) and weight is None:    # without parameters a row is a single run
        job.inner = job.channels
        job.channels = 1
    plan_rows(job)
    expect_weights(weight, job.outer * job.inner)
    job.weight = data(weight)
    job.weighs = kind_of_weights(weight)
    return 0


cdef inline size_t columns_size(const RowJob* job) noexcept nogil:
    """Return the bytes of gamma, beta or sums of columns, and of what loops read behind them, in full cache lines."""
    cdef size_t itemsize = sizeof(double) if job.wide else sizeof(float)
    cdef Py_ssize_t n = job.groups * job.channels
    if job.pieced:
        n = PIECE
    return rounded_up(n * itemsize + BN_BEYOND, BN_LINE) if has_columns(job) else 0


cdef void run_row_span(RowJob* job, Py_ssize_t begin, Py_ssize_t end, char* memory) noexcept nogil:
    """Run the tasks of one thread. It has memory for converted rows, and gamma and beta of its own, as it converts them
    faster than it could read them from the cache of another core."""
    cdef Py_ssize_t t
    cdef size_t size = columns_size(job)
    cdef RowJob mine = job[0]
    if size > 0:
        mine.scale = memory
        mine.shift = memory + size
        if begin > 0:
            mine.kept_gamma = mine.kept_beta = NULL
        if not job.pieced:
            loops.columns(&mine, size)
    cdef size_t near = job.inner * sizeof(double) + BN_BEYOND if job.weight != NULL else 0
    if job.room_size > 0:
        mine.room = <char*>malloc(job.room_size)
    if near > 0:
        mine.near = malloc(near)
    if (job.room_size > 0 and mine.room == NULL) or (near > 0 and mine.near == NULL):
        bn_set(&job.failed)
    else:
        for t in range(begin, end):
            loops.rows(&mine, t)
    free(mine.room)
    free(mine.near)


cdef int row_threads(const RowJob* job, cnp.ndarray x) noexcept:
    cdef Py_ssize_t values = weighed(job.channels * job.inner, job.wide, job.dy)
    cdef int threads = threads_for(job.outer * job.groups * (values + ROW), job.pieces * job.cuts)
    return 1 if touched(job.x, cnp.PyArray_NBYTES(x), threads) else threads


cdef struct RowRun:
    RowJob* job
    char* memory
    int threads


cdef void run_row_share(void* run, Py_ssize_t i) noexcept nogil:
    """Run the tasks of the i-th thread, with memory of its own."""
    cdef RowRun* r = <RowRun*>run
    cdef Py_ssize_t n = r.job.pieces * r.job.cuts
    run_row_span(r.job, n * i // r.threads, n * (i + 1) // r.threads, r.memory + i * 2 * columns_size(r.job))


cdef void run_rows(RowJob* job, int threads, char* memory) noexcept nogil:
    """Run all tasks. memory: 2 * columns_size bytes for each thread."""
    cdef RowRun r = RowRun(job, memory, threads)
    share(run_row_share, &r, threads)


cdef int check_room(const RowJob* job) except -1:
    if job.failed:
        raise MemoryError(f"bnorm: no memory for {job.room_size} bytes of rows in each thread")
    return 0


cdef cnp.ndarray copied(const RowJob* job, cnp.ndarray a, void** kept):
    """Return a flat copy of gamma or beta for a backward, or None. If it is still empty, `kept` is set to its memory:
    the first thread fills it as it converts the values. Other cores do not read it, so the next copy is not slow to
    write."""
    cdef cnp.npy_intp n = job.groups * job.channels
    cdef cnp.ndarray copy
    if a is None or not has_columns(job) or job.weight != NULL:
        return None if a is None else a.flatten()
    copy = empty(1, &n, cnp.NPY_DOUBLE if job.wide else cnp.NPY_FLOAT)
    kept[0] = data(copy)
    return copy


cdef inline Py_ssize_t pieced(const RowJob* job, int threads) noexcept nogil:
    """Return how many values of rows share the gammas and betas that are converted piece by piece. 0: convert all of
    these first, as that takes little time beside the rows of a thread."""
    cdef Py_ssize_t size = job.channels, values = job.outer * size
    if not has_columns(job) or job.weight != NULL or (job.residual != NULL and job.stream) or job.groups > 1 \
            or size < 2 * PIECE or not 0 < job.outer <= FEW_LONG * threads:
        return 0
    return values if values <= FEW_VALUES else size if job.outer <= threads else 0


def rows_forward(cnp.ndarray x, cnp.ndarray gamma, cnp.ndarray beta, double eps, int rule=0, act=IDENTITY,
                 cnp.ndarray out=None, cnp.ndarray residual=None, cnp.ndarray weight=None, bint copies=False):
    """Normalize every (n, g) of x[N, G, K, L] over its K * L values. Return y, and mean and rstd per row.

    copies: return copies of gamma and beta too, as a backward will need them: float32 if the rows are computed in
    float32 and each of their values has its own. residual: normalize h = x + residual, and return (y, h) instead of y.
    The rows of h are computed a few at a time and then normalized; where positions have weights, [N, L], all of h is
    computed first.
    """
    cdef RowJob job
    cdef cnp.ndarray y, mean_, rstd_, h = None, gamma_ = None, beta_ = None
    if residual is not None and weight is not None:
        expect_block(x, 4, 4)
        expect_like("residual", residual, x)
        h = x + residual
        x, residual = h, None
    y = result(x, out)
    gamma, beta = parameters(x, weight, gamma, beta)
    row_view(&job, x, y, gamma, beta, None, False, act, weight)
    if residual is not None:
        expect_like("residual", residual, x)
        h = result(x, None)
        job.residual = data(residual)
        job.h = data(h)
        plan_sums(&job)
    job.rule = rule
    job.eps = eps
    mean_ = vector(job.outer * job.groups)
    rstd_ = vector(job.outer * job.groups)
    job.mean = <double*>data(mean_)
    job.rstd = <double*>data(rstd_)
    cdef int threads = row_threads(&job, x)
    job.pieced = pieced(&job, threads)
    cdef Memory memory = scratch(threads * 2 * columns_size(&job))
    if copies:
        gamma_ = copied(&job, gamma, &job.kept_gamma)
        if job.act.kind == BN_IDENTITY:     # then no gradient depends on beta
            beta_ = beta
        else:
            beta_ = copied(&job, beta, &job.kept_beta)
    with nogil:
        run_rows(&job, threads, memory.at)
    check_room(&job)
    found = (y if h is None else (y, h), mean_, rstd_)
    return (*found, gamma_, beta_) if copies else found


def rows_backward(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray mean, cnp.ndarray rstd, cnp.ndarray gamma,
                  cnp.ndarray beta, int rule=0, act=IDENTITY, bint params=True, cnp.ndarray out=None,
                  cnp.ndarray dh=None, cnp.ndarray weight=None):
    """Return dx, dgamma, dbeta from the results of rows_forward. dh: is added to dx; it must not be `out`."""
    cdef RowJob job
    cdef cnp.ndarray dx = result(x, out), dgamma_ = None, dbeta_ = None
    expect_like("dy", dy, x)
    gamma, beta = parameters(x, weight, gamma, beta)
    row_view(&job, x, dx, gamma, beta, dy, params, act, weight)
    if dh is not None:
        expect_like("dh", dh, x)
        job.dh = data(dh)
    plan_before(&job, has_columns(&job))
    need("mean", mean, cnp.NPY_DOUBLE, job.outer * job.groups)
    need("rstd", rstd, cnp.NPY_DOUBLE, job.outer * job.groups)
    job.rule = rule
    job.mean = <double*>data(mean)
    job.rstd = <double*>data(rstd)
    cdef Py_ssize_t n = job.groups * job.channels, c, p
    cdef double* dg = NULL
    cdef double* db = NULL
    if params:
        dgamma_ = vector(n)
        dbeta_ = vector(n)
        dg = <double*>data(dgamma_)
        db = <double*>data(dbeta_)
    cdef int threads = row_threads(&job, x)
    cdef size_t columns = threads * 2 * columns_size(&job), sums = job.pieces * 2 * n * sizeof(double) if params else 0
    # Rows of several groups first sum their columns in the type of x.
    cdef size_t parts = job.pieces * 2 * columns_size(&job) if params and job.group > 1 else 0
    cdef Memory memory = scratch(columns + parts + sums)
    job.columns = memory.at + columns
    job.partial = <double*>(memory.at + columns + parts)
    with nogil:
        run_rows(&job, threads, memory.at)
        if params:
            for p in range(1, job.pieces):
                for c in range(2 * n):
                    job.partial[c] += bn_take_over(&job.partial[p * 2 * n + c])
            for c in range(n):
                dg[c] = bn_plain(job.partial[c])
                db[c] = bn_plain(job.partial[n + c])
    check_room(&job)
    return dx, dgamma_, dbeta_
