# The tasks of layer, group, instance and RMS norm. A row is channels * inner contiguous values that are normalized
# together; gamma and beta belong to its channels. A row stays in the cache while its statistics, its output or its
# gradient are computed, so each array is read and written once.
#
# If inner == 1 (layer norm, RMS norm), each value of a row has its own gamma and beta. If inner > 1, a row consists of
# runs with one gamma each, which use the functions for long runs.
#
# Uses Block, block_rows, gather, run_block, zero (channel_columns), Output, longest (channel_maps), Parts,
# block_moments, careful_sums (channel_moments), centered_sums (channel_sums), AT_ONCE, backward_long_rows,
# backward_rows, backward_short_rows (row_gradients), forward_maps, map_by_pieces, params_in, short_runs (row_maps),
# SentSums, close_sums, open_sums, second_input, sums_of (row_residual), BATCH, SHORT, short_moments (row_short),
# piece_of, readable, walk_on (row_sums), weighted_backward, weighted_forward (row_weighted).
# Gives FETCH_BYTES, columns_of_rows, forward_rows, row_task.

cdef enum:
    BY_TURNS = 512          # most values of a row of runs whose x is fetched while sums are computed
    FETCH_BYTES = 1 << 18   # most bytes that a task fetches before it reads its first row
    FEW = 48                # rows of fewer values are best fetched while sums are computed, on every processor
    SECOND_CACHE = 1 << 20  # bytes of x and dy that are assumed to stay in the second-level cache


cdef double second_moment(const real* x, Py_ssize_t size) noexcept nogil:
    """Return sum x^2 of `size` values."""
    cdef real[LANES] m
    cdef double[LANES] count, s, q
    cdef double total = 0.0, center = 0.0
    cdef Py_ssize_t i = 0, j, n
    cdef Block b
    for j in range(LANES):
        m[j] = 0
    while i < size:
        n = min(<Py_ssize_t>BLOCK * LANES, size - i)
        b = run_block(n)
        zero(s, LANES)
        zero(q, LANES)
        centered_sums(x + i, &b, m, s, q)
        gather(q, &b)
        if real is float and not (BN_LEAST_SQUARE * n <= q[0] < INFINITY):
            careful_sums(x + i, &b, False, &center, count, s, q)
        total += q[0]
        i += n
    return total


cdef void row_moments(RowJob* job, Py_ssize_t row, Py_ssize_t size, const real* x) noexcept nogil:
    """Store mean and rstd of a row of `size` values that begins at x."""
    cdef double n = 0.0, mean = 0.0, m2 = 0.0, low = 0.0
    cdef Py_ssize_t i = 0, k
    cdef Block b
    cdef Parts to
    if job.rule == BN_MEAN_SQUARE:
        job.mean[row] = 0.0
        job.rstd[row] = bn_plain(bn_rstd(0.0, second_moment(x, size) / size, job.eps, size))
        return
    to.n = &n
    to.mean = &mean
    to.m2 = &m2
    to.low = &low
    while i < size:
        k = min(block_rows(NULL, i // LANES) * LANES, size - i)
        b = run_block(k)
        block_moments(x + i, &b, False, False, to)
        i += k
    job.mean[row] = bn_plain(mean + low)
    job.rstd[row] = bn_plain(bn_rstd(mean + low, m2 / n, job.eps, n))


cdef void forward_rows(
    RowJob* job, Py_ssize_t row, Py_ssize_t end, Py_ssize_t total, Output* out, SentSums* sent, const real* x
) noexcept nogil:
    """Normalize rows `row` to `end`, which are contiguous: the statistics of a batch of rows, then their output.

    total: the position in x up to which values may be read.
    """
    cdef Py_ssize_t size = job.channels * job.inner, groups = max(<Py_ssize_t>1, job.groups)
    cdef bint short = 0 < size <= SHORT
    cdef Py_ssize_t most = max(FORWARD, job.pieced) if real is float else max(FORWARD // 2, job.pieced)
    cdef Py_ssize_t batch = max(<Py_ssize_t>1, min(<Py_ssize_t>BATCH, most // size)) if short else 1
    cdef const real* h = x
    while row < end:
        batch = min(batch, end - row)
        if job.residual != NULL:
            h = sums_of(job, row * size, batch * size, sent, x)
        if short:
            short_moments(job, row, batch, size, total - row * size, walk_on(job, out), h + row * size)
        else:
            row_moments(job, row, size, h + row * size)
        if job.pieced:
            map_by_pieces(job, row, batch, out, h)
        else:
            forward_maps(job, row, batch, row % groups, out, h)
        row += batch


cdef inline bint fetches_with_sums(const RowJob* job, bint direct, const real* x) noexcept nogil:
    """Whether rows are fetched while the sums of the rows before them are computed, and not while results are sent.

    A forward does so if its results are gathered or go through the caches, and on `early` processors. A backward does
    so except for runs that are too long to be fetched at once, and for short rows on `beside` processors. On `early`
    ones a row may be longer, if a stripe of such rows and the next one fit the second-level cache.
    """
    cdef Py_ssize_t size = job.channels * job.inner, most = longest(x)
    if job.early and job.dy != NULL and job.scale != NULL and job.cuts == 1:
        most *= 4
    if job.weight != NULL or job.residual != NULL or job.before.kind != BN_IDENTITY or not 0 < size <= most:
        return False
    if job.dy == NULL:
        return job.early or not direct
    if job.beside and direct and FEW <= size <= AT_ONCE:
        return False
    return job.scale != NULL or (size <= (BY_TURNS if job.early else AT_ONCE) and short_runs(job, x))


cdef inline bint fetches_by_turns(const RowJob* job, bint direct) noexcept nogil:
    """Whether x is fetched while sums are computed and dy while results are sent, so that memory always has something
    to do: on `beside` processors during long rows, and on `early` ones if a row consists of runs."""
    cdef Py_ssize_t size = job.channels * job.inner
    return direct and job.dy != NULL and job.dh == NULL \
        and ((job.beside and size > AT_ONCE) or (job.early and job.scale == NULL and size >= FEW))


cdef inline Py_ssize_t reach_of(const RowJob* job, Py_ssize_t groups, const real* x) noexcept nogil:
    """Return how many bytes ahead a task of `groups` groups fetches while sums are computed: the fewest rows that are
    BN_AHEAD bytes, and at least a stripe, which is read a few columns at a time; or the fewest outer positions, if few
    rows of the task follow one another."""
    cdef Py_ssize_t row = job.channels * job.inner * <Py_ssize_t>sizeof(real), step = groups * row
    cdef Py_ssize_t least = max(<Py_ssize_t>BN_AHEAD, row * (BN_STRIPE if job.scale != NULL and job.dy != NULL else 1))
    if job.cuts == 1 or step >= 4 * least:
        return (least + row - 1) // row * row
    return (least + step - 1) // step * job.groups * row


cdef inline bint sends(const RowJob* job, Py_ssize_t part) noexcept nogil:
    """Whether rows or runs of `part` bytes are sent as they are computed. Those shorter than a line cannot be; y of
    those between one line and two, and what takes long to compute, is gathered faster."""
    return job.act.kind < BN_SILU and part >= BN_LINE and (part == BN_LINE or part >= 2 * BN_LINE or job.dy != NULL)


cdef void open_rows(
    RowJob* job, Py_ssize_t o, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t values, Output* out, SentSums* sent,
    const real* x
) noexcept nogil:
    """Begin the output of a task at outer position o, and the walk that fetches its input (streams.h): while `values`
    values, those of a batch or of a long row, are worked on, the next are fetched."""
    cdef Py_ssize_t size = job.channels * job.inner, at = (o * job.groups + begin) * size
    cdef Py_ssize_t part = size if job.scale != NULL and job.weight == NULL else job.inner     # values mapped at once
    cdef Py_ssize_t first = max(<Py_ssize_t>BN_AHEAD, values * <Py_ssize_t>sizeof(real))
    cdef bint with_sums
    out.y = <char*>job.y
    out.narrow = BN_REAL
    out.streamed = job.stream
    out.direct = job.stream and sends(job, part * sizeof(real)) and (job.dh == NULL or job.scale != NULL)
    bn_open_edge(&out.edge, &out.ahead)
    bn_stand(&out.ahead)
    if job.stream:
        bn_open(&out.lines)
    if job.far or out.direct:
        bn_walk(&out.ahead, x + at, second_input(job, at * sizeof(real)),
                (end - begin) * size * sizeof(real), job.groups * size * sizeof(real))
        if job.dh != NULL:
            out.ahead.third = <const char*>job.dh - <const char*>job.x
        elif not job.stream:
            out.ahead.third = out.y - <const char*>job.x
        with_sums = fetches_with_sums(job, out.direct, x)
        if with_sums:
            first = reach_of(job, end - begin, x)
        bn_fetch(&out.ahead, min(<Py_ssize_t>FETCH_BYTES, first))
        if with_sums:
            bn_reach(&out.ahead, first, fetches_by_turns(job, out.direct))
        if job.room != NULL and job.residual != NULL:   # x is fetched while h is sent, and the residual while y is sent
            sent.ahead = out.ahead
            sent.ahead.apart = 0
            out.ahead.at += out.ahead.apart
            out.ahead.apart = 0


cdef void row_task(RowJob* job, Py_ssize_t t, const real* x) noexcept nogil:
    """Run task t: forward, or backward if there is a dy."""
    cdef Py_ssize_t p = t // job.cuts, o = piece_of(job, p), last = piece_of(job, p + 1)
    cdef Py_ssize_t begin = (t % job.cuts) * job.group, end = min(begin + job.group, job.groups)
    cdef Py_ssize_t size = job.groups * job.channels, row = job.channels * job.inner, positions = STEP
    cdef Py_ssize_t values      # worked on while the next are fetched
    cdef bint deep = job.dy != NULL and job.scale != NULL and row > longest(x)
    cdef double* dgamma = job.partial + p * 2 * size
    cdef double* dbeta = dgamma + size
    cdef Output out
    cdef SentSums sent
    if STEP * row * 2 * <Py_ssize_t>sizeof(real) > SECOND_CACHE:
        positions = STEP // 2
    if deep:
        values = positions * (end - begin) * row
    elif job.params and job.scale != NULL and job.groups == 1:
        values = max(STEP * row, <Py_ssize_t>BUFFER)
    else:
        values = max(row, <Py_ssize_t>BUFFER)    # half a batch of a forward: a full batch was no faster
    open_sums(job, &sent)
    open_rows(job, o, begin, end, values, &out, &sent, x)
    if job.params:
        zero(dgamma + begin * job.channels, (end - begin) * job.channels)
        zero(dbeta + begin * job.channels, (end - begin) * job.channels)
    if job.weight != NULL and job.dy == NULL:
        weighted_forward(job, o, last, begin, end, &out, x)
    elif job.weight != NULL:
        weighted_backward(job, o, last, begin, end, dgamma, dbeta, &out, x)
    elif job.dy == NULL and job.cuts == 1:
        forward_rows(job, o * job.groups, last * job.groups, readable(job, o, last, end), &out, &sent, x)
    elif job.dy == NULL:
        while o < last:
            forward_rows(job, o * job.groups + begin, o * job.groups + end, readable(job, o, last, end), &out, &sent, x)
            o += 1
    elif deep:
        while o < last:
            positions = min(positions, last - o)
            backward_long_rows(job, o, positions, last, begin, end, dgamma, dbeta, &out, x)
            o += positions
    elif job.scale != NULL:
        backward_short_rows(job, p, begin, end, dgamma, dbeta, &out, x)
    else:
        backward_rows(job, o, last, begin, end, dgamma, dbeta, &out, x)
    close_sums(job, &sent)
    if job.stream:
        bn_close(&out.lines, &out.ahead)
        bn_close_edge(&out.edge)
        bn_fence()


cdef void columns_in(RowJob* job, Py_ssize_t size, const real* x) noexcept nogil:
    cdef Py_ssize_t n = job.groups * job.channels
    params_in(job, 0, n, x)
    memset(<real*>job.scale + n, 0, size - n * sizeof(real))
    memset(<real*>job.shift + n, 0, size - n * sizeof(real))


cdef void columns_of_rows(RowJob* job, Py_ssize_t size) noexcept nogil:
    """Store gamma and beta in the type that the rows are computed in, `size` bytes of each, with zeros at the end."""
    if job.wide:
        columns_in(job, size, <const double*>NULL)
    else:
        columns_in(job, size, <const float*>NULL)
