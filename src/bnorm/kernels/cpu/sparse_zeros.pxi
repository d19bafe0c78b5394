# Zeros of a sparse table that are not stored: how much those of each column weigh, if rows have weights.
#
# Uses nothing of its siblings.
# Gives find_zeros, weight_of.

cdef double SMALL = 2.0 ** -10      # a difference that is this small a part of the numbers has lost digits

cdef struct Zeros:      # of a column
    double weight
    Py_ssize_t next     # the row after the last stored one so far; below 0: the weight is known


cdef bint find_zeros(const Column* column, const Rest* rest, Py_ssize_t pieces, Py_ssize_t columns, Py_ssize_t rows,
                     const double* weight, double* before, Zeros* zeros) noexcept nogil:
    """Set the weights of zeros: what is left of the weight of all rows. Return whether any would have lost digits.

    Such a weight is not known yet. before: set to the weight of all rows before each one, and of all.
    """
    cdef double total, above = 0, left, stored
    cdef Py_ssize_t i, c, p
    cdef bint few = False, cancels
    for i in range(rows):
        before[i + 1] = before[i] + weight[i]
        above += weight[i] != 0
    total = before[rows]
    for c in range(columns):
        left, stored = total, 0
        for p in range(pieces):
            left = left - column[p * columns + c].n - rest[p * columns + c].missing
            stored = stored + rest[p * columns + c].stored
        # If every value is stored, what is left is only the rounding error of the sums of weights.
        cancels = 0 < stored < above and left < SMALL * total
        zeros[c].weight = left if stored < above and not cancels else 0
        zeros[c].next = 0 if cancels else -1
        few |= cancels
    return few


cdef double weight_of(const double* weight, const double* before, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Return the weight of the rows from begin to end."""
    cdef double sum = before[end] - before[begin] if begin < end else 0
    cdef Py_ssize_t i
    if sum < SMALL * before[end]:
        sum = 0
        for i in range(begin, end):
            sum += weight[i]
    return sum


cdef void weigh_zeros(const index_t* indices, const index_t* indptr, Py_ssize_t lines, bint by_column,
                      const double* weight, const double* before, Zeros* zeros) noexcept nogil:
    """Add up the weights of zeros that are not known, but for those of the rows after the last stored ones."""
    cdef Py_ssize_t line, k, i, j
    for line in range(lines):
        if by_column and zeros[line].next < 0:
            continue
        for k in range(indptr[line], indptr[line + 1]):
            i, j = (<Py_ssize_t>indices[k], line) if by_column else (line, <Py_ssize_t>indices[k])
            if zeros[j].next >= 0:
                zeros[j].weight += weight_of(weight, before, zeros[j].next, i)
                zeros[j].next = i + 1
