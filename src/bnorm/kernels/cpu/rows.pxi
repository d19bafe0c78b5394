# Layer, group, instance and RMS normalization.
#
# Uses activation, data, is_wide, narrow_of, result, scratch, vector (arrays), FAR, FAR_ROWS, STREAM_TWO, bypasses,
# plan_rows, run_rows (plan).
# Gives entries only.


cdef void row_view(
    RowJob* job, cnp.ndarray x, cnp.ndarray y, cnp.ndarray gamma, cnp.ndarray beta, cnp.ndarray dy, bint params,
    double slope
) noexcept:
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    memset(job, 0, sizeof(RowJob))
    job.outer = shape[0]
    job.groups = shape[1]
    job.channels = shape[2]
    job.inner = shape[3]
    job.wide = is_wide(x)
    job.narrow = narrow_of(x)
    job.x = cnp.PyArray_DATA(x)
    job.y = cnp.PyArray_DATA(y)
    job.stream = bypasses(cnp.PyArray_NBYTES(y), STREAM_TWO)
    job.far = cnp.PyArray_NBYTES(x) >= (FAR if dy is None else FAR_ROWS)
    job.gamma = <const double*>data(gamma)
    job.beta = <const double*>data(beta)
    job.dy = data(dy)
    job.params = params
    job.act = activation(slope)
    plan_rows(job)


cdef inline bint has_columns(const RowJob* job) noexcept nogil:
    """Whether gamma and beta, or their gradients, change from value to value. Otherwise they need no memory."""
    return job.inner == 1 and (job.gamma != NULL or job.beta != NULL or job.params)


cdef inline size_t columns_size(const RowJob* job) noexcept nogil:
    return job.groups * job.channels * sizeof(double) + BN_BEYOND if has_columns(job) else 0


cdef void row_columns(RowJob* job, char* memory) noexcept nogil:
    """gamma and beta in the type of x, if they change from value to value; 1 and 0 if one is absent."""
    cdef Py_ssize_t c, n = job.groups * job.channels
    cdef size_t size = n * (sizeof(double) if job.wide else sizeof(float))
    if not has_columns(job):
        return
    job.scale = memory
    job.shift = memory + columns_size(job)
    memset(<char*>job.scale + size, 0, BN_BEYOND)
    memset(<char*>job.shift + size, 0, BN_BEYOND)
    for c in range(n):
        if job.wide:
            (<double*>job.scale)[c] = 1.0 if job.gamma == NULL else job.gamma[c]
            (<double*>job.shift)[c] = 0.0 if job.beta == NULL else job.beta[c]
        else:
            (<float*>job.scale)[c] = <float>(1.0 if job.gamma == NULL else job.gamma[c])
            (<float*>job.shift)[c] = <float>(0.0 if job.beta == NULL else job.beta[c])


cdef inline void join_columns(RowJob* job) noexcept nogil:
    """Without parameters a row is a single run."""
    if job.inner == 1 and job.scale == NULL:
        job.inner = job.channels
        job.channels = 1


cdef int check_room(const RowJob* job) except -1:
    if job.failed:
        raise MemoryError(f"bnorm: no memory for {job.room_size} bytes of converted rows in each thread")
    return 0


def rows_forward(cnp.ndarray x, cnp.ndarray gamma, cnp.ndarray beta, double eps, int rule=0, double slope=1.0,
                 cnp.ndarray out=None):
    """Normalize every (n, g) of x[N, G, K, L] over its K * L values: y, and mean and rstd per row."""
    cdef RowJob job
    cdef cnp.ndarray y = result(x, out), mean_, rstd_
    row_view(&job, x, y, gamma, beta, None, False, slope)
    job.rule = rule
    job.eps = eps
    mean_ = vector(job.outer * job.groups)
    rstd_ = vector(job.outer * job.groups)
    job.mean = <double*>data(mean_)
    job.rstd = <double*>data(rstd_)
    cdef char* memory = <char*>scratch(2 * columns_size(&job))
    try:
        with nogil:
            row_columns(&job, memory)
            join_columns(&job)
            run_rows(&job)
    finally:
        free(memory)
    check_room(&job)
    return y, mean_, rstd_


def rows_backward(cnp.ndarray dy, cnp.ndarray x, cnp.ndarray mean, cnp.ndarray rstd, cnp.ndarray gamma,
                  cnp.ndarray beta, int rule=0, double slope=1.0, bint params=True, cnp.ndarray out=None):
    """dx, dgamma, dbeta from the results of rows_forward."""
    cdef RowJob job
    cdef cnp.ndarray dx = result(x, out), dgamma_ = None, dbeta_ = None
    row_view(&job, x, dx, gamma, beta, dy, params, slope)
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
    cdef size_t columns = 2 * columns_size(&job), sums = job.pieces * 2 * n * sizeof(double) if params else 0
    cdef size_t parts = job.pieces * 2 * columns_size(&job) if params else 0
    cdef char* memory = <char*>scratch(columns + sums + parts)
    job.partial = <double*>(memory + columns)
    job.columns = memory + columns + sums
    try:
        with nogil:
            row_columns(&job, memory)
            join_columns(&job)
            run_rows(&job)
            if params:
                for p in range(1, job.pieces):
                    for c in range(2 * n):
                        job.partial[c] += job.partial[p * 2 * n + c]
                for c in range(n):
                    dg[c] = bn_plain(job.partial[c])
                    db[c] = bn_plain(job.partial[n + c])
    finally:
        free(memory)
    check_room(&job)
    return dx, dgamma_, dbeta_
