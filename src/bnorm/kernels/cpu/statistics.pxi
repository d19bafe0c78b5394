# Updates of running statistics, by the rules of formulas.h.
#
# Uses data (arrays), channels_of, expect, expect_like, need (guards).
# Gives Target, assume, counted, fields, move_by_stats, move_channel, put, refuse, statistics_of, take, written.

ctypedef struct Target:
    # The arrays and the rule of a `bnorm.running.Statistics`. The Rule, a tuple, keeps the arrays alive.
    void* mean
    void* var
    double* low         # NULL if the rounding error of the mean is not kept
    double* seen
    double* weight      # NULL if the average is settled, or if `seen` is the weight
    double* pairs       # NULL unless values fade
    double* last
    cnp.int64_t* counters   # batches, batches that some channel skipped, rows, and batches that `seen` lacks
    double uncounted        # the values that `seen` lacks, in each channel
    bint single         # mean and var are float32
    bn_rule rule
    bint raises, propagates, replaces


cdef inline tuple fields(given):
    """Return a Rule as a tuple. Cython's type check would refuse a named tuple, although it is a tuple in C."""
    if not isinstance(given, tuple):
        raise TypeError(f"rule: expected a Rule, got {type(given).__name__}")
    return <tuple>given


cdef int take(Target* target, given, Py_ssize_t channels) except -1:
    """Read a `kernels.rule.Rule` of the statistics of this many channels into `target`, with checks."""
    cdef tuple rule = fields(given)
    cdef str nonfinite = rule[13]
    cdef int i
    cdef cnp.ndarray mean = rule[1]
    cdef int kind = cnp.NPY_FLOAT if mean is not None and cnp.PyArray_TYPE(mean) == cnp.NPY_FLOAT else cnp.NPY_DOUBLE
    need("mean", mean, kind, channels)
    need("var", rule[2], kind, channels)
    need("seen", rule[4], cnp.NPY_DOUBLE, channels)
    for i in range(3, 8):
        expect("statistics", rule[i], cnp.NPY_DOUBLE, channels)
    need("counters", rule[8], cnp.NPY_INT64, 4)
    if (rule[6] is None) != (rule[7] is None):
        raise ValueError("pairs, last: expected both or neither")
    target.rule.mode = rule[0]
    target.mean = written(rule[1])
    target.var = written(rule[2])
    target.low = <double*>written(rule[3])
    target.seen = <double*>written(rule[4])
    target.weight = <double*>written(rule[5])
    target.pairs = <double*>written(rule[6])
    target.last = <double*>written(rule[7])
    target.counters = <cnp.int64_t*>written(rule[8])
    target.rule.momentum = rule[9]
    target.rule.halflife = rule[10]
    target.rule.ddof = rule[11]
    target.rule.whole = rule[12]
    target.single = cnp.PyArray_TYPE(rule[1]) == cnp.NPY_FLOAT
    target.raises = nonfinite == "raise"
    target.propagates = nonfinite == "propagate"
    target.replaces = False
    target.uncounted = 0.0
    return 0


cdef inline bint counts(const Target* target) noexcept nogil:
    """Whether `seen` is used. The moving average of a layer does not need it."""
    return target.rule.mode != BN_AVERAGE or target.weight != NULL


cdef inline void assume(Target* target, double count) noexcept nogil:
    """If values are pooled after uncounted batches, assume that each of these had `count` values, as the new one."""
    if (target.rule.mode == BN_POOL or target.replaces) and target.counters[3] > 0 and count > 0.0:
        target.uncounted = target.counters[3] * count


cdef inline void counted(Target* target, Py_ssize_t batches, Py_ssize_t rows, bint skipped) noexcept nogil:
    """Add batches to the counters. skipped: some channel skipped one of them."""
    count_batch(target.counters, batches, rows, skipped, counts(target) or target.replaces)


cdef inline void count_batch(
    cnp.int64_t* counters, Py_ssize_t batches, Py_ssize_t rows, bint skipped, bint values
) noexcept nogil:
    """Add batches to `counters`. values: whether `seen` counts their values."""
    counters[0] += batches
    counters[1] += skipped
    counters[2] += rows
    counters[3] = 0 if values else counters[3] + batches


cdef void* written(cnp.ndarray a) except? NULL:
    """Return the memory of an array that will be written to, NULL for None; an error unless it allows writing."""
    if a is None:
        return NULL
    if not cnp.PyArray_ISCARRAY(a):
        raise ValueError("statistics: expected writeable, aligned and contiguous memory, got an array without")
    return cnp.PyArray_DATA(a)


cdef inline bn_statistics statistics_of(const Target* target, Py_ssize_t c) noexcept nogil:
    cdef bn_statistics s
    s.mean = (<float*>target.mean)[c] if target.single else (<double*>target.mean)[c]
    s.var = (<float*>target.var)[c] if target.single else (<double*>target.var)[c]
    s.low = 0.0 if target.low == NULL else target.low[c]
    s.seen = target.seen[c] + target.uncounted
    s.weight = target.weight[c] if target.weight != NULL else s.seen if target.rule.mode == BN_POOL else INFINITY
    s.pairs = 0.0 if target.pairs == NULL else target.pairs[c]
    s.last = 0.0 if target.last == NULL else target.last[c]
    return s


cdef inline void put(const Target* target, Py_ssize_t c, const bn_statistics* s) noexcept nogil:
    if target.single:
        (<float*>target.mean)[c] = <float>s.mean
        (<float*>target.var)[c] = <float>s.var
    else:
        (<double*>target.mean)[c] = s.mean
        (<double*>target.var)[c] = s.var
    target.seen[c] = s.seen
    if target.low != NULL:
        target.low[c] = s.low
    if target.weight != NULL:
        target.weight[c] = s.weight
    if target.pairs != NULL:
        target.pairs[c] = s.pairs
        target.last[c] = s.last


cdef bint move_channel(const Target* target, Py_ssize_t c, bn_batch b, bint test) noexcept nogil:
    """Update channel c, unless `test` is set or the result cannot be kept. Return whether it can be kept.

    A result that is not finite is kept only if the rule propagates it; in a transformer only an infinite variance is.
    """
    cdef bn_statistics s = statistics_of(target, c)
    cdef bn_rule rule = target.rule
    cdef bint finite, kept
    if target.replaces:
        rule.mode = BN_POOL
        s.weight = s.seen = s.pairs = 0.0
        s.last = b.last
    elif not counts(target):
        b.seen = 0.0
    s = bn_move(s, b, rule)
    if target.replaces and target.rule.mode == BN_AVERAGE:
        s.weight = INFINITY
    if target.single:    # a number may be finite in float64 and overflow float32
        finite = bn_finite(<float>s.mean) and bn_finite(<float>s.var)
    else:
        finite = bn_finite(s.mean) and bn_finite(s.var)
    kept = (finite or target.propagates) and (not rule.whole or bn_sound(s, rule))
    if test:
        return kept
    if kept:
        put(target, c, &s)
    else:
        target.seen[c] += target.uncounted
    return kept


cdef inline void pass_by(const Target* target, Py_ssize_t c) noexcept nogil:
    """Update a channel that has no values in a batch: from now on its average weighs less."""
    target.seen[c] += target.uncounted
    if target.rule.mode == BN_AVERAGE and target.weight != NULL and not target.replaces:
        target.weight[c] = bn_weight_later(target.weight[c], target.rule)


cdef void refuse(Py_ssize_t bad, Py_ssize_t n) except *:
    """Raise FloatingPointError if any of n channels is bad."""
    if bad:
        raise FloatingPointError(f"the batch mean or variance of {bad} of {n} channels is not finite")


def halved(x):
    """Return 2^x for numbers x <= 0: the weights of values that are -x half-lives old, the same bits everywhere."""
    cdef cnp.ndarray ages = cnp.PyArray_FROMANY(x, cnp.NPY_DOUBLE, 0, 0, cnp.NPY_ARRAY_CARRAY_RO), weights
    weights = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(ages), cnp.PyArray_DIMS(ages), cnp.NPY_DOUBLE, 0)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(ages)
    cdef const double* of = <const double*>data(ages)
    cdef double* to = <double*>data(weights)
    with nogil:
        loops.halve(of, n, to)
    return weights


def mean_weights(double halflife, double rows):
    """Return the mean weight of so many rows, and the mean of its square, beside the last row, where a row weighs half
    as much as the one that comes `halflife` rows later."""
    return bn_mean_weight(halflife, rows, 1), bn_mean_weight(halflife, rows, 2)


cdef inline bn_batch batch_of(
    const Target* target, const double* stats, double count, Py_ssize_t rows, Py_ssize_t c, Py_ssize_t n
) noexcept nogil:
    """Return channel c of a layer's batch. If values fade with age, its rows count as if in random order."""
    cdef bn_batch b
    cdef double share, square
    b.count = b.seen = count
    b.mean = stats[c]
    b.m2 = stats[n + c] * count
    b.low = b.pairs = b.last = 0.0
    if target.rule.mode == BN_FADE:
        share = bn_mean_weight(target.rule.halflife, rows, 1)
        square = bn_mean_weight(target.rule.halflife, rows, 2)
        b.count *= share
        b.m2 *= share
        b.pairs = b.count * b.count - count * square
        b.last = <double>(target.counters[2] + rows)
    return b


cdef Py_ssize_t average(
    const Target* target, const double* stats, double count, Py_ssize_t rows, Py_ssize_t n
) noexcept nogil:
    """Do `bn_move` for the moving average of a layer, in a loop that vectorizes: the usual case in training.

    Where it finds a mean or variance that is not finite, some channels are moved one by one. Return the number of
    channels that were skipped.
    """
    cdef Py_ssize_t begin = 0, c, bad = 0
    cdef double divisor = count - target.rule.ddof
    if not divisor > 0.0:
        divisor = NAN
    while True:
        begin = loops.average(target.mean, target.var, target.single, stats, n, begin, target.rule.momentum, count,
                              divisor)
        if begin == n:
            return bad
        for c in range(begin, min(begin + AVERAGED, n)):
            bad += not move_channel(target, c, batch_of(target, stats, count, rows, c, n), False)
        begin = min(begin + AVERAGED, n)


cdef Py_ssize_t move_by_stats(
    const Target* target, const double* stats, double count, Py_ssize_t rows, Py_ssize_t n, bint test
) noexcept nogil:
    """Update by the statistics of a batch, as `forward` returns them. Return the number of skipped channels."""
    cdef Py_ssize_t c, bad = 0
    if count > 0.0 and not test and not counts(target):
        bad = average(target, stats, count, rows, n)
    elif count > 0.0:
        for c in range(n):
            bad += not move_channel(target, c, batch_of(target, stats, count, rows, c, n), test)
    return 0 if target.propagates else bad


def settle(rule not None, cnp.ndarray stats not None, double count, Py_ssize_t size, int left=0):
    """Update statistics by the batch of a forward, and count the batch, or do neither: no signal is handled in between.

    size: of x. stats, count, left: results of `forward`. Return the number of channels that were skipped because they
    were not finite. A batch without values is not counted.
    """
    cdef Target target
    cdef Py_ssize_t bad, rows, n = channels_of("stats", stats, 5)
    if not count > 0.0:
        return 0
    take(&target, rule, n)
    assume(&target, count)
    rows = size // max(n, <Py_ssize_t>1)
    bad = move_by_stats(&target, <const double*>data(stats), count, rows, n, False)
    counted(&target, 1, rows, bad > 0)
    return bad


cdef cnp.int64_t* counters_of(given) except NULL:
    cdef tuple rule = fields(given)
    need("counters", rule[8], cnp.NPY_INT64, 4)
    return <cnp.int64_t*>written(rule[8])


def settle_prepared(rule not None, stats, count, Py_ssize_t size, left=0):
    """`settle` for another backend. Its forward has prepared `left`: what to call, whether values are counted, and the
    result. No Python bytecode runs between the calls and the counters, so no signal handler does."""
    cdef cnp.int64_t* counters
    cdef bint values
    cdef Py_ssize_t channels = stats.shape[1]
    if isinstance(count, float) and count == 0.0:
        return 0
    calls, values, result, _ = left     # the last are the arrays of the calls
    counters = counters_of(rule)
    for call, arguments, options in <list?>calls:
        call(*arguments, **options)
    count_batch(counters, 1, size // max(<Py_ssize_t>1, channels), False, values)
    return result


def move_prepared(rule not None, list calls not None, Py_ssize_t batches, Py_ssize_t rows, bint skipped, bint values):
    """`move` for another backend: make these calls, then count. No signal handler runs in between."""
    cdef cnp.int64_t* counters = counters_of(rule)
    for call, arguments, options in calls:
        call(*arguments, **options)
    count_batch(counters, batches, rows, skipped, values)


def move(rule not None, cnp.ndarray parts not None, cnp.ndarray seen=None, cnp.ndarray pairs=None,
         cnp.ndarray last=None, Py_ssize_t rows=0, Py_ssize_t batches=1, double typical=0.0, bint skipped=False,
         bint replace=False):
    """Update statistics by a batch, given by its parts, and count it. Return the number of skipped channels.

    seen, pairs, last: of rows that fade, as in `bn_batch`; seen defaults to the count. typical: the assumed number of
    values in each batch that was never counted. skipped: channels were skipped in some of the batches that this batch
    was pooled from. replace: replace the statistics instead of updating them.
    """
    cdef Target target
    cdef Py_ssize_t c, n = channels_of("parts", parts, 4), bad = 0, attempt
    cdef const double* p = <const double*>data(parts)
    cdef bn_batch b
    expect("seen", seen, cnp.NPY_DOUBLE, n)
    expect("pairs", pairs, cnp.NPY_DOUBLE, n)
    expect("last", last, cnp.NPY_DOUBLE, n)
    take(&target, rule, n)
    if target.rule.mode == BN_FADE and (pairs is None or last is None):
        raise ValueError("pairs, last: expected arrays, as values fade, got None")
    target.replaces = replace
    assume(&target, typical)
    for attempt in range(0 if target.raises or (target.propagates and target.rule.whole) else 1, 2):
        for c in range(n):
            b.count = b.seen = p[c]
            b.mean = p[n + c]
            b.m2 = p[2 * n + c]
            b.low = p[3 * n + c]
            b.pairs = b.last = 0.0
            if seen is not None:
                b.seen = (<const double*>data(seen))[c]
            if target.rule.mode == BN_FADE:
                b.pairs = (<const double*>data(pairs))[c]
                b.last = (<const double*>data(last))[c]
            if b.count > 0.0:
                bad += not move_channel(&target, c, b, attempt == 0)
            elif attempt:
                pass_by(&target, c)
        if attempt == 0:
            refuse(bad, n)
    bad = 0 if target.propagates else bad
    counted(&target, batches, rows, bad > 0 or skipped)
    return bad


def assign(rule not None, source not None):
    """Copy the arrays of `source`, a copy of the same statistics, all or none: no signal is handled in between."""
    cdef tuple to = fields(rule), values = fields(source)
    cdef int i
    cdef cnp.ndarray a
    for i in range(1, 9):
        written(to[i])
        if to[i] is not None:
            a = to[i]
            expect_like("source", values[i], a)
    for i in range(1, 9):
        if to[i] is not None:
            memcpy(data(to[i]), data(values[i]), cnp.PyArray_NBYTES(to[i]))
