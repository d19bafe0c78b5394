"""What exact sums cost: `moments(x, exact=True)` beside plain `moments`, in one run.

    python -m benchmarks.exact_moments [--levels] [--match TEXT] [--save]

A line has the better of many times of both, taken in turn, and their ratio. --levels repeats it for every SIMD level
that this processor has, each in a process of its own. --save does that, and writes the tables of docs/exact.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import bnorm
from bnorm import functional as F
from bnorm.kernels import cpu

from . import machine
from .store import count
from .text import between, markdown
from .timing import quickest

PAGE = Path(__file__).parents[1] / "docs" / "exact.md"
NAMES = {"avx512": "AVX-512", "avx2": "AVX2", "baseline": "neither"}
SHAPES = [(1_000_000, 32), (1_000_000, 100), (100_000, 16), (4096, 512), (64, 64, 56, 56), (32, 64)]
GOALS = {  # the ratio on one thread, and on several
    "float32": (1.7, 1.3),
    "float64": (2.5, 2.0),
    "int8": (1.1, 1.1),
    "uint16": (1.1, 1.1),
}
SMALL = 15e-6  # seconds for (32, 64)
SECONDS = 1.0  # for the calls of both, for a line


class Cost(NamedTuple):
    """One case, and the seconds of plain and of exact moments."""

    level: str
    dtype: str
    shape: tuple[int, ...]
    threads: int
    plain: float
    exact: float

    @property
    def small(self) -> bool:
        return self.shape == SHAPES[-1]

    @property
    def cell(self) -> str:
        return f"{self.exact * 1e6:.0f} µs" if self.small else f"{self.exact / self.plain:.2f}"

    @property
    def missed(self) -> bool:
        return self.exact > SMALL if self.small else self.exact / self.plain > GOALS[self.dtype][self.threads > 1]

    def line(self) -> str:
        goal = f"{SMALL * 1e6:.0f} µs" if self.small else f"{GOALS[self.dtype][self.threads > 1]}"
        times = f"{self.plain * 1e3:9.4f}{self.exact * 1e3:11.4f}{self.exact / self.plain:7.2f}"
        return f"{case_of(*self[1:4]):38}{times}  {goal}{' -' * self.missed}"


def case_of(dtype: str, shape: Sequence[int], threads: int) -> str:
    return f"{dtype} {tuple(shape)}, {count(threads, 'thread')}"


def measured(match: str) -> Iterator[Cost]:
    every = bnorm.get_num_threads()
    rng = np.random.default_rng(0)
    for dtype in GOALS:
        for shape in SHAPES:
            chosen = [n for n in sorted({1, every}) if match in case_of(dtype, shape, n)]
            x = (rng.standard_normal(shape, dtype=np.float32) * 10).astype(dtype) if chosen else None
            for threads in chosen:
                bnorm.set_num_threads(threads)
                took = quickest({exact: partial(F.moments, x, exact=exact) for exact in (False, True)}, SECONDS)
                yield Cost(cpu.simd_level(), dtype, shape, threads, took[False], took[True])
    bnorm.set_num_threads(every)


def measure(match: str, kept: Path | None = None) -> None:
    print(f"\n{cpu.simd_level()}\n{'':38}plain, ms  exact, ms  ratio  goal", flush=True)
    costs = []
    for cost in measured(match):
        costs.append(cost)
        print(cost.line(), flush=True)
    if kept:
        kept.write_text(json.dumps(costs), encoding="utf-8")


def at_every_level(match: str, folder: Path | None = None) -> list[Cost]:
    """Measure each level in a process of its own, the widest first. Return what they found if there is a folder."""
    costs = []
    for level in reversed(cpu.simd_levels()):
        again = [sys.executable, "-m", "benchmarks.exact_moments", "--match", match]
        kept = folder / f"{level}.json" if folder else None
        subprocess.run(
            [*again, *(["--kept", str(kept)] if kept else [])], check=True, env=os.environ | {"BNORM_SIMD": level}
        )
        if kept:
            found = json.loads(kept.read_text(encoding="utf-8"))
            costs += [Cost(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in found]
    return costs


def tables(costs: Sequence[Cost], busy: float | None = None) -> list[str]:
    """The tables: every case of the widest level, and the least and the largest ratio of the other levels."""
    widest, threads = costs[0].level, sorted({cost.threads for cost in costs})
    by_case = {cost[:4]: cost for cost in costs}
    heads = [f"{dtype}, {count(n, 'thread')}" for dtype in GOALS for n in threads]
    lines = [["", *heads]]
    for shape in SHAPES:
        lines.append([str(shape), *(by_case[widest, dtype, shape, n].cell for dtype in GOALS for n in threads)])
    others = [["", *GOALS]]
    for level in dict.fromkeys(cost.level for cost in costs):
        if level != widest:
            cells = []
            for dtype in GOALS:
                found = [c.exact / c.plain for c in costs if (c.level, c.dtype) == (level, dtype) and not c.small]
                cells.append(f"{min(found):.2f} to {max(found):.2f}")
            others.append([NAMES[level], *cells])
    here = machine.facts(widest)
    head = f"{here['processor']}, {here['cores']} cores, {NAMES[widest]}, {here['date']}; in times of plain `moments`."
    head += machine.Others.said(busy)
    rest = ["", "And with other instructions, of all shapes but the last:", "", *markdown(others)] if others[1:] else []
    return [head, "", *markdown(lines), *rest]


def replaced(text: str, lines: Sequence[str]) -> str:
    return between(text, "costs", "\n".join(["", *lines, ""]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_moments", description=__doc__)
    parser.add_argument("--levels", action="store_true", help="every SIMD level of this processor")
    parser.add_argument(
        "--match", default="", metavar="TEXT", help="only cases with this in their name, as 'float32 ('"
    )
    parser.add_argument("--save", action="store_true", help="every level, into docs/exact.md")
    parser.add_argument("--kept", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save:
        others = machine.Others()
        with tempfile.TemporaryDirectory() as folder:
            costs = at_every_level("", Path(folder))
        lines = tables(costs, others.cores())
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")
    elif options.levels:
        at_every_level(options.match)
    else:
        measure(options.match, options.kept)


if __name__ == "__main__":
    main()
