"""Functions that test_spark.py runs in processes of their own: `python spark_jobs.py MASTER NAME` calls one.

A master that begins with "connect:" is used through Spark Connect.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import bnorm
from bnorm.distributed import spark
from engine_tables import COLUMNS, FEATURES, close, table

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.default.parallelism": "3",
    "spark.log.level": "OFF",
}


def session(master):
    """Return a session whose workers have this interpreter and the import path of the tests."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    builder = SparkSession.builder
    remote = master.startswith("connect:")
    builder = builder.remote(master.removeprefix("connect:")) if remote else builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def fitted(**mode):
    _, x = table()
    return bnorm.BatchNormTransformer(**mode).fit(x)


def in_parts(here):
    """Return the table in seven partitions, of which some are empty and one has one row."""
    df = here.createDataFrame(table()[0])
    rest = df.where("s != 'text 3'").repartition(4, "s")
    return df.where("false").union(df.where("s = 'text 3'").coalesce(1)).union(rest)


def statistics(here):
    """Check that statistics are those of one machine, with the same digest for any partitions."""
    df = in_parts(here)
    t = spark.fit(bnorm.BatchNormTransformer(momentum=None), df, COLUMNS)
    close(t, fitted())
    assert list(t.feature_names_in_) == FEATURES
    for some in (df, df.repartition(2, "i")):
        exact = spark.fit(bnorm.BatchNormTransformer(momentum=None, exact=True), some, COLUMNS)
        assert exact.digest() == fitted(momentum=None, exact=True).digest()
    y = spark.transform(t, df).toArrow()
    assert y.column_names == df.columns
    assert sorted(y["s"].to_pylist()) == sorted(table()[0]["s"].to_pylist())


def killed(here, victim):
    """A worker dies after it has read a part of a partition. The partition is computed again."""
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "killed"
        df = here.createDataFrame(table()[0])
        dangerous = df.repartition(4, "s").mapInArrow(partial(dies_once, mark, victim), df.schema)
        t = spark.fit(bnorm.BatchNormTransformer(momentum=None), dangerous, COLUMNS)
        assert mark.exists()
    close(t, fitted())


def dies_once(mark, victim, batches):
    for batch in batches:
        yield batch.slice(0, 5)
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            yield batch.slice(5)
        else:
            victim()


def this_process():
    os._exit(1)


def its_executor():
    """Kill the Java process that has started the daemon that has forked this worker."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, 9)
    os._exit(1)


def worker_killed(here):
    killed(here, this_process)


def executor_killed(here):
    killed(here, its_executor)


if __name__ == "__main__":
    here = session(sys.argv[1])
    here.range(1).collect()
    for name in sys.argv[2:]:
        globals()[name](here)
        print(name)
    np.testing.assert_array_equal(here.range(3).toPandas()["id"], [0, 1, 2])
    here.stop()
