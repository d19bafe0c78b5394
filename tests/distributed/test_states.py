"""What all engines share: record batches become bytes, and the bytes one fitted transformer. No engine is needed."""

from decimal import Decimal

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.distributed import sums
from bnorm.distributed.engine import NUMBER, Map, Reading
from bnorm.distributed.learners import mapping_of, reading_of
from bnorm.files import container
from engine_parts import ROWS, close, kinds, parts_of, spark_vectors

pa = pytest.importorskip("pyarrow")


def table(seed=0):
    """A column of every type, and the same numbers as an array."""
    rng = np.random.default_rng(seed)
    x = rng.normal(5, 2, (ROWS, 11)).round(3)
    x[:, 1] = rng.integers(-5, 5, ROWS)
    x[:, 2] = rng.integers(0, 2, ROWS)
    x[:, 4] = x[:, 4].astype(np.float32)
    x[::7, [0, 3]] = np.nan
    x[3, 5:7] = x[4, 7:9] = x[5, 9:] = np.nan  # vectors that are missing
    x[::3, 9] = np.where(np.isnan(x[::3, 9]), np.nan, 0)
    x[6, 5] = np.nan  # in a vector
    there = ~np.isnan(x)
    rows = [None if np.isnan(row).any() else row for row in x[:, 9:]]
    columns = {
        "a": pa.array(x[:, 0], from_pandas=True),
        "i": pa.array(x[:, 1].astype(np.int32)),
        "b": pa.array(x[:, 2].astype(bool)),
        "d": pa.array([Decimal(f"{v:.3f}") if t else None for v, t in zip(x[:, 3], there[:, 3], strict=True)]),
        "s": pa.array(["text"] * ROWS),
        "f": pa.array(x[:, 4].astype(np.float32)),
        "l": pa.array([None if np.isnan(row).all() else list(row) for row in x[:, 5:7]], pa.list_(pa.float32())),
        "n": pa.array([None if np.isnan(row).any() else list(row) for row in x[:, 7:9]], pa.list_(pa.float64(), 2)),
        "v": spark_vectors(rows, rng.random(ROWS) < 0.5),
        "w": pa.array(rng.integers(0, 4, ROWS).astype(float)),
    }
    x[:, 5:7] = np.where(np.isnan(x[:, 5:7]), np.nan, x[:, 5:7].astype(np.float32))
    return pa.table(columns), x


FEATURES = ["a", "i", "b", "d", "f", "l[0]", "l[1]", "n[0]", "n[1]", "v[0]", "v[1]"]


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("mode", [{}, {"momentum": None, "ddof": 1}, {"halflife": 5.0}], ids=str)
def test_fit_is_that_of_one_machine(mode, weight):
    data, x = table()
    reading = Reading.of("test", kinds(data), [name for name in data.column_names if name not in "sw"], weight)
    t = reading.fit(bnorm.BatchNormTransformer(**mode), [reading.state(part) for part in parts_of(data)])
    w = None if weight is None else data["w"].to_numpy()
    close(t, bnorm.BatchNormTransformer(**mode).fit(x, sample_weight=w))
    assert list(t.feature_names_in_) == FEATURES


def test_exact_sums_have_one_digest():
    data, x = table()
    exact = bnorm.BatchNormTransformer(momentum=None, exact=True)
    reading = reading_of("test", exact, kinds(data), None, "w", None)
    states = [reading.state(part) for part in parts_of(data)]
    want = bnorm.BatchNormTransformer(momentum=None, exact=True).fit(x, sample_weight=data["w"].to_numpy())
    for order in (states, states[::-1], [reading.merged(states[:3]), reading.merged(states[3:])]):
        t = reading.fit(bnorm.BatchNormTransformer(momentum=None, exact=True), order)
        assert t.digest() == want.digest()
        assert (t.mean_ == want.mean_).all()
        assert reading.moments(order).digest() == want.digest()


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64()), pa.list_(pa.int64(), 2)], ids=str)
def test_exact_sums_do_not_round_integers(kind):
    x = np.array([[2**53 + 1, 5], [2**60 + 3, 2**53 + 7], [-1, 0]])
    rows = [None, *x.tolist()] if kind != pa.int64() else [None, *x[:, 0].tolist()]
    data, width = pa.table({"v": pa.array(rows, kind), "w": [1, 3, 2, 1]}), 1 if kind == pa.int64() else 2
    for weight in (None, "w"):
        reading = Reading.given("test", ["v"], weight, exact=True)
        t = bnorm.BatchNormTransformer(momentum=None, exact=True)
        reading.fit(t, [reading.state([data.slice(at, 2)]) for at in (0, 2)])
        want = F.moments(x[:, :width], exact=True, weight=None if weight is None else [3, 2, 1])
        assert t.digest() == want.digest()


def test_the_map_normalizes_its_columns_and_no_other():
    data, x = table()
    t = bnorm.BatchNormTransformer(momentum=None).fit(x)
    y = t.transform(x)
    t.feature_names_in_ = np.array(FEATURES, object)
    got = Map.of("test", t, kinds(data), None).table(data)
    assert got.column_names == data.column_names
    assert [got.schema.field(name).type for name in "aibdf"] == [pa.float64()] * 4 + [pa.float32()]
    assert got["s"] == data["s"]
    assert got["w"] == data["w"]
    for i, name in enumerate(["a", "i", "b", "d", "f"]):
        assert got[name].null_count == data[name].null_count
        np.testing.assert_allclose(
            got[name].to_numpy(zero_copy_only=False), y[:, i], atol=1e-6 if name == "f" else 1e-14
        )
    for name, at in (("l", slice(5, 7)), ("n", slice(7, 9)), ("v", slice(9, 11))):
        assert got[name].type == data[name].type
        assert got[name].null_count == data[name].null_count
        rows = [row["values"] if isinstance(row, dict) and row["type"] else row for row in got[name].to_pylist()]
        rows = [[np.nan] * 2 if row is None else row for row in rows]
        np.testing.assert_allclose(np.array(rows, float), y[:, at], atol=1e-6 if name == "l" else 1e-13)
    nothing = Map.of("test", t, kinds(data), None).table(data.slice(0, 0))
    assert nothing.schema == got.schema


def test_columns_of_one_name():
    """If they are not read, as the keys of both sides of a join, they stay as they are; otherwise they are refused."""
    data = pa.table([pa.array([1.0, 3.0]), pa.array(["x", "y"]), pa.array(["u", "v"])], ["a", "s", "s"])
    t = Reading.given("test", ["a"]).fit(bnorm.BatchNormTransformer(), [Reading.given("test", ["a"]).state([data])])
    mapping = Map.of("test", t, {"a": 0, "s": None}, None)
    got = mapping.table(data)
    assert got.column_names == ["a", "s", "s"]
    assert [column.to_pylist() for column in got.columns] == [[-1.0, 1.0], ["x", "y"], ["u", "v"]]
    twice = data.rename_columns(["a", "a", "s"])
    for read in (Reading.given("test", ["a"]).state, lambda tables: mapping.table(*tables)):
        with pytest.raises(ValueError, match="test: expected one column 'a', got 2"):
            read([twice])


def test_results_are_in_memory_that_arrow_uses_again():
    x = np.random.default_rng(0).normal(size=(1000, 2))
    data = pa.table({"p": x[:, 0], "q": x[:, 1]})
    mapping = Map.of("test", bnorm.BatchNormTransformer().fit(x), kinds(data), ["p", "q"])
    before = pa.total_allocated_bytes()
    got = mapping.table(data)
    assert pa.total_allocated_bytes() >= before + got.nbytes


def test_features_without_names():
    x = np.random.default_rng(0).normal(size=(30, 3))
    t = bnorm.BatchNormTransformer().fit(x)
    data = pa.table({"p": x[:, 0], "q": pa.array(list(x[:, 1:]))}, metadata={"of": "the table"})
    mapping = Map.of("test", t, kinds(data), None)
    got = mapping.table(data)
    assert got.schema.metadata == mapping.batch(data.to_batches()[0]).schema.metadata == {b"of": b"the table"}
    with pytest.raises(ValueError, match="Input X contains infinity"):
        mapping.table(data.set_column(0, "p", pa.array([np.inf] * 30)))
    np.testing.assert_allclose(np.stack(got["q"].to_pylist()), t.transform(x)[:, 1:])
    missing = data.set_column(1, "q", pa.nulls(30, data.schema.field("q").type))
    assert mapping.table(missing)["q"] == missing["q"]
    for columns in (["p"], ["q", "r"], ["q", "p", "a", "b", "c"]):
        with pytest.raises(ValueError, match=f"columns: expected columns of 3 features, got {', '.join(columns)}"):
            Map.of("test", t, kinds(data) | {"r": 1, "a": 0, "b": 0, "c": 0}, columns)


def test_types_may_differ_from_file_to_file():
    x = np.arange(24.0).reshape(12, 2)
    files = [
        pa.table({"a": x[:4, 0].astype(np.int8), "v": pa.nulls(4)}),
        pa.table({"v": pa.array(list(x[4:8])), "a": x[4:8, 0].astype(np.float32)}),
        pa.table({"a": pa.nulls(4), "v": pa.array(list(x[8:].astype(int)), pa.large_list(pa.int64()))}),
    ]
    reading = Reading.given("test", ["a", "v"])
    moments = reading.moments([reading.state([file]) for file in files])
    want = [F.moments(x[:8, 0][:, None]), F.moments(x[4:, :])]
    np.testing.assert_array_equal(moments.count, [8, 8, 8])
    np.testing.assert_allclose(moments.mean, [want[0].mean[0], *want[1].mean])
    np.testing.assert_allclose(moments.m2, [want[0].m2[0], *want[1].m2])
    assert (reading.moments([reading.state([pa.table({"a": pa.nulls(3), "v": pa.nulls(3)})])]).count == [0, 0]).all()


def table_with(**columns):
    return pa.table({"a": [1.0, 2.0]} | columns)


BAD = [
    (table_with(), {"columns": ["z"]}, r"test: expected a column 'z', got 'a'"),
    (table_with(), {"columns": []}, r"test: columns: expected names of columns, each once, at least one, got \[\]"),
    (table_with(), {"columns": ["a", "a"]}, r"each once"),
    (table_with(), {"columns": [0]}, r"test: columns: expected names of columns"),
    (table_with(), {"columns": ["a"], "sample_weight": "z"}, r"test: expected a column 'z'"),
    (table_with(s=["x", "y"]), {"columns": ["s"]}, r"test: column 's': expected numbers or vectors of numbers"),
    (
        pa.table({"w": [1.0], "s": ["x"]}),
        {"columns": None, "sample_weight": "w"},
        r"^test: data: expected features, in columns of numbers or vectors of numbers, got only 'w', 's'$",
    ),
    (
        pa.table({}),
        {"columns": None},
        r"^test: data: expected features, in columns of .* vectors of numbers, got none$",
    ),
    (table_with(w=[1.0, -1.0]), {"columns": ["a"], "sample_weight": "w"}, r"Negative values"),
    (table_with(w=[0.0, 0.0]), {"columns": ["a"], "sample_weight": "w"}, r"at least one non-zero"),
    (table_with(w=[[1.0], [2.0]]), {"columns": ["a"], "sample_weight": "w"}, r"column 'w': expected numbers, got list"),
    (table_with(w=[1.0, None]), {"columns": ["a"], "sample_weight": "w"}, r"NaN"),
    (table_with(b=[1.0, np.inf]), {"columns": None}, r"Input X contains infinity"),
    (table_with(v=[[1.0], [1.0, 2.0]]), {"columns": None}, r"column 'v': expected vectors of one length.* got 1 to 2"),
    (table_with(v=pa.array([[], []], pa.list_(pa.float64()))), {"columns": None}, r"at least 1, got 0 to 0"),
    (table_with(b=[1.7e308, -1.7e308]), {"columns": None}, r"Input X contains infinity or a value too large"),
    (table_with(w=[1.7e308, 1.7e308]), {"columns": ["a"], "sample_weight": "w"}, r"sample_weight: expected a sum that"),
    (table_with().slice(0, 0), {"columns": None}, r"found 0 sample\(s\) in columns \['a'\]"),
]


@pytest.mark.parametrize(("data", "asked", "message"), BAD, ids=[message for *_, message in BAD])
def test_wrong_data_is_told_and_changes_nothing(data, asked, message):
    t = bnorm.BatchNormTransformer().fit([[1.0], [5.0]])
    before = t.mean_.copy()
    with pytest.raises(ValueError, match=message):
        reading = Reading.of("test", kinds(data), **{"sample_weight": None} | asked)
        reading.fit(t, Reading.attempted({"state": s, "error": e} for s, e in [_row(reading.attempt([data]))]))
    assert t.mean_ == before


def _row(columns):
    return columns["state"][0], columns["error"][0]


def test_the_first_parts_may_have_no_weight():
    data = pa.table({"a": [5.0, 1.0, 3.0], "w": [0.0, 2.0, 2.0]})
    reading = Reading.of("test", kinds(data), ["a"], "w")
    states = [reading.state([data.slice(i, 1)]) for i in range(3)]
    t = reading.fit(bnorm.BatchNormTransformer(halflife=4.0), states)
    assert (t.mean_, t._state.statistics.rows) == (2, 3)


def test_wrong_columns_are_told_before_data_are_read_and_by_each_part():
    with pytest.raises(ValueError, match=r"test: column 's': expected numbers or vectors of numbers, got another type"):
        Reading.of("test", kinds(table_with(s=["x", "y"])), ["s"], None)
    with pytest.raises(ValueError, match=r"test: expected a column 'b', got 'a'"):
        Reading.given("test", ["b"]).state([table_with()])


def test_bytes_that_are_no_state():
    reading = Reading.given("test", ["a"])
    state = reading.state([table_with()])
    about = {"class": "Moments", "exact": False, "columns": ["a"], "widths": [0], "rows": 2, "weight": 2.0}
    parts = np.ones((4, 1))
    assert reading.moments([container.dumped(about, {"parts": parts})]).count == 1
    wrong = {"class": "Norm", "columns": ["a", "b"], "widths": [2], "rows": "many", "weight": None}
    others = [container.dumped(about | {key: value}, {"parts": parts}) for key, value in wrong.items()]
    others += [container.dumped(about, {"parts": a}) for a in (parts[:3], parts[0], parts.astype("f4"), -parts)]
    for damaged in (
        *others,
        b"text",
        state[:-8],
        state.replace(b'\\"rows\\":2', b'\\"rows\\":x'),
        state[:-32] + b"\xff" * 32,
    ):
        assert damaged != state
        with pytest.raises(ValueError, match=r"^test: expected "):
            reading.moments([damaged])


def test_neighbors_are_merged_in_their_order():
    for n in (1, 7, 8, 9, 64, 65, 600):
        depth = {}

        def joined(items, depth=depth):
            assert len(items) < 3 * sums.FAN_IN  # all that is in memory
            merged = tuple(i for item in items for i in item)
            depth[merged] = 1 + max(depth.get(item, 0) for item in items)
            return merged

        assert sums.merged_in_order(joined, ((i,) for i in range(n))) == tuple(range(n))
        assert max(depth.values()) <= 5
    assert sums.merged_in_order(joined, []) is None


@pytest.mark.parametrize("weight", [None, "w"])
def test_dask_has_the_same_interface(weight):
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    from bnorm.distributed import dask

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 3)), columns=["b", "a", "w"]).assign(w=rng.integers(0, 3, 50), s="text")
    lazy = dd.from_pandas(frame, npartitions=4)
    t = dask.fit(bnorm.BatchNormTransformer(momentum=None), lazy, ["a", "b"], weight)
    close(t, bnorm.BatchNormTransformer(momentum=None).fit(frame[["a", "b"]], sample_weight=weight and frame[weight]))
    got, want = dask.transform(t, lazy), frame.copy()
    assert not isinstance(got, pd.DataFrame)
    want[["a", "b"]] = t.transform(frame[["a", "b"]])
    pd.testing.assert_frame_equal(got.compute(), want, check_dtype=False)
    whole = dask.fit(bnorm.BatchNormTransformer(), lazy, sample_weight=weight)
    assert list(whole.feature_names_in_) == (["b", "a", "w"] if weight is None else ["b", "a"])
    with pytest.raises(ValueError, match=r"dask.fit: expected a column 'z', got 'b', 'a', 'w', 's'"):
        dask.fit(t, lazy, ["z"])
    array = lazy[["a", "b"]].to_dask_array(lengths=True)
    close(dask.fit(bnorm.BatchNormTransformer(), array), bnorm.BatchNormTransformer().fit(array.compute()))
    with pytest.raises(ValueError, match=r"dask.fit: columns: expected None for an array"):
        dask.fit(t, array, ["a"])
    exact = dask.fit(bnorm.BatchNormTransformer(momentum=None, exact=True), lazy, ["a", "b"], weight)
    reading = Reading.given("test", ["a", "b"], weight, exact=True)
    assert reading.moments([reading.state([pa.Table.from_pandas(frame)])]).digest() == exact.digest()


@pytest.mark.parametrize(
    ("names", "kinds", "message"),
    [
        (
            ["a", "b"],
            {"a": NUMBER, "b": None},
            "f: column 'b': expected numbers or vectors of numbers, got another type",
        ),
        (["a", "v[0]", "v[1]"], {"a": NUMBER, "v": NUMBER}, "f: column 'v': expected vectors of length 2, got numbers"),
        (["k", "a"], {"k": None, "a": None}, "f: column 'a': expected numbers or vectors of numbers, got another type"),
    ],
)
def test_columns_of_another_kind_than_in_fit_are_refused_at_once(names, kinds, message):
    """Not only on a worker, which may find numbers in text."""
    pd = pytest.importorskip("pandas")
    t = bnorm.GroupedTransformer("k") if "k" in names else bnorm.BatchNormTransformer(momentum=None)
    t.fit(pd.DataFrame(np.arange(float(4 * len(names))).reshape(4, -1), columns=names))
    with pytest.raises(ValueError) as caught:
        mapping_of("f", t, kinds, None)
    assert str(caught.value) == message


def test_values_of_a_wrong_type_are_told_and_not_tried_again():
    data = pa.table({"a": [1.0, 2.0], "at": ["noon", "midnight"]})
    reading = reading_of("f", bnorm.BatchNormTransformer(halflife="1h"), kinds(data), ["a"], None, "at")
    row = reading.attempt([data])
    with pytest.raises(ValueError, match="times: expected"):
        reading.attempted([{name: column[0] for name, column in row.items()}])
