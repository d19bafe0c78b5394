"""Groups: z-scores by key beside polars, pandas and scikit-lego, and the moments by groups beside plain moments.

    python -m benchmarks.groups [--quick] [--rows 10000000] [--groups 10 1000 100000] [--threads 2] [--save]

Every library gets a table of its own kind, whose columns are already in memory, computes (x - mean) / std of each row's
group, and is first compared with the others. What is not installed is left out, and named. scikit-lego fits one scaler
for each group, so its time grows with their number: of many groups it is measured on one in fifty, and multiplied.
pandas has to be there: bnorm's own time is that with its table.
--save writes the table of docs/groups.md.
"""

import argparse
import gc
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from . import machine, page
from .timing import seconds

PACKAGES = {"polars": "polars", "pandas": "pandas", "scikit-lego": "sklego"}
HEADS = ["groups", "rows", "bnorm", *PACKAGES, "moments"]
FEATURES = 8
PART = 50  # scikit-lego gets one in this many groups, with all of its rows, if at least 20 groups are left
NAMES = [f"x{i}" for i in range(FEATURES)]
Call = Callable[[], Any]


def best(call: Call, rounds: int) -> float:
    """Return the time of the quickest of some calls; the garbage of one is not collected in the next."""
    took = []
    for _ in range(rounds):
        gc.collect()
        took.append(seconds(call))
    return min(took)


def polars_call(x: np.ndarray, key: np.ndarray) -> tuple[Call, Any]:
    """Return a call that computes z-scores by polars' window expressions, and its table."""
    import polars as pl

    table = pl.DataFrame({"key": key} | {name: x[:, i] for i, name in enumerate(NAMES)})
    columns = [pl.col(name) for name in NAMES]
    scores = [(c - c.mean().over("key")) / c.std(ddof=0).over("key") for c in columns]
    return lambda: table.select(scores), table


def pandas_call(x: np.ndarray, key: np.ndarray) -> tuple[Call, Any]:
    """Return a call that computes z-scores by groupby and transform, as in pandas' documentation, and its table."""
    import pandas as pd

    table = pd.DataFrame(np.asfortranarray(x), columns=NAMES, copy=False)
    table.insert(0, "key", key)

    def call() -> Any:
        groups = table.groupby("key", sort=False)[NAMES]
        return (table[NAMES] - groups.transform("mean")) / groups.transform("std", ddof=0)

    return call, table


def lego_call(x: np.ndarray, key: np.ndarray) -> Call:
    """Return a call of scikit-lego's estimator, which has a scaler for each group."""
    import pandas as pd
    from sklearn.preprocessing import StandardScaler
    from sklego.meta import GroupedTransformer

    table = pd.DataFrame(x, columns=NAMES)
    table.insert(0, "key", key)
    return lambda: GroupedTransformer(StandardScaler(), groups=["key"]).fit_transform(table)


def measured(rows: int, groups: int, way: str, rounds: int, some: Sequence[str]) -> list[str]:
    """Return a line of the table. A cell has the time of a library, and its ratio to ours for the same table."""
    from bnorm import GroupedTransformer
    from bnorm.kernels import cpu
    from bnorm.kernels.cpu import groups as kernels

    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 2.0, (rows, FEATURES))
    key = rng.integers(0, groups, rows)
    if way == "sorted":
        key.sort()
    plain = best(lambda: cpu.moments(x, None, True), rounds + 2)
    by_groups = best(lambda: kernels.moments(x, key, groups, None, True), rounds + 2)
    ours, took = GroupedTransformer("key"), {}
    call, table = pandas_call(x, key)
    own = best(lambda: ours.fit(table).transform(table), rounds)
    if "scikit-lego" in some:
        part = max(1, min(PART, groups // 20))
        some_of = key < groups // part
        lego = lego_call(x[some_of], key[some_of])
        theirs, mine = beside(lego, lambda: ours.fit_transform(table), rounds, 1)
        took["scikit-lego"] = part * theirs, mine
    if "pandas" in some:
        agree(call, ours, table)
        took["pandas"] = beside(call, lambda: ours.fit(table).transform(table), rounds)
    if "polars" in some:
        call, table = polars_call(x, key)
        agree(call, ours, table)
        took["polars"] = beside(call, lambda: ours.fit(table).transform(table), rounds)
    cells = ["" if n not in took else f"{took[n][0]:.2f} s, {took[n][0] / took[n][1]:.1f}×" for n in PACKAGES]
    return [f"{groups:,}", way, f"{own:.2f} s", *cells, f"{by_groups * 1e3:.0f} ms, {by_groups / plain:.2f}"]


def beside(call: Call, own: Call, rounds: int, turns: int = 2) -> tuple[float, float]:
    """Return the seconds of another library's call and of ours, measured in turns."""
    theirs = mine = float("inf")
    for _ in range(turns):
        mine = min(mine, best(own, rounds))
        theirs = min(theirs, best(call, 1))
    return theirs, min(mine, best(own, rounds))


def agree(call: Call, ours: Any, table: Any) -> None:
    """Raise AssertionError unless another library has our results."""
    right = np.asarray(call())[:1000]
    several = np.isfinite(right)  # for a group of one row they divide 0 by 0
    np.testing.assert_allclose(ours.fit(table).transform(table)[:1000][several], right[several], atol=1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description="Measure z-scores by groups.")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, nargs="+", default=[10, 1_000, 100_000])
    parser.add_argument("--threads", type=int, default=2, help="of every library")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="into docs/groups.md")
    parser.add_argument("--only", nargs="+", default=list(PACKAGES), metavar="LIBRARY")
    options = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = str(options.threads)
    import bnorm

    bnorm.set_num_threads(options.threads)
    some = [name for name in options.only if find_spec(PACKAGES[name])]
    if left := [name for name in options.only if name not in some]:
        print(f"not installed: {', '.join(left)}")
    rows = options.rows // 100 if options.quick else options.rows
    what = f"{rows:,} rows of {FEATURES} float64 features, {options.threads} threads"
    print(f"{what}; fit and transform\n")
    others, lines = machine.Others(), [HEADS]
    for groups in options.groups:
        for way in ("shuffled", "sorted"):
            lines.append(measured(rows, min(groups, rows), way, options.rounds, some))
            print("  ".join(lines[-1]), flush=True)
    if options.save:
        page.save("groups.md", "groups", lines, what, others.cores())


if __name__ == "__main__":
    main()
