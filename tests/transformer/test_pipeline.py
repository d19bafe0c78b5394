"""Pipelines on a stream: every step takes the batch in, as the steps before it transform it."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import IncrementalPCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier, SGDRegressor
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, StandardScaler

from bnorm import BatchNormTransformer, partial_fit_pipeline


def table(n=90, features=4, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, (n, features))


def scaler():
    return BatchNormTransformer(momentum=None)


def labels(x):
    return np.where(x[:, 0] + x[:, 1] > 6, "b", "a")


def test_steps_in_turn():
    """What it does, by hand."""
    x = table()
    y = labels(x)
    parts = [BatchNormTransformer(), FunctionTransformer(np.tanh), IncrementalPCA(3), SGDClassifier(random_state=0)]
    model = Pipeline([(f"step{i}", part) for i, part in enumerate(parts)])
    scaler, pca, classifier = BatchNormTransformer(), IncrementalPCA(3), SGDClassifier(random_state=0)
    for rows in (slice(0, 30), slice(30, 60), slice(60, 90)):
        assert partial_fit_pipeline(model, x[rows], y[rows], classes=["a", "b", "c"]) is model
        z = np.tanh(scaler.partial_fit(x[rows]).transform(x[rows]))
        classifier.partial_fit(pca.partial_fit(z).transform(z), y[rows], classes=["a", "b", "c"])
    np.testing.assert_array_equal(model[-1].coef_, classifier.coef_)
    np.testing.assert_array_equal(model.predict(x), classifier.predict(pca.transform(np.tanh(scaler.transform(x)))))
    assert parts[0].n_batches_seen_ == 3


def test_without_targets_and_ends_in_a_transformer():
    model = make_pipeline(BatchNormTransformer(momentum=None, eps=0), "passthrough", MinMaxScaler())
    x = table()
    for part in np.split(x, 3):
        partial_fit_pipeline(model, part)
    np.testing.assert_allclose(model[0].transform(x), StandardScaler().fit_transform(x), atol=1e-13)
    assert model[-1].n_samples_seen_ == 90


@pytest.mark.parametrize("output", ["default", "pandas"])
@pytest.mark.parametrize("remainder", ["drop", "passthrough", MinMaxScaler()])
def test_columns(output, remainder):
    """A ColumnTransformer ends up as after a fit on everything, as far as its parts do not depend on the cuts."""
    pd = pytest.importorskip("pandas", reason="columns by name")
    frame = pd.DataFrame(table(), columns=list("abcd"))
    frame["e"] = np.where(frame["a"] > 3, "x", "y")
    frame["f"] = 1.0
    encoder = OneHotEncoder(sparse_output=False).fit(frame[["e"]])
    scaler = make_pipeline(SimpleImputer().fit(frame[["a", "b"]]), BatchNormTransformer(momentum=None))
    parts = [("scale", scaler, ["a", "b"]), ("encode", encoder, ["e"]), ("none", BatchNormTransformer(), [])]
    parts += [("rest", BatchNormTransformer(momentum=None), make_column_selector("[c]"))]
    columns = ColumnTransformer(parts, remainder=remainder).set_output(transform=output)
    model = make_pipeline(columns, SGDRegressor(random_state=0))
    for i in (0, 30, 60):
        partial_fit_pipeline(model, frame[i : i + 30], np.arange(30.0))
    whole = ColumnTransformer(parts, remainder=remainder).set_output(transform=output).fit(frame)
    np.testing.assert_allclose(columns.transform(frame), whole.transform(frame), atol=1e-12)
    assert list(columns.get_feature_names_out()) == list(whole.get_feature_names_out())
    assert [name for name, _, _ in columns.transformers_] == [name for name, _, _ in whole.transformers_]
    assert not any("_Fed" in repr(value) for value in vars(columns).values())
    assert columns.named_transformers_["scale"][1].n_batches_seen_ == 3
    assert not hasattr(scaler[1], "layer_")  # like fit, it leaves alone what it was given
    assert len(model.predict(frame)) == 90


def test_columns_of_arrays():
    x = table()
    for choice in ([0, 2], slice(0, 3, 2), np.array([True, False, True, False]), lambda x: [0, 2]):
        columns = ColumnTransformer([("scale", BatchNormTransformer(momentum=None, eps=0), choice)])
        for part in np.split(x, 3):
            partial_fit_pipeline(columns, part)
        np.testing.assert_allclose(columns.transform(x), StandardScaler().fit_transform(x[:, [0, 2]]), atol=1e-13)


def test_columns_stay_those_of_the_first_batch():
    pd = pytest.importorskip("pandas", reason="columns by type")
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})
    columns = ColumnTransformer([("scale", BatchNormTransformer(), make_column_selector(dtype_include=float))])
    partial_fit_pipeline(columns, frame)
    partial_fit_pipeline(columns, frame.astype(float))
    assert columns.transform(frame).shape == (2, 1)
    assert columns.named_transformers_["scale"].n_batches_seen_ == 2


def test_goes_on_after_fit():
    x = table()
    model = make_pipeline(BatchNormTransformer(momentum=None), SGDRegressor()).fit(x[:50], x[:50, 0])
    partial_fit_pipeline(model, x[50:], x[50:, 0])
    np.testing.assert_allclose(model[0].mean_, x.mean(axis=0), rtol=1e-13)


def test_a_step_that_cannot_is_named_before_anything_changes():
    x = table()
    y = labels(x)
    scaler = BatchNormTransformer()
    inner = Pipeline([("impute", SimpleImputer()), ("scale", scaler)])
    for model, path, kind in [
        (Pipeline([("scale", scaler), ("impute", SimpleImputer())]), "impute", "SimpleImputer"),
        (Pipeline([("scale", scaler), ("model", LogisticRegression())]), "model", "LogisticRegression"),
        (ColumnTransformer([("one", scaler, [0]), ("two", inner, [1])]), "two__impute", "SimpleImputer"),
        (ColumnTransformer([("one", scaler, [0])], remainder=OneHotEncoder()), "remainder", "OneHotEncoder"),
        (make_pipeline(scaler, inner), "pipeline__impute", "SimpleImputer"),
        (make_union(scaler, make_pipeline(inner)), "pipeline__pipeline__impute", "SimpleImputer"),
    ]:
        words = f"step '{path}': expected an estimator that has partial_fit or is fitted, got {kind}"
        with pytest.raises(ValueError, match=f"partial_fit_pipeline: {words}"):
            partial_fit_pipeline(model, x, y)
        assert not hasattr(scaler, "layer_")
        assert not hasattr(model, "transformers_")


def test_fitted_models_without_partial_fit_stay():
    x = table()
    y = labels(x)
    model = make_pipeline(BatchNormTransformer(), RidgeClassifier()).fit(x, y)
    kept = model[-1].coef_.copy()
    partial_fit_pipeline(model, 2 * x, y)
    np.testing.assert_array_equal(model[-1].coef_, kept)
    assert model[0].n_batches_seen_ == 2


def test_only_pipelines():
    with pytest.raises(TypeError, match="expected a Pipeline, FeatureUnion or ColumnTransformer, got BatchNorm"):
        partial_fit_pipeline(BatchNormTransformer(), table())


# All steps or none ----------------------------------------------------------------------------------------------------


class Failing(MinMaxScaler):
    """Learns, and then raises an error, if there is one."""

    error: type[BaseException] | None = None

    def partial_fit(self, X, y=None):
        super().partial_fit(X, y)
        if self.error is not None:
            raise self.error
        return self


def state_of(step):
    """Everything that a step has learned, as bytes; arrays are compared where they lie, so a copy would not do."""
    return {(id(part), pickle.dumps(part)) for part in steps_of(step)}


def steps_of(step):
    parts = [part for _, part, *_ in getattr(step, "transformers_", getattr(step, "transformers", []))]
    parts += [part for _, part in getattr(step, "steps", getattr(step, "transformer_list", []))]
    return [step, *(found for part in parts if not isinstance(part, str) for found in steps_of(part))]


FIRST = {
    "pipeline": lambda last: make_pipeline(scaler(), StandardScaler(), last),
    "deep": lambda last: make_pipeline(make_union(scaler(), make_pipeline("passthrough", scaler())), scaler(), last),
    "columns": lambda last: ColumnTransformer([("a", scaler(), [0]), ("b", make_pipeline(scaler(), last), [1])]),
    "a union": lambda last: make_union("passthrough", scaler(), BatchNormTransformer(halflife=9.0), last),
}


@pytest.mark.parametrize("nesting", FIRST)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_all_steps_or_none(nesting, error, monkeypatch):
    model = FIRST[nesting](Failing())
    for x in (table(), table() + 1):  # the first batch, and another
        before = state_of(model)
        monkeypatch.setattr(Failing, "error", error)
        with pytest.raises(error):
            partial_fit_pipeline(model, x)
        assert state_of(model) == before
        monkeypatch.setattr(Failing, "error", None)
        partial_fit_pipeline(model, x)


def test_a_label_outside_classes_is_counted_by_no_step():
    x = table()
    model = make_pipeline(BatchNormTransformer(), StandardScaler(), SGDClassifier(random_state=0))
    partial_fit_pipeline(model, x, labels(x), classes=["a", "b"])
    before = state_of(model)
    with pytest.raises(ValueError, match="classes"):
        partial_fit_pipeline(model, x, np.where(x[:, 0] > 3, "a", "other"), classes=["a", "b"])
    assert state_of(model) == before


def test_steps_stay_the_same_objects():
    x = table()
    first = BatchNormTransformer()
    model = make_pipeline(first, MinMaxScaler())
    partial_fit_pipeline(model, x)
    layer, mean, last = first.layer_, first.running_mean_, model[1]
    partial_fit_pipeline(model, x * 2)
    assert model[0] is first
    assert model[1] is last
    assert first.layer_ is layer
    assert first.running_mean_ is mean
    assert layer.running_mean is mean
    assert layer.num_batches_tracked == first.n_batches_seen_ == 2


def test_parameters_that_change_on_the_way():
    x = table()
    model = make_pipeline(BatchNormTransformer(history=4), MinMaxScaler())
    by_hand = copy.deepcopy(model[0])
    for settings in ({}, {"eps": 0.1, "momentum": 0.5}, {"history": 2}, {"history": None}, {"history": 3}):
        model[0].set_params(**settings)
        partial_fit_pipeline(model, x)
        by_hand.set_params(**settings).partial_fit(x)
        assert pickle.dumps(model[0]) == pickle.dumps(by_hand)


def test_what_has_no_partial_fit_is_fitted_on_the_first_batch():
    pd = pytest.importorskip("pandas", reason="columns by name")
    frame = pd.DataFrame({"a": np.arange(12.0), "b": list("xyz") * 4})
    columns = ColumnTransformer([("scale", scaler(), ["a"]), ("encode", OneHotEncoder(handle_unknown="ignore"), ["b"])])
    model = make_pipeline(columns, SGDRegressor(random_state=0))
    with pytest.raises(ValueError, match="fit_first=True fits such steps on the first batch"):
        partial_fit_pipeline(model, frame, frame.a)
    for value in ("no", 1, None):
        with pytest.raises(TypeError, match="partial_fit_pipeline: fit_first: expected True or False, got "):
            partial_fit_pipeline(model, frame, frame.a, fit_first=value)
    assert not hasattr(columns, "transformers_")
    for rows in (slice(0, 6), slice(6, 12)):
        partial_fit_pipeline(model, frame[rows], frame.a[rows], fit_first=True)
        encoder = columns.named_transformers_["encode"]
        assert [list(found) for found in encoder.categories_] == [["x", "y", "z"]]
    partial_fit_pipeline(model, frame.assign(b="other"), frame.a, fit_first=True)
    assert columns.named_transformers_["encode"] is encoder
    assert columns.named_transformers_["scale"].n_samples_seen_ == 24
