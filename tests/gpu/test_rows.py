"""The CUDA kernels of layer, group, instance and RMS norm, on the emulator, against the reference."""

import numpy as np
import pytest

from backends import Backend
from bnorm.kernels import gpu, reference
from bnorm.kernels.activation import IDENTITY, RELU
from bnorm.kernels.gpu import jobs, plans
from compare import assert_close, assert_same
from drawing import text
from emulated import rows as gpu_rows
from emulated.device import SMALL, emulated_device, needs_emulator  # noqa: F401
from kernel_checks import assert_rows, exact, rows_of

pytestmark = [needs_emulator, pytest.mark.usefixtures("device")]

LONG = [
    pytest.param(*run, marks=() if run in gpu_rows.DRAWN else pytest.mark.slow)
    for run in gpu_rows.EVERY
    if run[0][1] == run[0][3] == 1
]


@pytest.mark.parametrize(("shape", "dtype", "affine", "rule", "act"), LONG, ids=text)
def test_rows_with_more_shared_memory(shape, dtype, affine, rule, act, device, monkeypatch):
    """Of the usual little memory they are tested in tests/kernels/test_kernels.py."""
    monkeypatch.setattr(device, "limits", gpu_rows.LARGE)
    tags = {"shape": shape, "dtype": dtype, "affine": affine, "rule": rule, "act": act}
    args, got, _, _ = assert_rows(Backend("emulator", gpu), *rows_of(shape, dtype, affine), rule, act, tags)
    without = gpu.rows_backward(*args, params=False)
    assert_same(without[0], got[0], what="dx without params", **tags)
    assert without[1] is None and without[2] is None


FETCHED = [  # kept: by a forward, and by a backward with sums for gamma and beta, and without
    ((7, 1, 3, 8000), "float32", (1, 1, 1)),  # x and dy take 192 KB, of a block alone
    ((5, 1, 3, 8000), "float16", (1, 1, 1)),
    ((3, 2, 1, 40000), "float32", (1, 0, 0)),  # x alone takes 156 KB
    ((4, 2, 3, 3001), "float32", (1, 1, 1)),  # value by value
    ((3, 1, 3, 4001), "float16", (1, 1, 1)),
    ((4, 1, 2, 4202), "float64", (1, 1, 1)),
]
EVERY_FETCHED = [  # of float16 and float64 one variant each, as of all rows
    pytest.param(*case, *variant, marks=() if case[1] == "float32" or i % 3 == j else pytest.mark.slow)
    for i, case in enumerate(FETCHED)
    for j, variant in enumerate(gpu_rows.VARIANTS)
]


@pytest.mark.parametrize(("shape", "dtype", "kept", "affine", "rule", "act"), EVERY_FETCHED, ids=text)
def test_long_runs_are_fetched_while_others_are_mapped(shape, dtype, kept, affine, rule, act, device, monkeypatch):
    """By blocks that go on to other rows; to the bits of a device that reads them again."""
    monkeypatch.setattr(device, "limits", plans.Limits(processors=1))
    rng = np.random.default_rng(shape)
    x, dy = (rng.normal(mean, 2, shape).astype(dtype) for mean in (3, 0))
    gamma, beta = rng.uniform(0.5, 2, shape[1] * shape[2]), rng.standard_normal(shape[1] * shape[2])
    vectors = (gamma, beta) if affine else (None, None)
    tags = {"shape": shape, "dtype": dtype, "affine": affine, "rule": rule, "act": act}
    args, got, _, _ = assert_rows(Backend("emulator", gpu), x, dy, *vectors, rule, act, tags)
    without = gpu.rows_backward(*args, params=False)
    keeps = [jobs.ROW_JOB.placed(launch.geometry)["keep"] for launch in device.log if launch.family == "rows"]
    assert [int(keep > 0) for keep in keeps] == list(kept)
    y, mean, rstd = gpu.rows_forward(x, *vectors, 1e-5, rule, act)
    assert_same(without[0], got[0], what="dx without params", **tags)
    with monkeypatch.context() as patch:
        patch.setattr(device, "limits", plans.Limits(processors=1, shared=8 << 10))
        again = *gpu.rows_forward(x, *vectors, 1e-5, rule, act), *gpu.rows_backward(*args, params=False)
    for name, a, b in zip(("y", "mean", "rstd", "dx"), again, (y, mean, rstd, got[0]), strict=False):
        assert_same(a, b, what=name, **tags)


@pytest.mark.parametrize("shape", [(6, 1, 40, 1), (2, 3, 2, 49), (2, 1, 16400, 1)], ids=str)
def test_schedules_and_places(shape, device):
    """The same bits from every schedule, and where the result takes the place of x or dy."""
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, *shape)).astype("float32")
    gamma = rng.uniform(0.5, 2, shape[1] * shape[2])
    first = gpu.rows_forward(x, gamma, gamma, 1e-5)
    back = gpu.rows_backward(dy, x, *first[1:], gamma, gamma, act=RELU)
    for order in (1, 2, 3):
        device.order = order
        try:
            again = (
                *gpu.rows_forward(x, gamma, gamma, 1e-5),
                *gpu.rows_backward(dy, x, *first[1:], gamma, gamma, act=RELU),
            )
        finally:
            device.order = 0
        for got, want in zip(again, (*first, *back), strict=True):
            assert got.tobytes() == want.tobytes(), f"order {order}"
    out = x.copy()
    assert_same(gpu.rows_forward(out, gamma, gamma, 1e-5, out=out)[0], first[0])
    for which in (0, 1):
        arrays = dy.copy(), x.copy()
        got = gpu.rows_backward(*arrays, *first[1:], gamma, gamma, act=RELU, out=arrays[which])
        for g, w in zip(got, back, strict=True):
            assert_same(g, w, which=which)


@pytest.mark.parametrize("limits", [SMALL, gpu_rows.LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("size", "dtype"), [(700, "float32"), (5000, "float32"), (16400, "float32"), (64, "float16")])
def test_gamma_alone_and_beta_alone(size, dtype, limits, device, monkeypatch):
    """The bits of a beta of zeros, and of a gamma of ones: of what is kept, and of what is not."""
    monkeypatch.setattr(device, "limits", limits)
    rng = np.random.default_rng(size)
    x, dy = rng.standard_normal((2, 2, 1, size, 1)).astype(dtype)
    gamma, zeros, ones = rng.uniform(0.5, 2, size), np.zeros(size), np.ones(size)
    for some, all_ in (((gamma, None), (gamma, zeros)), ((None, gamma), (ones, gamma)), ((None, None), (ones, zeros))):
        for act in (IDENTITY, RELU):
            got, want = (gpu.rows_forward(x, *affine, 1e-5, act=act) for affine in (some, all_))
            got += gpu.rows_backward(dy, x, *got[1:], *some, act=act)
            want += gpu.rows_backward(dy, x, *want[1:], *all_, act=act)
            for a, b in zip(got, want, strict=True):
                assert_same(a, b, size=size, act=act)


def test_constants_and_far_means():
    x = np.full((3, 1, 50, 1), 14.62, "float32")
    y, mean, rstd = gpu.rows_forward(x, None, None, 0.0)
    assert_same(y, np.zeros_like(x))
    assert_same(mean, np.full(3, np.float32(14.62), "float64"))
    assert_same(rstd, np.ones(3))
    x = (np.random.default_rng(0).standard_normal((4, 1, 600, 1)) + 1e6).astype("float32")
    got, want = gpu.rows_forward(x, None, None, 1e-5)[0], reference.rows_forward(exact(x), None, None, 1e-5)[0]
    assert_close(got, want, 2e-6 * np.maximum(1, np.abs(want) / 8))


@pytest.mark.parametrize("size", [200, 1024, 8192])
def test_a_center_far_from_the_mean(size):
    """It is the middle one of three values: where all three are far away, squares about it lose digits."""
    x = np.random.default_rng(0).standard_normal((3, 1, size, 1)).astype("f4")
    x[1:, :, [0, size // 2, size - 1]] = 3000
    _, mean, rstd = gpu.rows_forward(x, None, None, 1e-5)
    want = reference.rows_forward(exact(x), None, None, 1e-5)
    assert_close(mean, want[1], 1e-6)
    assert_close(rstd, want[2], 1e-6 * want[2])


@pytest.mark.parametrize("shape", [(3, 1, 0, 1), (3, 2, 2, 0), (0, 1, 8, 1)], ids=str)
def test_nothing_is_written_where_there_is_nothing(shape):
    """Not even beside a result of no values, which lies amid others."""
    memory = np.full(64, 7, "float32")
    x = memory[32:32].reshape(shape)
    ones = np.ones(shape[1] * shape[2])
    for weight in (None, np.ones((shape[0], shape[3]))):
        _, mean, rstd = gpu.rows_forward(x, ones, ones, 1e-5, weight=weight, out=x)
        gpu.rows_backward(x, x, mean, rstd, ones, ones, weight=weight, out=x)
        assert_same(memory, np.full(64, 7, "float32"))


@pytest.mark.parametrize("shape", [(120000, 1, 4, 1), (1, 1, 1, 655360)], ids=["columns", "a long run"])
def test_sums_over_many_rows_lose_no_digits(shape, device, monkeypatch):
    """Threads add up floats only for a while: float sums of many equal numbers drift away, as all are rounded alike."""
    monkeypatch.setattr(device, "limits", SMALL._replace(processors=1))
    x, dy = np.zeros(shape, "float32"), np.full(shape, 0.1, "float32")
    _, mean, rstd = gpu.rows_forward(x, None, None, 1e-5)
    _, _, dbeta = gpu.rows_backward(dy, x, mean, rstd, np.ones(shape[2]), None)
    want = np.full(shape[2], x.size / shape[2] * np.float64(dy.flat[0]))
    assert_close(dbeta, want, 1e-6 * want)
