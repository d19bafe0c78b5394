"""How cost grows: time against N and against C, and the memory that a stream of batches takes."""

import sys
from math import log
from typing import Any

import numpy as np

from . import adapters
from .machine import free_memory
from .shapes import Case, Data, batch
from .text import aligned
from .timing import Effort, Local, measure, resource

SAMPLES = [10**k for k in range(2, 8)]  # N, for C = 32
CHANNELS = [4**k for k in range(1, 9)]  # C, for N = 1024
STREAM = 100, 50000, 20  # batches, rows, columns
EFFORT = Effort(processes=1, rounds=4, least=2, budget=0.3, sample=0.002)
Point = tuple[int, dict[str, float]]  # N or C, and the milliseconds of each operation


def curves(ours: Local, threads: int) -> dict[str, list[Point]]:
    """Measure bnorm with float32, into memory that is allocated already."""
    return {
        "N": [(n, _point(ours, threads, n, 32)) for n in SAMPLES if 4 * 4 * 32 * n < free_memory()],
        "C": [(c, _point(ours, threads, 1024, c)) for c in CHANNELS],
    }


def _point(ours: Local, threads: int, n: int, c: int) -> dict[str, float]:
    rows = measure(batch(n, c), "float32", threads, [ours], EFFORT, None)
    return {row["operation"]: row["ms"][f"{ours.about.name} out="][1] for row in rows}


def stream(library: Local) -> list[int]:
    """Return the peak memory of the library's process in KiB: before the first batch, and after each one."""
    try:
        return library.apply(peaks, library.module, *STREAM)
    finally:
        library.close()


def peaks(module: str, batches: int, rows: int, columns: int) -> list[int]:
    """Measure in a process of its own. All batches are in the same array, one after the other."""
    data = Data(Case("scaler", (rows, columns)))
    scaler = adapters.load(module).adapters["scaler"](data)
    rng, found = np.random.default_rng(0), [most_memory()]
    for _ in range(batches):
        rng.standard_normal(dtype="float32", out=data.x)
        scaler.partial_fit()
        found.append(most_memory())
    return found


def most_memory() -> int:
    """Return the peak memory of this process so far, in KiB."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def report(growth: dict[str, Any]) -> str:
    """Return curves and memory as plain text."""
    lines = []
    for axis, curve in growth["curves"].items():
        fixed = "C = 32" if axis == "N" else "N = 1024"
        names = list(curve[0][1])
        table = [[axis, *(f"{name} ms" for name in names), *(f"{name} slope" for name in names)]]
        for before, (size, ms) in zip([None, *curve], curve, strict=False):
            slopes = [f"{_slope(before, (size, ms), name):.2f}" if before else "" for name in names]
            table.append([str(size), *(f"{ms[name]:.4g}" for name in names), *slopes])
        lines += [f"time against {axis}, {fixed}, float32, out=; slope on log axes: 1 is a straight line", ""]
        lines += [*aligned(table, 0), ""]
    batches, rows, columns = STREAM
    lines.append(f"peak memory of partial_fit over {batches} batches of ({rows}, {columns}) float32, in MiB")
    lines.append("")
    seen = [0, 1, 2, 10, batches]
    table = [["library", "before", *(f"after {n}" for n in seen[1:])]]
    table += [[name, *(f"{found[n] / 1024:.1f}" for n in seen)] for name, found in growth["stream"].items()]
    return "\n".join([*lines, *aligned(table, 1)])


def _slope(before: Point, after: Point, name: str) -> float:
    return log(after[1][name] / before[1][name]) / log(after[0] / before[0])
