"""Files of transformers of groups, and calls that must fail: an error changes nothing."""

import pickle

import joblib
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import bnorm
from bnorm import BatchNormTransformer, GroupedTransformer
from bnorm.files import container
from grouped_tables import WAYS, frame, table


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_saved_and_pickled(tmp_path, suffix, way):
    x = frame(table())
    x["key"] = [f"k{k}" for k in x["key"]]
    t = GroupedTransformer("key", prior=2, unseen="nan", **way).fit(x[:200]).partial_fit(x[200:300])
    t.save(tmp_path / f"t.{suffix}")
    loaded = bnorm.load(tmp_path / f"t.{suffix}")
    assert loaded.get_params() == t.get_params()
    assert loaded.feature_names_in_.tolist() == t.feature_names_in_.tolist()
    pickled = pickle.loads(pickle.dumps(t))
    for again in (loaded, pickled, t):
        again.partial_fit(x[300:])
    for again in (loaded, pickled):
        assert again.groups_.tolist() == t.groups_.tolist()
        np.testing.assert_array_equal(again.means_, t.means_)
        np.testing.assert_array_equal(again.vars_, t.vars_)
        np.testing.assert_array_equal(again.transform(x), t.transform(x))


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_joblib_maps_to_memory(tmp_path, mode):
    """Arrays that a file backs: partial_fit moves a copy, and leaves the file as it is."""
    x, path = frame(table()), tmp_path / "t.joblib"
    t = GroupedTransformer("key", halflife=7.0).fit(x)
    joblib.dump(t, path)
    before = path.read_bytes()
    mapped = joblib.load(path, mmap_mode=mode)
    np.testing.assert_array_equal(mapped.transform(x), t.transform(x))
    np.testing.assert_array_equal(mapped.partial_fit(x).vars_, t.partial_fit(x).vars_)
    assert path.read_bytes() == before


def test_damaged_files(tmp_path):
    GroupedTransformer(0).fit([[1, 2.0], [2, 3.0]]).save(tmp_path / "t.npz")
    config, entries = container.read("t", tmp_path / "t.npz")
    arrays = {name: entry.array() for name, entry in entries.items()}
    for change in (
        {"places": [7]},
        {"places": []},
        {"kinds": ["string"]},
        {"columns": 3},
        {"batches": -1},
        {"more": 1},
        {"parameters": config["parameters"] | {"prior": -1}},
        {"parameters": config["parameters"] | {"halflife": 1.0, "momentum": 0.1}},
        {"names": ["a"]},
    ):
        container.write("t", tmp_path / "t.npz", config | change, arrays)
        with pytest.raises(ValueError, match="expected a GroupedTransformer, got a damaged file"):
            bnorm.load(tmp_path / "t.npz")
    for name, a in (("key_0", np.array([1, 1])), ("rows", np.array([-1, 1])), ("running_var", -np.ones((2, 1)))):
        container.write("t", tmp_path / "t.npz", config, arrays | {name: a})
        with pytest.raises(ValueError, match="expected a GroupedTransformer, got a damaged file"):
            bnorm.load(tmp_path / "t.npz")


BAD = [
    ({"by": "shop"}, None, ValueError, "by: expected positions, as X has no names of columns, got 'shop'"),
    ({"by": 4}, None, ValueError, "by: expected positions below 4"),
    ({"by": []}, None, ValueError, "by: expected at least one column"),
    ({"by": [1, 1]}, None, ValueError, "by: expected at least one column, each once"),
    ({"by": [1.5]}, None, TypeError, "by: expected names or positions"),
    ({"by": True}, None, TypeError, "by: expected names or positions"),
    ({"unseen": "zero"}, None, ValueError, "The 'unseen' parameter"),
    ({"prior": -1.0}, None, ValueError, "The 'prior' parameter"),
    ({"prior": True}, None, TypeError, "prior: expected a number, got True"),
    ({"momentum": True}, None, TypeError, "momentum: expected a number, got True"),
    ({"momentum": 0.1, "halflife": 3.0}, None, ValueError, "momentum: expected None with halflife=3.0"),
    ({"halflife": "2 moons"}, None, ValueError, "GroupedTransformer: halflife: expected a length of time"),
    ({"halflife": 5.0}, None, ValueError, "as this stream began"),
    ({"by": 0}, None, ValueError, r"by: expected columns \[1\], as this stream began, got \[0\]"),
    ({}, lambda x: x[:, :3], ValueError, "X has 3 features, but GroupedTransformer is expecting 4"),
    ({}, lambda x: np.where(x == x[0, 0], np.inf, x), ValueError, "contains infinity"),
    ({}, lambda x: x[:0], ValueError, "Found array with 0 sample"),
    ({}, lambda x: frame(x).astype({"key": str}), TypeError, "by: column 'key': expected keys of kind 'number'"),
]


@pytest.mark.parametrize(("parameters", "change", "error", "message"), BAD)
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_an_error_changes_nothing(parameters, change, error, message):
    x = table()
    t = GroupedTransformer(1).fit(x)
    before = pickle.dumps((t._groups.__dict__, t._places, t.n_features_in_))
    t.set_params(**parameters)
    with pytest.raises(error, match=message):
        t.partial_fit(x if change is None else change(x))
    assert pickle.dumps((t._groups.__dict__, t._places, t.n_features_in_)) == before
    if change is not None and change(x).shape[1:] == (4,) and "kind" not in message:
        with pytest.raises(error, match=message):
            t.fit(change(x))
        assert pickle.dumps((t._groups.__dict__, t._places, t.n_features_in_)) == before
    with pytest.raises((ValueError, TypeError)):
        t.partial_fit(x, sample_weight=-np.ones(len(x)))
    assert pickle.dumps((t._groups.__dict__, t._places, t.n_features_in_)) == before


def test_fit_transform_that_cannot_transform_learns_nothing():
    """Rows without a key count for the whole, but unseen="error" refuses to transform them."""
    x, t = table(), GroupedTransformer(1, unseen="error")
    bad = np.where((np.arange(len(x)) == 3)[:, None] & (np.arange(4) == 1), np.nan, x)
    for fitted in (False, True):
        before = pickle.dumps(t.__dict__)
        with pytest.raises(ValueError, match="got a missing key in row 3"):
            t.fit_transform(bad)
        assert pickle.dumps(t.__dict__) == before
        if not fitted:
            t.fit(x)


def test_merge_refuses():
    x = table()
    t = GroupedTransformer(1).fit(x)
    for other, error, message in (
        (BatchNormTransformer().fit(x), TypeError, "expected a GroupedTransformer"),
        (GroupedTransformer(1), NotFittedError, "not fitted yet"),
        (GroupedTransformer(1, momentum=0.1).fit(x), ValueError, "depends on the order of its batches"),
        (GroupedTransformer(1, halflife=3).fit(x), ValueError, "halflife: expected None, as here, got 3"),
        (GroupedTransformer(1).fit(x[:, :3]), ValueError, "n_features_in_: expected 4"),
        (GroupedTransformer(2).fit(x), ValueError, r"by: expected \[1\]"),
        (GroupedTransformer(1).fit(np.where(np.arange(4) == 1, "a", x.astype(object))), TypeError, "of kind 'number'"),
    ):
        before = pickle.dumps(t._groups.__dict__)
        with pytest.raises(error, match=message):
            t.merge(other)
        assert pickle.dumps(t._groups.__dict__) == before


@pytest.mark.parametrize(("by", "want"), [("a", r"columns \[1\]"), (["key", "a"], r"columns \[1\]"), ("z", "the name")])
def test_other_keys_than_those_of_the_stream_are_neither_saved_nor_merged(tmp_path, by, want):
    """A file would have the keys of one column, and be used with another."""
    t, other = (GroupedTransformer("key").fit(frame(table())) for _ in range(2))
    t.set_params(by=by)
    before = pickle.dumps((t._groups.__dict__, other._groups.__dict__))
    for call in (lambda: t.save(tmp_path / "t.npz"), lambda: t.merge(other), lambda: other.merge(t)):
        with pytest.raises(ValueError, match=f"^GroupedTransformer: by: expected {want}"):
            call()
    assert pickle.dumps((t._groups.__dict__, other._groups.__dict__)) == before
    assert not (tmp_path / "t.npz").exists()
    t.set_params(by=1).merge(other).save(tmp_path / "t.npz")  # the same column


@pytest.mark.parametrize("way", [{}, {"halflife": 3.0}, {"halflife": "4s"}], ids=str)
def test_underflow_is_no_failure(way):
    """Where NumPy is set to raise at it, too: of rows that have faded, of tiny values and of tiny weights."""
    keys, x = np.array([0.0, 0, 1, 1, 0, 1, 0, 1]), np.linspace(1, 2, 16).reshape(8, 2)
    times = {"times": np.arange(8.0) * 1000} if way.get("halflife") == "4s" else {}
    for scale, weight in ((1.0, 1e-200), (1e-160, 1.0), (1e-160, 1e-200)):
        rows, weights = np.column_stack([keys, x * scale]), np.full(8, weight)

        def learned(rows=rows, weights=weights):
            t = GroupedTransformer(0, prior=2, **way).fit(rows, sample_weight=weights, **times)
            t.partial_fit(rows, sample_weight=weights, **times).merge(t)
            return t.means_, t.vars_, t.whole_.m2, t.transform(rows)

        expected = learned()
        with np.errstate(all="raise"):
            found = learned()
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_keys_alone_are_no_table():
    with pytest.raises(ValueError, match=r"expected features besides the keys, got 2 feature\(s\)"):
        GroupedTransformer([0, 1]).fit([[1, 2]])


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("call", ["transform", "partial_fit", "inverse_transform"])
def test_arrays_of_another_width_after_a_frame(call):
    t = GroupedTransformer("key").fit(frame(table()).iloc[:, ::-1])  # the keys are not the first column
    for width in (2, 5):
        with pytest.raises(ValueError, match=f"X has {width} features, but GroupedTransformer is expecting 4"):
            getattr(t, call)(np.ones((3, width)))


def test_single_values_are_no_table():
    t = GroupedTransformer(0).fit([[1, 2.0], [2, 3.0]])
    for value in (3.0, np.float64(3), np.array(3.0)):
        with pytest.raises(ValueError, match="Expected 2D array, got scalar array"):
            t.inverse_transform(value)
        with pytest.raises(TypeError, match="keys: column 0: expected a key for each row, got "):
            t.inverse_transform([[2.0]], keys=value)


def test_not_fitted():
    for call in (lambda t: t.transform([[1, 2]]), lambda t: t.means_, lambda t: t.save("x.npz")):
        with pytest.raises(NotFittedError):
            call(GroupedTransformer(0))


def test_types_of_polars_that_arrow_does_not_have():
    pl, _ = (pytest.importorskip(name) for name in ("polars", "pyarrow"))
    frame = pl.DataFrame({"a": [1.0, 2.0], "key": pl.Series([1, 2], dtype=pl.Int128)})
    t = GroupedTransformer("key").fit(pl.DataFrame({"a": [1.0, 2.0], "key": [1, 2]}))
    for call in (t.fit, t.transform, BatchNormTransformer().fit):
        with pytest.raises(TypeError, match="Transformer: X: column 'key': expected a type that Arrow has, got Int"):
            call(frame)
    with pytest.raises(TypeError, match="Transformer: by: column 'key': expected a type that Arrow has, got Int128"):
        t.inverse_transform([[0.0], [1.0]], keys=frame["key"])
