"""The transformer as scikit-learn sees it: its own checks, tables with names, routing, copies."""

import copy

import numpy as np
import pytest
from sklearn import config_context
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from bnorm import BatchNormTransformer, GroupedTransformer

KINDS = [
    BatchNormTransformer(),
    BatchNormTransformer(momentum=None),
    BatchNormTransformer(halflife=100.0),
    BatchNormTransformer(affine=False),
    BatchNormTransformer(momentum=None, eps=0, ddof=1),
]
FURTHER = [  # that `parametrize_with_checks` leaves out
    "check_param_validation",
    "check_dataframe_column_names_consistency",
    "check_transformer_get_feature_names_out",
    "check_transformer_get_feature_names_out_pandas",
    "check_get_feature_names_out_error",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_global_output_transform_pandas",
    "check_set_output_transform_polars",
    "check_global_set_output_transform_polars",
    "check_inplace_ensure_writeable",
    "check_estimators_partial_fit_n_features",
]


CHECKS = parametrize_with_checks(KINDS)


@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)  # scikit-learn 1.6 gives an iterator
@pytest.mark.filterwarnings("ignore:BatchNormTransformer. a batch of one row:UserWarning")
def test_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names:UserWarning")  # a check mixes both
@pytest.mark.parametrize("estimator", KINDS[:3], ids=str)
def test_further_checks(estimator, name):
    if "pandas" in name or "dataframe" in name:
        pytest.importorskip("pandas", reason="the check makes data frames")
    if "polars" in name:
        pytest.importorskip("polars", reason="the check makes data frames")
    getattr(estimator_checks, name)(type(estimator).__name__, estimator)


def frame(n=30):
    pd = pytest.importorskip("pandas", reason="feature names come with data frames")
    values = np.random.default_rng(0).normal(2.0, 3.0, (n, 3))
    return pd.DataFrame(values, columns=["a", "b", "c"], index=range(100, 100 + n))


def test_pandas_in_and_out():
    x = frame()
    t = BatchNormTransformer().set_output(transform="pandas")
    y = t.fit_transform(x)
    assert list(y.columns) == list(t.get_feature_names_out()) == list(t.feature_names_in_) == ["a", "b", "c"]
    assert (y.index == x.index).all()
    back = t.inverse_transform(y)
    assert type(back) is type(x)
    assert list(back.columns) == ["a", "b", "c"]
    assert (back.index == x.index).all()
    np.testing.assert_allclose(back, x, rtol=1e-14, atol=1e-14)
    t.set_output(transform="default")
    assert type(t.inverse_transform(y)) is type(t.transform(x)) is np.ndarray


def test_an_array_mapped_back_is_an_array_without_an_index():
    """A TransformedTargetRegressor maps arrays back, and a new index would shift predictions against the targets."""
    x = frame()
    target = TransformedTargetRegressor(LinearRegression(), transformer=BatchNormTransformer())
    with config_context(transform_output="pandas"):
        predicted = target.fit(x, x["a"]).predict(x)
    assert type(predicted) is np.ndarray
    np.testing.assert_allclose(predicted - x["a"], 0, atol=1e-12)
    t = BatchNormTransformer().set_output(transform="pandas").fit(x)
    y = t.transform(x).to_numpy()
    assert [type(t.inverse_transform(given)) for given in (y, y.tolist())] == [np.ndarray] * 2


def test_polars_in_and_out():
    pl = pytest.importorskip("polars", reason="another kind of data frame")
    x = pl.DataFrame({"a": [1.0, 2.0, 4.0], "b": [0.0, None, 1.0]})
    t = BatchNormTransformer().set_output(transform="polars").fit(x)
    assert t.n_samples_seen_.tolist() == [3, 2]
    y = t.transform(x)
    assert type(y) is type(t.inverse_transform(y)) is pl.DataFrame
    assert y.columns == t.inverse_transform(y).columns == ["a", "b"]  # which scikit-learn 1.6 did not know of polars
    np.testing.assert_allclose(t.inverse_transform(y).to_numpy()[:, 0], [1, 2, 4], rtol=1e-14)


def test_float32_frames_stay_float32():
    x = frame().astype("float32")
    t = BatchNormTransformer().set_output(transform="pandas")
    assert set(t.fit_transform(x).dtypes) == {np.dtype("float32")}
    assert set(t.inverse_transform(x).dtypes) == {np.dtype("float32")}


def test_names_that_are_missing_or_not_expected():
    x = frame()
    t = BatchNormTransformer().fit(x)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        t.transform(x.to_numpy())  # no way around scikit-learn here
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        t.partial_fit(x.to_numpy())
    with pytest.raises(ValueError, match="feature names should match"):
        t.transform(x[["b", "a", "c"]])
    t.fit(x.to_numpy())
    assert not hasattr(t, "feature_names_in_")
    assert list(t.get_feature_names_out()) == ["x0", "x1", "x2"]
    with pytest.warns(UserWarning, match="fitted without feature names"):
        t.transform(x)


def containers(x):
    """Yield a pandas frame, and the same table in other libraries."""
    yield x
    yield pytest.importorskip("polars", reason="another kind of data frame").from_pandas(x)
    yield pytest.importorskip("dask.dataframe", reason="another kind of data frame").from_pandas(x, npartitions=2)


def test_results_with_features_in_another_place_are_refused():
    """They are read by position, so each feature would get the statistics of another."""
    x = frame()
    t = BatchNormTransformer().set_output(transform="pandas").fit(x)
    y = t.transform(x)
    for wrong in (y[["b", "a", "c"]], y.rename(columns={"a": "z", "b": "a"})):
        for given in containers(wrong):
            with pytest.raises(ValueError, match=r"Transformer: X: column [01]: expected feature '[ab]', in the order"):
                t.inverse_transform(given)
        with pytest.raises(ValueError, match=r"Transformer: dY: column [01]: expected feature '[ab]', in the order"):
            t.backward(x, wrong)
    assert "gamma_grad_" not in t.__dict__
    for right in (y, y.add_prefix("scaled ")):  # a ColumnTransformer gives them such names
        np.testing.assert_allclose(t.inverse_transform(right), x, rtol=1e-13)
        assert t.backward(x, right).shape == x.shape


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((3, 2)), "X has 2 features, but BatchNormTransformer is expecting 3 features as input"),
        (np.ones(3), "Expected 2D array, got 1D array instead"),
        (np.ones((0, 3)), r"Found array with 0 sample\(s\)"),
        (np.ones((2, 3, 1)), "Found array with dim 3"),
        (np.ones((2, 3), complex), "Complex data not supported"),
        ([["a", "b", "c"]], "could not convert string to float"),
    ],
)
def test_messages_are_those_of_scikit_learn(x, words):
    """Whether a table takes the short way or the long one."""
    t = BatchNormTransformer().fit(np.ones((4, 3)))
    for method in (t.partial_fit, t.transform, t.inverse_transform):
        with pytest.raises(ValueError, match=words):
            method(x)
    if "expecting" not in words:
        with pytest.raises(ValueError, match=words):
            BatchNormTransformer().fit(x)


def test_sparse_is_refused():
    from scipy.sparse import csr_array

    pd = pytest.importorskip("pandas", reason="its frames may have sparse columns")
    x, t = frame().iloc[:3], BatchNormTransformer().fit(frame())
    columns = pd.DataFrame.sparse.from_spmatrix(csr_array(x), columns=x.columns)
    for given, way in ((csr_array(x), r"toarray\(\)"), (columns, r"sparse.to_dense\(\)")):
        for call in (t.partial_fit, t.transform, t.inverse_transform):
            with pytest.raises(TypeError, match=rf"^Batch.*StandardScaler\(with_mean=False\) takes .* and {way} makes"):
                call(given)
    np.testing.assert_array_equal(t.transform(columns.sparse.to_dense()), t.transform(x))
    with pytest.raises(TypeError, match=r"^GroupedTransformer: X: expected a dense table"):
        GroupedTransformer("key").fit(columns.assign(key=[0, 0, 1]))


def test_weights_are_routed_through_a_pipeline():
    x, w = frame().to_numpy(), np.arange(30.0)
    with config_context(enable_metadata_routing=True):
        step = BatchNormTransformer().set_fit_request(sample_weight=True)
        model = make_pipeline(step, LinearRegression().set_fit_request(sample_weight=False))
        model.fit(x, x[:, 0], sample_weight=w)
    np.testing.assert_allclose(step.mean_, np.average(x, axis=0, weights=w), rtol=1e-13)


def test_html_shows_it():
    t = BatchNormTransformer(halflife=9.0, affine=False)
    assert "halflife" in t._repr_html_()
    t.fit(frame().to_numpy())
    assert "BatchNormTransformer" in t._repr_html_()
    assert repr(t) == "BatchNormTransformer(affine=False, halflife=9.0)"


def test_memory_mapped_and_subclassed_tables(tmp_path):
    x = frame().to_numpy()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    t = BatchNormTransformer().fit(mapped).partial_fit(mapped)
    y = t.transform(mapped)
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, t.transform(x))
    t.transform(mapped, copy=True)
    fixed = x.copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(t.transform(fixed), y)
    try:  # what scikit-learn does with a read-only array differs from version to version
        np.testing.assert_array_equal(t.transform(fixed, copy=False), y)
    except ValueError as error:
        assert "read-only" in str(error) or "writeable" in str(error)
    np.testing.assert_array_equal(fixed, x)


def test_the_representation_says_how_a_stream_is_weighed():
    assert repr(BatchNormTransformer()) == "BatchNormTransformer(momentum=0.1)"
    assert repr(BatchNormTransformer(ddof=1)) == "BatchNormTransformer(momentum=0.1, ddof=1)"
    for t in (BatchNormTransformer(momentum=None), BatchNormTransformer(momentum=0.2)):
        assert repr(t) == f"BatchNormTransformer(momentum={t.momentum})"
    assert repr(BatchNormTransformer(halflife=5.0)) == "BatchNormTransformer(halflife=5.0)"
    assert "momentum" in make_pipeline(BatchNormTransformer())._repr_html_()  # as text, or in a table
    assert repr(eval(repr(BatchNormTransformer(ddof=1)))) == "BatchNormTransformer(momentum=0.1, ddof=1)"
    with config_context(print_changed_only=False):
        assert repr(BatchNormTransformer()).count("momentum=0.1") == 1


@pytest.mark.parametrize("t", [*KINDS, BatchNormTransformer(window=30), GroupedTransformer(0)], ids=str)
def test_copies_do_not_share_a_stream(t):
    x = np.random.default_rng(0).integers(0, 9, (20, 3)).astype(float)
    t, alone = (type(t)(**t.get_params()).fit(x) for _ in range(2))
    other = copy.copy(t)
    other.partial_fit(2 * x)
    assert not np.array_equal(other.transform(x), t.transform(x))
    assert np.array_equal(t.partial_fit(x + 1).transform(x), alone.partial_fit(x + 1).transform(x))
    assert type(copy.copy(type(t)(**t.get_params()))) is type(t)  # one that is not fitted
