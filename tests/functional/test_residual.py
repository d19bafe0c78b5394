"""A residual: one pass gives the bits of an addition and a norm; its backward, those of a backward and an addition."""

import ml_dtypes
import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.kernels import reference
from bnorm.kernels.activation import IDENTITY, leaky
from bnorm.kernels.cpu import entries
from drawing import together
from kernel_checks import both_ways  # noqa: F401  a fixture

DTYPES = ["float16", "float32", "float64", ml_dtypes.bfloat16]
SHAPES = {  # and why
    (7, 5): "rows shorter than a vector",
    (9, 64): "rows of whole lines",
    (5, 100): "rows that end within a line",
    (3, 4, 768): "rows worked on two or three at a time",
    (4, 3001): "rows longer than what is worked on together",
    (2, 20_000): "rows of many blocks",
    (1, 70_000): "a row that is not kept in the second-level cache",
    (0, 6): "no rows",
}


def arrays(shape, dtype, seed=0):
    """x, r, dy, dh, gamma, beta."""
    rng = np.random.default_rng(seed)
    found = [rng.normal(1, 2, shape).astype(dtype) for _ in range(4)]
    return *found, rng.normal(1, 0.3, shape[-1]), rng.normal(0, 0.3, shape[-1])


def same(found, wanted, **what):
    assert found.dtype == wanted.dtype, what
    np.testing.assert_array_equal(
        np.ascontiguousarray(found).view(np.uint8), np.ascontiguousarray(wanted).view(np.uint8), err_msg=str(what)
    )


@together(dtype=DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_an_addition_and_a_norm(shape, dtype, caches):
    x, r, dy, dh, gamma, beta = arrays(shape, dtype)
    calls = [
        (F.layer_norm, {"gamma": gamma, "beta": beta}),
        (F.layer_norm, {"activation": "leaky_relu", "gamma": gamma}),
        (F.layer_norm, {"activation": "gelu", "beta": beta}),
        (F.layer_norm, {}),
        (F.rms_norm, {"gamma": gamma}),
    ]
    for norm, options in calls:
        what = {"norm": norm.__name__, **{name: True for name in options}}
        options = {"normalized_shape": shape[-1], **options}
        (y, h), saved = norm(x, residual=r, **options)
        wanted, plain = norm(x + r, **options)
        same(h, x + r, result="h", **what)
        same(y, wanted, result="y", **what)
        dx, dgamma, dbeta = F.backward((dy, dh), saved)
        pulled, *params = F.backward(dy, plain)
        if np.dtype(dtype).itemsize > 2:
            same(dx, pulled + dh, result="dx", **what)
        else:  # rounded once, not twice
            unit = float(ml_dtypes.finfo(dtype).eps)
            wide = pulled.astype("f8") + dh.astype("f8")
            bound = unit * (np.abs(wide) + np.abs(pulled.astype("f8")))
            assert (np.abs(dx.astype("f8") - wide) <= bound).all(), what
        same(F.backward((dy, None), saved)[0], pulled, result="dx without dh", **what)
        for got, want in zip((dgamma, dbeta), params, strict=True):
            assert (got is None) == (want is None), what
            if want is not None:
                same(got, want, result="parameters", **what)


def test_the_reference_says_the_same():
    x, r, dy, dh, gamma, beta = arrays((6, 1, 40, 1), "float64")
    gamma, beta = np.linspace(0.5, 2, 40), np.linspace(-1, 1, 40)
    (y, h), mean, rstd = entries.rows_forward(x, gamma, beta, 1e-5, 0, leaky(0.1), None, r)
    (want, sums), *_ = reference.rows_forward(x, gamma, beta, 1e-5, 0, leaky(0.1), None, r)
    np.testing.assert_allclose(y, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(h, sums)
    got = entries.rows_backward(dy, h, mean, rstd, gamma, beta, 0, leaky(0.1), True, None, dh)
    wanted = reference.rows_backward(dy, h, mean, rstd, gamma, beta, 0, leaky(0.1), True, None, dh)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_rows_of_groups():
    """The kernels add to rows of any form."""
    rng = np.random.default_rng(0)
    for shape in ((3, 4, 2, 9), (2, 3, 1, 300), (2, 2, 5, 1), (1, 4, 50, 1)):
        x, r, dy, dh = rng.normal(size=(4, *shape)).astype("float32")
        gamma, beta = rng.normal(size=(2, shape[1] * shape[2]))
        (y, h), mean, rstd = entries.rows_forward(x, gamma, beta, 1e-5, 0, IDENTITY, None, r)
        same(y, entries.rows_forward(h, gamma, beta, 1e-5)[0], shape=shape)
        dx, *_ = entries.rows_backward(dy, h, mean, rstd, gamma, beta, 0, IDENTITY, True, None, dh)
        same(dx, entries.rows_backward(dy, h, mean, rstd, gamma, beta)[0] + dh, shape=shape)


def test_gradient_by_central_differences():
    x, r, dy, dh, gamma, beta = arrays((2, 5), "float64", seed=3)

    def loss(x, r):
        (y, h), _ = F.layer_norm(x, gamma, beta, normalized_shape=5, residual=r)
        return (y * dy).sum() + (h * dh).sum()

    _, saved = F.layer_norm(x, gamma, beta, normalized_shape=5, residual=r)
    dx, _, _ = F.backward((dy, dh), saved)
    step = 1e-6 * np.eye(10).reshape(10, 2, 5)
    for slopes in (
        [(loss(x + d, r) - loss(x - d, r)) / 2e-6 for d in step],
        [(loss(x, r + d) - loss(x, r - d)) / 2e-6 for d in step],
    ):
        np.testing.assert_allclose(dx.ravel(), slopes, rtol=1e-6, atol=1e-7)


def test_memory_orders_and_byte_orders():
    x, r, dy, dh, gamma, _ = arrays((4, 3, 8), "float32")
    (y, h), saved = F.layer_norm(x, gamma, normalized_shape=8, residual=r)
    dx = F.backward((dy, dh), saved)[0]
    forms = (np.asfortranarray, lambda a: a.astype(">f4"), lambda a: np.repeat(a, 2, 0)[::2])
    for form in forms:
        for args in ((form(x), r), (x, form(r)), (form(x), form(r))):
            (y2, h2), saved2 = F.layer_norm(args[0], gamma, normalized_shape=8, residual=args[1])
            np.testing.assert_array_equal(y2, y)
            np.testing.assert_array_equal(h2, h)
            np.testing.assert_array_equal(F.backward((form(dy), form(dh)), saved2)[0], dx)


def test_out():
    x, r, dy, dh, *_ = arrays((5, 40), "float32")
    given = x.copy()
    (y, h), saved = F.layer_norm(x, normalized_shape=40, residual=r)
    (into, h2), saved2 = F.layer_norm(given, normalized_shape=40, residual=r, out=given)
    assert into is given
    same(into, y)
    same(h2, h)
    dx = F.backward((dy, dh), saved)[0]
    same(F.backward((dy, dh), saved2)[0], dx, why="the x of the backward is h, which out= leaves as it is")
    g = dy.copy()
    assert F.backward((g, dh), saved, out=g)[0] is g
    same(g, dx)
    with pytest.raises(ValueError, match=r"layer_norm: out: expected x itself.* overlaps residual"):
        F.layer_norm(x, normalized_shape=40, residual=r, out=r)
    with pytest.raises(ValueError, match=r"backward: out: expected dy itself.* overlaps dh"):
        F.backward((dy, dh), saved, out=dh)
    same(F.backward((dy, dh), saved, out=h)[0], dx)
    with pytest.raises(RuntimeError, match="overwrote"):
        F.backward((dy, dh), saved)


@pytest.mark.parametrize(
    ("residual", "error", "message"),
    [
        (np.ones((2, 3), "f4"), ValueError, r"residual: expected the shape of x, \(2, 4\), got \(2, 3\)"),
        (np.ones((1, 4), "f4"), ValueError, r"residual: expected the shape of x, \(2, 4\), got \(1, 4\)"),
        (np.ones((2, 4)), TypeError, "residual: expected the dtype of x, float32, got float64"),
        (np.ones((2, 4), "i4"), TypeError, "residual: expected the dtype of x, float32, got float64"),
        ("no", TypeError, "residual: expected real numbers"),
        (np.ma.ones((2, 4), "f4"), TypeError, "residual: expected an array without a mask"),
    ],
)
def test_errors(residual, error, message):
    x = np.ones((2, 4), "f4")
    with pytest.raises(error, match=f"layer_norm: {message}"):
        F.layer_norm(x, normalized_shape=4, residual=residual)
    ln = bnorm.LayerNorm(4)
    ln(x)
    before = ln._saved
    with pytest.raises(error, match=rf"LayerNorm\(4\): {message}"):
        ln(x, residual=residual)
    assert ln._saved is before


@pytest.mark.parametrize("dy", [np.ones((2, 4)), [np.ones((2, 4))] * 2, (np.ones((2, 4)),), None])
def test_a_backward_without_dh_is_an_error(dy):
    _, saved = F.rms_norm(np.eye(2, 4), normalized_shape=4, residual=np.ones((2, 4)))
    with pytest.raises(TypeError, match=r"backward: dy: expected \(dy, dh\), as the forward had a residual"):
        F.backward(dy, saved)
    with pytest.raises(ValueError, match="backward: dh: expected the shape of x"):
        F.backward((np.ones((2, 4)), np.ones(4)), saved)


def test_lists():
    (y, h), saved = F.layer_norm([[1, 2]], normalized_shape=2, residual=[[0.5, 1]])
    same(h, np.array([[1.5, 3.0]]))
    same(y, F.layer_norm(h, normalized_shape=2)[0])
    assert F.backward(([[1, 0]], [[1, 1]]), saved)[0].shape == (1, 2)


@pytest.mark.parametrize("layer", [bnorm.LayerNorm(6), bnorm.RMSNorm(6), bnorm.LayerNorm(6, dtype="float32")], ids=repr)
def test_layers(layer):
    x, r, dy, dh, *_ = arrays((5, 6), "float32")
    y = layer(x + r)
    dx = layer.backward(dy)
    grads = [p.grad.copy() for p in layer.parameters()]
    layer.zero_grad()
    y2, h = layer(x, residual=r)
    same(y2, y)
    same(h, x + r)
    same(layer.backward((dy, dh)), dx + dh)
    (y3, _), pull = layer.vjp(x, residual=r)
    same(y3, y)
    same(pull((dy, dh)), dx + dh)
    for p, grad in zip(layer.parameters(), grads, strict=True):
        np.testing.assert_array_equal(p.grad, 2 * grad)
    with bnorm.no_backward():
        layer(x, residual=r)
    with pytest.raises(RuntimeError, match="expected a forward"):
        layer.backward((dy, dh))
    with pytest.raises(TypeError, match=r"dy: expected \(dy, dh\)"):
        layer.vjp(x, residual=r)[1](dy)


def test_double_backward_is_that_of_h():
    x, r, dy, _, gamma, beta = arrays((3, 6), "float64")
    ddx = np.random.default_rng(1).normal(size=(3, 6))
    _, saved = F.layer_norm(x, gamma, beta, normalized_shape=6, residual=r)
    _, plain = F.layer_norm(x + r, gamma, beta, normalized_shape=6)
    for got, want in zip(F.double_backward(ddx, saved, dy), F.double_backward(ddx, plain, dy), strict=True):
        same(got, want)
