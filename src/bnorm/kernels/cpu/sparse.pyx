"""Sparse matrices on the CPU: moments of columns, including zeros that are not stored, and scaling of columns.

Only the stored values are read. A matrix is compressed by row (CSR) or by column (CSC): `data` and `indices` are its
values and their positions along the other axis, and `indptr` says where each row or column begins.
bnorm.kernels.reference_sparse has the same functions in NumPy.

The sums of a column are taken about its first value, so that a constant column is exact. If that value turns out to be
an outlier, the column is summed once more, about its mean. That mean has lost digits too, so if the outlier weighs next
to nothing this is repeated.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.math cimport INFINITY, fabs
from libc.stdlib cimport calloc, free

from bnorm.kernels.cpu.dtypes cimport is_bfloat
from bnorm.kernels.cpu.threads cimport threads_for

cdef extern from "formulas.h" nogil:
    void bn_merge(double*, double*, double*, double*, double, double, double, double)
    double bn_block_m2(double, double, double)
    double bn_squares(double, double)
    bint bn_finite(double)

cnp.import_array()

include "guards.pxi"

ctypedef fused value_t:
    float
    double

ctypedef fused index_t:
    cnp.int32_t
    cnp.int64_t

cdef enum:
    FAR = 16            # the squares about a center may be this many times the squares about the mean
    MOST_CENTERS = 48   # of a column: each is 15 digits nearer to the mean, and float64 spans 632 of them
    PIECE = 1 << 17     # a piece of rows has at least this many stored values,
    SHARE = 32          # and this many per column: the sums of all pieces take an eighth of the memory of the table
    MAX_PIECES = 64
    CHUNK = 1 << 16     # values that are scaled by one task

cdef enum:              # what is found while values are summed, as bits
    OUTSIDE = 1         # an index that is not in the table
    UNORDERED = 2       # an index that is not above the one before it

cdef struct Column:
    double n            # weight of the stored values that are not NaN
    double center
    double sum          # of w (x - center)
    double square       # of w (x - center)^2

cdef struct Rest:       # not part of Column, as it is seldom needed
    double missing      # weight of NaN
    double stored       # if there are weights: number of values, including NaN, that have a weight above 0

include "sparse_zeros.pxi"


cdef inline void add(Column* c, Rest* rest, double x, double w, bint weighted) noexcept nogil:
    cdef double d
    if c.n == 0:
        c.center = x
    if weighted:
        rest.stored += 1
    if x != x:
        rest.missing += w
        return
    d = x - c.center
    c.n += w
    c.sum += w * d
    c.square += w * d * d


cdef inline void add_again(Column* c, double x, double w) noexcept nogil:
    cdef double d = x - c.center
    if x == x:
        c.sum += w * d
        c.square += w * d * d


cdef bint recenter(Column* c) noexcept nogil:
    """Move a center so far from the mean that squares have lost accuracy, or overflowed. Return whether it moved."""
    cdef double center = c.center + c.sum / c.n
    if c.n == 0 or c.square <= FAR * bn_block_m2(c.sum, c.square, 1 / c.n) or not bn_finite(center):
        return False
    c.center, center = center, c.center
    return c.center != center


cdef int walk(const value_t* data, const index_t* indices, const index_t* indptr, Py_ssize_t begin, Py_ssize_t end,
              Py_ssize_t columns, const double* weight, Column* column, Rest* rest, bint again) noexcept nogil:
    """Add all values of some rows to their columns, with `again` about the new centers. Return what was found."""
    cdef Py_ssize_t i, k
    cdef size_t j, least
    cdef double w = 1
    cdef int found = 0
    for i in range(begin, end):
        if weight != NULL:
            w = weight[i]
        least = 0
        for k in range(indptr[i], indptr[i + 1]):
            j = <size_t>indices[k]
            if j >= <size_t>columns:
                return OUTSIDE
            if w == 0:  # `weigh_zeros` reads its indices too
                continue
            found |= j < least
            least = j + 1
            if again:
                add_again(&column[j], data[k], w)
            else:
                add(&column[j], &rest[j], data[k], w, weight != NULL)
    return UNORDERED if found else 0


cdef int rows_summed(const value_t* data, const index_t* indices, const index_t* indptr, Py_ssize_t begin,
                     Py_ssize_t end, Py_ssize_t columns, const double* weight, Column* column,
                     Rest* rest) noexcept nogil:
    cdef Py_ssize_t c
    cdef int found = walk(data, indices, indptr, begin, end, columns, weight, column, rest, False), far, _
    for _ in range(MOST_CENTERS):
        far = 0
        for c in range(columns):
            far |= recenter(&column[c])
        if found & OUTSIDE or not far:
            break
        for c in range(columns):
            column[c].sum = column[c].square = 0
        walk(data, indices, indptr, begin, end, columns, weight, column, rest, True)
    return found


cdef int column_summed(const value_t* data, const index_t* indices, Py_ssize_t begin, Py_ssize_t end,
                       Py_ssize_t rows, const double* weight, Column* column, Rest* rest) noexcept nogil:
    cdef Py_ssize_t k
    cdef size_t i, least
    cdef int found = 0, centers
    cdef double w = 1
    cdef Column c = column[0]       # in registers
    for centers in range(MOST_CENTERS):
        if centers:
            if not recenter(&c):
                break
            c.sum = c.square = 0
        least = 0
        for k in range(begin, end):
            i = <size_t>indices[k]
            if i >= <size_t>rows:
                return OUTSIDE
            found |= i < least
            least = i + 1
            if weight != NULL:
                w = weight[i]
                if w == 0:
                    continue
            if centers:
                add_again(&c, data[k], w)
            else:
                add(&c, rest, data[k], w, weight != NULL)
    column[0] = c
    return UNORDERED if found else 0


cdef void merge(const Column* c, double* n, double* mean, double* m2, double* low) noexcept nogil:
    """Merge the stored values of a column into these numbers."""
    cdef double step, high
    if c.n != 0:
        step = c.sum / c.n
        high = c.center + step
        bn_merge(n, mean, m2, low, c.n, high, bn_block_m2(c.sum, c.square, 1 / c.n), (c.center - high) + step)


cdef Py_ssize_t row_at(const index_t* indptr, Py_ssize_t rows, Py_ssize_t position) noexcept nogil:
    """Return the first row that begins at this position or after it."""
    cdef Py_ssize_t low = 0, high = rows, middle
    while low < high:
        middle = (low + high) // 2
        if indptr[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint is_sound(const index_t* indptr, Py_ssize_t n, Py_ssize_t stored) noexcept nogil:
    """Whether indptr never decreases and stays within the stored values."""
    cdef Py_ssize_t i
    if indptr[0] < 0 or indptr[n] > stored:
        return False
    for i in range(n):
        if indptr[i] > indptr[i + 1]:
            return False
    return True


cdef int summed(const value_t* data, const index_t* indices, const index_t* indptr, Py_ssize_t stored,
                Py_ssize_t rows, Py_ssize_t columns, bint by_column, const double* weight, Py_ssize_t pieces,
                Column* column, Rest* rest) noexcept nogil:
    """Compute the sums of every piece. Return what was found."""
    cdef Py_ssize_t p, begin, end
    cdef int threads = threads_for(stored, columns if by_column else pieces), found = 0
    if not is_sound(indptr, columns if by_column else rows, stored):
        return OUTSIDE
    if by_column:
        for p in prange(columns, schedule="guided", num_threads=threads):
            found |= column_summed(data, indices, indptr[p], indptr[p + 1], rows, weight, &column[p], &rest[p])
        return found
    stored = indptr[rows]
    for p in prange(pieces, schedule="static", chunksize=1, num_threads=threads):
        begin = row_at(indptr, rows, stored * p // pieces) if p else 0
        end = row_at(indptr, rows, stored * (p + 1) // pieces) if p + 1 < pieces else rows
        found |= rows_summed(data, indices, indptr, begin, end, columns, weight, &column[p * columns],
                             &rest[p * columns])
    return found


cdef int expect_stored(cnp.ndarray data, cnp.ndarray indices) except -1:
    """Check that values and their positions have types that the loops read."""
    if data is None or cnp.PyArray_TYPE(data) not in (cnp.NPY_FLOAT, cnp.NPY_DOUBLE) or cnp.PyArray_NDIM(data) != 1:
        raise TypeError(f"data: expected a vector of float32 or float64, got {type_of(data)}")
    if indices is None or not (
        cnp.PyArray_EquivTypenums(cnp.PyArray_TYPE(indices), cnp.NPY_INT32)
        or cnp.PyArray_EquivTypenums(cnp.PyArray_TYPE(indices), cnp.NPY_INT64)
    ):
        raise TypeError(f"indices: expected int32 or int64, got {type_of(indices)}")
    expect_like("data", data, data)
    return expect_like("indices", indices, indices)


cdef str type_of(cnp.ndarray a):
    return "None" if a is None else f"shape {(<object>a).shape} of {a.dtype}"


def moments(cnp.ndarray data, cnp.ndarray indices, cnp.ndarray indptr, tuple shape, bint by_column,
            cnp.ndarray weight=None):
    """Return parts, (4, C), of the values that are not NaN, including zeros that are not stored, and whether the
    indices of every row or column increase.

    If they do not, there may be duplicate entries, which must be summed first. data: float32 or float64; indices and
    indptr: both int32 or both int64; weight: float64, one per row. ValueError if an index is out of range.
    """
    expect_stored(data, indices)
    cdef Py_ssize_t rows = shape[0], columns = shape[1], stored = min(cnp.PyArray_SIZE(data), cnp.PyArray_SIZE(indices))
    if indptr is None or rows < 0 or columns < 0:
        raise ValueError(f"indptr, shape: expected an array and a shape, got {type_of(indptr)} and {shape}")
    expect("indptr", indptr, cnp.PyArray_TYPE(indices), (columns if by_column else rows) + 1)
    expect("weight", weight, cnp.NPY_DOUBLE, rows)
    cdef Py_ssize_t enough = stored // max(PIECE, SHARE * columns)
    cdef Py_ssize_t pieces = 1 if by_column else max(1, min(enough, <Py_ssize_t>MAX_PIECES))
    cdef const double* w = NULL if weight is None else <const double*>cnp.PyArray_DATA(weight)
    cdef void* x = cnp.PyArray_DATA(data)
    cdef void* places = cnp.PyArray_DATA(indices)
    cdef void* starts = cnp.PyArray_DATA(indptr)
    cdef bint wide = cnp.PyArray_TYPE(data) == cnp.NPY_DOUBLE, far = cnp.PyArray_ITEMSIZE(indices) == 8
    cdef int found
    cdef cnp.npy_intp[2] size
    size[0] = 4
    size[1] = columns
    cdef cnp.ndarray result = cnp.PyArray_ZEROS(2, size, cnp.NPY_DOUBLE, 0)
    cdef double* parts = <double*>cnp.PyArray_DATA(result)
    cdef double missing, left
    cdef Py_ssize_t p, c
    # Aligned, so that each Column is in one cache line.
    cdef size_t sums = max(<Py_ssize_t>1, pieces * columns)
    size[0] = sums + 1
    size[1] = (sizeof(Column) + sizeof(Rest)) // sizeof(double)
    cdef cnp.ndarray block = cnp.PyArray_ZEROS(2, size, cnp.NPY_DOUBLE, 0)     # NumPy asks for large pages, calloc not
    cdef void* memory = cnp.PyArray_DATA(block)
    cdef Column* column = <Column*>((<size_t>memory + sizeof(Column) - 1) // sizeof(Column) * sizeof(Column))
    cdef Rest* rest = <Rest*>(column + sums)
    cdef Zeros* zeros = <Zeros*>calloc(columns + 1 if w != NULL else 1, sizeof(Zeros))
    cdef double* before = <double*>calloc(rows + 1 if w != NULL else 1, sizeof(double))
    cdef bint few = False
    try:
        if zeros == NULL or before == NULL:
            raise MemoryError
        with nogil:
            if wide and far:
                found = summed[double, cnp.int64_t](<double*>x, <cnp.int64_t*>places, <cnp.int64_t*>starts, stored,
                                                    rows, columns, by_column, w, pieces, column, rest)
            elif wide:
                found = summed[double, cnp.int32_t](<double*>x, <cnp.int32_t*>places, <cnp.int32_t*>starts, stored,
                                                    rows, columns, by_column, w, pieces, column, rest)
            elif far:
                found = summed[float, cnp.int64_t](<float*>x, <cnp.int64_t*>places, <cnp.int64_t*>starts, stored,
                                                   rows, columns, by_column, w, pieces, column, rest)
            else:
                found = summed[float, cnp.int32_t](<float*>x, <cnp.int32_t*>places, <cnp.int32_t*>starts, stored,
                                                   rows, columns, by_column, w, pieces, column, rest)
            if not found & OUTSIDE:
                if w != NULL:
                    few = find_zeros(column, rest, pieces, columns, rows, w, before, zeros)
                if few and far:
                    weigh_zeros[cnp.int64_t](<cnp.int64_t*>places, <cnp.int64_t*>starts, columns if by_column else rows,
                                             by_column, w, before, zeros)
                elif few:
                    weigh_zeros[cnp.int32_t](<cnp.int32_t*>places, <cnp.int32_t*>starts, columns if by_column else rows,
                                             by_column, w, before, zeros)
                for c in range(columns):
                    missing, left = 0, rows
                    if w != NULL:
                        if zeros[c].next >= 0:
                            zeros[c].weight += weight_of(w, before, zeros[c].next, rows)
                        left = zeros[c].weight
                    for p in range(pieces):
                        if w == NULL:
                            left = left - column[p * columns + c].n - rest[p * columns + c].missing
                        merge(&column[p * columns + c], &parts[c], &parts[columns + c], &parts[2 * columns + c],
                              &parts[3 * columns + c])
                        missing = missing + rest[p * columns + c].missing
                    if w == NULL and left == rows:      # nothing is stored: everything but the count is 0
                        parts[c] = rows
                        continue
                    if left > 0:
                        bn_merge(&parts[c], &parts[columns + c], &parts[2 * columns + c], &parts[3 * columns + c], left,
                                 0.0, 0.0, 0.0)
                    parts[2 * columns + c] = bn_squares(parts[columns + c], parts[2 * columns + c])
                    if missing == 0:    # so that columns without NaN have one count, however their sums were rounded
                        parts[c] = before[rows] if w != NULL else rows
    finally:
        free(zeros)
        free(before)
    if found & OUTSIDE:
        raise ValueError(f"sparse table: expected indices within its shape, {shape}, got others")
    return result, not found


cdef int scale_chunk(const value_t* data, const index_t* indices, const double* factor, Py_ssize_t columns,
                     value_t* out, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Scale the values from begin to end. Return 1 if there is an infinity, 2 if an index is out of range, or 0."""
    cdef Py_ssize_t k
    cdef size_t j
    cdef int found = 0
    for k in range(begin, end):
        j = <size_t>indices[k]
        if j >= <size_t>columns:
            return 2
        found |= fabs(data[k]) == INFINITY
        out[k] = <value_t>(data[k] * factor[j])
    return found


cdef int scale_all(const value_t* data, const index_t* indices, const double* factor, Py_ssize_t columns,
                   value_t* out, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t chunks = (n + CHUNK - 1) // CHUNK, t
    cdef int found = 0
    for t in prange(chunks, schedule="static", num_threads=threads_for(n, chunks)):
        found |= scale_chunk(data, indices, factor, columns, out, t * CHUNK, min(n, (t + 1) * CHUNK))
    return found


def scaled(cnp.ndarray data, cnp.ndarray indices, cnp.ndarray factor, cnp.ndarray out=None):
    """Return data * factor[indices]: the stored values of a CSR matrix, each column times its factor.

    out may be data itself. FloatingPointError if data contains an infinity, ValueError if an index is out of range; the
    contents of out are then undefined.
    """
    expect_stored(data, indices)
    if factor is None:
        raise TypeError("factor: expected an array, got None")
    expect("factor", factor, cnp.NPY_DOUBLE, cnp.PyArray_SIZE(factor))
    if out is not None:
        expect_like("out", out, data)
        if not cnp.PyArray_ISWRITEABLE(out):
            raise ValueError("out: expected writeable memory")
    cdef Py_ssize_t n = min(cnp.PyArray_SIZE(data), cnp.PyArray_SIZE(indices)), columns = cnp.PyArray_SIZE(factor)
    cdef cnp.ndarray y = cnp.PyArray_EMPTY(1, cnp.PyArray_DIMS(data), cnp.PyArray_TYPE(data), 0) if out is None else out
    cdef const double* f = <const double*>cnp.PyArray_DATA(factor)
    cdef void* x = cnp.PyArray_DATA(data)
    cdef void* to = cnp.PyArray_DATA(y)
    cdef void* places = cnp.PyArray_DATA(indices)
    cdef bint wide = cnp.PyArray_TYPE(data) == cnp.NPY_DOUBLE, far = cnp.PyArray_ITEMSIZE(indices) == 8
    cdef int found
    with nogil:
        if wide and far:
            found = scale_all[double, cnp.int64_t](<double*>x, <cnp.int64_t*>places, f, columns, <double*>to, n)
        elif wide:
            found = scale_all[double, cnp.int32_t](<double*>x, <cnp.int32_t*>places, f, columns, <double*>to, n)
        elif far:
            found = scale_all[float, cnp.int64_t](<float*>x, <cnp.int64_t*>places, f, columns, <float*>to, n)
        else:
            found = scale_all[float, cnp.int32_t](<float*>x, <cnp.int32_t*>places, f, columns, <float*>to, n)
    if found & 2:
        raise ValueError(f"sparse table: expected indices below {columns}, got others")
    if found:
        raise FloatingPointError("data holds an infinity")
    return y
