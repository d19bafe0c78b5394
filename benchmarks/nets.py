"""Further arguments of norms in nets: a residual, beside an addition and a norm; a mask, beside none; and an
activation, beside PyTorch's norm and activation.

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
NORMS = [("batch", (16, 64, 56, 56)), ("batch", (65536, 64)), ("group", (16, 64, 32, 32)), ("layer", (8192, 768))]
ACTIVATIONS = ["relu", "silu", "gelu"]
GROUPS = 32


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


def activated(kind: str, shape: tuple[int, ...], name: str, rounds: int, least: float) -> list[str]:
    """Measure a norm with an activation and its backward, and the norm and the activation of PyTorch."""
    import torch
    from torch.nn import functional as T

    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    gamma, beta = np.ones((2, shape[1]), np.float32)
    theirs = torch.from_numpy(x).requires_grad_()
    parameters = [torch.from_numpy(a).requires_grad_() for a in (gamma, beta)]
    of_theirs = torch.from_numpy(dy)
    act = {"relu": T.relu, "silu": T.silu, "gelu": lambda v: T.gelu(v, approximate="tanh")}[name]
    options: Any = {"gamma": gamma, "beta": beta, "activation": name}
    ours, norm = {
        "batch": (lambda: F.batch_norm(x, **options), lambda: T.batch_norm(theirs, None, None, *parameters, True)),
        "group": (lambda: F.group_norm(x, GROUPS, **options), lambda: T.group_norm(theirs, GROUPS, *parameters)),
        "layer": (
            lambda: F.layer_norm(x, normalized_shape=shape[1], **options),
            lambda: T.layer_norm(theirs, shape[1:], *parameters),
        ),
    }[kind]
    y, saved = ours()
    z = act(norm())

    def backward() -> torch.Tensor:
        theirs.grad = None
        z.backward(of_theirs, retain_graph=True)
        found: torch.Tensor = theirs.grad
        return found

    for got, want in ((y, z.detach()), (F.backward(dy, saved)[0], backward())):
        if np.abs(got - want.numpy()).max() > 1e-4:
            raise RuntimeError(f"{kind} norm of {shape} with {name}: not what PyTorch gives")
    return [
        f"{kind} norm {shape}, {name}",
        *columns(milliseconds([ours, lambda: act(norm())], rounds, least)),
        *columns(milliseconds([lambda: F.backward(dy, saved), backward], rounds, least)),
    ]


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
        yield of_activations(quick, threads, rounds, least)
    finally:
        bnorm.set_num_threads(before)


def of_activations(quick: bool, threads: int, rounds: int, least: float) -> str:
    try:
        import torch
    except ImportError:
        return "Norms with an activation are compared with PyTorch's, which is not installed."
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        heads = ["norm", "forward", "PyTorch", "ratio", "backward", "PyTorch", "ratio"]
        norms = NORMS[-1:] if quick else NORMS
        table = [heads, *(activated(*norm, name, rounds, least) for norm in norms for name in ACTIVATIONS)]
        return f"Norms with an activation, float32, {threads} threads, milliseconds:\n\n" + "\n".join(aligned(table, 1))
    finally:
        torch.set_num_threads(before)


def main() -> None:
    program = parser("nets", __doc__)
    program.add_argument("--quick", action="store_true", help="two shapes, few rounds")
    program.add_argument("--threads", type=int, default=bnorm.get_num_threads())
    given = program.parse_args()
    for part in report(given.quick, given.threads):
        print(part, end="\n\n", flush=True)


if __name__ == "__main__":
    main()
