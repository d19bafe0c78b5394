"""Running statistics of instance norm, against their definition."""

import numpy as np
import pytest

import bnorm
from compare import assert_close, assert_same
from layer_oracle import held

C = 3
rng = np.random.default_rng(0)
SHAPES = {"InstanceNorm1d": (5,), "InstanceNorm2d": (4, 2), "InstanceNorm3d": (2, 3, 2)}
every_rank = pytest.mark.parametrize("name", SHAPES)


def make(name, **options):
    return getattr(bnorm, name)(C, track_running_stats=True, **options)


def batch(name, n=4, axis=1, dtype="f8"):
    x = rng.standard_normal((n, C, *SHAPES[name])) * rng.uniform(0.5, 2, (n, C, *[1] * len(SHAPES[name]))) + 3
    return np.moveaxis(x, 1, axis).astype(dtype)


def of_samples(x, axis, ddof):
    """The means and variances of the channels of each sample, averaged over the samples."""
    flat = np.moveaxis(x, axis, 1).reshape(len(x), C, -1).astype("f8")
    return flat.mean(2).mean(0), flat.var(2, ddof=ddof).mean(0)


@every_rank
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
def test_an_average_over_samples(name, axis, ddof, dtype):
    layer, plain = make(name, axis=axis, ddof=ddof), getattr(bnorm, name)(C, axis=axis)
    mean, var = np.zeros(C), np.ones(C)
    for n in (4, 1, 7):
        x = batch(name, n, axis, dtype)
        assert_same(layer(x), plain(x))  # training is by the sample itself
        assert_same(layer.backward(x), plain.backward(x))
        of_mean, of_var = of_samples(x, axis, ddof)
        mean, var = 0.9 * mean + 0.1 * of_mean, 0.9 * var + 0.1 * of_var
    unit = 1e-14 if dtype == "f8" else 1e-6
    assert_close(layer.running_mean, mean, 8 * unit)
    assert_close(layer.running_var, var, 8 * unit)
    assert (layer.num_batches_tracked, layer.num_batches_skipped) == (3, 0)


@every_rank
@pytest.mark.parametrize("ddof", [0, 1])
def test_without_momentum_all_values_weigh_the_same(name, ddof):
    layer, xs = make(name, momentum=None, ddof=ddof), [batch(name, n) for n in (4, 1, 7)]
    for x in xs:
        layer(x)
    values = np.moveaxis(np.concatenate(xs), 1, -1).reshape(-1, C)
    assert_close(layer.running_mean, values.mean(0), 1e-14 * 8)
    assert_close(layer.running_var, values.var(0, ddof=ddof), 1e-13)


@every_rank
def test_inference_is_by_the_running_statistics(name):
    layer = make(name, affine=True)
    layer.gamma, layer.beta = rng.uniform(0.5, 2, (2, C))
    layer(batch(name))
    bn = getattr(bnorm, f"BatchNorm{name[-2:]}")(C)
    bn.load_state_dict(layer.state_dict())
    x, dy = batch(name), batch(name)
    before = held(layer)
    layer.eval(), bn.eval()
    assert_same(layer(x), bn(x))
    assert_same(layer.backward(dy), bn.backward(dy))
    assert_same(layer.gamma.grad, bn.gamma.grad)
    assert layer(x[:1, :, :1]).shape == x[:1, :, :1].shape  # one value is no matter here
    assert held(layer)["running_mean"] == before["running_mean"]
    assert layer.num_batches_tracked == 1


@every_rank
def test_without_running_statistics_both_modes_are_one(name):
    layer = getattr(bnorm, name)(C)
    x = batch(name)
    y = layer(x)
    assert_same(layer.eval()(x), y)
    assert (layer.running_mean, layer.running_var, layer.num_batches_tracked) == (None, None, None)
    assert list(layer.state_dict()) == []


def test_frozen_statistics():
    layer, x = make("InstanceNorm1d"), batch("InstanceNorm1d")
    with layer.frozen_stats():
        layer(x)
    assert layer.num_batches_tracked == 0
    assert_same(layer.running_mean, np.zeros(C))
    layer(x)
    assert layer.num_batches_tracked == 1


def test_out_may_be_x():
    layer, other = make("InstanceNorm1d"), make("InstanceNorm1d")
    x = batch("InstanceNorm1d")
    mine = x.copy()
    assert layer(mine, out=mine) is mine
    assert_same(mine, other(x))
    assert_same(layer.running_var, other.running_var)
    with pytest.raises(ValueError, match=r"^InstanceNorm1d\(3\): out: expected .* overlaps running_mean"):
        layer(np.zeros((1, C, 2), "f4"), out=layer.running_mean.view("f4").reshape(1, C, 2))


def test_an_empty_batch_is_none():
    layer = make("InstanceNorm1d")
    assert layer(np.empty((0, C, 5))).shape == (0, C, 5)
    assert layer.num_batches_tracked == 0


BAD = np.where(np.arange(C)[:, None] == 1, np.nan, np.arange(C * 5.0).reshape(C, 5))[None]


def test_a_channel_that_is_not_finite_is_left_alone():
    layer = make("InstanceNorm1d")
    with pytest.warns(RuntimeWarning, match=r"^InstanceNorm1d\(3\): 1 of 3 channels") as told:
        layer(BAD)
    assert told[0].filename == __file__
    assert (layer.running_mean[1], layer.running_var[1]) == (0, 1)
    assert_close(layer.running_mean[[0, 2]], 0.1 * BAD[0, [0, 2]].mean(1), 1e-15)
    assert (layer.num_batches_tracked, layer.num_batches_skipped) == (1, 1)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_or_raises_before_anything_has_happened(momentum):
    layer, x = make("InstanceNorm1d", nonfinite="raise", momentum=momentum), batch("InstanceNorm1d")
    other = make("InstanceNorm1d", nonfinite="raise", momentum=momentum)
    layer(x), other(x)
    before, out = held(layer), np.zeros_like(BAD)
    with pytest.raises(bnorm.NonFiniteError, match=r"^InstanceNorm1d\(3\): x: .* 1 of 3 channels"):
        layer(BAD, out=out)
    assert held(layer) == before and not out.any()
    assert_same(layer.backward(x), other.backward(x))


def test_or_raises_where_only_the_statistics_overflow():
    layer, x = make("InstanceNorm1d", nonfinite="raise", momentum=None), np.full((2, 3, 4), 1.5e308)
    layer(x)
    before = held(layer)
    with pytest.raises(bnorm.NonFiniteError, match=r"^InstanceNorm1d\(3\): x: .* 3 of 3 channels"):
        layer(-x)
    assert held(layer) == before
    layer.backward(x)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_batch_without_weight_does_not_raise(momentum):
    layer, x = make("InstanceNorm1d", nonfinite="raise", momentum=momentum), batch("InstanceNorm1d")
    before = held(layer)
    layer(x, weight=np.zeros(len(x)))
    assert held(layer) == before


def test_or_lets_it_in():
    layer = make("InstanceNorm1d", nonfinite="propagate")
    layer(BAD)
    assert np.isnan(layer.running_mean).tolist() == [False, True, False]


@pytest.mark.filterwarnings("ignore:.* has no counts")
def test_going_on_without_counts():
    """The batches so far are taken to have been as large as the next one."""
    old, new, x = make("InstanceNorm1d", momentum=None), make("InstanceNorm1d", momentum=None), batch("InstanceNorm1d")
    old(x), old(x + 1)
    new.load_state_dict(dict(old.state_dict()))
    mean = old.running_mean.copy()
    new(x)
    assert_close(new.running_mean, (2 * mean + x.mean((0, 2))) / 3, 1e-14)


@every_rank
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("ddof", [0, 1])
def test_padded_samples(name, momentum, ddof):
    """A sample that is all padding has no part in the running statistics, and no padding has one."""
    layer, plain = (make(name, momentum=momentum, ddof=ddof) for _ in range(2))
    x = batch(name, 5)
    weight = np.ones((5, *SHAPES[name]))
    weight[2] = 0
    padded = np.where(weight[:, None] == 0, np.nan, x)
    y, want = layer(padded, weight=weight), plain(x[[0, 1, 3, 4]])
    assert_close(y[[0, 1, 3, 4]], want, 1e-14 * 8)
    for statistic in ("running_mean", "running_var"):
        assert_close(getattr(layer, statistic), getattr(plain, statistic), 1e-14 * 8)
    before = layer.running_mean.copy()
    layer(padded, weight=np.zeros(5))
    assert_same(layer.running_mean, before)
    assert layer.num_batches_skipped == 0
    assert_same(layer.eval()(x, weight=weight), layer(x))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("ddof", [0, 1])
def test_running_statistics_of_samples_of_different_lengths(momentum, ddof):
    layer, x = make("InstanceNorm1d", momentum=momentum, ddof=ddof), batch("InstanceNorm1d", 4)
    lengths = [5, 2, 3, 1]
    layer(x, weight=np.arange(5) < np.array(lengths)[:, None])
    samples = [x[i, :, :n] for i, n in enumerate(lengths)]
    if momentum is None:
        values = np.concatenate(samples, 1)
        mean, var = values.mean(1), values.var(1, ddof=ddof)
    else:
        samples = [s for s in samples if s.shape[1] > ddof]  # one value has no unbiased variance
        mean = 0.1 * np.mean([s.mean(1) for s in samples], 0)
        var = 0.9 + 0.1 * np.mean([s.var(1, ddof=ddof) for s in samples], 0)
    assert_close(layer.running_mean, mean, 1e-14 * 8)
    assert_close(layer.running_var, var, 1e-14 * 8)
