"""Further arguments of norms in nets: a residual, beside an addition and a norm; and a mask, beside none.

    python -m benchmarks.nets [--quick] [--threads N]

The calls of a line take turns, and the quickest of some rounds of each counts.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import bnorm
import bnorm.functional as F

from .options import parser
from .text import aligned
from .timing import quickest_of_rounds

Call = Callable[[], Any]
RESIDUALS = [(256, 1024), (8192, 768), (16384, 1024), (65536, 1024)]  # (rows, features): two caches, and memory
MASKED = [  # (N, C, L) or (N, C, H, W), and the groups
    ((32, 128, 56, 56), 32),
    ((32, 256, 14, 14), 32),
    ((64, 512, 7, 7), 32),
    ((32, 256, 128), 8),
    ((64, 64, 1000), 64),
    ((8, 16, 50), 4),
]


def milliseconds(calls: list[Call], rounds: int, least: float) -> list[float]:
    """Return the quickest time of each call."""
    return [1e3 * took for took in quickest_of_rounds(dict(enumerate(calls)), rounds, least).values()]


def residual(shape: tuple[int, int], rounds: int, least: float) -> list[str]:
    """Measure layer norm with a residual, and its backward with dh; and the same by additions of NumPy."""
    rng = np.random.default_rng(0)
    x, r, dy, dh = (rng.standard_normal(shape, dtype=np.float32) for _ in range(4))
    options: Any = {"gamma": np.ones(shape[1]), "beta": np.zeros(shape[1]), "normalized_shape": shape[1]}
    (y, h), saved = F.layer_norm(x, residual=r, **options)
    wanted, plain = F.layer_norm(h, **options)
    if not np.array_equal(y, wanted):
        raise RuntimeError(f"{shape}: the residual has changed the result")
    del y, h, wanted
    forward = milliseconds(
        [lambda: F.layer_norm(x, residual=r, **options), lambda: F.layer_norm(x + r, **options)], rounds, least
    )

    def apart() -> np.ndarray:
        dx, *_ = F.backward(dy, plain)
        dx += dh
        return dx

    backward = milliseconds([lambda: F.backward((dy, dh), saved), apart], rounds, least)
    return [str(shape), *columns(forward), *columns(backward)]


def masked(shape: tuple[int, ...], groups: int, rounds: int, least: float) -> list[str]:
    """Measure group norm and its backward with a third of the positions padded, and without a mask."""
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    positions = int(np.prod(shape[2:]))
    lengths = rng.integers(positions // 3, positions + 1, shape[0])
    mask = (np.arange(positions) < lengths[:, None]).reshape(shape[0], *shape[2:])
    options: Any = {"num_groups": groups, "gamma": np.ones(shape[1]), "beta": np.zeros(shape[1])}
    _, saved = F.group_norm(x, weight=mask, **options)
    _, plain = F.group_norm(x, **options)
    forward = milliseconds(
        [lambda: F.group_norm(x, **options), lambda: F.group_norm(x, weight=mask, **options)], rounds, least
    )
    backward = milliseconds([lambda: F.backward(dy, plain), lambda: F.backward(dy, saved)], rounds, least)
    return [f"{shape} in {groups}", *columns(forward), *columns(backward)]


def columns(times: list[float]) -> list[str]:
    """Return both times, and the second over the first."""
    return [*(f"{t:.3f}" for t in times), f"{times[1] / times[0]:.2f}"]


def report(quick: bool, threads: int) -> Iterator[str]:
    rounds, least = (2, 1e-4) if quick else (9, 5e-3)
    before = bnorm.get_num_threads()
    bnorm.set_num_threads(threads)
    try:
        heads = ["shape", "residual", "x + r first", "ratio", "backward", "and + dh", "ratio"]
        shapes = RESIDUALS[:1] if quick else RESIDUALS
        table = [heads, *(residual(shape, rounds, least) for shape in shapes)]
        yield f"Layer norm with a residual, float32, {threads} threads, milliseconds:\n\n" + "\n".join(
            aligned(table, 1)
        )
        heads = ["shape, groups", "forward", "masked", "ratio", "backward", "masked", "ratio"]
        table = [heads, *(masked(*case, rounds, least) for case in (MASKED[-1:] if quick else MASKED))]
        yield f"Group norm with a mask, float32, {threads} threads, milliseconds:\n\n" + "\n".join(aligned(table, 1))
    finally:
        bnorm.set_num_threads(before)


def main() -> None:
    program = parser("nets", __doc__)
    program.add_argument("--quick", action="store_true", help="two shapes, few rounds")
    program.add_argument("--threads", type=int, default=bnorm.get_num_threads())
    given = program.parse_args()
    for part in report(given.quick, given.threads):
        print(part, end="\n\n", flush=True)


if __name__ == "__main__":
    main()
