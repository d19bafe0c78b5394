"""The norms inside of JAX: derivatives of both orders, compiled, mapped, in both precisions."""

from functools import partial

import numpy as np
import pytest

from bnorm import functional as F

jax = pytest.importorskip("jax", reason="JAX is the other side")
util = pytest.importorskip("jax.test_util", reason="JAX is the other side")

from bnorm.interop import jax as here  # noqa: E402  after the skips

jnp = jax.numpy
NEGATIVE = -jnp.ones(3)  # known, while one that is made under jit is not

NORMS = {
    "batch": lambda x, *p, **k: here.batch_norm(x, *p, **k),
    "batch with weights": lambda x, *p, **k: here.batch_norm(x, *p, weight=[1.0, 0.0, 2.0, 1.0], **k),
    "batch in inference": lambda x, *p, **k: here.batch_norm(x, *p, mean=[1.0, 0, 0], var=[1.0, 2, 3], **k),
    "group": lambda x, *p, **k: here.group_norm(x, 3, *p, **k),
    "instance": lambda x, *p, **k: here.instance_norm(x, *p, **k),
    "layer": lambda x, *p, **k: here.layer_norm(jnp.swapaxes(x, 1, 2), *p, normalized_shape=3, **k),
    "rms": lambda x, *p, **k: here.rms_norm(jnp.swapaxes(x, 1, 2), *p[:1], normalized_shape=[3], **k),
}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def draw():
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, 3, 5)), rng.normal(size=3), rng.normal(size=3)


@pytest.mark.parametrize("name", NORMS)
def test_derivatives_of_both_orders(name):
    given = draw()[: 2 if name == "rms" else 3]
    for activation in ("leaky_relu", "silu"):
        by = partial(NORMS[name], activation=activation)
        util.check_grads(by, given, order=2, modes=["rev"])
    util.check_grads(jax.jit(NORMS[name]), given[:1], order=2, modes=["rev"])


def test_values_and_gradients_are_those_of_functional():
    x, gamma, beta = draw()
    dy = np.cos(x)
    y, saved = F.batch_norm(x, gamma, beta, activation="relu")
    norm = jax.jit(lambda *given: here.batch_norm(*given, activation="relu"))
    np.testing.assert_array_equal(norm(x, gamma, beta), y)
    gradients = jax.grad(lambda *given: (norm(*given) * dy).sum(), (0, 1, 2))(x, gamma, beta)
    for got, wanted in zip(gradients, F.backward(dy, saved), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", ["f8", "f4", "?"])
def test_values_of_all_norms(kind):
    x, gamma, beta = draw()
    x = (x > 0) if kind == "?" else x.astype(kind)
    for name, p, options in (
        ("batch_norm", (gamma, beta), {"weight": [1.0, 0.0, 2.0, 1.0]}),
        ("batch_norm", (gamma, None), {"mean": [1.0, 0, 0], "var": [1.0, 2, 3], "eps": 1e-3}),
        ("instance_norm", (gamma, beta), {"eps": 1e-2}),
        ("layer_norm", (gamma[:1] * np.ones(5), beta[0] * np.ones(5)), {"normalized_shape": 5}),
        ("rms_norm", (np.arange(5.0),), {"normalized_shape": [5]}),
    ):
        wanted = getattr(F, name)(x, *p, **options)[0]
        y = getattr(here, name)(x, *p, **options)
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y, wanted, name)
    np.testing.assert_array_equal(here.group_norm(x, 3, gamma, beta), F.group_norm(x, 3, gamma, beta)[0])


def test_masks_are_constants_to_the_gradient():
    x, mask = draw()[0], np.array([True, False, True, True])
    _, saved = F.batch_norm(x, weight=mask)
    dx = jax.grad(lambda x: (here.batch_norm(x, weight=mask) * jnp.cos(x)).sum())(x)
    want = F.backward(np.cos(x), saved)[0] - np.sin(x) * F.batch_norm(x, weight=mask)[0]
    np.testing.assert_allclose(dx, want, rtol=0, atol=1e-13)


def test_single_precision_stays_single():
    x, gamma, _ = (a.astype(np.float32) for a in draw())
    with jax.enable_x64(False):
        y, pull = jax.vjp(lambda x, gamma: here.batch_norm(x, gamma), x, gamma)
        dx, dgamma = pull(y)
    assert (y.dtype, dx.dtype, dgamma.dtype) == (np.float32,) * 3
    np.testing.assert_array_equal(y, F.batch_norm(x, gamma)[0])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_known_statistics_keep_all_digits_in_single_precision(wrap):
    """A mean of 1e6 in float32 would be off by as much as the spread of x."""
    x = (1e6 + draw()[0]).astype(np.float32)
    mean, var, weight = x.mean((0, 2), np.float64) + 0.01, x.var((0, 2), np.float64), np.array([0.1, 0.2, 0.3, 1e-60])
    with jax.enable_x64(False):
        norm = wrap(lambda x: here.batch_norm(x, mean=mean, var=var))
        y, pull = jax.vjp(norm, x)
        wanted, saved = F.batch_norm(x, mean=mean, var=var)
        np.testing.assert_array_equal(y, wanted)
        mean += 1  # the statistics are those of the call
        np.testing.assert_array_equal(pull(y)[0], F.backward(wanted, saved)[0])
        y = wrap(lambda x: here.batch_norm(x, weight=weight))(x)
    np.testing.assert_array_equal(y, F.batch_norm(x, weight=weight)[0])


def test_traced_constants():
    x, mean, var = draw()[0], np.arange(3.0), np.ones(3)
    norm = jax.jit(lambda x, mean, one: here.batch_norm(x, mean=mean, var=[one, 2.0, one]))
    np.testing.assert_array_equal(norm(x, mean, 1.0), F.batch_norm(x, mean=mean, var=[1.0, 2.0, 1.0])[0])
    mapped = jax.vmap(lambda mean: here.batch_norm(x, mean=mean, var=var))(np.stack([mean, -mean]))
    np.testing.assert_array_equal(mapped[1], F.batch_norm(x, mean=-mean, var=var)[0])
    assert not jax.grad(lambda mean: here.batch_norm(x, mean=mean, var=var).sum())(mean).any()


def test_vmap_normalizes_each_by_itself():
    x = np.random.default_rng(4).normal(size=(3, 6, 2))
    mapped = jax.vmap(lambda x: here.batch_norm(x))(x)
    np.testing.assert_array_equal(mapped, np.stack([F.batch_norm(part)[0] for part in x]))


def test_integers_become_floats():
    np.testing.assert_array_equal(
        here.batch_norm(jnp.arange(6).reshape(3, 2)), F.batch_norm([[0, 1], [2, 3], [4, 5]])[0]
    )


def test_out_is_refused():
    x, gamma, beta = draw()
    with pytest.raises(TypeError, match=r"interop.jax.batch_norm: out: expected None, as JAX's arrays do not change"):
        here.batch_norm(x, gamma, beta, out=x)
    with pytest.raises(TypeError, match=r"interop.jax.layer_norm: residual: expected None, as there would be no grad"):
        here.layer_norm(x, normalized_shape=5, residual=x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: here.batch_norm(x, jnp.ones(4)), r"batch_norm: gamma: expected shape \(3,\), got \(4,\)"),
        (lambda x: here.batch_norm(x, weight=jnp.ones(5)), "batch_norm: weight: expected shape"),
        (lambda x: here.batch_norm(x, weight=[1.0, 1, 1, -1]), "batch_norm: weight: expected finite values >= 0"),
        (lambda x: here.batch_norm(x[:, :, 0], weight=np.eye(4)[3]), "batch_norm: x: .* with one weight above zero"),
        (lambda x: here.batch_norm(x, mean=[0, 0, 0], var=NEGATIVE), "batch_norm: var: expected"),
        (lambda x: here.batch_norm(x, mean=jnp.zeros(3)), "batch_norm: var: expected an array of shape"),
        (lambda x: here.batch_norm(x * 1j), "batch_norm: x: expected real numbers, got dtype complex128"),
        (lambda x: here.batch_norm(x, activation="tanh"), "batch_norm: activation: expected None or one of"),
        (lambda x: here.batch_norm(x, slope=1), "unexpected keyword argument 'slope'"),
        (lambda x: here.group_norm(x, 2), "group_norm: num_groups: expected"),
        (lambda x: here.layer_norm(x, normalized_shape=(3, 4)), "layer_norm: normalized_shape: expected"),
    ],
)
def test_errors_are_those_of_functional_under_jit_too(call, message):
    x = draw()[0]
    for run in (call, jax.jit(call), jax.grad(lambda x: call(x).sum().real)):
        with pytest.raises((TypeError, ValueError), match=message):
            run(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: here.rms_norm(x, normalized_shape=4), r"expected the last axes of x, which has shape \(6, 3\)"),
        (lambda x: here.batch_norm(x, axis=2), r"axis: expected an axis of x, which has shape \(6, 3\), got 2"),
        (lambda x: here.batch_norm(x, jnp.ones(4), axis=0), r"gamma: expected shape \(6,\), got \(4,\)"),
        (lambda x: here.batch_norm(x[0]), r"axis: expected an axis of x, which has shape \(3,\), got 1"),
        (lambda x: here.batch_norm(x[0], axis=0), "expected more than one value per channel"),
        (lambda x: here.batch_norm(x[:1], weight=jnp.ones(1)), "expected more than one value per channel"),
        (lambda x: here.batch_norm(x[:, :1], axis=0), "expected more than one value per channel"),
        (lambda x: here.instance_norm(x), "instance_norm: x: expected more than one value per group"),
        (lambda x: here.group_norm(x[:1], 3), r"expected more than one value per group .* got shape \(1, 3\)"),
    ],
)
def test_errors_of_a_shape_are_those_of_functional_too(call, message):
    x = np.ones((6, 3))
    for run in (call, jax.jit(call), jax.grad(lambda x: call(x).sum())):
        with pytest.raises(ValueError, match=message):
            run(x)
