"""Moments of CuPy arrays, on the stand-in: those of the CPU, merged without waiting for the device."""

import pickle

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm import Moments
from compare import EPS, assert_close, assert_same
from emulated import fake_cupy
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import assert_alike, there

X = np.random.default_rng(0).standard_normal((8, 4))
ONES = np.ones(4)
NAN = float("nan")


def same_moments(got, want):
    assert type(got._parts) is fake_cupy.ndarray
    size = np.abs(np.nan_to_num(want._parts, posinf=0, neginf=0)).max(initial=1.0)
    assert_close(got._parts.host[:3], want._parts[:3], 1e-13 * size)
    assert np.isfinite(got._parts.host[3]).all() == np.isfinite(want._parts[3]).all()


@needs_emulator
def test_moments(cupy):
    with cupy.nothing_waits():
        a, b = F.moments(there(X[:5])), F.moments(there(X[5:]))
        total, var = a + b, (a + b).var(1)
        three = Moments.merge([a, b, a])
        std = three.std()
    want = F.moments(X[:5]) + F.moments(X[5:])
    same_moments(total, want)
    same_moments(three, want + F.moments(X[:5]))
    assert_alike(var, want.var(1))
    assert type(std) is type(a.count) is type(a.mean) is type(a.m2) is cupy.ndarray
    assert a == F.moments(there(X[:5])) and a != b and a != 3
    assert repr(want)[:30] == repr(total)[:30]
    again = pickle.loads(pickle.dumps(a))
    assert again == a and type(again._parts) is cupy.ndarray


@needs_emulator
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("skipna", [False, True])
def test_moments_with_gaps(cupy, weighted, skipna):
    x = X.copy()
    x[0, 0], x[:, 3] = NAN, NAN if skipna else 0
    weight = np.arange(8.0) if weighted else None
    want = F.moments(x, weight=weight, skipna=skipna) + F.moments(X)
    device_x, device_weight, whole = there(x), there(weight), there(X)
    before = cupy.waits
    got = F.moments(device_x, weight=device_weight, skipna=skipna) + F.moments(whole)
    assert cupy.waits - before == weighted
    same_moments(got, want)
    alone, wanted = F.moments(there(x), skipna=True), F.moments(x, skipna=True)
    assert_close(alone.mean.host, wanted.mean, 1e-13)
    assert_same(alone.count.host, wanted.count)
    assert_close(alone.var().host, wanted.var(), 1e-13)


@needs_emulator
@pytest.mark.parametrize("shape", [(1000, 5), (2, 5, 500)], ids=str)
def test_values_far_away_that_weigh_almost_nothing_cost_no_digit(cupy, shape):
    """They come first in each thread, whose other values weigh more."""
    x = np.random.default_rng(0).standard_normal((1000, 5))
    x[:300] += 1e9
    weight = np.where(np.arange(1000) < 300, 1e-20, 1.0)
    if len(shape) == 3:
        x, weight = x.reshape(2, 500, 5).swapaxes(1, 2), weight.reshape(2, 500)
    got, want = F.moments(there(x), weight=there(weight)), F.moments(x, weight=weight)
    assert_close(got.mean.host, want.mean, 4 * EPS[x.dtype] * want.std())
    assert_close(got.var().host, want.var(), 16 * EPS[x.dtype] * want.var())


@needs_emulator
def test_moments_of_infinity(cupy):
    x = X.copy()
    x[0, 1], x[5, 2] = np.inf, -np.inf
    parts = x[:3], x[3:6], x[6:]
    with cupy.nothing_waits():
        got = [F.moments(fake_cupy.wrapped(part)) for part in parts]
        got = Moments.merge(got) + got[0]
    want = [F.moments(part) for part in parts]
    same_moments(got, Moments.merge(want) + want[0])


@needs_emulator
@pytest.mark.parametrize("shape", [(9, 8, 49), (9, 2, 1100)], ids=["small planes", "runs"])
def test_infinity_makes_mean_and_variance_nan(cupy, shape):
    """However a channel is read: alone, and in a forward, whose statistics the running ones take if asked."""
    x = np.random.default_rng(3).standard_normal(shape).astype("f4")
    x[3, 1, 0] = -np.inf
    want = F.moments(x, axis=1)
    found = F.moments(there(x), axis=1)
    bn = bnorm.BatchNorm1d(shape[1], nonfinite="propagate", device="cuda")
    bn(there(x))
    for got in (found.mean, found.m2, bn.running_mean, bn.running_var):
        assert_same(np.isnan(got.host), np.isnan(want.mean), shape=shape)


def test_moments_move(cupy):
    m = Moments([2, 0], [1.0, 5.0], [2.0, 7.0])
    there_and_back = m.to("cuda").to("cpu")
    assert there_and_back == m and type(there_and_back.mean) is np.ndarray and m.to("cpu") is m
    on_device = m.to("cuda")
    assert type(on_device.mean) is cupy.ndarray and on_device.to("cuda") is on_device and on_device == m
    made = Moments(*(there(np.array(a)) for a in ([2, 0], [1.0, 5.0], [2.0, 7.0])))
    assert made == on_device and type(made.mean) is cupy.ndarray
    for wrong in (lambda: m + on_device, lambda: Moments.merge([on_device, m])):
        with pytest.raises(TypeError, match=r"^Moments.merge: items: .* moments.to\('cpu'\)"):
            wrong()
    with pytest.raises(TypeError, match=r"^Moments: m2: expected a CuPy array, as count is one, got a NumPy array"):
        Moments(there(ONES), there(ONES), ONES)
    for bad, message in (([NAN] * 4, "count: expected finite"), ([-1.0] * 4, "count: expected finite")):
        with pytest.raises(ValueError, match=message):
            Moments(there(np.array(bad)), there(ONES), there(ONES))


@needs_emulator
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_axes_with_extremes(cupy, weighted):
    x = np.random.default_rng(1).standard_normal((3, 4, 2, 5))
    x[0, 1, 0, :3] = NAN
    weight = np.arange(6.0).reshape(3, 2) if weighted else None
    device_weight = None if weight is None else there(weight)
    for skipna in (False, True):
        got = F.moments(there(x), axis=(3, 1), weight=device_weight, skipna=skipna, minmax=True)
        want = F.moments(x, axis=(3, 1), weight=weight, skipna=skipna, minmax=True)
        both, wanted = got + got, want + want
        assert got.shape == want.shape == both.shape
        for a, b in ((got, want), (both, wanted)):
            assert_close(a.count.host, b.count, 0)
            assert_close(a.mean.host, b.mean, 1e-13)
            assert_same(a.min.host, b.min)
            assert_same(a.max.host, b.max)


@needs_emulator
def test_weights_of_long_samples(cupy):
    """Each is that of so many values that their moments come first."""
    x, weight = np.random.default_rng(2).standard_normal((3, 4, 8, 16)), np.array([0.5, 0.0, 2.0])
    for axis in (1, (1, 2)):
        got = F.moments(there(x), axis=axis, weight=there(weight))
        same_moments(got, F.moments(x, axis=axis, weight=weight))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (2, 3, 0), (0, 3, 2)])
def test_extremes_of_nothing(cupy, shape):
    x, weight = np.zeros(shape), np.ones(shape[:1])
    for options in ({}, {"skipna": True}, {"weight": weight}):
        got = F.moments(there(x), minmax=True, **{name: there(value) for name, value in options.items()})
        want = F.moments(x, minmax=True, **options)
        assert_same(got.count.host, want.count)
        assert_same(got.min.host, want.min)
        assert_same(got.max.host, want.max)
