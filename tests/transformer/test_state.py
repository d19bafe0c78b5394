"""One state, however it is reached: through the transformer or its layer, over gaps, masks, cuts and merges."""

import copy
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import ParameterGrid

from bnorm import BatchNormTransformer

MODES = [{}, {"momentum": None}, {"halflife": 7.0}, {"halflife": 7.0, "momentum": None, "ddof": 1}]


def table(n=60, seed=0, features=3):
    return np.random.default_rng(seed).normal(3.0, 2.0, (n, features))


# Transformer and layer -----------------------------------------------------------------------------------------------

FEATURES = st.lists(
    st.sampled_from(["plain", "constant", "nearly", "tiny", "huge", "zero", "holes", "never"]), min_size=1, max_size=6
)


def column(kind, n, rng):
    base = rng.normal(size=n)
    with np.errstate(all="ignore"):
        return {
            "plain": base,
            "constant": np.full(n, rng.normal() * 10.0 ** rng.integers(-8, 8)),
            "nearly": 0.1 + np.where(base > 0, 2.0**-56, 0.0),
            "tiny": base * 1e-150,
            "huge": base * 1e150,
            "zero": np.zeros(n),
            "holes": np.where(base > 0.3, np.nan, base),
            "never": np.full(n, np.nan),
        }[kind]


@settings(deadline=None, max_examples=80)
@given(
    kinds=FEATURES,
    eps=st.sampled_from([0.0, 1e-300, 1e-12, 1e-5, 1.0]),
    parameters=st.sampled_from(MODES),
    seed=st.integers(0, 99),
    affine=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_the_layer_gives_the_same_bits(kinds, eps, parameters, seed, affine, dtype):
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        x = np.stack([column(kind, 20, rng) for kind in kinds], axis=1).astype(dtype)
    x[np.isinf(x)] = 0
    t = BatchNormTransformer(eps=eps, affine=affine, **parameters).partial_fit(x[:12]).partial_fit(x[12:])
    if affine:
        t.gamma_, t.beta_ = rng.normal(size=(2, len(kinds)))
    y = t.transform(x)
    np.testing.assert_array_equal(t.layer_(x), y)
    np.testing.assert_array_equal(copy.deepcopy(t).layer_(x), y)


def test_rows_that_the_layer_pools_are_counted():
    t = BatchNormTransformer(momentum=None).fit(table(40))
    t.layer_.train()(table(20, 1))
    assert t.n_samples_seen_ == 60 and t.n_batches_seen_ == 2
    np.testing.assert_allclose(t.mean_, np.r_[table(40), table(20, 1)].mean(axis=0), rtol=1e-14)


def test_a_half_life_goes_on_in_the_layer():
    """A batch of the layer ages what came before by its rows, as one of the transformer does."""
    t, u = (BatchNormTransformer(halflife=5.0).fit(table(40)) for _ in range(2))
    t.layer_.train()(np.full((10, 3), 7.0))
    u.partial_fit(np.full((10, 3), 7.0))  # constant, so that the order of its rows does not matter
    np.testing.assert_allclose([t.mean_, t.var_], [u.mean_, u.var_], rtol=1e-12)
    assert t.n_samples_seen_ == u.n_samples_seen_ == 50


# Half-lives: no gap, cut or order matters ----------------------------------------------------------------------------


def exact(x, halflife, ddof=0):
    """Mean and variance by age in rational arithmetic, of the values that are not NaN; halflife is an integer."""
    values = [(len(x) - 1 - i, Fraction(float(v))) for i, v in enumerate(x) if not np.isnan(v)]
    ages = [divmod(age - values[-1][0], halflife) for age, _ in values]
    weights = [Fraction(1, 2**whole) * Fraction(2.0 ** (-rest / halflife)) for whole, rest in ages]
    total = sum(weights)
    mean = sum(w * v for w, (_, v) in zip(weights, values, strict=True)) / total
    m2 = sum(w * (v - mean) ** 2 for w, (_, v) in zip(weights, values, strict=True))
    left = total - ddof * sum(w * w for w in weights) / total
    return float(mean), float(m2 / left) if left else 0.0


@settings(deadline=None, max_examples=60)
@given(
    runs=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 3, 40, 2900])), min_size=1, max_size=4),
    halflife=st.sampled_from([1, 2, 4]),
    ddof=st.sampled_from([0, 1]),
    cuts=st.lists(st.integers(1, 3000), max_size=6),
    seed=st.integers(0, 99),
)
def test_half_lives_do_not_depend_on_gaps_and_cuts(runs, halflife, ddof, cuts, seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.r_[rng.normal(5, 2, n), np.full(gap, np.nan)] for n, gap in runs])[:, None]
    mean, var = exact(x[:, 0], halflife, ddof)
    for pieces in (
        [x],
        np.split(x, sorted({c for c in cuts if c < len(x)})),
        [x[i : i + 100] for i in range(0, len(x), 100)],
    ):
        t = BatchNormTransformer(halflife=halflife, ddof=ddof)
        for piece in pieces:
            t.partial_fit(piece)
        np.testing.assert_allclose(t.mean_, mean, rtol=1e-12)
        np.testing.assert_allclose(t.var_, var, rtol=1e-11, atol=1e-24)
        assert t.n_samples_seen_ == (~np.isnan(x)).sum()


@pytest.mark.parametrize("then", [2, 40])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("timed", [False, True])
def test_a_changed_half_life_is_that_of_later_rows(timed, ddof, then):
    """What came before has faded by the old half-life until then, in gaps too: here the last values of a feature."""
    x = table(60)
    x[20:40, 1], x[30:50, 2] = np.nan, np.nan
    begins = np.r_[np.ones(40), np.zeros(20)]  # the rows with the old half-life, 4 rows
    older = 2.0 ** -(np.cumsum(np.r_[np.where(begins, 1 / 4, 1 / then)[1:], 0][::-1])[::-1])
    parameters = [{"halflife": f"{h}s" if timed else h, "ddof": ddof} for h in (4, then)]

    def learn(t, rows):
        return t.partial_fit(x[rows], times=np.arange(60.0)[rows]) if timed else t.partial_fit(x[rows])

    t = BatchNormTransformer(**parameters[0])
    for rows in np.split(np.arange(40), [20, 30]):
        learn(t, rows)
    t.set_params(**parameters[1])
    merged = copy.deepcopy(t).merge(copy.deepcopy(t))
    with pytest.raises(ValueError, match="infinity"):
        t.partial_fit(np.full((1, 3), np.inf), times=[40.0] if timed else None)
    learn(t, slice(40, 60))
    for j in range(3):
        known = ~np.isnan(x[:, j])
        w, v = older[known], x[known, j]
        mean = np.average(v, weights=w)
        var = (w * (v - mean) ** 2).sum() / (w.sum() - ddof * (w * w).sum() / w.sum())
        np.testing.assert_allclose([t.mean_[j], t.var_[j]], [mean, var], rtol=1e-12)
    learn(merged, slice(40, 60))
    twice = np.r_[older[:40], older]
    for j in range(3):
        both = np.r_[x[:40, j], x[:, j]]
        known = ~np.isnan(both)
        np.testing.assert_allclose(merged.mean_[j], np.average(both[known], weights=twice[known]), rtol=1e-12)


def test_missing_values_after_values_are_one_thing_in_one_call_or_many():
    x = np.r_[np.arange(100.0), np.full(2900, np.nan)][:, None]
    whole = BatchNormTransformer(halflife=4).partial_fit(x)
    parts = BatchNormTransformer(halflife=4)
    for part in np.split(x, range(100, 3000, 100)):
        parts.partial_fit(part)
    np.testing.assert_allclose(whole.mean_, 93.7, atol=0.05)
    np.testing.assert_allclose([parts.mean_, parts.var_], [whole.mean_, whole.var_], rtol=1e-12)


@pytest.mark.parametrize("halflife", [5e-324, 1e-308, 1e-100, 1e-3, 0.02])
def test_the_shortest_half_lives_keep_the_newest_row(halflife):
    x = table(50)
    x[-1, 1] = np.nan
    t = BatchNormTransformer(halflife=halflife).partial_fit(x[:30]).partial_fit(x[30:])
    np.testing.assert_allclose(t.mean_, [x[-1, 0], x[-2, 1], x[-1, 2]], rtol=1e-12)
    assert (t.var_ < 1e-12).all()
    assert t.n_samples_seen_.tolist() == [50, 49, 50]


def test_streams_whose_weights_would_underflow_merge():
    """One has been silent for two thousand half-lives: the other one's values are all that counts, either way."""
    silent = BatchNormTransformer(halflife=1).partial_fit([[5.0], [6.0]]).partial_fit(np.full((2000, 1), np.nan))
    fresh = BatchNormTransformer(halflife=1).partial_fit([[3.0], [3.25]])
    for left, right in ((silent, fresh), (fresh, silent)):
        merged = copy.deepcopy(left).merge(right)
        np.testing.assert_allclose([merged.mean_, merged.var_], [fresh.mean_, fresh.var_], rtol=1e-15)
    both = copy.deepcopy(silent).merge(copy.deepcopy(silent))
    np.testing.assert_allclose([both.mean_, both.var_], [silent.mean_, silent.var_], rtol=1e-15)


def test_an_unbiased_variance_survives_a_gap():
    """One more value, 53 half-lives later: the variance of three values of which one outweighs the others by far."""
    x = np.r_[0.0, 1.0, np.full(52, np.nan), 0.5][:, None]
    t = BatchNormTransformer(halflife=1, ddof=1).partial_fit(x[:2]).partial_fit(x[2:])
    np.testing.assert_allclose(t.var_, exact(x[:, 0], 1, 1)[1], rtol=1e-10)
    np.testing.assert_allclose(BatchNormTransformer(halflife=1, ddof=1).partial_fit(x).var_, t.var_, rtol=1e-10)


@given(hnp.arrays(np.float64, (12, 2), elements=st.floats(-1e6, 1e6)))
@settings(deadline=None, max_examples=40)
def test_a_row_ages_whatever_its_weight(x):
    w = np.ones(12)
    w[5:8] = 0
    t = BatchNormTransformer(halflife=2).partial_fit(x, sample_weight=w)
    u = BatchNormTransformer(halflife=2).partial_fit(np.where(w[:, None] > 0, x, np.nan))
    np.testing.assert_allclose(t.mean_, u.mean_, rtol=1e-12, atol=1e-9)


# Masks, parameters, errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", MODES, ids=str)
def test_what_is_masked_is_missing(parameters):
    data = np.array([[1, 2], [3, -999], [5, 6], [4, 4]])
    for masked in (np.ma.masked_equal(data, -999), np.ma.masked_equal(data.astype("float32"), -999)):
        missing = np.where(data == -999, np.nan, data).astype("float32" if masked.dtype == "float32" else "float64")
        for method in ("fit", "partial_fit"):
            t, u = (getattr(BatchNormTransformer(**parameters), method)(a) for a in (masked, missing))
            np.testing.assert_array_equal([t.mean_, t.var_], [u.mean_, u.var_])
            np.testing.assert_array_equal(t.transform(masked), t.transform(missing))
            np.testing.assert_array_equal(t.inverse_transform(masked), t.inverse_transform(missing))
    assert (
        BatchNormTransformer(momentum=None).fit(np.ma.masked_equal([[1.0, 2], [3, -999], [5, 6]], -999)).mean_[1] == 4
    )


def test_a_grid_may_have_both_ways_to_forget():
    for parameters in ParameterGrid({"momentum": [None], "halflife": [None, 5.0, 50.0]}):
        t = BatchNormTransformer(**parameters).fit(table()).partial_fit(table(10, 1))
        assert np.isfinite(t.mean_).all()
    a, b = (BatchNormTransformer(halflife=5.0, momentum=m).fit(table()) for m in (None, 0.1))
    np.testing.assert_array_equal(a.merge(b).mean_, b.mean_)


@pytest.mark.parametrize("name", ["gamma_", "beta_", "mean_", "running_mean_", "n_samples_seen_", "layer_"])
def test_what_is_there_after_fit_says_so(name):
    t = BatchNormTransformer()
    assert not hasattr(t, name)
    with pytest.raises(NotFittedError, match=name):
        getattr(t, name)
    with pytest.raises(AttributeError, match="no attribute 'typo'"):
        t.fit(table()).typo  # noqa: B018


@pytest.mark.parametrize("affine", [True, False])
def test_the_layer_is_made_when_it_is_asked_for(affine):
    """It takes as long as the rest of a small fit; who learns and transforms does not need it."""
    x = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
    t = BatchNormTransformer(eps=1e-3, ddof=1, affine=affine).fit(x).partial_fit(x + 1)
    before, back = t.transform(x), t.inverse_transform(x)
    assert t._state._layer is None
    with ThreadPoolExecutor(4) as pool:
        layers = set(pool.map(lambda _: id(t.layer_), range(20)))
    assert layers == {id(t.layer_)}
    layer = t.layer_
    assert (layer.eps, layer.momentum, layer.ddof, layer.affine, layer.training) == (1e-3, 0.1, 1, affine, False)
    assert layer.running_mean is t._state.mean and layer.running_var is t._state.var
    for y, again in ((before, t.transform(x)), (before, layer(x)), (back, t.inverse_transform(x))):
        assert y.tobytes() == again.tobytes()
    layer.eps = 0.5
    assert t.transform(x).tobytes() == layer(x).tobytes() != before.tobytes()
