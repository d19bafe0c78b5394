"""What statistics of many machines cost: `python -m benchmarks.distributed`; the tables of docs/distributed.md.

    python -m benchmarks.distributed merge     # simulated partitions: time and accuracy of the merge
    python -m benchmarks.distributed bytes     # what travels
    python -m benchmarks.distributed dask      # fit and transform on two worker processes, beside Dask's own
    python -m benchmarks.distributed spark     # fit and transform beside pyspark.ml's
    python -m benchmarks.distributed ray       # fit and transform beside Ray's preprocessor

--save writes the tables into the page. dask-ml is measured where it is installed. Spark needs a Java.
"""

import pickle
from importlib.util import find_spec
from math import ceil, log2
from statistics import median

import numpy as np

import bnorm
from bnorm import Moments
from bnorm.distributed.communicator import Message

from . import engines, page
from .options import parser
from .text import markdown
from .timing import seconds

FEATURES = 1000
ROWS = 100  # of a partition, in the test of accuracy
SHAPE, CHUNKS = (2_000_000, 32), (100_000, 32)


def merge(rows: int) -> engines.Measured:
    """Measure the time to merge partitions of 1,000 features, and the largest error of the variance."""
    table = [["partitions", "depth", "seconds", "microseconds each", "largest relative error of the variance"]]
    rng = np.random.default_rng(0)
    for n in (10, 100, 1000, 10_000):
        parts = rng.random((n, 4, FEATURES))
        parts[:, 0], parts[:, 3] = ROWS, 0
        items = [Moments._from_parts(part) for part in parts]
        took = median(seconds(lambda items=items: Moments.merge(items)) for _ in range(5))
        depth = str(ceil(log2(n)))
        table.append([f"{n:,}", depth, f"{took:.3g}", f"{took / n * 1e6:.3g}", f"{accuracy(n, rng):.1e}"])
    return f"Partitions of {FEATURES:,} features, merged in one call", table


def accuracy(n: int, rng: np.random.Generator) -> float:
    """The error for partitions whose mean is a million standard deviations from zero, against long double sums."""
    x = rng.standard_normal((n * ROWS, 4)) + 1e6
    x += np.repeat(rng.standard_normal((n, 1)), ROWS, axis=0)  # so that partitions differ
    merged = Moments.merge(bnorm.functional.moments(part) for part in np.split(x, n))
    wide = x.astype(np.longdouble)
    exact = ((wide - wide.mean(0)) ** 2).mean(0)
    return float(np.abs(merged.var() / exact - 1).max())


def traffic(rows: int) -> engines.Measured:
    """The bytes that each rank sends and receives in a synchronized step, and the depth of the merge."""
    table = [["ranks", "features", "sent, forward", "received, forward", "received, backward", "depth of the merge"]]
    for ranks in (2, 8, 64, 1024):
        for features in (64, 1024):
            forward, backward = (
                len(pickle.dumps(Message("BatchNorm2d(1024): backward", np.zeros((rows, features)), None), 5))
                for rows in (4, 2)
            )
            sizes = [f"{forward:,}", f"{(ranks - 1) * forward:,}", f"{(ranks - 1) * backward:,}"]
            table.append([f"{ranks:,}", f"{features:,}", *sizes, str(ceil(log2(ranks)))])
    return "Bytes of each rank, and the depth of the merge", table


def dask(rows: int) -> engines.Measured:
    """Fit and transform a table that the workers hold in memory, in turns: medians of seven."""
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        x = da.random.default_rng(0).standard_normal(SHAPE, chunks=CHUNKS).persist()
        wait(x)
        t = bnorm.BatchNormTransformer(momentum=None).fit(x)
        calls = {
            "fit": lambda: bnorm.BatchNormTransformer(momentum=None).fit(x),
            "da.mean and da.var": lambda: dask.compute(da.mean(x, axis=0), da.var(x, axis=0)),
            "transform": lambda: wait(t.transform(x).persist()),
            "map_blocks of a copy": lambda: wait(x.map_blocks(np.copy).persist()),
        }
        if find_spec("dask_ml"):
            from dask_ml.preprocessing import StandardScaler

            scaler = StandardScaler().fit(x)
            calls["dask-ml StandardScaler.fit"] = lambda: StandardScaler().fit(x)
            calls["dask-ml StandardScaler.transform"] = lambda: wait(scaler.transform(x).persist())
        found = {name: [] for name in calls}
        for _ in range(7):
            for name, call in calls.items():
                found[name].append(seconds(call))
    table = [["call", "seconds, median", "quartiles"]]
    for name, times in found.items():
        low, high = np.quantile(times, [0.25, 0.75])
        table.append([name, f"{median(times):.3f}", f"{low:.3f} to {high:.3f}"])
    return f"{SHAPE} float64 in {SHAPE[0] // CHUNKS[0]} chunks, held by two workers of one thread each", table


MEASUREMENTS = {"merge": merge, "bytes": traffic, "dask": dask, "spark": engines.spark, "ray": engines.ray}

if __name__ == "__main__":
    program = parser("distributed", __doc__)
    program.add_argument("what", nargs="*", metavar="|".join(MEASUREMENTS), help="all of them without one")
    program.add_argument("--rows", type=int, default=10_000_000, help="of Spark and Ray")
    program.add_argument("--save", action="store_true", help="into docs/distributed.md")
    options = program.parse_args()
    if unknown := set(options.what) - MEASUREMENTS.keys():
        program.error(f"expected {', '.join(MEASUREMENTS)}, got {', '.join(sorted(unknown))}")
    for name in options.what or MEASUREMENTS:
        before = page.others_now()
        what, table = MEASUREMENTS[name](options.rows)
        after = page.others_now()
        print(f"{what}\n", *markdown(table), "", sep="\n", flush=True)
        if options.save:
            page.save("distributed.md", name, table, what, None if None in (before, after) else max(before, after))
