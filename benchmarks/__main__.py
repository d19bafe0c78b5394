"""`python -m benchmarks`: measure every shape, print every number, and with --save keep them."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import bnorm

from . import machine, providers, shapes, table
from .copying import Copy
from .processes import Remote
from .timing import FULL, QUICK, Effort, Worker, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few shapes, under a minute")
    parser.add_argument("--threads", type=int, metavar="N", help="for every library; all of them by default")
    parser.add_argument("--save", action="store_true", help="into results/, and from there into README.md")
    options = parser.parse_args()
    if options.quick and options.save:
        parser.error("--save keeps a full run: leave --quick out")
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads: expected 1 or more, got {options.threads}")
    if options.save:
        before = machine.Others()
        time.sleep(2)
        if (busy := before.cores() or 0.0) > machine.Others.QUIET:
            raise SystemExit(f"--save: expected a quiet machine, but other processes use {busy} cores of it")
    chosen = [shape for shape in shapes.ALL if shape.quick or not options.quick]
    threads = options.threads or bnorm.get_num_threads()
    results = run(chosen, [p for p in providers.ALL if p.version()], threads, QUICK if options.quick else FULL)
    print(table.full(results))
    if options.save:
        path = table.RESULTS / machine.file_name()
        table.save(results, path)
        table.write_readme()
        print(f"\nsaved in {path}, and in {table.ROOT / 'README.md'}")


def run(
    chosen: Sequence[shapes.Shape],
    present: Sequence[type[providers.Provider]],
    threads: int,
    effort: Effort,
    worker: Callable[..., Remote | Worker] = Remote,
) -> table.Results:
    rows, start, others = [], time.perf_counter(), machine.Others()
    with Copy(threads) as copy:
        for shape in chosen:
            print(f"{time.perf_counter() - start:6.1f} s  {shape.name}", file=sys.stderr)
            copy.sample()
            rows += measure(shape, present, threads, effort, worker=worker)
        copy.sample()
    print(f"{time.perf_counter() - start:6.1f} s  done", file=sys.stderr)
    return {
        "machine": machine.facts(),
        "threads": threads,
        "dtype": "float32",
        "copy_gb_s": copy.gb_s(),
        "others": others.cores(),
        "rows": rows,
    }


if __name__ == "__main__":
    main()
