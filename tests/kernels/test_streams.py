"""Arrays too large for the caches: output is sent past them and input fetched ahead, which must change nothing.

What a map makes of a large array it must also make, bit for bit, of a few rows at a time, which stay in the caches;
and only the bytes of `out` may be written, wherever in a line of the cache they begin.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
from ml_dtypes import bfloat16

from bnorm.kernels import cpu, reference
from bnorm.kernels.activation import IDENTITY, RELU, SILU, leaky
from bnorm.kernels.cpu import entries
from compare import EPS, assert_close, sum_error
from drawing import every_pair
from kernel_checks import stats_of

STREAM, FAR, FAR_ROWS = 1 << 19, 1 << 20, 3 << 18  # bytes, as set below
SEVERAL = 5 << 20  # bytes of several groups of channels, of which both passes are made at once
# One and few channels, odd numbers, more than a line or a tile of sums; short runs, runs of some length, long runs.
KINDS = [(1,), (3,), (7,), (33,), (100,), (1000,), (2500,), (3, 5), (70, 20), (300, 7), (6, 49), (512, 49), (5, 300)]
KINDS += [(4, 33), (2, 4001)]


@pytest.fixture(autouse=True)
def streamed():
    """On every machine from the same sizes on."""
    sizes = dict.fromkeys(("stream", "stream_one", "stream_two"), STREAM) | dict.fromkeys(
        ("far", "far_maps", "far_two"), FAR
    )
    before = entries.use_sizes(**sizes, far_alone=FAR // 2, far_rows=FAR_ROWS, beside=1, early=1)
    habit = entries.use_habit(most=0)
    yield
    entries.use_habit(**habit)
    entries.use_sizes(**before)


@cache
def normal(seed):
    return np.random.default_rng(seed).standard_normal(100_003)


def large(shape, size, dtype, seed=0, offset=0):
    """Normal numbers, somewhat more than `size` bytes, that begin `offset` elements from a line of the cache."""
    outer = size // (int(np.prod(shape)) * np.dtype(dtype).itemsize) + 3
    n = outer * int(np.prod(shape))
    memory = np.empty(n + 200, dtype)
    start = -memory.ctypes.data % 64 // memory.itemsize + 64 + offset
    x = memory[start : start + n].reshape(outer, *shape)
    x[...] = np.resize(normal(seed), x.shape)
    return memory, x


def pieces(n, rows):
    return [slice(i, min(i + rows, n)) for i in range(0, n, rows)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [(16, 64), (33, 64), (17, 128), (64, 256)], ids=str)
def test_a_gradient_is_added_to_whole_rows(kind, dtype):
    """Rows of runs wait for it in memory of limited size before they are sent past the caches."""
    _, x = large((1, *kind), STREAM, dtype)
    _, dy = large((1, *kind), STREAM, dtype, 2)
    _, mean, rstd = cpu.rows_forward(x, None, None, 1e-5)
    dx, *_ = cpu.rows_backward(dy, x, mean, rstd, None, None, dh=dy)
    plain, *_ = cpu.rows_backward(dy, x, mean, rstd, None, None)
    terms = 2 * np.abs(dy) + np.abs(x) + 1  # at most, as rstd is about 1; sums are added up in another order
    assert_close(dx, plain + dy, 4 * EPS[np.dtype(dtype)] * terms, kind=kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", bfloat16], ids=str)
def test_maps(kind, dtype):
    rng = np.random.default_rng(1)
    offset = int(rng.integers(0, 16))
    _, x = large(kind, STREAM, dtype)
    _, dy = large(kind, STREAM, dtype, 2, offset)
    memory, out = large(kind, STREAM, dtype, 3, offset)
    mean, scale, shift, a, b, c = rng.standard_normal((6, kind[0]))
    stats, coefficients = stats_of(mean, scale, shift), np.stack([a, b, c])
    untouched = memory.copy()
    start = (out.ctypes.data - memory.ctypes.data) // memory.itemsize
    inside = slice(start, start + out.size)
    rows = pieces(len(x), max(1, len(x) // 5))

    def normalize(i, act, to=None):
        return cpu.normalize(x[i], stats, act, to)

    def grad_input(i, act, to=None):
        return cpu.grad_input(dy[i], x[i], stats, coefficients, None, act, to)

    for f, act in product((normalize, grad_input), (IDENTITY, RELU, leaky(0.2))):
        f(slice(None), act, out)
        for i in rows:
            assert f(i, act).tobytes() == out[i].tobytes(), (f, act, i)
        memory[inside] = untouched[inside]
        assert memory.tobytes() == untouched.tobytes(), (f, "wrote beside out")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions(kind, dtype):
    _, x = large(kind, FAR, dtype, offset=3)
    _, dy = large(kind, FAR, dtype, 2, offset=5)
    x += np.asarray(5, dtype)
    axes = (0,) if len(kind) == 1 else (0, 2)
    wider = np.float64 if dtype == "float32" else np.longdouble
    exact, terms = x.astype(wider), dy.astype(wider)
    count, mean, m2, low = cpu.moments(x)
    assert (count == x.size // kind[0]).all()
    center = exact.mean(axes, keepdims=True)
    spread = (exact - center) ** 2
    off = (mean.astype(wider) - center.ravel()) + low
    assert_close(off, np.zeros_like(off), sum_error(dtype, exact - center, axes) / count, kind=kind)
    assert_close(m2, spread.sum(axes), sum_error(dtype, spread, axes), kind=kind)
    sums, dots = cpu.grad_moments(dy, x, stats_of(*[center.ravel().astype(np.float64)] * 3))
    assert_close(sums, terms.sum(axes), sum_error(dtype, terms, axes), kind=kind)
    products = terms * (exact - center)
    rounded = EPS[np.dtype(dtype)] * np.abs(terms).sum(axes) * np.abs(center.ravel())  # the mean, in the type of x
    assert_close(dots, products.sum(axes), sum_error(dtype, products, axes) + rounded, kind=kind)


@pytest.mark.parametrize("kind", [(1000,), (512, 49), (2, 4001)], ids=str)
def test_both_passes(kind):
    """Forward and backward of one call, against the reference: groups of channels, or the whole."""
    _, x = large(kind, SEVERAL, "float32", offset=1)
    _, dy = large(kind, SEVERAL, "float32", 2)
    gamma, beta = np.random.default_rng(3).standard_normal((2, kind[0]))
    y, stats, count, _ = cpu.forward(x, gamma, beta, 1e-5)
    want = reference.forward(x.astype(np.float64), gamma, beta, 1e-5)
    assert_close(y, want[0], 2e-6 * np.maximum(1, np.abs(want[0])), kind=kind)
    dx = cpu.backward(dy, x, stats, count)[0]
    exact = reference.backward(dy.astype(np.float64), x.astype(np.float64), want[1], count)[0]
    assert_close(dx, exact, 2e-6 * np.maximum(1, np.abs(exact)), kind=kind)


@pytest.mark.parametrize("shape", [(8001, 1, 33, 1), (17_501, 3, 5, 1), (175, 33, 1, 49), (65, 5, 9, 101)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows(shape, dtype):
    """Outputs past the cache are gathered from several rows; a row's bits are those it has in a small array."""
    rng = np.random.default_rng(shape)
    n = shape[0] * (16 // np.dtype(dtype).itemsize)  # 4 MiB of either type
    x, dy = rng.standard_normal((2, n, *shape[1:])).astype(dtype)
    gamma, beta = rng.standard_normal((2, shape[1] * shape[2]))
    y, mean, rstd = cpu.rows_forward(x, gamma, beta, 1e-5, act=RELU)
    dx, _, _ = cpu.rows_backward(dy, x, mean, rstd, gamma, beta, act=RELU)
    step = n // 16
    for i in range(0, n, step):
        part = cpu.rows_forward(x[i : i + step], gamma, beta, 1e-5, act=RELU)
        assert part[0].tobytes() == y[i : i + step].tobytes(), i
        part = cpu.rows_backward(dy[i : i + step], x[i : i + step], *part[1:], gamma, beta, act=RELU)
        assert part[0].tobytes() == dx[i : i + step].tobytes(), i


ROWS = [
    (1, 16, 1),
    (1, 17, 1),
    (1, 255, 1),
    (1, 1000, 1),
    (1, 3000, 1),
    (2, 96, 1),
    (3, 33, 1),
    (3, 1, 100),
    (2, 3, 17),
    (2, 3, 400),
    (2, 3, 900),
]


WAYS = {
    "sent": (STREAM, {"beside": 1 << 40, "early": 1 << 40}),
    "sent while dy is fetched": (STREAM, {"beside": 1, "early": 1 << 40}),
    "fetched before it is sent": (STREAM, {"beside": 1 << 40, "early": 1}),
    "through the caches": (FAR_ROWS, {"stream_two": 1 << 40}),
}


@every_pair(["shape", "way"], product(ROWS, WAYS), dtype=["float32", "float64"], act=[IDENTITY, leaky(0.2), SILU])
def test_rows_anywhere(shape, way, dtype, act):
    """Rows that are sent as they are computed, whole lines or not, wherever `out` begins, and in place; or rows
    through the caches, of which a gradient fetches ahead."""
    size, others = WAYS[way]
    entries.use_sizes(**others)
    rng = np.random.default_rng(5)
    offset = int(rng.integers(1, 8))
    _, x = large(shape, size, dtype)
    _, dy = large(shape, size, dtype, 2, offset + 1)
    gamma, beta = rng.standard_normal((2, shape[0] * shape[1]))
    rows = pieces(len(x), max(1, len(x) // 5))
    parts = [cpu.rows_forward(x[i], gamma, beta, 1e-5, act=act) for i in rows]
    mean, rstd = (np.concatenate([part[j] for part in parts]) for j in (1, 2))

    def forward(x, out):
        return cpu.rows_forward(x, gamma, beta, 1e-5, act=act, out=out)[0]

    def backward(x, out, i=slice(None)):
        of = slice(*(k * shape[0] for k in i.indices(len(dy))[:2]))
        return cpu.rows_backward(dy[i], x, mean[of], rstd[of], gamma, beta, act=act, out=out)[0]

    wanted = [np.concatenate([part[0] for part in parts]), np.concatenate([backward(x[i], None, i) for i in rows])]
    for f, want in zip((forward, backward), wanted, strict=True):
        for place in (0, offset):
            memory, out = large(shape, size, dtype, 3, place)
            untouched = memory.copy()
            assert f(x, out).tobytes() == want.tobytes(), (f, place)
            out[...] = x
            assert f(out, out).tobytes() == want.tobytes(), (f, place, "in place")
            start = (out.ctypes.data - memory.ctypes.data) // memory.itemsize
            memory[start : start + out.size] = untouched[start : start + out.size]
            assert memory.tobytes() == untouched.tobytes(), (f, place, "wrote beside out")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_several_runs_that_are_more_than_is_gathered_at_once(dtype):
    """y of a smooth activation is gathered. The rows are longer than the memory for that, and their runs are not."""
    _, x = large((2, 8, 500), STREAM, dtype)
    gamma, beta = np.random.default_rng(3).standard_normal((2, 16))
    y, *_ = cpu.rows_forward(x, gamma, beta, 1e-5, act=SILU)
    parts = [cpu.rows_forward(x[i], gamma, beta, 1e-5, act=SILU)[0] for i in pieces(len(x), 3)]
    assert y.tobytes() == np.concatenate(parts).tobytes()


@pytest.mark.parametrize("shape", [(1, 3), (5, 3), (2, 7), (9, 33), (300, 7), (40, 100), (3, 1000), (4, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_maps_from_every_place_in_a_line(shape, dtype):
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape).astype(dtype)
    mean, scale, shift, a, b, c = rng.standard_normal((6, shape[1]))
    stats, coefficients = stats_of(mean, scale, shift), np.stack([a, b, c])
    wanted = cpu.normalize(x, stats), cpu.grad_input(x, x, stats, coefficients)
    memory = np.empty(x.size + 200, dtype)
    line = -memory.ctypes.data % 64 // memory.itemsize + 64
    for offset in range(64 // memory.itemsize):
        memory.fill(7)
        out = memory[line + offset :][: x.size].reshape(shape)
        for name, want in zip(("normalize", "grad_input"), wanted, strict=True):
            args = (x, stats, IDENTITY) if name == "normalize" else (x, x, stats, coefficients, None, IDENTITY)
            getattr(cpu, name)(*args, out)
            assert out.tobytes() == want.tobytes(), (name, offset)
        out[...] = 7
        assert (memory == 7).all(), ("wrote beside out", offset)
