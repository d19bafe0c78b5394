"""The oracle itself: by hand, against central differences in float64, and by what must hold of weights and NaN."""

import inspect
from fractions import Fraction

import numpy as np
import pytest

from bnorm.kernels import MEAN_SQUARE, VARIANCE, reference
from bnorm.kernels.activation import GELU, IDENTITY, RELU, SILU, leaky
from compare import assert_close, assert_gradient, assert_same
from drawing import together
from kernel_checks import on_off
from rules import forward, rule

every_activation = together(act=[IDENTITY, RELU, leaky(0.2), SILU, GELU])


def example(shape, seed=0):
    """x and dy in general position: no output of the ReLU within reach of a step of the differences."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * 2 + 3, rng.standard_normal(shape)


def parameters(n, affine):
    rng = np.random.default_rng(1)
    return (rng.uniform(0.5, 2, n), rng.standard_normal(n)) if affine else (None, None)


def weights(shape, seed=2):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 2, shape) * (rng.random(shape) > 0.3)


# By hand ------------------------------------------------------------------------------------------------------------


def test_moments_by_hand():
    x = np.array([[[1, 2], [5, 5]], [[3, 6], [5, np.nan]]])  # channels: 1 2 3 6 and 5 5 5 NaN
    assert_same(reference.moments(x, skipna=True), [[4, 3], [3, 5], [14, 0], [0, 0]])
    weight = np.array([[1.0, 2.0], [1.0, 0.0]])  # 1 2 2 3 and 5 5 5 5
    assert_same(reference.moments(x, weight), [[4, 4], [2, 5], [2, 0], [0, 0]])


@pytest.mark.skipif(np.finfo(np.longdouble).eps == np.finfo(np.float64).eps, reason="long double is only a double here")
def test_mean_and_low_together_are_the_mean_to_twice_the_precision():
    values = [1e8 + 0.1, 1e8 + 0.7, -3.3]
    mean, low = (Fraction(float(v[0])) for v in np.array(reference.moments(np.array(values)[:, None]))[[1, 3]])
    exact = sum(map(Fraction, values)) / 3
    assert abs(mean + low - exact) <= abs(exact) * Fraction(2.0**-62)
    assert abs(low) <= Fraction(float(np.spacing(float(mean)))) / 2


def test_forward_and_backward_by_hand():
    x = np.array([[1.0], [3.0]])
    y, stats, count, skipped = reference.forward(x, np.array([2.0]), np.array([10.0]), eps=0.0)
    assert_same(y, [[8], [12]])
    assert_same(stats[:, 0], [2, 1, 1, 2, 10])
    assert (count, skipped) == (2.0, 0)
    dx, dgamma, dbeta = reference.backward(np.array([[1.0], [0.0]]), x, stats, count)
    assert_same(dx, [[0], [0]])  # two values are always at -1 and +1: nothing can move them
    assert_same(dgamma, [-1])
    assert_same(dbeta, [1])


def test_rows_by_hand():
    x = np.array([3.0, -4.0]).reshape(1, 1, 2, 1)
    y, mean, rstd = reference.rows_forward(x, np.array([1.0, 2.0]), None, 0.0, rule=MEAN_SQUARE)
    assert_same(mean, [0])
    assert_close(rstd, [np.sqrt(2) / 5], 1e-16)
    assert_close(y.ravel(), np.array([3, -8]) * np.sqrt(2) / 5, 1e-15)
    y, mean, rstd = reference.rows_forward(x, None, np.array([1.0, 1.0]), 0.0)
    assert_close(y.ravel(), [2, 0], 1e-15)
    assert_same([mean[0], rstd[0]], [-0.5, 1 / 3.5])


@on_off("start", "ddof")
def test_pooled_running_statistics_are_those_of_all_values(start, ddof):
    rng = np.random.default_rng(3)
    batches = [rng.standard_normal((n, 4)) + n for n in (3, 7, 2, 20)]
    mean, var, seen = np.zeros(4), np.ones(4), np.zeros(4)
    for x in batches[start:]:
        forward(reference, x, None, None, 0.0, running=rule(mean, var, 0.1, seen, ddof))
    rows = np.concatenate(batches[start:])
    assert_same(seen, np.full(4, len(rows)))
    assert_close(mean, rows.mean(0), 1e-13)
    assert_close(var, rows.var(0, ddof=ddof), 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_moving_average_after_1_2_and_100_steps(dtype):
    x = np.array([[1.0], [3.0]])  # mean 2, variance 1, and 2 with ddof=1
    mean, var = np.zeros(1, dtype), np.ones(1, dtype)
    for step in range(1, 101):
        forward(reference, x, None, None, 0.0, running=rule(mean, var, 0.25, ddof=1))
        if step in (1, 2, 100):
            assert_close(mean, [2 - 2 * 0.75**step], 4 * np.finfo(dtype).eps, step=step)
            assert_close(var, [2 - 0.75**step], 4 * np.finfo(dtype).eps, step=step)
    assert mean.dtype == var.dtype == dtype


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@on_off("pooled")
def test_a_channel_that_is_not_finite(bad, pooled):
    x = np.array([[1.0, 1.0], [3.0, bad]])

    def moved(nonfinite):
        running = np.zeros(2), np.ones(2)
        moving = rule(*running, 0.5, np.full(2, 2.0) if pooled else None, 0, nonfinite)
        return running, forward(reference, x, None, None, 0.0, running=moving)

    running, (y, _, _, skipped) = moved("skip")
    assert skipped == 1
    assert_same(y[:, 0], [-1, 1])
    assert np.isnan(y[1, 1])
    assert_same([running[0][0], running[1][0]], [1, 2 if pooled else 1])
    assert_same([running[0][1], running[1][1]], [0, 1])
    running, (_, _, _, skipped) = moved("propagate")
    assert skipped == 0 and not np.isfinite(running[0][1]) and not np.isfinite(running[1][1])

    untouched = np.zeros(2), np.ones(2)
    moving = rule(*untouched, 0.5, np.full(2, 2.0) if pooled else None, 0, "raise")
    out = np.full_like(x, 7)
    with pytest.raises(FloatingPointError, match="1 of 2"):
        forward(reference, x, None, None, 0.0, running=moving, out=out)
    assert_same(untouched[0], [0, 0])
    assert_same(untouched[1], [1, 1])
    assert_same(out, np.full_like(x, 7))


# Gradients ----------------------------------------------------------------------------------------------------------


@every_activation
@on_off("affine", "weighted")
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (1, 2, 7), (7, 1, 1)])
def test_gradients_of_batch_norm(shape, affine, weighted, act):
    x, dy = example(shape)
    gamma, beta = parameters(shape[1], affine)
    weight = weights((shape[0], int(np.prod(shape[2:])))) if weighted else None

    def loss(x=x, gamma=gamma, beta=beta):
        return float((dy * reference.forward(x, gamma, beta, 1e-3, weight=weight, act=act)[0]).sum())

    _, stats, count, _ = reference.forward(x, gamma, beta, 1e-3, weight=weight, act=act)
    dx, dgamma, dbeta = reference.backward(dy, x, stats, count, weight, act)
    assert_gradient(dx, loss, x, shape=shape, affine=affine, weighted=weighted, act=act)
    if affine:
        assert_gradient(dgamma, lambda gamma: loss(gamma=gamma), gamma, shape=shape, weighted=weighted, act=act)
        assert_gradient(dbeta, lambda beta: loss(beta=beta), beta, shape=shape, weighted=weighted, act=act)


@every_activation
@on_off("affine")
def test_gradients_of_inference(affine, act):
    x, dy = example((4, 3, 5))
    gamma, beta = parameters(3, affine)
    mean, var = np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 4.0])

    def loss(x=x, gamma=gamma, beta=beta):
        return float((dy * reference.forward(x, gamma, beta, 1e-3, mean, var, act=act)[0]).sum())

    _, stats, count, skipped = reference.forward(x, gamma, beta, 1e-3, mean, var, act=act)
    assert (count, skipped) == (20.0, 0)
    dx, dgamma, dbeta = reference.backward(dy, x, stats, count, act=act, frozen=True)
    assert_gradient(dx, loss, x, affine=affine, act=act)
    if affine:
        assert_gradient(dgamma, lambda gamma: loss(gamma=gamma), gamma, act=act)
        assert_gradient(dbeta, lambda beta: loss(beta=beta), beta, act=act)


ROWS = {"layer": (5, 1, 7, 1), "group": (3, 2, 3, 4), "instance": (3, 5, 1, 6)}


@together(rule=[VARIANCE, MEAN_SQUARE])
@every_activation
@on_off("affine")
@pytest.mark.parametrize("shape", list(ROWS.values()), ids=list(ROWS))
def test_gradients_of_rows(shape, affine, rule, act):
    x, dy = example(shape)
    gamma, beta = parameters(shape[1] * shape[2], affine)

    def loss(x=x, gamma=gamma, beta=beta):
        return float((dy * reference.rows_forward(x, gamma, beta, 1e-3, rule, act)[0]).sum())

    _, mean, rstd = reference.rows_forward(x, gamma, beta, 1e-3, rule, act)
    dx, dgamma, dbeta = reference.rows_backward(dy, x, mean, rstd, gamma, beta, rule, act)
    assert_gradient(dx, loss, x, shape=shape, affine=affine, rule=rule, act=act)
    if affine:
        assert_gradient(dgamma, lambda gamma: loss(gamma=gamma), gamma, shape=shape, rule=rule, act=act)
        assert_gradient(dbeta, lambda beta: loss(beta=beta), beta, shape=shape, rule=rule, act=act)


def test_without_params_there_are_no_sums():
    x, dy = example((4, 3))
    _, stats, count, _ = reference.forward(x, None, None, 1e-3)
    dx, dgamma, dbeta = reference.backward(dy, x, stats, count, params=False)
    assert dgamma is None and dbeta is None
    assert_same(dx, reference.backward(dy, x, stats, count)[0])


# Relations ----------------------------------------------------------------------------------------------------------


def test_rows_of_one_group_are_batch_norm_of_the_transpose():
    x, dy = example((6, 9))
    y, stats, count, _ = reference.forward(x, None, None, 1e-3)
    rows = np.ascontiguousarray(x.T).reshape(9, 1, 6, 1)
    z, mean, rstd = reference.rows_forward(rows, None, None, 1e-3)
    assert_close(z.reshape(9, 6).T, y, 1e-14)
    assert_close([mean, rstd], stats[[0, 2]], 1e-15)
    dx, _, _ = reference.backward(dy, x, stats, count)
    dz, _, _ = reference.rows_backward(np.ascontiguousarray(dy.T).reshape(rows.shape), rows, mean, rstd, None, None)
    assert_close(dz.reshape(9, 6).T, dx, 1e-14)


def test_integer_weights_are_repeated_rows():
    x, dy = example((7, 3))
    times = np.array([1, 0, 3, 2, 0, 1, 1])
    weight = times[:, None].astype(float)
    repeated = np.repeat(x, times, axis=0)
    for got, want in zip(reference.moments(x, weight), reference.moments(repeated), strict=True):
        assert_close(got, want, 1e-13)
    gamma, beta = parameters(3, True)
    y, stats, count, _ = reference.forward(x, gamma, beta, 1e-3, weight=weight)
    want, want_stats, want_count, _ = reference.forward(repeated, gamma, beta, 1e-3)
    assert_close(np.repeat(y, times, axis=0), want, 1e-13)
    assert_close(stats, want_stats, 1e-14)
    assert count == want_count == 8.0
    dy[times == 0] = 0  # a row that is not there has no gradient
    shared = np.repeat(dy / np.maximum(times, 1)[:, None], times, axis=0)
    dx, dgamma, dbeta = reference.backward(dy, x, stats, count, weight)
    dx_repeated, *want_sums = reference.backward(shared, repeated, want_stats, want_count)
    assert_close(dx[times > 0], np.add.reduceat(dx_repeated, [0, 1, 4, 6, 7]), 1e-14)
    assert_close([dgamma, dbeta], want_sums, 1e-13)


def test_skipna_is_dropping_and_zero_weight_is_not_looking():
    x, _ = example((50, 3))
    missing = np.random.default_rng(5).random((50, 3)) < 0.3
    missing[:, 2] = True
    holes = np.where(missing, np.nan, x)
    moments = np.array(reference.moments(holes, skipna=True))
    for c in range(2):
        dropped = np.array(reference.moments(x[~missing[:, c], c][:, None]))[:, 0]
        assert_close(moments[:, c], dropped, [0, 1e-15, 1e-12, 1e-16], channel=c)
    assert_same(moments[:, 2], np.zeros(4))
    rows = missing[:, 0]
    weighted = reference.moments(np.where(missing[:, :1], np.nan, x), np.where(missing[:, :1], 0.0, 1.0))
    for got, want, allowed in zip(weighted, reference.moments(x[~rows]), [0, 1e-15, 1e-12, 1e-16], strict=True):
        assert_close(got, want, allowed)


def test_constant_channels_are_exactly_beta_and_have_scale_1_without_eps():
    x = np.full((1000, 3), [100.0, 14.62, 1e10])
    beta = np.array([1.5, -2.0, 0.1])
    for eps in (0.0, 1e-5):
        y, stats, _, _ = reference.forward(x, np.ones(3), beta, eps)
        assert_same(y, np.broadcast_to(beta, x.shape), eps=eps)
        assert_same(stats[:2], [x[0], np.zeros(3)], eps=eps)
    assert_same(reference.forward(x, np.ones(3), beta, 0.0)[1][2], np.ones(3))


def test_nothing_to_count():
    x, dy = example((4, 3))
    beta, nothing = np.array([1.0, 2.0, 3.0]), np.zeros((4, 1))
    running = np.full(3, 5.0), np.full(3, 6.0)
    moving = rule(*running, 0.1, nonfinite="raise")
    y, stats, count, skipped = forward(reference, x, None, beta, 0.0, weight=nothing, running=moving)
    assert (count, skipped) == (0.0, 0)
    assert_same(y, np.broadcast_to(beta, x.shape))
    assert_same(stats, [np.zeros(3)] * 4 + [beta])
    assert_same(running, [np.full(3, 5.0), np.full(3, 6.0)])
    dx, dgamma, dbeta = reference.backward(dy, x, stats, count, nothing)
    assert_same(dx, np.zeros_like(x))
    assert_same(dgamma, np.zeros(3))
    assert_close(dbeta, dy.sum(0), 1e-15)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_have_the_type_of_x_and_statistics_are_float64(dtype):
    x, dy = (a.astype(dtype) for a in example((4, 3)))
    y, stats, count, _ = reference.forward(x, None, None, 1e-3)
    dx, dgamma, dbeta = reference.backward(dy, x, stats, count)
    z, mean, rstd = reference.rows_forward(x.reshape(4, 1, 3, 1), None, None, 1e-3)
    assert y.dtype == dx.dtype == z.dtype == dtype
    assert {a.dtype for a in (stats, dgamma, dbeta, mean, rstd, *reference.moments(x))} == {np.dtype("float64")}
    assert reference.normalize(x, np.ones((5, 3)), out=x) is x


def test_the_oracle_of_float32_is_that_of_float64():
    """The same float32 numbers as float64 give, from the float64 kernels, what float32 is compared with."""
    x = np.random.default_rng(2).standard_normal((1000, 7)).astype(np.float32) + np.float32(50)
    want = reference.forward(x.astype(np.float64), None, None, 1e-5)
    got = reference.forward(x, None, None, 1e-5)
    assert_close(got[1], want[1], 1e-13 * np.abs(want[1]))
    assert_close(got[0], want[0], 1e-6)


def test_every_function_is_documented():
    for name, function in inspect.getmembers(reference, inspect.isfunction):
        assert name.startswith("_") or function.__doc__, name
