"""How statistics move: `Statistics` against sums that are written out."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnorm import Moments
from bnorm.functional import moments
from bnorm.kernels import BACKENDS, reference
from bnorm.running import Statistics, Step, TooLarge

KERNELS = BACKENDS[np.ndarray]


def begun(momentum=None, ddof=0, halflife=None):
    """As a transformer begins: from nothing."""
    nothing = np.full((2, 2), np.nan)
    return Statistics(*nothing, momentum, ddof, from_data=True, halflife=halflife)


def table(n, seed=0, features=2):
    return np.random.default_rng(seed).normal(5.0, 2.0, (n, features))


def take(s, x, weight=None):
    """One more batch."""
    s.move(moments(x, weight=weight, skipna=True)._parts, rows=len(x))


def take_fading(s, x, halflife, ddof):
    """One more batch whose rows fade, by weights that are written out."""
    w = 0.5 ** (np.arange(len(x) - 1, -1, -1.0) / halflife)
    seen = ~np.isnan(x)
    m = moments(x, weight=w, skipna=True)
    pairs = (seen * w[:, None]).sum(0) ** 2 - (seen * (w * w)[:, None]).sum(0)
    s.move(m._parts, seen.sum(0).astype(float), pairs, np.full(x.shape[1], float(s.rows + len(x))), rows=len(x))


def weighted(x, w, ddof=0, square=None):
    mean = np.average(x, axis=0, weights=w)
    square = w.sum() if square is None else square
    return mean, (w[:, None] * (x - mean) ** 2).sum(axis=0) / (w.sum() - ddof * square / w.sum())


def weighted_exactly(values, w, ddof):
    """The same for fractions."""
    total = sum(w)
    mean = sum(a * v for a, v in zip(w, values, strict=True)) / total
    m2 = sum(a * (v - mean) ** 2 for a, v in zip(w, values, strict=True))
    return mean, m2 / (total - ddof * sum(a * a for a in w) / total)


@pytest.mark.parametrize("ddof", [0, 1])
def test_pool_of_batches_is_the_whole(ddof):
    x, s = table(50), begun(ddof=ddof)
    for part in np.split(x, [1, 2, 20]):
        take(s, part)
    np.testing.assert_allclose(s.mean, x.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(s.var, x.var(axis=0, ddof=ddof), rtol=1e-13)
    assert s.seen.tolist() == [50, 50] and (s.batches, s.rows) == (4, 50)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("halflife", [0.7, 5.0, 1e6])
def test_values_that_fade(ddof, halflife):
    x, s = table(30), begun(ddof=ddof, halflife=halflife)
    for part in np.split(x, [7, 8, 20]):
        take_fading(s, part, halflife, ddof)
    f = 0.5 ** (np.arange(29, -1, -1.0) / halflife)
    mean, var = weighted(x, f, ddof, (f**2).sum())
    np.testing.assert_allclose(s.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(s.var, var, rtol=1e-12)
    np.testing.assert_allclose(s.weight, f.sum(), rtol=1e-13)
    np.testing.assert_allclose(s.pairs, f.sum() ** 2 - (f**2).sum(), rtol=1e-12)


def test_a_feature_without_values_stays_and_grows_old():
    s = begun(halflife=4.0)
    x = np.array([[1.0, 3.0], [3.0, 7.0]])
    take_fading(s, x, 4.0, 0)
    before = s.mean[1], s.var[1]
    take_fading(s, np.array([[5.0, np.nan]] * 8), 4.0, 0)
    assert (s.mean[1], s.var[1]) == before
    assert s.rows - s.last[1] == 8
    take_fading(s, np.array([[np.nan, 11.0]]), 4.0, 0)
    old = 0.5 ** (9 / 4) * np.array([0.5**0.25, 1])
    assert s.mean[1] == pytest.approx((old @ [3, 7] + 11) / (old.sum() + 1), rel=1e-15)
    new = begun(halflife=4.0)
    take_fading(new, np.array([[np.nan, 11.0]]), 4.0, 0)
    assert np.isnan([new.mean[0], new.var[0]]).all()
    assert (new.mean[1], new.var[1]) == (11, 0)


@pytest.mark.parametrize("gap", [53, 700, 2000, 10**12])
@pytest.mark.parametrize("ddof", [0, 1])
def test_no_gap_is_too_long(gap, ddof):
    """Two values, a gap of so many half-lives, and two more: what is exact in rational numbers."""
    s = begun(ddof=ddof, halflife=1.0)
    first, second = [Fraction(3), Fraction(5)], [Fraction(10), Fraction(11)]
    take_fading(s, np.array([[3.0], [5.0]]) * np.ones(2), 1.0, ddof)
    s.counters[2] += gap  # rows without a value
    take_fading(s, np.array([[10.0], [11.0]]) * np.ones(2), 1.0, ddof)
    old = Fraction(1, 2 ** (gap + 2)) if gap < 3000 else Fraction(0)
    mean, var = weighted_exactly(first + second, [old / 2, old, Fraction(1, 2), Fraction(1)], ddof)
    np.testing.assert_allclose(s.mean, float(mean), rtol=1e-15)
    np.testing.assert_allclose(s.var, float(var), rtol=1e-13)


def test_an_unbiased_variance_survives_a_gap():
    """One value after 0 and 1, which weigh 2^-53 of it: pairs of values count, not a difference that cancels."""
    s = begun(ddof=1, halflife=1.0)
    take_fading(s, np.array([[0.0], [1.0]]) * np.ones(2), 1.0, 1)
    s.counters[2] += 53
    take_fading(s, np.array([[0.5]]) * np.ones(2), 1.0, 1)
    values, w = [Fraction(0), Fraction(1), Fraction(1, 2)], [Fraction(1, 2**55), Fraction(1, 2**54), Fraction(1)]
    _, var = weighted_exactly(values, w, 1)
    np.testing.assert_allclose(s.var, float(var), rtol=1e-12)


def test_pool_keeps_what_the_mean_rounds_off():
    """A thousand batches, a million standard deviations from zero: the variance has twelve digits."""
    x = 1e6 + np.random.default_rng(0).normal(size=(3000, 2))
    s = begun()
    for part in np.split(x, 1000):
        take(s, part)
    exact = x.astype(np.longdouble)
    var = ((exact - exact.mean(axis=0)) ** 2).mean(axis=0)
    np.testing.assert_allclose(s.var, var.astype(float), rtol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_average_by_its_weights(ddof):
    m, parts = 0.3, [table(n, n) for n in (5, 1, 30, 2)]
    s = begun(m, ddof)
    for k, part in enumerate(parts, 1):
        take(s, part)
        w = 0.7 ** np.arange(k - 1, -1, -1)
        means = [p.mean(axis=0) for p in parts[:k]]
        variances = [p.var(axis=0, ddof=ddof if len(p) > 1 else 0) for p in parts[:k]]
        np.testing.assert_allclose(s.mean, np.average(means, axis=0, weights=w), rtol=1e-14)
        np.testing.assert_allclose(s.var, np.average(variances, axis=0, weights=w), rtol=1e-13)
        np.testing.assert_allclose(s.weight, w.sum(), rtol=1e-15)
    assert s.seen.tolist() == [38, 38]


def test_average_of_all_weight_on_the_newest():
    s = begun(1.0)
    for n in (4, 9):
        part = table(n, n)
        take(s, part)
        np.testing.assert_array_equal(s.mean, moments(part).mean)
        np.testing.assert_array_equal(s.var, moments(part).var())


def test_average_leaves_out_what_was_not_seen():
    s = begun(0.5)
    s.move(Moments([2, 0], [1.0, 0.0], [2.0, 0.0])._parts)
    s.move(Moments([0, 2], [0.0, 4.0], [0.0, 2.0])._parts)
    assert (s.mean.tolist(), s.var.tolist(), s.weight.tolist()) == ([1, 4], [1, 1], [0.5, 1])
    s.move(Moments([1, 0], [7.0, 0.0], [0.0, 0.0])._parts)
    assert s.mean[0] == pytest.approx((0.25 * 1 + 7) / 1.25, rel=1e-15)


def test_a_settled_average_gives_each_batch_momentum():
    s = begun(0.1)
    s.begin(moments(np.zeros((1000, 2)))._parts, 1000)
    s.move(moments(np.full((5, 2), 50.0))._parts)
    assert s.mean.tolist() == [5, 5]
    s.momentum = 0.5
    s.move(moments(np.full((5, 2), 15.0))._parts)
    assert s.mean.tolist() == [10, 10]


@settings(deadline=None, max_examples=100)
@given(
    first=st.integers(1, 12),
    second=st.integers(1, 12),
    gap=st.integers(0, 4000),
    halflife=st.floats(0.05, 30),
    ddof=st.sampled_from([0, 1]),
)
def test_merging_streams_that_end_together_is_symmetric(first, second, gap, halflife, ddof):
    """Whichever stream is the older one, however long it has been silent."""
    merged = []
    for swapped in (False, True):
        a, b = begun(ddof=ddof, halflife=halflife), begun(ddof=ddof, halflife=halflife)
        take_fading(a, table(first), halflife, ddof)
        a.counters[2] += gap
        take_fading(b, table(second, 1), halflife, ddof)
        (b if swapped else a).merge(a if swapped else b)
        merged.append((b if swapped else a).mean.tolist() + (b if swapped else a).var.tolist())
    np.testing.assert_allclose(*merged, rtol=1e-12)
    ages = np.r_[np.arange(first - 1, -1, -1.0) + gap, np.arange(second - 1, -1, -1.0)]
    w = 0.5 ** (ages / halflife)
    mean, _ = weighted(np.r_[table(first), table(second, 1)], w)
    np.testing.assert_allclose(merged[0][:2], mean, rtol=1e-12)


def test_moments_of_statistics_give_them_again():
    for ddof in (0, 1):
        s, t = begun(ddof=ddof), begun(ddof=ddof)
        take(s, table(9)), take(s, table(4, 1))
        t.merge(s)
        for name, a in s.arrays().items():
            np.testing.assert_allclose(t.arrays()[name], a, rtol=1e-15)


def test_the_arrays_are_moved_in_place():
    mean, var = np.full(2, np.nan), np.full(2, np.nan)
    s = Statistics(mean, var, from_data=True)
    take(s, table(9))
    assert s.mean is mean
    np.testing.assert_array_equal(mean, moments(table(9)).mean)
    mean[:] = 0  # as seen at the next batch
    s.move(Moments([9, 9], [2.0, 2.0], [0.0, 0.0])._parts)
    np.testing.assert_allclose(mean, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_batch_that_is_not_finite_moves_nothing(momentum, bad):
    s = begun(momentum)
    take(s, table(9))
    kept = pickle.dumps(s)
    with np.errstate(all="ignore"):
        parts = np.stack([np.full(2, 4.0), np.array([1.0, bad]), np.array([1.0, bad * bad]), np.zeros(2)])
    with pytest.raises(FloatingPointError, match="1 of 2 channels"):
        s.move(parts)
    assert pickle.dumps(s) == kept


@pytest.mark.parametrize("ddof", [0, 1])
def test_a_commit_to_values_that_fade_is_rows_in_every_order(ddof):
    """Each of them weighs what the rows of the pool weigh on average, and so do squares of weights."""
    x, y, z, halflife, s = table(20), table(9, seed=1), table(4, seed=2), 6.0, begun(ddof=ddof, halflife=6.0)
    take_fading(s, x, halflife, ddof)
    pool = s.pool()
    for part in np.split(y, [2]):
        take(pool, part)
    s.commit(pool, replace=False)
    take_fading(s, z, halflife, ddof)
    f = 0.5 ** (np.arange(32, -1, -1.0) / halflife)
    square = (f**2).sum()
    f[20:29] = f[20:29].mean()
    mean, var = weighted(np.concatenate([x, y, z]), f, ddof, square)
    np.testing.assert_allclose(s.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(s.var, var, rtol=1e-12)
    assert (s.rows, s.batches) == (33, 3)


@pytest.mark.parametrize("halflife", [None, 3.0])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_the_kernels_agree_with_the_reference(momentum, halflife):
    """`settle`, in every mode, for statistics that begin with their data and for those of a layer."""
    for from_data in (False, True) if halflife is None else (True,):
        for ddof in (0, 1):
            ours, theirs = (
                Statistics(*np.full((2, 3), 0.5), momentum, ddof, from_data=from_data, halflife=halflife)
                for _ in range(2)
            )
            for n in (5, 40, 2):
                x = table(n, n, 3)
                for kernels, s in ((KERNELS, ours), (reference, theirs)):
                    y, stats, count, left = kernels.forward(x, None, None, 1e-5, running=s.rule)
                    kernels.settle(s.rule, stats, count, y.size, left)
            assert ours.counters.tolist() == theirs.counters.tolist()
            for name, a in theirs.arrays().items():
                np.testing.assert_allclose(ours.arrays()[name], a, rtol=1e-12, atol=1e-13, err_msg=name)


def test_arrays_that_come_back_are_writeable_and_their_own():
    s = begun(halflife=3.0)
    take_fading(s, table(9), 3.0, 0)
    buffers = []
    data = pickle.dumps(s, protocol=5, buffer_callback=buffers.append)
    t = pickle.loads(data, buffers=[bytes(b) for b in buffers])  # memory that must not be written to
    for name, a in t.arrays().items():
        assert a.flags.carray and a.flags.owndata, name
    take_fading(t, table(9, 1), 3.0, 0)
    with pytest.raises(ValueError, match="writeable"):
        s.mean.flags.writeable = False
        take_fading(s, table(9, 1), 3.0, 0)


def test_a_later_step_that_cannot_be_taken_leaves_all_as_it_was():
    s = begun(halflife=4.0)
    take_fading(s, table(5), 4.0, 0)
    before = {name: a.copy() for name, a in s.arrays().items()}
    steps = []
    for x in (table(3, seed=1), np.full((2, 2), 1e308) * [[1], [-1]]):
        w = 0.5 ** (np.arange(len(x) - 1, -1, -1.0) / 4)
        pairs = np.full(2, w.sum() ** 2 - (w**2).sum())
        steps.append(Step(moments(x, weight=w)._parts, len(x), np.full(2, float(len(x))), pairs, np.zeros(2)))
    with pytest.raises(TooLarge):
        s.learn(steps)
    for name, a in s.arrays().items():
        np.testing.assert_array_equal(a, before[name], name)
    assert (s.rows, s.batches) == (5, 1)
    s.learn(steps[:1])
    assert (s.rows, s.batches) == (8, 2)
