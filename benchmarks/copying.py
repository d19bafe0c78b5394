"""The machine's copy speed: numpy.copyto by so many threads, a slice each, of arrays that no cache holds.

A copy reads a byte and writes one. It is sampled again and again during a run, so that it sees the weather that the
others see, by a process of its own: there the GNU C library is told to write past the caches (which saves reading what
is overwritten), and how it does so is settled when a process starts. Other C libraries decide by themselves.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np

from .timing import quartiles, seconds

COPIED = 1 << 28  # bytes of the array, several times what a last-level cache holds
PAST_CACHES = "glibc.cpu.x86_non_temporal_threshold=0x100000"


class Copy:
    """The process that copies when it is asked to. Close it, or use it in a `with`."""

    def __init__(self, threads: int, size: int = COPIED) -> None:
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
        self.speeds: list[float] = []

    def __enter__(self) -> "Copy":
        return self

    def __exit__(self, *error: object) -> None:
        self.child.__exit__(*error)  # closes its input, which ends it

    def sample(self) -> None:
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise RuntimeError("benchmarks.copying: expected speeds from its process, got nothing")
        self.speeds += map(float, answer.split())

    def gb_s(self) -> list[float]:
        """Lower quartile, median, upper quartile."""
        return quartiles(self.speeds)


def main(threads: int, size: int) -> None:
    """For every line of input, a line of speeds."""
    source, target = np.ones(size, "u1"), np.zeros(size, "u1")
    edges = [size * i // threads for i in range(threads + 1)]
    parts = [slice(*pair) for pair in pairwise(edges)]

    def copy() -> None:
        list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))  # copyto lets other threads run

    with ThreadPoolExecutor(threads) as pool:
        for _ in sys.stdin:
            copy()
            print(*(2e-9 * size / seconds(copy) for _ in range(3)), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
