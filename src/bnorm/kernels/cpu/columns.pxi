# Tables as the loops over groups see them: one array, or columns that are arrays of their own.
#
# Uses expect_block (guards).
# Gives tiles_of.

cdef bn_positions block_of(cnp.ndarray x) except *:
    """Describe a contiguous array (N, C) or (N, C, L)."""
    cdef bn_positions t
    t.x = cnp.PyArray_DATA(x)
    t.columns = NULL
    t.ends = NULL
    t.stretches = 0
    t.kind = kind_of(x)
    t.channels = cnp.PyArray_DIM(x, 1)
    t.inner = cnp.PyArray_DIM(x, 2) if cnp.PyArray_NDIM(x) == 3 else 1
    t.positions = cnp.PyArray_DIM(x, 0) * t.inner
    return t


cdef cnp.ndarray column_of(object given, cnp.ndarray first, Py_ssize_t rows):
    cdef cnp.ndarray x
    if not isinstance(given, cnp.ndarray):
        raise TypeError(f"x: expected columns, got {type(given).__name__}")
    x = given
    expect_block(x, 1, 1)
    if cnp.PyArray_TYPE(x) != cnp.PyArray_TYPE(first) or cnp.PyArray_SIZE(x) != rows:
        raise ValueError(f"x: expected columns of {first.dtype}, {rows} rows each, got {x.dtype} of {len(x)}")
    return x


cdef bn_positions columns_of(list stretches, list kept) except *:
    """Describe a table of stretches of rows, each a list of its columns. kept: gets the arrays that it points to."""
    cdef bn_positions t
    cdef cnp.npy_intp n = len(stretches), channels, total, rows, i, c
    cdef cnp.ndarray places, ends, first, x
    if not n or not len(stretches[0]):
        raise ValueError("x: expected columns, got none")
    channels = len(stretches[0])
    total = n * channels
    first = stretches[0][0]
    places = cnp.PyArray_EMPTY(1, &total, cnp.NPY_INTP, 0)
    ends = cnp.PyArray_EMPTY(1, &n, cnp.NPY_INTP, 0)
    kept += places, ends
    t.x = NULL
    t.columns = <const void* const*>cnp.PyArray_DATA(places)
    t.ends = <Py_ssize_t*>cnp.PyArray_DATA(ends)
    cdef Py_ssize_t* place = <Py_ssize_t*>cnp.PyArray_DATA(places)
    cdef Py_ssize_t* end = <Py_ssize_t*>cnp.PyArray_DATA(ends)
    t.stretches = n
    t.kind = kind_of(first)
    t.channels = channels
    t.inner = 1
    t.positions = 0
    for i in range(n):
        if len(stretches[i]) != channels:
            raise ValueError(f"x: expected {channels} columns, got {len(stretches[i])}")
        rows = len(stretches[i][0])
        for c in range(channels):
            x = column_of(stretches[i][c], first, rows)
            place[i * channels + c] = <Py_ssize_t>cnp.PyArray_DATA(x)
        t.positions += rows
        end[i] = t.positions
    return t


cdef bn_positions tiles_of(object x, list kept) except *:
    """Describe a table. The caller keeps x and `kept`, which own the memory, until the loops are done."""
    if isinstance(x, list):
        return columns_of(x, kept)
    expect_block(x, 2, 3)
    return block_of(x)
