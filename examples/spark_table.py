"""Standardize a table of Parquet files with Spark: statistics in one pass, a lazy result, and the same on one machine.

    pip install ".[spark]"                        # in a clone; and a Java, such as Debian's openjdk-17-jre-headless
    python examples/spark_table.py                # 2,000,000 rows, on all cores of this machine
    python examples/spark_table.py --master spark://host:7077

Workers need bnorm: `PYSPARK_PYTHON` must name an interpreter that has it. With `exact=True` the statistics, and their
digest, are the same however the table is cut into partitions.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.dataset
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bnorm import BatchNormTransformer
from bnorm.distributed import spark

SENSORS = [f"sensor{i:02}" for i in range(12)]


def write(session, rows, path):
    """A table of sensors far from zero, with missing values, a name, and a weight for each row."""
    values = [F.when(F.rand(i) > 0.01, F.randn(i) * (i + 1) + 1e5 * i).alias(name) for i, name in enumerate(SENSORS)]
    name = F.concat(F.lit("machine "), F.col("id") % 100).alias("name")
    session.range(rows).select(name, (F.col("id") % 3).alias("weight"), *values).write.parquet(path)


def main():
    parser = argparse.ArgumentParser(description="Standardize a table of Parquet files with Spark.")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the table (default: %(default)s)")
    parser.add_argument("--master", default="local[*]", help="of Spark (default: %(default)s)")
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(args.master).config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.log.level", "ERROR").getOrCreate()
    with TemporaryDirectory() as folder:
        table, result = (str(Path(folder, name)) for name in ("table", "result"))
        write(session, args.rows, table)
        df = session.read.parquet(table)

        start = time.perf_counter()
        t = spark.fit(BatchNormTransformer(momentum=None), df, columns=SENSORS, sample_weight="weight")
        print(f"fit: {args.rows:,} rows of {len(SENSORS)} columns in {time.perf_counter() - start:.1f} s")

        spark.transform(t, df).write.parquet(result)  # computed here, partition by partition
        check = spark.fit(BatchNormTransformer(momentum=None), session.read.parquet(result), SENSORS, "weight")
        print(f"Result: means within {np.abs(check.mean_).max():.1e} of 0, ", end="")
        print(f"variances within {np.abs(check.var_ - 1).max():.1e} of 1")

        exact = BatchNormTransformer(momentum=None, exact=True)
        digests = [spark.fit(exact, df.repartition(n), SENSORS).digest() for n in (3, 8)]
        digests.append(exact.fit(pyarrow.dataset.dataset(table).to_table(SENSORS)).digest())
        print("Digests of 3 partitions, 8 partitions, and of one machine:", *digests, sep="\n  ")
    session.stop()


if __name__ == "__main__":
    main()
