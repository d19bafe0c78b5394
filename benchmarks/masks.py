"""What weights cost: `moments` with a mask, with weights and of rows that fade, in times of plain `moments`.

    python -m benchmarks.masks [--match TEXT] [--seconds S]

A line has the best of many times of each, taken in turn in one process, on one thread and on all. Ratios above GOAL
have a dash.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy import ndarray

import bnorm
from bnorm import functional as F

from .store import count
from .text import aligned
from .timing import quickest

SHAPES = [
    *[(4_000_000, 5), (4_000_000, 3), (1_000_000, 20), (1_000_000, 32), (100_000, 64), (32, 64)],
    *[(32, 64, 112, 112), (32, 256, 14, 14)],
]
DTYPES = ["float32", "float64"]
GOAL = 1.5
KINDS = ["mask", "uint8", "float32", "float64", "half-life"]


def calls(x: ndarray) -> dict[str, Callable[[], object]]:
    """Return calls of plain moments, and of those with each kind of weight; rows fade in a transformer, for tables."""
    rng = np.random.default_rng(1)
    of_positions = x.shape[:1] + x.shape[2:]
    weight = np.resize(rng.random(100_003), of_positions)
    found = {
        "plain": partial(F.moments, x),
        "mask": partial(F.moments, x, weight=weight < 0.7),
        "uint8": partial(F.moments, x, weight=(weight * 5).astype(np.uint8)),
        "float32": partial(F.moments, x, weight=weight.astype(np.float32)),
        "float64": partial(F.moments, x, weight=weight),
    }
    if x.ndim == 2:
        t = bnorm.BatchNormTransformer(halflife=len(x) / 4)
        found["half-life"] = partial(t.partial_fit, x)
    return found


def lines(
    match: str, seconds: float, shapes: Sequence[tuple[int, ...]] = SHAPES, dtypes: Sequence[str] = DTYPES
) -> Iterator[list[str]]:
    every = bnorm.get_num_threads()
    for shape in shapes:
        for dtype in dtypes:
            x = np.resize(np.random.default_rng(0).standard_normal(100_003, dtype=np.float32), shape).astype(dtype)
            found = calls(x)
            for threads in sorted({1, every}):
                name = f"{dtype} {shape}, {count(threads, 'thread')}"
                if match in name:
                    bnorm.set_num_threads(threads)
                    took = quickest(found, seconds)
                    ratios = [took[kind] / took["plain"] if kind in took else 0.0 for kind in KINDS]
                    cells = [f"{r:.2f}{' -' * (r > GOAL)}" if r else "" for r in ratios]
                    yield [name, f"{took['plain'] * 1e3:.3f}", *cells]
    bnorm.set_num_threads(every)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masks", description=__doc__)
    parser.add_argument("--match", default="", metavar="TEXT", help="only cases with this in their name")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    options = parser.parse_args()
    print("\n".join(aligned([["", "plain, ms", *KINDS], *lines(options.match, options.seconds)], 1)))


if __name__ == "__main__":
    main()
