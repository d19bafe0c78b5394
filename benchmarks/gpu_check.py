"""`python -m benchmarks.gpu_check`: all families of CUDA kernels against float64 on the processor, a line a case.

The arrays are small, and CuPy itself computes nothing: it only copies them there and back. A line says how large the
errors are, also as a fraction of what rounding can do (`gpu_exact.py`). A case that fails says why, and does not stop
the others.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import bnorm
import bnorm.functional as F
from bnorm.kernels import MEAN_SQUARE, VARIANCE, cpu, gpu

from .gpu import need_device
from .gpu_exact import EPS, Exact, compare, exact_batch, exact_rows, ours

DTYPES = ("float32", "bfloat16", "float16", "float64")
Found = dict[str, Any]


class Case(NamedTuple):
    family: str  # of kernels, which such a call launches; batch norm launches two or three of `channels`
    what: str
    shape: tuple[int, ...]  # as the kernels see it


CASES = [
    Case("channels", "batch norm", (256, 64)),
    Case("channels", "batch norm", (30000, 70)),
    Case("channels", "batch norm", (300, 3, 49)),
    Case("channels", "batch norm", (7, 3, 20001)),
    Case("channels", "weighted batch norm", (300, 33)),
    Case("channels", "weighted batch norm", (6, 3, 300)),
    Case("clusters", "batch norm", (24, 32, 3136)),
    Case("planes", "batch norm", (16, 256, 49)),
    Case("rows", "layer norm", (3000, 1, 64, 1)),
    Case("rows", "layer norm", (400, 1, 1000, 1)),
    Case("rows", "layer norm", (20, 1, 4096, 1)),
    Case("rows", "layer norm", (5, 1, 40000, 1)),
    Case("rows", "rms norm", (400, 1, 1000, 1)),
    Case("rows", "group norm", (60, 4, 2, 49)),
    Case("row_channels", "group norm", (2, 1, 14000, 33)),
    Case("rows_weighted", "weighted group norm", (900, 2, 4, 25)),  # more rows than blocks
    Case("statistics", "layer in training", (50, 300)),
    Case("exact", "exact sums", (3000, 65)),
    Case("exact", "exact sums", (16, 3, 20001)),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.parse_args()
    need_device()
    import cupy

    failed = 0
    for row in rows(cupy, CASES, DTYPES):
        print(json.dumps(row), flush=True)
        failed += "failed" in row
    if failed:
        raise SystemExit(1)


def rows(cupy: Any, cases: Sequence[Case], dtypes: Sequence[str]) -> Any:
    for dtype in dtypes:
        for case in cases:
            start = time.perf_counter()
            try:
                found = check(cupy, case, dtype)
            except Exception as error:  # one case less
                found = {"failed": f"{type(error).__name__}: {error}"}
            yield {**case._asdict(), "dtype": dtype, **found, "took": round(time.perf_counter() - start, 2)}


def check(cupy: Any, case: Case, dtype: str) -> Found:
    rng = np.random.default_rng(0)
    x, dy = ((rng.standard_normal(case.shape) + 0.5).astype(numpy_type(dtype)) for _ in range(2))
    kind: dict[str, Callable[[Any, np.ndarray, np.ndarray], Found]] = {
        "batch norm": batch,
        "weighted batch norm": weighted_batch,
        "layer in training": layers,
        "exact sums": exact_sums,
    }
    if case.what in kind:
        return kind[case.what](cupy, x, dy)
    return of_rows(cupy, x, dy, rms=case.what == "rms norm", weighted=case.what.startswith("weighted"))


def numpy_type(dtype: str) -> np.dtype[Any]:
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def vectors(channels: int) -> list[np.ndarray]:
    """gamma, beta, mean and var."""
    return [np.linspace(low, high, channels) for low, high in ((0.5, 2), (-1, 1), (-0.5, 0.5), (0.5, 2))]


def batch(cupy: Any, x: np.ndarray, dy: np.ndarray) -> Found:
    exact = exact_batch(np, x, dy, *vectors(x.shape[1]))
    x, dy, gamma, beta, mean, var = map(cupy.asarray, (x, dy, *vectors(x.shape[1])))
    y, stats, count, _ = gpu.forward(x, gamma, beta, EPS)
    known = gpu.forward(x, gamma, beta, EPS, mean, var)[0]
    found = {"forward": [y], "inference": [known], "backward": gpu.backward(dy, x, stats, count)}
    return compared(cupy, exact, found, x.dtype.name)


def weighted_batch(cupy: Any, x: np.ndarray, dy: np.ndarray) -> Found:
    weight = np.linspace(0, 1, x.shape[0] * x[0, 0].size)
    gamma, beta = vectors(x.shape[1])[:2]
    exact = exact_batch(np, x, dy, gamma, beta, weight=weight.reshape(len(x), 1, *x.shape[2:]))
    x, dy, gamma, beta, weight = map(cupy.asarray, (x, dy, gamma, beta, weight.reshape(len(x), -1)))
    y, stats, count, _ = gpu.forward(x, gamma, beta, EPS, weight=weight)
    return compared(cupy, exact, {"forward": [y], "backward": gpu.backward(dy, x, stats, count, weight)}, x.dtype.name)


def of_rows(cupy: Any, x: np.ndarray, dy: np.ndarray, rms: bool, weighted: bool) -> Found:
    weight = np.linspace(0.1, 1, x.shape[0] * x.shape[3]).reshape(len(x), 1, 1, -1) if weighted else None
    gamma, beta = vectors(x.shape[1] * x.shape[2])[:2]
    exact = exact_rows(np, x, dy, gamma, beta, rms=rms, weight=1.0 if weight is None else weight)
    x, dy, gamma, beta = map(cupy.asarray, (x, dy, gamma, beta))
    of = {} if weight is None else {"weight": cupy.asarray(weight.reshape(len(x), -1))}
    rule = MEAN_SQUARE if rms else VARIANCE
    y, mean, rstd = gpu.rows_forward(x, gamma, beta, EPS, rule, **of)
    found = {"forward": [y], "backward": gpu.rows_backward(dy, x, mean, rstd, gamma, beta, rule, **of)}
    return compared(cupy, exact, found, x.dtype.name)


def compared(cupy: Any, exact: Exact, found: dict[str, Any], dtype: str) -> Found:
    results = exact.results()
    bounds = exact.bounds(ours(dtype), results)
    errors = {}
    for name, arrays in found.items():
        error, share = compare(np, name, list(map(cupy.asnumpy, arrays)), results[name], bounds[name])
        errors[name] = {"error": error, "of bound": round(share, 4)}
    return errors


def layers(cupy: Any, x: np.ndarray, dy: np.ndarray) -> Found:
    """Check running statistics and added gradients of a layer, merged moments, and rows whose parameters are converted,
    against the processor's."""
    found = []
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    for where, make, kernels in (("cpu", np.asarray, cpu), ("cuda", cupy.asarray, gpu)):
        layer = bnorm.BatchNorm1d(x.shape[1], device=where)
        for values in (x, dy):
            layer(make(values))
            layer.backward(make(dy))
        with layer.pooled_stats():  # at its end the statistics are updated by a launch of their own
            layer(make(x))
        merged = F.moments(make(x)) + F.moments(make(dy))
        # As in a backward whose kernels cannot add to the gradients themselves.
        kernels.add(layer.gamma.grad, merged.mean, layer.beta.grad, merged.mean)
        rows = bnorm.LayerNorm(x.shape[1], dtype="float32", device=where)
        rows.gamma, rows.beta = (make(a.astype(np.float32)) for a in vectors(x.shape[1])[:2])
        y = rows(make(wide))
        running = layer.running_mean, layer.running_var
        found.append([*running, layer.gamma.grad, layer.beta.grad, merged.mean, merged.var(), y])
    want, got = found[0], map(cupy.asnumpy, found[1])
    error = max(float(np.max(abs(a - b) / np.maximum(1, abs(b)))) for a, b in zip(got, want, strict=True))
    allowed = 1e-12 if x.dtype == np.float64 else 1e-5  # the processor computes in float32 as well
    if not error <= allowed:
        raise ArithmeticError(f"layer: off by {error:.3g}, allowed {allowed:.3g}")
    return {"layer": {"error": error, "of bound": round(error / allowed, 4)}}


def exact_sums(cupy: Any, x: np.ndarray, dy: np.ndarray) -> Found:
    """Check exact sums: integers, which must be the same."""
    x[0] = dy[0] * x.dtype.type(1e-5)
    x[1, 0], x[2, 0] = np.inf, np.nan
    got, want = gpu.exact_sums(cupy.asarray(x)), cpu.exact_sums(x)
    for a, b in zip(got, want, strict=True):
        if not np.array_equal(a, b):
            raise ArithmeticError("exact sums: other integers than the processor's")
    return {"sums": {"error": 0.0, "of bound": 0.0}}


if __name__ == "__main__":
    main()
