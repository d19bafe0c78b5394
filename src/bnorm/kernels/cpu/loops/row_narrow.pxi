# Rows of float16 and bfloat16: some outer positions at a time are converted, are a task of float32 rows in place, and
# are converted back. So each loop over rows is compiled only once, and the rows that it works on stay in the cache.
# Only the runs of a forward are mapped from where they are, and converted in registers.
#
# Uses weights_from (channel_columns), Output (channel_maps), narrow_room (channel_narrow), SentSums, WRITTEN,
# add_narrow, add_narrow_gradient, close_sums, open_sums, second_input (row_residual), piece_of (row_sums),
# FETCH_BYTES, forward_rows, row_task (row_tasks).
# Gives task_of_rows.

cdef void write_rows(const float* values, Py_ssize_t n, Output* out) noexcept nogil:
    """Convert n values and write them to y. If they are gathered, most begin where lines of y do: the load of a line
    that is sent does not wait for two stores then."""
    cdef Py_ssize_t i = 0, lead = (-<size_t>out.y & (BN_LINE - 1)) // 2, m
    while i < n:
        m = min(lead if i == 0 and lead and out.streamed else <Py_ssize_t>WRITTEN, n - i)
        bn_write_float(out.narrow, values + i, m, narrow_room(out, i, m))
        i += m


cdef inline bint maps_runs(const RowJob* job) noexcept nogil:
    """Whether rows of a forward consist of runs that narrow_maps.h can map: these are converted for their sums only. A
    backward would convert both x and dy twice, and took up to a tenth longer."""
    return BN_FUSES and job.dy == NULL and job.scale == NULL and job.weight == NULL and job.residual == NULL \
        and job.act.kind < BN_SILU and job.inner >= BN_TWO


cdef void narrow_rows(RowJob* job, Py_ssize_t t) noexcept nogil:
    """Run task t by converting some of its rows at a time for row_task, in job.room, the memory of the thread."""
    cdef Py_ssize_t p = t // job.cuts, o = piece_of(job, p), last = piece_of(job, p + 1), i, n
    cdef Py_ssize_t begin = (t % job.cuts) * job.group, end = min(begin + job.group, job.groups), c = job.channels
    cdef Py_ssize_t row = c * job.inner, width = (end - begin) * row, size = (end - begin) * c, at
    cdef double* dgamma = job.partial + 2 * p * job.groups * c + begin * c
    cdef double* dbeta = dgamma + job.groups * c
    cdef RowJob some = job[0]
    cdef Output out
    cdef SentSums sent
    some.groups = some.group = end - begin
    some.step = some.pieces = some.cuts = 1
    some.narrow = BN_REAL
    some.stream = some.far = False
    some.residual = some.dh = NULL
    open_sums(job, &sent)
    some.gamma = NULL if job.gamma == NULL else job.gamma + begin * c
    some.beta = NULL if job.beta == NULL else job.beta + begin * c
    if job.scale != NULL:
        some.scale = <float*>job.scale + begin * c
        some.shift = <float*>job.shift + begin * c
    some.partial = <double*>job.room
    some.x = some.y = some.partial + 2 * size * job.params
    if job.dy != NULL:
        some.given = some.y = <float*>some.x + job.chunk * width
        if job.params:
            some.columns = <float*>some.y + job.chunk * width + VECTOR
            for i in range(size):
                dgamma[i] = dbeta[i] = 0.0
    out.narrow = job.narrow
    out.streamed = job.stream
    out.direct = False
    bn_stand(&out.ahead)
    if job.stream:
        bn_open(&out.lines)
        if job.far:
            at = 2 * (o * job.groups * row + begin * row)
            bn_walk(&out.ahead, <const char*>job.x + at, second_input(job, at), 2 * width,
                    2 * job.groups * row)
            bn_fetch(&out.ahead, min(<Py_ssize_t>FETCH_BYTES, 2 * job.chunk * width))
    while o < last:
        n = min(job.chunk, last - o)
        at = o * job.groups * row + begin * row
        some.outer = some.steps = n
        some.weight = weights_from(job.weight, job.weighs, o * job.inner)
        some.mean = job.mean + o * job.groups + begin
        some.rstd = job.rstd + o * job.groups + begin
        bn_read_float(job.narrow, job.x, at, n * width, <float*>some.x)
        if job.residual != NULL:
            add_narrow(job, at, n * width, &sent, <float*>some.x)
        if job.dy != NULL:
            some.dy = some.given
            bn_read_float(job.narrow, job.dy, at, n * width, <float*>some.dy)
        out.x = <const char*>job.x + 2 * at
        out.y = <char*>job.y + 2 * at
        if maps_runs(job):
            forward_rows(&some, 0, n * some.groups, n * width, &out, &sent, <const float*>some.x)
        else:
            row_task(&some, 0, <const float*>some.x)
            add_narrow_gradient(job, at, n * width, <float*>some.y)
            write_rows(<const float*>some.y, n * width, &out)
        if job.dy != NULL and job.params:
            for i in range(size):
                dgamma[i] += some.partial[i]
                dbeta[i] += some.partial[size + i]
        o += n
    close_sums(job, &sent)
    if job.stream:
        bn_close(&out.lines, &out.ahead)
        bn_fence()


cdef void task_of_rows(RowJob* job, Py_ssize_t t) noexcept nogil:
    if job.narrow != BN_REAL:
        narrow_rows(job, t)
    elif job.wide:
        row_task(job, t, <const double*>job.x)
    else:
        row_task(job, t, <const float*>job.x)
