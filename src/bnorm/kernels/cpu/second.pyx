"""Derivatives of the backward passes: from cotangents of dx, dgamma and dbeta to gradients of dy, x and gamma.

An entry reads its arrays twice: once for the sums of every channel or row, and once for a map. Everything is computed
in float64, because accuracy matters more than speed for second derivatives. Work is divided by shape alone, and sums
are added in the order of their pieces, so no bit depends on the number of threads.

Per channel or row, with n the count, r = 1 / sqrt(var + eps), u = (x - mean) r, and g = dy times the activation's
slope:

    backward   dx = r (h - w (u H1 + H0) / n), h = gamma g, H0 = sum h, H1 = sum h u;  dgamma = sum g u, dbeta = sum g
    here       the derivatives of sum v dx + sum k dgamma + sum q dbeta for v = ddx, k = ddgamma, q = ddbeta

These derivatives take the slope of the activation as a constant. If it is not constant, `bent` is the gradient of the
activation's argument through the slope; an ordinary backward then takes it to x and the parameters.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from bnorm.kernels.cpu.buffers cimport empty
from bnorm.kernels.cpu.dtypes cimport is_bfloat
from bnorm.kernels.cpu.jobs cimport Activation
from bnorm.kernels.cpu.threads cimport threads_for

cdef extern from "formulas.h" nogil:
    enum:
        BN_IDENTITY
        BN_MEAN_SQUARE
    float bn_act_pull_float(Activation, float, float)
    double bn_act_pull_double(Activation, double, double)
    float bn_act_bend_float(Activation, float)
    double bn_act_bend_double(Activation, double)
    double bn_fold(double, double, double, double)

cnp.import_array()

ctypedef fused real:
    float
    double

cdef enum:
    BLOCK = 256     # values that are summed before their sum is added to a longer one
    TILE = 256      # columns that are summed side by side
    LANES = 64      # partial sums along a run of a channel; in a run of at most this many values, each has its own sum
    TASK = 16384    # values that make a task worth its overhead
    PIECES = 64     # the most pieces of the outer axis
    WIDTH = 8       # partial sums of a row that has a gamma for each value
    SUMS = 7        # sums per channel or row


# Sums of a channel: of g, g u, w v, w v u, v g. Sums of a row: of h, h u, w v, w v u, v h, k g and k g u.
cdef enum:
    H0, H1, V0, V1, T, K0, K1


ctypedef struct Second:
    Py_ssize_t outer, groups, channels, inner   # rows: x[outer][groups][channels][inner]; channels: groups is 1
    Py_ssize_t single           # the number of values if there is one channel: the last run may be shorter than `inner`
    Py_ssize_t piece, pieces
    Activation act
    int rule
    bint frozen
    double count
    const void* dy
    const void* x
    const void* v
    void* d_dy
    void* dx
    void* bent                  # an output; NULL if the slope of the activation is constant
    const double* weight        # [outer][inner] or NULL
    const double* mean          # per channel or row
    const double* rstd
    const double* scale         # per channel: gamma / std and beta; rows: gamma and beta
    const double* shift
    const double* k             # k and q: ddgamma and ddbeta; for channels each may be NULL
    const double* q
    double* sums                # channels: [pieces][SUMS][channels]; rows: [pieces][groups * channels], of dgamma


# The coefficients of the map of a tile: d_dy = slope (a v + of_u u + rest), with the slope of the activation, and
# dx = r (of_u g + w (through v + tilt u + level)).
ctypedef struct Map:
    double[TILE] a, of_u, rest, through, tilt, level


cdef inline void* data(cnp.ndarray a) noexcept:
    return NULL if a is None else cnp.PyArray_DATA(a)


cdef inline double at(const double* values, Py_ssize_t c, double absent) noexcept nogil:
    return absent if values == NULL else values[c]


cdef inline real pulled(const Second* job, real v, real g) noexcept nogil:
    """Return g times the slope of the activation at v: a gradient taken back through the activation."""
    if real is float:
        return bn_act_pull_float(job.act, v, g)
    else:
        return bn_act_pull_double(job.act, v, g)


cdef inline real bent(const Second* job, real v, real dy, real e) noexcept nogil:
    """Return the gradient of v through the slope of the activation. e: the gradient of g = dy times the slope."""
    if real is float:
        return dy * e * bn_act_bend_float(job.act, v)
    else:
        return dy * e * bn_act_bend_double(job.act, v)


cdef void cut(Second* job) noexcept nogil:
    """Cut the outer axis into pieces."""
    cdef Py_ssize_t row = job.groups * job.channels * job.inner
    cdef Py_ssize_t pieces = max(<Py_ssize_t>1, min(<Py_ssize_t>PIECES, min(job.outer, job.outer * row // TASK)))
    job.piece = max(<Py_ssize_t>1, (job.outer + pieces - 1) // pieces)
    job.pieces = max(<Py_ssize_t>1, (job.outer + job.piece - 1) // job.piece)


include "guards.pxi"
include "second/channels.pxi"
include "second/rows.pxi"


cdef int expect_floats(cnp.ndarray ddx, cnp.ndarray dy, cnp.ndarray x, cnp.ndarray bent, int least, int most) except -1:
    expect_block(x, least, most)
    if cnp.PyArray_TYPE(x) != cnp.NPY_DOUBLE and cnp.PyArray_TYPE(x) != cnp.NPY_FLOAT:
        raise TypeError(f"x: expected float32 or float64, got {x.dtype}")
    expect_like("ddx", ddx, x)
    expect_like("dy", dy, x)
    return 0 if bent is None else expect_like("bent", bent, x)


def channels(cnp.ndarray ddx, cnp.ndarray dy, cnp.ndarray x, cnp.ndarray stats, double count, cnp.ndarray weight,
             act not None, bint frozen, cnp.ndarray ddgamma, cnp.ndarray ddbeta, cnp.ndarray bent=None):
    """Return d_dy, dx and dgamma for a `backward` with these arguments, and write its `bent` if an array is given."""
    cdef Second job
    expect_floats(ddx, dy, x, bent, 2, 64)
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    cdef Py_ssize_t C = shape[1], c
    cdef cnp.ndarray d_dy = empty(cnp.PyArray_NDIM(x), shape, cnp.PyArray_TYPE(x), cnp.PyArray_DATA(x))
    cdef cnp.ndarray dx = empty(cnp.PyArray_NDIM(x), shape, cnp.PyArray_TYPE(x), cnp.PyArray_DATA(x))
    cdef cnp.ndarray dgamma = cnp.PyArray_ZEROS(1, shape + 1, cnp.NPY_DOUBLE, 0)
    job.outer, job.groups, job.channels = shape[0], 1, C
    job.inner = cnp.PyArray_MultiplyList(shape + 2, cnp.PyArray_NDIM(x) - 2)
    need("stats", stats, cnp.NPY_DOUBLE, 5 * C)
    expect("weight", weight, cnp.NPY_DOUBLE, job.outer * job.inner)
    expect("ddgamma", ddgamma, cnp.NPY_DOUBLE, C)
    expect("ddbeta", ddbeta, cnp.NPY_DOUBLE, C)
    job.act.kind, job.act.slope, job.rule = act[0], act[1], 0
    job.frozen, job.count = frozen, count if count != 0.0 else 1.0
    if C == 1:      # in runs of one length: memory does not tell where its axis is, so the bits must not depend on that
        job.single = job.outer * job.inner
        job.inner = min(job.single, <Py_ssize_t>TASK)
        job.outer = (job.single + TASK - 1) // TASK
    job.dy, job.x, job.v = data(dy), data(x), data(ddx)
    job.d_dy, job.dx, job.bent = data(d_dy), data(dx), data(bent)
    job.weight = NULL
    if not frozen:
        job.weight = <const double*>data(weight)
    job.mean = <const double*>data(stats)
    job.rstd, job.scale, job.shift = job.mean + 2 * C, job.mean + 3 * C, job.mean + 4 * C
    job.k, job.q = <const double*>data(ddgamma), <const double*>data(ddbeta)
    cut(&job)
    job.sums = <double*>calloc(job.pieces * SUMS * C + 1, sizeof(double))
    if job.sums == NULL:
        raise MemoryError("bnorm: no memory for partial results")
    cdef const double* s = job.sums
    cdef double* result = <double*>data(dgamma)
    with nogil:
        if cnp.PyArray_TYPE(x) == cnp.NPY_DOUBLE:
            run_channels(&job, <const double*>job.x)
        else:
            run_channels(&job, <const float*>job.x)
        for c in range(C):
            result[c] = job.rstd[c] * (
                s[T * C + c] - (s[H0 * C + c] * s[V0 * C + c] + s[H1 * C + c] * s[V1 * C + c]) / job.count)
        free(job.sums)
    return d_dy, dx, dgamma


def rows(cnp.ndarray ddx, cnp.ndarray dy, cnp.ndarray x, cnp.ndarray mean, cnp.ndarray rstd, cnp.ndarray gamma,
         cnp.ndarray beta, int rule, act not None, cnp.ndarray ddgamma, cnp.ndarray ddbeta, cnp.ndarray bent=None,
         cnp.ndarray weight=None):
    """Return d_dy, dx and dgamma for a `rows_backward` with these arguments, and write its `bent` if given."""
    cdef Second job
    expect_floats(ddx, dy, x, bent, 4, 4)
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(x)
    cdef cnp.npy_intp n = shape[1] * shape[2]
    cdef Py_ssize_t c, p
    cdef cnp.ndarray d_dy = empty(4, shape, cnp.PyArray_TYPE(x), cnp.PyArray_DATA(x))
    cdef cnp.ndarray dx = empty(4, shape, cnp.PyArray_TYPE(x), cnp.PyArray_DATA(x))
    cdef cnp.ndarray dgamma = cnp.PyArray_ZEROS(1, &n, cnp.NPY_DOUBLE, 0)
    job.outer, job.groups, job.channels, job.inner = shape[0], shape[1], shape[2], shape[3]
    need("mean", mean, cnp.NPY_DOUBLE, job.outer * job.groups)
    need("rstd", rstd, cnp.NPY_DOUBLE, job.outer * job.groups)
    expect("gamma", gamma, cnp.NPY_DOUBLE, n)
    expect("beta", beta, cnp.NPY_DOUBLE, n)
    expect("ddgamma", ddgamma, cnp.NPY_DOUBLE, n)
    expect("ddbeta", ddbeta, cnp.NPY_DOUBLE, n)
    job.act.kind, job.act.slope, job.rule = act[0], act[1], rule
    expect("weight", weight, cnp.NPY_DOUBLE, job.outer * job.inner)
    job.frozen, job.count, job.weight = False, 1.0, <const double*>data(weight)
    job.dy, job.x, job.v = data(dy), data(x), data(ddx)
    job.d_dy, job.dx, job.bent = data(d_dy), data(dx), data(bent)
    job.mean, job.rstd = <const double*>data(mean), <const double*>data(rstd)
    cut(&job)
    cdef double* memory = <double*>calloc((4 + job.pieces) * n + 1, sizeof(double))
    if memory == NULL:
        raise MemoryError("bnorm: no memory for partial results")
    job.scale, job.shift, job.k, job.q, job.sums = memory, memory + n, memory + 2 * n, memory + 3 * n, memory + 4 * n
    for c in range(n):
        memory[c] = at(<const double*>data(gamma), c, 1.0)
        memory[n + c] = at(<const double*>data(beta), c, 0.0)
        memory[2 * n + c] = at(<const double*>data(ddgamma), c, 0.0)
        memory[3 * n + c] = at(<const double*>data(ddbeta), c, 0.0)
    cdef double* result = <double*>data(dgamma)
    with nogil:
        if cnp.PyArray_TYPE(x) == cnp.NPY_DOUBLE:
            run_rows(&job, <const double*>job.x)
        else:
            run_rows(&job, <const float*>job.x)
        for p in range(job.pieces):
            for c in range(n):
                result[c] += job.sums[p * n + c]
        free(memory)
    return d_dy, dx, dgamma
