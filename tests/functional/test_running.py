"""How statistics move: Stream and Running against sums that are written out."""

import numpy as np
import pytest

from bnorm import Moments
from bnorm.functional import moments
from bnorm.kernels import BACKENDS
from bnorm.running import Running, Stream

KERNELS = BACKENDS[np.ndarray]


def stream(features=2):
    return Stream(np.full(features, np.nan), np.full(features, np.nan))


def table(n, seed=0, features=2):
    return np.random.default_rng(seed).normal(5.0, 2.0, (n, features))


def weighted(x, w, ddof=0, square=None):
    mean = np.average(x, axis=0, weights=w)
    square = w.sum() if square is None else square
    return mean, (w[:, None] * (x - mean) ** 2).sum(axis=0) / (w.sum() - ddof * square / w.sum())


@pytest.mark.parametrize("ddof", [0, 1])
def test_pool_of_batches_is_the_whole(ddof):
    x, s = table(50), stream()
    for part in np.split(x, [1, 2, 20]):
        s.pool(moments(part), ddof)
    np.testing.assert_allclose(s.mean, x.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(s.var, x.var(axis=0, ddof=ddof), rtol=1e-13)
    assert s.weight.tolist() == s.square.tolist() == [50, 50]


@pytest.mark.parametrize("ddof", [0, 1])
def test_pool_that_fades(ddof):
    """Values before weigh 0.25 of what they did, values of the batch from 1 down to 1/2."""
    x, y, s = table(20), table(10, 1), stream()
    f = np.linspace(0.5, 1, 10)
    s.pool(moments(x), ddof)
    s.pool(moments(y, weight=f), ddof, 0.25, np.full(2, (f**2).sum()))
    w = np.r_[np.full(20, 0.25), f]
    mean, var = weighted(np.r_[x, y], w, ddof, (w**2).sum())
    np.testing.assert_allclose(s.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(s.var, var, rtol=1e-13)
    np.testing.assert_allclose([s.weight[0], s.square[0]], [w.sum(), (w**2).sum()], rtol=1e-14)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.5], [0.25, 0.25]])
def test_too_few_values_for_an_unbiased_variance_keep_their_spread(ddof, weights):
    """A weight of 1 or less in all: what it fades to divides by no rest of rounding, and loses no m2."""
    w = np.array(weights)
    x, y = table(len(w)), table(4, 1)
    for fade in (0.9, 0.3, 0.7, 1 / 3):
        s = stream()
        s.pool(moments(x, weight=w), ddof)
        mean, var = weighted(x, w)
        np.testing.assert_allclose([s.mean, s.var], [mean, var], rtol=1e-13)
        s.pool(moments(y), ddof, fade)
        all_w = np.r_[w * fade, np.ones(4)]
        mean, var = weighted(np.r_[x, y], all_w, ddof, (w * fade**2).sum() + 4)
        np.testing.assert_allclose(s.mean, mean, rtol=1e-13)
        np.testing.assert_allclose(s.var, var, rtol=1e-13)


def test_a_feature_without_values_stays_and_fades():
    s = stream()
    s.pool(Moments([2, 2], [1.0, 5.0], [2.0, 8.0]), 0)
    s.pool(Moments([3, 0], [1.0, 7.0], [3.0, 0.0]), 0, 0.5)
    assert (s.mean[1], s.var[1], s.weight[1], s.square[1]) == (5, 4, 1, 0.5)
    s.pool(Moments([0, 1], [0.0, 11.0], [0.0, 0.0]), 0, 0.5)
    assert s.mean[1] == (0.5 * 5 + 11) / 1.5
    new = stream()
    new.pool(Moments([0, 1], [0.0, 11.0], [0.0, 0.0]), 0)
    assert np.isnan([new.mean[0], new.var[0]]).all()
    assert (new.mean[1], new.var[1]) == (11, 0)


def test_pool_keeps_what_the_mean_rounds_off():
    """A thousand batches, a million standard deviations from zero: the variance has twelve digits."""
    x = 1e6 + np.random.default_rng(0).normal(size=(3000, 2))
    s = stream()
    for part in np.split(x, 1000):
        s.pool(moments(part), 0)
    exact = x.astype(np.longdouble)
    var = ((exact - exact.mean(axis=0)) ** 2).mean(axis=0)
    np.testing.assert_allclose(s.var, var.astype(float), rtol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_average_by_its_weights(ddof):
    s, parts, m = stream(), [table(n, n) for n in (5, 1, 30, 2)], 0.3
    for k, part in enumerate(parts, 1):
        s.average(moments(part), m, ddof)
        w = 0.7 ** np.arange(k - 1, -1, -1)
        means = [p.mean(axis=0) for p in parts[:k]]
        variances = [p.var(axis=0, ddof=ddof if len(p) > 1 else 0) for p in parts[:k]]
        np.testing.assert_allclose(s.mean, np.average(means, axis=0, weights=w), rtol=1e-14)
        np.testing.assert_allclose(s.var, np.average(variances, axis=0, weights=w), rtol=1e-13)
        np.testing.assert_allclose(s.weight, w.sum(), rtol=1e-15)


def test_average_of_all_weight_on_the_newest():
    s = stream()
    for n in (4, 9):
        part = table(n, n)
        s.average(moments(part), 1.0, 0)
        np.testing.assert_array_equal(s.mean, moments(part).mean)
        np.testing.assert_array_equal(s.var, moments(part).var())


def test_average_leaves_out_what_was_not_seen():
    s = stream()
    s.average(Moments([2, 0], [1.0, 0.0], [2.0, 0.0]), 0.5, 0)
    s.average(Moments([0, 2], [0.0, 4.0], [0.0, 2.0]), 0.5, 0)
    assert (s.mean.tolist(), s.var.tolist(), s.weight.tolist()) == ([1, 4], [1, 1], [0.5, 1])
    s.average(Moments([1, 0], [7.0, 0.0], [0.0, 0.0]), 0.5, 0)
    assert s.mean[0] == pytest.approx((0.25 * 1 + 7) / 1.25, rel=1e-15)


def test_moments_of_a_stream_give_it_again():
    for ddof in (0, 1):
        s, t = stream(), stream()
        s.pool(moments(table(9)), ddof)
        s.pool(moments(table(4, 1)), ddof, 0.6)
        t.pool(s.moments(ddof), ddof, 1.0, s.square)
        for name in Stream.__slots__:
            np.testing.assert_allclose(getattr(t, name), getattr(s, name), rtol=1e-15)


def test_stream_moves_the_arrays_of_its_owner():
    mean, var = np.full(2, np.nan), np.full(2, np.nan)
    s = Stream(mean, var)
    s.pool(moments(table(9)), 0)
    assert s.mean is mean
    np.testing.assert_array_equal(mean, moments(table(9)).mean)
    mean[:] = 0  # as seen at the next batch
    s.pool(Moments([9, 9], [2.0, 2.0], [0.0, 0.0]), 0)
    np.testing.assert_allclose(mean, 1)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("momentum", [0.2, None])
@pytest.mark.parametrize("replace", [False, True])
def test_commit_is_one_batch_of_all(momentum, dtype, replace):
    """What micro-batches pooled, against the same rows in one batch; alone in the world where they replace."""
    x, first = table(40), table(7, 3)
    running = Running(np.zeros(2, dtype), np.ones(2, dtype), momentum, 1)
    one = Running(np.zeros(2, dtype), np.ones(2, dtype), None if replace else momentum, 1)
    move(running, first)
    if not replace:
        move(one, first)
    pool = running.pool()
    for part in np.split(x, [10, 12]):
        move(pool, part)
    running.commit(pool, KERNELS, replace)
    move(one, x)
    tolerance = 1e-13 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(running.mean, one.mean, rtol=tolerance)
    np.testing.assert_allclose(running.var, one.var, rtol=tolerance)
    assert running.mean.dtype == np.dtype(dtype)
    assert (running.batches, running.skipped) == (2, 0)
    if momentum is None:
        np.testing.assert_array_equal(running.seen, one.seen)


def move(running, x):
    m = moments(x)
    KERNELS.move(running.target(), m.count, m.mean, m.var())
    running.batches += 1


def test_commit_of_nothing_changes_nothing():
    running = Running(np.zeros(2), np.ones(2), 0.1)
    running.commit(running.pool(), KERNELS, True)
    assert (running.batches, running.mean.tolist(), running.var.tolist()) == (0, [0, 0], [1, 1])


def test_recount_and_reset():
    running = Running(np.zeros(2), np.ones(2))
    move(running, table(4))
    move(running, table(8, 1))
    running.recounts = True
    running.recount(5.0)
    assert running.seen.tolist() == [10, 10]
    assert not running.recounts
    running.reset()
    assert (running.mean.tolist(), running.var.tolist(), running.seen.tolist()) == ([0, 0], [1, 1], [0, 0])
    assert (running.batches, running.skipped) == (0, 0)
