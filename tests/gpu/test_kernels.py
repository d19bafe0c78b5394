"""The CUDA kernels of batch norm on the emulator: what no other backend has. What all must do is in tests/kernels."""

from itertools import product

import numpy as np
import pytest

from backends import CUDA_CASES, CUDA_RUNS, MORE, Backend
from bnorm.kernels import gpu, reference
from bnorm.kernels.activation import GELU, IDENTITY, RELU, SILU, leaky
from bnorm.kernels.gpu import jobs, launching, shapes
from cases import Case, c_order
from compare import assert_close, assert_same
from emulated.device import SMALL, PlanningDevice, emulated_device, needs_emulator  # noqa: F401
from kernel_checks import (
    assert_backward,
    assert_forward,
    away_from_zero,
    exact,
    problem,
)

pytestmark = needs_emulator


@pytest.fixture
def planning(monkeypatch):
    """A device that launches nothing, and keeps what it was asked to."""
    device = PlanningDevice()
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    return device


@pytest.mark.parametrize(("case", "dtype"), CUDA_RUNS, ids=[f"{case.name}-{dtype}" for case, dtype in CUDA_RUNS])
def test_a_call_is_few_launches(planning, case, dtype):
    p = problem(case, dtype)
    count = p.x.size / max(1, case.num_channels)
    for weight, act in product((None, p.weight), (IDENTITY, RELU)):
        _, stats, _, _ = gpu.forward(p.x, p.gamma, p.beta, 1e-5, weight=weight, act=act)
        assert len(planning.kernels()) <= 2
        for frozen in (False, True):
            gpu.backward(p.dy, p.x, stats, count if weight is None else np.array(count), weight, act, frozen)
            assert len(planning.kernels()) <= 2
    gpu.forward(p.x, p.gamma, p.beta, 1e-5, p.beta, p.gamma**2)
    assert len(planning.kernels()) == (case.num_channels > 0)
    gpu.backward(p.dy, p.x, stats, count, frozen=True, params=False)
    assert len(planning.kernels()) == (case.num_channels > 0)


ORDERED = [case for case in CUDA_CASES if 1000 < np.prod(case.shape) < 20000]


@pytest.mark.parametrize("case", ORDERED, ids=lambda case: case.name)
def test_every_schedule_gives_the_same_bits(device, case):
    """Blocks forwards, backwards and shuffled, and a second time: only integers may be added by whoever comes first."""
    p = problem(case, "float32")
    _, stats, count, _ = reference.forward(p.x, p.gamma, p.beta, 1e-5)
    first = None
    for order in (0, 1, 2, 3, 0):
        device.order = order
        try:
            y, found, *_ = gpu.forward(p.x, p.gamma, p.beta, 1e-5, act=RELU)
            weighted = gpu.moments(p.x, p.weight)
            results = [y, found, *weighted, *gpu.backward(p.dy, p.x, stats, count, act=RELU)]
        finally:
            device.order = 0
        bits = [a.tobytes() for a in results]
        first = first or bits
        assert bits == first, f"order {order}"


LEAKY = [Case((70, 6), 1, c_order, "one launch"), Case((600, 130), 1, c_order, "several"), MORE[3]]


@pytest.mark.parametrize("case", LEAKY, ids=lambda case: case.name)
def test_leaky(device, case):
    """Also where dy and x are infinite: the slope is a factor, and only a slope of 0 selects."""
    p = problem(case, "float32")
    cuda = Backend("emulator", gpu)
    got, want = cuda.both("forward", p.x, p.gamma, p.beta, 1e-5, act=leaky(0.25))
    assert_forward(got, want, p, "float32", False, case=case.name, act=leaky(0.25))
    _, stats, count, _ = want
    dy = away_from_zero(p.dy, p.x, "float32", stats)
    got, want = cuda.both("backward", dy, p.x, stats, count, None, leaky(0.25))
    assert_backward(got, want, dy, p.x, stats, count, None, False, "float32", case=case.name, act=leaky(0.25))
    x = p.x.copy()
    x.flat[0], dy.flat[1] = -np.inf, np.inf
    for act in (RELU, leaky(0.25)):
        got, want = (kernels.normalize(x, stats, act) for kernels in (gpu, reference))
        assert_same(np.isfinite(got), np.isfinite(want), case=case.name, act=act)
        got, want = (kernels.backward(dy, x, stats, count, None, act, True)[0] for kernels in (gpu, reference))
        assert_same(np.isfinite(got), np.isfinite(want), case=case.name, act=act)


def test_unaligned(device):
    """Arrays that start anywhere: no vector is loaded."""
    case = Case((40, 6, 64), 1, c_order, "")
    p = problem(case, "float32")
    memory = np.zeros(p.x.size + 1, np.float32)
    x = memory[1:].reshape(p.x.shape)
    x[...] = p.x
    got, want = gpu.forward(x, p.gamma, p.beta, 1e-5), reference.forward(exact(x), p.gamma, p.beta, 1e-5)
    assert all("<float, 1," in name for name in device.kernels()[-2:])
    assert_forward(got, want, p, "float32", False, case="unaligned")


BFLOAT16 = [((64, 16), "rows"), ((40, 3), "widened rows"), ((3, 5, 400), "runs"), ((3, 5, 333), "odd runs")]


@pytest.mark.parametrize(("shape", "why"), BFLOAT16, ids=[why for _, why in BFLOAT16])
def test_bfloat16(device, shape, why):
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    rng = np.random.default_rng(5)
    x, dy = ((rng.standard_normal(shape) + 3).astype(bfloat16) for _ in range(2))
    gamma, beta = rng.uniform(0.5, 2, shape[1]), rng.standard_normal(shape[1])
    wide_x, wide_dy = x.astype(np.float64), dy.astype(np.float64)
    y, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5, act=RELU)
    want, stats_want, _, _ = reference.forward(wide_x, gamma, beta, 1e-5, act=RELU)
    assert y.dtype == bfloat16
    assert_close(stats, stats_want, 1e-6 * np.abs(stats_want) + 1e-6, why=why)
    assert_close(y.astype(np.float64), want, 2.0**-8 * np.abs(want) + 1e-5, why=why)  # 8 bits, and float32 inside
    got = gpu.backward(dy, x, stats_want, count)
    want = reference.backward(wide_dy, wide_x, stats_want, count)
    assert_close(got[0].astype(np.float64), want[0], 2.0**-8 * np.abs(want[0]) + 1e-4, why=why)
    for g, w in zip(got[1:], want[1:], strict=True):
        assert_close(g, w, 1e-5 * np.abs(wide_dy).sum(), why=why)


# Sizes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(66000, 1), (2, 66000)], ids=["rows", "channels"])
def test_more_than_65535(device, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float16")
    y, stats, _, _ = gpu.forward(x, None, None, 1e-5)
    want, want_stats, _, _ = reference.forward(exact(x), None, None, 1e-5)
    assert_close(stats[:2], want_stats[:2], 1e-6 * np.maximum(1, want_stats[:2]), shape=shape)
    assert_close(y, want, 2e-3 * np.maximum(1, np.abs(want)), shape=shape)


@pytest.mark.parametrize("shape", [(9000, 64), (2, 3, 70000)], ids=["rows", "runs"])
def test_chunks_that_a_map_cuts_into_parts(device, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    device.limits = SMALL._replace(processors=1)
    try:
        y = gpu.forward(x, None, None, 1e-5)[0]
    finally:
        device.limits = SMALL
    geometry = device.log[-1].geometry
    assert jobs.JOB.placed(geometry)["split"] == shapes.SPLIT
    assert_close(y, reference.forward(exact(x), None, None, 1e-5)[0], 2e-6, shape=shape)


@pytest.mark.parametrize("act", [SILU, GELU], ids=["silu", "gelu"])
def test_smooth_activations(device, act):
    """Forward and backward of channels and rows."""
    cuda, rng = Backend("emulator", gpu), np.random.default_rng(6)
    x, dy = (3 * rng.standard_normal((2, 40, 6))).astype("f4")
    gamma, beta = rng.standard_normal((2, 6))
    got, want = cuda.both("forward", x, gamma, beta, 1e-5, act=act)
    assert_close(got[0], want[0], 2e-6)
    got, want = cuda.both("backward", dy, x, want[1], 40.0, act=act)
    for result, expected in zip(got, want, strict=True):
        assert_close(result, expected, 1e-5 * max(1, np.abs(expected).max()))
    rows, drows = x.reshape(40, 1, 6, 1), dy.reshape(40, 1, 6, 1)
    got, want = cuda.both("rows_forward", rows, gamma, beta, 1e-5, 0, act)
    assert_close(got[0], want[0], 4e-6)
    got, want = cuda.both("rows_backward", drows, rows, *want[1:], gamma, beta, 0, act)
    for result, expected in zip(got, want, strict=True):
        assert_close(result, expected, 1e-5 * max(1, np.abs(expected).max()))
