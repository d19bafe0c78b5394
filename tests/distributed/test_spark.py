"""Real Spark: local, a cluster of processes, and Spark Connect. A Java is needed."""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import bnorm
import child

pytest.importorskip("pyarrow")
from engine_tables import learners_agree

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
    pytest.mark.skipif(find_spec("pyspark") is None, reason="not installed: pyspark"),
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java: Debian has openjdk-17-jre-headless"),
]


@pytest.fixture(scope="module")
def here():
    import spark_jobs

    session = spark_jobs.session("local[2,3]")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def jobs():
    import spark_jobs

    return spark_jobs


@pytest.fixture(scope="module")
def spark():
    from bnorm.distributed import spark

    return spark


def test_statistics_are_those_of_one_machine(here, jobs):
    jobs.statistics(here)


def test_a_worker_that_is_killed(here, jobs):
    jobs.worker_killed(here)


@pytest.mark.parametrize("mode", [{"momentum": 0.2, "ddof": 1}, {"halflife": 9.0}], ids=str)
def test_weights_and_modes(here, jobs, spark, mode):
    data, x = jobs.table()
    t = spark.fit(bnorm.BatchNormTransformer(**mode), jobs.in_parts(here), jobs.COLUMNS, sample_weight="w")
    jobs.close(t, bnorm.BatchNormTransformer(**mode).fit(x, sample_weight=data["w"].to_numpy()))
    assert list(spark.moments(jobs.in_parts(here), ["a", "l"]).count) == [171, 177, 177]


def test_transform(here, jobs, spark):
    """Lazy, of the same rows; types and nulls stay, and other columns."""
    from pyspark.sql import types

    t, (data, x) = jobs.fitted(momentum=None), jobs.table()
    y = t.transform(x)
    t.feature_names_in_ = np.array(jobs.FEATURES, object)
    df = jobs.in_parts(here)
    lazy = spark.transform(t, df)
    t.running_mean_ = 0 * t.running_mean_  # what is lazy does not see it
    kinds = dict(zip(lazy.columns, (field.dataType for field in lazy.schema), strict=True))
    assert kinds["f"] == types.FloatType()
    assert {kinds[name] for name in "aibd"} == {types.DoubleType()}
    got = {row["s"]: row for row in lazy.collect()}
    assert len(got) == len(x)
    for text, w, values in zip(data["s"].to_pylist(), data["w"].to_pylist(), y, strict=True):
        row = got[text]
        assert row["w"] == w
        numbers = [row[name] for name in "aibdf"] + (row["l"] or [None, None])
        assert [number is None for number in numbers] == np.isnan(values).tolist()
        np.testing.assert_allclose(np.array(numbers, float), values, atol=1e-6)
        np.testing.assert_allclose(np.array(numbers[:4], float), values[:4], rtol=1e-13, atol=1e-13)


def test_numbers_are_transformed_without_python(here, jobs, spark):
    data, x = jobs.table()
    t = bnorm.BatchNormTransformer(momentum=None).fit(x[:, :5])
    y = t.transform(x[:, :5])
    t.feature_names_in_ = np.array(jobs.FEATURES[:5], object)
    lazy = spark.transform(t, jobs.in_parts(here))
    assert "Arrow" not in lazy._jdf.queryExecution().toString()
    got = lazy.toArrow().sort_by("s")
    order = np.argsort(data["s"].to_pylist())
    assert got.column_names == data.column_names
    for i, name in enumerate(jobs.FEATURES[:5]):
        assert got[name].type == ("float" if name == "f" else "double")
        assert got[name].null_count == data[name].null_count
        numbers = np.array(got[name].to_pylist(), float)
        np.testing.assert_allclose(numbers, y[order, i], rtol=1e-6 if name == "f" else 1e-13, atol=1e-13)
    infinite = here.createDataFrame([(1.0,), (float("inf"),)], ["a"])
    with pytest.raises(Exception, match=r"spark.transform: column 'a': expected finite numbers, got infinity"):
        spark.transform(bnorm.BatchNormTransformer().fit([[1.0], [2.0]]), infinite).collect()


def test_hard_columns(here, jobs, spark):
    """Far from zero, sorted, with first rows that are missing or unlike the others, constant, small."""
    import pyarrow as pa

    rng, n = np.random.default_rng(0), 3000
    late = np.arange(n) < 100
    hard = {
        "far": rng.normal(1e6, 1.0, n),
        "sorted": np.sort(rng.normal(-1e9, 1.0, n)),
        "missing first": np.where(late, np.nan, rng.normal(1e6, 1.0, n)),
        "far first": np.where(late, rng.normal(1e9, 1e8, n), rng.normal(0.0, 1.0, n)),
        "constant": np.full(n, 0.1),
        "constant at last": np.where(late, np.nan, 0.1),
        "small": rng.normal(0.0, 1e-100, n),
    }
    t = spark.fit(bnorm.BatchNormTransformer(), here.createDataFrame(pa.table(hard)))
    jobs.close(t, bnorm.BatchNormTransformer().fit(np.column_stack(list(hard.values()))))
    assert t.var_[4] == t.var_[5] == 0


def test_doubles_that_travel_as_one_array(here, jobs, spark):
    """With numbers of another type between them, nulls, NaN, and a column of nothing else."""
    import pyarrow as pa

    x = np.random.default_rng(3).normal(5, 2, (50, 5))
    x[:, 1], x[::7, 2], x[::5, 3], x[:, 4] = np.arange(50), np.nan, np.nan, np.nan
    names = list("pkqrn")
    data = {name: pa.array(x[:, i], from_pandas=name != "r") for i, name in enumerate(names)}
    df = here.createDataFrame(pa.table(data | {"k": pa.array(range(50), pa.int32())}))
    assert [f.dataType.simpleString() for f in df.schema] == ["double", "int", "double", "double", "double"]
    t = spark.fit(bnorm.BatchNormTransformer(momentum=None), df, names[:4])
    assert list(t.feature_names_in_) == names[:4]
    jobs.close(t, bnorm.BatchNormTransformer(momentum=None).fit(x[:, :4]))
    assert list(spark.moments(df).count) == [50, 50, 42, 40, 0]


def test_times_and_groups(here, jobs, spark):
    learners_agree(spark.fit, lambda t, df: spark.transform(t, df).toArrow(), jobs.in_parts(here))


def test_spark_vectors(here, spark):
    """Dense and sparse ones, and one that is missing."""
    from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
    from pyspark.sql.types import StructType

    x = np.array([[1.0, 0.0, 3.0], [0.0, 5.0, 0.0], [np.nan] * 3, [2.0, 2.0, 2.0]])
    vectors = [DenseVector(x[0]), SparseVector(3, [1], [5.0]), None, DenseVector(x[3])]
    df = here.createDataFrame([(v,) for v in vectors], StructType().add("v", VectorUDT())).repartition(3)
    t = spark.fit(bnorm.BatchNormTransformer(momentum=None), df)
    want = bnorm.BatchNormTransformer(momentum=None).fit(x)
    np.testing.assert_allclose(t.mean_, want.mean_)
    np.testing.assert_allclose(t.var_, want.var_)
    got = [row["v"] for row in spark.transform(t, df).collect()]
    assert got.count(None) == 1
    arrays = sorted(list(v) for v in got if v is not None)
    np.testing.assert_allclose(arrays, sorted(map(list, want.transform(x[[0, 1, 3]]))))


def test_types_differ_from_file_to_file(here, spark, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.arange(12.0)
    pq.write_table(pa.table({"a": pa.array(x[:6], pa.int32())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": x[6:]}), tmp_path / "2.parquet")
    df = here.read.schema("a double").parquet(str(tmp_path))
    t = spark.fit(bnorm.BatchNormTransformer(momentum=None), df)
    np.testing.assert_allclose([t.mean_[0], t.var_[0]], [x.mean(), x.var()], rtol=1e-14)


def test_odd_names_of_columns(here, spark):
    names = ["a.b", "c`d", "it's \\", '"AS x"']
    df = here.createDataFrame([(1.0, 2.0, 0.0, 1e-100), (3.0, 5.0, 2.0, 3e-100)], names)
    t = spark.fit(bnorm.BatchNormTransformer(eps=0.0), df)
    np.testing.assert_allclose(t.mean_, [2.0, 3.5, 1.0, 2e-100], rtol=1e-15)
    lazy = spark.transform(t, df)
    assert lazy.columns == names
    want = (np.array(df.collect()) - t.mean_) / np.sqrt(t.var_)
    np.testing.assert_allclose(np.array(lazy.collect()), want, rtol=1e-13)
    infinite = here.createDataFrame([(1.0, 2.0, float("-inf"), 4.0)], names)
    with pytest.raises(Exception, match=r"column \"it's .*\": expected finite numbers, got infinity"):
        spark.transform(t, infinite).collect()


def test_what_is_known_of_columns_stays(here, spark):
    """Their metadata; and a column without values, whose mean is NaN."""
    from pyspark.sql import functions as F

    df = here.createDataFrame([(1.0, None, 2.0), (3.0, None, 4.0)], "a double, b float, s double")
    df = df.select(*(F.col(name).alias(name, metadata={"of": name}) for name in df.columns))
    lazy = spark.transform(spark.fit(bnorm.BatchNormTransformer(eps=0.0), df, ["a", "b"]), df)
    assert lazy.schema == df.schema
    assert [field.metadata for field in lazy.schema] == [{"of": name} for name in "abs"]
    assert sorted(map(tuple, lazy.collect())) == [(-1.0, None, 2.0), (1.0, None, 4.0)]


def test_a_wide_table_needs_few_calls_of_java(here, spark, monkeypatch):
    """Each takes a tenth of a millisecond, and there may be thousands of columns."""
    client, calls = here.sparkContext._gateway._gateway_client, []
    sent = client.send_command
    monkeypatch.setattr(client, "send_command", lambda *given, **named: calls.append(given) or sent(*given, **named))
    df = here.range(5).selectExpr(*(f"CAST(id * {i} AS DOUBLE) AS c{i}" for i in range(1, 101)))
    for call in (
        lambda: spark.fit(bnorm.BatchNormTransformer(momentum=None), df),
        lambda: spark.transform(bnorm.BatchNormTransformer().fit(np.ones((2, 100))), df),
    ):
        calls.clear()
        call()
        assert 0 < len(calls) < 1000


def test_names_that_spark_cannot_tell_apart(here, spark):
    left = here.createDataFrame([(1, 2.0, "x"), (2, 6.0, "y")], "k int, a double, A string")
    right = here.createDataFrame([(1, "u")], "k int, s string")
    joined = left.join(right, left.k == right.k, "left")
    t = spark.fit(bnorm.BatchNormTransformer(momentum=None), joined, ["a"])
    lazy = spark.transform(t, joined)
    assert lazy.columns == joined.columns
    assert sorted(map(tuple, lazy.collect()), key=repr) == [(1, -1.0, "x", 1, "u"), (2, 1.0, "y", None, None)]
    with pytest.raises(ValueError, match=r"spark.fit: expected one column 'k', got 2"):
        spark.fit(bnorm.BatchNormTransformer(), joined, ["k"])


@pytest.mark.parametrize("name", ["fit", "moments", "transform"])
def test_data_that_are_no_dataframe(here, spark, name):
    given = [np.ones((2, 2))] if name == "moments" else [bnorm.BatchNormTransformer().fit([[1.0], [2.0]]), {}]
    with pytest.raises(
        TypeError, match=rf"spark.{name}: data: expected a DataFrame of Spark, got (numpy\.ndarray|dict)$"
    ):
        getattr(spark, name)(*given)


def test_errors_change_nothing(here, jobs, spark):
    t = jobs.fitted(momentum=None)
    before = t.mean_.copy()
    df = here.createDataFrame([(1.0, "x"), (float("inf"), "y")], ["a", "s"])
    for some, asked, message in (
        (df, ["z"], "spark.fit: expected a column 'z', got 'a', 's'"),
        (df, ["s"], "column 's': expected numbers"),
        (
            df.select("s"),
            None,
            "spark.fit: data: expected features, in columns of numbers or vectors of numbers, got only 's'",
        ),
        (df, None, "Input X contains infinity"),
        (df.where("false"), None, "found 0 sample"),
    ):
        with pytest.raises(ValueError, match=message):
            spark.fit(t, some, asked)
    with pytest.raises(ValueError, match=r"spark.transform: expected a column 'l', got"):
        t.feature_names_in_ = np.array(["a", *jobs.FEATURES[5:]], object)
        spark.transform(t, df)
    np.testing.assert_array_equal(t.mean_, before)


@pytest.mark.skipif(not hasattr(child.os, "killpg"), reason="processes are found through /proc")
def test_a_cluster_whose_executor_is_killed():
    names = ["statistics", "executor_killed"]
    assert child.output("spark_jobs.py", "local-cluster[2,1,1024]", *names, timeout=250).split() == names


@pytest.mark.skipif(find_spec("grpc_status") is None, reason="not installed: pyspark[connect]")
def test_connect():
    assert child.output("spark_jobs.py", "connect:local[2]", "statistics", timeout=250).split() == ["statistics"]


@pytest.mark.skipif(find_spec("ray") is None, reason="not installed: ray")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")  # Ray's
def test_the_digests_of_the_documentation(here):
    import ray

    page = (Path(__file__).parents[2] / "docs" / "exact.md").read_text(encoding="utf-8")
    x = np.random.default_rng(0).normal(100.0, 3.0, size=(10_000, 4)).astype("float32")
    names = {"x": x, "session": here, "digests": {bnorm.functional.moments(x, exact=True).digest()}}
    assert set(re.findall(r"`([0-9a-f]{32})`", page)) == names["digests"]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        exec(re.search(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1], names)
    finally:
        ray.shutdown()
    assert len(names["digests"]) == 1
