"""Transformers that engines fit part by part: rows that fade by their times, and groups. No engine is needed."""

import numpy as np
import pytest
from sklearn import clone

import bnorm
from bnorm.distributed.engine import Map
from bnorm.distributed.learners import mapping_of, reading_of
from engine_parts import ROWS, close, kinds, parts_of

pa = pytest.importorskip("pyarrow")


def timed():
    """Rows in no order of their times, one of which is missing a value, with keys and weights."""
    rng = np.random.default_rng(0)
    times = np.datetime64("2026-01-01", "us") + rng.permutation(ROWS).astype("m8[m]")
    x = {"a": rng.normal(1e3, 1, ROWS), "f": rng.normal(size=ROWS).astype(np.float32)}
    x["a"][5] = np.nan
    keys, weights = rng.choice(["x", "y", "z"], ROWS), rng.integers(0, 3, ROWS) * 1.0
    columns = {"k": keys, "at": times, "w": weights, "s": ["text"] * ROWS}
    return pa.table({**columns, **{name: pa.array(v, from_pandas=True) for name, v in x.items()}})


@pytest.mark.parametrize("weight", [None, "w"])
def test_rows_that_fade_by_their_times(weight):
    data, mode = timed(), {"halflife": "7min", "history": 3}
    reading = reading_of("test", bnorm.BatchNormTransformer(**mode), kinds(data), ["a", "f"], weight, "at")
    t = bnorm.BatchNormTransformer(halflife="1h").fit([[1.0], [2.0]], times=[1.0, 2.0]).set_params(**mode)
    t.set_output(transform="pandas").backward([[1.0]], [[1.0]])
    asked = t.get_params()
    states = [reading.state(part) for part in parts_of(data)]
    assert reading.fit(t, [reading.merged(states[::-1])]) is t
    w = None if weight is None else data["w"].to_numpy()
    some = data.select(["a", "f", "at"])
    want = bnorm.BatchNormTransformer(**mode).fit(some, sample_weight=w, times="at")
    close(t, want)
    assert t.get_params() == asked
    assert vars(t).keys() == vars(want.set_output(transform="default")).keys()
    assert t.newest_time_ == want.newest_time_
    for both in (t, want):
        both.partial_fit(some, times="at")
    assert t.history_.rows.tolist() == want.history_.rows.tolist() == [ROWS, 2 * ROWS]
    np.testing.assert_array_equal(t.feature_names_in_, ["a", "f"])
    got = Map.of("test", t, kinds(data), None).table(data)
    y = np.asarray(t.transform(data.select(["a", "f"])))
    np.testing.assert_allclose(got["a"].drop_null(), y[~np.isnan(data["a"]), 0])


@pytest.mark.parametrize("unnamed", ["at", "w"])
def test_a_column_without_a_name(unnamed):
    data = timed()
    names = {name: "" if name == unnamed else name for name in data.column_names}
    t = bnorm.BatchNormTransformer(halflife="7min")
    found = []
    for table, at, w in ((data, "at", "w"), (data.rename_columns(list(names.values())), names["at"], names["w"])):
        reading = reading_of("test", t, kinds(table), ["a", "f"], w, at)
        states = [reading.state([table.select(reading.names)])]
        found.append(reading.fit(bnorm.BatchNormTransformer(halflife="7min"), states))
    close(found[1], found[0])


@pytest.mark.parametrize("weight", [None, "w"])
def test_groups(weight):
    data = timed()
    reading = reading_of("test", bnorm.GroupedTransformer("k", prior=2.0), kinds(data), None, weight, None)
    assert reading.columns == ("k", *(["w"] if weight is None else []), "a", "f")
    reading = reading_of("test", bnorm.GroupedTransformer("k", prior=2.0), kinds(data), ["a", "f"], weight, None)
    t = reading.fit(bnorm.GroupedTransformer("k", prior=2.0), [reading.state(part) for part in parts_of(data)])
    w = None if weight is None else data["w"].to_numpy()
    some = data.select(["k", "a", "f"])
    want = bnorm.GroupedTransformer("k", prior=2.0).fit(some, sample_weight=w)
    order = [list(t.groups_).index(key) for key in want.groups_]
    np.testing.assert_array_equal(t.counts_[order], want.counts_)
    np.testing.assert_allclose(t.means_[order], want.means_, rtol=1e-13)
    np.testing.assert_allclose(t.vars_[order], want.vars_, rtol=1e-11)
    assert t.n_batches_seen_ == 1
    mapping = mapping_of("test", t, kinds(data), None)
    got, y = mapping.table(data), want.transform(some)
    assert got.column_names == data.column_names
    assert got["w"] == data["w"]
    assert [got[name].type for name in "af"] == [pa.float64(), pa.float32()]
    assert [got[name].null_count for name in "af"] == [1, 0]
    np.testing.assert_allclose(got["a"].drop_null(), y[~np.isnan(y[:, 0]), 0], atol=1e-9)
    np.testing.assert_allclose(got["f"], y[:, 1], atol=1e-6)
    assert mapping.table(data.slice(0, 0)).schema == got.schema
    faded = bnorm.GroupedTransformer("k", halflife="7min", prior=2.0)
    reading = reading_of("test", faded, kinds(data), ["a", "f"], weight, "at")
    reading.fit(faded, [reading.merged([reading.state(part) for part in parts_of(data)][::-1])])
    want = bnorm.GroupedTransformer("k", halflife="7min").fit(
        data.select(["k", "at", "a", "f"]), sample_weight=w, times="at"
    )
    order = [list(faded.groups_).index(key) for key in want.groups_]
    np.testing.assert_allclose(faded.means_[order], want.means_, rtol=1e-13)
    np.testing.assert_allclose(faded.vars_[order], want.vars_, rtol=1e-11)
    assert faded.newest_time_ == want.newest_time_


@pytest.mark.parametrize(
    ("t", "asked", "message"),
    [
        (bnorm.BatchNormTransformer(), {"times": "at"}, "test: times: expected None, got 'at'"),
        (bnorm.BatchNormTransformer(halflife="1h"), {}, "test: times: expected the name of the column of times"),
        (bnorm.BatchNormTransformer(halflife="1h"), {"times": "z"}, "test: expected a column 'z'"),
        (bnorm.GroupedTransformer("z"), {}, "test: expected a column 'z'"),
        (bnorm.GroupedTransformer([]), {}, r"test: by: expected names of columns, got \[\]"),
        (bnorm.GroupedTransformer(0), {}, "test: by: expected names of columns, got 0"),
        (bnorm.GroupedTransformer("k", momentum=0.1), {}, "test: expected groups with momentum=None"),
        (bnorm.GroupedTransformer("k", halflife=9.0), {}, "or a half-life that is a length of time"),
        (bnorm.GroupedTransformer("a"), {"columns": ["a", "f"]}, "test: columns: expected features, got 'a'"),
        (bnorm.GroupedTransformer("k"), {"columns": ["k", "f"]}, "test: columns: expected features, got 'k'"),
        (
            bnorm.GroupedTransformer(["f", "a"]),
            {"columns": None, "sample_weight": "w"},
            "test: data: expected features, in columns of numbers, got only 'k', 'at', 'w', 's', 'a', 'f'$",
        ),
        (bnorm.GroupedTransformer("k"), {"sample_weight": np.ones(9)}, "test: sample_weight: expected the name of a"),
        (
            bnorm.BatchNormTransformer(halflife="1h"),
            {"times": np.ones(9)},
            "test: times: expected the name of a column",
        ),
        (bnorm.BatchNormTransformer(window="1h"), {"times": "at"}, "test: t: expected window=None, as a window needs"),
        (bnorm.BatchNormTransformer(window=9), {}, "test: t: expected window=None, as a window needs"),
    ],
    ids=str,
)
def test_columns_that_learners_cannot_have(t, asked, message):
    given = {"columns": ["f"], "sample_weight": None, "times": None} | asked
    with pytest.raises((ValueError, TypeError), match=message):
        reading_of("test", t, kinds(timed()), **given)
    with pytest.raises(TypeError, match="test: t: expected a BatchNormTransformer or a GroupedTransformer, got"):
        reading_of("test", bnorm.BatchNorm1d(3), kinds(timed()), **given)


@pytest.mark.parametrize("name", ["a", "at", "k"])
def test_a_part_without_a_column(name):
    data = timed()
    for t, at in ((bnorm.BatchNormTransformer(halflife="1h"), "at"), (bnorm.GroupedTransformer("k"), None)):
        reading = reading_of("test", t, kinds(data), ["a"], None, at)
        if name in reading.names:
            with pytest.raises(ValueError, match=f"test: expected a column '{name}', got"):
                reading.state([data.drop_columns(name)])


def test_a_part_without_weight():
    data, w = timed(), np.where(np.arange(ROWS) < 20, 0.0, 2.0)
    data = data.set_column(0, "k", pa.array(["only there", *data["k"].to_pylist()[1:]])).set_column(2, "w", pa.array(w))
    parts = [data.slice(0, 20), data.slice(20)]
    for t, at in ((bnorm.BatchNormTransformer(halflife="1h"), "at"), (bnorm.GroupedTransformer("k"), None)):
        reading = reading_of("test", t, kinds(data), ["a", "f"], "w", at)
        states = [reading.state([part]) for part in parts]
        want = clone(t).fit(data.select([at or "k", "a", "f"]), sample_weight=w, times=at)
        for order in (states, [reading.state(parts)], [reading.merged(states[:1]), states[1]]):
            got = reading.fit(clone(t), order)
            if at is None:
                assert got.groups_.tolist() == want.groups_.tolist()
            else:
                assert got._state.statistics.rows == ROWS
            for name in ("mean_", "scale_") if at else ("means_", "counts_"):
                np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-12)
        with pytest.raises(ValueError, match="at least one non-zero"):
            reading.fit(t, states[:1])
        odd = [
            ("f", pa.array([np.inf] * 20, pa.float32()), "infinity"),
            ("at", pa.nulls(20, data["at"].type), "times: "),
        ]
        for name, column, message in odd[: 2 if at else 1]:  # as in memory, wherever the rows are cut
            wrong = parts[0].set_column(data.column_names.index(name), name, column)
            with pytest.raises(ValueError, match=message):
                reading.state([wrong])


def test_a_last_part_without_weight():
    """Time goes on with every row, as in memory, wherever the rows are cut."""
    w = np.where(np.arange(ROWS) < ROWS - 10, 2.0, 0.0)
    data = timed().set_column(2, "w", pa.array(w))
    t = bnorm.BatchNormTransformer(halflife="1h")
    want = clone(t).fit(data.select(["at", "a", "f"]), sample_weight=w, times="at")
    reading = reading_of("test", t, kinds(data), ["a", "f"], "w", "at")
    for cut in (ROWS, ROWS - 5, ROWS - 10):
        got = reading.fit(clone(t), [reading.state([data.slice(0, cut)]), reading.state([data.slice(cut)])])
        assert got.newest_time_ == want.newest_time_
        assert got._state.statistics.rows == ROWS


def test_a_map_of_groups_stays_as_it_is():
    data = timed()
    t = bnorm.GroupedTransformer("k", keep_keys=True).fit(data.select(["k", "a", "f"])).set_output(transform="pandas")
    mapping = mapping_of("test", t, kinds(data), None)
    before = mapping.table(data)
    assert t._sklearn_output_config == {"transform": "pandas"}
    t.partial_fit(data.select(["k", "a", "f"]).slice(0, 3))
    assert mapping.table(data) == before
    assert mapping.batch(data.to_batches()[0].slice(0, 0)).schema == before.schema
    with pytest.raises(
        ValueError, match="test: columns: expected a transformer whose columns have names, and columns=None"
    ):
        mapping_of("test", t, kinds(data), ["a"])


def test_a_name_in_the_name_of_the_only_feature():
    data = timed().rename_columns({"k": "f", "f": "of"})
    reading = reading_of("test", bnorm.GroupedTransformer("f"), kinds(data), "of", None, None)
    assert reading.columns == ("f", "of")


def test_dask_by_times_and_by_groups():
    dd = pytest.importorskip("dask.dataframe")
    from bnorm.distributed import dask

    data = timed()
    frame = data.to_pandas()
    lazy = dd.from_pandas(frame, npartitions=4)
    lazy = dd.concat([lazy.get_partition(0).query("w > 9"), lazy])  # an empty partition
    t = dask.fit(bnorm.BatchNormTransformer(halflife="7min"), lazy, ["a", "f"], "w", times="at")
    w = data["w"].to_numpy()
    want = bnorm.BatchNormTransformer(halflife="7min").fit(data.select(["a", "f", "at"]), sample_weight=w, times="at")
    close(t, want)
    got = dask.transform(t, lazy).compute()
    np.testing.assert_allclose(got["f"], t.transform(frame[["a", "f"]])[:, 1], atol=1e-6)
    assert list(got["at"]) == list(frame["at"])
    t = dask.fit(bnorm.GroupedTransformer("k"), lazy, ["a", "f"], sample_weight="w")
    want = bnorm.GroupedTransformer("k").fit(frame[["k", "a", "f"]], sample_weight=w)
    got = dask.transform(t, lazy)
    np.testing.assert_allclose(got.compute()["a"], want.transform(frame[["k", "a", "f"]])[:, 0], atol=1e-9)
    with pytest.raises(TypeError, match=r"dask.fit: data: expected a Dask DataFrame"):
        dask.fit(t, lazy[["a"]].to_dask_array())


def test_dask_leaves_keys_and_other_columns():
    dd = pytest.importorskip("dask.dataframe")
    from bnorm.distributed import dask

    frame = timed().to_pandas()[["f", "k", "a"]]
    lazy = dd.from_pandas(frame, npartitions=4)
    got = dask.transform(bnorm.GroupedTransformer("k").fit(frame), lazy).compute()
    assert list(got.columns) == ["f", "k", "a"]
    assert got["k"].tolist() == frame["k"].tolist()
    unnamed = dd.from_pandas(frame[["f", "k", "a"]].set_axis([0, 1, 2], axis=1), npartitions=4)
    got = dask.transform(bnorm.BatchNormTransformer().fit(frame[["f", "a"]].to_numpy()), unnamed).compute()
    assert got[1].tolist() == frame["k"].tolist()
    np.testing.assert_allclose(got[2].mean(), 0, atol=1e-9)


def test_dask_transforms_a_frame_that_is_kept():
    """Partitions in memory belong to the caller. One name of a column may be given as it is."""
    dd = pytest.importorskip("dask.dataframe")
    from bnorm.distributed import dask

    frame = timed().to_pandas().rename(columns={"a": "aw"})
    kept = dd.from_pandas(frame, npartitions=2).persist(scheduler="synchronous")
    t = dask.fit(bnorm.BatchNormTransformer(), kept, "aw", sample_weight="w")
    assert list(t.feature_names_in_) == ["aw"]
    got = dask.transform(t, kept).compute()
    np.testing.assert_allclose(got["aw"], t.transform(frame[["aw"]])[:, 0])
    np.testing.assert_array_equal(kept.compute()["aw"], frame["aw"])
    bools = kept[["aw", "k"]].assign(yes=kept["w"] > 1)
    assert list(dask.fit(bnorm.BatchNormTransformer(), bools).feature_names_in_) == ["aw", "yes"]
    with pytest.raises(ValueError, match=r"dask.transform: columns: expected None, as the features have names, got"):
        dask.transform(t, kept, ["f"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"t": bnorm.BatchNorm1d(3)}, "t: expected a BatchNormTransformer or a GroupedTransformer, got"),
        ({"t": bnorm.BatchNormTransformer(window=3)}, "t: expected window=None, as a window needs a table in memory"),
        (
            {"data": "array", "sample_weight": "w"},
            "data: expected a Dask DataFrame, whose columns have names, got Array",
        ),
        ({"t": bnorm.BatchNormTransformer(halflife="7min")}, "times: expected"),
        ({"data": "series"}, "data: expected a Dask DataFrame, whose columns have names, got Series"),
        ({"data": "pandas", "columns": ["a"]}, "data: expected a Dask array or DataFrame, got DataFrame"),
        ({"columns": []}, r"columns: expected names of columns, each once, at least one, got \[\]"),
        ({"columns": ["a", "a"]}, r"columns: expected names of columns, each once, at least one, got \['a', 'a'\]"),
        ({"t": bnorm.GroupedTransformer("k"), "columns": ["a", "k"]}, "columns: expected features, got 'k'"),
    ],
)
def test_what_dask_cannot_fit(given, message):
    dd = pytest.importorskip("dask.dataframe")
    from bnorm.distributed import dask

    frame = timed().to_pandas()
    lazy = dd.from_pandas(frame, npartitions=2)
    tables = {"frame": lazy, "array": lazy[["a"]].to_dask_array(), "series": lazy["a"], "pandas": frame}
    given = {"t": bnorm.BatchNormTransformer(), "data": "frame"} | given
    with pytest.raises((TypeError, ValueError), match=rf"^dask\.fit: {message}"):
        dask.fit(**given | {"data": tables[given["data"]]})
