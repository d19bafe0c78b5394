"""`backward` against central differences, for every function, memory, parameter, weight and activation."""

from functools import partial

import numpy as np
import pytest

import bnorm.functional as F
from bnorm.checks import SingleValueError
from bnorm.kernels.activation import IDENTITY
from bnorm.kernels.view import channels
from bnorm.passes import batch_forward
from compare import assert_close, assert_differences, assert_same, central_differences
from kinds import BATCH, KINDS, WEIGHTED, chosen, every_kind, some_parameters
from rules import rule

# Gradients -----------------------------------------------------------------------------------------------------------


KNOWN: dict[tuple, dict[str, np.ndarray]] = {}  # central differences, which the order of memory does not change


def differences(forward, x, dy, parameters):
    """Of sum(dy * y), by x and by each parameter."""

    def loss(values, name):
        given = parameters if name == "x" else {**parameters, name: values}
        return float((dy * forward(values if name == "x" else x, **given)[0]).sum())

    return {name: central_differences(partial(loss, name=name), at) for name, at in ({"x": x} | parameters).items()}


def check_gradients(forward, x, dy, parameters, memory, key, **case):
    """dx, dgamma and dbeta of sum(dy * y) against differences; None where a parameter is not given. Calls of the same
    `key` differ in `memory` alone."""
    if key not in KNOWN:
        KNOWN[key] = differences(forward, x, dy, parameters)
    _, saved = forward(memory(x), **parameters)
    for name, gradient in zip(("x", "gamma", "beta"), F.backward(memory(dy), saved), strict=True):
        if name not in KNOWN[key]:
            assert gradient is None, (name, case)
            continue
        assert gradient.dtype == np.float64
        assert_differences(gradient, KNOWN[key][name], by=name, order=memory.__name__, **case)


@some_parameters(KINDS)
def test_gradients(kind, memory, given, activation):
    x, dy, gamma, beta = kind.example()
    parameters = chosen(given, gamma, beta)
    forward = partial(kind.forward, eps=1e-3, activation=activation)
    check_gradients(forward, x, dy, parameters, memory, ("training", kind, given, activation), kind=kind)


@some_parameters(WEIGHTED, per_sample=[False, True])
def test_gradients_with_weights(kind, memory, given, activation, per_sample):
    x, dy, gamma, beta = kind.example()
    shape = np.delete(kind.shape, kind.axis)
    weight = np.random.default_rng(2).uniform(0.5, 2, shape[:1] if per_sample else shape)
    weight.ravel()[::3] = 0
    forward = partial(kind.forward, eps=1e-3, activation=activation, weight=weight)
    key = "weights", kind, given, activation, per_sample
    check_gradients(forward, x, dy, chosen(given, gamma, beta), memory, key, kind=kind)


@some_parameters(BATCH)
def test_gradients_of_inference(kind, memory, given, activation):
    x, dy, gamma, beta = kind.example()
    mean, var = np.linspace(1, 3, 3), np.linspace(0.5, 4, 3)
    forward = partial(kind.forward, eps=1e-3, activation=activation, mean=mean, var=var, weight=np.zeros(x.shape[0]))
    if kind.axis == 0:
        forward = partial(kind.forward, eps=1e-3, activation=activation, mean=mean, var=var)
    key = "inference", kind, given, activation
    check_gradients(forward, x, dy, chosen(given, gamma, beta), memory, key, kind=kind)


@every_kind
def test_float32_gradients_are_those_of_float64(kind):
    x, dy, gamma, _ = kind.example()
    x, dy = x.astype("f4"), dy.astype("f4")
    dx, dgamma, _ = F.backward(dy, kind.forward(x, gamma)[1])
    want, want_dgamma, _ = F.backward(dy.astype("f8"), kind.forward(x.astype("f8"), gamma)[1])
    assert dx.dtype == np.float32 and want.dtype == np.float64
    assert_close(dx, want, 1e-5, kind=kind)
    assert_close(dgamma, want_dgamma, 1e-5 * np.abs(dy).sum(), kind=kind)


# What the backward belongs to ----------------------------------------------------------------------------------------


@every_kind
def test_backward_is_pure_and_of_its_own_forward(kind):
    x, dy, gamma, beta = kind.example()
    parameters = chosen(("gamma", "beta") if kind.has_beta else ("gamma",), gamma, beta)
    options = {"weight": np.arange(1.0, len(x) + 1)} if kind in BATCH and kind.axis else {}
    y, saved = kind.forward(x, **parameters, **options, activation="relu")
    want = F.backward(dy, saved)
    kind.forward(x + 1, **parameters)
    for values in (*parameters.values(), *options.values(), y):
        values[...] = np.nan
    for got, expected in zip(F.backward(dy, saved), want, strict=True):
        if expected is None:
            assert got is None
        else:
            assert_same(got, expected, kind=kind)


def test_inference_backward_keeps_the_statistics_it_used():
    x, dy, gamma, beta = BATCH[0].example()
    mean, var = np.ones(3), np.ones(3)
    _, saved = F.batch_norm(x, gamma, beta, mean=mean, var=var)
    want = F.backward(dy, saved)
    mean[:], var[:] = 5, 5
    for got, expected in zip(F.backward(dy, saved), want, strict=True):
        assert_same(got, expected)


@every_kind
def test_saved_holds_x_and_small_things(kind):
    x, _, gamma, _ = kind.example()
    x = x.astype("f4")
    _, saved = kind.forward(x, gamma)
    assert isinstance(saved, F.Saved)
    slots = [getattr(saved, name, None) for cls in type(saved).__mro__ for name in getattr(cls, "__slots__", ())]
    arrays = [a for a in slots if isinstance(a, np.ndarray)]
    large = [a for a in arrays if a.size >= x.size]
    assert len(large) == 1 and large[0] is saved.x
    if kind in BATCH:
        assert np.shares_memory(saved.x, x)


# What layers build on ------------------------------------------------------------------------------------------------


def test_what_a_forward_leaves_moves_running_statistics():
    x, _, gamma, beta = BATCH[2].example()
    x[0, 1, 0] = np.nan
    mean, var = np.zeros(3), np.ones(3)
    running = rule(mean, var, 0.1, ddof=1)
    y, saved = batch_forward("layer", x, channels(x, 1), gamma, beta, 1e-3, IDENTITY, running=running)
    assert_same(y, F.batch_norm(x, gamma, beta, eps=1e-3)[0])
    assert saved.kernels.settle(running, saved.stats, saved.count, y.size, saved.left) == 1
    assert_close(mean, np.where([True, False, True], 0.1 * x.mean((0, 2)), 0), 1e-15)
    assert_close(var, np.where([True, False, True], 0.9 + 0.1 * x.var((0, 2), ddof=1), 1), 1e-15)


def test_one_value_per_channel_is_an_error_of_its_own():
    statistics = np.zeros(3), np.ones(3)
    running = rule(*statistics, 0.1)
    for x, weight in ((np.ones((1, 3)), None), (np.ones((2, 3)), [0, 1])):
        with pytest.raises(SingleValueError, match=r"^layer: x: expected more than one value per channel"):
            batch_forward("layer", x, channels(x, 1), None, None, 1e-3, IDENTITY, weight, running=running)
    assert_same(statistics, [np.zeros(3), np.ones(3)])


@every_kind
def test_parameter_gradients_can_be_left_out(kind):
    x, dy, gamma, _ = kind.example()
    _, saved = kind.forward(x, gamma)
    dx, dgamma, dbeta = saved.pull_back("layer", dy, params=False)
    assert dgamma is None and dbeta is None
    assert_same(dx, F.backward(dy, saved)[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("activation", "slope"), [("relu", 0.0), ("leaky_relu", 0.01)])
def test_zero_has_the_slope_of_what_is_below(activation, slope, dtype):
    x, dy = np.array([[-1.0, 0.0, 1.0]], dtype), np.array([[0.0, 1.0, 0.0]], dtype)
    for function, turned in ((F.batch_norm, np.transpose), (partial(F.layer_norm, normalized_shape=3), np.copy)):
        of = np.ascontiguousarray(turned(x))
        size = of.shape[1]
        y, saved = function(of, np.ones(size), np.zeros(size), activation=activation)
        assert y.ravel()[1] == 0
        *_, dbeta = F.backward(np.ascontiguousarray(turned(dy)), saved)
        np.testing.assert_allclose(dbeta.sum(), slope, rtol=1e-3)
