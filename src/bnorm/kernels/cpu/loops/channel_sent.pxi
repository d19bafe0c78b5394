# The maps of columns again, for outputs that bypass the caches: lines.h sends each line as it is computed.
#
# Uses identity, leaky, relu (activations), Columns (channel_columns).
# Gives EDGED, LINE, Lines, Output, send_columns, sends.

cdef enum:
    LINE = 1024     # values mapped at a time, half as many float64: the first cache holds the numbers of so many
    EDGED = 64      # values of a row or run from which it pays to send it though it is not whole lines


ctypedef struct Lines:      # converted, or to be converted
    double[LINE >> 1] x, dy, y


ctypedef struct Output:
    char* y
    int narrow          # what y is converted to, line by line
    bint streamed       # past the caches; then what is read is fetched ahead, as much as is written
    bint direct         # row by row, as they are computed
    bn_output lines
    bn_ahead ahead
    bn_edge edge
    Lines* narrow_lines     # as much as a page and more, which rows do without


cdef inline bint sends(const Job* job, const Output* out) noexcept nogil:
    """Whether lines.h has the maps of a job."""
    return out.streamed and out.narrow == BN_REAL and (
        job.dy == NULL or (job.weight == NULL and job.b != NULL))


cdef inline void send_columns_by(
    Job* job, Activation act, const real* dy, const real* x, real* y, Py_ssize_t n, const Columns* of, bn_edge* edge
) noexcept nogil:
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef int found = 0
    if dy != NULL:
        if real is float:
            bn_send_gradients_float(act.kind, <float>act.slope, dy, x, y, n, h, scale, shift, <const float*>of.a,
                                    <const float*>of.b, <const float*>of.c, edge)
        else:
            bn_send_gradients_double(act.kind, act.slope, dy, x, y, n, h, scale, shift, <const double*>of.a,
                                     <const double*>of.b, <const double*>of.c, edge)
    elif job.finite:
        if real is float:
            found = bn_send_checked_float(act.kind, <float>act.slope, x, y, n, h, scale, shift, edge)
        else:
            found = bn_send_checked_double(act.kind, act.slope, x, y, n, h, scale, shift, edge)
        if found:
            bn_set(&job.infinite)
    elif real is float:
        bn_send_columns_float(act.kind, <float>act.slope, x, y, n, h, scale, shift, edge)
    else:
        bn_send_columns_double(act.kind, act.slope, x, y, n, h, scale, shift, edge)


cdef void send_columns(
    Job* job, const real* dy, const real* x, real* y, Py_ssize_t n, const Columns* of, bn_edge* edge
) noexcept nogil:
    """normalize_columns, checked_columns or gradient_columns of a line."""
    if job.act.kind == BN_IDENTITY:
        send_columns_by(job, identity(), dy, x, y, n, of, edge)
    elif job.act.kind == BN_RELU:
        send_columns_by(job, relu(job.act), dy, x, y, n, of, edge)
    else:
        send_columns_by(job, leaky(job.act), dy, x, y, n, of, edge)
