# Updates of running statistics, by the rules of formulas.h.
#
# Uses data (arrays), channels_of, expect, expect_like, need (guards).
# Gives any_huge, assume, counted, fields, move_by_stats, refuse, take, written.

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
    target.counters = <int64_t*>written(rule[8])
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
    count_batch(<cnp.int64_t*>target.counters, batches, rows, skipped, counts(target) or target.replaces)


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


cdef Py_ssize_t move_some(
    const Target* target, const double* stats, double count, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t begin,
    Py_ssize_t end, bint test
) noexcept nogil:
    """Update channels from `begin` to `end` by the statistics of a layer's batch. Return how many were skipped.

    If values fade with age, the rows of the batch count as if in random order.
    """
    cdef Batch b
    cdef Py_ssize_t size, c, bad = 0
    cdef double share = 1.0, pairs = 0.0, last = 0.0
    if target.rule.mode == BN_FADE:
        share = bn_mean_weight(target.rule.halflife, rows, 1)
        pairs = (count * share) * (count * share) - count * bn_mean_weight(target.rule.halflife, rows, 2)
        last = <double>(target.counters[2] + rows)
    while begin < end:
        size = min(<Py_ssize_t>BN_MOVED, end - begin)
        for c in range(size):
            b.count[c] = count * share
            b.mean[c] = stats[begin + c]
            b.m2[c] = stats[n + begin + c] * count * share
            b.low[c] = 0.0
            b.seen[c] = count
            b.pairs[c] = pairs
            b.last[c] = last
        bad += loops.move(target, begin, size, &b, test)
        begin += size
    return bad


cdef Py_ssize_t average(
    const Target* target, const double* stats, double count, Py_ssize_t rows, Py_ssize_t n
) noexcept nogil:
    """Do `move_some` for the moving average of a layer, which needs less: the usual case in training. Where the loop
    finds a mean or variance that is not finite, it leaves BN_MOVED channels to `move_some`."""
    cdef Py_ssize_t begin = 0, end, bad = 0
    cdef double divisor = count - target.rule.ddof
    if not divisor > 0.0:
        divisor = NAN
    while True:
        begin = loops.average(target.mean, target.var, target.single, stats, n, begin, target.rule.momentum, count,
                              divisor)
        if begin == n:
            return bad
        end = min(begin + BN_MOVED, n)
        bad += move_some(target, stats, count, rows, n, begin, end, False)
        begin = end


cdef Py_ssize_t move_by_stats(
    const Target* target, const double* stats, double count, Py_ssize_t rows, Py_ssize_t n, bint test
) noexcept nogil:
    """Update by the statistics of a batch, as `forward` returns them. Return the number of skipped channels."""
    cdef Py_ssize_t bad = 0
    if count > 0.0 and not test and not counts(target) and target.rule.momentum != 1.0:  # 1 replaces: see bn_toward
        bad = average(target, stats, count, rows, n)
    elif count > 0.0:
        bad = move_some(target, stats, count, rows, n, 0, n, test)
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
    cdef Py_ssize_t channels = stats.shape[1]
    if isinstance(count, float) and count == 0.0:
        return 0
    calls, values, result, _ = left     # the last are the arrays of the calls
    move_prepared(rule, calls, 1, size // max(<Py_ssize_t>1, channels), False, values)
    return result


def move_prepared(rule not None, list calls not None, Py_ssize_t batches, Py_ssize_t rows, bint skipped, bint values):
    """`move` for another backend: make these calls, then count. No signal handler runs in between."""
    cdef cnp.int64_t* counters = counters_of(rule)
    for call, arguments, options in calls:
        call(*arguments, **options)
    count_batch(counters, batches, rows, skipped, values)


cdef bint any_huge(const double* numbers, Py_ssize_t n) noexcept nogil:
    """Whether any of n numbers is NaN, or so large that running statistics of float32 may not hold it."""
    cdef Py_ssize_t i
    cdef int found = 0
    for i in range(n):
        found |= not (-1e37 < numbers[i] < 1e37)
    return found != 0


def move(rule not None, cnp.ndarray parts not None, cnp.ndarray seen=None, cnp.ndarray pairs=None,
         cnp.ndarray last=None, Py_ssize_t rows=0, Py_ssize_t batches=1, double typical=0.0, bint skipped=False,
         bint replace=False):
    """Update statistics by a batch, given by its parts, and count it. Return the number of skipped channels.

    seen, pairs, last: of rows that fade, as in `bn_batch`; seen defaults to the count. typical: the assumed number of
    values in each batch that was never counted. skipped: channels were skipped in some of the batches that this batch
    was pooled from. replace: replace the statistics instead of updating them.
    """
    cdef Target target
    cdef Py_ssize_t at, size, n = channels_of("parts", parts, 4), bad = 0, attempt
    cdef const double* p = <const double*>data(parts)
    cdef const double* seen_ = <const double*>data(seen)
    cdef Batch b
    expect("seen", seen, cnp.NPY_DOUBLE, n)
    expect("pairs", pairs, cnp.NPY_DOUBLE, n)
    expect("last", last, cnp.NPY_DOUBLE, n)
    take(&target, rule, n)
    if target.rule.mode == BN_FADE and (pairs is None or last is None):
        raise ValueError("pairs, last: expected arrays, as values fade, got None")
    if target.rule.mode != BN_FADE:
        pairs = last = None
    target.replaces = replace
    assume(&target, typical)
    for attempt in range(0 if target.raises or (target.propagates and target.rule.whole) else 1, 2):
        at = 0
        while at < n:
            size = min(<Py_ssize_t>BN_MOVED, n - at)
            bn_read_numbers(False, p, at, size, b.count)
            bn_read_numbers(False, p + n, at, size, b.mean)
            bn_read_numbers(False, p + 2 * n, at, size, b.m2)
            bn_read_numbers(False, p + 3 * n, at, size, b.low)
            bn_read_numbers(False, p if seen is None else seen_, at, size, b.seen)
            bn_read_numbers(False, data(pairs), at, size, b.pairs)
            bn_read_numbers(False, data(last), at, size, b.last)
            bad += loops.move(&target, at, size, &b, attempt == 0)
            at += size
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
