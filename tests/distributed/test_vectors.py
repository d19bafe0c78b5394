"""Columns of vectors, as all engines read and normalize them. No engine is needed."""

import re

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import bnorm
from bnorm.distributed.engine import NONE, VECTOR, Map, Reading
from engine_parts import kinds, spark_vectors

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("item", [pa.float32(), pa.int8()], ids=str)
@pytest.mark.parametrize("kind", ["sparse", "large list", "tensor"])
def test_vectors_of_every_kind(kind, item):
    def tensor(item):
        return pa.fixed_shape_tensor(item, [1, 2], dim_names=["d", "e"], permutation=[1, 0])

    x = np.arange(12.0).reshape(6, 2)
    rows = [*x[:5], None]
    if kind == "sparse":
        column = spark_vectors(rows, [True] * 6)
    elif kind == "large list":
        column = pa.array(rows, pa.large_list(item))
    else:
        column = pa.ExtensionArray.from_storage(tensor(item), pa.array(rows, pa.list_(item, 2)))
    data = pa.table({"v": column})
    reading = Reading.of("test", kinds(data), None, None)
    t = reading.fit(bnorm.BatchNormTransformer(), [reading.state([data])])
    np.testing.assert_array_equal(t.mean_, x[:5].mean(0))
    got = Map.of("test", t, kinds(data), None).table(data)["v"]
    wide = item if item == pa.float32() else pa.float64()
    wanted = {"sparse": column.type, "large list": pa.large_list(wide)}
    assert got.type == wanted.get(kind, tensor(wide))
    rows = [row["values"] if isinstance(row, dict) else row for row in got.to_pylist()]
    np.testing.assert_allclose(rows[:5], bnorm.BatchNormTransformer().fit_transform(x[:5]), rtol=1e-6)
    assert rows[5] is None


def test_vectors_in_a_column_whose_name_has_brackets():
    data = pa.table({"v[0]": [[1.0, 2.0], [3.0, 6.0]], "n[1]": [1.0, 5.0]})
    reading = Reading.of("test", kinds(data), None, None)
    t = bnorm.BatchNormTransformer()
    with pytest.raises(NotFittedError):
        Map.of("test", t, kinds(data), None)
    reading.fit(t, [reading.state([data])])
    assert list(t.feature_names_in_) == ["v[0][0]", "v[0][1]", "n[1]"]
    got = Map.of("test", t, kinds(data), None).table(data)
    assert got.to_pydict() == {"v[0]": [[-1.0, -1.0], [1.0, 1.0]], "n[1]": [-1.0, 1.0]}
    assert reading.state([data.to_batches()[0].slice(0, 0)]) == NONE


def test_a_column_with_the_name_of_an_item():
    t = bnorm.BatchNormTransformer()
    for names in (["p", "p[0]"], ["p[0]", "p"]):
        data = pa.table({"p": [[1.0, 2.0]], "p[0]": [1.0]}).select(names)
        reading = Reading.of("test", kinds(data), None, None)
        with pytest.raises(
            ValueError, match=r"^test: columns: expected features of different names, got 'p\[0\]' twice"
        ):
            reading.fit(t, [reading.state([data])])
    assert not hasattr(t, "mean_")


def test_items_of_vectors_that_were_learned_as_columns():
    """In any order: a sorted table has x[10] before x[2]."""
    x = np.random.default_rng(0).normal(size=(30, 12)) * np.arange(1, 13)
    names = ["a", *(f"x[{i}]" for i in range(11))]
    learned = sorted(names)
    t = bnorm.BatchNormTransformer(momentum=None).fit(pa.table(dict(zip(names, x.T, strict=True))).select(learned))
    data = pa.table({"x": list(x[:, 1:]), "a": x[:, 0]})
    got = Map.of("test", t, kinds(data), None).table(data)
    want = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(got["x"].to_pylist(), want[:, 1:], rtol=1e-12)
    np.testing.assert_allclose(got["a"], want[:, 0], rtol=1e-12)
    for learned in (["x[0]", "x[2]"], ["x[1]", "x[2]"], ["x", "x[0]"]):
        t = bnorm.BatchNormTransformer().fit(pa.table(dict(zip(learned, x.T[:2], strict=True))))
        got = re.escape(", ".join(learned))
        with pytest.raises(ValueError, match=rf"test: column 'x': expected the features x\[0\] to x\[n\], got {got}$"):
            Map.of("test", t, {"x": VECTOR}, None)
    t = bnorm.BatchNormTransformer().fit(pa.table({"x[m/s]": x[:, 0]}))
    with pytest.raises(ValueError, match=r"expected a column 'x\[m/s\]', got 'x'"):
        Map.of("test", t, {"x": VECTOR}, None)


def test_vectors_of_another_length():
    reading = Reading.given("test", ["v"])
    states = [reading.state([pa.table({"v": [[1.0] * n]})]) for n in (2, 3)]
    with pytest.raises(ValueError, match="column 'v': expected the same in all rows, got vectors of length 2 and"):
        reading.merged(states)
    t = reading.fit(bnorm.BatchNormTransformer(), states[:1])
    with pytest.raises(ValueError, match="column 'v': expected vectors of length 2, got 3"):
        Map.of("test", t, {"v": 1}, None).table(pa.table({"v": [[1.0] * 3]}))
    with pytest.raises(ValueError, match=r"expected the sums of the columns v, got w"):
        reading.merged([states[0], Reading.given("test", ["w"]).state([pa.table({"w": [1.0]})])])


def test_a_batch_without_any_vector():
    """Even their type may be missing, as in some files of many."""
    tables = [pa.table({"v": [[1.0, 2.0], [3.0, 6.0]], "a": [1, 3]}), pa.table({"v": pa.nulls(2), "a": pa.nulls(2)})]
    reading = Reading.given("test", ["v", "a"])
    t = reading.fit(bnorm.BatchNormTransformer(), [reading.state(tables)])
    mapping = Map.of("test", t, kinds(tables[0]), None)
    found, missing = map(mapping.table, tables)
    assert missing.schema == mapping.batch(tables[1].to_batches()[0].slice(0, 0)).schema
    assert missing["v"].null_count == missing["a"].null_count == 2
    assert pa.concat_tables([found, missing], promote_options="default").slice(0, 2).equals(found)
    for length, of in ((2, t), (1, reading.fit(bnorm.BatchNormTransformer(), [reading.state([_of_one(tables[0])])]))):
        mapping = Map.of("test", of, kinds(tables[0]), None)
        with pytest.raises(ValueError, match=f"^test: column 'v': expected vectors of length {length}, got numbers$"):
            mapping.table(pa.table({"v": [1.0], "a": [1.0]}))


def _of_one(table):
    return table.set_column(0, "v", pa.array([[v[0]] for v in table["v"].to_pylist()]))
