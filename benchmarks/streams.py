"""Times and windows: what a batch costs with them and without, and beside pandas' rolling windows of a whole stream.

    python -m benchmarks.streams [--quick]

Batches of shape (32, 64), in turns. A window is filled before it is measured.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from bnorm import BatchNormTransformer

from .options import parser
from .text import aligned
from .timing import seconds

ROWS, FEATURES = 32, 64
STEP = np.timedelta64(1, "s")
KINDS: dict[str, tuple[dict[str, Any], str]] = {  # parameters, and with which of them it is compared
    "momentum=0.1": ({}, ""),
    "halflife=1000": ({"halflife": 1000.0}, ""),
    "halflife='1000s'": ({"halflife": "1000s"}, "halflife=1000"),
    "window=1,000": ({"window": 1_000}, "momentum=0.1"),
    "window=100,000": ({"window": 100_000}, "momentum=0.1"),
    "window='100000s'": ({"window": "100000s"}, "halflife='1000s'"),
    "window='100000s', one row late": ({"window": "100000s"}, "halflife='1000s'"),
}


def batches(name: str, x: np.ndarray, start: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments of one batch after the other."""
    now = np.datetime64("2024-01-01", "ns") + start * STEP
    while True:
        times = now + np.arange(1, ROWS + 1) * STEP
        if "late" in name:
            times[5] -= 20_000 * STEP
        yield {"X": x} | ({"times": times} if "'" in name else {})
        now = times[-1]


def made(name: str, x: np.ndarray) -> Callable[[int], None]:
    """Return a function that learns n batches, after the window has been filled."""
    t = BatchNormTransformer(**KINDS[name][0])
    filled = np.random.default_rng(1).normal(size=(100_000, FEATURES))
    times = np.datetime64("2024-01-01", "ns") + np.arange(1, len(filled) + 1) * STEP
    t.partial_fit(filled, **({"times": times} if "'" in name else {}))
    given = batches(name, x, len(filled))

    def learn(n: int) -> None:
        for _ in range(n):
            t.partial_fit(**next(given))

    return learn


def rolling(quick: bool) -> str:
    """Compare pandas' rolling mean and variance after every row with a window after every batch."""
    import pandas as pd

    x = np.random.default_rng(0).normal(size=(20_000 if quick else 200_000, 8))
    frame, t = pd.DataFrame(x), BatchNormTransformer(window=10_000)

    def their_way() -> None:
        window = frame.rolling(10_000)
        window.mean(), window.var()

    def our_way() -> None:
        for part in np.split(x, range(1000, len(x), 1000)):
            t.partial_fit(part)

    theirs, ours = seconds(their_way), seconds(our_way)
    of_pandas = f"rolling(10_000) of pandas over {len(x):,} rows of 8 features: {theirs:.2f} s"
    return f"{of_pandas}; partial_fit of 1,000 each: {ours:.2f} s"


def main(given: list[str] | None = None) -> None:
    """Measure and print."""
    program = parser("streams", __doc__)
    program.add_argument("--quick", action="store_true", help="few rounds")
    args = program.parse_args(given)
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES))
    learners = {name: made(name, x) for name in KINDS}
    best = dict.fromkeys(KINDS, float("inf"))
    n, rounds = (20, 3) if args.quick else (300, 25)
    for _ in range(rounds):
        for name, learn in learners.items():
            best[name] = min(best[name], seconds(partial(learn, n)) / n * 1e6)
    rows = [["(32, 64) partial_fit", "us", "times that of"]]
    for name, (_, other) in KINDS.items():
        rows.append([name, f"{best[name]:.1f}", f"{best[name] / best[other]:.2f} {other}" if other else ""])
    print("\n".join(aligned(rows, 1)))
    print(rolling(args.quick) if find_spec("pandas") else "not installed: pandas")


if __name__ == "__main__":
    main()
