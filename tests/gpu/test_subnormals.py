"""Numbers too small for all their digits, which CuPy's options turn into 0 wherever float32 is computed with.

Every launch on the emulator flushes them, unless EMULATOR_SUBNORMALS is set; here both ways are taken.
"""

import numpy as np
import pytest

from backends import ENDS
from bnorm.kernels import MEAN_SQUARE, VARIANCE, gpu, reference
from bnorm.running import Statistics
from compare import assert_close, assert_same
from cuda_on_cpu import emulator
from cuda_on_cpu.emulator import Emulator, EmulatorError
from emulated.device import SMALL, emulated_device, needs_emulator  # noqa: F401
from kernel_checks import exact

TEXT = """
extern "C" __global__ void doubled(const float* x, float* y, const double* v, double* w) {
  y[0] = x[0];
  y[1] = x[0] + x[0];
  y[2] = x[0] == 0.0f;
  y[3] = (float)v[0];
  w[0] = (double)x[0];
  w[1] = v[0] * 1.0;
}
extern "C" __global__ void fails(int*) { __trap(); }
"""
TINY = np.float32(1e-45)  # the smallest one
FLUSHES = [False, True] if emulator.FLUSH else [False]
ROWS = [(3, 1, 7, 1), (30, 1, 700, 1), (2, 1, 2049, 1), (3, 2, 2, 49), (2, 1, 16400, 1)]

pytestmark = needs_emulator


@pytest.fixture(params=FLUSHES, ids=lambda flush: "flushed" if flush else "kept")
def flush(request, monkeypatch, device):
    monkeypatch.setattr(emulator, "FLUSH", request.param)
    return request.param


def kept():
    """Whether the processor computes with such numbers, as it does for everybody else."""
    return bool(TINY + TINY == np.float32(3e-45)) and bool(np.float64(5e-324) + 0.0 != 0)


@pytest.mark.skipif(not emulator.FLUSH, reason="subnormal numbers are kept here")
def test_a_launch_flushes_and_nothing_else_does():
    made = Emulator(TEXT, ["doubled", "fails"], label="doubled.cu")
    x, v = made.copy(np.full(1, TINY)), made.copy(np.full(1, 1e-40))
    y, w = made.empty(4, "f4"), made.empty(2, "f8")
    made.launch("doubled", (1,), (1,), 0, (x, y, v, w))
    assert_same(y, np.array([TINY, 0, 1, 0], "f4"))  # what is only moved stays
    assert_same(w, np.array([0, 1e-40]))
    assert kept()
    with pytest.raises(EmulatorError, match="__trap"):
        made.launch("fails", (1,), (32,), 0, (None,))
    assert kept()
    made.launch("doubled", (1,), (1,), 0, (x, y, v, w), flush=False)
    assert_same(y, np.array([TINY, 2 * TINY, 0, 1e-40], "f4"))
    assert w[0] == float(TINY)


def drawn(shape, dtype, seed=0):
    """Values up to 1e-39, of which each channel and row has another mean; the third channel is constant."""
    rng = np.random.default_rng(seed)
    units = rng.integers(1, 2**20, shape) + rng.integers(1, 2**20, (*shape[:2], *(1 for _ in shape[2:])))
    x = (units * float(TINY)).astype("f4")
    x[:, 2:3] = np.float32(3e-41)
    if dtype != "bfloat16":
        return x
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return x.astype(ml_dtypes.bfloat16)


def assert_near(got, want, **tags):
    """To a millionth of the largest, or to the unit of such numbers, which a mean may be off by."""
    assert_close(got, want, np.maximum(1e-6 * np.abs(want).max(), 2.0**-149), **tags)


MOMENTS = [(case, "float32") for case in ENDS] + [(ENDS[1], "bfloat16"), (ENDS[4], "bfloat16")]


@pytest.mark.parametrize(("case", "dtype"), MOMENTS, ids=str)
def test_moments_keep_them(case, dtype, flush):
    x = drawn(case.shape, dtype)
    wide = np.asarray(x, "f8")
    for got, want in (
        (gpu.moments(x), reference.moments(wide)),
        (gpu.moments(x, skipna=True), reference.moments(wide, skipna=True)),
    ):
        assert_near(got[1], want[1], case=case.name)
        assert_close(got[2], want[2], 1e-6 * want[2].max() + 1e-90 * (want[2] > 0), case=case.name)
    _, got, _, _ = gpu.forward(x, None, None, 0.0)
    _, want, _, _ = reference.forward(wide, None, None, 0.0)
    assert_near(got[0], want[0], case=case.name)
    assert_close(got[1], want[1], 1e-5 * want[1].max(), case=case.name)
    assert got[1][2:3].tolist() == [0.0] * got[1][2:3].size  # the constant


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_that_meet_keep_them(device, monkeypatch, dtype, flush):
    """The center that they share may be such a number itself."""
    monkeypatch.setattr(device, "limits", SMALL._replace(processors=6))
    device.log.clear()
    x = drawn((1100, 40), dtype)
    _, got, *_ = gpu.forward(x, None, None, 0.0)
    assert [launch.meeting for launch in device.log] == [True]
    want = reference.forward(np.asarray(x, "f8"), None, None, 0.0)[1]
    assert_near(got[0], want[0])
    assert_close(got[1], want[1], 1e-5 * want[1].max())


@pytest.mark.parametrize("rule", [VARIANCE, MEAN_SQUARE])
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rows_keep_them(shape, rule, flush):
    x = drawn(shape, "float32")
    x[0] = np.float32(5e-42)
    _, mean, rstd = gpu.rows_forward(x, None, None, 0.0, rule)
    _, want_mean, want_rstd = reference.rows_forward(exact(x), None, None, 0.0, rule)
    assert_near(mean, want_mean, shape=shape)
    assert_close(1 / rstd, 1 / want_rstd, 1e-5 / want_rstd, shape=shape)


@pytest.mark.parametrize("case", ENDS, ids=lambda case: case.name)
def test_gradients_see_them(case, flush):
    """dgamma is made of dy, of usual size, and of x less its mean."""
    x, dy = drawn(case.shape, "float32"), np.random.default_rng(1).standard_normal(case.shape).astype("f4")
    _, stats, count, _ = reference.forward(exact(x), None, None, 1e-5)
    _, got, _ = gpu.backward(dy, x, stats, count)
    _, want, _ = reference.backward(exact(dy), exact(x), stats, count)
    assert_close(got, want, 1e-5 * np.abs(want).max(), case=case.name)


def test_statistics_of_a_layer_may_be_such(flush):
    """Running statistics of float32 that move from one of them to another."""
    running = [Statistics(np.full(3, 1e-40, "f4"), np.full(3, 2e-41, "f4"), momentum=0.5) for _ in range(2)]
    parts = np.array([[8.0] * 3, [3e-40, 0, 1e-44], [8e-41, 0, 0], [0] * 3])
    gpu.move(running[0].rule, parts)
    reference.move(running[1].rule, parts)
    for got, want in zip(running[0].rule.arrays[:2], running[1].rule.arrays[:2], strict=True):
        assert_same(got, want)
        assert (np.asarray(got) > 0).all()
