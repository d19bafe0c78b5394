"""Online loops: RunningNorm and its wrappers beside those of Gymnasium and Stable-Baselines3, in time and in numbers.

    python -m benchmarks.online [--quick]

First the statistics of a stream are compared with those of all its values, then the times are taken, in turns. Packages
that are not installed are left out, and named.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

import bnorm

from .options import parser
from .text import aligned
from .timing import quickest_of_rounds

SHAPES = [(17,), (8, 17), (64, 17), (16, 84, 84)]
Call = Callable[[], Any]


@contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def calls(x: np.ndarray) -> dict[str, Call]:
    """Return calls that update statistics by x and normalize it, by name."""
    shape = x.shape[1:] or x.shape
    batch = x.reshape(-1, *shape)
    ours, clipped = bnorm.RunningNorm(shape), bnorm.RunningNorm(shape, clip=10.0)
    found: dict[str, Call] = {"bnorm": lambda: ours(x), "bnorm, clip": lambda: clipped(x)}
    if find_spec("gymnasium"):
        from gymnasium.wrappers.utils import RunningMeanStd

        theirs = RunningMeanStd(shape=shape)

        def gymnasium() -> np.ndarray:
            theirs.update(batch)
            return np.float32((x - theirs.mean) / np.sqrt(theirs.var + 1e-8))

        found["gymnasium"] = gymnasium
    if find_spec("stable_baselines3"):
        from stable_baselines3.common.running_mean_std import RunningMeanStd as Other

        other = Other(shape=shape)

        def sb3() -> np.ndarray:
            other.update(batch)
            z = np.clip((x - other.mean) / np.sqrt(other.var + 1e-8), -10.0, 10.0)
            return z.astype(np.float32)

        found["sb3, clip"] = sb3
    return found


def environments(steps: int) -> list[list[str]]:
    """Measure a step of eight CartPoles without a wrapper and behind each, and the error of the statistics."""
    import gymnasium
    from gymnasium.vector import SyncVectorEnv

    import bnorm.interop.gymnasium as ours

    def vector() -> Any:
        return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)

    ways: dict[str, Callable[[Any], Any]] = {
        "no wrapper": lambda envs: envs,
        "bnorm.interop.gymnasium": ours.NormalizeObservation,
        "gymnasium.wrappers.vector": gymnasium.wrappers.vector.NormalizeObservation,
    }
    seen: list[np.ndarray] = []
    rows = []
    for name, wrap in ways.items():
        took, errors = [], [float("nan")]
        for _ in range(3):
            envs = wrap(vector())
            obs, _ = envs.reset(seed=0)
            actions, took_one = np.random.default_rng(0).integers(0, 2, (steps, 8)), time.perf_counter()
            raw = [obs]
            for action in actions:
                raw.append(envs.step(action)[0])
            took.append((time.perf_counter() - took_one) / steps * 1e6)
        if name == "no wrapper":
            seen = raw
        else:
            right = np.concatenate(seen).astype(np.float64).var(axis=0)
            errors = [float(np.abs(envs.obs_rms.var / right - 1).max())]
        rows.append([name, f"{min(took):.1f}", "" if name == "no wrapper" else f"{errors[0]:.1e}"])
    return rows


def first_batch() -> list[list[str]]:
    """Return the variance after one batch of eight values, around 50 and around 1e4."""
    rows = []
    for level in (50.0, 1e4):
        x = np.random.default_rng(0).normal(level, 1, (8, 1)).astype(np.float32)
        row = [f"{level:g}", f"{float(x.astype(np.float64).var()):.4f}"]
        rn = bnorm.RunningNorm(1)
        rn.update(x)
        row.append(f"{rn.var.item():.4f}")
        if find_spec("gymnasium"):
            from gymnasium.wrappers.utils import RunningMeanStd

            theirs = RunningMeanStd(shape=(1,))
            theirs.update(x)
            row.append(f"{float(theirs.var[0]):.4f}")
        rows.append(row)
    return rows


def text(table: list[list[str]]) -> str:
    return "\n".join(aligned(table, 1))


def report(quick: bool) -> Iterator[str]:
    missing = [name for name in ("gymnasium", "stable_baselines3") if not find_spec(name)]
    if missing:
        yield f"Not installed, and left out: {', '.join(missing)}."
    heads = ["level", "variance", "bnorm", *(["gymnasium"] if find_spec("gymnasium") else [])]
    yield "Variance after the first batch of eight values:\n\n" + text([heads, *first_batch()])
    rounds, least = (2, 1e-4) if quick else (15, 5e-3)
    table: list[list[str]] = []
    for shape in SHAPES[:2] if quick else SHAPES:
        x = np.random.default_rng(0).normal(50, 3, shape).astype(np.float32)
        found = quickest_of_rounds(calls(x), rounds, least)
        if not table:
            table.append(["shape", *found])
        table.append([str(shape), *(f"{1e6 * took:.1f}" for took in found.values())])
    yield "Microseconds to update statistics and normalize, float32:\n\n" + text(table)
    if find_spec("gymnasium"):
        rows = environments(20 if quick else 3000)
        head = ["eight CartPoles", "µs a step", "error of the variance"]
        yield "A step, and the statistics after all of them:\n\n" + text([head, *rows])


def main() -> None:
    program = parser("online", __doc__)
    program.add_argument("--quick", action="store_true", help="too short to be believed, for tests")
    args = program.parse_args()
    with quietly():
        for part in report(args.quick):
            print(part, end="\n\n", flush=True)


if __name__ == "__main__":
    main()
