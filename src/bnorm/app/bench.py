"""`bnorm bench`: the copy speed of this machine, and the speed of normalizations, compared with installed libraries.

The libraries take turns in each case, so that other work on the machine affects all of them; medians are printed.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module, util
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

import bnorm
from bnorm import functional as F
from bnorm.kernels import cpu

ROUNDS = 5  # the fewest rounds of a case


class Case(NamedTuple):
    """A name, the least number of passes over an array of `bytes` bytes, and the calls to compare."""

    name: str
    passes: int
    bytes: int
    contenders: dict[str, Callable[[], object]]


def run(seconds: float, as_json: bool) -> None:
    """Measure for about that many seconds, and print a table."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((65_536, 64), np.float32)
    small = rng.standard_normal((256, 128), np.float32)
    cases = [_copy(x), _training(x), _inference(x), _layer(x), _statistics(x), _small(small)]
    figures = [_measure(case, seconds / len(cases)) for case in cases]
    speed = cases[0].bytes * 2 / figures[0]["numpy"]
    facts = {"simd": cpu.simd_level(), "threads": bnorm.get_num_threads(), "copy_bytes_per_second": speed}
    if as_json:
        rows = {case.name: times for case, times in zip(cases, figures, strict=True)}
        print(json.dumps(facts | {"seconds": rows}))
        return
    print(f"bnorm {bnorm.__version__}, {cpu.simd_level()}, {bnorm.get_num_threads()} threads; NumPy copies "
          f"{speed / 1e9:.1f} GB/s\n")  # fmt: skip
    print(f"{'float32':34}{'bnorm ms':>10}{'of copy':>9}   how many times faster than")
    for case, times in zip(cases[1:], figures[1:], strict=True):
        own = times["bnorm"]
        share = f"{case.passes * case.bytes / own / speed:8.0%}" if case.passes else f"{'':8}"
        others = ", ".join(f"{name} {t / own:.2f}" for name, t in times.items() if name != "bnorm")
        print(f"{case.name:34}{own * 1e3:10.3f} {share}   {others}")


def _measure(case: Case, seconds: float) -> dict[str, float]:
    """The median time of each contender."""
    times: dict[str, list[float]] = {name: [] for name in case.contenders}
    for contender in case.contenders.values():
        contender()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < ROUNDS:
        for name, contender in case.contenders.items():
            start = time.perf_counter()
            contender()
            times[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def _installed(name: str) -> Any:
    return import_module(name) if util.find_spec(name) else None


def _copy(x: ndarray) -> Case:
    to = np.empty_like(x)
    return Case("copy", 2, x.nbytes, {"numpy": lambda: np.copyto(to, x)})


def _training(x: ndarray) -> Case:
    """Forward and backward."""
    layer, dy = bnorm.BatchNorm1d(x.shape[1]), np.ones_like(x)

    def own() -> None:
        layer(x)
        layer.backward(dy)

    contenders: dict[str, Callable[[], object]] = {"bnorm": own}
    if torch := _installed("torch"):
        peer, tx = torch.nn.BatchNorm1d(x.shape[1]), torch.from_numpy(x.copy()).requires_grad_()
        tdy = torch.from_numpy(dy)

        def torchs() -> None:
            peer(tx).backward(tdy)

        contenders["PyTorch"] = torchs
    return Case(f"batch norm, training {x.shape}", 8, x.nbytes, contenders)


def _inference(x: ndarray) -> Case:
    layer = bnorm.BatchNorm1d(x.shape[1]).eval()
    name = f"batch norm, inference {x.shape}"
    return _forward(name, 2, x, lambda: layer(x), lambda nn: nn.BatchNorm1d(x.shape[1]).eval())


def _layer(x: ndarray) -> Case:
    width = x.shape[1] * 8
    rows = x.reshape(-1, width)
    gamma, beta = np.ones(width), np.zeros(width)
    own = partial(F.layer_norm, rows, gamma, beta, normalized_shape=width)
    return _forward(f"layer norm {rows.shape}", 2, rows, own, lambda nn: nn.LayerNorm(width))


def _statistics(x: ndarray) -> Case:
    contenders: dict[str, Callable[[], object]] = {
        "bnorm": lambda: F.moments(x),
        "NumPy": lambda: (x.mean(0), x.var(0)),
    }
    if data := _installed("sklearn.preprocessing") if util.find_spec("sklearn") else None:
        contenders["StandardScaler"] = lambda: data.StandardScaler().fit(x)
    return Case(f"mean and variance {x.shape}", 1, x.nbytes, contenders)


def _small(x: ndarray) -> Case:
    layer = bnorm.BatchNorm1d(x.shape[1])
    return _forward(f"batch norm, forward {x.shape}", 0, x, lambda: layer(x), lambda nn: nn.BatchNorm1d(x.shape[1]))


def _forward(name: str, passes: int, x: ndarray, own: Callable[[], object], peer: Callable[[Any], Any]) -> Case:
    """A forward of x beside that of a module of PyTorch, without gradients. peer: makes the module from torch.nn."""
    contenders = {"bnorm": own}
    if torch := _installed("torch"):
        module, tx = peer(torch.nn), torch.from_numpy(x)

        def torchs() -> object:
            with torch.no_grad():
                return module(tx)

        contenders["PyTorch"] = torchs
    return Case(name, passes, x.nbytes, contenders)
