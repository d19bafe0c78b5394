"""Weights in a batch norm layer: padding that is not there, fractions, repetitions."""

import numpy as np
import pytest

import bnorm
from compare import EPS, assert_close, assert_gradient, assert_gradients_of, assert_same
from drawing import together
from layer_oracle import held

C = 4
LENGTHS = np.array([5, 1, 7, 3, 0])
rng = np.random.default_rng(0)


def scaled(layer):
    values = np.random.default_rng(1)
    layer.gamma, layer.beta = values.uniform(0.5, 2, C), values.standard_normal(C)
    return layer


class Padded:
    """A padded batch, its mask, and the same values without the padding as (values, C)."""

    def __init__(self, layer, shape, axis, dtype, padding):
        self.bn = scaled(getattr(bnorm, layer)(C, axis=axis, activation="relu"))
        self.flat = scaled(bnorm.BatchNorm1d(C, activation="relu"))
        self.shape, self.axis = shape, axis
        if len(shape) == 2:  # lengths
            self.mask = np.arange(shape[1]) < LENGTHS[:, None]
        elif len(shape) == 3:  # sizes of images
            sizes = rng.integers(1, 4, (shape[0], 2))
            self.mask = (np.arange(shape[1])[:, None] < sizes[:, :1, None]) & (np.arange(shape[2]) < sizes[:, 1:, None])
        self.dtype = dtype
        self.x_flat, self.dy_flat = rng.standard_normal((2, int(self.mask.sum()), C)).astype(dtype)
        self.x_flat += np.arange(C, dtype=dtype) * 3
        self.x, self.dy = self.pad(self.x_flat, padding), self.pad(self.dy_flat, 0)

    def pad(self, flat, value):
        padded = np.full((*self.shape, C), value, self.dtype)
        padded[self.mask] = flat
        return np.ascontiguousarray(np.moveaxis(padded, -1, self.axis))

    def unpad(self, padded):
        return np.moveaxis(padded, self.axis, -1)[self.mask]

    def padding(self, padded):
        return np.moveaxis(padded, self.axis, -1)[~self.mask]


every_padded = pytest.mark.parametrize(
    ("layer", "shape", "axis"),
    [
        ("BatchNorm1d", (5, 7), 1),
        ("BatchNorm1d", (5, 7), -1),
        ("BatchNorm2d", (6, 4, 5), 1),
        ("BatchNorm2d", (6, 4, 5), -1),
    ],
)


@together(dtype=["float32", "float64"], kind=[bool, float, "int8"], padding=[0, 1e6, np.nan, np.inf])
@every_padded
def test_a_mask_is_as_if_the_padding_were_not_there(layer, shape, axis, dtype, padding, kind):
    p = Padded(layer, shape, axis, dtype, padding)
    unit = 32 * EPS[np.dtype(dtype)]
    for step in range(3):  # what the statistics have taken in shows in the second and third
        case = {"layer": layer, "axis": axis, "dtype": dtype, "padding": padding, "step": step}
        y, want = p.bn(p.x, p.mask.astype(kind)), p.flat(p.x_flat)
        assert_close(p.unpad(y), want, unit * (1 + np.abs(want)), what="y", **case)
        dx, want = p.bn.backward(p.dy), p.flat.backward(p.dy_flat)
        assert_close(p.unpad(dx), want, unit * (1 + np.abs(want)), what="dx", **case)
        assert_same(p.padding(dx), np.zeros_like(p.padding(dx)), what="dx on the padding", **case)
        size = np.abs(p.dy_flat).sum(0)
        assert_close(p.bn.gamma.grad, p.flat.gamma.grad, unit * 4 * size * (step + 1), what="dgamma", **case)
        assert_close(p.bn.beta.grad, p.flat.beta.grad, unit * size * (step + 1), what="dbeta", **case)
        assert_close(p.bn.running_mean, p.flat.running_mean, unit * 10, what="running mean", **case)
        assert_close(p.bn.running_var, p.flat.running_var, unit * 2, what="running var", **case)
    assert p.bn.num_batches_tracked == p.flat.num_batches_tracked == 3
    assert p.bn.num_batches_skipped == 0


@pytest.mark.parametrize("shape", [(6, C), (6, C, 3), (6, C, 3, 2)])
def test_samples_of_weight_zero_are_not_there(shape):
    make = bnorm.BatchNorm2d if len(shape) == 4 else bnorm.BatchNorm1d
    bn, part = scaled(make(C, momentum=None, ddof=1)), scaled(make(C, momentum=None, ddof=1))
    used = np.array([True, True, False, True, False, True])
    x, dy = rng.standard_normal((2, *shape))
    x[~used], dy[~used] = np.nan, 0
    for _ in range(2):
        y, want = bn(x, used), part(x[used])
        assert_close(y[used], want, 1e-13, shape=shape)
        assert np.isnan(y[~used]).all()
        assert_close(bn.backward(dy)[used], part.backward(dy[used]), 1e-13, shape=shape)
        for name in ("running_mean", "running_var"):
            assert_close(getattr(bn, name), getattr(part, name), 1e-13, what=name, shape=shape)


def test_whole_weights_are_repetitions():
    weight = np.array([1, 3, 0, 2, 1])
    x, dy = rng.standard_normal((2, 5, C))
    for momentum in (0.1, None):
        bn, repeated = (scaled(bnorm.BatchNorm1d(C, momentum=momentum, ddof=1)) for _ in range(2))
        for _ in range(2):
            y, want = bn(x, weight), repeated(np.repeat(x, weight, 0))
            assert_close(np.repeat(y, weight, 0), want, 1e-13)
            dx = bn.backward(np.where(weight[:, None] > 0, dy, 0))
            each = np.repeat(dy / np.maximum(weight, 1)[:, None], weight, 0)  # a share of dy for each repetition
            of_each = repeated.backward(each)
            starts = np.concatenate([[0], np.cumsum(weight[weight > 0])[:-1]])
            assert_close(dx[weight > 0], np.add.reduceat(of_each, starts), 1e-13)
            assert_close(bn.gamma.grad, repeated.gamma.grad, 1e-12)
            assert_close(bn.beta.grad, repeated.beta.grad, 1e-12)
            assert_close(bn.running_mean, repeated.running_mean, 1e-13)
            assert_close(bn.running_var, repeated.running_var, 1e-13)


def test_only_shares_count_without_ddof():
    x, dy = rng.standard_normal((2, 8, C))
    weight = rng.uniform(0.1, 2, 8)
    one, other = scaled(bnorm.BatchNorm1d(C)), scaled(bnorm.BatchNorm1d(C))
    assert_close(one(x, weight), other(x, weight * 1000), 1e-13)
    assert_close(one.backward(dy), other.backward(dy), 1e-13)
    assert_close(one.running_var, other.running_var, 1e-14)


WEIGHTS = {
    "fractions": lambda shape: rng.uniform(0.1, 3, shape),
    "with zeros": lambda shape: rng.uniform(0.5, 2, shape) * (rng.random(shape) > 0.4),
    "of samples": lambda shape: np.array([0.5, 0, 2.0, 1.5]),
}


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu"])
@pytest.mark.parametrize(("layer", "shape", "axis"), [("BatchNorm1d", (4, C, 3), 1), ("BatchNorm2d", (4, 2, 3, C), -1)])
def test_the_gradient_is_the_derivative(layer, shape, axis, activation, weight):
    """Where the weight is 0 too: y is computed there all the same, from statistics that the others make."""
    bn = scaled(getattr(bnorm, layer)(C, axis=axis, activation=activation, eps=1e-3))
    linear = scaled(getattr(bnorm, layer)(C, axis=axis, eps=1e-3))
    linear.gamma, linear.beta = bn.gamma, bn.beta
    weight = weight(np.delete(shape, axis))
    x, dy = rng.standard_normal((2, *shape))
    while np.abs(linear(x, weight)).min() < 1e-3:  # no value turns within a difference
        x = rng.standard_normal(shape)

    def loss(x, weight=weight):
        return float((dy * bn(x, weight)).sum())

    loss(x)
    dx = bn.backward(dy)
    assert_gradient(dx, loss, x, layer=layer, activation=activation)
    assert_gradients_of(bn.parameters(), lambda: loss(x), layer=layer, activation=activation)


def test_a_value_of_weight_zero_moves_nothing_else():
    bn = scaled(bnorm.BatchNorm1d(C))
    x = rng.standard_normal((6, C))
    weight = np.array([1, 1, 0, 1, 1, 1.0])
    with bn.frozen_stats():
        y = bn(x, weight)
        x[2] += 5
        changed = bn(x, weight)
    others = weight > 0
    assert_same(changed[others], y[others])
    assert not np.isclose(changed[2], y[2]).any()


def test_nan_of_weight_zero_is_no_batch_with_nan():
    bn = bnorm.BatchNorm1d(C, nonfinite="raise")
    x = rng.standard_normal((6, C))
    x[1] = np.nan
    bn(x, np.arange(6) != 1)
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (1, 0)
    assert_close(bn.running_mean, 0.1 * np.delete(x, 1, 0).mean(0), 1e-15)


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"ddof": 1}, {"nonfinite": "raise"}])
@pytest.mark.parametrize("mask", [np.zeros(6), np.zeros(6, bool)])
def test_no_weight_at_all_updates_nothing(options, mask):
    bn = scaled(bnorm.BatchNorm1d(C, **options))
    x, dy = rng.standard_normal((2, 6, C))
    bn(x)
    before = held(bn)
    assert_same(bn(x, mask), np.tile(bn.beta, (6, 1)))
    assert held(bn) == before
    dx = bn.backward(dy)
    assert_same(dx, np.zeros_like(dx))
    assert_same(bn.gamma.grad, np.zeros(C))


def test_weights_that_are_no_sample_are_said_to_be_the_cause():
    """With ddof=1 they have no variance, though the values are finite."""
    x, weight, also = [[1.0], [3.0]], [0.3, 0.3], r"finite \(with ddof=1 also if weights add up to 1 or less\), and"
    bn = bnorm.BatchNorm1d(1, ddof=1)
    with pytest.warns(RuntimeWarning, match=also):
        bn(x, weight)
    assert (bn.running_mean[0], bn.running_var[0], bn.num_batches_skipped) == (0, 1, 1)
    with pytest.raises(FloatingPointError, match=also):
        bnorm.BatchNorm1d(1, ddof=1, nonfinite="raise")(x, weight)
    bnorm.BatchNorm1d(1)(x, weight)


def test_weights_have_no_effect_in_inference():
    bn = scaled(bnorm.BatchNorm1d(C))
    x, dy = rng.standard_normal((2, 6, C))
    bn(x)
    bn.eval()
    y = bn(x)
    dx = bn.backward(dy)
    assert_same(bn(x, np.arange(6.0)), y)
    assert_same(bn.backward(dy), dx)


def test_the_mask_is_that_of_the_forward():
    bn, other = scaled(bnorm.BatchNorm1d(C)), scaled(bnorm.BatchNorm1d(C))
    x, dy = rng.standard_normal((2, 6, C, 3))
    mask = rng.random((6, 3)) > 0.5
    bn(x, mask), other(x, mask.copy())
    mask[...] = ~mask
    assert_same(bn.backward(dy), other.backward(dy))
