"""Does it pay to look whether arrays are in the caches? `python -m benchmarks.nearby`: calls with looks, over without.

A look decides whether results stay in the caches, and whether images are fetched ahead. Arrays of one size are used in
three ways: "same" reads and writes the same ones in every call, "pairs" has four sets of them in turn, and in "chain" a
call reads what the call before wrote, as in a net. A number is the mean time of a call with looks over one without,
both measured in turns, after many calls in which a thread learns what pays. With --instead of some sizes, from which on
arrays are fetched ahead or written past the caches, it is the time with bnorm's own sizes over the time with these.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
Setting = Callable[[], object]  # what makes calls do something else
Step = Callable[[int, ndarray, ndarray], object]  # the i-th set, what is read, what is written


def arrays(n_bytes: int, n: int) -> list[ndarray]:
    numbers = np.random.default_rng(0).standard_normal(100_003, dtype=np.float32)
    return [np.resize(numbers, (n_bytes // 4 // WIDTH, WIDTH)) for _ in range(n)]


def steps(n_bytes: int) -> dict[str, Step]:
    """Return what a call does, by its name. A gradient reads dy, and x of the i-th set too."""
    zeros, ones = np.zeros(WIDTH), np.ones(WIDTH)
    # Of mean 0 and deviation 1: otherwise a chain of gradients would grow, or shrink to denormal numbers.
    even = np.tile(np.float32([[1, -1], [-1, 1]]), (n_bytes // 8 // WIDTH, WIDTH // 2))
    saved = [F.instance_norm(even[np.newaxis].copy(), eps=0.0)[1] for _ in range(SETS)]
    saved_images = [F.batch_norm(even.reshape(IMAGES).copy(), eps=0.0)[1] for _ in range(SETS)]
    saved_rows = [F.layer_norm(even.copy(), ones, ones, normalized_shape=WIDTH, eps=0.0)[1] for _ in range(SETS)]
    saved_columns = [F.batch_norm(even.copy(), ones, ones, eps=0.0)[1] for _ in range(SETS)]
    return {
        "batch norm": lambda i, x, y: F.batch_norm(x, ones, ones, out=y),
        "batch norm, inference": lambda i, x, y: F.batch_norm(x, mean=zeros, var=ones, out=y),
        "layer norm": lambda i, x, y: F.layer_norm(x, ones, ones, normalized_shape=WIDTH, out=y),
        "images, batch norm": lambda i, x, y: F.batch_norm(x.reshape(IMAGES), out=y.reshape(IMAGES)),
        "images, backward": lambda i, dy, dx: F.backward(dy.reshape(IMAGES), saved_images[i], out=dx.reshape(IMAGES)),
        "instance norm, backward": lambda i, dy, dx: F.backward(dy[np.newaxis], saved[i], out=dx[np.newaxis]),
        "layer norm, backward": lambda i, dy, dx: F.backward(dy, saved_rows[i], out=dx),
        "batch norm, backward": lambda i, dy, dx: F.backward(dy, saved_columns[i], out=dx),
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


def turn(call: Call, setting: Setting, seconds: float) -> float:
    """Return the mean time of a call with this setting."""
    setting()
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


def measured(sizes: Sequence[int], seconds: float, settings: Sequence[Setting], learning: int) -> Iterator[list[str]]:
    """Return a line for each call: the time of the first setting, and that of the second over it."""
    for size in sizes:
        for name, step in steps(size * MIB).items():
            line = [f"{size} MB", name]
            for call in ways(step, size * MIB).values():
                settings[1]()
                entries.use_habit(**NEW)
                for _ in range(learning):
                    call()
                took = [[turn(call, setting, seconds) for setting in settings] for _ in range(TURNS)]
                first, second = map(fmean, zip(*took, strict=True))
                line += [f"{1e3 * first:.3f}", f"{second / first:.2f}"]
            yield line


def lines(
    sizes: Sequence[int], seconds: float, learning: int = LEARNING, instead: Mapping[str, int] | None = None
) -> Iterator[list[str]]:
    habit, before = entries.use_habit(), entries.use_sizes()
    if instead is None:
        entries.use_sizes(looked=LOOKED)
        settings = [partial(entries.use_habit, most=most) for most in (0, habit["most"])]
    else:
        settings = [partial(entries.use_sizes, **{**before, **other}) for other in (instead, {})]
    try:
        yield from measured(sizes, seconds, settings, learning)
    finally:
        entries.use_habit(most=habit["most"])
        entries.use_sizes(**before)


def size_in(text: str) -> tuple[str, int]:
    """Return the name and the bytes in a text such as stream=4194304."""
    name, _, n_bytes = text.partition("=")
    if name not in entries.use_sizes() or not n_bytes.isdecimal():
        raise argparse.ArgumentTypeError(f"expected NAME=BYTES with one of {', '.join(entries.use_sizes())}")
    return name, int(n_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nearby", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 12, 16], metavar="MB", help="of an array")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--instead", type=size_in, nargs="+", metavar="NAME=BYTES", help="of bnorm's own sizes")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, bnorm.get_num_threads()}))
    options = parser.parse_args()
    instead = dict(options.instead) if options.instead else None
    for threads in options.threads:
        bnorm.set_num_threads(threads)
        head = [f"threads: {threads}", ""] + [word for way in ("same", "pairs", "chain") for word in (f"{way}, ms", "")]
        found = lines(options.sizes, options.seconds, LEARNING, instead)
        print("\n".join(aligned([head, *found], 1)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
