# Batch normalization: its pieces, and both passes of each direction in one call.
#
# Uses data, expect_vectors, expect_weights, folded, itemsize, matrix, pair, partial_size, read_activation, result,
# scratch, target, to_type, vector, vector_size, view, weigh (arrays), channels_of, expect, expect_like, need
# (guards), FUSE, fits, is_brief, run, run_map, scattered, share_weights (plan), Target, assume, fields,
# move_by_stats, refuse, take (statistics), unit_of (weights).
# Gives entries only.


cdef inline int expect_affine(Job* job, cnp.ndarray gamma, cnp.ndarray beta, double eps) except -1:
    """gamma and beta of the channels of a job, and eps."""
    expect("gamma", gamma, cnp.NPY_DOUBLE, job.channels)
    expect("beta", beta, cnp.NPY_DOUBLE, job.channels)
    job.gamma = <const double*>data(gamma)
    job.beta = <const double*>data(beta)
    job.eps = eps
    return 0


def known(cnp.ndarray mean not None, cnp.ndarray var not None, cnp.ndarray gamma, cnp.ndarray beta, double eps):
    """stats of a given mean and variance."""
    cdef Job job
    memset(&job, 0, sizeof(Job))
    job.channels = cnp.PyArray_SIZE(mean)
    expect("mean", mean, cnp.NPY_DOUBLE, job.channels)
    expect("var", var, cnp.NPY_DOUBLE, job.channels)
    expect_affine(&job, gamma, beta, eps)
    cdef cnp.ndarray stats = matrix(5, job.channels)
    job.stats = <double*>data(stats)
    memcpy(job.stats, data(mean), job.channels * sizeof(double))
    memcpy(job.stats + job.channels, data(var), job.channels * sizeof(double))
    loops.finish_forward(&job, 0, job.channels)
    return stats


def finish(cnp.ndarray parts, cnp.ndarray gamma, cnp.ndarray beta, double eps):
    """stats, (5, C), from the result of `moments`: mean, var, rstd, scale, shift."""
    cdef Job job
    memset(&job, 0, sizeof(Job))
    job.channels = channels_of("parts", parts, 4)
    expect_affine(&job, gamma, beta, eps)
    cdef cnp.ndarray stats_ = matrix(5, job.channels)
    job.partial = <double*>data(parts)
    job.stats = <double*>data(stats_)
    loops.finish_forward(&job, 0, job.channels)
    return stats_


def normalize(cnp.ndarray x, cnp.ndarray stats, act=IDENTITY, cnp.ndarray out=None, bint finite=False):
    """y = (x - mean) * scale + shift per channel, and the activation of that.

    With finite it is a FloatingPointError if x contains infinity; out is undefined then.
    """
    cdef Job job
    cdef cnp.ndarray y = result(x, out)
    view(&job, x, reduces=False)
    expect_vectors(&job, None, stats)
    target(&job, y)
    read_activation(&job.act, act)
    job.finite = finite
    job.stats = <double*>data(stats)
    cdef char* memory = <char*>scratch(3 * vector_size(&job))
    folded(&job, memory)
    try:
        with nogil:
            loops.fold_forward(&job, 0, job.channels)
            run(loops.map, &job, True)
    finally:
        free(memory)
    if job.infinite:
        raise FloatingPointError("x holds an infinity")
    return y


def grad_moments(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray stats, cnp.ndarray weight=None, act=IDENTITY):
    """sums, (2, C): sum dy and sum dy (x - mean), dy before the activation. With weight a dy of 0 adds nothing."""
    cdef Job job
    view(&job, x)
    expect_like("dy", dy, x)
    expect_vectors(&job, weight, stats)
    pair(&job, dy)
    read_activation(&job.act, act)
    weigh(&job, weight)
    job.stats = <double*>data(stats)
    cdef Py_ssize_t C = job.channels
    cdef cnp.ndarray sums_ = matrix(2, C)
    cdef double* sums = <double*>data(sums_)
    cdef size_t partials = partial_size(&job)
    cdef char* memory = <char*>scratch(partials + 6 * vector_size(&job))
    job.partial = <double*>memory
    folded(&job, memory + partials)
    try:
        with nogil:
            loops.fold_forward(&job, 0, C)
            run(loops.reduce, &job, False)
            loops.merge_sums(&job, 0, C)
            loops.center_sums(&job, 0, C)
            memcpy(sums, job.partial, 2 * C * sizeof(double))
    finally:
        free(memory)
    return sums_


def finish_gradients(cnp.ndarray sums, cnp.ndarray stats, count):
    """coefficients, (3, C), from the result of `grad_moments`: a, b, c. count: a number, or float64 (C,)."""
    cdef Job job
    cdef double number = 0.0
    memset(&job, 0, sizeof(Job))
    job.channels = channels_of("stats", stats, 5)
    need("sums", sums, cnp.NPY_DOUBLE, 2 * job.channels)
    cdef cnp.ndarray coefficients_ = matrix(3, job.channels)
    job.partial = <double*>data(sums)
    job.stats = <double*>data(stats)
    job.coefficients = <double*>data(coefficients_)
    if isinstance(count, cnp.ndarray):
        expect("count", count, cnp.NPY_DOUBLE, job.channels)
        job.counts = <const double*>data(count)
        job.counts_step = 1
    else:
        number = count
        job.counts = &number
    loops.finish_backward(&job, 0, job.channels)
    return coefficients_


def grad_input(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray stats, cnp.ndarray coefficients, cnp.ndarray weight=None,
               act=IDENTITY, cnp.ndarray out=None):
    """dx = a (dy + w (b (x - mean) + c)) per channel, dy before the activation."""
    cdef Job job
    cdef cnp.ndarray dx = result(x, out)
    view(&job, x, reduces=False)
    expect_like("dy", dy, x)
    expect_vectors(&job, weight, stats)
    need("coefficients", coefficients, cnp.NPY_DOUBLE, 3 * job.channels)
    target(&job, dx, dy)
    read_activation(&job.act, act)
    weigh(&job, weight)
    job.unit = unit_of(weight)
    job.stats = <double*>data(stats)
    job.coefficients = <double*>data(coefficients)
    cdef char* memory = <char*>scratch(6 * vector_size(&job))
    folded(&job, memory)
    try:
        with nogil:
            loops.fold_forward(&job, 0, job.channels)
            loops.fold_backward(&job, 0, job.channels)
            run(loops.map, &job, True)
    finally:
        free(memory)
    return dx


cdef void between_forward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """From merged moments (or given statistics) to the map's coefficients."""
    loops.finish_forward(job, begin, end)
    loops.fold_forward(job, begin, end)


cdef void between_backward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """From sums about the high part of the mean to the map's coefficients."""
    loops.center_sums(job, begin, end)
    loops.finish_backward(job, begin, end)
    loops.fold_backward(job, begin, end)


cdef void both_passes(Job* job, Py_ssize_t t) noexcept nogil:
    """Reduction, formulas and map of one group of channels while it is in the cache."""
    cdef Py_ssize_t begin = t * job.group, end = min(begin + job.group, job.channels)
    loops.reduce(job, t)
    if job.dy == NULL:
        between_forward(job, begin, end)
    else:
        between_backward(job, begin, end)
    loops.map(job, t)


cdef void known_map(Job* job) noexcept nogil:
    """The map by statistics that are given."""
    between_forward(job, 0, job.channels)
    run(loops.map, job, False)


cdef void statistics_first(Job* job) noexcept nogil:
    """The statistics of a batch, and where both passes are one the map too."""
    if job.fused:
        run(both_passes, job, False)
    else:
        run(loops.reduce, job, False)
        loops.merge_moments(job, 0, job.channels)
        between_forward(job, 0, job.channels)


def forward(cnp.ndarray x, cnp.ndarray gamma, cnp.ndarray beta, double eps, cnp.ndarray mean=None,
            cnp.ndarray var=None, cnp.ndarray weight=None, act=IDENTITY, running=None,
            cnp.ndarray out=None):
    """Batch norm: y, stats (mean, var, rstd, scale, shift by rows), values per channel, and `left` for `settle`.

    running: the rule of the statistics that `settle` will update by this batch; with "raise" they are tested here.
    """
    cdef Job job
    cdef cnp.ndarray y = result(x, out), stats_
    cdef Target target_
    cdef bint raises = False
    cdef bint given = mean is not None and var is not None
    view(&job, x, not given)
    expect_weights(weight, job.outer * job.inner)
    expect("mean", mean, cnp.NPY_DOUBLE, job.channels)
    expect("var", var, cnp.NPY_DOUBLE, job.channels)
    expect_affine(&job, gamma, beta, eps)
    if running is not None and fields(running)[13] == "raise":
        take(&target_, running, job.channels)
        raises = True
    target(&job, y, None, not given)
    cdef Py_ssize_t C = job.channels, c
    stats_ = matrix(5, C)
    job.stats = <double*>data(stats_)
    read_activation(&job.act, act)
    job.count = <double>job.outer * job.inner
    if weight is not None and not given:
        weigh(&job, weight)
    job.fused = not given and not raises and fits(&job, itemsize(&job))
    job.far = job.far or (job.fused and scattered(&job, 2 * cnp.PyArray_NBYTES(x)))
    if job.weight != NULL:      # of both passes half as many channels, as weights need room in the cache too
        share_weights(&job, FUSE // 2 // max(<Py_ssize_t>1, job.outer * job.inner * itemsize(&job)) if job.fused else C)
    cdef size_t size = vector_size(&job), partials = 0 if given else partial_size(&job)
    cdef char* memory = <char*>scratch(partials + 3 * size)
    folded(&job, memory + partials)
    try:
        if given:
            for c in range(C):
                job.stats[c] = (<double*>data(mean))[c]
                job.stats[C + c] = (<double*>data(var))[c]
            if is_brief(&job):
                known_map(&job)
            else:
                with nogil:
                    known_map(&job)
            return y, stats_, job.count, 0
        job.partial = <double*>memory
        if is_brief(&job):
            statistics_first(&job)
        else:
            with nogil:
                statistics_first(&job)
        if weight is not None:
            job.count = job.partial[0] if C > 0 else weight.sum()   # which the channels share
        if raises:
            assume(&target_, job.count)
            refuse(move_by_stats(&target_, job.stats, job.count, job.outer * job.inner, C, True), C)
        if not job.fused:
            with nogil:
                run_map(&job)
    finally:
        free(memory)
    return y, stats_, job.count, 0


def backward(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray stats, double count, cnp.ndarray weight=None,
             act=IDENTITY, bint frozen=False, bint params=True, cnp.ndarray out=None):
    """Batch norm: dx, dgamma, dbeta from the results of forward. frozen: its statistics are constants."""
    cdef Job job
    cdef cnp.ndarray dx = result(x, out), dgamma_ = None, dbeta_ = None
    view(&job, x, params or not frozen)
    expect_like("dy", dy, x)
    expect_vectors(&job, weight, stats)
    target(&job, dx, dy)
    job.stats = <double*>data(stats)
    read_activation(&job.act, act)
    job.counts = &count
    cdef Py_ssize_t C = job.channels, c
    cdef size_t size = vector_size(&job), partials = partial_size(&job)
    cdef bint reduce = params or not frozen
    cdef double* rstd = job.stats + 2 * C
    if params:
        dgamma_ = vector(C)
        dbeta_ = vector(C)
    cdef size_t coefficients = 3 * C * sizeof(double)
    cdef char* memory = <char*>scratch(partials + coefficients + 6 * size)
    job.partial = <double*>memory
    job.coefficients = <double*>(memory + partials)
    folded(&job, memory + partials + coefficients)
    if not frozen:
        weigh(&job, weight)
        job.unit = unit_of(weight)
    try:
        with nogil:
            loops.fold_forward(&job, 0, C)
            job.fused = reduce and not frozen and fits(&job, 2 * itemsize(&job))
            job.far = job.far or (job.fused and scattered(&job, 3 * cnp.PyArray_NBYTES(x)))
            if job.fused:
                run(both_passes, &job, False)
            else:
                if reduce:
                    run(loops.reduce, &job, False)
                    loops.merge_sums(&job, 0, C)
                    loops.center_sums(&job, 0, C)
                if frozen and job.act.kind == BN_IDENTITY:  # dx = scale dy is a map of dy alone: x is not read
                    job.x = job.dy
                    job.dy = NULL
                    memset(job.high, 0, size)
                    memset(job.shift, 0, size)
                elif frozen:
                    job.b = NULL
                    to_type(job.stats + 3 * C, C, job.wide, job.a)
                else:
                    loops.finish_backward(&job, 0, C)
                    loops.fold_backward(&job, 0, C)
                run_map(&job)
        if params:
            for c in range(C):
                (<double*>data(dgamma_))[c] = rstd[c] * job.partial[C + c]
                (<double*>data(dbeta_))[c] = job.partial[c]
    finally:
        free(memory)
    return dx, dgamma_, dbeta_
