"""The transformer's statistics and maps, against StandardScaler and exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from bnorm import BatchNormTransformer
from bnorm.transformer import tables
from compare import assert_close

FLOATS = ["float64", "float32", "float16"]
EPS = np.finfo(np.float64).eps


def table(n=200, features=5, dtype="float64", seed=0, loc=3.0, scale=2.0):
    return np.random.default_rng(seed).normal(loc, scale, (n, features)).astype(dtype)


def with_nan(x):
    x = x.copy()
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    return x


def scaler(**parameters):
    """What StandardScaler does, under our name."""
    return BatchNormTransformer(momentum=None, eps=0, **parameters)


def agree(ours, theirs, x, rtol=1e-12):
    """Everything both define; y within some roundings, of float64 near the mean too, and the statistics' own error."""
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=rtol, atol=1e-300)
    np.testing.assert_allclose(ours.var_, theirs.var_, rtol=rtol, atol=1e-300)
    np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=rtol)
    np.testing.assert_allclose(ours.n_samples_seen_, theirs.n_samples_seen_, rtol=1e-14)
    assert np.shape(ours.n_samples_seen_) == np.shape(theirs.n_samples_seen_)
    assert ours.n_features_in_ == theirs.n_features_in_
    y, expected = ours.transform(x), theirs.transform(x.astype("float64"))
    assert y.dtype == x.dtype
    unit = np.finfo(x.dtype).eps + EPS * np.nanmax(np.abs(x), axis=0) / theirs.scale_
    assert_close(y, expected, 8 * unit * (1 + np.abs(np.nan_to_num(expected))) + 4 * rtol)


@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_fit_as_standard_scaler(order, dtype, nan, weighted):
    x = table(dtype=dtype)
    x = with_nan(x) if nan else x
    if order == "F":
        x = np.asfortranarray(x)
    elif order == "strided":
        x = np.repeat(x, 2, axis=0)[::2]
    elif order == "reversed":
        x = x[::-1, ::-1]
    weight = np.random.default_rng(2).integers(0, 4, len(x)).astype(float) if weighted else None
    theirs = StandardScaler().fit(x.astype("float64"), sample_weight=weight)
    ours = scaler().fit(x, sample_weight=weight)
    agree(ours, theirs, x, rtol=1e-12 if dtype == "float64" else 1e-6)


@pytest.mark.parametrize("sizes", [[200], [1] * 200, [1, 199], [2, 50, 100, 48], [50] * 4])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_any_partition_as_standard_scaler(sizes, nan, weighted):
    x = with_nan(table()) if nan else table()
    weight = np.random.default_rng(2).random(len(x)) if weighted else None
    cuts = np.cumsum(sizes)[:-1]
    parts = zip(np.split(x, cuts), np.split(weight, cuts) if weighted else [None] * len(sizes), strict=True)
    ours, theirs = scaler(), StandardScaler()
    for part, w in parts:
        ours.partial_fit(part, sample_weight=w)
        if not nan:
            theirs.partial_fit(part, sample_weight=w)
    if nan:  # StandardScaler never recovers from a batch without a value of some feature
        theirs.fit(x, sample_weight=weight)
    agree(ours, theirs, x)
    agree(scaler().fit(x, sample_weight=weight), theirs, x)
    assert ours.n_batches_seen_ == len(sizes)


@pytest.mark.parametrize("n", [10, 100, 10_000])
@pytest.mark.parametrize("average", [1e-10, 1.0, 1e10])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_near_constant_features(n, average, dtype):
    """Deviations of every size, from those that are rounding only on."""
    scales = 10.0 ** np.arange(-30, 20)
    x = np.empty((n, len(scales)), dtype)
    x[: n // 2], x[n // 2 :] = average + scales, average - scales
    ours, theirs = scaler().fit(x), StandardScaler().fit(x)
    constant = np.sqrt(ours.var_) <= 4 * EPS * np.abs(ours.mean_)
    assert constant.any()
    np.testing.assert_array_equal(ours.scale_[constant], 1)
    np.testing.assert_array_equal(ours.scale_[~constant], np.sqrt(ours.var_[~constant]))
    sure = np.abs(x[0] - x[-1]).astype("float64") > 1e-6 * average  # above what two ways to sum may differ by
    np.testing.assert_allclose(ours.scale_[sure], theirs.scale_[sure], rtol=1e-6)
    same = x[0] == x[-1]
    np.testing.assert_array_equal(ours.var_[same], 0)
    np.testing.assert_array_equal(ours.transform(x)[:, same], 0)


def test_the_default_is_standard_scalers_job():
    """A small feature comes out like any other, and a constant one has scale 1, unless eps says otherwise."""
    x = np.ones((5, 1))
    assert BatchNormTransformer().fit(x).scale_ == 1
    assert BatchNormTransformer(eps=1e-5).fit(x).scale_ == np.sqrt(1e-5)
    assert BatchNormTransformer(eps=1e-5).fit(x).transform(x).max() == 0
    small = np.random.default_rng(0).normal(3.0, 1e-3, (1000, 1))
    np.testing.assert_allclose(BatchNormTransformer().fit_transform(small).std(), 1, rtol=1e-12)
    constant = BatchNormTransformer().fit(np.full((9, 1), 3.0))
    assert constant.transform([[4.0]]) == 1


@pytest.mark.parametrize("value", [np.log(1e-5), 1e-100, 1e100, 0.1, 1e20])
def test_constant_features_become_zero(value):
    x = np.full((1000, 2), value)
    np.testing.assert_array_equal(scaler().fit_transform(x), 0)


def test_ddof():
    x = with_nan(table())
    np.testing.assert_allclose(scaler(ddof=1).fit(x).var_, np.nanvar(x, axis=0, ddof=1), rtol=1e-13)
    np.testing.assert_allclose(scaler(ddof=1).fit(x[:1]).var_[~np.isnan(x[0])], 0)
    repeated = scaler(ddof=1).fit(np.repeat(x, 3, axis=0))
    np.testing.assert_allclose(scaler(ddof=1).fit(x, sample_weight=np.full(len(x), 3)).var_, repeated.var_, rtol=1e-12)


@pytest.mark.parametrize("parameters", [{}, {"momentum": None}, {"halflife": 3.0}, {"affine": False}])
def test_fit_is_exact_and_forgets(parameters):
    x, other = table(loc=1e4), table(50, 3, seed=9)
    t = BatchNormTransformer(**parameters).fit(other).partial_fit(other).fit(x)
    fresh = BatchNormTransformer(**parameters).fit(x)
    for name in ("mean_", "var_", "scale_"):
        np.testing.assert_array_equal(getattr(t, name), getattr(fresh, name))
    np.testing.assert_allclose(t.mean_, x.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(t.var_, x.var(axis=0), rtol=1e-11)
    assert (t.n_samples_seen_, t.n_batches_seen_, t.n_features_in_) == (200, 1, 5)
    fitted = BatchNormTransformer(**parameters).fit_transform(x)
    np.testing.assert_array_equal(fitted, t.transform(x))


def test_fit_forgets_what_was_learned():
    x = table()
    t = BatchNormTransformer().fit(x)
    t.gamma_, t.beta_ = np.arange(5.0), np.ones(5)
    t.backward(x, x)
    t.fit(x)
    np.testing.assert_array_equal([t.gamma_, t.beta_], [np.ones(5), np.zeros(5)])
    assert not hasattr(t, "gamma_grad_")


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype):
    x = table(dtype=dtype)
    t = BatchNormTransformer().fit(x)
    assert t.transform(x).dtype == t.inverse_transform(x).dtype == np.dtype(dtype)
    assert {t.mean_.dtype, t.var_.dtype, t.gamma_.dtype, t.running_mean_.dtype} == {np.dtype("float64")}


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", ">i4"])
def test_other_numbers_become_float64(dtype):
    x = np.arange(12).reshape(4, 3).astype(dtype)
    t = scaler().fit(x)
    np.testing.assert_allclose(t.transform(x), StandardScaler().fit_transform(x.astype("float64")), rtol=1e-14)
    assert t.transform(x).dtype == t.inverse_transform(x).dtype == np.float64
    np.testing.assert_array_equal(t.transform(x.tolist()), t.transform(x))


@pytest.mark.parametrize("order", ["C", "F"])
def test_float32_far_from_zero(order):
    """A mean a million standard deviations away: the error of y is 2e-6 at most, of the inverse one rounding of x."""
    rng = np.random.default_rng(0)
    x = np.asarray(1e6 + 0.03 + rng.normal(size=(100_000, 4)), dtype="float32", order=order)
    t = scaler().fit(x)
    exact = x.astype("float64")
    mean = exact.mean(axis=0) + (exact - exact.mean(axis=0)).mean(axis=0)
    expected = (exact - mean) / np.sqrt(((exact - mean) ** 2).mean(axis=0))
    y = t.transform(x)
    assert np.abs(y - expected)[np.abs(expected) <= 8].max() <= 2e-6
    assert np.abs(t.inverse_transform(y).astype("float64") - exact).max() <= np.spacing(np.float32(1e6))


@pytest.mark.parametrize("upper", [1, 2, 3])
def test_float32_inverse_of_a_mean_that_float32_cannot_hold(upper):
    """x comes back exactly, though its mean lies between two numbers of float32, or half way."""
    x = np.array([[2.0**24]] + [[2.0**24 + 2]] * upper, "float32")
    t = scaler().fit(x)
    assert t.mean_ != t.mean_.astype("float32")
    np.testing.assert_array_equal(t.inverse_transform(t.transform(x)), x)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loc", [0.0, 1e3, 1e6])
def test_inverse_restores_to_rounding(dtype, loc):
    """y is off by some roundings of max(1, |y|), and one of |x| where float64 has no wider type for the mean."""
    x = with_nan(table(loc=loc, scale=1.0, dtype=dtype))
    t = BatchNormTransformer().fit(x)
    t.gamma_, t.beta_ = [1, -2, 0.5, 3, 1e-3], [0, 10, -5, 1, 2]
    y = t.transform(x)
    back = t.inverse_transform(y)
    assert back.dtype == x.dtype
    unit = np.finfo(dtype).eps
    bound = unit * (np.abs(x) + 8 * t.scale_ / np.abs(t.gamma_) * (np.abs(y) + np.abs(t.beta_)))
    keep = ~np.isnan(x)
    assert (np.abs(back - x)[keep] <= bound[keep]).all()
    np.testing.assert_array_equal(np.isnan(back), np.isnan(x))


def test_inverse_of_zero_gamma_is_the_mean():
    x = table()
    t = BatchNormTransformer().fit(x)
    t.gamma_ = [0.0, 1, 1, 1, 1]
    np.testing.assert_allclose(t.inverse_transform(t.transform(x))[:, 0], t.mean_[0], rtol=1e-15)


def test_transform_is_affine():
    x = table()
    t = BatchNormTransformer().fit(x)
    t.gamma_, t.beta_ = np.arange(5.0), -np.arange(5.0)
    expected = (x - t.mean_) / np.sqrt(t.var_) * t.gamma_ + t.beta_
    np.testing.assert_allclose(t.transform(x), expected, rtol=0, atol=50 * EPS)


def test_never_seen_feature_is_nan_until_it_is():
    x = table()
    x[:, 1] = np.nan
    for parameters in ({}, {"momentum": None}, {"halflife": 5.0}):
        t = BatchNormTransformer(**parameters).partial_fit(x)
        assert np.isnan([t.mean_[1], t.var_[1], t.scale_[1]]).all()
        np.testing.assert_array_equal(t.n_samples_seen_, [200, 0, 200, 200, 200])
        y = t.transform(table(seed=3))
        assert np.isnan(y[:, 1]).all()
        assert not np.isnan(y[:, 0]).any()
        later = table(seed=4)
        t.partial_fit(later)
        alone = BatchNormTransformer(**parameters).partial_fit(later)
        np.testing.assert_allclose([t.mean_[1], t.var_[1]], [alone.mean_[1], alone.var_[1]], rtol=1e-13)
        np.testing.assert_array_equal(t.n_samples_seen_, [400, 200, 400, 400, 400])


def test_nan_counts():
    nan = np.nan
    x = np.array([[0, 1, 3], [nan, 6, 10], [5, 4, nan], [8, 0, nan]])
    assert BatchNormTransformer().fit(x).n_samples_seen_.tolist() == [3, 4, 2]
    assert BatchNormTransformer().fit(x).n_samples_seen_.dtype == np.int64
    weighted = BatchNormTransformer().fit(x, sample_weight=[0.5, 1, 0, 2])
    assert weighted.n_samples_seen_.tolist() == [2.5, 3.5, 1.5]


@pytest.mark.parametrize("parameters", [{}, {"momentum": None}, {"halflife": 4.0}, {"halflife": 4.0, "ddof": 1}])
def test_integer_weights_are_repeated_rows(parameters):
    x, weight = with_nan(table(50)), np.random.default_rng(5).integers(0, 3, 50)
    t = BatchNormTransformer(**parameters)
    if t.halflife is not None:  # rows that are repeated would age those before them
        t.fit(x, sample_weight=weight)
        repeated = BatchNormTransformer(**parameters).fit(np.repeat(x, weight, axis=0))
    else:
        t.partial_fit(x, sample_weight=weight).partial_fit(x[::-1], sample_weight=weight)
        repeated = BatchNormTransformer(**parameters)
        repeated.partial_fit(np.repeat(x, weight, axis=0)).partial_fit(np.repeat(x[::-1], weight, axis=0))
    np.testing.assert_allclose(t.mean_, repeated.mean_, rtol=1e-12)
    np.testing.assert_allclose(t.var_, repeated.var_, rtol=1e-12)
    np.testing.assert_allclose(t.n_samples_seen_, repeated.n_samples_seen_)


def test_a_number_as_weight_and_tiny_weights():
    x = table()
    plain = scaler().fit(x)
    for weight in (2.0, np.full(200, 1e-280)):
        np.testing.assert_allclose(scaler().fit(x, sample_weight=weight).var_, plain.var_, rtol=1e-12)


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_copy_false_is_in_place(order, dtype):
    x = table(dtype=dtype)
    x = {"C": x, "F": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=1)[:, ::2]}[order]
    t = BatchNormTransformer(copy=False).fit(x)
    before, expected = x.copy(), t.transform(x.copy())
    y = t.transform(x)
    assert y is x
    np.testing.assert_array_equal(x, expected)
    back = t.inverse_transform(x)
    assert back is x
    np.testing.assert_allclose(x, before, rtol=20 * np.finfo(dtype).eps, atol=20 * np.finfo(dtype).eps)
    kept = x.copy()
    assert t.transform(x, copy=True) is not x
    np.testing.assert_array_equal(x, kept)


def test_copy_false_refuses_before_it_writes():
    x = table()
    t = BatchNormTransformer(copy=False).fit(x)
    x[-1, -1] = np.inf
    kept = x.copy()
    for method in (t.transform, t.inverse_transform):
        with pytest.raises(ValueError, match="infinity"):
            method(x)
    np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [(0, 0), (199, 4), (100, 2)])
def test_infinity_is_refused(value, dtype, place):
    x = table(dtype=dtype)
    t = BatchNormTransformer().fit(x)
    bad = x.copy()
    bad[place] = value
    words = rf"Input X contains infinity or a value too large for dtype\('{dtype}'\)"
    calls = [t.fit, t.partial_fit, t.transform, t.inverse_transform, lambda x: t.fit(x, sample_weight=np.ones(200))]
    calls += [BatchNormTransformer(halflife=2.0).partial_fit, BatchNormTransformer(momentum=None).partial_fit]
    calls += [lambda x: t.transform(np.asfortranarray(x)), lambda x: t.backward(x, x)]
    weight = np.ones(200)
    weight[place[0]] = 0
    calls += [lambda x: t.fit(x, sample_weight=weight)]  # where nothing is computed from it
    for call in calls:
        with pytest.raises(ValueError, match=words):
            call(bad)


def test_large_finite_values_are_no_infinity():
    x = np.array([[1e200, 1e30], [-1e200, -1e30], [1.5e308, 1.0]])
    t = BatchNormTransformer().fit(x)
    assert np.isfinite(t.transform(x)[:, 1]).all()
    y = np.array([[3e38, 1.0], [-3e38, 2.0]], "float32")
    t = BatchNormTransformer().fit(y)
    np.testing.assert_allclose(t.transform(y), [[1, -1], [-1, 1]], rtol=1e-4)
    half = np.array([[60000.0], [-60000.0]], "float16")
    np.testing.assert_allclose(BatchNormTransformer().fit_transform(half), [[1], [-1]], rtol=1e-3)


def test_float16_sums_do_not_overflow():
    x = np.random.default_rng(0).uniform(5, 10, (200_000, 1)).astype("float16")
    with np.errstate(all="raise"):
        y = scaler().fit_transform(x)
    expected = StandardScaler().fit_transform(x.astype("float64"))
    assert np.abs(y - expected).max() <= 2**-10  # half of the last digit of numbers below 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_temporary_as_large_as_the_table(dtype, monkeypatch):
    """What is not dense, or not computed in its own type, goes through the kernels in pieces."""
    seen = []
    moments = tables._moments
    monkeypatch.setattr(tables, "_moments", lambda x, *how: seen.append(x.nbytes) or moments(x, *how))
    monkeypatch.setattr(tables, "PIECE", 4096)
    x = np.repeat(table(1001, 6, dtype), 2, axis=1)[:, ::2]
    t = scaler().fit(x)
    assert len(seen) > 1
    assert max(seen) <= 4096
    expected = StandardScaler().fit(x.astype("float64"))
    np.testing.assert_allclose(t.var_, expected.var_, rtol=1e-6)
    np.testing.assert_allclose(t.transform(x), expected.transform(x.astype("float64")), atol=4e-3)


def test_mean_is_exact_to_the_last_digit():
    x = table(1000, 1, loc=1e8)
    exact = sum(map(Fraction, x[:, 0].tolist())) / 1000
    assert scaler().fit(x).mean_[0] == float(exact)
    stream = scaler()
    for row in x:
        stream.partial_fit(row[None])
    assert abs(stream.mean_[0] - float(exact)) <= np.spacing(1e8)


def test_read_only_attributes():
    t = BatchNormTransformer().fit(table())
    for name in ("mean_", "var_", "scale_", "n_samples_seen_", "n_batches_seen_"):
        with pytest.raises(AttributeError):
            setattr(t, name, 0)
    for name in ("mean_", "var_", "scale_"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(t, name)[0] = 0
    for name in ("mean_", "gamma_", "running_var_", "layer_", "scale_", "n_samples_seen_", "n_batches_seen_"):
        assert not hasattr(BatchNormTransformer(), name)


def test_affine_false():
    x = table()
    t = BatchNormTransformer(affine=False).fit(x)
    assert t.gamma_ is t.beta_ is None
    np.testing.assert_array_equal(t.transform(x), BatchNormTransformer().fit_transform(x))
    with pytest.raises(ValueError, match="gamma"):
        t.gamma_ = np.ones(5)


def test_a_table_that_is_not_aligned():
    """Such as one that another process has sent."""
    room = np.zeros(8 * 500 + 1, np.uint8)
    x = room[1:].view(np.float64).reshape(100, 5)
    x[...] = np.random.default_rng(0).normal(3, 2, x.shape)
    t = BatchNormTransformer().fit(x.copy())
    np.testing.assert_array_equal(t.transform(x), t.transform(x.copy()))
    np.testing.assert_array_equal(BatchNormTransformer().fit(x).mean_, t.mean_)
