# Rows of float16 and bfloat16: some outer positions at a time are converted, are a task of float32 rows in place, and
# are converted back. So each loop over rows is compiled only once, and the rows that it works on stay in the cache.
#
# Uses weights_from (channel_columns), SentSums, WRITTEN, add_narrow, add_narrow_gradient, close_sums, open_sums,
# second_input (row_residual), piece_of (row_sums), FETCH_BYTES, row_task (row_tasks).
# Gives task_of_rows.

cdef void write_rows(
    RowJob* job, const float* values, Py_ssize_t at, Py_ssize_t n, bn_output* lines, bn_ahead* ahead
) noexcept nogil:
    """Convert n values and write them to y, from position `at` on."""
    cdef Py_ssize_t i = 0, m
    cdef char* y = <char*>job.y + 2 * at
    while i < n:
        m = min(<Py_ssize_t>WRITTEN, n - i)
        bn_write_float(job.narrow, values + i, m, bn_room(lines, y, 2 * m, ahead) if job.stream else y)
        y += 2 * m
        i += m


cdef void narrow_rows(RowJob* job, Py_ssize_t t) noexcept nogil:
    """Run task t by converting some of its rows at a time for row_task, in job.room, the memory of the thread."""
    cdef Py_ssize_t p = t // job.cuts, o = piece_of(job, p), last = piece_of(job, p + 1), i, n
    cdef Py_ssize_t begin = (t % job.cuts) * job.group, end = min(begin + job.group, job.groups), c = job.channels
    cdef Py_ssize_t row = c * job.inner, width = (end - begin) * row, size = (end - begin) * c, at
    cdef double* dgamma = job.partial + 2 * p * job.groups * c + begin * c
    cdef double* dbeta = dgamma + job.groups * c
    cdef RowJob some = job[0]
    cdef bn_output lines
    cdef bn_ahead ahead
    cdef SentSums sent
    some.groups = some.group = end - begin
    some.step = some.pieces = some.cuts = 1
    some.narrow = BN_REAL
    some.stream = some.far = False
    some.residual = some.dh = NULL
    some.room = NULL
    open_sums(job, &sent)
    some.gamma = NULL if job.gamma == NULL else job.gamma + begin * c
    some.beta = NULL if job.beta == NULL else job.beta + begin * c
    if job.scale != NULL:
        some.scale = <float*>job.scale + begin * c
        some.shift = <float*>job.shift + begin * c
    some.partial = <double*>job.room
    some.x = some.y = some.partial + 2 * size * job.params
    if job.dy != NULL:
        some.dy = some.y = <float*>some.x + job.chunk * width
        if job.params:
            some.columns = <float*>some.dy + job.chunk * width + VECTOR
            for i in range(size):
                dgamma[i] = dbeta[i] = 0.0
    if job.stream:
        bn_open(&lines)
        bn_stand(&ahead)
        if job.far:
            at = 2 * (o * job.groups * row + begin * row)
            bn_walk(&ahead, <const char*>job.x + at, second_input(job, at), 2 * width,
                    2 * job.groups * row)
            bn_fetch(&ahead, min(<Py_ssize_t>FETCH_BYTES, 2 * job.chunk * width))
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
            bn_read_float(job.narrow, job.dy, at, n * width, <float*>some.dy)
        row_task(&some, 0, <const float*>some.x)
        add_narrow_gradient(job, at, n * width, <float*>some.y)
        write_rows(job, <const float*>some.y, at, n * width, &lines, &ahead)
        if job.dy != NULL and job.params:
            for i in range(size):
                dgamma[i] += some.partial[i]
                dbeta[i] += some.partial[size + i]
        o += n
    close_sums(job, &sent)
    if job.stream:
        bn_close(&lines, &ahead)
        bn_fence()


cdef void task_of_rows(RowJob* job, Py_ssize_t t) noexcept nogil:
    if job.narrow != BN_REAL:
        narrow_rows(job, t)
    elif job.wide:
        row_task(job, t, <const double*>job.x)
    else:
        row_task(job, t, <const float*>job.x)
