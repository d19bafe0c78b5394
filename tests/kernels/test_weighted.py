"""Weights in the moments: what one way through the loops must have in common with all others."""

import numpy as np
import pytest

from bnorm.kernels import cpu, reference
from bnorm.kernels.activation import IDENTITY, RELU, SILU
from bnorm.kernels.cpu import entries
from compare import assert_close, assert_same
from drawing import together

needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps, reason="long double is no wider than float64 here"
)

SHAPES = {
    (3001, 40): "rows with one weight each",
    (70, 700): "rows of several tiles",
    (3001, 20): "weights are spread over rows, which are widened more than those of plain moments",
    (3001, 36): "the same, for float32 only",
    (3001, 3): "few channels: weights are spread over widened rows",
    (1500, 3, 5): "runs that are spread",
    (301, 3, 20): "planes of rows that plain moments widen",
    (130, 40, 49): "planes",
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


@every_shape
@together(act=[IDENTITY, RELU, SILU], dtype=["f4", "f8"])
def test_what_stands_under_no_weight_changes_no_bit_of_gradients(shape, act, dtype):
    x, weight = example(shape, dtype)
    weight[0] = 0.0
    under = over_channels(weight, shape) == 0
    dy = np.where(under, 0, np.random.default_rng(1).standard_normal(shape)).astype(dtype)
    kept = np.where(under, np.asarray(1, dtype), x)
    _, stats, count, _ = cpu.forward(kept, None, None, 1e-5, weight=weight, act=act)
    want = cpu.backward(dy, kept, stats, count, weight, act)
    found = cpu.backward(dy, np.where(under, np.asarray(np.nan, dtype), x), stats, count, weight, act)
    for got, wanted in zip(found, want, strict=True):
        assert np.isfinite(got).all()
        assert_same(got, wanted, shape=shape)


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


@every_shape
@together(far=[1e18, 1e30, -1e90], dtype=["f4", "f8"])
@pytest.mark.parametrize("skipna", [False, True])
def test_a_first_value_far_away_of_almost_no_weight_costs_no_digit(shape, far, dtype, skipna):
    """The mean that is found about it may be 1e14 standard deviations off, and so is no center yet."""
    x, weight = example(shape)
    x, first = x.astype(dtype), (0, slice(None), *[0] * (len(shape) - 2))
    weight[0, 0] = 0.0
    if skipna:
        x[(-1, 1, *first[2:])] = np.nan
    want = cpu.moments(x, weight, skipna)
    x[first], weight[0, 0] = far if dtype == "f8" else np.sign(far) * 1e18, 1e-290
    count, mean, m2, low = cpu.moments(x, weight, skipna)
    std = np.sqrt(want[2] / want[0])
    assert_close(count, want[0], 4e-16 * want[0])
    assert_close(mean + low, want[1] + want[3], 1e-14 * std)
    assert_close(m2, want[2], 1e-13 * want[2])


@pytest.mark.parametrize("n", [100, 500, 1000, 2000, 5000])
@pytest.mark.parametrize("weight", [0.1, 0.3, 0.7])
def test_equal_terms_are_not_all_rounded_the_same_way(n, weight):
    """A run of k additions of equal terms may be wrong by k / 4 last places: k is 8 for weights, and 32 for values."""
    w = np.full((1, n), weight)
    x = np.random.default_rng(n).choice([-1.7, 1.7], (1, 3, n))  # 16 running sums a plane
    count, mean, m2, low = cpu.moments(x, w)
    exact = n * np.longdouble(weight)
    center = (x.astype(np.longdouble)).mean(axis=(0, 2))
    eps = np.finfo(np.float64).eps
    assert_close(count, np.full(3, exact), 2 * eps * exact)
    assert_close(mean + low, center, 8 * eps * 1.7)
    assert_close(m2, weight * ((x - center[None, :, None]) ** 2).sum(axis=(0, 2)), 16 * eps * m2)


@every_shape
def test_all_channels_have_the_count_of_the_forward(shape):
    """Some of them add up the weights, and others take that sum; those of a mask are exact."""
    for dtype in ("f4", "f8"):
        x, weight = example(shape, dtype)
        count = cpu.forward(x, None, None, 1e-5, weight=weight)[2]
        assert_same(cpu.moments(x, weight)[0], np.full(shape[1], count), shape=shape)
        assert_close(count, weight.sum(), 1e-14 * count, shape=shape)
        assert_same(cpu.moments(x, weight > 0)[0], np.full(shape[1], (weight > 0).sum(), float), shape=shape)


@every_shape
def test_weights_times_a_power_of_two(shape):
    x, weight = example(shape)
    want = cpu.moments(x, weight) * np.array([[4.0], [1.0], [4.0], [1.0]])
    assert_same(cpu.moments(x, weight * 4), want, shape=shape)


@every_shape
@pytest.mark.parametrize("wrong", [-1e-3, np.nan, np.inf])
def test_a_weight_that_is_wrong_makes_all_counts_infinite(shape, wrong):
    for place in (0.0, 0.1, 0.5, 0.999):
        x, weight = example(shape)
        weight.flat[int(place * weight.size)] = wrong
        weight.flat[-1] = wrong if place > 0.9 else 1.0
        assert np.isinf(cpu.moments(x, weight)[0]).all(), place


@pytest.mark.parametrize("shape", [(3, 0), (3, 0, 5), (2, 0, 1100)], ids=str)
def test_large_weights_of_no_channels(shape):
    """They are far away in memory, but there is nothing to fetch ahead: a walk over it would not end."""
    x, weight = example(shape)
    before = entries.use_sizes(far=1)
    try:
        assert cpu.moments(x, weight).shape == (4, 0)
    finally:
        entries.use_sizes(**before)


@every_shape
def test_weights_may_lie_anywhere(shape):
    x, weight = example(shape)
    room = np.zeros(weight.size + 8)
    want = cpu.moments(x, weight)
    for i in range(1, 8):
        moved = room[i : i + weight.size].reshape(weight.shape)
        moved[:] = weight
        assert_same(cpu.moments(x, moved), want, place=i)


@pytest.fixture(params=[1, 2, 3])
def threads(request, set_threads):
    set_threads(request.param)


@together(dtype=["f8", "f4", "?", "u1"])
@pytest.mark.parametrize("n", [0, 1, 511, 2048, 2049, 70001, 2100001])
def test_weights_that_are_kept(n, dtype, threads):
    """The last are so many that their copy goes past the caches."""
    weight = (np.random.default_rng(n).random((n, 1)) * 3).astype(dtype)
    same, total, above = cpu.keep_weights(weight, False)
    assert same is weight
    assert above == min(2, np.count_nonzero(weight))
    assert_close(total, weight.sum(dtype="f8") if dtype[0] == "f" else 0.0, 1e-13 * (n + 1))
    copy, *found = cpu.keep_weights(weight, True)
    assert found == [total, above]
    assert_same(copy, weight)
    assert not np.may_share_memory(copy, weight)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_the_sum_of_weights_that_are_wrong(dtype):
    for at in (0, 600, 2047, 2048, 4999):
        weight = np.zeros(5000, dtype)
        weight[at] = 0.5
        assert cpu.keep_weights(weight, False) == (pytest.approx(weight), 0.5, 1)
        for wrong, total in [(-1e-9, np.nan), (np.nan, np.nan), (np.inf, np.inf)]:
            weight[at] = wrong
            assert np.array_equal(cpu.keep_weights(weight, True)[1], total, equal_nan=True), (at, wrong)
