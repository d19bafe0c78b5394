"""The CUDA kernels of layer, group, instance and RMS norm, on the emulator, against the reference."""

import numpy as np
import pytest

from bnorm.kernels import MEAN_SQUARE, VARIANCE, gpu, reference
from bnorm.kernels.gpu import jobs, plans, row_plans
from compare import assert_close, assert_same
from gpu_device import SMALL, emulated, emulated_device, needs_emulator  # noqa: F401
from kernel_checks import assert_rows, exact

pytestmark = [needs_emulator, pytest.mark.usefixtures("device")]

ROWS = [  # (N, G, K, L)
    (5, 1, 7, 1),  # layer norm, no vector divides a row
    (30, 1, 700, 1),  # a warp holds a row
    (20, 1, 768, 1),
    (3, 1, 2049, 1),  # a block holds a row, value by value
    (5, 1, 5000, 1),  # the same by vectors, eight of a thread
    (2, 1, 16400, 1),  # too long to be held, and more gamma than is kept
    (4, 1, 1, 1),  # one feature
    (300, 1, 36, 1),  # many short rows, several to a warp
    (2500, 1, 64, 1),  # so many that sums over them are flushed
    (17, 3, 5, 1),  # group norm of (N, C)
    (3, 4, 2, 49),  # group norm of 7x7 images
    (2, 2, 2, 1100),  # long runs
    (2, 5, 1, 1025),  # instance norm
    (130, 6, 1, 16),
    (2, 1, 3, 64),  # one group: all of a sample
    (0, 1, 8, 1),
    (3, 1, 0, 1),
    (3, 2, 2, 0),
    (3, 0, 0, 5),
]
RUNS = [(shape, "float32") for shape in ROWS] + [(shape, t) for shape in ROWS[1:10:2] for t in ("float16", "float64")]


LARGE = plans.Limits(processors=3)  # whose shared memory holds the sums of long rows, where rows share columns
LIMITED = [(*run, SMALL) for run in RUNS] + [(*run, LARGE) for run in RUNS if run[0][1] == run[0][3] == 1]
VARIANTS = [(True, VARIANCE, 1.0), (False, VARIANCE, 0.0), (True, MEAN_SQUARE, 0.25)]  # affine, rule, slope


def plans_of(shape, dtype, affine, kind, limits):
    size = shape, dtype, True
    yield row_plans.rows("rows_forward", *size, affine, False, kind, limits)
    for params in (True, False):
        yield row_plans.rows("rows_backward", *size, affine, params, kind, limits)
    yield row_plans.row_sums(*size, kind, limits)


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Everything that the tests launch, at once."""
    names = {"rows": set(), "row_channels": set()}
    for shape, dtype in RUNS:
        for affine, _, slope in VARIANTS if 0 not in shape else ():
            for limits in (SMALL, LARGE):
                for plan in plans_of(shape, dtype, affine, jobs.kind_of(slope), limits):
                    for launch in plan.launches:
                        names[launch.family].add(launch.kernel)
    for family, wanted in names.items():
        emulated().build_all(family, wanted)


@pytest.mark.parametrize(("shape", "dtype", "limits"), LIMITED, ids=str)
def test_rows(shape, dtype, limits, device, monkeypatch):
    monkeypatch.setattr(device, "limits", limits)
    rng = np.random.default_rng(shape)
    n, g, k, _ = shape
    x = (rng.standard_normal(shape) + 3 * rng.standard_normal((n, g, 1, 1))).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    for affine, rule, slope in VARIANTS:
        gamma, beta = (rng.uniform(0.5, 2, g * k), rng.standard_normal(g * k)) if affine else (None, None)
        tags = {"shape": shape, "dtype": dtype, "affine": affine, "rule": rule, "slope": slope}
        args, got, _, _ = assert_rows(gpu, x, dy, gamma, beta, rule, slope, tags)
        without = gpu.rows_backward(*args, params=False)
        assert_same(without[0], got[0], what="dx without params", **tags)
        assert without[1] is None and without[2] is None


@pytest.mark.parametrize("shape", [(6, 1, 40, 1), (2, 3, 2, 49), (2, 1, 16400, 1)], ids=str)
def test_schedules_and_places(shape, device):
    """The same bits from every schedule, and where the result takes the place of x or dy."""
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, *shape)).astype("float32")
    gamma = rng.uniform(0.5, 2, shape[1] * shape[2])
    first = gpu.rows_forward(x, gamma, gamma, 1e-5)
    back = gpu.rows_backward(dy, x, *first[1:], gamma, gamma, slope=0.0)
    for order in (1, 2, 3):
        device.order = order
        try:
            again = (
                *gpu.rows_forward(x, gamma, gamma, 1e-5),
                *gpu.rows_backward(dy, x, *first[1:], gamma, gamma, slope=0.0),
            )
        finally:
            device.order = 0
        for got, want in zip(again, (*first, *back), strict=True):
            assert got.tobytes() == want.tobytes(), f"order {order}"
    out = x.copy()
    assert_same(gpu.rows_forward(out, gamma, gamma, 1e-5, out=out)[0], first[0])
    for which in (0, 1):
        arrays = dy.copy(), x.copy()
        got = gpu.rows_backward(*arrays, *first[1:], gamma, gamma, slope=0.0, out=arrays[which])
        for g, w in zip(got, back, strict=True):
            assert_same(g, w, which=which)


def test_constants_and_far_means():
    x = np.full((3, 1, 50, 1), 14.62, "float32")
    y, mean, rstd = gpu.rows_forward(x, None, None, 0.0)
    assert_same(y, np.zeros_like(x))
    assert_same(mean, np.full(3, np.float32(14.62), "float64"))
    assert_same(rstd, np.ones(3))
    x = (np.random.default_rng(0).standard_normal((4, 1, 600, 1)) + 1e6).astype("float32")
    got, want = gpu.rows_forward(x, None, None, 1e-5)[0], reference.rows_forward(exact(x), None, None, 1e-5)[0]
    assert_close(got, want, 2e-6 * np.maximum(1, np.abs(want) / 8))
