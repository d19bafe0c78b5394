"""RevIN: the round trip, the gradients through both ways, and what others do not invert."""

import pickle

import numpy as np
import pytest

import bnorm
from bnorm import RevIN
from emulated.fake_cupy import fake_cupy  # noqa: F401  a fixture
from revin_series import WAYS, made, parameters, series


def oracle(x, gamma, beta, eps, last, weight=None):
    """z, center and std of (N, T, C) with weights (N, T, C), in float64."""
    x = x.astype("f8")
    w = np.ones_like(x) if weight is None else weight
    x = np.where(w == 0, 0, x)
    mean = (w * x).sum(1, keepdims=True) / w.sum(1, keepdims=True)
    std = np.sqrt((w * (x - mean) ** 2).sum(1, keepdims=True) / w.sum(1, keepdims=True) + eps)
    center = mean
    if last:
        place = (w > 0).shape[1] - 1 - np.argmax((w > 0)[:, ::-1], axis=1)
        center = np.take_along_axis(x, place[:, None], 1)
    return (x - center) / std * gamma + beta, center, std


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("way", WAYS)
def test_forward_and_inverse(way, dtype):
    rev, x = made(way), series(dtype=dtype, axis=way["axis"])
    tall = x if way["axis"] == -1 else x.transpose(0, 2, 1)
    wanted, center, std = oracle(tall, *parameters(rev), 1e-5, way["subtract_last"])
    z = rev(x)
    assert z.dtype == x.dtype
    assert z.flags.c_contiguous
    near = {"float16": 2e-2, "float32": 2e-6, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(z if way["axis"] == -1 else z.transpose(0, 2, 1), wanted, atol=near)
    if dtype != "float16":
        np.testing.assert_allclose(rev.inverse(z), x, rtol=1e-6 if dtype == "float32" else 1e-13)
    out = series((4, 5, 3), 0, 1, dtype, way["axis"], 2)  # a forecast of another length
    y = rev.inverse(out)
    assert y.dtype == out.dtype
    gamma, beta = parameters(rev)
    tall_out = out if way["axis"] == -1 else out.transpose(0, 2, 1)
    back = (tall_out.astype("f8") - beta) / gamma * std + center
    back = back if way["axis"] == -1 else back.transpose(0, 2, 1)
    np.testing.assert_allclose(y, back, rtol=1e-3 if dtype == "float16" else 1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(4, 12), (4, 12, 3)])
def test_mask(shape, last):
    rng = np.random.default_rng(3)
    rev, x = made({"subtract_last": last}), series()
    mask = rng.uniform(size=shape) < 0.7
    mask[:, 0] = True
    full = np.broadcast_to(mask if mask.ndim == 3 else mask[:, :, None], x.shape)
    x[~full] = np.nan
    wanted, _, _ = oracle(x, *parameters(rev), 1e-5, last, full.astype("f8"))
    z = rev(x, weight=mask)
    np.testing.assert_allclose(z[full], wanted[full], atol=1e-13)
    assert np.isnan(z[~full]).all()
    np.testing.assert_allclose(rev.inverse(z)[full], x[full], rtol=1e-13)


def test_series_without_any_weight_stay_as_they_are():
    rev, x = RevIN(3), series()
    mask = np.ones((4, 12))
    mask[1] = 0
    z = rev(x, weight=mask)
    np.testing.assert_array_equal(z[1], x[1])
    np.testing.assert_array_equal(rev.inverse(z)[1], x[1])


# What others do not invert -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-5, 0.0])
@pytest.mark.parametrize("level", [0.0, 0.1, 5.0, 1e7, -3e-8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constant_series_survive(level, eps, dtype):
    """TimesFM divides a series without spread by 1 on the way there and multiplies by 0 on the way back (issue 522)."""
    rev, x = RevIN(1, eps=eps), np.full((2, 9, 1), level, dtype)
    z = rev(x)
    np.testing.assert_array_equal(z, 0)
    np.testing.assert_array_equal(rev.inverse(z), x)
    moved = rev.inverse(z + 1) - x.astype("f8")  # a forecast that moves still moves
    assert (np.abs(moved) > 0).all() or level == 1e7
    if level == 0:
        np.testing.assert_allclose(moved, np.sqrt(eps) if eps else 1, rtol=1e-6)
    assert rev.inverse(rev(x))[0, 0, 0] == x[0, 0, 0]


@pytest.mark.parametrize("eps", [1e-5, 0.0])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_constant_series_survive_a_learned_shift(eps, dtype):
    rng = np.random.default_rng(4)
    rev = RevIN(50, eps=eps)
    rev.gamma, rev.beta = rng.uniform(0.1, 2, 50), rng.normal(size=50)
    x = np.repeat(rng.normal(size=(3, 1, 50)), 9, 1).astype(dtype)
    np.testing.assert_array_equal(rev.inverse(rev(x)), x)


@pytest.mark.parametrize("spread", [1e-9, 1e-7, 1e-6, 1e-3])
def test_nearly_constant_series_survive(spread):
    """The same of a spread around TimesFM's tolerance."""
    rev = RevIN(1)
    x = 2 + series((3, 20, 1), 0, spread)
    np.testing.assert_allclose(rev.inverse(rev(x)) - 2, x - 2, atol=4e-16)


@pytest.mark.parametrize("scale", [1e-5, 1e-4, 1.0, 100.0])
def test_units_do_not_matter(scale):
    """Darts' forecasts depend on the units of a series, as eps is not small beside its variance (issue 2739)."""
    x, out = series((2, 30, 1), 10, 1), series((2, 4, 1), 0, 1, seed=5)
    rev = RevIN(1, eps=0)
    z, y = rev(x), rev.inverse(out)
    np.testing.assert_allclose(rev(x * scale), z, atol=1e-12)
    np.testing.assert_allclose(rev.inverse(out) / scale, y, rtol=1e-12)
    rev = RevIN(1)  # with the eps of the paper z depends on them, but there and back is still the same
    np.testing.assert_allclose(rev.inverse(rev(x * scale)), x * scale, rtol=1e-13)


@pytest.mark.parametrize("gamma", [1e-6, 1e-3, 30.0])
def test_any_gamma_is_inverted(gamma):
    """The paper's module divides by gamma + eps^2, which is not gamma."""
    rev, x = RevIN(3), series()
    rev.gamma = np.full(3, gamma)
    np.testing.assert_allclose(rev.inverse(rev(x)), x, rtol=1e-10)


@pytest.mark.parametrize("last", [False, True])
def test_high_levels_lose_nothing_in_float32(last):
    rng = np.random.default_rng(0)
    x = (1e7 + rng.integers(-2000, 2000, size=(5, 64, 3))).astype("f4")
    rev = RevIN(3, subtract_last=last)
    z = rev(x)
    np.testing.assert_array_equal(rev.inverse(z), x)
    wanted, _, _ = oracle(x, 1.0, 0.0, 1e-5, last)
    np.testing.assert_allclose(z, wanted, atol=2e-6)


@pytest.mark.parametrize("last", [False, True])
def test_a_level_between_two_numbers_loses_nothing(last):
    """Below 2^40 float64 is twice as fine as above, where the mean is: what it rounds off would show."""
    steps = np.random.default_rng(0).integers(-4096, 0, size=(8, 64, 3)) / 8192
    x = 2.0**40 + np.where(np.arange(64)[:, None] % 4, steps, 4.0)
    rev = RevIN(3, subtract_last=last)
    z = rev(x)
    np.testing.assert_array_equal(rev.inverse(z), x)
    assert not last or (z[:, -1] == 0).all()


def test_the_inverse_has_the_parameters_of_its_forward():
    rev, x = made({}), series()
    z = rev(x)
    rev.gamma, rev.beta = 2 * rev.gamma.data, rev.beta.data + 1  # as an optimizer does
    np.testing.assert_allclose(rev.inverse(z), x, rtol=1e-13)


@pytest.mark.parametrize(("axis", "same"), [(-2, 1), (2, -1)])
def test_an_axis_counted_from_the_other_end(axis, same):
    x = np.random.default_rng(0).normal(size=(4, 3, 3)) * [[1.0], [5.0], [20.0]]
    found = []
    for rev in (RevIN(3, axis=axis), RevIN(3, axis=same)):
        z, pull = rev.vjp(x)
        y, pull_inverse = rev.inverse.vjp(z)
        found.append([z, y, pull_inverse(y), pull(z), rev.gamma.grad])
        np.testing.assert_allclose(y, x, rtol=1e-12)
    for own, other in zip(*found, strict=True):
        np.testing.assert_array_equal(own, other)


def test_order_of_calls():
    rev = RevIN(3)
    with pytest.raises(RuntimeError, match="inverse: expected a forward first"):
        rev.inverse(np.zeros((4, 2, 3)))
    x = series()
    z = rev(x)
    with pytest.raises(RuntimeError, match="inverse: backward: expected a call before each, got none"):
        rev.inverse.backward(z)
    rev.inverse(z)
    rev.backward(z)
    with pytest.raises(RuntimeError, match="expected it before the backward of its forward"):
        rev.inverse.backward(z)
    rev(x)
    _, pull = rev.inverse.vjp(z)
    pull(z)
    with pytest.raises(RuntimeError, match="got a second one"):
        pull(z)
    with bnorm.no_backward():
        rev.inverse(rev(x))
    with pytest.raises(RuntimeError):
        rev.inverse.backward(z)
    with pytest.raises(RuntimeError):
        rev.backward(z)
    rev(x)
    with bnorm.no_backward():
        rev.inverse(z)
    with pytest.raises(RuntimeError, match="inverse: backward: expected a call before each, got none"):
        rev.inverse.backward(z)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r, x: r(x[0]), ValueError, r"RevIN\(3\): expected 3 dimensions \(N, T, C\), got shape \(12, 3\)"),
        (lambda r, x: r(x[:, :, :2]), ValueError, r"expected 3 channels, C of \(N, T, C\)"),
        (
            lambda r, x: r(x, weight=np.ones(4)),
            ValueError,
            r"weight: expected shape \(4, 12\) or \(4, 12, 3\), got \(4,\)",
        ),
        (lambda r, x: r(x, weight=-np.ones((4, 12))), ValueError, "weight: expected finite values >= 0"),
        (lambda r, x: r(x, weight=np.full((4, 12), 1e308)), ValueError, "weight: expected sums over time that float64"),
        (lambda r, x: r.inverse(x[:2]), ValueError, "inverse: out: expected 4 samples, as in the last forward, got 2"),
        (lambda r, x: r.inverse(x[:, :, :2]), ValueError, "inverse: out: expected shape"),
        (lambda r, x: r.inverse.vjp(x)[1](x[:, :3]), ValueError, "dy: expected the shape of x"),
        (lambda r, x: r("a"), TypeError, "expected"),
        (lambda r, x: setattr(r, "subtract_last", True), AttributeError, "subtract_last|setter"),
        (lambda r, x: setattr(r, "eps", -1), ValueError, "eps"),
    ],
)
def test_errors_change_nothing(call, error, message):
    rev, x = RevIN(3), series()
    z = rev(x)
    with pytest.raises(error, match=message):
        call(rev, x)
    np.testing.assert_allclose(rev.inverse(z), x, rtol=1e-13)
    rev.backward(z)


def test_zero_gamma_has_no_inverse():
    rev = RevIN(3)
    rev.gamma = [1, 0, 1]
    rev(series())
    with pytest.raises(ValueError, match="inverse: gamma: expected no zeros"):
        rev.inverse(np.zeros((4, 1, 3)))


@pytest.mark.parametrize("arguments", [{"num_features": 0}, {"axis": 0}, {"eps": -1}, {"subtract_last": 1}])
def test_arguments_are_checked(arguments):
    with pytest.raises((TypeError, ValueError), match="RevIN"):
        RevIN(**({"num_features": 3} | arguments))


def test_state(tmp_path):
    rev = made({"subtract_last": True, "eps": 1e-3, "axis": 1})
    assert list(rev.state_dict()) == ["weight", "bias"]
    rev.save(tmp_path / "rev.safetensors")
    x = series(axis=1)
    for other in (bnorm.load(tmp_path / "rev.safetensors"), pickle.loads(pickle.dumps(rev))):
        assert repr(other) == repr(rev) == "RevIN(3, axis=1, eps=0.001, subtract_last=True)"
        np.testing.assert_array_equal(other(x), rev(x))


@pytest.mark.parametrize("last", [False, True])
def test_empty(last):
    rev = RevIN(3, subtract_last=last)
    assert rev(np.zeros((4, 0, 3))).shape == (4, 0, 3)
    assert rev(np.zeros((0, 5, 3))).shape == (0, 5, 3)
    assert rev.inverse(np.zeros((0, 2, 3))).shape == (0, 2, 3)
    assert rev.backward(np.zeros((0, 5, 3))).shape == (0, 5, 3)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_device(cupy, masked, last, affine):
    here, there = (made({"subtract_last": last, "affine": affine}) for _ in range(2))
    there.to("cuda")
    x = series(dtype="float32")
    mask = np.ones((4, 12))
    mask[1, 9:] = 0
    weights = (mask, cupy.asarray(mask)) if masked else (None, None)
    dy = np.ones((4, 2, 3), "f4")
    found = []
    for rev, a, w, g in ((here, x, weights[0], dy), (there, cupy.asarray(x), weights[1], cupy.asarray(dy))):
        z = rev(a, weight=w)
        y = rev.inverse(z[:, -2:])
        dout = rev.inverse.backward(g)
        found.append([z, y, dout, rev.backward(z), *(p.grad for p in rev.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b.get(), a, rtol=2e-5, atol=2e-5)
