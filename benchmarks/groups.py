"""Groups: z-scores by key beside polars, pandas and scikit-lego, and the moments by groups beside plain moments.

    python -m benchmarks.groups [--quick] [--rows 10000000] [--groups 1000 100000] [--threads 2]

Every library gets a table of its own kind, whose columns are already in memory, computes (x - mean) / std of each row's
group, and is first compared with the others. What is not installed is left out, and named. scikit-lego fits one scaler
for each group, so its time grows with their number: it is measured on one in fifty, and multiplied.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from .text import aligned

FEATURES = 8
PART = 50  # scikit-lego gets one in so many groups, with all of its rows
NAMES = [f"x{i}" for i in range(FEATURES)]
Call = Callable[[], Any]


def seconds(call: Call, rounds: int) -> float:
    """The quickest of some calls; the garbage of one is not collected in the next."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def polars_call(x: np.ndarray, key: np.ndarray) -> tuple[Call, Any]:
    """The z-scores by polars' window expressions, and its table."""
    import polars as pl

    table = pl.DataFrame({"key": key} | {name: x[:, i] for i, name in enumerate(NAMES)})
    columns = [pl.col(name) for name in NAMES]
    scores = [(c - c.mean().over("key")) / c.std(ddof=0).over("key") for c in columns]
    return lambda: table.select(scores), table


def pandas_call(x: np.ndarray, key: np.ndarray) -> tuple[Call, Any]:
    """The z-scores by groupby and transform, as its documentation does it, and its table."""
    import pandas as pd

    table = pd.DataFrame(np.asfortranarray(x), columns=NAMES, copy=False)
    table.insert(0, "key", key)

    def call() -> Any:
        groups = table.groupby("key", sort=False)[NAMES]
        return (table[NAMES] - groups.transform("mean")) / groups.transform("std", ddof=0)

    return call, table


def lego_call(x: np.ndarray, key: np.ndarray) -> Call:
    """scikit-lego's estimator of one scaler for each group."""
    import pandas as pd
    from sklearn.preprocessing import StandardScaler
    from sklego.meta import GroupedTransformer

    table = pd.DataFrame(x, columns=NAMES)
    table.insert(0, "key", key)
    return lambda: GroupedTransformer(StandardScaler(), groups=["key"]).fit_transform(table)


def measured(rows: int, groups: int, way: str, rounds: int, some: list[str]) -> list[list[str]]:
    """The lines of one kind of codes."""
    from bnorm import GroupedTransformer
    from bnorm.kernels import cpu
    from bnorm.kernels.cpu import groups as kernels

    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 2.0, (rows, FEATURES))
    key = rng.integers(0, groups, rows)
    if way == "sorted":
        key.sort()
    took: dict[str, float] = {}
    plain = seconds(lambda: cpu.moments(x, None, True), rounds + 2)
    by_groups = seconds(lambda: kernels.moments(x, key, groups, None, True), rounds + 2)
    ours = GroupedTransformer("key")
    tables: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    if "polars" in some:
        calls["polars"], tables["polars"] = polars_call(x, key)
    if "pandas" in some:
        calls["pandas"], tables["pandas"] = pandas_call(x, key)
    for name, table in tables.items():
        right = np.asarray(calls[name]())[:1000]
        several = np.isfinite(right)  # they divide 0 by 0 where a group has one row
        np.testing.assert_allclose(ours.fit(table).transform(table)[:1000][several], right[several], atol=1e-9)
        took[name] = seconds(calls[name], 1)
        took[f"bnorm, {name}"] = seconds(lambda table=table: ours.fit(table).transform(table), rounds)
    if "scikit-lego" in some:
        some_of = key < groups // PART
        took["scikit-lego"] = PART * seconds(lego_call(x[some_of], key[some_of]), 1)
    case = [f"{groups:,}", way]
    lines = [[*case, "moments", f"{by_groups * 1e3:.0f} ms", f"{by_groups / plain:.2f} of plain moments"]]
    for name, took_it in took.items():
        own = took.get(f"bnorm, {name}", min((t for n, t in took.items() if n.startswith("bnorm")), default=np.nan))
        beside = "" if name.startswith("bnorm") else f"{took_it / own:.1f} times bnorm"
        lines.append([*case, name, f"{took_it:.2f} s", beside])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description="Measure z-scores by groups.")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--threads", type=int, default=2, help="of every library")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=["polars", "pandas", "scikit-lego"], metavar="LIBRARY")
    options = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = str(options.threads)
    import bnorm

    bnorm.set_num_threads(options.threads)
    packages = {"polars": "polars", "pandas": "pandas", "scikit-lego": "sklego"}
    some = [name for name in options.only if find_spec(packages[name])]
    if left := [name for name in options.only if name not in some]:
        print(f"not installed: {', '.join(left)}")
    rows = options.rows // 100 if options.quick else options.rows
    print(f"{rows:,} rows of {FEATURES} float64 features, {options.threads} threads; fit and transform\n")
    lines = [["groups", "codes", "", "time", ""]]
    for groups in options.groups:
        for way in ("shuffled", "sorted"):
            lines += measured(rows, min(groups, rows), way, options.rounds, some)
    print("\n".join(aligned(lines, 3)))


if __name__ == "__main__":
    main()
