"""The GPU backend on a real device, against the reference; skipped with the reason where there is none."""

import numpy as np
import pytest

from bnorm.kernels import gpu, reference
from compare import EPS, assert_close, assert_same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(gpu.available() is not None, reason=str(gpu.available()))]
SHAPES = [(256, 64), (4099, 3), (65536, 100), (70, 3, 49), (3, 5, 333), (32, 130, 784), (16, 512, 49)]


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def drawn(cupy, shape, dtype, seed):
    return cupy.asarray((np.random.default_rng(seed).standard_normal(shape) + 2).astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_backward(cupy, shape, dtype):
    x, dy = drawn(cupy, shape, dtype, 0), drawn(cupy, shape, dtype, 1)
    gamma, beta = cupy.linspace(0.5, 2, shape[1]), cupy.linspace(-1, 1, shape[1])
    host = [cupy.asnumpy(a).astype(np.float64) for a in (x, dy, gamma, beta)]
    unit = 2.0**-10 if dtype == "float16" else 16 * EPS[np.dtype(dtype)]
    running = cupy.zeros(shape[1]), cupy.ones(shape[1]), 0.1, None, 1, "skip"
    y, stats, count, left = gpu.forward(x, gamma, beta, 1e-5, relu=True, running=running)
    want, want_stats, want_count, _ = reference.forward(host[0], *host[2:], 1e-5, relu=True)
    assert (count, int(left)) == (want_count, 0)
    assert_close(cupy.asnumpy(y), want, unit * np.maximum(1, np.abs(want)), shape=shape, dtype=dtype)
    assert_close(cupy.asnumpy(stats), want_stats, 1e-6 * np.maximum(1, np.abs(want_stats)), shape=shape)
    found = gpu.backward(dy, x, stats, count)
    wanted = reference.backward(host[1], host[0], want_stats, count)
    assert_close(cupy.asnumpy(found[0]), wanted[0], 8 * unit * np.maximum(1, np.abs(wanted[0])), shape=shape)
    total = 1e-5 * np.abs(host[1]).sum()
    for got, exact in zip(found[1:], wanted[1:], strict=True):
        assert_close(cupy.asnumpy(got), exact, total, shape=shape)
    again = gpu.forward(x, gamma, beta, 1e-5, relu=True)[0], *gpu.backward(dy, x, stats, count)
    for got, first in zip(again, (y, *found), strict=True):
        assert_same(cupy.asnumpy(got), cupy.asnumpy(first), shape=shape, what="a second run")


@pytest.mark.parametrize("shape", [(20, 1, 768, 1), (3, 1, 16500, 1), (3, 4, 2, 49), (2, 5, 1, 1025)], ids=str)
def test_rows(cupy, shape):
    x, dy = drawn(cupy, shape, "float32", 0), drawn(cupy, shape, "float32", 1)
    gamma, beta = cupy.linspace(0.5, 2, shape[1] * shape[2]), cupy.linspace(-1, 1, shape[1] * shape[2])
    host = [cupy.asnumpy(a).astype(np.float64) for a in (x, dy, gamma, beta)]
    y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5)
    want = reference.rows_forward(host[0], *host[2:], 1e-5)
    assert_close(cupy.asnumpy(y), want[0], 4e-6 * np.maximum(1, np.abs(want[0])), shape=shape)
    found = gpu.rows_backward(dy, x, mean, rstd, gamma, beta)
    wanted = reference.rows_backward(host[1], host[0], *want[1:], *host[2:])
    for got, exact in zip(found, wanted, strict=True):
        assert_close(cupy.asnumpy(got), exact, 1e-5 * np.maximum(1, np.abs(exact).max()), shape=shape)


@pytest.mark.parametrize("shape", [(256, 64), (65536, 100)], ids=str)
def test_a_graph_captures_calls(cupy, shape):
    """A host that waited for the device would break the capture."""
    x, out = drawn(cupy, shape, "float32", 0), cupy.empty(shape, "float32")
    gamma, beta = cupy.ones(shape[1]), cupy.zeros(shape[1])
    running = cupy.zeros(shape[1]), cupy.ones(shape[1]), 0.1, None, 0, "skip"
    with cupy.cuda.Stream(non_blocking=True) as stream:
        want, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5)
        dx = gpu.backward(x, x, stats, count)[0]
        kept = gpu.forward(x, gamma, beta, 1e-5, running=running, out=out), cupy.empty_like(x)
        stream.synchronize()
        stream.begin_capture()
        forward = gpu.forward(x, gamma, beta, 1e-5, running=running, out=out)
        backward = gpu.backward(x, x, stats, count, out=kept[1])
        graph = stream.end_capture()
        out[...] = 0
        kept[1][...] = 0
        graph.launch(stream)
        stream.synchronize()
        assert_same(cupy.asnumpy(out), cupy.asnumpy(want))
        assert_same(cupy.asnumpy(kept[1]), cupy.asnumpy(dx))
        del forward, backward  # the graph wrote to them


@pytest.mark.slow
def test_more_than_two_billion_elements(cupy):
    rows = (1 << 31) // 64 + 1000
    x = cupy.ones((rows, 64), "float16")
    x[rows // 2 :] = 3
    y, stats, _, _ = gpu.forward(x, None, None, 0.0, out=x)
    assert_close(cupy.asnumpy(stats[:2]), np.array([[2.0], [1.0]]) * np.ones(64), 1e-9)
    assert bool((y[: rows // 2] == -1).all()) and bool((y[rows // 2 :] == 1).all())
