"""`python -m benchmarks.gpu`: check the kernels against float64, then time them, beside PyTorch and a copy.

Needs a CUDA device and CuPy; PyTorch, where it is installed with CUDA, is timed with cuDNN and without. Every operation
is replayed from a CUDA graph of many calls, whose inputs rotate through more memory than the second-level cache holds,
so that neither launches nor hits are counted. What a call costs the host is timed apart, over many small ones. With
--save the numbers go to results/gpu/, one file per device.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import bnorm
from bnorm.kernels import gpu, reference

from .shapes import CHANNEL_PASSES, EPS

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu"
ROTATED = 256 << 20  # bytes that the inputs of one graph rotate through: several times the cache
REPEATS = 9
LEAST = 2e-3  # seconds of a graph: the clock of events ticks twice a microsecond
# (shape as the kernels see it, (outer, C) or (outer, C, inner); types)
SHAPES = [
    ((256, 64), ("float32", "bfloat16")),
    ((4096, 512), ("float32",)),
    ((65536, 64), ("float32", "bfloat16")),
    ((65536, 1024), ("float32", "bfloat16")),
    ((1000000, 3), ("float32",)),
    ((1000000, 100), ("float32",)),
    ((32, 256, 14 * 14), ("float32", "float16")),
    ((64, 512, 7 * 7), ("float32", "float16")),
    ((32, 512, 28 * 28), ("float32", "bfloat16")),
    ((128, 256, 56 * 56), ("float32", "bfloat16", "float16", "float64")),
]
Call = Callable[[], object]
# |y - exact| for |y| of a few: computed in float32, then rounded to the type
TOLERANCE = {"float64": 1e-12, "float32": 5e-6, "float16": 4e-3, "bfloat16": 3e-2}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--save", action="store_true", help="into results/gpu/")
    parser.add_argument("--check", action="store_true", help="check only")
    options = parser.parse_args()
    if reason := gpu.available():
        raise SystemExit(reason)
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        for shape, dtypes in SHAPES:
            for dtype in dtypes:
                check(cupy, shape, dtype)
        print("every result is within its bound of float64")
        if options.check:
            return
        results = measure(cupy, stream)
    print(json.dumps(results, indent=1))
    if options.save:
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", results["device"].lower()).strip("-")
        (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


# Checking ------------------------------------------------------------------------------------------------------------


def check(cupy: Any, shape: tuple[int, ...], dtype: str) -> None:
    """A smaller outer of the same shape, against the reference; twice, and the same bits."""
    small = (max(2, min(shape[0], (1 << 22) // prod(shape[1:]))), *shape[1:])
    for offset in (0.0, 100.0):
        x, dy = (draw(cupy, small, dtype, seed, offset) for seed in (1, 2))
        gamma, beta = (cupy.linspace(0.5, 2, small[1]) for _ in range(2))
        wide_x, wide_dy = (cupy.asnumpy(a).astype(np.float64) for a in (x, dy))
        y, stats, count, _ = gpu.forward(x, gamma, beta, EPS)
        again = gpu.forward(x, gamma, beta, EPS)[0]
        want, exact_stats, _, _ = reference.forward(wide_x, cupy.asnumpy(gamma), cupy.asnumpy(beta), EPS)
        compare("forward", small, dtype, cupy.asnumpy(y), want)
        if not bool((y == again).all()):
            raise SystemExit(f"forward of {small}, {dtype}: two runs differ")
        compare("statistics", small, dtype, cupy.asnumpy(stats[0]), exact_stats[0], 1e-5)
        found = gpu.backward(dy, x, stats, count)
        wanted = reference.backward(wide_dy, wide_x, exact_stats, count)
        compare("dx", small, dtype, cupy.asnumpy(found[0]), wanted[0])
        for name, got, exact in zip(("dgamma", "dbeta"), found[1:], wanted[1:], strict=True):
            compare(name, small, dtype, cupy.asnumpy(got), exact, 1e-5 * float(np.abs(wide_dy).sum((0,)).max()))


def draw(cupy: Any, shape: tuple[int, ...], dtype: str, seed: int, offset: float = 0.0) -> Any:
    values = cupy.random.default_rng(seed).standard_normal(shape, dtype=cupy.float32) + cupy.float32(offset)
    if dtype == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(dtype)


def compare(what: str, shape: tuple[int, ...], dtype: str, got: Any, want: Any, allowed: float | None = None) -> None:
    size = max(1.0, float(np.abs(want).max(initial=0.0)))
    bound = TOLERANCE[dtype] * size if allowed is None else max(allowed, TOLERANCE[dtype]) * size
    error = float(np.abs(got.astype(np.float64) - want).max(initial=0.0))
    if not error <= bound:
        raise SystemExit(f"{what} of {shape}, {dtype}: off by {error:.3g}, allowed {bound:.3g}")


# Timing --------------------------------------------------------------------------------------------------------------


def measure(cupy: Any, stream: Any) -> dict[str, Any]:
    rows = []
    for shape, dtypes in SHAPES:
        for dtype in dtypes:
            row = {"shape": shape, "dtype": dtype, "times": times(cupy, stream, shape, dtype)}
            rows.append(row)
            print(json.dumps(row))
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return {"device": name, "bnorm": bnorm.__version__, "cupy": cupy.__version__, "host": host(cupy), "rows": rows}


def times(cupy: Any, stream: Any, shape: tuple[int, ...], dtype: str) -> dict[str, dict[str, float]]:
    """Seconds by operation and library, and what a copy of as many bytes takes."""
    sets = max(1, min(64, ROTATED // (prod(shape) * draw(cupy, (1, 1), dtype, 0).itemsize)))
    xs = [draw(cupy, shape, dtype, i) for i in range(sets)]
    dys = [draw(cupy, shape, dtype, 100 + i) for i in range(sets)]
    outs = [cupy.empty_like(x) for x in xs]
    gamma, beta = cupy.ones(shape[1]), cupy.zeros(shape[1])
    mean, var = cupy.zeros(shape[1]), cupy.ones(shape[1])
    _, stats, count, _ = gpu.forward(xs[0], gamma, beta, EPS)
    found: dict[str, dict[str, float]] = {name: {} for name in CHANNEL_PASSES}
    calls: dict[str, Callable[[int], object]] = {
        "forward": lambda i: gpu.forward(xs[i], gamma, beta, EPS, out=outs[i]),
        "inference": lambda i: gpu.forward(xs[i], gamma, beta, EPS, mean, var, out=outs[i]),
        "backward": lambda i: gpu.backward(dys[i], xs[i], stats, count, out=outs[i]),
    }
    copy = replayed(cupy, stream, lambda i: cupy.copyto(outs[i], xs[i]), sets)
    for name, call in calls.items():
        found[name]["bnorm"] = replayed(cupy, stream, call, sets)
        found[name]["copy"] = copy * CHANNEL_PASSES[name] / 2  # a copy reads and writes the array once
    for peer, library in torch_calls(xs, dys):
        for name, call in library.items():
            found[name][peer] = looped(stream, call, sets)
    return found


def replayed(cupy: Any, stream: Any, call: Callable[[int], object], sets: int) -> float:
    """Seconds per call, the median of replays of a graph."""
    kept = [call(i) for i in range(sets)]  # compiled, and its memory in the pool
    stream.synchronize()
    per_call = looped(stream, call, sets)
    calls = sets * max(1, round(LEAST / per_call / sets))
    stream.begin_capture()
    kept += [call(i % sets) for i in range(calls)]
    graph = stream.end_capture()
    graph.launch(stream)
    samples = [events(stream, lambda: graph.launch(stream)) / calls for _ in range(REPEATS)]
    del kept  # what the graph wrote to had to live until now
    return statistics.median(samples)


def looped(stream: Any, call: Callable[[int], object], sets: int) -> float:
    """Seconds per call, one after the other; for short ones that is the host's time."""
    for i in range(sets):
        call(i)
    samples = [events(stream, lambda: [call(i) for i in range(sets)]) / sets for _ in range(REPEATS)]
    return statistics.median(samples)


def events(stream: Any, call: Call) -> float:
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    call()
    end.record(stream)
    end.synchronize()
    elapsed: float = cupy.cuda.get_elapsed_time(start, end)
    return elapsed * 1e-3


def host(cupy: Any, calls: int = 2000) -> dict[str, float]:
    """Seconds that one call on (256, 64) costs the host."""
    x = draw(cupy, (256, 64), "float32", 0)
    gamma, beta, out = cupy.ones(64), cupy.zeros(64), cupy.empty_like(x)
    _, stats, count, _ = gpu.forward(x, gamma, beta, EPS, out=out)
    operations: dict[str, Call] = {
        "forward": lambda: gpu.forward(x, gamma, beta, EPS, out=out),
        "backward": lambda: gpu.backward(x, x, stats, count, out=out),
    }
    found = {}
    for name, call in operations.items():
        call()
        cupy.cuda.get_current_stream().synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found[name] = (time.perf_counter() - start) / calls
        cupy.cuda.get_current_stream().synchronize()
    return found


def torch_calls(xs: list[Any], dys: list[Any]) -> Iterator[tuple[str, dict[str, Callable[[int], object]]]]:
    """PyTorch on the same arrays, with cuDNN and without; nothing where there is no PyTorch with CUDA."""
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    import cupy

    stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)
    with torch.cuda.stream(stream):
        kind = torch.bfloat16 if xs[0].dtype.name == "bfloat16" else None
        ts, gs = ([as_tensor(torch, a, kind) for a in arrays] for arrays in (xs, dys))
        for t in ts:
            t.requires_grad_()
        affine = [torch.ones(ts[0].shape[1], device="cuda", requires_grad=True) for _ in range(2)]
        running = [torch.zeros(ts[0].shape[1], device="cuda"), torch.ones(ts[0].shape[1], device="cuda")]

        def run(i: int, training: bool) -> Any:
            return torch.nn.functional.batch_norm(ts[i], *running, *affine, training=training, eps=EPS)

        def without_gradient(i: int, training: bool) -> Any:
            with torch.no_grad():
                return run(i, training)

        for name, enabled in (("torch", False), ("torch with cuDNN", True)):
            with cudnn(torch, enabled):
                ys = [run(i, True) for i in range(len(ts))]
                yield (
                    name,
                    {
                        "forward": lambda i: without_gradient(i, True),
                        "inference": lambda i: without_gradient(i, False),
                        "backward": lambda i, ys=ys: torch.autograd.grad(
                            ys[i], [ts[i], *affine], gs[i], retain_graph=True
                        ),
                    },
                )


def as_tensor(torch: Any, array: Any, kind: Any) -> Any:
    return torch.from_dlpack(array) if kind is None else torch.from_dlpack(array.view(np.int16)).view(kind)


@contextmanager
def cudnn(torch: Any, enabled: bool) -> Iterator[None]:
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


if __name__ == "__main__":
    main()
