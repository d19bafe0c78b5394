"""What a row comes to on a GPU does not depend on what else is in the call, nor on the size of the device: no bit of y,
of its statistics or of dx; with a residual, with weights, by known statistics too.

tests/functional/test_batch_invariance.py asks the same of the CPU.
"""

import numpy as np
import pytest

from bnorm.kernels import MEAN_SQUARE, VARIANCE, gpu
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import plans
from bnorm.kernels.gpu.jobs import ROW_JOB
from emulated import rows as gpu_rows
from emulated.device import emulated_device, needs_emulator  # noqa: F401
from placing import moved

pytestmark = [needs_emulator, pytest.mark.usefixtures("device")]

SAMPLES = 37
ROWS = [(1, 7, 1), (1, 33, 1), (1, 700, 1), (1, 1100, 1), (2, 2, 49), (1, 3, 64)]  # (G, K, L) of a sample
MANY = [((1, 33, 1), "float32"), ((1, 700, 1), "float16"), ((1, 2052, 1), "float32"), ((3, 1, 300), "float32")]
DEVICES = {  # processors, and the shared memory of a block in KB, as some have them
    (20, 64): "small, of capability 7.5",
    (84, 99): "8.6",
    (132, 227): "9.0",
    (160, 227): "more than there are",
}


def results(x, dy, gamma, beta, weight, rule):
    """What is made of each sample, as bytes, by name."""
    n = len(x)
    y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5, rule, RELU)
    (z, h), *_ = gpu.rows_forward(x, gamma, beta, 1e-5, rule, residual=dy)
    dx, *_ = gpu.rows_backward(dy, x, mean, rstd, gamma, beta, rule, RELU)
    dh, *_ = gpu.rows_backward(dy, x, mean, rstd, gamma, beta, rule, params=False, dh=dy)
    masked, mean_w, rstd_w = gpu.rows_forward(x, gamma, beta, 1e-5, rule, weight=weight)
    dx_w, *_ = gpu.rows_backward(dy, x, mean_w, rstd_w, gamma, beta, rule, weight=weight)
    known, stats, count, _ = gpu.forward(x.reshape(n, -1, 1), None, None, 1e-5, *np.ones((2, x[0].size)))
    frozen, *_ = gpu.backward(dy.reshape(n, -1, 1), x.reshape(n, -1, 1), stats, count, frozen=True)
    found = {
        "by known statistics": known,
        "dx of these": frozen,
        "y": y,
        "mean": mean,
        "rstd": rstd,
        "z": z,
        "h": h,
        "dx": dx,
        "dx with dh": dh,
    }
    found |= {"weighted y": masked, "weighted mean": mean_w, "weighted dx": dx_w}
    return {name: np.ascontiguousarray(a).reshape(n, -1).view(np.uint8) for name, a in found.items()}


def assert_parts(found, whole, part, **tags):
    for name, values in found.items():
        assert (values == whole[name][part]).all(), f"{name}: {tags}"


def problem(shape, dtype):
    rng = np.random.default_rng(shape)
    n, g, k, positions = shape
    x, dy = (rng.normal(mean, 2, shape).astype(dtype) for mean in (3, 0))
    weight = np.maximum(rng.standard_normal((n, positions)), 0) + (np.arange(positions) == 0)
    return x, dy, rng.normal(1, 0.3, g * k), rng.normal(0, 0.3, g * k), weight


@pytest.mark.parametrize("rule", [VARIANCE, MEAN_SQUARE], ids=["variance", "mean square"])
@pytest.mark.parametrize("sample", ROWS, ids=str)
def test_any_part_of_a_batch(sample, rule):
    arrays = problem((SAMPLES, *sample), "float32")
    x, dy, gamma, beta, weight = arrays
    whole = results(*arrays, rule)
    picked = np.random.default_rng(0).permutation(SAMPLES)
    for i, part in enumerate([slice(0, 1), slice(SAMPLES - 1, SAMPLES), slice(3, 9), picked]):
        found = results(moved(x[part], i), moved(dy[part], 2 * i), gamma, beta, weight[part], rule)
        assert_parts(found, whole, part, of=part, sample=sample)


@pytest.mark.parametrize(("sample", "dtype"), MANY, ids=str)
def test_any_device(sample, dtype, device, monkeypatch):
    """Few rows and many, by the number of processors: these were dealt out by it."""
    for samples in (5, 84):
        arrays = problem((samples, *sample), dtype)
        found = []
        for processors, shared in DEVICES:
            monkeypatch.setattr(device, "limits", plans.Limits(processors, shared << 10, clusters=processors > 84))
            found.append(results(*arrays, VARIANCE))
        for again, limits in zip(found, DEVICES, strict=True):
            assert_parts(again, found[0], slice(None), limits=limits, samples=samples)


@pytest.mark.parametrize(
    ("sample", "dtype", "kept"),  # whether a row of the forward is kept there, and x and dy of the backward
    [
        ((1, 18000, 1), "float32", [(0, 0), (1, 0), (1, 0), (1, 0)]),
        ((1, 11500, 1), "float32", [(0, 0), (1, 0), (1, 1), (1, 1)]),
        ((1, 3, 8000), "float16", [(0, 0), (1, 0), (1, 0), (1, 0)]),
    ],
    ids=str,
)
def test_a_row_that_is_kept_or_read_twice(sample, dtype, kept, device, monkeypatch):
    """A device with more shared memory reads a long row once."""
    x, dy, gamma, beta, _ = problem((2, *sample), dtype)
    found, keeps = [], []
    for processors, shared in DEVICES:
        monkeypatch.setattr(device, "limits", plans.Limits(processors, shared << 10, clusters=False))
        device.log.clear()
        y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5, act=RELU)
        dx, *_ = gpu.rows_backward(dy, x, mean, rstd, gamma, beta, act=RELU)
        keeps.append(tuple(int(kept_of(device.log, name) > 0) for name in ("rows_forward", "rows_backward")))
        found.append([a.tobytes() for a in (y, mean, rstd, dx)])
    assert keeps == kept
    assert all(again == found[0] for again in found)


def kept_of(launches, name):
    (keep,) = {ROW_JOB.placed(launch.geometry)["keep"] for launch in launches if launch.kernel.startswith(name)}
    return keep


@pytest.mark.parametrize("sample", [(1, 700, 1), (2, 2, 50)], ids=str)
def test_any_place_in_memory(sample):
    """What does not begin where whole vectors may be loaded, in the place of each array; and results in such places."""
    x, dy, gamma, beta, _ = problem((6, *sample), "float32")
    y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5)
    dx, *sums = gpu.rows_backward(dy, x, mean, rstd, gamma, beta)
    for by in (1, 2, 3):
        a, b, out = moved(x, by), moved(dy, by), moved(x, by)
        assert np.array_equal(gpu.rows_forward(a, gamma, beta, 1e-5)[0], y)
        again = gpu.rows_forward(x, gamma, beta, 1e-5, out=out)
        assert again[0] is out and all(map(np.array_equal, again, (y, mean, rstd)))
        assert np.array_equal(gpu.rows_backward(dy, a, mean, rstd, gamma, beta)[0], dx)
        again = gpu.rows_backward(b, x, mean, rstd, gamma, beta, out=b)  # in its own place
        assert again[0] is b and all(map(np.array_equal, again, (dx, *sums)))


@pytest.fixture(autouse=True, scope="module")
def compiled():
    gpu_rows.compiled()
