"""How a training batch, or several that are pooled, move the running statistics of a layer."""

import pickle

import numpy as np
import pytest

from bnorm.kernels import BACKENDS
from bnorm.running import Statistics

KERNELS = BACKENDS[np.ndarray]


def table(n, seed=0):
    return np.random.default_rng(seed).normal(5.0, 2.0, (n, 2))


def running(momentum=0.1, ddof=0, dtype="float64", **options):
    return Statistics(np.zeros(2, dtype), np.ones(2, dtype), momentum, ddof, **options)


def uncounted(**options):
    """As from a saved state without counts."""
    s = running(None, **options)
    for to, values in s.counted_as(3, None):
        to[...] = values
    return s


def with_nan():
    x = table(10, 1)
    x[3, 1] = np.nan
    return x


def step(statistics, x):
    """A training batch, as a layer takes it in."""
    y, stats, count, left = KERNELS.forward(x, None, None, 1e-5, running=statistics.rule)
    return KERNELS.settle(statistics.rule, stats, count, y.size, left)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("momentum", [0.2, None])
@pytest.mark.parametrize("replace", [False, True])
def test_commit_is_one_batch_of_all(momentum, dtype, replace):
    """What micro-batches pooled, against the same rows in one batch; alone in the world where they replace."""
    x, first = table(40), table(7, 3)
    s, one = running(momentum, 1, dtype), running(None if replace else momentum, 1, dtype)
    step(s, first)
    if not replace:
        step(one, first)
    pool = s.pool()
    for part in np.split(x, [10, 12]):
        step(pool, part)
    s.commit(pool, replace)
    step(one, x)
    tolerance = 1e-13 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(s.mean, one.mean, rtol=tolerance)
    np.testing.assert_allclose(s.var, one.var, rtol=tolerance)
    assert s.mean.dtype == np.dtype(dtype)
    assert (s.batches, s.skipped) == (2, 0)
    if momentum is None:
        np.testing.assert_array_equal(s.seen, one.seen)


def test_commit_of_nothing_changes_nothing():
    s = running()
    s.commit(s.pool(), True)
    assert (s.batches, s.mean.tolist(), s.var.tolist()) == (0, [0, 0], [1, 1])


def test_replacing_leaves_a_channel_without_finite_values_as_it_was():
    """Its count too: ten values do not replace ten thousand."""
    s = running(None)
    step(s, table(10_000))
    mean = s.mean.copy()
    pool = s.pool()
    step(pool, with_nan())
    s.commit(pool, True)
    assert s.seen.tolist() == [10, 10_000] and s.mean[1] == mean[1]
    step(s, table(10, 2))
    np.testing.assert_allclose(s.mean[1], (10_000 * mean[1] + 10 * table(10, 2)[:, 1].mean()) / 10_010, rtol=1e-13)


def test_a_state_without_counts_forgets_nothing_in_a_channel_with_nan():
    s = uncounted()
    s.mean[...], s.var[...] = 5, 2
    pool = s.pool()
    step(pool, with_nan()), step(pool, table(10, 2))
    s.commit(pool, False)
    np.testing.assert_allclose(s.seen, [80, 70])
    np.testing.assert_allclose(s.mean[1], (60 * 5 + 10 * table(10, 2)[:, 1].mean()) / 70, rtol=1e-13)


def test_a_commit_that_raises_changes_nothing():
    s = uncounted(nonfinite="raise")
    pool = s.pool()
    pool.nonfinite = "propagate"
    step(pool, with_nan())
    kept = pickle.dumps(s)
    with pytest.raises(FloatingPointError):
        s.commit(pool, False)
    assert pickle.dumps(s) == kept


def test_counts_are_kept_while_another_momentum_is_set():
    s = running(None)
    step(s, table(50))
    s.momentum = 0.1
    s.momentum = None
    step(s, table(50, 1))
    assert s.seen.tolist() == [100, 100]
    s.momentum = 0.1
    step(s, table(50, 2))  # which an average does not count
    s.momentum = None
    step(s, table(20, 3))
    assert s.seen.tolist() == [140, 140]


def test_reset():
    s = running()
    step(s, table(4)), step(s, table(8, 1))
    s.reset()
    assert (s.mean.tolist(), s.var.tolist(), s.seen.tolist()) == ([0, 0], [1, 1], [0, 0])
    assert (s.batches, s.skipped, s.rows) == (0, 0, 0)
