"""StandardScaler against scikit-learn's own: what it learns, gives, refuses, and leaves as it was."""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from bnorm import BatchNormTransformer
from bnorm.sklearn import StandardScaler
from compare import assert_close, assert_same
from scaler_tables import KINDS, both, container, values

EPS = np.finfo(np.float64).eps
VERSION = tuple(map(int, sklearn.__version__.split(".")[:2]))
FITTED = ["mean_", "var_", "scale_", "n_samples_seen_"]
SETTINGS = [(True, True), (True, False), (False, True), (False, False)]


def assert_fitted_alike(ours, theirs, n, dtype=np.float64, **case):
    """To what the sums of theirs lose: n roundings of values as large as the mean and some standard deviations."""
    for name in FITTED:
        mine, want = getattr(ours, name), getattr(theirs, name)
        if want is None:
            assert mine is None, (name, case)
            continue
        loose = 32 * n * EPS if dtype != np.float32 else 1e-5  # float32: theirs subtracts the mean in float32
        assert_close(mine, want, loose * (1e-3 + np.abs(want)), name=name, **case)
    assert ours.n_features_in_ == theirs.n_features_in_


def dense(y):
    return y.toarray() if sparse.issparse(y) else np.asarray(y)


@pytest.mark.parametrize(("with_mean", "with_std"), SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_as_scikit_learn_does(kind, with_mean, with_std):
    x, more = container(values(), kind), container(values(35, 1), kind)
    if sparse.issparse(x) and with_mean:
        with_mean = False
    ours, theirs = both(with_mean=with_mean, with_std=with_std)
    tolerance = 1e-5 if "float32" in kind else 1e-12
    for step in ("fit", "partial_fit", "partial_fit", "fit"):
        assert getattr(ours, step)(x if step == "fit" else more) is ours
        getattr(theirs, step)(x if step == "fit" else more)
        assert_fitted_alike(ours, theirs, 130, np.float32 if "float32" in kind else np.float64, kind=kind, step=step)
        for method in ("transform", "inverse_transform"):
            got, want = (getattr(scaler, method)(x) for scaler in (ours, theirs))
            assert type(got) is type(want), method
            assert got.dtype == want.dtype if hasattr(want, "dtype") else True
            assert_close(dense(got), dense(want), tolerance * (1 + np.abs(dense(want))), kind=kind, method=method)


@pytest.mark.parametrize("weight", ["several", "zeros", "one number"])
@pytest.mark.parametrize("kind", ["ndarray", "csr_array", "csc_matrix"])
def test_sample_weights(kind, weight):
    x, rng = container(values(), kind), np.random.default_rng(3)
    w = {"several": rng.exponential(1.0, 60), "zeros": (rng.random(60) < 0.5).astype(float), "one number": 0.3}[weight]
    ours, theirs = both(with_mean=kind == "ndarray")
    ours.fit(x, sample_weight=w).partial_fit(x, sample_weight=w)
    with np.errstate(invalid="ignore"):  # of the constant column theirs may find a variance a little below 0
        theirs.fit(x, sample_weight=w).partial_fit(x, sample_weight=w)
    assert_fitted_alike(ours, theirs, 120)
    assert isinstance(ours.n_samples_seen_, np.floating)


@pytest.mark.parametrize("first", [None, 0.3])
def test_weights_after_none_and_none_after_weights(first):
    x, w = values(), np.full(60, 0.3)
    weights = (None, w) if first is None else (w, None)
    scaler = StandardScaler()
    for weight in weights:
        scaler.partial_fit(x, sample_weight=weight)  # theirs would make an integer of 18.0, and of 18.3 too
    whole = StandardScaler().fit(x, sample_weight=np.full(60, 1.3))
    assert_fitted_alike(scaler, whole, 120)


@pytest.mark.parametrize("kind", ["ndarray", "csr_array", "csc_matrix"])
@pytest.mark.parametrize("least", [-0.2, 1e-310], ids=["negative", "tiny"])
def test_some_weights_are_left_to_scikit_learn(kind, least):
    x, w = container(values(), kind), np.linspace(least, 1.0 if least < 0 else 3e-309, 60)
    ours, theirs = both(with_mean=kind == "ndarray")
    for scaler in (ours, theirs):
        scaler.fit(x).fit(x, sample_weight=w)
    for name in FITTED:
        assert_same(getattr(ours, name), getattr(theirs, name))
        assert np.isfinite(getattr(ours, name)).all()


@pytest.mark.parametrize("kind", ["ndarray", "csr_array", "csc_array"])
def test_nan_is_left_out_and_stays(kind):
    x = values()
    x[::7, 2] = x[3, 4] = np.nan
    x = container(x, kind)
    ours, theirs = both(with_mean=kind == "ndarray")
    for scaler in (ours, theirs):
        scaler.fit(x)
    assert_fitted_alike(ours, theirs, 60)
    assert ours.n_samples_seen_.dtype == np.int64
    assert_close(dense(ours.transform(x)), dense(theirs.transform(x)), 1e-13)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "u2", "i2"])
def test_integers(dtype, weighted):
    """They are not converted, and become float64 as with scikit-learn; their weights are no integers."""
    x = (np.random.default_rng(0).integers(0, 100, (60, 5)) // 50 * 37).astype(dtype)
    w = np.linspace(0.1, 1.9, 60) if weighted else None
    for table in (x, np.asfortranarray(x), pd.DataFrame(x), x[::2]):
        ours, theirs = both()
        for scaler in (ours, theirs):
            scaler.fit(table, sample_weight=None if w is None else w[: len(table)])
        assert_close(ours.mean_, theirs.mean_, 1e-13 * np.abs(theirs.mean_).max())
        assert_close(ours.var_, theirs.var_, 1e-12 * theirs.var_)
        for method in ("transform", "inverse_transform"):
            for kept in (True, False):
                got = getattr(ours, method)(table, copy=kept)
                want = getattr(theirs, method)(table, copy=kept)
                assert got.dtype == want.dtype == np.float64
                assert_close(got, want, 1e-12 * (1 + np.abs(want)), method=method)


def test_a_feature_that_was_all_nan_is_repaired():
    x = values()
    ours = StandardScaler().fit(np.where(np.arange(5) == 2, np.nan, x)).partial_fit(x)
    once = StandardScaler().fit(x)
    assert_close(ours.mean_[2], once.mean_[2], 4 * EPS)
    assert_close(ours.var_[2], once.var_[2], 16 * EPS * once.var_[2])


def test_a_later_batch_of_nan_only_changes_nothing_of_a_feature():
    x = values()
    ours = StandardScaler().fit(x)
    before = ours.mean_[2], ours.var_[2], ours.scale_[2]
    ours.partial_fit(np.where(np.arange(5) == 2, np.nan, x))
    assert (ours.mean_[2], ours.var_[2], ours.scale_[2]) == before
    assert list(ours.n_samples_seen_) == [2 * len(x) if j != 2 else len(x) for j in range(5)]


def test_float32_far_from_zero_is_right_where_theirs_is_not():
    x = (1e6 + np.random.default_rng(0).normal(size=(4000, 1))).astype(np.float32)
    exact = [Fraction(float(v)) for v in x[:, 0]]
    mean = sum(exact) / len(exact)
    var = float(sum((v - mean) ** 2 for v in exact) / len(exact))
    ours, theirs = (scaler.fit(x) for scaler in both())
    assert abs(ours.var_[0] - var) <= 1e-6 * var
    want = (x.astype(np.longdouble) - float(mean)) / np.sqrt(var)
    assert np.abs(ours.transform(x) - want).max() < 1e-5
    if VERSION >= (1, 8):  # theirs was right before it took tensors
        assert np.abs(theirs.transform(x) - want).max() > 1e-3  # or this test shows nothing


def test_the_inverse_of_float32_far_from_zero():
    x = (1e6 + np.random.default_rng(0).normal(size=(500, 3))).astype(np.float32)
    scaler = StandardScaler().fit(x)
    y = scaler.transform(x)
    exact = y.astype(np.longdouble) * scaler.scale_ + scaler.mean_
    assert_close(scaler.inverse_transform(y), exact, 2.0**-24 * 1.01 * np.abs(exact))


def test_it_is_scikit_learns_class():
    scaler = StandardScaler(with_std=False)
    assert isinstance(scaler, preprocessing.StandardScaler)
    assert repr(scaler) == "StandardScaler(with_std=False)"
    assert scaler.get_params() == preprocessing.StandardScaler(with_std=False).get_params()
    assert scaler.__sklearn_tags__() == preprocessing.StandardScaler(with_std=False).__sklearn_tags__()
    with pytest.raises(TypeError):
        StandardScaler(False)


def test_each_goes_on_with_what_the_other_learned():
    first, second = values(), values(40, 1)
    for one, other in [(StandardScaler, preprocessing.StandardScaler), (preprocessing.StandardScaler, StandardScaler)]:
        scaler = other()
        scaler.__dict__.update(one().fit(first).__dict__)
        scaler.partial_fit(second)
        whole = preprocessing.StandardScaler().fit(np.concatenate([first, second]))
        assert_fitted_alike(scaler, whole, 100)


def test_copies_and_pickles():
    scaler = StandardScaler().fit(values())
    for other in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert_same(other.transform(values()), scaler.transform(values()))
        other.partial_fit(values(20, 1))
    assert scaler.n_samples_seen_ == 60
    assert not hasattr(clone(scaler), "mean_")


def test_attributes_may_be_assigned():
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = np.array([1.0, 2.0]), np.array([2.0, 4.0])
    assert_same(scaler.transform([[3.0, 10.0]]), np.array([[1.0, 2.0]]))
    scaler = StandardScaler().fit(values())
    scaler.mean_[0] = 0.0
    scaler.scale_ = np.full(5, 2.0)
    assert_same(scaler.transform(values())[:, 0], values()[:, 0] / 2)


@pytest.mark.parametrize("kind", ["ndarray", "float32", "fortran", "strided", "csr_array", "csr_float32"])
@pytest.mark.parametrize("method", ["transform", "inverse_transform"])
def test_in_place(kind, method):
    x = container(values(), kind)
    scaler = StandardScaler(with_mean=not sparse.issparse(x), copy=False).fit(x)
    want = dense(getattr(scaler, method)(x, copy=True))
    before = dense(x).copy()
    assert not np.array_equal(want, before)
    y = getattr(scaler, method)(x)
    assert np.shares_memory(y.data if sparse.issparse(y) else y, x.data if sparse.issparse(x) else x)
    assert_same(dense(x), want)


@pytest.mark.parametrize("kind", ["ndarray", "csr_array"])
def test_a_copy_has_memory_of_its_own(kind):
    for settings in (True, False):
        x = container(values(), kind)
        scaler = StandardScaler(with_mean=False, with_std=settings).fit(x)
        y = scaler.transform(x)
        pairs = [(y.data, x.data), (y.indices, x.indices), (y.indptr, x.indptr)] if sparse.issparse(x) else [(y, x)]
        assert not any(np.shares_memory(a, b) for a, b in pairs)


def test_a_sparse_matrix_of_any_kind():
    x = container(values(), "csr_array")
    want = StandardScaler(with_mean=False).fit(x)
    twice = sparse.csr_array((np.repeat(x.data / 2, 2), np.repeat(x.indices, 2), x.indptr * 2), shape=x.shape)
    shuffled = x[:, [4, 3, 2, 1, 0]]
    shuffled.indices = (4 - shuffled.indices).astype(shuffled.indices.dtype)
    spare = x.copy()
    spare.data, spare.indices = np.append(spare.data, [np.inf] * 3), np.append(spare.indices, [99] * 3).astype("int32")
    for other in (twice, shuffled, x.astype("longdouble"), x.tocoo(), x.tolil(), x.todok()):
        got = StandardScaler(with_mean=False).fit(other)
        assert_close(got.mean_, want.mean_, 8 * EPS * np.abs(want.mean_))
        assert_close(got.var_, want.var_, 8 * EPS * want.var_)
    assert not twice.has_canonical_format
    assert twice.nnz == 2 * x.nnz  # it stays as it was


def test_one_feature_for_several_columns():
    scaler, theirs = (kind.fit(values(columns=1)) for kind in both())
    y = np.random.default_rng(0).normal(size=(7, 4))
    assert_close(scaler.inverse_transform(y), theirs.inverse_transform(y), 1e-14 * 20)


def test_data_frames():
    pd = pytest.importorskip("pandas", reason="data frames are given and wanted")
    x = container(values(), "pandas")
    scaler = StandardScaler().set_output(transform="pandas").fit(x)
    assert list(scaler.feature_names_in_) == list(x.columns)
    y = scaler.transform(x)
    assert isinstance(y, pd.DataFrame)
    assert list(y.columns) == list(scaler.get_feature_names_out()) == list(x.columns)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        scaler.partial_fit(values())
    assert not hasattr(scaler.fit(values()), "feature_names_in_")


def test_the_transformer_names_this_class_for_sparse_tables():
    x = container(values(), "csr_array")
    fitted = BatchNormTransformer().fit(values())
    for method in (
        BatchNormTransformer().fit,
        fitted.fit,
        fitted.partial_fit,
        fitted.transform,
        fitted.inverse_transform,
    ):
        with pytest.raises(TypeError, match=r"X: expected a dense .*bnorm.sklearn.StandardScaler\(with_mean=False\)"):
            method(x)


def test_in_a_pipeline():
    x = values()
    pipe = make_pipeline(StandardScaler(), preprocessing.StandardScaler()).fit(x)
    assert_close(pipe.transform(x), preprocessing.StandardScaler().fit_transform(x), 1e-13)


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i2"])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_in_the_other_byte_order(dtype, weighted):
    """scikit-learn's checks keep that of a data frame."""
    x = (values() * 10).astype(dtype)
    weight = np.random.default_rng(1).uniform(0, 2, len(x)) if weighted else None
    frame, same = pd.DataFrame(x), pd.DataFrame(x.astype(dtype[1:]))
    for make in (StandardScaler, lambda: BatchNormTransformer(momentum=None)):
        ours, theirs = (make().fit(table, sample_weight=weight) for table in (frame, same))
        assert_same(ours.var_, theirs.var_)
        assert_same(ours.transform(frame), theirs.transform(same))
        assert_same(ours.transform(frame.copy(), copy=False), theirs.transform(same))
        assert_same(ours.inverse_transform(frame), theirs.inverse_transform(same))
        for scaler in (ours, theirs):
            scaler.partial_fit(frame, sample_weight=weight)
        assert_same(ours.var_, theirs.var_)


@pytest.mark.parametrize("form", [np.array, sparse.csr_array, sparse.csc_array])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("nan", [False, True])
def test_the_number_of_values_is_theirs(form, settings, nan):
    """Its shape too, in every order of weighted and plain batches; theirs rounds the sum of weights in a plain one."""
    if settings[0] and form is not np.array:
        return  # refused
    rng = np.random.default_rng(5)
    batches = [np.where(rng.random((300, 3)) < 0.5, 0, rng.standard_normal((300, 3))) for _ in range(2)]
    if nan:
        batches[0][3, 1] = np.nan
    whole, parts = rng.integers(1, 4, 300).astype(float), rng.random(300)
    for weights in ([None], [parts], [None, None], [parts, parts], [whole, None], [None, whole]):
        ours, theirs = (
            kind(with_mean=settings[0], with_std=settings[1]) for kind in (StandardScaler, preprocessing.StandardScaler)
        )
        try:
            for x, weight in zip(batches, weights, strict=False):
                theirs.partial_fit(form(x), sample_weight=weight)
        except TypeError:  # theirs adds fractions to integers
            continue
        for x, weight in zip(batches, weights, strict=False):
            ours.partial_fit(form(x), sample_weight=weight)
        for name in FITTED:
            got, want = getattr(ours, name), getattr(theirs, name)
            assert (got is None) == (want is None)
            if want is not None:
                assert np.shape(got) == np.shape(want), (name, weights)
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
