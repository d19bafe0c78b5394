"""What a row comes to on a GPU does not depend on what else is in the call, nor on the size of the device: no bit of y,
of its statistics or of dx; with a residual, with weights, by known statistics too.

tests/functional/test_batch_invariance.py asks the same of the CPU.
"""

import numpy as np
import pytest

from bnorm.kernels import MEAN_SQUARE, VARIANCE, gpu
from bnorm.kernels.activation import RELU
from bnorm.kernels.gpu import plans
from bnorm.kernels.gpu.jobs import GAMMA_ALONE, GAMMA_AND_BETA, NO_AFFINE, ROW_JOB
from compare import assert_close
from emulated.device import emulated_device, needs_emulator  # noqa: F401
from placing import moved

pytestmark = [needs_emulator, pytest.mark.usefixtures("device")]

SAMPLES = 19
ROWS = [(1, 7, 1), (1, 33, 1), (1, 700, 1), (1, 1100, 1), (2, 2, 49), (1, 3, 64)]  # (G, K, L) of a sample
MANY = [
    ((1, 33, 1), "float32"),
    ((1, 700, 1), "float16"),
    ((1, 2052, 1), "float32"),
    ((1, 3072, 1), "float32"),  # three vectors of a thread
    ((1, 5120, 1), "float16"),  # five, and where there is memory broad blocks in a backward
    ((1, 16000, 1), "float16"),  # the same of both ways
    ((3, 1, 300), "float32"),
]
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


@pytest.mark.parametrize(
    ("samples", "devices"),
    [(5, [*DEVICES]), (45, [*DEVICES][::3]), pytest.param(84, [*DEVICES], marks=pytest.mark.slow)],
    ids=["few", "many", "many on each"],
)
@pytest.mark.parametrize(("sample", "dtype"), MANY, ids=str)
def test_any_device(sample, dtype, samples, devices, device, monkeypatch):
    """Few rows and many, by the number of processors: these were dealt out by it."""
    arrays = problem((samples, *sample), dtype)
    found = []
    for processors, shared in devices:
        monkeypatch.setattr(device, "limits", plans.Limits(processors, shared << 10, clusters=processors > 84))
        found.append(results(*arrays, VARIANCE))
    for again, limits in zip(found, devices, strict=True):
        assert_parts(again, found[0], slice(None), limits=limits, samples=samples)


@pytest.mark.parametrize(
    ("sample", "dtype", "affine", "kept"),  # of gamma and beta; x of a forward, x and dy of a backward
    [
        ((1, 18000, 1), "float32", NO_AFFINE, [("0 0", "0 0"), ("0 1", "0 0"), ("0 1", "0 1")]),
        ((1, 18000, 1), "float32", GAMMA_ALONE, [("0 0", "0 0"), ("1 0", "0 0"), ("1 1", "2 0")]),
        ((1, 11500, 1), "float32", NO_AFFINE, [("0 1", "0 0"), ("0 1", "0 1"), ("0 1", "0 1")]),
        ((1, 11500, 1), "float32", GAMMA_AND_BETA, [("0 1", "0 0"), ("2 0", "2 0"), ("2 1", "2 1")]),
        ((1, 5000, 1), "float32", GAMMA_ALONE, [("1 0", "0 0"), ("1 0", "2 0"), ("1 0", "2 0")]),
        ((1, 5000, 1), "float32", GAMMA_AND_BETA, [("2 0", "0 0"), ("2 0", "2 0"), ("2 0", "2 0")]),
        ((1, 16000, 1), "float32", GAMMA_AND_BETA, [("0 0", "0 0"), ("0 1", "0 0"), ("2 1", "2 0")]),
        ((1, 3, 8000), "float16", GAMMA_AND_BETA, [("0 1", "0 0"), ("0 1", "0 1"), ("0 1", "0 1")]),
    ],
    ids=str,
)
def test_what_is_kept_or_read_again(sample, dtype, affine, kept, device, monkeypatch):
    """A device with more shared memory reads a long row once, and gamma and beta once for all rows of a block."""
    x, dy, gamma, beta, _ = problem((2, *sample), dtype)
    gamma, beta = gamma if affine else None, beta if affine == GAMMA_AND_BETA else None
    found, keeps = [], []
    for processors, shared in sorted(DEVICES)[:3]:
        monkeypatch.setattr(device, "limits", plans.Limits(processors, shared << 10, clusters=False))
        device.log.clear()
        y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5, act=RELU)
        dx, *_ = gpu.rows_backward(dy, x, mean, rstd, gamma, beta, act=RELU, params=False)
        keeps.append(tuple(kept_of(launch) for launch in device.log))
        found.append([a.tobytes() for a in (y, mean, rstd, dx)])
    assert keeps == kept
    assert all(again == found[0] for again in found)


def kept_of(launch):
    fields = ROW_JOB.placed(launch.geometry)
    return f"{fields['affine']} {int(fields['keep'] > 0)}"


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


@pytest.mark.parametrize(("sample", "samples"), [((1, 700, 1), 130), ((1, 33, 1), 520), ((2, 2, 49), 70)], ids=str)
def test_late_blocks(sample, samples, device, monkeypatch):
    """Of many rows for one processor the last ones belong to blocks that begin late, and have sums of their own."""
    arrays = problem((samples, *sample), "float32")
    x, dy, gamma, beta, _ = arrays
    found, sums = [], []
    for processors in (1, 160):
        monkeypatch.setattr(device, "limits", plans.Limits(processors))
        found.append(results(*arrays, VARIANCE))
        _, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5)
        device.log.clear()
        sums.append(gpu.rows_backward(dy, x, mean, rstd, gamma, beta)[1:])
        of = ROW_JOB.placed(device.log[0].geometry)
        assert (of["late"] < of["rows"]) == (processors == 1) == (of["halvings"] > 0)
    assert_parts(found[0], found[1], slice(None), sample=sample)
    for late, even in zip(*sums, strict=True):
        assert_close(late, even, 1e-5 * np.sqrt(samples * sample[-1]) * abs(dy).max())
