"""The exact sums of CuPy arrays, on the emulator: the integers of the CPU, in every layout and of any values."""

import ml_dtypes
import numpy as np
import pytest

import bnorm.functional as F
from bnorm.kernels import cpu, gpu
from bnorm.kernels.gpu import exact, launching, plans, shapes
from bnorm.kernels.gpu.jobs import JOB
from emulated import fake_cupy
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import there

pytestmark = needs_emulator
SHAPES = {  # what the plan tells apart
    (1, 3): "one row",
    (2100, 5): "widened, with a rest, and several chunks",
    (600, 130): "several tiles",
    (70, 2, 49): "short runs, as rows of channels",
    (5, 3, 333): "runs, scalar loads",
    (9, 2, 1100): "runs, whole vectors, several chunks",
}
DTYPES = ("float16", "bfloat16", "float32")


def drawn(kind, shape, dtype):
    rng = np.random.default_rng(len(shape))
    if kind == "any bits":
        size = np.dtype(dtype).itemsize
        return rng.integers(0, 256, (*shape, size), np.uint8).view(dtype)[..., 0]
    x = rng.standard_normal(shape) * {"normal": 3.0, "growing": 1.0}[kind] + 1
    if kind == "growing":  # a window that moves up again and again, and zeros
        x *= 2.0 ** (np.arange(len(x)) % 40 - 15).reshape(-1, *[1] * (len(shape) - 1)) * (rng.random(shape) < 0.7)
    return x.astype(dtype)


def same(got, want):
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPES.values())
@pytest.mark.parametrize("kind", ["normal", "any bits", "growing"])
def test_the_integers_of_the_cpu(cupy, kind, shape):
    for name in DTYPES if kind == "normal" else ("float32",):
        x = drawn(kind, shape, np.dtype(getattr(ml_dtypes, name, name)))
        same(gpu.exact_sums(there(x)), cpu.exact_sums(x))
    mask = np.random.default_rng(1).random((shape[0], int(np.prod(shape[2:])))) < 0.6
    same(gpu.exact_sums(there(x), there(mask)), cpu.exact_sums(x, mask))


def test_more_values_than_go_between_two_flushes(cupy, monkeypatch):
    """The largest values that a window holds, more of them than a thread's sum has room for. It begins at ones."""
    limits = plans.Limits(processors=1)
    monkeypatch.setattr(launching.device_of(there(np.ones(1))), "limits", limits)
    x = np.full((1, 1, 4300 * 2 * plans.THREADS), 2.0**13 * (2 - 2.0**-23), np.float32)
    (launch,) = plans.exact_sums(*x.shape, "float32", True, False, limits).launches
    fields = JOB.placed(launch.geometry)
    assert fields["chunks"] == 2 and fields["chunk"] * fields["unit"] >= 4200 * plans.THREADS
    for g in range(2):
        x[0, 0, g * fields["chunk"] * fields["unit"] :][: fields["unit"] * plans.THREADS] = 1
    same(gpu.exact_sums(there(x)), cpu.exact_sums(x))


def test_nothing(cupy):
    for shape in ((0, 3), (4, 0), (2, 3, 0)):
        x = np.zeros(shape, np.float32)
        same(gpu.exact_sums(there(x)), cpu.exact_sums(x))


def test_only_integers_come_to_the_host(cupy):
    """But of types and sizes that the device does not sum."""
    x = drawn("normal", (9, 4), np.float32)
    launched = len(fake_cupy.launched)
    for a in (x, x.astype(np.float16)):
        before = cupy.waits
        assert F.moments(there(a), exact=True) == F.moments(a, exact=True)
        assert cupy.waits - before == 1
    assert [name.split("<")[0] for name in fake_cupy.launched[launched:]] == ["exact_sums"] * 2
    w = np.arange(9)
    assert F.moments(there(x), exact=True, weight=there(w)) == F.moments(x, exact=True, weight=w)
    launched = len(fake_cupy.launched)
    for a in (x.astype(np.float64), np.arange(12).reshape(4, 3)):
        assert F.moments(there(a), exact=True) == F.moments(a, exact=True)
    assert len(fake_cupy.launched) == launched


def test_more_values_than_limbs_have_room_for(cupy, monkeypatch):
    monkeypatch.setattr(exact, "MOST", 8)
    x = drawn("normal", (9, 4), np.float32)
    launched = len(fake_cupy.launched)
    same(gpu.exact_sums(there(x)), cpu.exact_sums(x))
    assert len(fake_cupy.launched) == launched


def test_axes(cupy):
    x = drawn("normal", (6, 5, 40), np.float32)
    for axis in (0, 1, 2):
        assert F.moments(there(x), axis=axis, exact=True) == F.moments(x, axis=axis, exact=True)
    w = np.arange(5)
    for weight in (None, w):
        got = F.moments(there(x), axis=(2, 0), exact=True, weight=None if weight is None else there(weight))
        assert got == F.moments(x, axis=(2, 0), exact=True, weight=weight)


def test_the_rows_are_those_of_the_kernel():
    text = launching.source("exact")
    assert f"SQUARES_AT = {exact.SQUARES}, ODD_AT = {exact.ODD}, ROWS = {exact.ROWS} }};" in text
    assert launching.SHARED_AT_FIRST >= exact.ROWS * 8 * shapes.TILE_BYTES // 2
