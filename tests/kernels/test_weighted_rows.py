"""Rows whose positions have weights, on every backend, against the reference."""

import numpy as np
import pytest

from backends import SWITCH, each_backend
from bnorm.kernels import MEAN_SQUARE, VARIANCE, cpu, reference
from bnorm.kernels.activation import IDENTITY, RELU, SILU, leaky
from cases import DTYPES
from compare import EPS, assert_close, assert_same, rounding
from kernel_checks import both_ways  # noqa: F401  a fixture

SHAPES = [  # (N, G, K, L), and why
    (3, 2, 2, 49),  # images of 7x7
    (4, 3, 1, 300),  # instance norm
    (14, 1, 5, 5),  # shorter than a vector, and more rows than an emulated device has blocks
    (5, 2, 3, 1),  # group norm of (N, C), a weight for each sample
    (2, 2, 70, 33),  # runs summed together
    (2, 1, 1, 5000),  # a run of two pieces
    (0, 2, 2, 3),
    (2, 2, 2, 0),
]


def problem(shape, dtype, whole=False):
    """x, dy, gamma, beta and weights: 0 in places where x is NaN and dy 0, and all 0 for the last sample."""
    n, g, k, positions = shape
    rng = np.random.default_rng([0, *shape])
    x = rng.normal(3, 2, shape).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    weight = np.ones((n, positions)) if whole else rng.uniform(0.5, 2, (n, positions))
    weight[rng.random(weight.shape) < 0.3] = 0
    weight[-1:] = 0
    hidden = weight[:, None, None, :] == 0
    lost = np.broadcast_to(hidden, shape) & (rng.random(shape) < 0.5)
    x[lost], dy[lost] = np.nan, 0
    return x, dy, rng.uniform(0.5, 2, g * k), rng.standard_normal(g * k), weight


@each_backend(
    shape=SHAPES, dtype=DTYPES, act=[IDENTITY, RELU, SILU, leaky(0.2)], affine=SWITCH, rule=[VARIANCE, MEAN_SQUARE]
)
def test_against_the_reference(backend, shape, dtype, act, affine, rule):
    x, dy, gamma, beta, weight = problem(shape, dtype)
    n, g, k, _ = shape
    gamma, beta = (gamma, beta) if affine else (None, None)
    tags = {"backend": backend.name, "shape": shape, "dtype": dtype, "act": act}
    unit = EPS[np.dtype(dtype)]
    got, want = backend.both("rows_forward", x, gamma, beta, 1e-5, rule, act, None, None, weight)
    mean, rstd = want[1:]
    assert_close(got[1], mean, 16 * unit, what="mean", **tags)
    assert_close(got[2], rstd, 16 * unit * rstd, what="rstd", **tags)
    gain = np.ones((g, k, 1)) if gamma is None else gamma.reshape(g, k, 1)
    shift = np.zeros((g, k, 1)) if beta is None else beta.reshape(g, k, 1)
    r = rstd.reshape(n, g, 1, 1)
    xhat = (x.astype("f8") - mean.reshape(n, g, 1, 1)) * r
    of_y = 32 * unit * (np.abs(xhat * gain) + np.abs(shift) + gain) + rounding(dtype, want[0])
    assert_close(got[0], want[0], of_y, what="y", **tags)
    dy = np.where(np.abs(xhat * gain + shift) <= 2 * of_y, 0, dy).astype(dtype)  # too close to the ReLU's corner
    args = dy, x, mean, rstd, gamma, beta, rule, act, True, None, None, weight
    got, want = backend.both("rows_backward", *args)
    wide = np.abs(dy.astype("f8")) * gain
    there = np.where(dy == 0, 0, np.abs(xhat))
    count = np.maximum(k * weight.sum(1), 1e-9)[:, None, None, None]
    sums = (wide.sum((2, 3), keepdims=True), (wide * there).sum((2, 3), keepdims=True))
    w = weight[:, None, None, :]
    through = np.where(w == 0, 0, w * (sums[0] + sums[1] * np.abs(xhat)) / count)
    of_dx = 64 * unit * r * (wide + through) + rounding(dtype, want[0])
    assert_close(got[0], want[0], of_dx, what="dx", **tags)
    size = np.abs(dy.astype("f8"))
    assert_close(got[1], want[1], 32 * unit * (size * (1 + there)).sum((0, 3)).ravel(), what="dgamma", **tags)
    assert_close(got[2], want[2], 32 * unit * size.sum((0, 3)).ravel(), what="dbeta", **tags)
    without = backend("rows_backward", *args[:8], False, None, None, weight)
    assert_same(without[0], got[0], **tags)
    assert without[1] is None


@each_backend(dtype=["float32", "float64"], size=[1e-30, 1e30])
def test_only_the_shares_of_a_sample_count(backend, dtype, size):
    """However large the weights of one sample are beside those of another."""
    x, dy, gamma, beta, weight = problem((3, 2, 2, 40), dtype, whole=True)
    more = weight * np.array([[1], [size], [1]])
    y, mean, rstd = backend("rows_forward", x, gamma, beta, 1e-5, VARIANCE, IDENTITY, None, None, weight)
    got = backend("rows_forward", x, gamma, beta, 1e-5, VARIANCE, IDENTITY, None, None, more)
    unit = EPS[np.dtype(dtype)]
    assert_close(got[0], y, 8 * unit * (1 + np.abs(y)), backend=backend.name)
    more_dx, dx = (
        backend("rows_backward", dy, x, mean, rstd, gamma, beta, VARIANCE, IDENTITY, True, None, None, w)[0]
        for w in (more, weight)
    )
    assert_close(more_dx, dx, 64 * unit, backend=backend.name)


@each_backend(dtype=["float32", "float64"], far=[1e18, -1e30])
def test_a_first_value_far_away_of_almost_no_weight(backend, dtype, far):
    x, _, gamma, beta, weight = problem((3, 2, 2, 400), dtype, whole=True)
    weight[:-1, 0] = 0
    want = backend("rows_forward", x, gamma, beta, 1e-5, VARIANCE, IDENTITY, None, None, weight)
    x[..., 0], weight[:-1, 0] = far, 1e-290
    got = backend("rows_forward", x, gamma, beta, 1e-5, VARIANCE, IDENTITY, None, None, weight)
    unit = EPS[np.dtype(dtype)]
    assert_close(got[1], want[1], 8 * unit * (1 + np.abs(want[1])), backend=backend.name)
    assert_close(got[2], want[2], 8 * unit * want[2], backend=backend.name)


@each_backend(dtype=DTYPES)
def test_of_weights_alike_the_numbers_are_those_without(backend, dtype):
    x, dy, gamma, beta, _ = problem((3, 2, 2, 40), dtype, whole=True)
    x, dy = np.nan_to_num(x), np.nan_to_num(dy)
    unit, weight = EPS[np.dtype(dtype)], np.full((3, 40), 0.25)
    y, mean, rstd = backend("rows_forward", x, gamma, beta, 1e-5)
    got = backend("rows_forward", x, gamma, beta, 1e-5, VARIANCE, IDENTITY, None, None, weight)
    assert_close(got[0], y, 16 * unit * (4 + np.abs(y)) + rounding(dtype, y), backend=backend.name)
    dx = backend("rows_backward", dy, x, mean, rstd, gamma, beta)[0]
    got = backend("rows_backward", dy, x, mean, rstd, gamma, beta, VARIANCE, IDENTITY, True, None, None, weight)[0]
    assert_close(got, dx, 64 * unit * (1 + np.abs(dx)) + rounding(dtype, dx), backend=backend.name)


@each_backend(dtype=["float32", "float64"])
def test_a_constant_sample_is_beta(backend, dtype):
    x, _, gamma, beta, weight = problem((3, 2, 2, 40), dtype)
    constant = np.where(weight[:, None, None, :] == 0, x, np.full_like(x, 1234.567))
    for eps in (0.0, 1e-5):
        y, *_ = backend("rows_forward", constant, gamma, beta, eps, VARIANCE, IDENTITY, None, None, weight)
        found = np.broadcast_to(weight[:, None, None, :] > 0, y.shape)
        assert_same(y[found], np.broadcast_to(beta.reshape(2, 2, 1), y.shape)[found].astype(dtype))


def test_a_large_mean_loses_nothing():
    """Weights that grow from block to block, and a mean of a million standard deviations."""
    rng = np.random.default_rng(0)
    for dtype, level in (("float32", 1e6), ("float64", 1e6)):
        x = (rng.standard_normal((2, 1, 3, 9000)) + level).astype(dtype)
        weight = np.where(rng.random((2, 9000)) < 0.5, 0, np.geomspace(1e-6, 1e6, 9000))
        y, mean, _ = cpu.rows_forward(x, None, None, 1e-5, weight=weight)
        want, exact, _ = reference.rows_forward(x.astype("f8"), None, None, 1e-5, weight=weight)
        assert_close(mean, exact, 1e-7 if dtype == "float32" else 1e-9)
        assert_close(y, want, 2e-6 if dtype == "float32" else 8 * 2.0**-52 * level * np.maximum(1, np.abs(want)))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_and_past_the_caches(shape, dtype, caches):
    x, dy, gamma, beta, weight = problem(shape, dtype)
    want = reference.rows_forward(x, gamma, beta, 1e-5, weight=weight)
    args = want[1:], gamma, beta
    y, mean, rstd = cpu.rows_forward(x, gamma, beta, 1e-5, weight=weight)
    bound = 64 * EPS[np.dtype(dtype)] * (4 + np.abs(want[0].astype("f8"))) + rounding(dtype, want[0])
    assert_close(y, want[0], bound)
    inside = x.copy()
    assert cpu.rows_forward(inside, gamma, beta, 1e-5, out=inside, weight=weight)[0] is inside
    assert_same(inside, y)
    dx = cpu.rows_backward(dy, x, mean, rstd, gamma, beta, weight=weight)[0]
    for which in (0, 1):
        arrays = dy.copy(), x.copy()
        got = cpu.rows_backward(*arrays, mean, rstd, gamma, beta, out=arrays[which], weight=weight)[0]
        assert got is arrays[which]
        assert_same(got, dx, args=len(args))


def test_a_residual_and_weights():
    x, dy, gamma, beta, weight = problem((3, 2, 2, 40), "float32")
    r = np.random.default_rng(1).standard_normal(x.shape).astype("f4")
    (y, h), mean, rstd = cpu.rows_forward(x, gamma, beta, 1e-5, residual=r, weight=weight)
    assert_same(h, x + r)
    assert_same(y, cpu.rows_forward(x + r, gamma, beta, 1e-5, weight=weight)[0])
    dx = cpu.rows_backward(dy, h, mean, rstd, gamma, beta, dh=r, weight=weight)[0]
    plain = cpu.rows_backward(dy, h, mean, rstd, gamma, beta, weight=weight)[0]
    assert_same(dx, plain + r)


@pytest.mark.parametrize("size", [1e-24, 1e24])
def test_squares_and_products_beyond_float32(size):
    """They are summed again in float64."""
    x, dy, gamma, beta, weight = problem((3, 2, 2, 40), "float32")
    x, dy = (x * np.float32(size)).astype("f4"), (dy * np.float32(size)).astype("f4")
    got = cpu.rows_forward(x, gamma, beta, 0.0, weight=weight)
    want = reference.rows_forward(x.astype("f8"), gamma, beta, 0.0, weight=weight)
    assert_close(got[0][:2], want[0][:2], 2e-6 * (4 + np.abs(want[0][:2])))
    assert_close(got[2], want[2], 1e-5 * want[2])
    args = want[1:], gamma, beta
    dx, dgamma, _ = cpu.rows_backward(dy, x, *args[0], *args[1:], weight=weight)
    wanted, of_gamma, _ = reference.rows_backward(dy.astype("f8"), x.astype("f8"), *args[0], *args[1:], weight=weight)
    assert_close(dx, wanted, 1e-5 * (1 + np.abs(wanted)))
    assert_close(dgamma, of_gamma, 1e-5 * size * 40)
