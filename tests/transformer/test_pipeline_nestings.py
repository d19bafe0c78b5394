"""Pipelines, FeatureUnions and ColumnTransformers inside each other, on a stream: as fit makes them, with weights."""

import copy
from functools import partial

import numpy as np
import pytest
import sklearn
from sklearn import config_context
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import IncrementalPCA
from sklearn.linear_model import SGDRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer

from bnorm import BatchNormTransformer, partial_fit_pipeline
from interrupts import interrupted

sklearn_version = tuple(int(part) for part in sklearn.__version__.split(".")[:2])


def table(n=90, features=4, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, (n, features))


def test_interrupts_at_every_call():
    """Before the one call that changes all steps nothing has changed, and after it everything."""
    x = table(12)
    made = make_pipeline(BatchNormTransformer(), make_union(scaler(), MinMaxScaler()), scaler())
    first = partial_fit_pipeline(made, x)

    counts = []
    for n in range(1, 2000, 7):
        model = copy.deepcopy(first)
        interrupted(partial(partial_fit_pipeline, model, x + 1), n, "bnorm.transformer")
        counts.append([found.n_batches_seen_ for found in scalers(model)])
        assert counts[-1] in ([1, 1, 1], [2, 2, 2]), n
        assert model[1].transformer_list[1][1].n_samples_seen_ == 12 * counts[-1][0]
        if counts[-1] == [2, 2, 2]:
            break
    assert counts[0] == [1, 1, 1]
    assert counts[-1] == [2, 2, 2]


# What a pipeline learns from a stream does not depend on how it was cut, if its scalers weigh all rows alike and
# none stands behind another: then it is what fit learns from everything. Each way of nesting is one entry.


def scaler():
    return BatchNormTransformer(momentum=None)


def tanh():
    return FunctionTransformer(np.tanh, feature_names_out="one-to-one")


def pair(columns=("a", "b")):
    return ColumnTransformer([("left", scaler(), [columns[0]]), ("right", MinMaxScaler(), [columns[1]])])


NESTINGS = {
    "union": lambda: FeatureUnion([("scale", scaler()), ("range", MinMaxScaler())]),
    "union of everything": lambda: FeatureUnion(
        [("pass", "passthrough"), ("scale", scaler()), ("none", "drop"), ("row", Normalizer())],
        transformer_weights={"scale": 3.0, "pass": -1.0},
    ),
    "pipeline of a union of pipelines": lambda: make_pipeline(
        "passthrough", tanh(), make_union(make_pipeline(tanh(), scaler()), make_pipeline("passthrough", tanh())), tanh()
    ),
    "union of columns": lambda: make_union(
        pair(), ColumnTransformer([("rest", scaler(), ["d"])], remainder="passthrough")
    ),
    "columns of unions": lambda: ColumnTransformer(
        [("union", make_union(scaler(), "passthrough"), ["c", "a"]), ("none", "drop", ["b"])], remainder=scaler()
    ),
    "columns of a pipeline of a union of columns": lambda: ColumnTransformer(
        [("deep", make_pipeline(tanh(), make_union(pair(("c", "d")), scaler())), ["c", "d"])],
        remainder=make_union(scaler(), MinMaxScaler()),
        transformer_weights={"deep": 0.5},
    ),
    "columns of columns": lambda: ColumnTransformer(
        [("inner", pair(), ["a", "b"]), ("other", pair(("c", "d")), ["c", "d"])]
    ),
    "pipeline of pipelines": lambda: make_pipeline(make_pipeline(make_pipeline(tanh())), make_pipeline(pair(), tanh())),
}


def frame_of(x, output):
    if output == "polars" and sklearn_version < (1, 9):
        pytest.skip("scikit-learn 1.6 fits none of these on a polars frame")
    frames = pytest.importorskip("polars" if output == "polars" else "pandas", reason="columns by name")
    return frames.DataFrame({name: x[:, i] for i, name in enumerate("abcd")})


def scalers(step):
    """Those that have learned anything, however deep."""
    if isinstance(step, BatchNormTransformer):
        return [step]
    if isinstance(step, ColumnTransformer):
        parts = [part for _, part, _ in step.transformers_]
    else:
        parts = [part for _, part in getattr(step, "steps", getattr(step, "transformer_list", []))]
    return [found for part in parts for found in scalers(part)]


@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
@pytest.mark.parametrize("nesting", NESTINGS)
def test_every_nesting_is_what_fit_makes_of_it(nesting, output):
    frame = frame_of(table(), output)
    model, whole = (NESTINGS[nesting]().set_output(transform=output) for _ in range(2))
    for i in (0, 30, 60):
        partial_fit_pipeline(model, frame[i : i + 30])
    whole.fit(frame)
    y, expected = model.transform(frame), whole.transform(frame)
    assert type(y) is type(expected)
    if output != "default":
        assert list(y.columns) == list(expected.columns)
    np.testing.assert_allclose(np.asarray(y), np.asarray(expected), rtol=1e-12, atol=1e-12)
    assert list(model.get_feature_names_out()) == list(whole.get_feature_names_out())
    assert {found.n_batches_seen_ for found in scalers(model)} == {3}  # no step saw a batch twice


@pytest.mark.parametrize("nesting", NESTINGS)
def test_weights_are_repeated_rows_in_every_nesting(nesting):
    x = table()
    frame = frame_of(x, "pandas")
    weight = np.random.default_rng(1).integers(1, 4, len(x))
    model, repeated = NESTINGS[nesting](), NESTINGS[nesting]()
    for rows in np.split(np.arange(90), 3):
        partial_fit_pipeline(model, frame.iloc[rows], sample_weight=weight[rows].astype(float))
        partial_fit_pipeline(repeated, frame.iloc[np.repeat(rows, weight[rows])])
    np.testing.assert_allclose(model.transform(frame), repeated.transform(frame), rtol=1e-12, atol=1e-12)
    assert {float(found.n_samples_seen_) for found in scalers(model)} == {float(weight.sum())}


def test_weights_go_to_the_steps_that_take_them():
    """What it does, by hand: the PCA counts rows alike."""
    x = table()
    y = x @ [1.0, 2.0, 3.0, 4.0]
    weight = np.random.default_rng(1).uniform(0, 5, len(x))
    model = make_pipeline(BatchNormTransformer(), IncrementalPCA(3), SGDRegressor(random_state=0))
    first, pca, last = BatchNormTransformer(), IncrementalPCA(3), SGDRegressor(random_state=0)
    for rows in np.split(np.arange(90), 3):
        partial_fit_pipeline(model, x[rows], y[rows], sample_weight=weight[rows])
        z = first.partial_fit(x[rows], sample_weight=weight[rows]).transform(x[rows])
        last.partial_fit(pca.partial_fit(z).transform(z), y[rows], sample_weight=weight[rows])
    np.testing.assert_array_equal(model[0].mean_, first.mean_)
    np.testing.assert_array_equal(model[-1].coef_, last.coef_)


def test_weights_that_no_step_takes_are_refused():
    x = table()
    model = make_pipeline(FunctionTransformer(np.tanh), make_union(IncrementalPCA(2), MinMaxScaler()))
    words = "sample_weight: expected None, as no step .* FunctionTransformer, IncrementalPCA, MinMaxScaler"
    with pytest.raises(ValueError, match=words):
        partial_fit_pipeline(model, x, sample_weight=np.ones(len(x)))
    assert not hasattr(model[1].transformer_list[1][1], "n_samples_seen_")


def test_a_step_can_refuse_weights():
    x = table()
    weight = np.arange(90.0)
    with config_context(enable_metadata_routing=True):
        plain = BatchNormTransformer(momentum=None).set_partial_fit_request(sample_weight=False)
        asking = BatchNormTransformer(momentum=None).set_partial_fit_request(sample_weight=True)
        model = make_union(plain, asking, BatchNormTransformer(momentum=None))
        partial_fit_pipeline(model, x, sample_weight=weight)
    assert [found.n_samples_seen_ for found in scalers(model)] == [90, weight.sum(), weight.sum()]


@pytest.mark.parametrize("wrong", [{"y": np.ones(89)}, {"sample_weight": np.ones(91)}])
def test_lengths_that_differ_change_nothing(wrong):
    model = make_pipeline(BatchNormTransformer(), SGDRegressor())
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        partial_fit_pipeline(model, table(), **({"y": np.ones(90)} | wrong))
    assert not hasattr(model[0], "layer_")


def test_columns_of_later_frames_are_found_by_name():
    """As `transform` does, even where the first batch was cut by position."""
    frame = frame_of(table(), "pandas")
    columns = ColumnTransformer([("scale", scaler(), [0, 2])], remainder=MinMaxScaler())
    partial_fit_pipeline(columns, frame[:30])
    partial_fit_pipeline(columns, frame[30:60][["d", "c", "b", "a"]])
    partial_fit_pipeline(columns, frame[60:].assign(more=1.0)[["more", "b", "a", "d", "c"]])
    whole = ColumnTransformer([("scale", scaler(), [0, 2])], remainder=MinMaxScaler()).fit(frame)
    np.testing.assert_allclose(columns.transform(frame), whole.transform(frame), rtol=1e-12, atol=1e-12)


def test_a_missing_column_changes_nothing():
    frame = frame_of(table(), "pandas")
    columns = partial_fit_pipeline(pair(), frame)
    with pytest.raises(ValueError, match="columns are missing"):
        partial_fit_pipeline(columns, frame[["a"]])
    assert columns.named_transformers_["left"].n_batches_seen_ == 1


def test_parts_learn_here_whatever_n_jobs_says():
    x = table()
    model = make_pipeline(
        FeatureUnion([("one", scaler()), ("two", scaler())], n_jobs=2),
        ColumnTransformer([("three", BatchNormTransformer(), [0])], n_jobs=2),
    )
    for part in np.split(x, 3):
        partial_fit_pipeline(model, part)
    assert [found.n_batches_seen_ for found in scalers(model)] == [3, 3, 3]
    assert (model[0].n_jobs, model[1].n_jobs) == (2, 2)
