# Running statistics, moved by the statistics of a batch.

ctypedef struct Running:
    # The buffers and the rule. The arrays belong to the tuple that they came in.
    void* mean
    void* var
    double* seen            # NULL: an exponential moving average
    bint single             # the buffers are float32
    double momentum, ddof
    bint raises, propagates


cdef int take(Running* r, tuple running) except -1:
    """What `forward` gets as running = (mean, var, momentum, seen, ddof, nonfinite)."""
    cdef str nonfinite = running[5]
    r.mean = data(running[0])
    r.var = data(running[1])
    r.single = cnp.PyArray_TYPE(running[0]) == cnp.NPY_FLOAT
    r.momentum = running[2]
    r.seen = <double*>data(running[3])
    r.ddof = running[4]
    r.raises = nonfinite == "raise"
    r.propagates = nonfinite == "propagate"
    return 0


cdef inline bint move_channel(
    const Running* r, Py_ssize_t c, double count, double batch_mean, double batch_var, bint test
) noexcept nogil:
    """Move channel c, unless it is a test or the result would not be finite. Returns whether it is finite."""
    cdef double mean, var, seen = 0.0
    cdef bint finite
    if r.single:
        mean = (<float*>r.mean)[c]
        var = (<float*>r.var)[c]
    else:
        mean = (<double*>r.mean)[c]
        var = (<double*>r.var)[c]
    if r.seen == NULL:
        mean = bn_ema(mean, batch_mean, r.momentum)
        var = bn_ema(var, bn_variance(batch_var * count, count, r.ddof), r.momentum)
    else:
        seen = r.seen[c]
        bn_pool(&mean, &var, &seen, count, batch_mean, batch_var * count, r.ddof)
    if r.single:    # what float32 cannot hold is not finite there
        finite = bn_finite(<float>mean) and bn_finite(<float>var)
    else:
        finite = bn_finite(mean) and bn_finite(var)
    if test or not (finite or r.propagates):
        return finite
    if r.single:
        (<float*>r.mean)[c] = <float>mean
        (<float*>r.var)[c] = <float>var
    else:
        (<double*>r.mean)[c] = mean
        (<double*>r.var)[c] = var
    if r.seen != NULL:
        r.seen[c] = seen
    return finite


cdef Py_ssize_t move_all(
    const Running* r, const double* mean, const double* var, const double* count, Py_ssize_t step, Py_ssize_t n,
    bint test
) except -1:
    """Move all channels with values by the batch; the number left alone. As a test nothing moves, and "raise" raises.

    step 0: one count for all channels.
    """
    cdef Py_ssize_t c, bad = 0
    for c in range(n):
        if count[c * step] > 0.0:
            bad += not move_channel(r, c, count[c * step], mean[c], var[c], test)
    if bad and r.raises:
        raise FloatingPointError(f"the batch mean or variance of {bad} of {n} channels is not finite")
    return 0 if r.propagates else bad


def move(tuple running, cnp.ndarray count, cnp.ndarray mean, cnp.ndarray var):
    """Move running statistics by a batch of so many values per channel, as forward does; channels left alone."""
    cdef Running r
    cdef const double* n = <const double*>data(count)
    take(&r, running)
    if r.raises:
        move_all(&r, <double*>data(mean), <double*>data(var), n, 1, cnp.PyArray_SIZE(count), True)
    return move_all(&r, <double*>data(mean), <double*>data(var), n, 1, cnp.PyArray_SIZE(count), False)
