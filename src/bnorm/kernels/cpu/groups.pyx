"""Moments and maps by groups on the CPU: grouped.h says how a group is summed.

bnorm.kernels.reference_groups has the same functions in NumPy.

    x           (outer, C, inner), or (outer, C) for (outer, C, 1), as in the other kernels; or columns of one type
                that are arrays of their own: a list with a list of C columns for each stretch of positions
    codes       int32 or int64, one for each position: the number of its group, or -1 for none
    groups      their number, G; a code that is not from -1 to G - 1 is an IndexError

The positions are cut into pieces, which depend on their number and their codes alone, and the sums of a group in each
piece are merged in order. Within a piece, tasks sum different groups, which changes no sum. So no bit depends on
threads.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from bnorm.kernels.cpu.buffers cimport empty
from bnorm.kernels.cpu.dtypes cimport is_bfloat, kind_of
from bnorm.kernels.cpu.kinds cimport BN_BFLOAT, BN_FLOAT32, BN_HALF
from bnorm.kernels.cpu.threads cimport threads_for

cdef extern from "grouped_maps.h" nogil:
    enum:
        BN_OUTSIDE, BN_INFINITE
        BN_TILE, BN_LEAST_ROWS, BN_MOST_CENTERS
    ctypedef struct bn_positions:
        const void* x
        const void* const* columns
        const Py_ssize_t* ends
        int kind
        Py_ssize_t channels, inner, stretches, positions
    ctypedef struct bn_group:
        double n
    ctypedef struct bn_piece:
        Py_ssize_t least, groups, at
    ctypedef struct bn_grouped:
        bn_positions x
        const void* codes
        int wide
        const double* weight
        Py_ssize_t width, least, groups
        int skipna, range, ranges
        bn_group* group
        double* sums
        double* rest
    ctypedef struct bn_group_map:
        bn_positions x, y
        int sent
        const void* codes
        int wide
        Py_ssize_t groups
        const double* numbers
    int bn_find_range(const void*, int, Py_ssize_t, Py_ssize_t, Py_ssize_t, bn_piece*)
    void bn_join_pieces(bn_piece*, Py_ssize_t)
    void bn_sum_groups(const bn_grouped*, Py_ssize_t, Py_ssize_t, int, double*)
    int bn_recenter_groups(bn_grouped*, int)
    void bn_merge_piece(const bn_grouped*, Py_ssize_t, Py_ssize_t, double*, Py_ssize_t)
    int bn_finish_groups(Py_ssize_t, Py_ssize_t, double*, Py_ssize_t)
    int bn_map_groups(const bn_group_map*, Py_ssize_t, Py_ssize_t, double*)

cdef extern from "grouped_codes.h" nogil:
    void bn_find_ends(const int64_t*, Py_ssize_t, Py_ssize_t, int64_t*, int64_t*)
    int bn_rows_later(const void*, int, Py_ssize_t, Py_ssize_t, int64_t*, double*)
    Py_ssize_t bn_codes_of(const int64_t*, Py_ssize_t, int64_t, int, int, int32_t*, int64_t*, int32_t*)

cnp.import_array()

include "guards.pxi"
include "columns.pxi"

cdef enum:
    PIECE = 1 << 15     # a piece has at least this many positions,
    SHARE = 32          # and this many for each of its groups: all sums take a tenth of the memory of a float64 table
    MAX_PIECES = 64
    CHUNK = 1 << 13     # positions that are mapped by one task
    MERGED = 1 << 8     # groups that are merged by one task
    LARGE = 1 << 22     # a result of this many bytes is stored past the caches
    SPARE = 4           # numbers are not hashed if their range is below this many times their count,
    DENSE = 1 << 16     # or below this


cdef inline size_t room_of(const bn_positions* t) noexcept nogil:
    """Return the number of doubles that memory for a block needs."""
    return max(<Py_ssize_t>BN_TILE, BN_LEAST_ROWS * t.channels)


cdef int expect_codes(cnp.ndarray codes, Py_ssize_t positions, Py_ssize_t groups) except -1:
    """Check the type and the number of codes. Return 1 if they have 64 bits, 0 if 32."""
    cdef int kind
    if codes is None:
        raise TypeError("codes: expected an array, got None")
    if not 0 <= groups < 1 << 31:
        raise ValueError(f"groups: expected 0 to 2^31 - 1, got {groups}")
    kind = cnp.PyArray_TYPE(codes)
    if cnp.PyArray_EquivTypenums(kind, cnp.NPY_INT64):
        expect("codes", codes, cnp.NPY_INT64, positions)
        return 1
    expect("codes", codes, cnp.NPY_INT32, positions)
    return 0


cdef bn_grouped piece_of(const bn_grouped* whole, const bn_piece* piece) noexcept nogil:
    """Return the table with the groups and the sums of a piece."""
    cdef bn_grouped t = whole[0]
    t.least = piece.least
    t.groups = piece.groups
    t.group += piece.at
    t.sums += piece.at * 3 * t.width
    t.rest += piece.at * (3 * t.width + 1)
    return t


cdef void sum_task(const bn_grouped* whole, const bn_piece* piece, Py_ssize_t pieces, Py_ssize_t task,
                   double* room, bint overflowed) noexcept nogil:
    """Sum one share of the groups in one piece of a table. overflowed: this has been done, but squares overflowed."""
    cdef Py_ssize_t p = task // whole.ranges, positions = whole.x.positions
    cdef Py_ssize_t begin = positions * p // pieces, end = positions * (p + 1) // pieces
    cdef bn_grouped t = piece_of(whole, piece + p)
    cdef int centers = 1
    t.range = task % t.ranges
    if not overflowed:
        bn_sum_groups(&t, begin, end, False, room)
    while centers < BN_MOST_CENTERS and bn_recenter_groups(&t, overflowed):
        bn_sum_groups(&t, begin, end, True, room)
        centers += 1


cdef int merge_task(const bn_grouped* whole, const bn_piece* piece, Py_ssize_t pieces, Py_ssize_t task,
                    Py_ssize_t groups, double* parts) noexcept nogil:
    """Merge the sums of all pieces, for the task's MERGED groups. Return whether squares have overflowed."""
    cdef Py_ssize_t begin = task * MERGED, end = min(groups, begin + MERGED), p, width = whole.width
    cdef bn_grouped t
    for p in range(4):
        memset(parts + (p * groups + begin) * width, 0, (end - begin) * width * sizeof(double))
    for p in range(pieces):
        t = piece_of(whole, piece + p)
        bn_merge_piece(&t, begin, end, parts, groups)
    return bn_finish_groups(begin * width, end * width, parts, groups * width)


cdef void sum_all(const bn_grouped* t, const bn_piece* piece, Py_ssize_t pieces, int threads, double* room,
                  Py_ssize_t groups, double* parts) noexcept nogil:
    cdef Py_ssize_t task, tasks = pieces * t.ranges, merges = (groups + MERGED - 1) // MERGED
    cdef Py_ssize_t size = room_of(&t.x)
    cdef int overflowed = 0, again
    for again in range(2):
        for task in prange(tasks, schedule="static", chunksize=1, num_threads=threads):
            sum_task(t, piece, pieces, task, room + threadid() * size, again)
        for task in prange(merges, schedule="static", num_threads=threads):
            overflowed |= merge_task(t, piece, pieces, task, groups, parts)
        if not overflowed:      # or only about centers that were far from the mean
            break


cdef Py_ssize_t cut(const bn_grouped* t, Py_ssize_t groups, int threads, bn_piece* piece) noexcept nogil:
    """Cut the positions into pieces and return their number, a power of two: fewer if the sums of their groups would
    take much memory. Return 0 if a code is neither a group's nor -1.
    """
    cdef Py_ssize_t n = t.x.positions, pieces = 1, p, total
    cdef int found = 0
    while 2 * pieces <= min(n // PIECE, <Py_ssize_t>MAX_PIECES):
        pieces *= 2
    for p in prange(pieces, schedule="static", num_threads=threads):
        found |= bn_find_range(t.codes, t.wide, n * p // pieces, n * (p + 1) // pieces, groups, piece + p)
    if found:
        return 0
    while True:
        total = 0
        for p in range(pieces):
            piece[p].at = total
            total += piece[p].groups
        if pieces == 1 or SHARE * total <= n:
            return pieces
        pieces //= 2
        bn_join_pieces(piece, pieces)


cdef double weight_of_each(const double* weight, Py_ssize_t n) noexcept nogil:
    """Return the weight of n positions if all weigh the same, else 0."""
    cdef Py_ssize_t i
    for i in range(1, n):
        if weight[i] != weight[0]:
            return 0.0
    return weight[0] if n else 0.0


def moments(object x, cnp.ndarray codes, Py_ssize_t groups, cnp.ndarray weight=None, bint skipna=False):
    """Return parts, (4, G, C): for each group what `moments` gives for the positions that have its code.

    weight: None, or float64 for each position, finite, not negative. A value of weight 0 does not count, nor does NaN
    if skipna is set.
    """
    cdef bn_grouped t
    cdef bn_piece[MAX_PIECES] piece
    cdef cnp.npy_intp[3] shape
    cdef cnp.npy_intp size
    cdef Py_ssize_t pieces, sums, i
    cdef int threads
    cdef double* room
    cdef double each = 0.0
    cdef list kept = []
    t.x = tiles_of(x, kept)
    t.wide = expect_codes(codes, t.x.positions, groups)
    expect("weight", weight, cnp.NPY_DOUBLE, t.x.positions)
    t.codes = cnp.PyArray_DATA(codes)
    t.weight = NULL if weight is None else <double*>cnp.PyArray_DATA(weight)
    if t.weight != NULL:    # sums of equal weights, row by row, would all be rounded the same way
        each = weight_of_each(t.weight, t.x.positions)
        t.weight = NULL if each > 0.0 else t.weight
    t.width = t.x.channels
    t.skipna = skipna
    t.range = t.least = t.groups = 0
    t.ranges = 1
    threads = threads_for(t.x.positions * t.width, 1 << 20)
    with nogil:
        pieces = cut(&t, groups, threads, piece)
    if not pieces:
        raise IndexError(f"codes: expected -1 to {groups - 1}, got others")
    while pieces * t.ranges < threads and t.ranges < MAX_PIECES:
        t.ranges *= 2
    shape = 4, groups, t.width
    sums = piece[pieces - 1].at + piece[pieces - 1].groups
    size = 3 * sums * t.width
    cdef cnp.ndarray result = empty(3, shape, cnp.NPY_DOUBLE), memory = empty(1, &size, cnp.NPY_DOUBLE)
    cdef double* parts = <double*>cnp.PyArray_DATA(result)
    t.sums = <double*>cnp.PyArray_DATA(memory)
    t.group = <bn_group*>calloc(sums + 1, sizeof(bn_group))
    t.rest = <double*>calloc(sums * (3 * t.width + 1) + 1, sizeof(double))
    room = <double*>malloc(threads * room_of(&t.x) * sizeof(double))
    try:
        if t.group == NULL or t.rest == NULL or room == NULL:
            raise MemoryError
        with nogil:
            sum_all(&t, piece, pieces, threads, room, groups, parts)
            for i in range(groups * t.width if each > 0.0 else 0):
                parts[i] *= each
                parts[2 * groups * t.width + i] *= each
    finally:
        free(t.group)
        free(t.rest)
        free(room)
    return result


cdef int map_all(const bn_group_map* m, Py_ssize_t positions, Py_ssize_t tasks, int threads,
                 double* room) noexcept nogil:
    cdef Py_ssize_t task, size = 2 * room_of(&m.x)
    cdef int found = 0
    for task in prange(tasks, schedule="static", num_threads=threads):
        found |= bn_map_groups(m, task * CHUNK, min(positions, (task + 1) * CHUNK), room + threadid() * size)
    return found


def normalize(object x, cnp.ndarray codes, cnp.ndarray numbers, cnp.ndarray out=None, bint finite=False):
    """Return (x - mean) scale + shift with the numbers of each position's group, computed in float64; NaN without one.

    numbers: float64 (G, 3, C), mean, scale and shift. out: None, or an array like the result, possibly x; the result
    for columns is (1, C, positions). finite: raise FloatingPointError if x contains an infinity. After this error, and
    after that of a wrong code, the contents of out are undefined.
    """
    cdef bn_group_map m
    cdef int found, threads, kind
    cdef double* room = NULL
    cdef Py_ssize_t positions, tasks
    cdef cnp.npy_intp[3] shape
    cdef list kept = []
    cdef cnp.ndarray first, y = out
    m.x = tiles_of(x, kept)
    first = x[0][0] if m.x.columns != NULL else x
    positions = m.x.positions
    kind = cnp.PyArray_TYPE(first) if m.x.kind in (BN_HALF, BN_BFLOAT, BN_FLOAT32) else cnp.NPY_DOUBLE
    if numbers is None or cnp.PyArray_NDIM(numbers) != 3 or cnp.PyArray_DIM(numbers, 1) != 3:
        given = None if numbers is None else (<object>numbers).shape
        raise ValueError(f"numbers: expected shape (G, 3, {m.x.channels}), got {given}")
    m.groups = cnp.PyArray_DIM(numbers, 0)
    expect("numbers", numbers, cnp.NPY_DOUBLE, 3 * m.groups * m.x.channels)
    m.wide = expect_codes(codes, positions, m.groups)
    if out is not None:
        expect("out", out, kind, positions * m.x.channels)
        if not cnp.PyArray_ISWRITEABLE(out):
            raise ValueError("out: expected writeable memory")
    elif m.x.columns == NULL:
        y = empty(cnp.PyArray_NDIM(first), cnp.PyArray_DIMS(first), kind, cnp.PyArray_DATA(first))
    else:
        shape = 1, m.x.channels, positions
        y = empty(3, shape, kind, m.x.columns[0])
    m.y = m.x
    m.y.x = cnp.PyArray_DATA(y)
    m.y.kind = kind_of(y)
    if m.x.columns != NULL:
        m.y.columns = NULL
        m.y.inner = positions
    m.codes = cnp.PyArray_DATA(codes)
    m.sent = cnp.PyArray_NBYTES(y) >= LARGE
    m.numbers = <double*>cnp.PyArray_DATA(numbers)
    tasks = (positions + CHUNK - 1) // CHUNK
    threads = threads_for(positions * m.x.channels, tasks)
    room = <double*>malloc(2 * threads * room_of(&m.x) * sizeof(double) + 64)
    if room == NULL:
        raise MemoryError
    with nogil:
        found = map_all(&m, positions, tasks, threads, <double*>((<size_t>room + 63) // 64 * 64))
    free(room)
    if found & BN_OUTSIDE:
        raise IndexError(f"codes: expected -1 to {m.groups - 1}, got others")
    if finite and found & BN_INFINITE:
        raise FloatingPointError("x holds an infinity")
    return y


def later(cnp.ndarray codes, Py_ssize_t groups):
    """Return, for each position, how many positions of its group come after it, float64; 0 without a group."""
    if codes is None:
        raise TypeError("codes: expected an array, got None")
    cdef cnp.npy_intp n = cnp.PyArray_SIZE(codes)
    cdef int wide = expect_codes(codes, n, groups), found
    cdef cnp.ndarray result = cnp.PyArray_EMPTY(1, &n, cnp.NPY_DOUBLE, 0)
    cdef double* ages = <double*>cnp.PyArray_DATA(result)
    cdef void* of = cnp.PyArray_DATA(codes)
    cdef int64_t* counts = <int64_t*>calloc(groups + 1, sizeof(int64_t))
    if counts == NULL:
        raise MemoryError
    with nogil:
        found = bn_rows_later(of, wide, n, groups, counts, ages)
    free(counts)
    if found:
        raise IndexError(f"codes: expected -1 to {groups - 1}, got others")
    return result


def distinct(cnp.ndarray values):
    """Return the distinct numbers among int64 values, in the order of first appearance, and the int32 codes of all."""
    if values is None:
        raise TypeError("values: expected an array, got None")
    cdef cnp.npy_intp n = cnp.PyArray_SIZE(values), i, found = 0
    cdef int p, pieces = threads_for(n, MAX_PIECES)
    cdef int64_t[MAX_PIECES] low, high
    expect("values", values, cnp.NPY_INT64, n)
    if n >= 1 << 31:
        raise ValueError(f"values: expected fewer than 2^31, got {n}")
    cdef const int64_t* v = <const int64_t*>cnp.PyArray_DATA(values)
    cdef cnp.ndarray codes = empty(1, &n, cnp.NPY_INT32, cnp.PyArray_DATA(values))
    cdef int32_t* to = <int32_t*>cnp.PyArray_DATA(codes)
    cdef int64_t least = INT64_MAX, most = INT64_MIN
    cdef uint64_t span
    cdef int spread, bits = 1
    cdef size_t places
    cdef int32_t* table = NULL
    cdef int64_t* numbers = NULL
    with nogil:
        for p in prange(pieces, schedule="static", num_threads=pieces):
            low[p], high[p] = INT64_MAX, INT64_MIN
            bn_find_ends(v, n * p // pieces, n * (p + 1) // pieces, low + p, high + p)
        for p in range(pieces):
            least = min(least, low[p])
            most = max(most, high[p])
        span = <uint64_t>most - <uint64_t>least if n else 0
        spread = span >= <uint64_t>max(SPARE * n, <Py_ssize_t>DENSE)
        while (<uint64_t>1 << bits) < (2 * <uint64_t>n if spread else span + 1):
            bits += 1
        places = <size_t>1 << bits
        table = <int32_t*>malloc(places * sizeof(int32_t))
        numbers = <int64_t*>malloc((n + 1) * sizeof(int64_t))
        if table != NULL and numbers != NULL:
            memset(table, 0xFF, places * sizeof(int32_t))
            found = bn_codes_of(v, n, least, spread, bits, table, numbers, to)
    try:
        if table == NULL or numbers == NULL:
            raise MemoryError
        result = cnp.PyArray_EMPTY(1, &found, cnp.NPY_INT64, 0)
        for i in range(found):
            (<int64_t*>cnp.PyArray_DATA(result))[i] = numbers[i]
    finally:
        free(table)
        free(numbers)
    return result, codes
