"""`bnorm tune`: from which sizes on arrays are best prefetched, and written past the caches, on this machine.

Each size is measured by a call that depends on it, on arrays of growing length, with what the size decides and without
it. As in a net, a call reads what the call before it has written.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

import bnorm
from bnorm import functional as F
from bnorm.app.errors import DataError
from bnorm.app.showing import table
from bnorm.files.replacing import replacing
from bnorm.kernels.cpu import entries, tuned

MIB = 1 << 20
LADDER = [n * MIB for n in (1, 2, 3, 4, 6, 8, 12, 16, 24)]  # bytes of an array
WIDTH = 64  # values of a row
LONG = 512  # values of a long row
RING = 4  # arrays in turn, so that a large one is gone from the caches when it is written again
LEAST = 3  # measurements of each
WORTH = math.log(1.03)  # what a change must gain in the mean over all lengths: less may be chance

Call = Callable[[], object]
Measure = Callable[[str, int], tuple[float, float]]


class Way(NamedTuple):
    """A call that depends on a size: what makes it for a ring of arrays, and whether it needs several threads."""

    make: Callable[[Sequence[ndarray]], Call]
    team: bool | None  # False: it needs one; None: any number


def _through(step: Callable[[ndarray, ndarray], object], ring: Sequence[ndarray]) -> Call:
    """Return a call that reads an array of the ring and writes the next one, which the next call reads."""
    places = cycle(range(len(ring)))

    def call() -> object:
        i = next(places)
        return step(ring[i], ring[(i + 1) % len(ring)])

    return call


def _inference(ring: Sequence[ndarray]) -> Call:
    zeros, ones = np.zeros(WIDTH), np.ones(WIDTH)
    return _through(lambda x, y: F.batch_norm(x, mean=zeros, var=ones, out=y), ring)


def _training(ring: Sequence[ndarray]) -> Call:
    return _through(lambda x, y: F.batch_norm(x, out=y), ring)


def _once_or_twice(ring: Sequence[ndarray]) -> Call:
    """Return a call in which one thread reads x once, or several read it twice."""
    return _inference(ring) if bnorm.get_num_threads() == 1 else _training(ring)


def _rows(ring: Sequence[ndarray]) -> Call:
    return _through(lambda x, y: F.layer_norm(x, normalized_shape=WIDTH, out=y), ring)


def _backward(forward: Callable[[ndarray, ndarray], tuple[Any, Any]], ring: Sequence[ndarray]) -> Call:
    """Return a call of the backward: x is the first array, dy the second, and dx each of the others in turn."""
    x, dy, *rest = ring
    _, saved = forward(x, rest[0])
    results = cycle(rest)
    return lambda: F.backward(dy, saved, out=next(results))


def _gradients(ring: Sequence[ndarray]) -> Call:
    return _backward(lambda x, y: F.batch_norm(x, out=y), ring)


def _gradients_of_rows(ring: Sequence[ndarray]) -> Call:
    ones = np.ones(WIDTH)
    return _backward(lambda x, y: F.layer_norm(x, ones, normalized_shape=WIDTH, out=y), ring)


def _gradients_of_long_rows(ring: Sequence[ndarray]) -> Call:
    ones = np.ones(LONG)
    long = [a[: len(a) // (LONG // WIDTH) * (LONG // WIDTH)].reshape(-1, LONG) for a in ring]
    return _backward(lambda x, y: F.layer_norm(x, ones, normalized_shape=LONG, out=y), long)


# The order matters: sizes for prefetching (far) come first, as the others are measured with it; "early" and
# "beside" come after "stream", as they need results that are written past the caches.
WAYS = {
    "far": Way(_training, None),
    "far_two": Way(_gradients, True),
    "far_alone": Way(_gradients, False),
    "far_rows": Way(_gradients_of_rows, None),
    "far_maps": Way(_rows, None),
    "stream": Way(_inference, True),
    "stream_one": Way(_once_or_twice, None),
    "stream_two": Way(_rows, None),
    "early": Way(_rows, None),
    "beside": Way(_gradients_of_rows, None),
    "paired": Way(_gradients_of_long_rows, None),
}


def timed(seconds: float) -> Measure:
    """Return a function that measures the call of a size, with what the size decides and without it."""

    def measure(name: str, n_bytes: int) -> tuple[float, float]:
        way, before, threads = WAYS[name], entries.use_sizes(), bnorm.get_num_threads()
        habit = entries.use_habit(most=0)
        rng = np.random.default_rng(0)
        ring = [
            np.resize(rng.standard_normal(100_003, np.float32), (n_bytes // 4 // WIDTH, WIDTH)) for _ in range(RING)
        ]
        found: dict[int, list[float]] = {0: [], tuned.MOST: []}
        call, end = way.make(ring), time.perf_counter() + seconds
        if way.team is False:
            bnorm.set_num_threads(1)
        try:
            while time.perf_counter() < end or len(found[0]) < LEAST:
                for size, times in found.items():
                    entries.use_sizes(**{name: size})
                    call()
                    start = time.perf_counter()
                    for _ in ring:
                        call()
                    times.append(time.perf_counter() - start)
        finally:
            entries.use_sizes(**before)
            entries.use_habit(**habit)
            bnorm.set_num_threads(threads)
        on, off = map(median, found.values())
        return on, off

    return measure


def best(lengths: Sequence[int], times: Sequence[tuple[float, float]], now: int) -> tuple[int, float]:
    """Return from which length on the first time should apply, else the second; and the gain over `now`, as a log.

    If it should apply at none of them, return twice the longest: beyond that, the caches are of no use.
    """

    def cost(least: int) -> float:
        return sum(math.log(on if n >= least else off) for n, (on, off) in zip(lengths, times, strict=True))

    found = min([*lengths, 2 * lengths[-1]], key=cost)
    gain = (cost(now) - cost(found)) / len(lengths)
    return (found, gain) if gain > WORTH else (now, 0.0)


def tune(measure: Measure, team: bool) -> dict[str, tuple[int, int, float]]:
    """Return for each size its old and its new value, and the average gain. The new sizes are in use afterwards."""
    said = {}
    for name, way in WAYS.items():
        now = entries.use_sizes()[name]
        found, gain = now, 0.0
        if team or way.team is not True:
            found, gain = best(LADDER, [measure(name, n) for n in LADDER], now)
        entries.use_sizes(**{name: found})
        said[name] = now, found, math.expm1(gain)
    return said


def run(seconds: float, forget: bool, as_json: bool) -> None:
    """Measure for about that many seconds, and keep what was found; with `forget`, remove what was kept."""
    folder = tuned.folder()
    if folder is None:
        raise DataError("tune: no folder for caches: set XDG_CACHE_HOME")
    path = tuned.file_of(folder)
    if forget:
        path.unlink(missing_ok=True)
        print(f"{path}: removed; bnorm uses the sizes that it was built with")
        return
    folder.mkdir(parents=True, exist_ok=True)
    said = tune(timed(seconds / len(WAYS) / len(LADDER)), bnorm.get_num_threads() > 1)
    with replacing(path) as file:
        file.write(tuned.text_of(entries.use_sizes()).encode())
    tell(said, str(path), as_json)


def _mib(size: int) -> str:
    return "never" if size >= tuned.MOST else "always" if size == 1 else f"{size / MIB:g}"


def tell(said: Mapping[str, tuple[int, int, float]], path: str, as_json: bool) -> None:
    if as_json:
        sizes = {name: {"was": was, "is": now, "gain": gain} for name, (was, now, gain) in said.items()}
        print(json.dumps({"path": path, "sizes": sizes}))
        return
    rows = [
        {"MiB": name, "was": _mib(was), "is": _mib(now), "faster": f"{gain:.0%}" if now != was else ""}
        for name, (was, now, gain) in said.items()
    ]
    print(*table(rows, {}), sep="\n")
    print(f"{path}: used from now on. Results stay the same, to the last bit.")
