"""A transformer from scikit-learn's scaler and back, with scikit-learn on the other side."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler

import bnorm
from bnorm.interop.sklearn import from_standard_scaler, to_standard_scaler

LEARNED = ("mean_", "var_", "scale_", "n_samples_seen_", "n_features_in_")


def table(rows=50, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 4)) * [1, 100, 1e-3, 2] + [0, 1e3, 5, -3]
    x[:, 2] = 7.0  # constant
    return x


def cases():
    x, rng = table(), np.random.default_rng(1)
    missing = x.copy()
    missing[rng.random(x.shape) < 0.2] = np.nan
    yield "a table", StandardScaler().fit(x), x
    yield "batches", StandardScaler().partial_fit(x[:20]).partial_fit(x[20:]), x
    yield "missing values", StandardScaler().fit(missing), missing
    yield "weights", StandardScaler().fit(x, sample_weight=rng.random(50)), x
    yield "float32", StandardScaler().fit(x.astype(np.float32)), x.astype(np.float32)
    ones = np.where(np.arange(4) == 1, np.where(np.arange(50) % 2, 1.0, 3.0)[:, None], x)
    yield "a deviation of 1", StandardScaler().fit(ones), ones
    yield "a feature never seen", StandardScaler().fit(np.where(np.arange(4) == 1, np.nan, x)), x


with np.errstate(all="ignore"):  # scikit-learn divides by the count of a feature never seen
    CASES = {name: (scaler, x) for name, scaler, x in cases()}


def same(a, b):
    for name in LEARNED:
        mine, others = np.asarray(getattr(a, name)), np.asarray(getattr(b, name))
        assert mine.dtype == others.dtype, name
        assert mine.tobytes() == others.tobytes(), name


@pytest.mark.parametrize("name", CASES)
def test_round_trip_changes_no_bit(name):
    scaler, _ = CASES[name]
    transformer = from_standard_scaler(scaler)
    same(transformer, scaler)
    assert transformer._state.statistics.rows == np.max(scaler.n_samples_seen_).astype(int)
    back = to_standard_scaler(transformer)
    same(back, scaler)
    assert back.get_params() == scaler.get_params()


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_the_same(name):
    scaler, x = CASES[name]
    transformer = from_standard_scaler(scaler)
    # scikit-learn subtracts and divides in float32 there, here the mean is split
    tolerance = 3e-4 if x.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(transformer.transform(x), scaler.transform(x), rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(to_standard_scaler(transformer).transform(x), scaler.transform(x))


@pytest.mark.parametrize("name", CASES)
def test_learning_goes_on_in_both_directions(name):
    scaler, x = CASES[name]
    there = StandardScaler()
    there.__dict__.update({key: np.array(v) if isinstance(v, np.ndarray) else v for key, v in vars(scaler).items()})
    here, more = from_standard_scaler(scaler), table(30, seed=2).astype(x.dtype)
    if name == "a feature never seen":
        more = np.where(np.arange(4) == 1, np.nan, more)  # scikit-learn never repairs one
    weights = np.random.default_rng(3).random(30) if name == "weights" else None
    here.partial_fit(more, sample_weight=weights)
    with np.errstate(all="ignore"):
        there.partial_fit(more, sample_weight=weights)
        back = to_standard_scaler(from_standard_scaler(scaler)).partial_fit(more, sample_weight=weights)
    same(back, there)
    std = np.where(there.scale_ > 0, there.scale_, 1)
    tolerance = 1e-6 if x.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(here.mean_ / std, there.mean_ / std, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(here.scale_, there.scale_, rtol=tolerance)
    np.testing.assert_allclose(here.n_samples_seen_, there.n_samples_seen_, rtol=1e-14)


def test_names_come_along():
    pandas = pytest.importorskip("pandas", reason="names come with data frames")
    frame = pandas.DataFrame(table(), columns=list("abcd"))
    transformer = from_standard_scaler(StandardScaler().fit(frame))
    assert list(transformer.feature_names_in_) == list("abcd")
    assert list(to_standard_scaler(transformer).feature_names_in_) == list("abcd")


@pytest.mark.parametrize("copy", [False, True])
def test_copy_comes_along(copy):
    transformer = from_standard_scaler(StandardScaler(copy=copy).fit(table()))
    assert transformer.copy is to_standard_scaler(transformer).copy is copy


def test_memory_is_not_shared():
    scaler, x = CASES["a table"]
    before = scaler.mean_.copy()
    transformer = from_standard_scaler(scaler)
    back = to_standard_scaler(transformer)
    transformer.partial_fit(x + 1)
    np.testing.assert_array_equal(scaler.mean_, before)
    np.testing.assert_array_equal(back.mean_, before)


def test_what_one_of_them_does_not_have_is_refused():
    x = table()
    for options in ({"with_mean": False}, {"with_std": False}):
        with pytest.raises(ValueError, match="from_standard_scaler: scaler: expected with_mean=True and with_std=True"):
            from_standard_scaler(StandardScaler(**options).fit(x))
    with pytest.raises(NotFittedError):
        from_standard_scaler(StandardScaler())
    with pytest.raises(NotFittedError):
        to_standard_scaler(bnorm.BatchNormTransformer())
    with pytest.raises(TypeError, match="expected a StandardScaler, got int"):
        from_standard_scaler(1)
    with pytest.raises(TypeError, match="expected a BatchNormTransformer, got StandardScaler"):
        to_standard_scaler(StandardScaler())
    for options, name in (({"eps": 1e-5}, "eps=0"), ({"ddof": 1, "eps": 0}, "ddof=0")):
        with pytest.raises(ValueError, match=f"expected {name}, which is all a StandardScaler has"):
            to_standard_scaler(bnorm.BatchNormTransformer(**options).fit(x))
    transformer = bnorm.BatchNormTransformer(eps=0).fit(x)
    transformer.gamma_ = [2.0, 1, 1, 1]
    with pytest.raises(ValueError, match="expected gamma_ to be 1"):
        to_standard_scaler(transformer)
