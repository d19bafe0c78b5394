"""How the transformer follows a stream: averages of batches, rows that weigh the same or fade, merging."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnorm import BatchNormTransformer
from bnorm.transformer import tables
from bnorm.transformer.clock import clock_of
from interrupts import moments

MODES = [{}, {"momentum": 0.3}, {"momentum": 1}, {"momentum": None}, {"halflife": 7.0}, {"halflife": 7.0, "ddof": 1}]


def table(n, features=3, seed=0, loc=3.0):
    return np.random.default_rng(seed).normal(loc, 2.0, (n, features))


def batches(x, sizes):
    return np.split(x, np.cumsum(sizes)[:-1])


def average(rows, momentum):
    """The exponential moving average that pandas calls adjust=True, ignore_na=False; NaN has no weight."""
    rows = np.asarray(rows)
    weight = (1 - momentum) ** np.arange(len(rows) - 1, -1, -1.0)[:, None] * ~np.isnan(rows)
    return (weight * np.nan_to_num(rows)).sum(axis=0) / weight.sum(axis=0)


def by_age(x, halflife, sample_weight=None, ddof=0):
    """Weighted mean and variance by brute force, in long double."""
    x = np.asarray(x, np.longdouble)
    fade = np.longdouble(0.5) ** (np.arange(len(x) - 1, -1, -1) / np.longdouble(halflife))
    here = ~np.isnan(x)
    w = (1 if sample_weight is None else np.asarray(sample_weight, np.longdouble)) * np.ones(len(x))
    w, square = here * (w * fade)[:, None], (here * (w * fade**2)[:, None]).sum(axis=0)
    total, x = w.sum(axis=0), np.nan_to_num(x)
    mean = (w * x).sum(axis=0) / total
    divisor = total - ddof * square / total
    divisor = np.where(divisor > 1e-3 * total, divisor, np.nan)  # near 0 it is all cancellation
    return mean, (w * (x - mean) ** 2).sum(axis=0) / divisor, total


@pytest.mark.parametrize("momentum", [0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("nan", [False, True])
def test_average_as_pandas(momentum, ddof, nan):
    pd = pytest.importorskip("pandas", reason="pandas' ewm is the oracle")
    x = table(600)
    parts = batches(x, [7, 50, 3, 40] * 6)
    if nan:
        for part in parts[1::3]:
            part[:, 1] = np.nan
        parts[0][:, 2] = np.nan
    t = BatchNormTransformer(momentum=momentum, ddof=ddof)
    means, variances = [], []
    for part in parts:
        t.partial_fit(part)
        empty = np.isnan(part).all(axis=0)
        kept = np.where(empty, 0, part)
        means.append(np.where(empty, np.nan, kept.mean(axis=0)))
        variances.append(np.where(empty, np.nan, kept.var(axis=0, ddof=ddof)))
        frame = pd.DataFrame(means).ewm(alpha=momentum, adjust=True, ignore_na=False).mean()
        np.testing.assert_allclose(t.mean_, frame.iloc[-1], rtol=1e-12)
        frame = pd.DataFrame(variances).ewm(alpha=momentum, adjust=True, ignore_na=False).mean()
        np.testing.assert_allclose(t.var_, frame.iloc[-1], rtol=1e-12)
    np.testing.assert_allclose(t.mean_, average(means, momentum), rtol=1e-12)  # the oracle of the tests below
    assert t.n_batches_seen_ == len(parts)


def test_after_a_fit_the_next_batch_weighs_momentum():
    x = table(100)
    t = BatchNormTransformer(momentum=0.2).fit(x[:60]).partial_fit(x[60:])
    for found, of in ((t.mean_, np.mean), (t.var_, np.var)):
        first, second = of(x[:60], axis=0), of(x[60:], axis=0)
        np.testing.assert_allclose(found, first + 0.2 * (second - first), rtol=1e-14)
    assert t.n_batches_seen_ == 2
    assert t.n_samples_seen_ == 100


def test_with_a_momentum_of_one_only_the_newest_batch_counts():
    x = table(100) * 1e-6
    alone = BatchNormTransformer().fit(x)
    t = BatchNormTransformer(momentum=1.0).fit(1e9 + table(60)).partial_fit(x)
    np.testing.assert_array_equal(t.mean_, alone.mean_)
    np.testing.assert_allclose(t.var_, alone.var_, rtol=1e-15)


def test_after_a_fit_a_new_feature_begins_fully():
    x = table(100)
    first, second = x[:60].copy(), x[60:]
    first[:, 1] = np.nan
    t = BatchNormTransformer(momentum=0.2).fit(first).partial_fit(second)
    np.testing.assert_allclose(t.mean_[1], second[:, 1].mean(), rtol=1e-14)
    t.partial_fit(x[:10])  # and goes on as a stream that began with it
    np.testing.assert_allclose(t.mean_[1], average([[second[:, 1].mean()], [x[:10, 1].mean()]], 0.2), rtol=1e-14)
    exactly = BatchNormTransformer().fit(np.zeros((100_000, 1))).partial_fit(np.full((5, 1), 50.0))
    assert exactly.mean_ == 5.0


@pytest.mark.parametrize("momentum", [0.5, 0.2, 1.0])
def test_an_average_ages_in_a_batch_without_values(momentum):
    """Settled or not; a settled one is a stream that is infinitely long."""
    hole, one = [[np.nan, 0.0]], [[1.0, 1.0]]
    settled = BatchNormTransformer(momentum=momentum).fit([[0.0, 0.0], [0.0, 0.0]])
    stream = BatchNormTransformer(momentum=momentum)
    for _ in range(200):
        stream.partial_fit([[0.0, 0.0], [0.0, 0.0]])
    for rows in (hole * 2, hole * 2, one * 2, hole * 2, one * 2):
        settled.partial_fit(rows)
        stream.partial_fit(rows)
        np.testing.assert_allclose(settled.mean_, stream.mean_, rtol=1e-13)
    short = BatchNormTransformer(momentum=0.5).fit([[0.0, 0.0], [0.0, 0.0]]).partial_fit(hole * 2).partial_fit(one * 2)
    np.testing.assert_allclose(short.mean_, [2 / 3, 0.5], rtol=1e-15)


WEIGHTS = {
    "tiny": lambda w: w * 1e-200,
    "some subnormal": lambda w: np.where(np.arange(len(w)) % 2, 5e-324, w),
    "huge": lambda w: w * 1e300,
    "below 2^-300": lambda w: w * 1e-92,
    "mixed": lambda w: w * np.where(np.arange(len(w)) % 2, 1e-150, 1.0),
    "faint in the end": lambda w: w * np.where(np.arange(len(w)) < 25, 1.0, 1e-200),
}


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", WEIGHTS)
def test_half_lives_and_weights_of_any_size(name, ddof, monkeypatch):
    """The last feature has values where the weights are small only. Tables are longer than a piece."""
    monkeypatch.setattr(tables, "PIECE", 8 * 30)
    x, w = table(30), WEIGHTS[name](np.random.default_rng(3).random(30) + 0.1)
    x[:25, 2] = np.nan
    for halflife in (0.5, 4.0, 1e6):
        t = BatchNormTransformer(halflife=halflife, ddof=ddof).partial_fit(x, sample_weight=w)
        mean, var, _ = by_age(x, halflife, w, 0)
        np.testing.assert_allclose(t.mean_, mean.astype(float), rtol=1e-12)
        if name == "huge" or ddof == 0:  # below a sum of 1, ddof 1 leaves nothing to divide by
            np.testing.assert_allclose(t.var_, var.astype(float), rtol=1e-9)
        assert (t.var_ > 0).all()
        last = BatchNormTransformer(halflife=halflife, ddof=ddof).partial_fit(x[:, 2:], sample_weight=w)
        np.testing.assert_allclose(t.var_[2:], last.var_, rtol=1e-12)
        fitted = BatchNormTransformer(halflife=halflife, ddof=ddof).fit(x, sample_weight=w)
        np.testing.assert_array_equal(fitted.mean_, BatchNormTransformer(momentum=None).fit(x, sample_weight=w).mean_)


def test_constant_stream_is_exact_at_every_step():
    x = table(1)
    for parameters in MODES:
        t = BatchNormTransformer(**parameters)
        for n in (5, 3, 17, 2, 64):
            t.partial_fit(np.repeat(x, n, axis=0))
            np.testing.assert_array_equal(t.mean_, x[0])
            np.testing.assert_array_equal(t.var_, 0)


def test_average_of_weighted_batches():
    x, w = table(60), np.random.default_rng(1).random(60)
    t = BatchNormTransformer(momentum=0.3)
    means = []
    for part, weight in zip(batches(x, [20] * 3), batches(w, [20] * 3), strict=True):
        t.partial_fit(part, sample_weight=weight)
        means.append(np.average(part, axis=0, weights=weight))
    np.testing.assert_allclose(t.mean_, average(means, 0.3), rtol=1e-13)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    halflife=st.floats(0.3, 500),
    seed=st.integers(0, 99),
    nan=st.booleans(),
    weighted=st.booleans(),
    ddof=st.sampled_from([0, 1]),
)
def test_halflife_by_brute_force(sizes, halflife, seed, nan, weighted, ddof):
    x, rng = table(sum(sizes), seed=seed), np.random.default_rng(seed)
    if nan:
        x[rng.random(x.shape) < 0.3] = np.nan
    w = rng.uniform(0.5, 2, len(x)) if weighted else np.ones(len(x))
    t = BatchNormTransformer(halflife=halflife, ddof=ddof)
    for part, weight in zip(batches(x, sizes), batches(w, sizes), strict=True):
        t.partial_fit(part, sample_weight=weight if weighted else None)
    seen = ~np.isnan(x).all(axis=0)
    mean, var, total = by_age(x[:, seen], halflife, w, ddof)
    np.testing.assert_allclose(t.mean_[seen], mean.astype(float), rtol=1e-12, atol=1e-12)
    ours = np.where(np.isnan(var), np.nan, t.var_[seen])
    np.testing.assert_allclose(ours, var.astype(float), rtol=1e-12, atol=1e-12 / (1e-3 if ddof else 1))
    statistics = t.layer_._running  # its weights are relative to the row `last` of each feature
    weight = statistics.weight * 0.5 ** ((statistics.rows - statistics.last) / halflife)
    np.testing.assert_allclose(weight[seen], total.astype(float), rtol=1e-12)
    counts = (~np.isnan(x) * w[:, None]).sum(axis=0)
    np.testing.assert_allclose(np.broadcast_to(t.n_samples_seen_, counts.shape), counts, rtol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("ddof", [0, 1])
def test_halflife_in_pieces(order, dtype, nan, ddof, monkeypatch):
    """A batch that is longer than a piece, in one call and in several."""
    monkeypatch.setattr(tables, "PIECE", 64 * 3 * np.dtype(dtype).itemsize)
    x = np.asarray(table(2000), dtype, order=order)[::2]  # rows apart are copied, a piece at a time
    if nan:
        x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
    mean, var, _ = by_age(x, 50.0, ddof=ddof)
    t = BatchNormTransformer(halflife=50.0, ddof=ddof).partial_fit(x)
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(t.mean_, mean.astype(float), rtol=tolerance)
    np.testing.assert_allclose(t.var_, var.astype(float), rtol=tolerance)
    np.testing.assert_array_equal(np.broadcast_to(t.n_samples_seen_, 3), (~np.isnan(x)).sum(axis=0))
    u = BatchNormTransformer(halflife=50.0, ddof=ddof).partial_fit(x[:130]).partial_fit(x[130:])
    np.testing.assert_allclose(u.var_, t.var_, rtol=tolerance)


def test_an_unbiased_variance_of_single_rows_takes_no_calls_for_each_feature():
    counts = []
    for x in (table(1, 2), table(1, 200)):
        t = BatchNormTransformer(halflife=5.0, ddof=1).partial_fit(x)
        counts.append(moments(partial(t.partial_fit, x)))
    assert counts[0] == counts[1]


def test_weights_of_rows_are_kept_for_a_batch_as_long_and_no_other():
    x = table(2000)
    kept = clock_of(50.0).weights(0, 2000, x)
    assert clock_of(50.0).weights(5, 2005, x) is kept
    assert not kept.flags.writeable
    for halflife, n in ((51.0, 2000), (50.0, 1999), (50.0, 2000)):
        wanted = 0.5 ** (np.arange(n - 1, -1, -1) / halflife)
        np.testing.assert_allclose(clock_of(halflife).weights(0, n, x), wanted, rtol=1e-14)


def test_halflife_remembers_a_feature_that_was_seen_once_long_ago():
    x = table(3000)
    x[1:, 1] = np.nan
    t = BatchNormTransformer(halflife=1.0).partial_fit(x)
    u = BatchNormTransformer(halflife=1.0)
    for part in batches(x, [1, 999, 2000]):
        u.partial_fit(part)
    assert t.mean_[1] == u.mean_[1] == x[0, 1]
    assert t.n_samples_seen_.tolist() == [3000, 1, 3000]
    t.partial_fit(np.full((1, 3), 5.0))
    assert t.mean_[1] == 5


def test_a_value_that_was_missing_long_ago_is_not_counted():
    """Its weight is lost in the rounding of the sum, and it is missed all the same."""
    x = table(300)
    x[0, 0] = np.nan
    t = BatchNormTransformer(halflife=1.0, ddof=1).partial_fit(x)
    assert t.n_samples_seen_.tolist() == [299, 300, 300]


def test_rows_age_whatever_their_weight():
    x = table(30)
    x[10:20, 0] = np.nan
    w = np.r_[np.ones(20), np.zeros(9), 1]
    mean, var, _ = by_age(x, 4.0, w)
    t = BatchNormTransformer(halflife=4.0)
    for part, weight in zip(batches(x, [15, 7, 8]), batches(w, [15, 7, 8]), strict=True):
        if weight.any():
            t.partial_fit(part, sample_weight=weight)
        else:
            with pytest.raises(ValueError, match="non-zero"):
                t.partial_fit(part, sample_weight=weight)
            t.partial_fit(np.full_like(part, np.nan))  # rows that say nothing
    np.testing.assert_allclose([t.mean_, t.var_], np.array([mean, var], float), rtol=1e-12)


def test_a_batch_of_several_steps_counts_once():
    """One row has all the weight, so that no sums of the others are left for an unbiased variance."""
    t, x = BatchNormTransformer(halflife=3e-4, ddof=1), np.arange(10.0).reshape(5, 2)
    t.partial_fit(x).partial_fit(x)
    assert (t.n_batches_seen_, t.n_samples_seen_) == (2, 10)


@pytest.mark.parametrize("ddof", [0, 1])
def test_fit_weighs_rows_alike_and_later_rows_age_them(ddof):
    x = table(50)
    t = BatchNormTransformer(halflife=8.0, ddof=ddof).fit(x[:30]).partial_fit(x[30:])
    fade = np.r_[np.full(30, 0.5 ** (20 / 8)), 0.5 ** (np.arange(19, -1, -1) / 8)]
    mean = np.average(x, axis=0, weights=fade)
    np.testing.assert_allclose(t.mean_, mean, rtol=1e-13)
    var = np.average((x - mean) ** 2, axis=0, weights=fade) / (1 - ddof * (fade**2).sum() / fade.sum() ** 2)
    np.testing.assert_allclose(t.var_, var, rtol=1e-12)


@pytest.mark.parametrize("parameters", [{"momentum": None}, {"halflife": 5.0}])
def test_batches_of_one_row(parameters, recwarn):
    x = table(40)
    t = BatchNormTransformer(**parameters)
    for row in x:
        t.partial_fit(row[None])
    whole = BatchNormTransformer(**parameters).partial_fit(x)
    np.testing.assert_allclose([t.mean_, t.var_], [whole.mean_, whole.var_], rtol=1e-12)
    assert not recwarn


def test_batches_of_one_row_in_an_average_are_told_of_once():
    x = table(5)
    t = BatchNormTransformer()
    with pytest.warns(UserWarning, match="momentum=None.*halflife") as told:
        for row in x:
            t.partial_fit(row[None])
    assert len(told) == 1
    assert told[0].filename == __file__
    np.testing.assert_array_equal(t.var_, 0)
    np.testing.assert_allclose(t.mean_, average(x, 0.1), rtol=1e-13)
    BatchNormTransformer().fit(x[:1])  # no stream, no word


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_merge_is_fit_of_the_whole(ddof, nan, weighted):
    x = table(500, loc=1e3)
    if nan:
        x[np.random.default_rng(1).random(x.shape) < 0.3] = np.nan
        x[:20, 1] = np.nan
    w = np.random.default_rng(2).uniform(0.5, 2, 500) if weighted else None
    sizes = [20, 1, 279, 200]
    parts = [
        BatchNormTransformer(momentum=None, ddof=ddof).fit(part, sample_weight=weight)
        for part, weight in zip(batches(x, sizes), batches(w, sizes) if weighted else [None] * 4, strict=True)
    ]
    kept = parts[1].mean_.copy()
    merged = parts[0].merge(parts[1]).merge(parts[3].merge(parts[2]))
    whole = BatchNormTransformer(momentum=None, ddof=ddof).fit(x, sample_weight=w)
    np.testing.assert_allclose(merged.mean_, whole.mean_, rtol=1e-12)
    np.testing.assert_allclose(merged.var_, whole.var_, rtol=1e-12)
    np.testing.assert_allclose(merged.n_samples_seen_, whole.n_samples_seen_, rtol=1e-14)
    assert merged.n_batches_seen_ == 4
    np.testing.assert_array_equal(parts[1].mean_, kept)
    merged.partial_fit(x)
    twice = BatchNormTransformer(momentum=None, ddof=ddof).partial_fit(x, sample_weight=w).partial_fit(x)
    np.testing.assert_allclose(merged.var_, twice.var_, rtol=1e-12)


def test_a_merge_with_a_weighted_stream_counts_weights():
    t, u = (BatchNormTransformer(momentum=None).fit(table(3), sample_weight=w) for w in (None, np.full(3, 0.5)))
    assert t.merge(u).n_samples_seen_ == 4.5


@pytest.mark.parametrize("ddof", [0, 1])
def test_merge_of_streams_that_end_together(ddof):
    x, y, later = table(95), table(70, seed=5), table(5, seed=6)
    t = BatchNormTransformer(halflife=9.0, ddof=ddof).partial_fit(x)
    t.merge(BatchNormTransformer(halflife=9.0, ddof=ddof).partial_fit(y)).partial_fit(later)
    fade = np.r_[0.5 ** (np.arange(99, -1, -1) / 9), 0.5 ** (np.arange(74, 4, -1) / 9)]
    both = np.r_[x, later, y]
    mean = np.average(both, axis=0, weights=fade)
    np.testing.assert_allclose(t.mean_, mean, rtol=1e-12)
    divisor = fade.sum() - ddof * (fade**2).sum() / fade.sum()
    np.testing.assert_allclose(t.var_, (fade[:, None] * (both - mean) ** 2).sum(axis=0) / divisor, rtol=1e-12)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("parameters", [{"momentum": None}, {"halflife": "1s"}, {"halflife": "1s", "ddof": 1}])
def test_values_far_away_that_weigh_nothing_any_more_cost_no_digits(parameters, merged):
    x, age = np.r_[1e6 + table(60), 1e-3 * table(60)], np.r_[:60, :60][::-1] + np.repeat([60.0, 0.0], 60)
    by_time = "halflife" in parameters
    fade = np.longdouble(0.5) ** age
    far, near = (
        {"X": x[half]} | ({"times": -age[half]} if by_time else {"sample_weight": fade[half].astype(float)})
        for half in (slice(60), slice(60, None))
    )
    t = BatchNormTransformer(**parameters).partial_fit(**far)
    if merged:
        t.merge(BatchNormTransformer(**parameters).partial_fit(**near))
    else:
        t.partial_fit(**near)
    mean = (fade[:, None] * x).sum(axis=0) / fade.sum()
    std = np.sqrt((fade[:, None] * (x - mean) ** 2).sum(axis=0) / fade.sum())
    assert (np.abs(t.mean_ - mean) <= 1e-12 * std).all()


def test_merge_keeps_gamma_and_the_arrays():
    t, u = (BatchNormTransformer(momentum=None).fit(table(10, seed=seed)) for seed in (1, 2))
    t.gamma_ = [1, 2, 3]
    u.gamma_ = [4, 5, 6]
    mean = t.running_mean_
    t.merge(u)
    assert t.gamma_.tolist() == [1, 2, 3]
    assert t.layer_.running_mean is mean
    doubled = t.var_.copy()
    t.merge(t)
    np.testing.assert_allclose(t.var_, doubled, rtol=1e-13)
    assert t.n_samples_seen_ == 40
