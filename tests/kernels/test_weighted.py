"""Weights in the moments: what one way through the loops must have in common with all others."""

import numpy as np
import pytest

from bnorm.kernels import cpu, reference
from compare import assert_close, assert_same

needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps, reason="long double is no wider than float64 here"
)

SHAPES = {
    (3001, 40): "rows with one weight each",
    (70, 700): "rows of several tiles",
    (3001, 20): "rows that plain moments widen",
    (3001, 3): "few channels: weights are spread over widened rows",
    (1500, 3, 5): "runs that are spread",
    (301, 3, 20): "runs that are widened and read where they lie",
    (130, 40, 49): "runs that are read where they lie",
    (4, 3, 14001): "long runs",
    (1, 5, 30011): "long runs in segments",
}
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def example(shape, dtype="f4"):
    rng = np.random.default_rng(len(shape))
    x = (rng.standard_normal(shape) + 3).astype(dtype)
    weight = rng.uniform(0.5, 2, (shape[0], int(np.prod(shape[2:])))) * (rng.random((shape[0], 1)) < 0.7)
    return x, weight


def over_channels(weight, shape):
    return np.broadcast_to(weight.reshape(shape[0], 1, *shape[2:]), shape)


@every_shape
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -3e38])
def test_what_stands_under_no_weight_changes_no_bit(shape, garbage):
    x, weight = example(shape)
    weight[0], weight[-1] = 0.0, 0.0
    weight[:, ::3] *= weight.shape[1] == 1
    under = over_channels(weight, shape) == 0
    assert under.any()
    want = cpu.moments(np.where(under, np.float32(0), x), weight)
    assert_same(cpu.moments(np.where(under, np.float32(garbage), x), weight), want, shape=shape)
    assert_close(want, reference.moments(x, weight), 1e-12 * np.array([[1e6], [1], [1e6], [1]]), shape=shape)


@pytest.mark.parametrize("run", range(1, 18))
def test_weights_of_few_channels_and_short_runs(run):
    """Each number of channels and each length of run has a way of its own to spread weights over a row."""
    for channels in range(1, 18 if run < 4 else 5):
        for outer in (5, 9, 203, 1000 // run):
            shape = (outer, channels, run) if run > 1 else (outer, channels)
            x, weight = example(shape, "f8")
            found, want = cpu.moments(x, weight), reference.moments(x, weight)
            assert_close(found, want, 1e-13 * np.maximum(1, want[0]), shape=shape)


@every_shape
@pytest.mark.parametrize("skipna", [False, True])
def test_a_value_that_is_missing_concerns_its_channel_alone(shape, skipna):
    x, weight = example(shape, "f8")
    whole = reference.moments(x, weight)
    x[(np.flatnonzero(weight[:, -1])[-1], 1, *(-1 for _ in shape[2:]))] = np.nan
    found, want = cpu.moments(x, weight, skipna), reference.moments(x, weight, skipna)
    assert_close(np.delete(found, 1, axis=1), np.delete(whole, 1, axis=1), 1e-9, shape=shape)
    assert_close(found, want, 1e-9, shape=shape)
    assert np.isnan(found[1, 1]) != skipna


@every_shape
def test_a_constant_is_exact(shape):
    _, weight = example(shape)
    found = cpu.moments(np.full(shape, 0.1), weight)
    assert_same(found[1:], np.repeat([[0.1], [0.0], [0.0]], shape[1], axis=1), shape=shape)


@needs_long_double
@every_shape
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_light_values_far_away_cost_no_digit(shape, dtype):
    """Every block outweighs those before it by far, and lies far from them."""
    x, _ = example(shape, dtype)
    n = shape[0] * int(np.prod(shape[2:]))
    late = np.linspace(0, 1, n).reshape(shape[0], -1)
    weight = np.exp2(200 * (late - 1))
    x[over_channels(late < 0.5, shape)] += np.asarray(3e3, dtype)
    w, wide = over_channels(weight, shape).astype(np.longdouble), x.astype(np.longdouble)
    axes = (0, *range(2, len(shape)))
    count = w.sum(axes)
    mean = (w * wide).sum(axes) / count
    m2 = (w * (wide - np.expand_dims(mean, axes)) ** 2).sum(axes)
    found = cpu.moments(x, weight)
    std = np.sqrt(m2 / count)
    assert_close(found[0], count, 1e-14 * count, shape=shape)
    assert_close(found[1].astype(np.longdouble) + found[3], mean, 1e-12 * std, shape=shape)
    assert_close(found[2], m2, 1e-13 * m2, shape=shape)
