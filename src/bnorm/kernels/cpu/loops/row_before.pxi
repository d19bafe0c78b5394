# dy before an activation, of some rows at a time, in the memory of the thread. The sums of these rows and their dx are
# computed from it, by the loops that know of no activation: one that is smooth takes longer than all else.
#
# Uses Output (channel_maps), forward_maps (row_maps).
# Gives take_back.

cdef void take_back(RowJob* job, Py_ssize_t row, Py_ssize_t rows, const real* x) noexcept nogil:
    """If it is planned (`plan_before`), take dy of contiguous rows back through the activation, and let job.dy have
    them."""
    cdef Py_ssize_t size = job.channels * job.inner, at = row * size
    cdef char* room = job.room + job.room_size - job.room_before
    cdef real* values
    cdef Output out
    if job.before.kind == BN_IDENTITY or size == 0:
        return
    values = <real*>(room + (-<size_t>room & (BN_LINE - 1)))
    out.y = <char*>(values - at)
    out.narrow = BN_REAL
    out.streamed = out.direct = False
    forward_maps(job, row, rows, row % job.groups, &out, x)
    by_each(pulled_values[real], job.before, <const real*>job.given + at, rows * size, values)
    job.dy = values - at
