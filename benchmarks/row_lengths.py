"""Are short rows fast too? `python -m benchmarks.row_lengths`: PyTorch's time over bnorm's, by the length of a row.

Layer, RMS, group and instance norm of arrays of equal size, with more and more values in a row, on one and all threads.
Each result is compared with float64 first. --save keeps the tables in results/.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import bnorm

from . import adapters, machine
from .exact import exact
from .processes import Remote
from .shapes import Case, Data
from .store import RESULTS, save_page
from .text import aligned, geometric_mean, markdown
from .timing import Effort, Local, Row, measure

LENGTHS = [8, 16, 17, 33, 64, 100, 128, 255, 512, 768, 1000, 4096]
KINDS = ("layer", "rms", "group", "instance")
SIZES = [256, 16384]  # KiB of an array: one is in the second-level cache, the other is too large for it
CHANNELS = 32  # of instance norm, at most
# Where a process has its arrays decides up to a third of a time, so several processes are measured.
EFFORT = Effort(processes=3, rounds=3, least=2, budget=0.1, sample=0.002, samples=2)
PEER = "PyTorch"
LABELS = {"": "fresh", " out=": "out="}


def case_of(kind: str, length: int, values: int) -> Case:
    """Return the case of an array of about this many values, with rows of this length."""
    rows = max(1, values // length)
    if kind == "instance":
        channels = min(CHANNELS, rows)
        return Case(kind, (rows // channels, channels, length, 1))
    if kind == "group":  # the fewest channels in a group, two or more, that divide it; eight groups in a sample
        few = next(n for n in range(2, length + 1) if length % n == 0)
        return Case(kind, (max(1, rows // 8), 8 * few, length // few, 1), groups=8)
    return Case(kind, (rows, length))


def ratio(row: Row, label: str) -> float:
    """Return PyTorch's time over ours. With out=, which PyTorch lacks, ours is compared with its fresh result."""
    took = row["ms"]
    return took[PEER][1] / took[adapters.OURS + label][1]


def run(
    kind: str,
    lengths: Sequence[int],
    values: int,
    threads: Sequence[int],
    dtype: str = "float32",
    process: Callable[[str], Local] = Remote,
    effort: Effort = EFFORT,
) -> list[tuple[int, Row]]:
    """Return the rows of `measure` for every length."""
    found = []
    with ExitStack() as stack:
        libraries = [stack.enter_context(process(name)) for name in (adapters.OURS, "torch")]
        for length in lengths:
            case = case_of(kind, length, values)
            wanted = exact(Data(case, dtype))
            for n in threads:
                print(f"{case.name}, {n} threads", file=sys.stderr, flush=True)
                found += [(length, row) for row in measure(case, dtype, n, libraries, effort, wanted)]
    return found


def table(found: Sequence[tuple[int, Row]]) -> list[list[str]]:
    """Return a line for every length, with a column for each operation, number of threads, and fresh or out=."""
    columns: dict[str, dict[int, float]] = {}
    for length, row in found:
        for label, words in LABELS.items():
            name = f"{row['operation']} {words} {row['threads']}"
            columns.setdefault(name, {})[length] = ratio(row, label)
    order = sorted(columns, key=lambda name: (int(name.split()[2]), name.split()[0] == "backward"))
    lines = [["values per row", *order]]
    for length in dict.fromkeys(length for length, _ in found):
        lines.append([str(length), *(f"{columns[name][length]:.2f}" for name in order)])
    return [*lines, ["geometric mean", *(f"{geometric_mean(columns[name].values()):.2f}" for name in order)]]


def narrow(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines for a screen of 100 columns: the words of a heading are below each other."""
    heads = [head.split() for head in lines[0]]
    return aligned([*([words[i] for words in heads] for i in range(3)), *lines[1:-1], ["mean", *lines[-1][1:]]], 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.row_lengths", description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="VALUES")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="KIB", help="of an array")
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, bnorm.get_num_threads()}))
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--save", action="store_true", help="into results/, as Markdown")
    options = parser.parse_args()
    others, pages = machine.Others(), []
    for kind in options.kinds:
        for size in options.sizes:
            values = (size << 10) // np.dtype(options.dtype).itemsize
            lines = table(run(kind, options.lengths, values, options.threads, options.dtype))
            title = f"{kind} norm, {size} KiB of {options.dtype}"
            print("\n".join([title, *narrow(lines), ""]), flush=True)
            pages += [f"## {title}", "", *markdown(lines), ""]
    if busy := others.cores():
        print(f"other processes used {busy} cores meanwhile")
    if options.save:
        save(pages, RESULTS / Path(machine.file_name()).with_suffix(".rows.md"), busy)


def save(pages: Sequence[str], path: Path, busy: float | None) -> None:
    words = [
        f"Other processes used {busy or 0.0} cores. Columns: the operation; whether the result is a fresh array or",
        "goes to `out=`, which PyTorch does not have here; threads.",
    ]
    save_page(path, f"{PEER}'s time over bnorm's, by the length of a row", "row_lengths", words, pages)


if __name__ == "__main__":
    main()
