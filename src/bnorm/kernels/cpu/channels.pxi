# Batch normalization and its four pieces.


def moments(cnp.ndarray x, cnp.ndarray weight=None, bint skipna=False):
    """Per channel: count, mean, m2 = sum w (x - mean)^2, and low, what the float64 mean leaves over."""
    if is_half(x):
        return moments(widened(x), weight, skipna)
    cdef Job job
    view(&job, x)
    job.weight = <const double*>data(weight)
    job.skipna = skipna
    cdef Py_ssize_t C = job.channels, c
    cdef cnp.ndarray count = vector(C), mean = vector(C), m2 = vector(C), low = vector(C)
    cdef double* n = <double*>data(count)
    cdef double* high = <double*>data(mean)
    cdef double* rest = <double*>data(low)
    cdef double* spread = <double*>data(m2)
    job.partial = <double*>scratch(partial_size(&job))
    try:
        with nogil:
            run(loops.reduce[job.kind], &job, False)
            loops.merge_moments(&job, 0, C)
            for c in range(C):
                n[c] = job.partial[c]
                high[c] = job.partial[C + c] + job.partial[2 * C + c]
                rest[c] = (job.partial[C + c] - high[c]) + job.partial[2 * C + c]
                spread[c] = job.partial[3 * C + c]
    finally:
        free(job.partial)
    return count, mean, m2, low


cdef void fold(Job* job, char* memory, const double* mean, const double* scale, const double* shift) noexcept nogil:
    """high, scale and shift in the type of x from separate float64 vectors; scale and shift may be NULL."""
    cdef Py_ssize_t c
    cdef size_t size = vector_size(job)
    job.high = memory
    to_kind(mean, job.channels, job.kind, job.high)
    if scale == NULL:
        return
    job.scale = memory + size
    job.shift = memory + 2 * size
    to_kind(scale, job.channels, job.kind, job.scale)
    for c in range(job.channels):
        if job.kind:
            (<double*>job.shift)[c] = bn_fold((<double*>job.high)[c], mean[c], scale[c], shift[c])
        else:
            (<float*>job.shift)[c] = <float>bn_fold((<float*>job.high)[c], mean[c], scale[c], shift[c])


def normalize(cnp.ndarray x, cnp.ndarray mean, cnp.ndarray scale, cnp.ndarray shift, bint relu=False,
              cnp.ndarray out=None, bint finite=False):
    """y = (x - mean) * scale + shift per channel; with relu, 0 where that is not positive.

    With finite, FloatingPointError where x holds an infinity; what was written to out by then is of no use.
    """
    if is_half(x):      # widening makes no infinity and loses none
        return narrowed(normalize(widened(x), mean, scale, shift, relu, None, finite), out)
    cdef Job job
    cdef cnp.ndarray y = result(x, out)
    view(&job, x, reduces=False)
    target(&job, y)
    job.relu = relu
    job.finite = finite
    cdef double* center = <double*>data(mean)
    cdef double* a = <double*>data(scale)
    cdef double* b = <double*>data(shift)
    cdef char* memory = <char*>scratch(3 * vector_size(&job))
    try:
        with nogil:
            fold(&job, memory, center, a, b)
            run(loops.map[job.kind], &job, True)
    finally:
        free(memory)
    if job.infinite:
        raise FloatingPointError("x holds an infinity")
    return y


def grad_moments(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray mean, cnp.ndarray scale=None, cnp.ndarray shift=None):
    """Per channel: sum dy and sum dy (x - mean); with scale and shift, dy is 0 where (x - mean) scale + shift <= 0."""
    if is_half(x):
        return grad_moments(widened(dy), widened(x), mean, scale, shift)
    cdef Job job
    view(&job, x)
    job.dy = data(dy)
    job.relu = scale is not None
    cdef Py_ssize_t C = job.channels, c
    cdef cnp.ndarray sums = vector(C), dots = vector(C)
    cdef double* s = <double*>data(sums)
    cdef double* d = <double*>data(dots)
    cdef double* a = <double*>data(scale)
    cdef double* b = <double*>data(shift)
    cdef char* memory = <char*>scratch(partial_size(&job) + 3 * vector_size(&job))
    job.partial = <double*>memory
    job.stats = <double*>data(mean)
    try:
        with nogil:
            fold(&job, memory + partial_size(&job), job.stats, a, b)
            run(loops.reduce[job.kind], &job, False)
            loops.merge_sums(&job, 0, C)
            loops.center_sums[job.kind](&job, 0, C)
            for c in range(C):
                s[c] = job.partial[c]
                d[c] = job.partial[C + c]
    finally:
        free(memory)
    return sums, dots


def grad_input(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray mean, cnp.ndarray a, cnp.ndarray b, cnp.ndarray c,
               cnp.ndarray weight=None, cnp.ndarray scale=None, cnp.ndarray shift=None, cnp.ndarray out=None):
    """dx = a (dy + w (b (x - mean) + c)) per channel; with scale and shift, dy masked as in grad_moments."""
    if is_half(x):
        return narrowed(grad_input(widened(dy), widened(x), mean, a, b, c, weight, scale, shift), out)
    cdef Job job
    cdef cnp.ndarray dx = result(x, out)
    view(&job, x, reduces=False)
    target(&job, dx, dy)
    job.relu = scale is not None
    job.weight = <const double*>data(weight)
    job.unit = unit_of(weight)
    cdef size_t size = vector_size(&job)
    cdef double* center = <double*>data(mean)
    cdef double* slope = <double*>data(b)
    cdef double* rest = <double*>data(c)
    cdef double* gain = <double*>data(a)
    cdef double* mask_scale = <double*>data(scale)
    cdef double* mask_shift = <double*>data(shift)
    cdef Py_ssize_t i
    cdef double folded
    cdef char* memory = <char*>scratch(6 * size)
    job.a = memory + 3 * size
    job.b = memory + 4 * size
    job.c = memory + 5 * size
    try:
        with nogil:
            fold(&job, memory, center, mask_scale, mask_shift)
            to_kind(gain, job.channels, job.kind, job.a)
            for i in range(job.channels):
                if job.kind:
                    (<double*>job.b)[i] = job.unit * slope[i]
                    (<double*>job.c)[i] = job.unit * bn_fold((<double*>job.high)[i], center[i], slope[i], rest[i])
                else:
                    (<float*>job.b)[i] = <float>(job.unit * slope[i])
                    folded = bn_fold((<float*>job.high)[i], center[i], slope[i], rest[i])
                    (<float*>job.c)[i] = <float>(job.unit * folded)
            run(loops.map[job.kind], &job, True)
    finally:
        free(memory)
    return dx


cdef void between_forward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """From merged moments (or given statistics) to the map's coefficients."""
    loops.finish_forward(job, begin, end)
    loops.fold_forward[job.kind](job, begin, end)


cdef void between_backward(Job* job, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    loops.center_sums[job.kind](job, begin, end)
    loops.fold_backward[job.kind](job, begin, end)


cdef void both_passes(Job* job, Py_ssize_t t) noexcept nogil:
    """Reduction, formulas and map of one group of channels while it is in cache."""
    cdef Py_ssize_t begin = t * job.group, end = min(begin + job.group, job.channels)
    loops.reduce[job.kind](job, t)
    if job.dy == NULL:
        between_forward(job, begin, end)
    else:
        between_backward(job, begin, end)
    loops.map[job.kind](job, t)


cdef double total(const double* weight, Py_ssize_t n) noexcept nogil:
    """The sum, with what the additions round off (Neumaier)."""
    cdef Py_ssize_t i
    cdef double sum = 0.0, rest = 0.0, next
    for i in range(n):
        next = sum + weight[i]
        rest += (sum - next) + weight[i] if sum >= weight[i] else (weight[i] - next) + sum
        sum = next
    return sum + rest


cdef double unit_of(cnp.ndarray weight) noexcept:
    """A power of two near the largest weight."""
    cdef const double* w = <const double*>data(weight)
    cdef double most = 0.0
    cdef int exponent = 0
    cdef Py_ssize_t i
    if w != NULL:
        for i in range(cnp.PyArray_SIZE(weight)):
            most = max(most, w[i])
        frexp(most, &exponent)
    return ldexp(1.0, max(-1000, min(1000, exponent)))


def forward(cnp.ndarray x, cnp.ndarray gamma, cnp.ndarray beta, double eps, cnp.ndarray mean=None,
            cnp.ndarray var=None, cnp.ndarray weight=None, bint relu=False, tuple running=None,
            cnp.ndarray out=None):
    """Batch norm: y, stats (mean, var, rstd, scale, shift by rows), values per channel, and what `settle` takes as left.

    running: the rule of the statistics that `settle` is to move by this batch; here "raise" tests them.
    """
    if is_half(x):
        y32, stats, count, left = forward(widened(x), gamma, beta, eps, mean, var, weight, relu, running)
        return narrowed(y32, out), stats, count, left
    cdef Job job
    cdef cnp.ndarray y = result(x, out), stats_
    cdef Target target_
    cdef bint raises = False
    cdef bint given = mean is not None
    cdef cnp.npy_intp[2] shape
    if running is not None:
        take(&target_, running)
        raises = target_.raises
    view(&job, x, not given)
    target(&job, y)
    cdef Py_ssize_t C = job.channels, c
    shape[0] = 5
    shape[1] = C
    stats_ = cnp.PyArray_EMPTY(2, shape, cnp.NPY_DOUBLE, 0)
    job.stats = <double*>data(stats_)
    job.gamma = <const double*>data(gamma)
    job.beta = <const double*>data(beta)
    job.relu = relu
    job.eps = eps
    job.count = <double>job.outer * job.inner
    if weight is not None and not given:
        job.weight = <const double*>data(weight)
        job.count = total(job.weight, job.outer * job.inner)
    job.fused = not given and not raises and fits(&job, itemsize(&job))
    cdef size_t size = vector_size(&job), partials = 0 if given else partial_size(&job)
    cdef char* memory = <char*>scratch(partials + 3 * size)
    job.high = memory + partials
    job.scale = <char*>job.high + size
    job.shift = <char*>job.high + 2 * size
    try:
        if given:
            for c in range(C):
                job.stats[c] = (<double*>data(mean))[c]
                job.stats[C + c] = (<double*>data(var))[c]
            with nogil:
                between_forward(&job, 0, C)
                run(loops.map[job.kind], &job, False)
            return y, stats_, job.count, 0
        job.partial = <double*>memory
        with nogil:
            if job.fused:
                run(both_passes, &job, False)
            else:
                run(loops.reduce[job.kind], &job, False)
                loops.merge_moments(&job, 0, C)
                between_forward(&job, 0, C)
        if raises:
            assume(&target_, job.count)
            refuse(move_by_stats(&target_, job.stats, job.count, job.outer * job.inner, C, True), C)
        if not job.fused:
            with nogil:
                run(loops.map[job.kind], &job, True)
    finally:
        free(memory)
    return y, stats_, job.count, 0


def backward(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray stats, double count, cnp.ndarray weight=None,
             bint relu=False, bint frozen=False, bint params=True, cnp.ndarray out=None):
    """Batch norm: dx, dgamma, dbeta from what forward returned; frozen: its statistics are constants."""
    if is_half(x):
        dx32, dgamma, dbeta = backward(widened(dy), widened(x), stats, count, weight, relu, frozen, params)
        return narrowed(dx32, out), dgamma, dbeta
    cdef Job job
    cdef cnp.ndarray dx = result(x, out), dgamma_ = None, dbeta_ = None
    view(&job, x, params or not frozen)
    target(&job, dx, dy)
    job.stats = <double*>data(stats)
    job.relu = relu
    job.count = count
    cdef Py_ssize_t C = job.channels, c
    cdef size_t size = vector_size(&job), partials = partial_size(&job)
    cdef bint reduce = params or not frozen
    cdef double* rstd = job.stats + 2 * C
    if params:
        dgamma_ = vector(C)
        dbeta_ = vector(C)
    cdef char* memory = <char*>scratch(partials + 6 * size)
    job.partial = <double*>memory
    job.high = memory + partials
    job.scale = memory + partials + size
    job.shift = memory + partials + 2 * size
    job.a = memory + partials + 3 * size
    job.b = memory + partials + 4 * size
    job.c = memory + partials + 5 * size
    if not frozen:
        job.weight = <const double*>data(weight)
        job.unit = unit_of(weight)
    try:
        with nogil:
            loops.fold_forward[job.kind](&job, 0, C)
            job.fused = reduce and not frozen and fits(&job, 2 * itemsize(&job))
            if job.fused:
                run(both_passes, &job, False)
            else:
                if reduce:
                    run(loops.reduce[job.kind], &job, False)
                    loops.merge_sums(&job, 0, C)
                    loops.center_sums[job.kind](&job, 0, C)
                if frozen and not relu:     # dx = scale dy is a map of dy alone: x is not read, whatever it holds
                    job.x = job.dy
                    job.dy = NULL
                    memset(job.high, 0, size)
                    memset(job.shift, 0, size)
                elif frozen:
                    job.b = NULL
                    to_kind(job.stats + 3 * C, C, job.kind, job.a)
                else:
                    loops.fold_backward[job.kind](&job, 0, C)
                run(loops.map[job.kind], &job, True)
        if params:
            for c in range(C):
                (<double*>data(dgamma_))[c] = rstd[c] * job.partial[C + c]
                (<double*>data(dbeta_))[c] = job.partial[c]
    finally:
        free(memory)
    return dx, dgamma_, dbeta_
