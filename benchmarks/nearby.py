"""Does it pay to look whether arrays are in the caches? `python -m benchmarks.nearby`: calls with looks, over without.

A look decides whether results stay in the caches, and whether images are fetched ahead. Arrays of one size are used in
three ways: "same" reads and writes the same ones in every call, "pairs" has four sets of them in turn, and in "chain" a
call reads what the call before wrote, as in a net. A number is the mean time of a call with looks over one without,
both measured in turns, after many calls in which a thread learns what pays.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from statistics import fmean

import numpy as np
from numpy import ndarray

import bnorm
from bnorm import functional as F
from bnorm.kernels.cpu import entries

from .text import aligned

MIB = 1 << 20
WIDTH = 512
IMAGES = -1, 64, 64, 64
SETS = 4
WARM, TURNS = 0.3, 5  # part of a turn that is not timed, and turns of each setting
LEARNING = 700  # calls, after which a thread waits longest between its tries if these fail
LOOKED = 1 << 20  # bytes from which on a call looks, also on processors that do not look by themselves
NEW = {"through": 0, "calls": 8, "excess": 0, "wait": 16}  # a thread that has made no call
Call = Callable[[], object]
Step = Callable[[int, ndarray, ndarray], object]  # the i-th set, what is read, what is written


def arrays(n_bytes: int, n: int) -> list[ndarray]:
    numbers = np.random.default_rng(0).standard_normal(100_003, dtype=np.float32)
    return [np.resize(numbers, (n_bytes // 4 // WIDTH, WIDTH)) for _ in range(n)]


def steps(n_bytes: int) -> dict[str, Step]:
    """Return what a call does, by its name. A gradient reads dy, and x of the i-th set too."""
    zeros, ones = np.zeros(WIDTH), np.ones(WIDTH)
    # Of mean 0 and deviation 1: otherwise a chain of gradients would grow, or shrink to denormal numbers.
    even = np.tile(np.float32([1, -1]), (n_bytes // 4 // WIDTH, WIDTH // 2))
    saved = [F.instance_norm(even[np.newaxis].copy(), eps=0.0)[1] for _ in range(SETS)]
    saved_images = [F.batch_norm(even.reshape(IMAGES).copy(), eps=0.0)[1] for _ in range(SETS)]
    return {
        "batch norm": lambda i, x, y: F.batch_norm(x, ones, ones, out=y),
        "batch norm, inference": lambda i, x, y: F.batch_norm(x, mean=zeros, var=ones, out=y),
        "layer norm": lambda i, x, y: F.layer_norm(x, ones, ones, normalized_shape=WIDTH, out=y),
        "images, batch norm": lambda i, x, y: F.batch_norm(x.reshape(IMAGES), out=y.reshape(IMAGES)),
        "images, backward": lambda i, dy, dx: F.backward(dy.reshape(IMAGES), saved_images[i], out=dx.reshape(IMAGES)),
        "instance norm, backward": lambda i, dy, dx: F.backward(dy[np.newaxis], saved[i], out=dx[np.newaxis]),
    }


def ways(step: Step, n_bytes: int) -> dict[str, Call]:
    """Return a call for each way to use arrays."""
    read, written = arrays(n_bytes, SETS), arrays(n_bytes, SETS)

    def over(turns: Sequence[tuple[int, ndarray, ndarray]]) -> Call:
        of = cycle(turns)
        return lambda: step(*next(of))

    ring = [(i, read[i], read[(i + 1) % SETS]) for i in range(SETS)]
    return {
        "same": over([(0, read[0], written[0])]),
        "pairs": over(list(zip(range(SETS), read, written, strict=True))),
        "chain": over(ring),
    }


def turn(call: Call, most: int, seconds: float) -> float:
    """Return the mean time of a call that looks for outputs of up to `most` bytes."""
    entries.use_habit(most=most)
    end = time.perf_counter() + WARM * seconds
    while time.perf_counter() < end:
        call()
    took = []
    end = time.perf_counter() + (1.0 - WARM) * seconds
    while time.perf_counter() < end or len(took) < SETS:
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return fmean(took)


def lines(sizes: Sequence[int], seconds: float, learning: int = LEARNING) -> Iterator[list[str]]:
    looked, before = entries.use_habit()["most"], entries.use_sizes(looked=LOOKED)
    try:
        for size in sizes:
            for name, step in steps(size * MIB).items():
                line = [f"{size} MB", name]
                for call in ways(step, size * MIB).values():
                    entries.use_habit(**NEW, most=looked)
                    for _ in range(learning):
                        call()
                    took = [[turn(call, most, seconds) for most in (0, looked)] for _ in range(TURNS)]
                    without, with_looks = map(fmean, zip(*took, strict=True))
                    line += [f"{1e3 * without:.3f}", f"{with_looks / without:.2f}"]
                yield line
    finally:
        entries.use_habit(most=looked)
        entries.use_sizes(**before)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nearby", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 12, 16], metavar="MB", help="of an array")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, bnorm.get_num_threads()}))
    options = parser.parse_args()
    for threads in options.threads:
        bnorm.set_num_threads(threads)
        head = [f"threads: {threads}", ""] + [word for way in ("same", "pairs", "chain") for word in (f"{way}, ms", "")]
        print("\n".join(aligned([head, *lines(options.sizes, options.seconds)], 1)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
