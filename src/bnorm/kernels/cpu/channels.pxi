# Batch normalization: its pieces, and both passes of each direction in one call.
#
# Uses data, expect_vectors, folded, itemsize, matrix, pair, partial_size, read_activation, result, target, to_type,
# vector, vector_size, view (arrays), channels_of, expect, expect_like, need (guards), FUSE, fits, is_brief, near,
# rounded_up, run, run_map, scattered, share_weights (plan), any_huge, assume, fields, move_by_stats, refuse, take
# (statistics), expect_weights, share_totals, size_of_totals, unit_of, weigh (weights).
# Gives entries only.


cdef inline int expect_affine(Job* job, cnp.ndarray gamma, cnp.ndarray beta, double eps) except -1:
    """Check gamma and beta, which may be None, and set them and eps in a job."""
    expect("gamma", gamma, cnp.NPY_DOUBLE, job.channels)
    expect("beta", beta, cnp.NPY_DOUBLE, job.channels)
    job.gamma = <const double*>data(gamma)
    job.beta = <const double*>data(beta)
    job.eps = eps
    return 0


def known(cnp.ndarray mean not None, cnp.ndarray var not None, cnp.ndarray gamma, cnp.ndarray beta, double eps):
    """Return stats, (5, C), of a given mean and variance: mean, var, rstd, scale, shift."""
    cdef Job job
    memset(&job, 0, sizeof(Job))
    job.channels = cnp.PyArray_SIZE(mean)
    expect("mean", mean, cnp.NPY_DOUBLE, job.channels)
    expect("var", var, cnp.NPY_DOUBLE, job.channels)
    expect_affine(&job, gamma, beta, eps)
    cdef cnp.ndarray stats = matrix(5, job.channels)
    job.mean = <const double*>data(mean)
    job.var = <const double*>data(var)
    job.stats = <double*>data(stats)
    loops.finish_forward(&job, 0, job.channels)
    return stats


def finish(cnp.ndarray parts, cnp.ndarray gamma, cnp.ndarray beta, double eps):
    """Return stats, (5, C), from the result of `moments`: mean, var, rstd, scale, shift."""
    cdef Job job
    memset(&job, 0, sizeof(Job))
    job.channels = channels_of("parts", parts, 4)
    expect_affine(&job, gamma, beta, eps)
    cdef cnp.ndarray stats_ = matrix(5, job.channels)
    job.partial = <double*>data(parts)
    job.stats = <double*>data(stats_)
    loops.finish_forward(&job, 0, job.channels)
    return stats_


def inverse(cnp.ndarray stats, bint single):
    """Return the stats, (5, C), of the inverse map. single: its results are of float32 or less."""
    cdef Py_ssize_t C = channels_of("stats", stats, 5), c
    cdef cnp.ndarray back = matrix(5, C)
    cdef double* at = <double*>data(back)
    memcpy(at, data(stats), 5 * C * sizeof(double))
    for c in range(C):
        bn_invert(at + c, at + 3 * C + c, at + 4 * C + c, single)
    return back


def normalize(cnp.ndarray x, cnp.ndarray stats, act=IDENTITY, cnp.ndarray out=None, bint finite=False):
    """Return act((x - mean) * scale + shift), with the statistics of each channel.

    finite: raise FloatingPointError if x contains an infinity; the contents of `out` are then undefined.
    """
    cdef Job job
    cdef cnp.ndarray y = result(x, out)
    view(&job, x, reduces=False)
    expect_vectors(&job, None, stats)
    target(&job, y)
    read_activation(&job.act, act)
    job.finite = finite
    job.stats = <double*>data(stats)
    cdef Memory memory = scratch(3 * vector_size(&job))
    folded(&job, memory.at)
    with nogil:
        loops.fold_forward(&job, 0, job.channels)
        run(loops.map, &job, True)
    if job.infinite:
        raise FloatingPointError("x holds an infinity")
    return y


def grad_moments(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray stats, cnp.ndarray weight=None, act=IDENTITY):
    """Return sums, (2, C): sum dy and sum dy (x - mean), with dy taken back through the activation.

    Where there are weights, a dy of 0 adds nothing.
    """
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
    cdef Memory memory = scratch(partials + 6 * vector_size(&job))
    job.partial = <double*>memory.at
    folded(&job, memory.at + partials)
    with nogil:
        loops.fold_forward(&job, 0, C)
        run(loops.reduce, &job, False)
        loops.merge_sums(&job, 0, C)
        loops.center_sums(&job, 0, C)
        memcpy(sums, job.partial, 2 * C * sizeof(double))
    return sums_


def finish_gradients(cnp.ndarray sums, cnp.ndarray stats, count):
    """Return coefficients, (3, C): a, b, c. sums: from `grad_moments`. count: a number, or float64 (C,)."""
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
    """Return dx = a (dy + w (b (x - mean) + c)) per channel, with dy taken back through the activation."""
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
    cdef Memory memory = scratch(6 * vector_size(&job))
    folded(&job, memory.at)
    with nogil:
        loops.fold_forward(&job, 0, job.channels)
        loops.fold_backward(&job, 0, job.channels)
        run(loops.map, &job, True)
    return dx


cdef void between_forward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute the map's coefficients from merged moments, or from given statistics."""
    loops.finish_forward(job, begin, end)
    loops.fold_forward(job, begin, end)


cdef void finish_sums(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute the gradients of gamma and beta, unless they are NULL, from sums about the high part of the mean."""
    cdef const double* rstd = job.stats + 2 * job.channels
    cdef Py_ssize_t c
    loops.center_sums(job, begin, end)
    if job.dgamma != NULL:
        for c in range(begin, end):
            job.dgamma[c] = rstd[c] * job.partial[job.channels + c]
            job.dbeta[c] = job.partial[c]


cdef void between_backward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Compute the map's coefficients, and the gradients of gamma and beta, from sums about the high part of the
    mean."""
    finish_sums(job, begin, end)
    loops.finish_backward(job, begin, end)
    loops.fold_backward(job, begin, end)


cdef inline bint takes_back(const Job* job) noexcept nogil:
    """Whether the sums of a backward take dy back through the activation for the map, too, which pays for smooth
    activations. No bit depends on that."""
    return job.act.kind >= BN_SILU and job.weight == NULL and job.narrow == BN_REAL and job.y != job.x


cdef inline void continue_in_y(Job* job) noexcept nogil:
    """Go on with dy that was taken back into y."""
    job.dy = job.y
    job.act = identity()


cdef void both_passes(Job* job, Py_ssize_t t) noexcept nogil:
    """Task t: reduction, formulas and map of one group of channels, while its values are in the cache."""
    cdef Py_ssize_t begin = t * job.group, end = min(begin + job.group, job.channels)
    cdef Job mine
    if job.dy == NULL:
        loops.reduce(job, t)
        between_forward(job, begin, end)
    else:
        loops.fold_forward(job, begin, end)
        loops.reduce(job, t)
        between_backward(job, begin, end)
    if job.takes_back:
        mine = job[0]
        job = &mine
        continue_in_y(job)
        job.stream = False      # y is in the cache
    loops.map(job, t)


cdef void known_task(Job* job, Py_ssize_t t) noexcept nogil:
    """Task t with given statistics: formulas and map of one group of channels."""
    between_forward(job, t * job.group, min((t + 1) * job.group, job.channels))
    loops.map(job, t)


cdef void known_map(Job* job) noexcept nogil:
    """Run the map with given statistics."""
    if job.pieces == 1:
        run(known_task, job, False)
    else:
        between_forward(job, 0, job.channels)
        run(loops.map, job, False)


cdef void statistics_first(Job* job) noexcept nogil:
    """Compute the statistics of a batch, and if the job is fused run the map too."""
    if job.fused:
        run(both_passes, job, False)
    else:
        run(loops.reduce, job, False)
        loops.merge_moments(job, 0, job.channels)
        between_forward(job, 0, job.channels)


def forward(cnp.ndarray x, cnp.ndarray gamma, cnp.ndarray beta, double eps, cnp.ndarray mean=None,
            cnp.ndarray var=None, cnp.ndarray weight=None, act=IDENTITY, running=None,
            cnp.ndarray out=None):
    """Batch norm: return y, stats (rows mean, var, rstd, scale, shift), values per channel, and `left` for `settle`.

    running: the Rule of the statistics that `settle` will update with this batch. If it says "raise", the update is
    tested here. left: the number of channels that it will skip, which is 0 if `settle` has to find out.
    """
    cdef Job job
    cdef cnp.ndarray y = result(x, out), stats_
    cdef Target target_
    cdef Py_ssize_t left = 0
    cdef bint given = mean is not None and var is not None
    cdef bint raises = running is not None and fields(running)[13] == "raise"
    view(&job, x, not given)
    expect_weights(weight, job.outer * job.inner)
    expect("mean", mean, cnp.NPY_DOUBLE, job.channels)
    expect("var", var, cnp.NPY_DOUBLE, job.channels)
    expect_affine(&job, gamma, beta, eps)
    target(&job, y, None, not given)
    cdef Py_ssize_t C = job.channels
    stats_ = matrix(5, C)
    job.stats = <double*>data(stats_)
    read_activation(&job.act, act)
    job.count = <double>job.outer * job.inner
    if weight is not None and not given:
        weigh(&job, weight)
    job.fused = not given and not raises and fits(&job, itemsize(&job))
    job.far = (job.far or job.fused and scattered(&job, 2 * cnp.PyArray_NBYTES(x))) \
        and (given or not near(&job, cnp.PyArray_NBYTES(x)))
    if job.weight != NULL:      # if fused, half as many channels, as the weights need space in the cache too
        share_weights(&job, FUSE // 2 // max(<Py_ssize_t>1, job.outer * job.inner * itemsize(&job)) if job.fused else C)
    cdef size_t partials = 0 if given else partial_size(&job)
    cdef size_t totals = size_of_totals(&job)
    cdef Memory memory = scratch(partials + totals + 3 * vector_size(&job))
    folded(&job, memory.at + partials + totals)
    share_totals(&job, <double*>(memory.at + partials), totals)
    if given:
        job.mean = <const double*>data(mean)
        job.var = <const double*>data(var)
        if is_brief(&job):
            known_map(&job)
        else:
            with nogil:
                known_map(&job)
        return y, stats_, job.count, 0
    job.partial = <double*>memory.at
    if is_brief(&job):
        statistics_first(&job)
    else:
        with nogil:
            statistics_first(&job)
    if weight is not None:
        job.count = job.partial[0] if C > 0 else weight.sum(dtype="f8")     # of all channels
    if raises or running is not None and (job.count < 2.0 or any_huge(job.stats, 2 * C)):
        take(&target_, running, C)
        assume(&target_, job.count)
        left = move_by_stats(&target_, job.stats, job.count, job.outer * job.inner, C, True)
        if raises:
            refuse(left, C)
    if not job.fused:
        with nogil:
            run_map(&job)
    return y, stats_, job.count, left


def backward(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray stats, double count, cnp.ndarray weight=None,
             act=IDENTITY, bint frozen=False, bint params=True, cnp.ndarray out=None):
    """Batch norm: return dx, dgamma, dbeta. stats, count: from `forward`. frozen: stats do not depend on x."""
    cdef Job job
    cdef cnp.ndarray dx = result(x, out), dgamma_ = None, dbeta_ = None
    view(&job, x, params or not frozen)
    expect_like("dy", dy, x)
    expect_vectors(&job, weight, stats)
    target(&job, dx, dy)
    job.stats = <double*>data(stats)
    read_activation(&job.act, act)
    job.counts = &count
    cdef Py_ssize_t C = job.channels
    cdef size_t size = vector_size(&job), partials = partial_size(&job)
    cdef size_t coefficients = rounded_up(3 * C * sizeof(double), BN_LINE)
    cdef bint reduce = params or not frozen
    if params:
        dgamma_ = vector(C)
        dbeta_ = vector(C)
        job.dgamma = <double*>data(dgamma_)
        job.dbeta = <double*>data(dbeta_)
    cdef Memory memory = scratch(partials + coefficients + 6 * size)
    job.partial = <double*>memory.at
    job.coefficients = <double*>(memory.at + partials)
    folded(&job, memory.at + partials + coefficients)
    if not frozen:
        weigh(&job, weight)
        job.unit = unit_of(weight)
    with nogil:
        job.fused = not frozen and fits(&job, 2 * itemsize(&job))
        job.takes_back = not frozen and takes_back(&job)
        job.far = (job.far or job.fused and scattered(&job, 3 * cnp.PyArray_NBYTES(x))) \
            and not job.takes_back and not near(&job, cnp.PyArray_NBYTES(x))
        if job.fused:
            run(both_passes, &job, False)
        else:
            loops.fold_forward(&job, 0, C)
            if reduce:
                run(loops.reduce, &job, False)
                loops.merge_sums(&job, 0, C)
            if not frozen:
                between_backward(&job, 0, C)
                if job.takes_back:
                    continue_in_y(&job)
            elif reduce:
                finish_sums(&job, 0, C)
            if frozen and job.act.kind == BN_IDENTITY:  # dx = scale dy is a map of dy alone, without x
                job.x = job.dy
                job.dy = NULL
                memset(job.high, 0, size)
                memset(job.shift, 0, size)
            elif frozen:
                job.b = NULL
                to_type(job.stats + 3 * C, C, job.wide, job.a)
            run_map(&job)
    return dx, dgamma_, dbeta_
