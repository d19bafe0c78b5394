"""What other types than float32, and weights, cost in times of float32's time: `python -m benchmarks.types`."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bnorm import functional as F

from .options import parser
from .text import aligned
from .timing import Calls, Effort, in_turns

SHAPE = (1_000_000, 32)  # in no cache
OPERATIONS = ["moments", "training", "inference", "backward"]
EFFORT = Effort(processes=1, rounds=8, least=4, budget=2.0, sample=0.002)
BASE, OTHERS = "float32", ["float64", "float16", "bfloat16", "uint8", "int16", "int32", "int64"]


def has_bfloat16() -> bool:
    """Whether NumPy has bfloat16, which needs ml_dtypes."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def calls(dtype: str, shape: tuple[int, int] = SHAPE) -> dict[str, Callable[[], Any]]:
    """Return a call of each operation that this type has: integers have no training."""
    rng = np.random.default_rng(0)
    channels = shape[1]
    x = np.resize(rng.normal(100, 20, 1_000_003), shape).astype(dtype)
    known = {"mean": np.full(channels, 100.0), "var": np.full(channels, 400.0)}
    found = {"moments": partial(F.moments, x), "inference": partial(F.batch_norm, x, **known)}
    if x.dtype.kind not in "ui":
        dy = np.resize(rng.normal(0, 1, 1_000_003), shape).astype(dtype)
        saved = F.batch_norm(x)[1]
        found |= {"training": partial(F.batch_norm, x), "backward": partial(F.backward, dy, saved)}
    return found


def weighted(shape: tuple[int, int] = SHAPE) -> dict[str, Callable[[], Any]]:
    """Return calls with float32 and a weight for every row."""
    rng = np.random.default_rng(0)
    x = np.resize(rng.normal(100, 20, 1_000_003), shape).astype(BASE)
    weight = rng.uniform(0.5, 2, shape[0])
    return {
        "moments": partial(F.moments, x, weight=weight),
        "training": partial(F.batch_norm, x, weight=weight),
    }


def measure(shape: tuple[int, int] = SHAPE, effort: Effort = EFFORT) -> dict[str, dict[str, float]]:
    """Return times over that of float32, by type and operation; measured in pairs, so that few arrays are alive."""
    found: dict[str, dict[str, float]] = {}
    base = calls(BASE, shape)
    makers = {dtype: partial(calls, dtype, shape) for dtype in OTHERS if dtype != "bfloat16" or has_bfloat16()}
    for name, make in (makers | {"float32, weights of rows": partial(weighted, shape)}).items():
        others = make()
        found[name] = {}
        for operation, call in others.items():
            samples: dict[str, Any] = {}
            in_turns([Calls({"base": base[operation]}).turn, Calls({"other": call}).turn], effort, samples)
            theirs, ours = (median(took for took, _ in samples[label]) for label in ("other", "base"))
            found[name][operation] = round(theirs / ours, 2)
    return found


def lines(found: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return the table, with a line for every type."""
    return [
        ["", *OPERATIONS],
        *([name, *(f"{each[o]:.2f}" if o in each else "" for o in OPERATIONS)] for name, each in found.items()),
    ]


if __name__ == "__main__":
    parser("types", __doc__).parse_args()
    print(f"time over that of float32, {SHAPE}")
    print("\n".join(aligned(lines(measure()), 1)))
