"""What does a busy machine cost? `python -m benchmarks.busy`: one thread against all, beside processes that compute.

Each case is measured in turns, a block of calls with one thread and then one with all, while no, one or two processes
per core compute without end; while one per core computes for 1 to 10 ms now and then, a tenth of the time; and while
one per core computes with the lowest priority. The table has the median and the ninth decile of a call with all
threads, over those with one thread in the same minute, and the means. If a team waits for a thread that has no core,
the ninth decile shows it. For the last lines the machine is idle. First the caller sleeps before each call: a system
may wake a whole team on one core. Then it reads the result after each call: the cache of its core may keep lines that
another thread writes next. Last, it computes x before each call and goes on with the result, as a net in NumPy does;
that is part of the time.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import bnorm
from bnorm import functional

from .text import aligned

COUNTING = "while True: pass"
NOW_AND_THEN = """
import random, time
while True:
    end = time.perf_counter() + random.uniform(0.001, 0.01)
    while time.perf_counter() < end:
        pass
    time.sleep(random.uniform(0.01, 0.1))
"""
LOW_PRIORITY = f"import os; os.nice(19)\n{COUNTING}"
Cases = dict[str, Callable[[], Any]]
Between = Callable[[Any], object] | None  # what the caller does between two calls
BLOCK = 0.4  # seconds of one setting, then of the other
BLOCKS = 6  # blocks of each setting
SLEEP = 0.05  # seconds before each call, in fewer and longer blocks


def cases() -> Cases:
    rng = np.random.default_rng(0)

    def table(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    small, large, rows, flat = table(1024, 256), table(1_000_000, 32), table(4096, 768), table(10_000, 20)
    fitted = bnorm.BatchNormTransformer(momentum=None).fit(flat)
    return {
        "batch norm (1024, 256)": lambda: functional.batch_norm(small),
        "batch norm (1000000, 32)": lambda: functional.batch_norm(large),
        "layer norm (4096, 768)": lambda: functional.layer_norm(rows, normalized_shape=768),
        "transform (10000, 20)": lambda: fitted.transform(flat),
    }


def cases_that_are_read() -> Cases:
    """512 KB, which stay in the second-level cache of one core."""
    x = np.random.default_rng(0).standard_normal((2048, 64), dtype=np.float32)
    return {
        "batch norm (2048, 64)": lambda: functional.batch_norm(x)[0],
        "layer norm (2048, 64)": lambda: functional.layer_norm(x, normalized_shape=64)[0],
    }


def cases_in_a_net() -> Cases:
    """A forward and a backward between steps of NumPy, which compute x and the gradient of y on one thread."""
    rng = np.random.default_rng(0)

    def net(layer: Any, rows: int) -> Callable[[], object]:
        before, above = (rng.standard_normal((rows, 64), dtype=np.float32) for _ in range(2))

        def step() -> np.ndarray:
            h = np.maximum(before, 0)
            y = layer(h)
            np.maximum(y, 0)
            dh: np.ndarray = layer.backward(above * (y > 0)) * (h > 0)
            return dh

        return step

    return {
        "batch norm (1024, 64) in a net": net(bnorm.BatchNorm1d(64), 1024),
        "layer norm (1024, 64) in a net": net(bnorm.LayerNorm(64), 1024),
        "batch norm (4096, 64) in a net": net(bnorm.BatchNorm1d(64), 4096),
    }


def sleep(_: object) -> None:
    time.sleep(SLEEP)


def read(y: Any) -> None:
    if y is not None:
        y.sum()


@contextmanager
def neighbors(n: int, program: str = COUNTING) -> Iterator[None]:
    """Run n processes until the block ends."""
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(n)]
    try:
        time.sleep(0.2 if n else 0.0)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def block(call: Callable[[], object], threads: int, duration: float, between: Between = None) -> list[float]:
    """Return the seconds of each call with this many threads. between: is given the result of the call before."""
    before, result = bnorm.get_num_threads(), None
    bnorm.set_num_threads(threads)
    try:
        took, end = [], time.perf_counter() + duration
        while time.perf_counter() < end:
            if between is not None:
                between(result)
            now = time.perf_counter()
            result = call()
            took.append(time.perf_counter() - now)
        return took
    finally:
        bnorm.set_num_threads(before)


def compare(
    call: Callable[[], object], threads: int, between: Between = None, duration: float = BLOCK, blocks: int = BLOCKS
) -> list[list[float]]:
    """Return median, ninth decile and mean of a call in seconds, with one thread and with all."""
    took: dict[int, list[float]] = {1: [], threads: []}
    call()
    for _ in range(blocks):
        for n, some in took.items():
            some += block(call, n, duration, between)
    return [[*np.quantile(some, [0.5, 0.9]), np.mean(some)] for some in took.values()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description=__doc__)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="processes per core")
    options = parser.parse_args()
    threads, cores = bnorm.get_num_threads(), len(os.sched_getaffinity(0))
    if threads < 2:
        raise SystemExit("one thread is all there is here")
    heads = ["1 thread, ms", "all, ms", "ratio", "9th decile: 1", "all", "ratio", "mean: 1", "all", "ratio"]
    lines = [["case", "busy processes per core", *heads]]

    def measure(words: str, *how: Any, some: Callable[[], Cases] = cases) -> None:
        for name, call in some().items():
            one, every = compare(call, threads, *how)
            line = [name, words]
            for a, b in zip(one, every, strict=True):
                line += [f"{1e3 * a:.3f}", f"{1e3 * b:.3f}", f"{b / a:.2f}"]
            lines.append(line)

    for busy in options.busy:
        with neighbors(busy * cores):
            measure(f"{busy}")
    for words, program in (("1, now and then", NOW_AND_THEN), ("1, of low priority", LOW_PRIORITY)):
        with neighbors(cores, program):
            measure(words)
    measure(f"0, slept {1e3 * SLEEP:.0f} ms before", sleep, 2.0, 2)
    measure("0, result read after", read, some=cases_that_are_read)
    measure("0", some=cases_in_a_net)
    print("\n".join(aligned(lines, 1)))


if __name__ == "__main__":
    main()
