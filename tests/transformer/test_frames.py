"""Pandas frames of numbers are read without most checks of scikit-learn, but with its results, errors and warnings."""

from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_array

import bnorm
from bnorm.transformer import validation

pd = pytest.importorskip("pandas")

rng = np.random.default_rng(0)
X = rng.standard_normal((9, 3)) * 10
WHOLE = X.astype(int)
READ = {
    "float64": pd.DataFrame(X, columns=["a", "b", "c"]),
    "float32": pd.DataFrame(X.astype("f4"), columns=["a", "b", "c"]),
    "float16": pd.DataFrame(X.astype("f2"), columns=["a", "b", "c"]),
    "two widths": pd.DataFrame({"a": X[:, 0], "b": X[:, 1].astype("f4"), "c": X[:, 2]}),
    "integers too": pd.DataFrame({"a": X[:, 0], "b": WHOLE[:, 1], "c": WHOLE[:, 2].astype("u1")}),
    "small integers and float32": pd.DataFrame({"a": X[:, 0].astype("f4"), "b": WHOLE[:, 1].astype("i1")}),
    "missing values": pd.DataFrame({"a": [1.0, None, 3.0], "b": [np.nan, 5.0, 7.0]}),
    "some rows and columns": pd.DataFrame(X, columns=["a", "b", "c"]).iloc[1::2, [2, 0]],
    "one column": pd.DataFrame(X[:, :1], columns=["a"]),
    "whole numbers alone": pd.DataFrame(WHOLE, columns=["a", "b", "c"]),
    "whole numbers of two widths": pd.DataFrame({"a": WHOLE[:, 0].astype("i4"), "b": WHOLE[:, 1].astype("i2")}),
}
LEFT = {
    "bools": pd.DataFrame({"a": X[:, 0], "b": X[:, 1] > 0}),
    "objects": pd.DataFrame({"a": X[:, 0], "b": X[:, 1].astype(object)}),
    "text": pd.DataFrame({"a": X[:, 0], "b": [f"{x}" for x in X[:, 1]]}),
    "categories": pd.DataFrame({"a": X[:, 0], "b": pd.Categorical(WHOLE[:, 1])}),
    "nullable": pd.DataFrame({"a": pd.array([1.0, None, 3.0], "Float64")}),
    "sparse": pd.DataFrame({"a": pd.arrays.SparseArray(X[:, 0])}),
    "times": pd.DataFrame({"a": X[:, 0], "b": pd.date_range("2026", periods=9)}),
    "complex numbers": pd.DataFrame({"a": X[:, 0] + 1j}),
    "the other byte order": pd.DataFrame({"a": X[:, 0].astype(X.dtype.newbyteorder())}),
    "no rows": pd.DataFrame({"a": X[:0, 0]}),
    "no columns": pd.DataFrame(index=range(3)),
    "a series": pd.Series(X[:, 0]),
    "an array": X,
    "a class of its own": type("Frame", (pd.DataFrame,), {})(X),
}
ESTIMATORS = [bnorm.BatchNormTransformer, bnorm.sklearn.StandardScaler]
every_estimator = pytest.mark.parametrize("make", ESTIMATORS)


@pytest.mark.parametrize("name", READ)
def test_the_array_is_the_one_of_scikit_learn(name):
    types = [np.float64, np.float32, np.float16, *validation.INTEGERS]
    check = partial(check_array, dtype=types, ensure_all_finite=False)
    got, want = validation.of_frame(check, READ[name], validation.READ), check(READ[name])
    assert got.dtype == want.dtype
    assert got.flags.f_contiguous == want.flags.f_contiguous
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", LEFT)
def test_other_frames_are_left_to_scikit_learn(name):
    assert validation.of_frame(partial(check_array), LEFT[name], validation.READ) is None


def test_whole_numbers_are_left_to_scikit_learn_where_they_become_floats():
    frame = READ["whole numbers alone"]
    assert validation.of_frame(partial(check_array), frame, validation.FLOATS) is None
    z = bnorm.sklearn.StandardScaler(copy=False).fit(frame).transform(frame)  # could not be written into them
    np.testing.assert_allclose(z, bnorm.sklearn.StandardScaler().fit(frame).transform(frame), atol=1e-15)


@every_estimator
@pytest.mark.parametrize("name", READ)
def test_names_and_results_are_those_of_the_long_way(make, name, monkeypatch):
    frame = READ[name]
    quick = make().fit(frame)
    found = quick.partial_fit(frame).transform(frame), quick.inverse_transform(frame)
    monkeypatch.setattr(validation, "of_frame", lambda *args: None)
    monkeypatch.setattr("bnorm.sklearn.of_frame", lambda *args: None)
    monkeypatch.setattr(validation, "named", lambda *args: False)
    slow = make().fit(frame)
    wanted = slow.partial_fit(frame).transform(frame), slow.inverse_transform(frame)
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()
    assert list(quick.feature_names_in_) == list(slow.feature_names_in_) == list(frame.columns)
    assert quick.n_features_in_ == slow.n_features_in_ == frame.shape[1]


@every_estimator
def test_known_names_are_not_checked_again(make, monkeypatch):
    frame = READ["float64"]
    t = make().fit(frame)
    refuse = Mock(side_effect=AssertionError("asked scikit-learn"))
    monkeypatch.setattr("sklearn.utils.validation._check_feature_names", refuse)
    t.transform(frame)
    with pytest.raises(AssertionError, match="asked scikit-learn"):
        t.transform(frame[["b", "a", "c"]])


@every_estimator
@pytest.mark.parametrize(
    ("columns", "match"),
    [
        (["b", "a", "c"], "Feature names must be in the same order"),
        (["a", "b"], "Feature names seen at fit time, yet now missing"),
        (["a", "b", "d"], "Feature names unseen at fit time"),
    ],
)
def test_other_names_are_the_errors_of_scikit_learn(make, columns, match):
    frame = READ["float64"].assign(d=1.0)
    t = make().fit(frame[["a", "b", "c"]])
    for call in (t.transform, t.partial_fit):
        with pytest.raises(ValueError, match=match):
            call(frame[columns])


@every_estimator
def test_names_or_none_are_the_warnings_of_scikit_learn(make):
    frame = READ["float64"]
    with pytest.warns(UserWarning, match="X has feature names, but .* was fitted without"):
        make().fit(X).transform(frame)
    with pytest.warns(UserWarning, match="X does not have valid feature names, but .* was fitted with"):
        make().fit(frame).transform(X)
    numbered = make().fit(pd.DataFrame(X))  # names that are no text are no names
    assert not hasattr(numbered, "feature_names_in_")
    numbered.transform(pd.DataFrame(X))
    with pytest.raises(TypeError, match="Feature names are only supported if all input features have string names"):
        make().fit(pd.DataFrame(X, columns=["a", 1, "c"]))


@every_estimator
def test_infinity_is_still_an_error(make):
    frame = READ["float64"].copy()
    frame.iloc[3, 1] = np.inf
    t = make().fit(READ["float64"])
    for call in (t.transform, t.partial_fit, make().fit):
        with pytest.raises(ValueError, match="infinity"):
            call(frame)


def test_a_frame_is_not_written_to():
    frame = READ["float64"].copy()
    for make in ESTIMATORS:
        make().fit_transform(frame)
        pd.testing.assert_frame_equal(frame, READ["float64"])


def test_an_estimator_that_was_not_fitted():
    with pytest.raises(NotFittedError):
        bnorm.sklearn.StandardScaler().transform(READ["float64"])


def test_the_scaler_agrees_with_scikit_learns():
    for frame in READ.values():
        got, want = (s().fit(frame) for s in (bnorm.sklearn.StandardScaler, StandardScaler))
        np.testing.assert_allclose(got.transform(frame), want.transform(frame), rtol=2e-3, atol=1e-3, equal_nan=True)
