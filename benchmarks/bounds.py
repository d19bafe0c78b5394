"""How near is the least that memory allows? `python -m benchmarks.bounds`: bnorm and PyTorch beside traffic.c.

traffic.c reads and writes what every library has to, into memory that is allocated already, and computes next to
nothing. No library can be faster than PyTorch by more than PyTorch's time over that of traffic.c. --save keeps the
tables in results/.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import bnorm

from . import adapters, machine
from .copying import Copy
from .processes import Remote
from .shapes import NAMED, Case
from .store import RESULTS, save_page
from .text import aligned, geometric_mean, markdown
from .timing import Effort, Local, Row, measure

EFFORT = Effort(processes=1, rounds=5, least=3, budget=0.1, sample=0.001, samples=2)
LEAST = "traffic"
KINDS = ("batch", "layer", "group", "instance")
LABELS = ("bnorm", "bnorm out=", "PyTorch", "PyTorch out=")


def run(
    cases: Sequence[Case],
    dtypes: Sequence[str],
    threads: Sequence[int],
    process: Callable[[str], Local] = Remote,
    effort: Effort = EFFORT,
    peer: str = "torch",
) -> list[Row]:
    found = []
    with ExitStack() as stack:
        libraries = [stack.enter_context(process(name)) for name in (adapters.OURS, peer, LEAST)]
        copies = {n: stack.enter_context(Copy(n)) for n in threads}
        for case in cases:
            for dtype in dtypes:
                for n in threads:
                    print(f"{case.name} {dtype}, {n} threads", file=sys.stderr, flush=True)
                    rows, speed = copies[n].beside(partial(measure, case, dtype, n, libraries, effort, None))
                    found += [row | {"copy": speed} for row in rows]
    return found


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Return a line for every row: the time of traffic.c, and each label's time over it; and the geometric means."""
    labels = [label for label in LABELS if all(label in row["ms"] for row in rows)]
    ratios = [[row["ms"][label][1] / row["ms"][LEAST][1] for label in labels] for row in rows]
    lines = [["", f"{LEAST}, ms", *(f"{label} / {LEAST}" for label in labels)]]
    for row, found in zip(rows, ratios, strict=True):
        lines.append([row["shape"], f"{row['ms'][LEAST][1]:.4g}", *(f"{ratio:.2f}" for ratio in found)])
    return [*lines, ["geometric mean", "", *(f"{geometric_mean(each):.2f}" for each in zip(*ratios, strict=True))]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.add_argument("--match", metavar="TEXT", default="", help="only cases with this in their name")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float64"], default=["float32"])
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, bnorm.get_num_threads()}))
    parser.add_argument("--save", action="store_true", help="into results/, as Markdown")
    options = parser.parse_args()
    cases = [case for case in NAMED if case.kind in KINDS and options.match in case.name]
    if not cases:
        parser.error(f"--match: no case has {options.match!r} in its name")
    others, pages = machine.Others(), []
    rows = run(cases, options.dtypes, options.threads)
    for title, part in parts(rows):
        lines = table(part)
        print("\n".join([title, *aligned(lines, 1), ""]), flush=True)
        pages += [f"## {title}", "", *markdown(lines), ""]
    if options.save:
        save(pages, RESULTS / Path(machine.file_name()).with_suffix(".bounds.md"), others.cores())


def parts(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Group rows by type, threads and operation, with batch norm apart from the norms of rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        kind = "Batch norm" if row["kind"] == "batch" else "Rows"
        found.setdefault(f"{kind}, {row['operation']}, {row['dtype']}, threads: {row['threads']}", []).append(row)
    return sorted(found.items())


def save(pages: Sequence[str], path: Path, busy: float | None) -> None:
    words = [
        f"Other processes used {busy or 0.0} cores. `traffic` reads what has to be read, writes what has to be",
        "written, and does one operation for each value: PyTorch over that is the most that any library could be",
        "faster than PyTorch.",
    ]
    save_page(path, "What memory allows", "bounds", words, pages)


if __name__ == "__main__":
    main()
