# Merging of sets of values, each given by its parts.
#
# Uses data (arrays), channels_of, need (guards).
# Gives entries only.

def merge(list sets not None):
    """Return the merged parts (4, C) of several sets of values, read-only. The mean of a channel without values is NaN.

    Neighboring sets are merged in pairs, then pairs of pairs, so the rounding error grows only with the logarithm of
    their number.
    """
    cdef Py_ssize_t items = len(sets), depth = 0, i, c, bits
    if items == 0:
        raise ValueError("sets: expected at least one, got none")
    cdef Py_ssize_t n = channels_of("sets", sets[0], 4), size = 4 * n
    cdef cnp.npy_intp[2] shape = [4, n]
    cdef cnp.ndarray merged
    cdef double* a
    cdef double* b
    cdef double* memory
    cdef Memory room
    for item in sets:
        need("sets", item, cnp.NPY_DOUBLE, size)
    merged = cnp.PyArray_EMPTY(2, shape, cnp.NPY_DOUBLE, 0)
    room = scratch(<size_t>(bit_length(items) + 1) * size * sizeof(double))
    memory = <double*>room.at
    for i in range(items):      # like counting in binary: each carry merges two results of as many sets
        b = memory + depth * size
        memcpy(b, data(sets[i]), size * sizeof(double))
        depth += 1
        bits = i
        while bits & 1:
            depth -= 1
            merge_two(memory + (depth - 1) * size, memory + depth * size, n)
            bits >>= 1
    while depth > 1:
        depth -= 1
        merge_two(memory + (depth - 1) * size, memory + depth * size, n)
    memcpy(data(merged), memory, size * sizeof(double))
    a = <double*>data(merged)
    for c in range(n):
        if a[c] == 0.0:
            a[n + c] = NAN
            a[2 * n + c] = a[3 * n + c] = 0.0
    cnp.PyArray_CLEARFLAGS(merged, cnp.NPY_ARRAY_WRITEABLE)
    return merged


cdef Py_ssize_t bit_length(Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t bits = 0
    while n:
        bits += 1
        n >>= 1
    return bits


cdef void merge_two(double* a, const double* b, Py_ssize_t n) noexcept nogil:
    """Merge the parts b of n channels into a."""
    cdef Py_ssize_t c
    cdef double count, mean, m2, low
    for c in range(n):
        if b[c] == 0.0:
            continue
        count = a[c]
        mean = low = m2 = 0.0
        if count != 0.0:
            mean = a[n + c]
            m2 = a[2 * n + c]
            low = a[3 * n + c]
        bn_merge(&count, &mean, &m2, &low, b[c], b[n + c], b[2 * n + c], b[3 * n + c])
        a[c] = count
        a[n + c] = mean + low if bn_finite(low) else mean
        a[2 * n + c] = m2
        a[3 * n + c] = (mean - a[n + c]) + low if bn_finite(low) else 0.0
