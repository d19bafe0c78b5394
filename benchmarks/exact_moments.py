"""What exact sums cost: `moments(x, exact=True)` beside plain `moments`, in one run.

    python -m benchmarks.exact_moments [--levels] [--match TEXT]

A line has the better of many times of both, taken in turn, and their ratio. --levels repeats it for every SIMD level
that this processor has, each in a process of its own.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import bnorm
from bnorm import functional as F
from bnorm.kernels import cpu

SHAPES = [(1_000_000, 32), (1_000_000, 100), (100_000, 16), (4096, 512), (64, 64, 56, 56), (32, 64)]
GOALS = {  # the ratio on one thread, and on several
    "float32": (1.7, 1.3),
    "float64": (2.5, 2.0),
    "int8": (1.1, 1.1),
    "uint16": (1.1, 1.1),
}
SMALL = 15e-6  # seconds for (32, 64)
SECONDS = 1.0  # of both, for a line


def best(*calls: Callable[[], object]) -> list[float]:
    """The least time of each, called in turn."""
    least, end = [float("inf")] * len(calls), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            least[i] = min(least[i], time.perf_counter() - start)
    return least


def measure(match: str) -> None:
    every = bnorm.get_num_threads()
    print(f"\n{cpu.simd_level()}\n{'':38}plain, ms  exact, ms  ratio  goal")
    rng = np.random.default_rng(0)
    for dtype, goals in GOALS.items():
        for shape in SHAPES:
            x = (rng.standard_normal(shape, dtype=np.float32) * 10).astype(dtype)
            for threads in sorted({1, every}):
                case = f"{dtype} {shape}, {threads} thread{'s' * (threads > 1)}"
                if match not in case:
                    continue
                bnorm.set_num_threads(threads)
                plain, exact = best(lambda x=x: F.moments(x), lambda x=x: F.moments(x, exact=True))
                small = shape == SHAPES[-1]
                goal = f"{SMALL * 1e6:.0f} µs" if small else f"{goals[threads > 1]}"
                missed = exact > SMALL if small else exact / plain > goals[threads > 1]
                print(f"{case:38}{plain * 1e3:9.4f}{exact * 1e3:11.4f}{exact / plain:7.2f}  {goal}{' -' * missed}")
    bnorm.set_num_threads(every)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_moments", description=__doc__)
    parser.add_argument("--levels", action="store_true", help="every SIMD level of this processor")
    parser.add_argument(
        "--match", default="", metavar="TEXT", help="only cases with this in their name, as 'float32 ('"
    )
    options = parser.parse_args()
    if not options.levels:
        measure(options.match)
        return
    for level in cpu.simd_levels():
        again = [sys.executable, "-m", "benchmarks.exact_moments", "--match", options.match]
        subprocess.run(again, check=True, env=os.environ | {"BNORM_SIMD": level})


if __name__ == "__main__":
    main()
