"""Standardize a folder of Parquet files, larger than the memory of all workers, on a local Dask cluster.

    pip install ".[dask]"                         # in a clone of the repository
    python examples/dask_table.py                 # 1.6 GB of files in a temporary folder, two workers of 0.5 GB each
    python examples/dask_table.py --rows 200_000  # any number of rows, 32 columns

The table is read twice: by `fit`, and while the result is written, because `transform` is lazy, and computes file by
file. Only a few files are in memory at a time. The statistics are those of a fit on the whole table in memory. Missing
values do not count, and stay missing.
"""

import argparse
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.distributed import Client, LocalCluster, progress

from bnorm import BatchNormTransformer

COLUMNS, ROWS_OF_A_FILE = 32, 20_000
WORKERS, LIMIT = 2, 500_000_000  # bytes of memory of each


def write(folder, rows):
    """Write files of random numbers, with columns of different mean and spread, and missing values."""
    names = [f"x{i:02}" for i in range(COLUMNS)]
    for number, start in enumerate(range(0, rows, ROWS_OF_A_FILE)):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((min(ROWS_OF_A_FILE, rows - start), COLUMNS))
        x = x * np.logspace(-3, 3, COLUMNS) + np.arange(COLUMNS) ** 2
        x[rng.random(len(x)) < 0.01, 0] = np.nan
        pd.DataFrame(x, columns=names).to_parquet(folder / f"part-{number:05}.parquet", index=False)


def size(folder):
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def peak():
    """The peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description="Standardize Parquet files on a Dask cluster.")
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the table (default: %(default)s)")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        table, result = Path(folder, "table"), Path(folder, "result")
        table.mkdir()
        write(table, args.rows)
        print(f"{args.rows:,} rows in {size(table) / 1e9:.2f} GB of files; workers have {WORKERS * LIMIT / 1e9:.2f} GB")

        cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=":0")
        with cluster, Client(cluster) as client:
            print(f"Dashboard: {client.dashboard_link}")
            frame = dd.read_parquet(table)
            start = time.perf_counter()
            t = BatchNormTransformer(momentum=None, eps=0).fit(frame)
            print(f"fit: {time.perf_counter() - start:.1f} s")

            start = time.perf_counter()
            writing = client.compute(t.transform(frame).to_parquet(result, compute=False))
            progress(writing, notebook=False)
            writing.result()
            print(f"\ntransform and write: {time.perf_counter() - start:.1f} s")

            check = BatchNormTransformer(momentum=None, eps=0).fit(dd.read_parquet(result))
            print(f"Result: means within {np.abs(check.mean_).max():.1e} of 0, ", end="")
            print(f"variances within {np.abs(check.var_ - 1).max():.1e} of 1")
            most = max(client.run(peak).values())
            print(f"Most memory of a worker: {most / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
