"""Layer, RMS, group and instance norm as layers: against the functions, the definition, and for what they refuse."""

from functools import partial

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from compare import EPS, assert_close, assert_gradient, assert_gradients_of, assert_same
from drawing import together
from kinds import along, plain_group_norm, plain_layer_norm

rng = np.random.default_rng(0)


class Row:
    """A layer, the function that it is, the definition, and an input for them."""

    def __init__(self, layer, function, definition, parameters, shape):
        self.layer, self.function, self.definition = layer, function, definition
        self.parameters, self.shape = parameters, shape

    def __repr__(self):
        return f"{self.layer(eps=1e-5)!r}-{'x'.join(map(str, self.shape))}"


def layer_norm(normalized_shape, shape):
    parameters = np.empty(normalized_shape).shape
    function = partial(F.layer_norm, normalized_shape=normalized_shape)
    return Row(partial(bnorm.LayerNorm, normalized_shape), function, plain_layer_norm, parameters, shape)


def rms_norm(normalized_shape, shape):
    parameters = np.empty(normalized_shape).shape
    function = partial(F.rms_norm, normalized_shape=normalized_shape)
    definition = partial(plain_layer_norm, rms=True)
    return Row(partial(bnorm.RMSNorm, normalized_shape), function, definition, parameters, shape)


def group_norm(groups, channels, shape, axis=1):
    layer = partial(bnorm.GroupNorm, groups, channels, axis=axis)
    function = partial(F.group_norm, num_groups=groups, axis=axis)
    definition = partial(plain_group_norm, num_groups=groups, axis=axis)
    return Row(layer, function, definition, (channels,), shape)


def instance_norm(name, channels, shape, axis=1):
    layer = partial(getattr(bnorm, name), channels, axis=axis, affine=True)
    definition = partial(plain_group_norm, num_groups=channels, axis=axis)
    return Row(layer, partial(F.instance_norm, axis=axis), definition, (channels,), shape)


ROWS = [
    layer_norm(6, (5, 6)),
    layer_norm((6,), (2, 3, 6)),
    layer_norm([3, 6], (4, 3, 6)),
    layer_norm((4, 3, 6), (4, 3, 6)),
    rms_norm(6, (5, 6)),
    rms_norm((3, 6), (4, 3, 6)),
    group_norm(2, 6, (5, 6)),
    group_norm(1, 6, (5, 6, 4)),
    group_norm(3, 6, (2, 6, 4, 3)),
    group_norm(2, 6, (2, 4, 3, 6), axis=-1),
    group_norm(6, 6, (2, 6, 2, 3, 2)),
    instance_norm("InstanceNorm1d", 6, (4, 6, 5)),
    instance_norm("InstanceNorm1d", 6, (4, 5, 6), axis=-1),
    instance_norm("InstanceNorm2d", 6, (2, 6, 5, 3)),
    instance_norm("InstanceNorm2d", 6, (2, 5, 3, 6), axis=-1),
    instance_norm("InstanceNorm3d", 6, (2, 6, 2, 3, 2)),
]
every_row = pytest.mark.parametrize("row", ROWS, ids=repr)
every_batch = pytest.mark.parametrize("row", [row for row in ROWS if len(row.shape) > len(row.parameters)], ids=repr)


def parameters_of(row, layer):
    """Parameters in general position, given to the layer; by name, as the functions and definitions want them."""
    values = np.random.default_rng(1)
    given = {"gamma": values.uniform(0.5, 2, row.parameters), "beta": values.standard_normal(row.parameters)}
    layer.gamma = given["gamma"]
    if layer.beta is None:
        return {"gamma": given["gamma"]}, given | {"beta": np.zeros(row.parameters)}
    layer.beta = given["beta"]
    return given, given


@together(dtype=["float32", "float64"], activation=[None, "relu", "leaky_relu"])
@every_row
def test_forward_and_backward(row, dtype, activation):
    layer = row.layer(eps=1e-3, activation=activation)
    given, complete = parameters_of(row, layer)
    for _ in range(3):
        x, dy = rng.standard_normal((2, *row.shape)).astype(dtype) + 1
        layer.zero_grad()
        y, saved = row.function(x, eps=1e-3, activation=activation, **given)
        assert_same(layer(x), y)
        gradients = F.backward(dy, saved)
        assert_same(layer.backward(dy), gradients[0])
        for p, gradient in zip(layer.parameters(), gradients[1:], strict=False):
            assert p.shape == row.parameters
            assert_same(p.grad, gradient)
        want = row.definition(x.astype("f8"), eps=1e-3, activation=activation, **complete)
        assert_close(y, want, 64 * EPS[np.dtype(dtype)], row=row)


@every_row
@pytest.mark.parametrize("activation", [None, "relu", "leaky_relu"])
def test_gradients_are_derivatives(row, activation):
    layer = row.layer(eps=1e-2, activation=activation)
    parameters_of(row, layer)
    x, dy = rng.standard_normal((2, *row.shape)) + 1

    def loss(x):
        return float((dy * layer(x)).sum())

    loss(x)
    assert_gradient(layer.backward(dy), loss, x, row=row)
    assert_gradients_of(layer.parameters(), lambda: loss(x), row=row)


@every_row
def test_affine_off(row):
    layer = row.layer(affine=False)
    x, dy = rng.standard_normal((2, *row.shape))
    y, saved = row.function(x)
    assert_same(layer(x), y)
    assert_same(layer.backward(dy), F.backward(dy, saved)[0])
    assert layer.gamma is None and layer.beta is None


@every_batch
def test_an_empty_batch(row):
    layer = row.layer()
    x = np.empty((0, *row.shape[1:]), "float32")
    assert layer(x).shape == x.shape and layer(x).dtype == x.dtype
    assert layer.backward(x).shape == x.shape
    for p in layer.parameters():
        assert not p.grad.any()


def test_which_layers_have_which_parameters():
    assert bnorm.RMSNorm(3).beta is None and bnorm.RMSNorm(3).gamma.shape == (3,)
    assert [p.shape for p in bnorm.LayerNorm((2, 3)).parameters()] == [(2, 3), (2, 3)]
    assert [p.shape for p in bnorm.GroupNorm(2, 4).parameters()] == [(4,), (4,)]
    for cls in (bnorm.InstanceNorm1d, bnorm.InstanceNorm2d, bnorm.InstanceNorm3d):
        assert cls(4).gamma is None and cls(4).beta is None
        assert [p.shape for p in cls(4, affine=True).parameters()] == [(4,), (4,)]


def test_a_new_layer_scales_by_one():
    x = rng.standard_normal((3, 4, 5)) + 2
    std = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    want = (x - x.mean(-1, keepdims=True)) / std
    assert_close(bnorm.LayerNorm(5)(x), want, 1e-13)
    assert_close(bnorm.InstanceNorm1d(4)(x), want, 1e-13)
    assert_close(bnorm.GroupNorm(4, 4)(x), want, 1e-13)
    assert_close(bnorm.RMSNorm(5)(x), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5), 1e-13)


def test_groups_are_runs_of_channels():
    x = rng.standard_normal((3, 6, 5))
    layer = bnorm.GroupNorm(3, 6, eps=0)
    layer.gamma, layer.beta = np.arange(1.0, 7), np.arange(6.0)
    y = (layer(x) - along(np.asarray(layer.beta), 1, 3)) / along(np.asarray(layer.gamma), 1, 3)
    for run in (slice(0, 2), slice(2, 4), slice(4, 6)):
        assert_close(y[:, run].mean((1, 2)), np.zeros(3), 1e-14)
        assert_close(y[:, run].std((1, 2)), np.ones(3), 1e-14)


@every_batch
def test_samples_do_not_see_each_other(row):
    layer = row.layer()
    x = rng.standard_normal(row.shape)
    assert_same(layer(x[:1]), layer(x)[:1], row=row)


@pytest.mark.parametrize("groups", [3, 5, 8, 0, -2])
def test_groups_that_do_not_divide_the_channels(groups):
    with pytest.raises(ValueError, match=rf"^GroupNorm.*: num_groups: expected a divisor of .*4.*, got {groups}"):
        bnorm.GroupNorm(groups, 4)


SINGLE = [
    (lambda: bnorm.GroupNorm(4, 4), (1, 4)),
    (lambda: bnorm.InstanceNorm1d(4), (3, 4, 1)),
    (lambda: bnorm.InstanceNorm2d(4), (3, 4, 1, 1)),
]


@pytest.mark.parametrize(("make", "shape"), SINGLE)
def test_one_value_per_row_has_no_variance(make, shape):
    layer = make()
    for mode in (True, False):
        layer.training = mode
        with pytest.raises(ValueError, match=f"^{type(layer).__name__}.*: x: expected more than one value"):
            layer(np.zeros(shape))


def test_groups_of_one_value_become_beta():
    """As PyTorch's, as long as the batch has more than one value of each group."""
    layer = bnorm.GroupNorm(3, 3)
    layer.beta = [1.0, 2.0, 3.0]
    x, dy = np.random.default_rng(0).standard_normal((2, 4, 3))
    np.testing.assert_array_equal(layer(x), np.broadcast_to([1.0, 2.0, 3.0], x.shape))
    np.testing.assert_array_equal(layer.backward(dy), np.zeros_like(x))
    np.testing.assert_allclose(layer.beta.grad, dy.sum(0), rtol=1e-14)
    np.testing.assert_array_equal(layer.gamma.grad, np.zeros(3))


RANKS = [
    (lambda: bnorm.InstanceNorm1d(4), [(3, 4), (3, 4, 5, 5)]),
    (lambda: bnorm.InstanceNorm2d(4), [(3, 4), (3, 4, 5), (3, 4, 5, 5, 5)]),
    (lambda: bnorm.InstanceNorm3d(4), [(3, 4), (3, 4, 5, 5)]),
    (lambda: bnorm.GroupNorm(2, 4), [(4,), ()]),
    (lambda: bnorm.LayerNorm((3, 4)), [(4,), (3,), (4, 3), (5, 3, 5), (12,), ()]),
    (lambda: bnorm.RMSNorm((3, 4)), [(4,), (4, 3), ()]),
    (lambda: bnorm.GroupNorm(2, 4), [(3, 6, 5), (3, 2, 5)]),
    (lambda: bnorm.GroupNorm(2, 4, axis=-1), [(3, 4, 5)]),
    (lambda: bnorm.InstanceNorm2d(4), [(3, 5, 4, 4)]),
    (lambda: bnorm.InstanceNorm2d(4, axis=-1), [(3, 4, 5, 5)]),
]


@pytest.mark.parametrize(("make", "shapes"), RANKS)
def test_shapes_that_do_not_fit(make, shapes):
    layer = make()
    for shape in shapes:
        with pytest.raises(ValueError, match=f"^{type(layer).__name__}.*: expected .* got ") as caught:
            layer(np.zeros(shape))
        assert str(caught.value).startswith(f"{layer!r}".split(", axis")[0])


@every_row
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_parameters_are_those_of_the_forward(row, dtype, activation):
    x, dy, ddx = rng.normal(size=(3, *row.shape)).astype(dtype)

    def gradients(change):
        parameters, _ = parameters_of(row, row.layer())
        _, saved = row.function(x, **parameters, activation=activation)
        for value in parameters.values():
            value += change
        found = *F.backward(dy, saved), *F.double_backward(ddx, saved, dy)
        return [gradient for gradient in found if gradient is not None]

    for found, wanted in zip(gradients(np.nan), gradients(0), strict=True):
        assert_same(found, wanted)


@every_batch
def test_an_array_after_any_other(row):
    """What a layer remembers of one array is not taken for the next, if that is different."""
    layer, x = row.layer(), rng.normal(size=row.shape)
    turned, axis = np.asfortranarray(x), getattr(layer, "axis", -1)
    for other in (x, x + 1, turned, turned, x, x[:1], np.repeat(x, 2, 0), x, x.astype(np.float32), x.tolist(), x):
        new = row.layer()
        assert_same(layer(other), new(other))
        assert_same(layer.backward(np.sin(other)), new.backward(np.sin(other)))
    with pytest.raises(ValueError, match="expected"):
        layer(np.concatenate([x, x], axis))
    assert_same(layer(x), new(x))
