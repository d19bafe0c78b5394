# The maps of columns again, for outputs that bypass the caches: lines.h sends each line as it is computed.
#
# Uses Columns (channel_columns).
# Gives EDGED, send_columns.

cdef enum:
    EDGED = 64      # values of a row or run from which it pays to send it though it is not whole lines


cdef inline void send_columns_by(
    Activation act, Job* job, const real* dy, const real* x, real* y, Py_ssize_t n, const Columns* of, bn_edge* edge
) noexcept nogil:
    cdef const real* h = <const real*>of.h
    cdef const real* scale = <const real*>of.scale
    cdef const real* shift = <const real*>of.shift
    cdef int found = 0
    if dy != NULL:
        bn_send_gradients(act, dy, x, y, n, h, scale, shift, <const real*>of.a, <const real*>of.b, <const real*>of.c,
                          edge)
    elif job.finite:
        found = bn_send_checked(act, x, y, n, h, scale, shift, edge)
        if found:
            bn_set(&job.infinite)
    else:
        bn_send_columns(act, x, y, n, h, scale, shift, edge)


cdef void send_columns(
    Job* job, const real* dy, const real* x, real* y, Py_ssize_t n, const Columns* of, bn_edge* edge
) noexcept nogil:
    """normalize_columns, checked_columns or gradient_columns of a line."""
    by_kind(send_columns_by[real], job.act, job, dy, x, y, n, of, edge)
