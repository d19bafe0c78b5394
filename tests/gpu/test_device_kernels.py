"""A real device, the kernels alone: every instance once, types, places in memory, streams, graphs, repetitions.

Skipped with the reason where there is none. A test compares with the instances of float64, which test_device.py
compares with the reference.
"""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from benchmarks import gpu_compile

import child
import gpu_sweep
from backends import ON_A_DEVICE
from bnorm.kernels import MEAN_SQUARE, VARIANCE, cpu, gpu, reference
from bnorm.kernels.activation import IDENTITY, RELU
from bnorm.kernels.gpu import launching
from bnorm.kernels.gpu.shapes import vectors_of
from compare import assert_close, assert_same

pytestmark = ON_A_DEVICE
UNIT = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2e-5, "float64": 1e-12}  # of results of a few
DTYPES = list(UNIT)


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def typed(dtype):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def wide(cupy, a):
    return a.astype("float32").astype("float64") if a.dtype.name == "bfloat16" else a.astype("float64")


def drawn(cupy, shape, dtype, seed):
    return cupy.random.default_rng(seed).standard_normal(shape, dtype=cupy.float32).astype(typed(dtype))


def compiled(device, dtype):
    """All instances, by several compilers at a time."""
    names = [(family, name) for family in gpu_sweep.FAMILIES for name in gpu_compile.instances(family, [dtype])]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda item: device.compile(*item), [item for item in names if item[1] not in device.kernels]))


@pytest.mark.slow  # most of its time is the compiler's
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instance(cupy, dtype):
    compiled(launching.device_of(cupy.empty(1)), dtype)
    for case in gpu_sweep.cases(dtype):
        x, dy = drawn(cupy, case.shape, dtype, 0), drawn(cupy, case.shape, dtype, 1)
        channels = case.shape[1] * (case.shape[2] if case.what == "rows" else 1)
        vectors = cupy.linspace(0.5, 2, channels), cupy.linspace(-1, 1, channels)
        weight = cupy.linspace(0, 1, case.shape[0] * (case.shape[2] if len(case.shape) == 3 else 1))
        weight = weight.reshape(case.shape[0], -1)
        for act in gpu_sweep.ACTIVATIONS:
            got = gpu_sweep.results(case, act, x, dy, vectors, weight)
            want = gpu_sweep.results(case, act, wide(cupy, x), wide(cupy, dy), vectors, weight)
            for (name, a), (_, b) in zip(got, want, strict=True):
                size = max(1.0, float(cupy.abs(b).max()))
                wrong = cupy.abs(wide(cupy, a) - b) > UNIT[dtype] * size
                # rounding may decide on which side of the activation a value is
                assert float(wrong.mean()) <= (0 if act == IDENTITY else 1e-3), (case, act, name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_exact_sums(cupy, dtype):
    """Every instance, with any bits at all: the integers of the processor."""
    for v in vectors_of(dtype):  # odd multiples, so that no larger vector divides
        for shape in ((3000, 1024 + v), (16, 3, 20001 * v)):
            x = drawn(cupy, shape, dtype, 0)
            x[:7] = (
                cupy.random.default_rng(1)
                .integers(0, 1 << 16, x[:7].size * x.itemsize // 2)
                .astype("u2")
                .view(x.dtype)
                .reshape(x[:7].shape)
            )
            masks = cupy.random.default_rng(2).random((shape[0], x[0, 0].size)) < 0.5
            for mask in (None, masks) if v == 1 else (None,):
                got = gpu.exact_sums(x, mask)
                want = cpu.exact_sums(cupy.asnumpy(x), None if mask is None else cupy.asnumpy(mask))
                for a, b in zip(got, want, strict=True):
                    assert np.array_equal(a, b), (shape, dtype)


@pytest.mark.parametrize("rule", [VARIANCE, MEAN_SQUARE])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300, 1, 64, 1), (40, 1, 1000, 1), (5, 1, 40000, 1), (6, 4, 2, 49)], ids=str)
def test_rows(cupy, shape, dtype, rule):
    x, dy = drawn(cupy, shape, dtype, 0), drawn(cupy, shape, dtype, 1)
    gamma, beta = (cupy.linspace(0.5, 2, shape[1] * shape[2]) for _ in range(2))
    host = [cupy.asnumpy(wide(cupy, a)) for a in (x, dy, gamma, beta)]
    y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5, rule, RELU)
    want = reference.rows_forward(host[0], *host[2:], 1e-5, rule, RELU)
    assert_close(cupy.asnumpy(wide(cupy, y)), want[0], UNIT[dtype] * np.maximum(1, np.abs(want[0])), shape=shape)
    found = gpu.rows_backward(dy, x, mean, rstd, gamma, beta, rule)
    wanted = reference.rows_backward(host[1], host[0], *want[1:], *host[2:], rule)
    for got, exact in zip(found, wanted, strict=True):
        size = np.maximum(1, np.abs(exact).max())
        assert_close(cupy.asnumpy(wide(cupy, got)), exact, 4 * UNIT[dtype] * size, shape=shape)


@pytest.mark.parametrize("shape", [(70, 6), (3000, 64), (4, 5, 800)], ids=str)
def test_anywhere_in_memory(cupy, shape):
    """A pointer that no vector is aligned to."""
    memory = cupy.zeros(int(np.prod(shape)) + 1, "float32")
    x = memory[1:].reshape(shape)
    x[...] = drawn(cupy, shape, "float32", 0)
    y, stats, count, _ = gpu.forward(x, None, None, 1e-5)
    aligned = gpu.forward(x.copy(), None, None, 1e-5)[0]
    assert_close(cupy.asnumpy(y), cupy.asnumpy(aligned), 1e-5)
    dx = gpu.backward(x, x, stats, count)[0]
    assert_close(cupy.asnumpy(dx), cupy.asnumpy(gpu.backward(x.copy(), x.copy(), stats, count)[0]), 1e-5)


def test_two_streams_at_once(cupy):
    """Each has a workspace of its own."""
    shapes = (40000, 100), (30000, 96)
    xs = [drawn(cupy, shape, "float32", i) for i, shape in enumerate(shapes)]
    want = [[gpu.moments(x), gpu.forward(x, None, None, 1e-5)[0]] for x in xs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in shapes]
    cupy.cuda.Device().synchronize()
    found = [[], []]
    for _ in range(20):
        for x, stream, results in zip(xs, streams, found, strict=True):
            with stream:
                results.append([gpu.moments(x), gpu.forward(x, None, None, 1e-5)[0]])
    cupy.cuda.Device().synchronize()
    for results, wanted in zip(found, want, strict=True):
        for again in results:
            assert all(bool((a == b).all()) for a, b in zip(again, wanted, strict=True))


def test_a_graph_shares_no_memory(cupy):
    """Its replays run beside eager calls on the stream that it was captured on, and none of either is disturbed."""
    x, out = drawn(cupy, (20000, 64), "float32", 0), cupy.empty((20000, 64), "float32")
    others = drawn(cupy, (20000, 64), "float32", 1), drawn(cupy, (2000, 5000), "float32", 2)
    want, wanted = gpu.forward(x, None, None, 1e-5)[0], [gpu.moments(other) for other in others]
    pool, beside = cupy.cuda.MemoryPool(), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        with cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture()
            gpu.forward(x, None, None, 1e-5, out=out)  # its statistics go back to the pool of the graph
            graph = stream.end_capture()
        for _ in range(20):
            out[...] = 0
            stream.synchronize()
            graph.launch(beside)
            found = [gpu.moments(other) for other in others for _ in range(5)]
            cupy.cuda.Device().synchronize()
            assert_same(cupy.asnumpy(out), cupy.asnumpy(want))
            for i, again in enumerate(found):
                assert_same(cupy.asnumpy(again), cupy.asnumpy(wanted[i // 5]))


def test_threads_share_a_stream(cupy):
    """CuPy lets other threads run while it launches."""
    x, dy = drawn(cupy, (4, 3000, 64), "float32", 0), drawn(cupy, (4, 3000, 64), "float32", 1)
    rows, row_dy = x.reshape(4, 3000, 1, 64, 1), dy.reshape(4, 3000, 1, 64, 1)

    def run(i):
        _, stats, count, _ = gpu.forward(x[i], None, None, 1e-5)
        dx, dgamma, _ = gpu.backward(dy[i], x[i], stats, count)
        _, mean, rstd = gpu.rows_forward(rows[i], stats[2], None, 1e-5)
        return dx, dgamma, *gpu.rows_backward(row_dy[i], rows[i], mean, rstd, stats[2], None)[:2]

    want = [[cupy.asnumpy(a) for a in run(i)] for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: [run(i % 4) for _ in range(50)], range(8)))
    for i, again in enumerate(found):
        for got in again:
            for a, b in zip(got, want[i % 4], strict=True):
                assert_same(cupy.asnumpy(a), b)


def test_a_capture_in_the_pool_of_all_is_refused(cupy):
    x, out = drawn(cupy, (20000, 64), "float32", 0), cupy.empty((20000, 64), "float32")
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="a memory pool of its own"):
                gpu.forward(x, None, None, 1e-5, out=out)
        finally:
            stream.end_capture()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(256, 64), (30000, 64), (40, 70, 900)], ids=str)
def test_constant_and_broken_channels(cupy, shape, dtype):
    x = drawn(cupy, shape, dtype, 0)
    x[:, 3] = 2.5
    x[0, 5], x[1, 7] = cupy.nan, cupy.inf
    y, stats, _, _ = gpu.forward(x, None, cupy.full(shape[1], 0.5), 0.0)
    y, stats = cupy.asnumpy(wide(cupy, y)), cupy.asnumpy(stats)
    assert (y[:, 3] == 0.5).all() and stats[1, 3] == 0
    broken = np.isin(np.arange(shape[1]), (5, 7))
    assert np.isfinite(np.moveaxis(y, 1, 0)[~broken]).all() and np.isnan(np.moveaxis(y, 1, 0)[broken]).all()


@pytest.mark.parametrize("shape", [(256, 64), (65536, 100), (32, 130, 784), (24, 32, 3136), (1000, 3)], ids=str)
def test_a_hundred_times_the_same_bits(cupy, shape):
    x, dy = drawn(cupy, shape, "float32", 0), drawn(cupy, shape, "float32", 1)
    rows = x.reshape(shape[0], 1, -1, 1)
    images = x.reshape(shape[0], 1, shape[1], -1)
    gamma, zeros = cupy.linspace(0.5, 2, rows.shape[2]), cupy.zeros(shape[0])

    def run():
        y, stats, count, _ = gpu.forward(x, None, None, 1e-5)
        row_y, mean, rstd = gpu.rows_forward(rows, gamma, None, 1e-5)
        back = gpu.rows_backward(dy.reshape(rows.shape), rows, mean, rstd, gamma, None)
        groups = gpu.rows_backward(dy.reshape(images.shape), images, zeros, zeros + 1, None, None)
        return [y, stats, *gpu.backward(dy, x, stats, count), row_y, mean, rstd, *back, *groups]

    first = run()
    differ = cupy.zeros((), "int64")
    for _ in range(100):
        for a, b in zip(run(), first, strict=True):
            differ += (a != b).sum()
    assert int(differ) == 0


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_under_the_sanitizer_of_cuda(cupy, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    script = Path(gpu_sweep.__file__).with_name("gpu_small.py")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=child.LIMIT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
