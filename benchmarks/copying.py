"""The machine's copy speed: numpy.copyto by several threads, with a slice for each. A copy reads a byte and writes one.

memory   arrays that no cache holds, written past the caches, which saves reading what is overwritten
read     the same memory only read, by numpy.add.reduce: on some machines slower than a copy, which has two directions
cache    arrays of 1 MiB, the size of (1024, 256) in float32, that stay in the caches of the cores: two perfect passes

It is sampled again and again during a run, under the same conditions as the libraries: on a shared machine two threads
may get no more of the memory's speed than one, for some seconds, which slows most what needs memory most. What was
measured beside slow copies is measured again (`Copy.beside`). A process of its own copies, because the GNU C library
learns only at the start of a process from which size to write past the caches. Other C libraries decide by themselves.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from .options import parser
from .timing import keep_core, quartiles, seconds

MEMORY = 1 << 29  # bytes of an array, more than a last-level cache holds, of hundreds of megabytes too
CACHE = 1 << 20
PAST_CACHES = "glibc.cpu.x86_non_temporal_threshold=0x200000"
STEADY = 0.85  # of the quickest copy: slower copies are not noise, but other programs that use the memory
TRIES = 3  # measurements of one case
PATIENCE = 120  # samples in all for which a run waits for quick copies: some machines are slow for an hour
Found = TypeVar("Found")
Speeds = dict[str, list[float]]  # memory, read and cache: lower quartile, median, upper quartile, in GB/s


class Copy:
    """The process that copies when it is asked to. Use it in a `with`."""

    patience = PATIENCE  # how much of it is left

    def __init__(self, threads: int, size: int = MEMORY) -> None:
        command = [sys.executable, "-m", "benchmarks.copying", str(threads), str(size)]
        tunables = ":".join(filter(None, [os.environ.get("GLIBC_TUNABLES"), PAST_CACHES]))
        self.child = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            env=os.environ | {"GLIBC_TUNABLES": tunables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.memory: list[float] = []
        self.read: list[float] = []
        self.cache: list[float] = []

    def __enter__(self) -> "Copy":
        return self

    def __exit__(self, *error: object) -> None:
        self.child.__exit__(*error)  # closes its input, which ends it

    def sample(self) -> tuple[list[float], float]:
        """Return the speeds now in GB/s: several of memory, and one of the cache."""
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise RuntimeError("benchmarks.copying: expected speeds from its process, got nothing")
        cache, read, *memory = map(float, answer.split())
        self.cache.append(cache)
        self.read.append(read)
        self.memory += memory
        return memory, cache

    def beside(self, work: Callable[[], Found]) -> tuple[Found, dict[str, float]]:
        """Return what work measures, and the copy speed around it; if tries are repeated, the one with quick copies."""
        tries = []
        for _ in range(TRIES):
            if tries and not self.patience:
                break
            if tries:
                self._wait()
            before, found, after = self.sample(), work(), self.sample()
            speed = {
                "memory": round(median([*before[0], *after[0]]), 1),
                "cache": round(median([before[1], after[1]]), 1),
            }
            tries.append((speed["memory"], found, speed))
            if self._steady(speed["memory"]):
                break
        _, found, speed = max(tries, key=lambda each: each[0])
        return found, speed

    def _wait(self) -> None:
        """Wait until copies are quick again, or patience ends."""
        while self.patience:
            self.patience -= 1
            time.sleep(1)
            if self._steady(median(self.sample()[0])):
                break

    def _steady(self, speed: float) -> bool:
        return speed >= STEADY * max(self.memory)

    def gb_s(self) -> Speeds:
        return {"memory": quartiles(self.memory), "read": quartiles(self.read), "cache": quartiles(self.cache)}


def main(threads: int, size: int) -> None:
    """For every line of input, print a line of speeds: one of the cache, one of reading, three of memory."""

    def arrays(size: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return targets and sources, all written: zeros that nobody wrote would all be the same page, in the cache."""
        edges = [size * i // threads for i in range(threads + 1)]
        return tuple([a[slice(*pair)] for pair in pairwise(edges)] for a in (np.full(size, i, "u1") for i in (1, 2)))

    def copy(targets: list[np.ndarray], sources: list[np.ndarray], times: int) -> None:
        def work(target: np.ndarray, source: np.ndarray) -> None:
            for _ in range(times):
                np.copyto(target, source)  # which lets other threads run

        list(pool.map(work, targets, sources))

    def read(sources: list[np.ndarray]) -> None:
        list(pool.map(lambda source: np.add.reduce(source[: len(source) // 8 * 8].view(np.int64)), sources))

    if threads == 1:
        keep_core()
    small, large, times = arrays(min(CACHE, size)), arrays(size), 100
    with ThreadPoolExecutor(threads) as pool:
        for _ in sys.stdin:
            copy(*small, times)
            cache = 2e-9 * min(CACHE, size) * times / seconds(lambda: copy(*small, times))
            copy(*large, 1)
            reading = 1e-9 * size / seconds(lambda: read(large[1]))
            print(cache, reading, *(2e-9 * size / seconds(lambda: copy(*large, 1)) for _ in range(3)), flush=True)


if __name__ == "__main__":
    program = parser("copying", __doc__)
    program.add_argument("threads", type=int)
    program.add_argument("size", type=int, help="bytes of an array; every line of input asks for speeds")
    main(**vars(program.parse_args()))
