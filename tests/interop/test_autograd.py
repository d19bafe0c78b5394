"""The norms as primitives of HIPS autograd: derivatives of both orders by central differences, and a Hessian."""

import numpy as np
import pytest

from bnorm import functional as F

autograd = pytest.importorskip("autograd", reason="autograd is the other side")
anp = pytest.importorskip("autograd.numpy", reason="autograd is the other side")
util = pytest.importorskip("autograd.test_util", reason="autograd is the other side")

from bnorm.interop import autograd as here  # noqa: E402  after the skips

NORMS = {
    "batch": lambda x, *p, **k: here.batch_norm(x, *p, **k),
    "batch with weights": lambda x, *p, **k: here.batch_norm(x, *p, weight=[1.0, 0.0, 2.0, 1.0], **k),
    "batch in inference": lambda x, *p, **k: here.batch_norm(x, *p, mean=[1.0, 0, 0], var=[1.0, 2, 3], **k),
    "group": lambda x, *p, **k: here.group_norm(x, 3, *p, **k),
    "group with weights": lambda x, *p, **k: here.group_norm(x, 1, *p, weight=[[1.0, 0.0, 2.0, 1.0, 0.5]] * 4, **k),
    "instance": lambda x, *p, **k: here.instance_norm(x, *p, **k),
    "layer": lambda x, *p, **k: here.layer_norm(anp.swapaxes(x, 1, 2), *p, normalized_shape=3, **k),
    "rms": lambda x, *p, **k: here.rms_norm(anp.swapaxes(x, 1, 2), *p[:1], normalized_shape=3, **k),
}


def draw():
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, 3, 5)), rng.normal(size=3), rng.normal(size=3)


@pytest.mark.parametrize("activation", [None, "leaky_relu", "silu"])
@pytest.mark.parametrize("name", NORMS)
def test_derivatives_of_both_orders(name, activation):
    given = draw()[: 2 if name == "rms" else 3]
    by_all = tuple(range(len(given)))
    util.check_grads(lambda *given: NORMS[name](*given, activation=activation), by_all, modes=["rev"], order=2)(*given)
    util.check_grads(lambda x: NORMS[name](x, activation=activation), modes=["rev"], order=2)(given[0])


def test_values_and_gradients_are_those_of_functional():
    x, gamma, beta = draw()
    dy = np.cos(x)
    y, saved = F.batch_norm(x, gamma, beta, activation="relu")
    np.testing.assert_array_equal(here.batch_norm(x, gamma, beta, activation="relu"), y)

    def loss(given):
        return anp.sum(here.batch_norm(*given, activation="relu") * dy)

    for got, wanted in zip(autograd.grad(loss)((x, gamma, beta)), F.backward(dy, saved), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_gradients_of_both_orders_have_the_types_of_their_arrays(kind):
    given = tuple(a.astype(kind) for a in draw())

    def loss(*given):
        return anp.sum(here.batch_norm(*given, activation="silu") ** 2)

    for i in range(3):
        first = autograd.grad(loss, i)
        second = autograd.grad(lambda *given: anp.sum(first(*given) ** 2), i)  # noqa: B023  it is used at once
        assert (first(*given).dtype, second(*given).dtype) == (kind, kind)
    assert autograd.grad(lambda x: anp.sum(here.batch_norm(x, [2, 2, 2])))(given[0]).dtype == kind


@pytest.mark.parametrize("norm", ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"])
def test_all_arguments_are_passed_on(norm):
    x, *parameters = draw()
    before, options = (3,) if norm == "group_norm" else (), {"eps": 0.5, "activation": "silu"}
    if norm in ("layer_norm", "rms_norm"):
        x, options["normalized_shape"] = x.swapaxes(1, 2), 3
    given = x, *before, *parameters[: 1 if norm == "rms_norm" else 2]
    np.testing.assert_array_equal(getattr(here, norm)(*given, **options), getattr(F, norm)(*given, **options)[0])


@pytest.mark.parametrize("name", ["weight", "mean", "var"])
def test_constants_that_would_need_a_gradient_are_refused(name):
    x = draw()[0]
    options = {"weight": np.ones(4)} if name == "weight" else {"mean": np.zeros(3), "var": np.ones(3)}

    def loss(value, of=lambda value: value):
        return anp.sum(here.batch_norm(value.mean() * x, **{**options, name: of(value)}) ** 2)

    with pytest.raises(TypeError, match=rf"autograd.batch_norm: {name}: expected an .*tracer.getval\({name}\) is a"):
        autograd.grad(loss)(options[name])
    autograd.grad(loss)(options[name] + 1.0, of=autograd.tracer.getval)


def test_a_hessian_is_symmetric_and_right():
    x = draw()[0][:, :, 0]

    def loss(x):
        return anp.sum(here.batch_norm(x) ** 3)

    def plain(x):
        return anp.sum(((x - anp.mean(x, 0)) / anp.sqrt(anp.var(x, 0) + 1e-5)) ** 3)

    hessian = autograd.hessian(loss)(x)
    np.testing.assert_allclose(hessian, hessian.transpose(2, 3, 0, 1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(hessian, autograd.hessian(plain)(x), rtol=0, atol=1e-11)


def test_a_third_derivative_is_refused_and_not_wrong():
    x = draw()[0][:, :, 0]
    derivative = lambda x: anp.sum(here.batch_norm(x) ** 3)  # noqa: E731
    for _ in range(3):
        derivative = (lambda f: lambda x: anp.sum(autograd.grad(f)(x) ** 2))(derivative)
    with pytest.raises(NotImplementedError, match="VJP of double_backward"):
        derivative(x)
