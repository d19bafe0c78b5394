"""What limits the speed? `python -m benchmarks.limits`: each goal, what was measured, and the most that is possible.

Everything in one run, float32, on all threads. --save writes the table into docs/performance.md, in the place of this
machine. Four to eight minutes.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

import bnorm
from bnorm import functional as F
from bnorm.kernels import cpu
from bnorm.kernels.activation import IDENTITY

from . import bounds, machine, page, targets
from .shapes import NAMED, SCALER
from .text import aligned, geometric_mean
from .timing import FULL, Row, quickest, seconds

HEAD = ["", "goal", "measured", "limit", "what limits it"]
LOOPS = "loops that only read and write"
WEIGHTED = [(4_000_000, 3), (4_000_000, 5)]
AIMS = {target.what: target for target in targets.TARGETS}
GROUPS = {
    "batch norm, training, × PyTorch": "forward, float32, over PyTorch",
    "batch norm, backward, × PyTorch": "backward, float32, over PyTorch",
    "batch norm, inference, × PyTorch": "inference, float32, over PyTorch",
    "layer, group and instance norm, × PyTorch": "row norms, over PyTorch",
    "transformer, × scikit-learn": "scaler, over StandardScaler",
}
OF_PLAIN = 1.5


def over_peers(rows: Sequence[Row]) -> list[list[str]]:
    """Return geometric means of a peer's time over ours, and over that of traffic.c."""
    lines = []
    for words, what in GROUPS.items():
        aim, peer = AIMS[what], words.rpartition("× ")[2]
        mine = [row["ms"] for row in rows if row["kind"] in aim.kinds and row["operation"] in aim.operations]
        if mine:
            ours, most = (geometric_mean(ms[peer][1] / ms[who][1] for ms in mine) for who in ("bnorm", bounds.LEAST))
            lines.append([words, f"{aim.mean:g}", f"{ours:.2f}", f"{most:.2f}", LOOPS])
    return lines


def of_copy(rows: Sequence[Row]) -> list[list[str]]:
    """Return the speed of the least bytes over that of a copy."""
    lines = []
    for row in rows:
        aim = AIMS.get(f"{row['operation']}, out=, of the roofline")
        if aim is not None and row["shape"] in aim.shapes:
            ours, most = (
                row["bytes"] / row["ms"][who][1] * 1e-6 / row["copy"]["memory"] for who in ("bnorm out=", bounds.LEAST)
            )
            words = f"{row['operation']} of {row['shape']}, of a copy"
            lines.append([words, f"{aim.least:g}", f"{ours:.2f}", f"{most:.2f}", LOOPS])
    return lines


def microseconds(call: Callable[[], object], times: int) -> float:
    """Return the median of 15 samples of this many calls, in microseconds per call."""
    return 1e6 * median(seconds(call, times) for _ in range(15))


def of_calls(times: int = 2000) -> list[list[str]]:
    """Measure a small call of a layer, and its compiled part, which includes making the results."""
    x, layer = np.random.default_rng(0).standard_normal((32, 64), dtype=np.float32), bnorm.BatchNorm1d(64)
    gamma, beta, mean, var = np.ones(64), np.zeros(64), np.zeros(64), np.ones(64)
    layer(x)
    fixed = bnorm.BatchNorm1d(64).eval()
    parts = {
        "training": partial(cpu.forward, x, gamma, beta, 1e-5, None, None, None, IDENTITY),
        "inference": partial(cpu.forward, x, gamma, beta, 1e-5, mean, var, None, IDENTITY),
    }
    lines = []
    for name, operation, each in [("training", "forward", layer), ("inference", "inference", fixed)]:
        whole, part = (microseconds(call, times) for call in (partial(each, x), parts[name]))
        goal = f"{AIMS[f'{operation} call, µs'].least:g}"
        lines.append([f"{name} call of (32, 64), µs", goal, f"{whole:.2f}", f"{part:.2f}", "the compiled part"])
    return lines


def of_weights(shapes: Sequence[tuple[int, int]] = WEIGHTED) -> list[list[str]]:
    """Measure moments with weights over plain ones; and plain ones plus a pass that only reads the weights."""
    from .adapters import traffic  # here, as it compiles traffic.c

    every, lines = bnorm.get_num_threads(), []
    bnorm.set_num_threads(1)
    for shape in shapes:
        x = np.resize(np.random.default_rng(0).standard_normal(100_003, dtype=np.float32), shape)
        weight = np.resize(np.random.default_rng(1).random(100_003), shape[0])
        values = {"weights": weight, "uint8": (weight * 5).astype(np.uint8)}
        reads = {name: traffic.reading(a) for name, a in values.items()}
        calls = {"plain": partial(F.moments, x), **{k: partial(F.moments, x, weight=w) for k, w in values.items()}}
        took = quickest(calls | {f"read {k}": read for k, read in reads.items()}, 2.0)
        for name in values:
            ours, least = took[name] / took["plain"], 1 + took[f"read {name}"] / took["plain"]
            words = f"moments of {shape}, {name}, × plain, 1 thread"
            lines.append([words, f"{OF_PLAIN:g}", f"{ours:.2f}", f"{least:.2f}", "reading the weights too"])
    bnorm.set_num_threads(every)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--save", action="store_true", help="into docs/performance.md")
    save, others, threads = parser.parse_args().save, machine.Others(), bnorm.get_num_threads()
    name = f"limits of {Path(machine.file_name()).stem}"
    if save:
        page.expect("performance.md", name)
    calls = of_calls()
    print("\n".join(aligned([HEAD, *calls, *(weights := of_weights())], 1)), flush=True)
    rows = bounds.run([case for case in NAMED if case not in SCALER], ["float32"], [threads], effort=FULL)
    rows += bounds.run(SCALER, ["float32"], [threads], effort=FULL, peer="sklearn")
    lines = [*over_peers(rows), *of_copy(rows), *calls, *weights]
    print("\n".join(aligned([HEAD, *lines], 1)))
    if save:
        what = f"float32, threads: {threads}"
        page.save("performance.md", name, [HEAD, *lines], what, others.cores())


if __name__ == "__main__":
    main()
