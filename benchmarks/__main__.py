"""`python -m benchmarks`: measure every case, print every number, and with --save keep them."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

import bnorm
from bnorm.kernels import cpu

from . import adapters, growth, machine, plot, shapes, store, table, targets, types
from .copying import Copy
from .exact import exact
from .processes import Remote
from .timing import FULL, QUICK, Effort, Local, measure

DTYPES = ("float32", "float64")
HALVES = ("float16", "bfloat16")  # of bnorm and PyTorch only
LARGE = 1 << 28  # bytes; with larger arrays only the peers of the targets run: others would take half of the time
HELD, HELD_HERE = 6, 3  # memory in times of the array: the most that a library needs, and that this process needs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few shapes, float32, all threads: two minutes")
    parser.add_argument("--others", action="store_true", help="shapes that nobody tunes for, instead of the named ones")
    parser.add_argument("--match", metavar="TEXT", help="only cases with this in their name, such as '(32, 64)'")
    parser.add_argument("--only", nargs="+", metavar="LIBRARY", choices=adapters.NAMES, help="beside bnorm")
    parser.add_argument("--dtype", choices=[*DTYPES, *HALVES], help="half precision: bnorm and PyTorch")
    parser.add_argument("--threads", type=int, metavar="N", help="for every library; by default 1, and then all")
    parser.add_argument("--save", action="store_true", help="into results/, and from there into the pages")
    parser.add_argument("--targets", action="store_true", help="measure nothing: the saved results against the targets")
    options = parser.parse_args()
    if options.targets:
        print("\n\n".join(f"{name}\n\n{targets.report(r)}" for name, r in store.saved().items()) or "nothing saved")
        return
    part = options.quick or options.others or options.match or options.only or options.dtype or options.threads
    if options.save and part:
        parser.error("--save keeps a full run: leave the other options out")
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads: expected 1 or more, got {options.threads}")
    if options.save:
        before = machine.Others()
        time.sleep(2)
        if (busy := before.cores() or 0.0) > machine.Others.QUIET:
            raise SystemExit(f"--save: expected a quiet machine, but other processes use {busy} cores of it")
    if options.dtype == "bfloat16" and not types.has_bfloat16():
        parser.error("--dtype bfloat16 needs ml_dtypes: pip install ml_dtypes")
    cases = shapes.OTHER if options.others else shapes.NAMED
    cases = [case for case in cases if (case.quick or not options.quick) and (options.match or "") in case.name]
    cases = [case for case in cases if case.kind != "scaler" or options.dtype not in HALVES]
    if not cases:
        parser.error(f"--match: no case has {options.match!r} in its name")
    every = bnorm.get_num_threads()
    threads = [options.threads] if options.threads else [every] if options.quick else sorted({1, every})
    dtypes = [options.dtype] if options.dtype else DTYPES[:1] if options.quick else DTYPES
    names = [name for name in adapters.NAMES if not options.only or name in (adapters.OURS, *options.only)]
    names = [name for name in names if not options.quick or name not in adapters.SLOW]
    names = [name for name in names if options.dtype not in HALVES or name in (adapters.OURS, "torch")]
    results = run(cases, dtypes, threads, every, names, QUICK if options.quick else FULL, grow=not part)
    print(table.brief(results) if options.quick else table.full(results))
    if options.save:
        path = store.RESULTS / machine.file_name()
        store.save(results, path)
        plot.draw_all(store.saved(), store.RESULTS)
        table.write_pages()
        print(f"\nsaved in {path}, and in {' and '.join(map(str, table.PAGES))}")


def run(
    cases: Sequence[shapes.Case],
    dtypes: Sequence[str],
    threads: Sequence[int],
    every: int,
    names: Sequence[str],
    effort: Effort,
    grow: bool = False,
    process: Callable[[str], Local] = Remote,
) -> store.Results:
    """Return the results, as they are saved. every: the number of all threads. grow: include `growth` and `types`."""
    rows, left_out, start, others = [], [], time.perf_counter(), machine.Others()
    with ExitStack() as stack:
        copies = {n: stack.enter_context(Copy(n)) for n in threads}
        _say(start, f"start {', '.join(names)}")
        libraries, missing = _libraries(names, process, stack)
        for case in cases:
            for dtype in dtypes:
                size = case.values * np.dtype(dtype).itemsize
                able = [each for each in libraries if case.kind in each.about.kinds]
                able = [each for each in able if each.about.target or size < LARGE]
                _say(start, f"{case.name} {dtype}")
                if (HELD * len(able) + HELD_HERE) * size > machine.free_memory():
                    left_out.append(f"{case.name} {dtype}")
                    continue
                wanted = exact(shapes.Data(case, dtype))
                for n in threads:
                    asked = [each for each in able if each.about.target or n == every]
                    found, speed = copies[n].beside(partial(measure, case, dtype, n, asked, effort, wanted))
                    rows += [row | {"copy": speed} for row in found]
        growths = costs = None
        if grow:
            _say(start, "types")
            costs = types.measure()
            _say(start, "growth")
            streaming = [each for each in libraries if "scaler" in each.about.kinds and each.about.target]
            growths = {
                "curves": growth.curves(libraries[0], max(threads)),
                "stream": {each.about.name: growth.stream(each) for each in streaming},
            }
    _say(start, "done")
    return {
        "machine": machine.facts(cpu.simd_level())
        | {"versions": {each.about.name: each.about.version for each in libraries}, "missing": missing},
        "threads": list(threads),
        "dtypes": list(dtypes),
        "copy": {str(n): copy.gb_s() for n, copy in copies.items()},
        "others": others.cores(),
        "left_out": left_out,
        "growth": growths,
        "types": costs,
        "rows": rows,
    }


def _libraries(
    names: Sequence[str], process: Callable[[str], Local], stack: ExitStack
) -> tuple[list[Local], dict[str, str]]:
    """Return the libraries that are installed, ours first, and why the others are missing."""
    libraries, missing = [], {}
    started = {name: process(name) for name in names}  # all are started first, so that they import at the same time
    for library in started.values():
        stack.callback(library.end)
    for name, library in started.items():
        try:
            libraries.append(library.ready())
        except adapters.Missing as error:
            missing[name] = str(error)
            print(f"without {name}: {error}", file=sys.stderr)
    return libraries, missing


def _say(start: float, what: str) -> None:
    print(f"{time.perf_counter() - start:6.1f} s  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
