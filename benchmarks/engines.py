"""Spark and Ray Data beside their own scalers. Results are compared first; the best of several calls counts.

Both have two cores and the same rows: Spark in Parquet files, Ray in its object store.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bnorm import BatchNormTransformer

from . import timing

FEATURES, PART = 20, 500_000
COLUMNS = [f"c{i}" for i in range(FEATURES)]
ROUNDS = 3
Table = list[list[str]]
Measured = tuple[str, Table]  # what was measured, and the times


def tables(rows: int) -> Iterator[Any]:
    """Yield pyarrow tables that together have this many rows."""
    import pyarrow as pa

    for start in range(0, rows, PART):
        x = np.random.default_rng(start).standard_normal((FEATURES, min(PART, rows - start)))
        yield pa.table({name: (i + 1) * x[i] + 10 * i for i, name in enumerate(COLUMNS)})


def best(*groups: dict[str, Callable[[], Any]]) -> Table:
    """Return the table of the best times. The calls of a group do the same, and the first one is bnorm's.

    The repetitions of a call follow each other: after a fit of Ray's scaler, any other call takes seconds longer.
    """
    lines = [["call", "seconds, best", "times bnorm's"]]
    for calls in groups:
        found = {name: timing.best(call, ROUNDS) for name, call in calls.items()}
        ours = next(iter(found.values()))
        for i, (name, took) in enumerate(found.items()):
            lines.append([name, f"{took:.2f}", f"{took / ours:.1f}" if i else ""])
    return lines


def agree(t: Any, mean: Any, std: Any) -> None:
    """Raise AssertionError unless another library has our results."""
    np.testing.assert_allclose(t.mean_, mean, atol=1e-10)
    np.testing.assert_allclose(t.scale_, std, rtol=1e-6)  # some divide by one row less


def spark(rows: int) -> Measured:
    """Fit and transform of a DataFrame of Parquet files, beside those of pyspark.ml."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.ml.feature import StandardScaler, VectorAssembler
    from pyspark.sql import SparkSession

    from bnorm.distributed import spark as engine

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
    session = builder.config("spark.driver.memory", "4g").getOrCreate()
    assemble = VectorAssembler(inputCols=COLUMNS, outputCol="v").transform
    scaler = StandardScaler(inputCol="v", outputCol="z", withMean=True)

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})

    def compute(df: Any) -> None:
        df.write.format("noop").mode("overwrite").save()

    with tempfile.TemporaryDirectory() as folder:
        for i, table in enumerate(tables(rows)):
            pq.write_table(table, Path(folder) / f"{i}.parquet", row_group_size=PART // 2)
        df = session.read.parquet(folder)
        t, model = engine.fit(BatchNormTransformer(momentum=None), df), scaler.fit(assemble(df))
        agree(t, model.mean.toArray(), model.std.toArray())
        fits: dict[str, Callable[[], Any]] = {
            "`spark.fit`": lambda: engine.fit(BatchNormTransformer(momentum=None), df),
            "`VectorAssembler` and `StandardScaler.fit`": lambda: scaler.fit(assemble(df)),
            "`mapInArrow` of a function that counts rows": lambda: df.mapInArrow(count, "n bigint").collect(),
        }
        transforms: dict[str, Callable[[], Any]] = {
            "`spark.transform`": lambda: compute(engine.transform(t, df)),
            "their `transform`": lambda: compute(model.transform(assemble(df)).select("z")),
        }
        found = best(fits, transforms)
    what = f"{rows:,} rows of {FEATURES} columns of double in Parquet files, Spark {session.version} as `local[2]`"
    session.stop()
    return what, found


def ray(rows: int) -> Measured:
    """Fit and transform of a Dataset, beside those of Ray's preprocessor."""
    import logging

    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray as cluster
    import ray.data
    from ray.data.preprocessors import StandardScaler

    from bnorm.distributed import ray as engine

    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    memory = max(10**9, 3 * rows * FEATURES * 8 // 2)
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    cluster.init(num_cpus=2, object_store_memory=memory, **quiet)
    cluster.data.DataContext.get_current().enable_progress_bars = False
    ds = cluster.data.from_arrow(list(tables(rows))).materialize()

    def compute(lazy: Any) -> None:
        for _ in lazy.iter_internal_ref_bundles():
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t, scaler = engine.fit(BatchNormTransformer(momentum=None), ds), StandardScaler(COLUMNS).fit(ds)
        agree(t, *([scaler.stats_[f"{what}({name})"] for name in COLUMNS] for what in ("mean", "std")))
        fits: dict[str, Callable[[], Any]] = {
            "`ray.fit`": lambda: engine.fit(BatchNormTransformer(momentum=None), ds),
            "`StandardScaler.fit`": lambda: StandardScaler(COLUMNS).fit(ds),
        }
        transforms: dict[str, Callable[[], Any]] = {
            "`ray.transform`": lambda: compute(engine.transform(t, ds)),
            "`StandardScaler.transform`": lambda: compute(scaler.transform(ds)),
        }
        found = best(fits, transforms)
    what = f"{rows:,} rows of {FEATURES} columns of double in {ds.num_blocks()} blocks, Ray {cluster.__version__}"
    cluster.shutdown()
    return f"{what} with two cores", found
