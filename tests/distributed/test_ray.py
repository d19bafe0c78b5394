"""Real Ray, on this machine."""

import os
import sys
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import bnorm

pa = pytest.importorskip("pyarrow")
from engine_tables import COLUMNS, FEATURES, close, learners_agree, table  # noqa: E402

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_spec("ray") is None, reason="not installed: ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own pipes and files
]


@pytest.fixture(scope="module")
def ray():
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray
    import ray.data

    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = {"env_vars": {"PYTHONPATH": paths}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def engine(ray):
    from bnorm.distributed import ray as engine

    return engine


def in_parts(ray):
    """The table in blocks, of which some are empty and one has one row."""
    data, _ = table()
    cuts = [0, 0, 1, 60, 60, 130, 200]
    return ray.data.from_arrow([data.slice(a, b - a) for a, b in pairwise(cuts)])


def fitted(**mode):
    return bnorm.BatchNormTransformer(**mode).fit(table()[1])


def test_statistics_are_those_of_one_machine(ray, engine):
    ds = in_parts(ray)
    t = engine.fit(bnorm.BatchNormTransformer(momentum=None), ds, COLUMNS)
    close(t, fitted())
    assert list(t.feature_names_in_) == FEATURES
    weights = table()[0]["w"].to_numpy()
    weighted = engine.fit(bnorm.BatchNormTransformer(ddof=1), ds, COLUMNS, sample_weight="w")
    close(weighted, bnorm.BatchNormTransformer(ddof=1).fit(table()[1], sample_weight=weights))
    again = engine.fit(bnorm.BatchNormTransformer(momentum=None), ds, COLUMNS)
    assert t.mean_.tobytes() + t.var_.tobytes() == again.mean_.tobytes() + again.var_.tobytes()


def test_one_digest(ray, engine):
    want = fitted(momentum=None, exact=True).digest()
    for ds in (in_parts(ray), in_parts(ray).repartition(3)):
        t = engine.fit(bnorm.BatchNormTransformer(momentum=None, exact=True), ds, COLUMNS)
        assert t.digest() == want
    assert engine.moments(ds, COLUMNS, exact=True).digest() == want


def test_transform(ray, engine):
    t, (data, x) = fitted(momentum=None), table()
    y = t.transform(x)
    t.feature_names_in_ = np.array(FEATURES, object)
    lazy = engine.transform(t, in_parts(ray))
    t.running_mean_ = 0 * t.running_mean_
    got = pa.concat_tables(ray.get(lazy.to_arrow_refs())).sort_by("s")
    order = np.argsort(data["s"].to_pylist())
    assert got.column_names == data.column_names
    assert got["w"].to_pylist() == data["w"].take(order).to_pylist()
    for i, name in enumerate("aibdf"):
        assert got[name].type == (pa.float32() if name == "f" else pa.float64())
        assert got[name].null_count == data[name].null_count
        numbers = np.array(got[name].to_pylist(), float)
        np.testing.assert_allclose(numbers, y[order, i], atol=1e-6 if name == "f" else 1e-13)
    rows = [[np.nan] * 2 if row is None else row for row in got["l"].to_pylist()]
    np.testing.assert_allclose(rows, y[order, 5:], atol=1e-13)


def test_times_and_groups(ray, engine):
    def transformed(t, ds):
        return pa.concat_tables(ray.get(engine.transform(t, ds).to_arrow_refs()))

    learners_agree(engine.fit, transformed, in_parts(ray))


def test_tensors(ray, engine):
    x = np.random.default_rng(0).normal(size=(40, 3))
    ds = ray.data.from_numpy(np.array_split(x, 3))
    t = engine.fit(bnorm.BatchNormTransformer(momentum=None), ds)
    np.testing.assert_allclose(t.mean_, x.mean(axis=0))
    got = np.concatenate([batch["data"] for batch in engine.transform(t, ds).iter_batches(batch_format="numpy")])
    np.testing.assert_allclose(np.sort(got, axis=0), np.sort(t.layer_(x), axis=0))


def test_types_differ_from_file_to_file(ray, engine):
    x = np.arange(12.0)
    files = [pa.table({"a": pa.array(x[:4], pa.int8())}), pa.table({"a": x[4:8]}), pa.table({"a": pa.nulls(4)})]
    ds = ray.data.from_arrow(files)
    t = engine.fit(bnorm.BatchNormTransformer(momentum=None), ds, ["a"])
    np.testing.assert_allclose([t.mean_[0], t.var_[0]], [x[:8].mean(), x[:8].var()], rtol=1e-14)
    got = [row["a"] for row in engine.transform(t, ds).iter_rows()]
    assert sorted(v for v in got if v is not None) == pytest.approx(list((x[:8] - 3.5) / x[:8].std()))
    assert got.count(None) == 4


def test_a_block_without_any_vector(ray, engine):
    ds = ray.data.from_arrow([pa.table({"v": [[1.0, 2.0], [3.0, 6.0]]}), pa.table({"v": pa.nulls(2)})])
    t = engine.fit(bnorm.BatchNormTransformer(), ds, ["v"])
    rows = [row["v"] for row in engine.transform(t, ds).iter_rows()]
    assert sorted(map(list, filter(None, rows))) == [[-1, -1], [1, 1]] and rows.count(None) == 2


def test_pandas_blocks(ray, engine):
    """Their types are not Arrow's. A column of lists has objects, as one of text may have."""
    import pandas as pd

    frame = table()[0].select(["a", "i", "b", "s"]).to_pandas().astype({"i": "Int32", "s": object})
    frame.insert(2, "l", table()[0]["l"].to_pylist())
    ds = ray.data.from_pandas([frame[:60], frame[60:60], frame[60:]])
    t, names = bnorm.BatchNormTransformer(momentum=None), ["a", "i", "l[0]", "l[1]", "b"]
    x = table()[1][:, [FEATURES.index(name) for name in names]]
    want = bnorm.BatchNormTransformer(momentum=None).fit(x)
    close(engine.fit(t, ds), want)
    assert list(t.feature_names_in_) == names
    scaler = engine.BatchNormPreprocessor(["a", "i", "l", "b"])
    order, y = np.argsort(frame["s"].to_numpy()), want.transform(x)
    for out in (engine.transform(t, ds), scaler.fit_transform(ds)):
        got = pa.concat_tables(ray.get(out.to_arrow_refs()), promote_options="permissive").sort_by("s")
        for i, name in ((0, "a"), (1, "i"), (4, "b")):
            np.testing.assert_allclose(np.array(got[name].to_pylist(), float), y[order, i], atol=1e-12)
        rows = [[np.nan] * 2 if row is None else row for row in got["l"].to_pylist()]
        np.testing.assert_allclose(rows, y[order, 2:4], atol=1e-12)
    with pytest.raises(ValueError, match=r"ray\.fit: found 0 sample"):
        engine.fit(t, ray.data.from_pandas(pd.DataFrame({"l": [[1.0]]})[:0]), ["l"])


def test_the_aggregate(ray, engine):
    _, x = table()
    ds = in_parts(ray)
    aggregate = engine.MomentsAggregate(["a", "d"], exact=True)
    whole = engine.MomentsAggregate.moments(ds.aggregate(aggregate)["moments"])
    assert whole.digest() == engine.moments(ds, ["a", "d"], exact=True).digest()
    rows = ds.groupby("i").aggregate(aggregate).take_all()
    assert len(rows) == 10
    for row in rows:
        got = engine.MomentsAggregate.moments(row["moments"])
        want = bnorm.functional.moments(x[x[:, 1] == row["i"]][:, [0, 3]], exact=True, skipna=True)
        assert got == want
    assert bnorm.Moments.merge(engine.MomentsAggregate.moments(row["moments"]) for row in rows) == whole


def test_the_preprocessor(ray, engine):
    import pandas as pd

    scaler = engine.BatchNormPreprocessor(["a", "f"], bnorm.BatchNormTransformer(momentum=None, ddof=1))
    got = pa.concat_tables(ray.get(scaler.fit_transform(in_parts(ray)).to_arrow_refs()))
    close(scaler.transformer_, bnorm.BatchNormTransformer(momentum=None, ddof=1).fit(table()[1][:, [0, 4]]))
    assert np.nanstd(np.array(got["a"].to_pylist(), float), ddof=1) == pytest.approx(1)
    frame = scaler.transform_batch(pd.DataFrame({"a": [1e6], "f": [5.0], "s": ["x"]}))
    np.testing.assert_allclose(frame[["a", "f"]], scaler.transformer_.transform(pd.DataFrame({"a": [1e6], "f": [5.0]})))
    of_groups = engine.BatchNormPreprocessor(["a"], bnorm.GroupedTransformer("b"))
    got = of_groups.fit_transform(in_parts(ray)).to_pandas()
    np.testing.assert_allclose(got.groupby("b")["a"].std(ddof=0), 1)


def dies_once(mark, block):
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return block
    os._exit(1)


def test_a_worker_that_is_killed(ray, engine, tmp_path):
    mark = tmp_path / "killed"
    ds = in_parts(ray).map_batches(partial(dies_once, mark), batch_format="pyarrow", batch_size=None)
    t = engine.fit(bnorm.BatchNormTransformer(momentum=None), ds, COLUMNS)
    assert mark.exists()
    close(t, fitted())


def test_data_that_are_no_dataset(ray, engine):
    with pytest.raises(TypeError, match=r"ray.moments: data: expected a Dataset of Ray, got pyarrow\.lib\.Table"):
        engine.moments(table()[0])


def test_errors_change_nothing(ray, engine):
    t = fitted(momentum=None)
    before = t.mean_.copy()
    ds = ray.data.from_arrow([pa.table({"a": [1.0, v], "s": ["x", "y"]}) for v in (2.0, np.inf)])
    for asked, message in (
        (["z"], "ray.fit: expected a column 'z', got 'a', 's'"),
        (["s"], "column 's': expected numbers"),
        (None, "Input X contains infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.fit(t, ds, asked)
    np.testing.assert_array_equal(t.mean_, before)
