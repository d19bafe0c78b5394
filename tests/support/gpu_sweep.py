"""Calls that together launch every instance of the kernels: for a device, and to test that none is forgotten."""

from typing import NamedTuple

from bnorm.kernels import MEAN_SQUARE, VARIANCE, gpu
from bnorm.kernels.activation import GELU, IDENTITY, RELU, SILU, leaky
from bnorm.kernels.gpu import planes, plans, row_plans
from bnorm.kernels.gpu.shapes import SHORT_RUN, vectors_of

FAMILIES = ("channels", "clusters", "planes", "rows", "rows_weighted", "row_channels")
ACTIVATIONS = (IDENTITY, RELU, leaky(0.25), SILU, GELU)
IMAGES = 70  # more channels than half of the processors: each channel gets one block, which keeps what it has read
CLUSTERS = 32, (300 << 10, 600 << 10, 1000 << 10)  # the channels, and the bytes of each, that clusters keep
MANY_CHANNELS = 14000  # of a group: more than a block can keep sums for
MEETING = 10 << 20, 30 << 20  # bytes of an array: blocks that meet can keep two of the first, but not one of the second
LARGE_BLOCK = 120 << 10  # bytes of a channel that a block keeps if it is alone on its processor


class Case(NamedTuple):
    """A shape, and which calls to make of it."""

    what: str
    shape: tuple[int, ...]


def odd(number):
    return int(number) | 1


def cases(dtype):
    itemsize = plans.ITEMSIZE[dtype]
    for v in vectors_of(dtype):  # odd multiples, so that no larger vector divides
        yield Case("channels", (16, 1024 + v))
        for size in MEETING:
            yield Case("channels", (size // itemsize // 1024, 1024 + v))
        yield Case("channels", (4, 5, 129 * v))
        yield Case("channels", (16, 3, 20001 * v))
        for arrays in (1, 2):
            yield Case("channels", (8, IMAGES, odd(LARGE_BLOCK / arrays / itemsize / 8 / v) * v))
        for size in CLUSTERS[1]:
            yield Case("channels", (8, CLUSTERS[0], odd(size / itemsize / 8 / v) * v))
        long = odd(row_plans.TWO_PER_PROCESSOR / 2 / itemsize / v)  # by broad blocks; runs only in a backward
        held = ((700, 31), (700, 201), (20, 1001), (20, 2001), (20, 2101), (6, long))
        if v * itemsize == plans.VECTOR_BYTES:  # also three and five vectors for a thread, and six in a forward
            held += tuple((700, n) for n in (19, 23, 191, 301)) + tuple((20, n) for n in (701, 1201, 1401, 2401, 2701))
        for rows, vectors in held:
            yield Case("rows", (rows, 1, vectors * v, 1))
        # sums per channel in the same pass, for each way to hold a row; not for too many channels, or of one value each
        for samples, vectors in held:
            yield Case("rows", (samples, 2, 1, vectors * v))
        yield Case("rows", (6, 3, v, 1))
        yield Case("rows", (2, 1, MANY_CHANNELS, odd(SHORT_RUN / itemsize / v) * v))
    least, few, many = planes.sizes(itemsize)
    for channels, plane in ((2 * least, 49), (planes.MORE_BLOCKS * few, 49), (2 * many, 9)):
        yield Case("channels", (6, channels, plane))
    for vectors in (128, 1024):  # rows that fill a warp, and a block
        yield Case("rows", (70, 1, vectors * plans.VECTOR_BYTES // itemsize, 1))
    yield Case("weighted", (300, 33))
    yield Case("weighted", (6, 3, 300))


def results(case, act, x, dy, vectors, weight):
    """Yield what the calls of a case return, by name. `vectors` are gamma and beta."""
    gamma, beta = vectors
    if case.what == "rows":
        for rule in (VARIANCE, MEAN_SQUARE):
            y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5, rule, act)
            yield "y", y
            dx, dgamma, dbeta = gpu.rows_backward(dy, x, mean, rstd, gamma, beta, rule, act)
            yield from (("dx", dx), ("dgamma", dgamma), ("dbeta", dbeta))
            yield "dx", gpu.rows_backward(dy, x, mean, rstd, gamma, beta, rule, act, False)[0]
        w = weight[:, :1].repeat(case.shape[3], 1)
        y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5, act=act, weight=w)
        yield "y", y
        yield "dx", gpu.rows_backward(dy, x, mean, rstd, gamma, beta, act=act, weight=w)[0]
        return
    w = weight if case.what == "weighted" else None
    y, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5, weight=w, act=act)
    yield "y", y
    yield "stats", stats
    dx, dgamma, dbeta = gpu.backward(dy, x, stats, count, w, act)
    yield from (("dx", dx), ("dgamma", dgamma), ("dbeta", dbeta))
    yield "stats", gpu.finish(gpu.moments(x, w), gamma, beta, 1e-5)
    yield "sums", gpu.finish_gradients(gpu.grad_moments(dy, x, stats, w, act), stats, count)
    yield "dx", gpu.backward(dy, x, stats, count, None, act, frozen=True)[0]
    yield "y", gpu.normalize(x, stats, act)
    yield "y", gpu.normalize(x, stats, act, finite=True)
