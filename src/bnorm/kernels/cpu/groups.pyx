"""Moments and maps by groups on the CPU: grouped.h says how a group is summed.

The same in NumPy is bnorm.kernels.reference_groups.

    x           (outer, C, inner), or (outer, C) for (outer, C, 1), as in the other kernels
    codes       int32 or int64, one for each position: the number of its group, or -1 for none
    groups      their number, G; a code that is not from -1 to G - 1 is an IndexError

The positions are cut into pieces by their number and that of the groups alone, and the sums of a group in each piece
are merged in order. Within a piece each task sums other groups, which changes no sum. So no bit depends on the threads.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from bnorm.kernels.cpu.buffers cimport empty
from bnorm.kernels.cpu.threads cimport threads_for

cdef extern from "grouped_maps.h" nogil:
    enum:
        BN_REAL, BN_HALF, BN_BFLOAT, BN_BOOL, BN_UINT8, BN_INT8, BN_UINT16, BN_INT16, BN_SINGLE
        BN_OUTSIDE, BN_INFINITE
        BN_TILE, BN_LEAST_ROWS
    ctypedef struct bn_positions:
        const void* x
        int kind
        Py_ssize_t channels, inner
    ctypedef struct bn_group:
        double n
    ctypedef struct bn_grouped:
        bn_positions x
        const void* codes
        int wide
        const double* weight
        Py_ssize_t width, groups
        int skipna, range, ranges
        bn_group* group
        double* sums
        double* rest
    ctypedef struct bn_group_map:
        bn_positions x
        void* y
        int kind, sent
        const void* codes
        int wide
        Py_ssize_t groups
        const double* mean
        const double* scale
        const double* shift
    int bn_sum_groups(const bn_grouped*, Py_ssize_t, Py_ssize_t, int, double*)
    int bn_recenter_groups(bn_grouped*)
    void bn_merge_group(const bn_grouped*, Py_ssize_t, Py_ssize_t, Py_ssize_t, double*, Py_ssize_t)
    int bn_map_groups(const bn_group_map*, Py_ssize_t, Py_ssize_t, double*)

cdef extern from "grouped_codes.h" nogil:
    int bn_rows_later(const void*, int, Py_ssize_t, Py_ssize_t, int64_t*, double*)
    Py_ssize_t bn_codes_of(const int64_t*, Py_ssize_t, int64_t, int, int, int32_t*, int64_t*, int32_t*)

cnp.import_array()

include "guards.pxi"

cdef enum:
    PIECE = 1 << 15     # positions of a piece, at least
    SHARE = 32          # and so many times the groups: the sums of all pieces take a tenth of a table of float64
    MAX_PIECES = 64
    CHUNK = 1 << 13     # positions that are mapped by one task
    MERGED = 1 << 8     # groups that are merged by one task
    LARGE = 1 << 22     # bytes of a result from which it is sent past the caches
    SPARE = 4           # places of a table for each number that is looked for by its distance
    DENSE = 1 << 16     # or so many


cdef int kind_of(cnp.ndarray x) except -1:
    cdef int kind = cnp.PyArray_TYPE(x)
    if kind == cnp.NPY_DOUBLE:
        return BN_REAL
    if kind == cnp.NPY_FLOAT:
        return BN_SINGLE
    if kind == cnp.NPY_FLOAT16:
        return BN_HALF
    if kind == cnp.NPY_BOOL:
        return BN_BOOL
    if kind == cnp.NPY_UINT8:
        return BN_UINT8
    if kind == cnp.NPY_INT8:
        return BN_INT8
    if kind == cnp.NPY_UINT16:
        return BN_UINT16
    return BN_INT16 if kind == cnp.NPY_INT16 else BN_BFLOAT


cdef bn_positions tiles_of(cnp.ndarray x) except *:
    cdef bn_positions t
    expect_block(x, 2, 3)
    t.x = cnp.PyArray_DATA(x)
    t.kind = kind_of(x)
    t.channels = cnp.PyArray_DIM(x, 1)
    t.inner = cnp.PyArray_DIM(x, 2) if cnp.PyArray_NDIM(x) == 3 else 1
    return t


cdef inline size_t room_of(const bn_positions* t) noexcept nogil:
    """The doubles of a block."""
    return max(<Py_ssize_t>BN_TILE, BN_LEAST_ROWS * t.channels)


cdef int expect_codes(cnp.ndarray codes, Py_ssize_t positions, Py_ssize_t groups) except -1:
    """1 if they are of 64 bits, 0 if of 32."""
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


cdef int sum_task(const bn_grouped* whole, Py_ssize_t positions, Py_ssize_t pieces, Py_ssize_t task,
                  double* room) noexcept nogil:
    """A range of groups in a piece of a table."""
    cdef bn_grouped t = whole[0]
    cdef Py_ssize_t piece = task // t.ranges, at = piece * t.groups
    cdef Py_ssize_t begin = positions * piece // pieces, end = positions * (piece + 1) // pieces
    cdef int found
    t.range = task % t.ranges
    t.group += at
    t.sums += at * 3 * t.width
    t.rest += at * (3 * t.width + 1)
    found = bn_sum_groups(&t, begin, end, False, room)
    if not found and bn_recenter_groups(&t):
        bn_sum_groups(&t, begin, end, True, room)
    return found


cdef void merge_task(const bn_grouped* t, Py_ssize_t pieces, Py_ssize_t task, double* parts) noexcept nogil:
    """MERGED groups."""
    cdef Py_ssize_t g, c
    for g in range(task * MERGED, min(t.groups, (task + 1) * MERGED)):
        for c in range(t.width):
            bn_merge_group(t, pieces, g, c, parts + g * t.width + c, t.groups * t.width)


cdef int sum_all(const bn_grouped* t, Py_ssize_t positions, Py_ssize_t pieces, int threads, double* room,
                 double* parts) noexcept nogil:
    cdef Py_ssize_t task, tasks = pieces * t.ranges, groups = (t.groups + MERGED - 1) // MERGED
    cdef Py_ssize_t size = room_of(&t.x)
    cdef int found = 0
    for task in prange(tasks, schedule="static", chunksize=1, num_threads=threads):
        found |= sum_task(t, positions, pieces, task, room + threadid() * size)
    if not found:
        for task in prange(groups, schedule="static", num_threads=threads):
            merge_task(t, pieces, task, parts)
    return found


def moments(cnp.ndarray x, cnp.ndarray codes, Py_ssize_t groups, cnp.ndarray weight=None, bint skipna=False):
    """parts, (4, G, C), of each group: as `moments` of the positions that have its code.

    weight: None or float64 of each position, finite, not negative. A value of weight 0 does not count, nor with skipna
    does NaN.
    """
    cdef bn_grouped t
    cdef cnp.npy_intp[3] shape
    cdef Py_ssize_t pieces = 1, most, sums, positions
    cdef int found = 0, threads
    cdef double* room
    t.x = tiles_of(x)
    positions = cnp.PyArray_DIM(x, 0) * t.x.inner
    t.wide = expect_codes(codes, positions, groups)
    expect("weight", weight, cnp.NPY_DOUBLE, positions)
    shape[0] = 4
    shape[1] = groups
    shape[2] = t.x.channels
    cdef cnp.ndarray result = cnp.PyArray_ZEROS(3, shape, cnp.NPY_DOUBLE, 0)
    cdef double* parts = <double*>cnp.PyArray_DATA(result)
    t.codes = cnp.PyArray_DATA(codes)
    t.weight = NULL if weight is None else <double*>cnp.PyArray_DATA(weight)
    t.width = t.x.channels
    t.groups = groups
    t.skipna = skipna
    t.range = 0
    t.ranges = 1
    most = min(positions // max(<Py_ssize_t>PIECE, SHARE * groups), <Py_ssize_t>MAX_PIECES)
    while 2 * pieces <= most:
        pieces *= 2
    threads = threads_for(positions * t.width, 1 << 20)
    while pieces * t.ranges < threads and t.ranges < MAX_PIECES:
        t.ranges *= 2
    sums = pieces * groups
    t.group = <bn_group*>calloc(sums + 1, sizeof(bn_group))
    t.sums = <double*>calloc(3 * sums * t.width + 1, sizeof(double))
    t.rest = <double*>calloc(sums * (3 * t.width + 1) + 1, sizeof(double))
    room = <double*>malloc(threads * room_of(&t.x) * sizeof(double))
    try:
        if t.group == NULL or t.sums == NULL or t.rest == NULL or room == NULL:
            raise MemoryError
        with nogil:
            found = sum_all(&t, positions, pieces, threads, room, parts)
    finally:
        free(t.group)
        free(t.sums)
        free(t.rest)
        free(room)
    if found:
        raise IndexError(f"codes: expected -1 to {groups - 1}, got others")
    return result


cdef int map_all(const bn_group_map* m, Py_ssize_t positions, Py_ssize_t tasks, int threads,
                 double* room) noexcept nogil:
    cdef Py_ssize_t task, size = 2 * room_of(&m.x)
    cdef int found = 0
    for task in prange(tasks, schedule="static", num_threads=threads):
        found |= bn_map_groups(m, task * CHUNK, min(positions, (task + 1) * CHUNK), room + threadid() * size)
    return found


def normalize(cnp.ndarray x, cnp.ndarray codes, cnp.ndarray numbers, cnp.ndarray out=None, bint finite=False):
    """(x - mean) scale + shift by the numbers of each position's group, computed in float64; NaN where it has none.

    numbers: float64 (3, G, C), mean, scale and shift. out: None, or an array like the result, possibly x. With finite
    it is a FloatingPointError if x contains infinity; out is undefined then, and also if a code is wrong.
    """
    cdef bn_group_map m
    cdef int found, threads, kind
    cdef double* room = NULL
    cdef Py_ssize_t positions, tasks
    m.x = tiles_of(x)
    positions = cnp.PyArray_DIM(x, 0) * m.x.inner
    m.kind = m.x.kind if m.x.kind in (BN_HALF, BN_BFLOAT, BN_SINGLE) else BN_REAL
    kind = cnp.NPY_DOUBLE if m.kind == BN_REAL else cnp.PyArray_TYPE(x)
    if numbers is None or cnp.PyArray_NDIM(numbers) != 3 or cnp.PyArray_DIM(numbers, 0) != 3:
        shape = None if numbers is None else (<object>numbers).shape
        raise ValueError(f"numbers: expected shape (3, G, {m.x.channels}), got {shape}")
    m.groups = cnp.PyArray_DIM(numbers, 1)
    expect("numbers", numbers, cnp.NPY_DOUBLE, 3 * m.groups * m.x.channels)
    m.wide = expect_codes(codes, positions, m.groups)
    if out is not None:
        expect("out", out, kind, cnp.PyArray_SIZE(x))
        if not cnp.PyArray_ISWRITEABLE(out):
            raise ValueError("out: expected writeable memory")
    cdef cnp.ndarray y = out
    if y is None:
        y = empty(cnp.PyArray_NDIM(x), cnp.PyArray_DIMS(x), kind, cnp.PyArray_DATA(x))
    m.y = cnp.PyArray_DATA(y)
    m.codes = cnp.PyArray_DATA(codes)
    m.sent = cnp.PyArray_NBYTES(y) >= LARGE
    m.mean = <double*>cnp.PyArray_DATA(numbers)
    m.scale = m.mean + m.groups * m.x.channels
    m.shift = m.scale + m.groups * m.x.channels
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
    """Of each position, how many positions of its group come after it, float64; 0 where there is no group."""
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
    """The different numbers among int64 values, in the order of their first appearance, and the codes of all: int32."""
    if values is None:
        raise TypeError("values: expected an array, got None")
    cdef cnp.npy_intp n = cnp.PyArray_SIZE(values), i, found = 0
    expect("values", values, cnp.NPY_INT64, n)
    if n >= 1 << 31:
        raise ValueError(f"values: expected fewer than 2^31, got {n}")
    cdef const int64_t* v = <const int64_t*>cnp.PyArray_DATA(values)
    cdef cnp.ndarray codes = cnp.PyArray_EMPTY(1, &n, cnp.NPY_INT32, 0)
    cdef int32_t* to = <int32_t*>cnp.PyArray_DATA(codes)
    cdef int64_t least = INT64_MAX, most = INT64_MIN
    cdef uint64_t span
    cdef int spread, bits = 1
    cdef size_t places
    cdef int32_t* table = NULL
    cdef int64_t* numbers = NULL
    with nogil:
        for i in range(n):
            least = min(least, v[i])
            most = max(most, v[i])
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
