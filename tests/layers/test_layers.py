"""What all layers do alike: parameters, modes, forward and backward in their order, out, devices."""

import sys
from functools import partial

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.layers import DeviceError
from compare import assert_close, assert_same
from layer_oracle import held

rng = np.random.default_rng(0)
X, DY = rng.standard_normal((2, 6, 4))

# One of each, for inputs of shape (6, 4, 3)
LAYERS = {
    "batch": partial(bnorm.BatchNorm1d, 4),
    "batch, channels last": partial(bnorm.BatchNorm1d, 3, axis=-1),
    "layer": partial(bnorm.LayerNorm, (4, 3)),
    "rms": partial(bnorm.RMSNorm, 3),
    "group": partial(bnorm.GroupNorm, 2, 4),
    "instance": partial(bnorm.InstanceNorm1d, 4, affine=True),
}
X3, DY3 = rng.standard_normal((2, 6, 4, 3))

every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def scaled(layer, seed=1):
    """The layer with parameters in general position."""
    values = np.random.default_rng(seed)
    for p in layer.parameters():
        p.data[...] = values.uniform(0.5, 2, p.shape)
    return layer


# Parameters ----------------------------------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32"), "float64"])
def test_the_type_of_parameters(make, dtype):
    """It is that of everything a layer holds; y has the type of x."""
    layer = make(dtype=dtype)
    for p in layer.parameters():
        assert p.dtype == p.data.dtype == p.grad.dtype == np.dtype(dtype)
    if isinstance(layer, bnorm.BatchNorm1d):
        assert layer.running_mean.dtype == layer.running_var.dtype == np.dtype(dtype)
    for x in (X3, X3.astype("f4"), X3.astype("f2")):
        assert layer(x).dtype == x.dtype
        assert layer.backward(DY3.astype(x.dtype)).dtype == x.dtype
    for x in (np.arange(72).reshape(X3.shape), X3 > 0, X3.tolist()):
        assert layer(x).dtype == np.float64
    assert {p.grad.dtype for p in layer.parameters()} == {np.dtype(dtype)}


@every_layer
def test_without_parameters(make):
    layer, other = make(affine=False), make()
    assert layer.gamma is None and layer.beta is None
    assert list(layer.parameters()) == list(layer.named_parameters()) == []
    assert_same(layer(X3), other(X3))
    assert_same(layer.backward(DY3), other.backward(DY3))
    layer.zero_grad()
    layer.reset_parameters()


@every_layer
@pytest.mark.parametrize(
    ("options", "slope"),
    [({"activation": "relu"}, 0), ({"activation": "leaky_relu", "negative_slope": 0.3}, 0.3)],
    ids=["relu", "leaky"],
)
def test_the_activation_is_fused(make, options, slope):
    plain, fused = scaled(make()), scaled(make(**options))
    y = plain(X3)
    assert_same(fused(X3), np.where(y > 0, y, slope * y))
    assert_close(fused.backward(DY3), plain.backward(np.where(y > 0, DY3, slope * DY3)), 1e-13)
    for p, q in zip(fused.parameters(), plain.parameters(), strict=True):
        assert_close(p.grad, q.grad, 1e-12)


@every_layer
def test_forward_is_call(make):
    one, other = scaled(make()), scaled(make())
    assert_same(one(X3), other.forward(X3))
    assert held(one) == held(other)


def test_resets():
    bn = scaled(bnorm.BatchNorm1d(4))
    arrays = [bn.gamma.data, bn.beta.data, bn.running_mean, bn.running_var]
    for reset in (bn.reset_running_stats, bn.reset_parameters):
        bn(X)
        assert bn.num_batches_tracked == 1 and bn.running_mean.any()
        reset()
        assert bn.num_batches_tracked == bn.num_batches_skipped == 0
        assert_same(bn.running_mean, np.zeros(4))
        assert_same(bn.running_var, np.ones(4))
    assert_same(bn.gamma, np.ones(4))
    assert_same(bn.beta, np.zeros(4))
    now = [bn.gamma.data, bn.beta.data, bn.running_mean, bn.running_var]
    assert all(a is b for a, b in zip(arrays, now, strict=True))


@every_layer
def test_row_and_batch_layers_reset_their_parameters(make):
    layer, new = scaled(make()), make()
    layer.reset_parameters()
    for p, q in zip(layer.parameters(), new.parameters(), strict=True):
        assert_same(p, q)


# Modes ---------------------------------------------------------------------------------------------------------------


@every_layer
def test_modes_and_moves_return_the_layer(make):
    layer = make()
    assert layer.eval() is layer and layer.training is False
    assert layer.train() is layer and layer.training is True
    assert layer.train(False) is layer and layer.training is False
    layer.training = True
    assert layer.training is True
    assert layer.to("cpu") is layer


def test_eval_is_training_false():
    one, other = scaled(bnorm.BatchNorm1d(4)), scaled(bnorm.BatchNorm1d(4))
    one(X), other(X)
    one.eval()
    other.training = False
    before = held(one)
    assert_same(one(X), other(X))
    assert_same(one.backward(DY), other.backward(DY))
    assert before["state"] == held(one)["state"] == held(other)["state"]
    want, _ = F.batch_norm(X, np.array(one.gamma), np.array(one.beta), mean=one.running_mean, var=one.running_var)
    assert_same(one(X), want)


@pytest.mark.parametrize("name", ["layer", "rms", "group", "instance"])
def test_row_layers_have_one_mode(name):
    layer = scaled(LAYERS[name]())
    want = layer(X3)
    want_dx = layer.backward(DY3)
    layer.eval()
    assert_same(layer(X3), want)
    assert_same(layer.backward(DY3), want_dx)


@pytest.mark.parametrize("training", [True, False])
def test_the_forward_is_captured(training):
    """What happens to the layer between forward and backward is of no concern to the backward."""

    def gradients(meanwhile):
        bn = scaled(bnorm.BatchNorm1d(4, activation="relu"))
        bn.running_mean, bn.running_var = np.arange(4.0), np.arange(1.0, 5)
        bn.training = training
        bn(X)
        meanwhile(bn)
        return bn.backward(DY), np.array(bn.gamma.grad), np.array(bn.beta.grad)

    def change(bn):
        bn.training = not training
        bn.eps = 10.0
        bn.momentum = None
        bn.gamma.data[...] = bn.beta.data[...] = 100
        bn.running_mean[...] = bn.running_var[...] = 100

    for got, want in zip(gradients(change), gradients(lambda bn: None), strict=True):
        assert_same(got, want)


def test_options_that_may_change():
    bn = bnorm.BatchNorm1d(4)
    bn.eps = 0.5
    assert_same(bn(X), F.batch_norm(X, eps=0.5)[0])
    bn.momentum = 1
    bn(X)
    assert_close(bn.running_mean, X.mean(0), 1e-15)
    bn.nonfinite, bn.on_single = "raise", "running"
    assert (bn.eps, bn.momentum, bn.nonfinite, bn.on_single) == (0.5, 1, "raise", "running")
    assert_same(bn(X[:1]), F.batch_norm(X[:1], mean=bn.running_mean, var=bn.running_var, eps=0.5)[0])


# Backward, in its order ----------------------------------------------------------------------------------------------


@every_layer
def test_backward_needs_a_forward_of_its_own(make):
    layer = make()
    with pytest.raises(RuntimeError, match=f"^{type(layer).__name__}"):
        layer.backward(DY3)
    layer(X3)
    layer.backward(DY3)
    before = held(layer)
    with pytest.raises(RuntimeError, match=f"^{type(layer).__name__}"):
        layer.backward(DY3)
    assert held(layer) == before


@every_layer
def test_a_backward_belongs_to_the_last_forward(make):
    layer, other = scaled(make()), scaled(make())
    layer(X3)
    layer(X3[:3] * 2)
    other(X3[:3] * 2)
    assert_same(layer.backward(DY3[:3]), other.backward(DY3[:3]))


@every_layer
def test_gradients_add_up_until_they_are_zeroed(make):
    layer, once = scaled(make()), scaled(make())
    for factor in (1.0, 2.0):
        layer(X3)
        layer.backward(DY3 * factor)
    once(X3)
    once.backward(DY3)
    for p, q in zip(layer.parameters(), once.parameters(), strict=True):
        assert q.grad.any()
        assert_close(p.grad, 3 * q.grad, 1e-13 * np.abs(DY3).sum())
    gradients = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    for p, gradient in zip(layer.parameters(), gradients, strict=True):
        assert p.grad is gradient and not gradient.any()


@every_layer
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_that_are_not_finite_add_up_in_silence(make, dtype):
    layer = make(dtype=dtype)
    for dy in (np.inf, -np.inf, 1e300, np.nan):
        layer(X3)
        layer.backward(np.full_like(X3, dy))
    for p in layer.parameters():
        assert not np.isfinite(p.grad).any()


@every_layer
def test_a_failed_call_leaves_the_forward(make):
    layer, other = scaled(make()), scaled(make())
    for each in (layer, other):
        each(X3)
    for x in (X3.astype(complex), X3[0, 0, :2], None):
        with pytest.raises((ValueError, TypeError)):
            layer(x)
    for dy in (DY3[:2], DY3.astype(complex), None):
        with pytest.raises((ValueError, TypeError)):
            layer.backward(dy)
    assert held(layer) == held(other)
    assert_same(layer.backward(DY3), other.backward(DY3))
    assert held(layer) == held(other)


# out -----------------------------------------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("order", ["C", "F"])
def test_out_of_its_own_memory(make, order):
    layer, other = scaled(make()), scaled(make())
    y, dx = np.empty_like(X3, order=order), np.empty_like(X3, order=order)
    assert layer(X3, out=y) is y
    assert_same(y, other(X3))
    assert layer.backward(DY3, out=dx) is dx
    assert_same(dx, other.backward(DY3))
    assert held(layer) == held(other)


@every_layer
def test_out_may_be_x_or_dy(make):
    layer, other = scaled(make()), scaled(make())
    y, x, dy = other(X3), X3.copy(), DY3.copy()
    assert layer(x, out=x) is x
    assert_same(x, y)
    with pytest.raises(RuntimeError, match=f"^{type(layer).__name__}"):
        layer.backward(DY3)  # x is gone
    layer(X3)
    assert layer.backward(dy, out=dy) is dy
    assert_same(dy, other.backward(DY3))


def test_out_of_a_weighted_batch():
    bn, other = bnorm.BatchNorm1d(4), bnorm.BatchNorm1d(4)
    weight = np.arange(6.0)
    y = np.empty_like(X)
    assert bn(X, weight, y) is y
    assert_same(y, other(X, weight=weight))


def test_an_array_unlike_the_last_one_is_looked_at_again():
    layer = bnorm.BatchNorm2d(3)
    x = np.random.default_rng(1).standard_normal((4, 3, 5, 4))
    last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    for like in (x, x.astype("f4"), last, x[:2], x.astype(">f8"), x[..., ::2], x):
        assert_same(layer(like), bnorm.BatchNorm2d(3)(like))
    for wrong in (x[:, :2].copy(), x[0], x.astype(complex)):
        with pytest.raises((TypeError, ValueError), match=r"^BatchNorm2d"):
            layer(wrong)
    assert_same(layer(x), bnorm.BatchNorm2d(3)(x))


# Devices -------------------------------------------------------------------------------------------------------------


@every_layer
def test_no_device_is_one_sentence(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    layer = make()
    before = held(layer)
    for call in (lambda: layer.to("cuda"), lambda: make(device="cuda")):
        with pytest.raises(DeviceError, match=f"^{type(layer).__name__}") as caught:
            call()
        assert isinstance(caught.value, ImportError) and isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value, ValueError)
        assert "\n" not in str(caught.value)
    assert held(layer) == before
