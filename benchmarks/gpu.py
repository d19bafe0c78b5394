"""`python -m benchmarks.gpu`: check the kernels against float64, then time them, beside PyTorch and a copy.

Needs a CUDA device and CuPy; PyTorch is timed if it is installed with CUDA. What is timed is checked first: the same
arrays, the same calls, PyTorch's results too, against the bounds of gpu_exact.py. Each operation is replayed from a
CUDA graph of many calls, whose inputs rotate through more memory than the second-level cache holds, so that neither
launches nor cache hits count. PyTorch is timed this way, and also call by call. What a call costs the host is measured
separately. With --save every row goes to results/gpu/DEVICE.json as soon as it is complete; a row, or a library in a
row, that fails says why, and does not stop the others.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import bnorm
from bnorm.kernels import MEAN_SQUARE, gpu
from bnorm.kernels.activation import IDENTITY
from bnorm.kernels.gpu import launching, plans
from bnorm.kernels.gpu.jobs import JOB

from .gpu_exact import EPS, Exact, compare, exact_batch, exact_rows, ours, theirs
from .gpu_torch import torch_calls, torch_version, types
from .shapes import CHANNEL_PASSES, ROW_PASSES
from .store import RESULTS

ROTATED = 256 << 20  # bytes that the inputs of one graph rotate through: several times the cache
REPEATS = 9
LEAST = 2e-3  # seconds of a graph: the clock of events ticks twice a microsecond
KEPT_PASSES = {"forward": 2, "inference": 2, "backward": 3}  # if a block or a cluster keeps what it has read
NO_DEVICE = 2  # the exit status
Calls = dict[str, Callable[[int], Any]]


class Case(NamedTuple):
    """A normalization, and the shape as its kernels see it: (outer, C), (outer, C, inner), or of rows (N, G, K, L)."""

    kind: str
    shape: tuple[int, ...]
    dtype: str


def each(kind: str, shape: tuple[int, ...], *dtypes: str) -> list[Case]:
    return [Case(kind, shape, dtype) for dtype in dtypes]


CASES = [  # the most telling first
    *each("batch_norm", (65536, 1024), "float32", "bfloat16"),
    *each("batch_norm", (128, 256, 56 * 56), "float32", "bfloat16"),
    *each("layer_norm", (65536, 1, 1024, 1), "float32", "bfloat16"),
    *each("batch_norm", (256, 64), "float32", "bfloat16"),
    *each("batch_norm", (65536, 64), "float32", "bfloat16"),
    *each("batch_norm", (32, 512, 28 * 28), "float32", "bfloat16"),
    *each("batch_norm", (64, 512, 7 * 7), "float32", "float16"),
    *each("layer_norm", (16384, 1, 4096, 1), "float32", "bfloat16"),
    *each("layer_norm", (524288, 1, 64, 1), "float32"),
    *each("rms_norm", (32768, 1, 2048, 1), "float32", "bfloat16"),
    *each("group_norm", (64, 32, 8, 56 * 56), "float32", "bfloat16"),
    *each("batch_norm", (1000000, 3), "float32"),
    *each("batch_norm", (1000000, 100), "float32"),
    *each("batch_norm", (4096, 512), "float32"),
    *each("batch_norm", (32, 256, 14 * 14), "float32", "float16"),
    *each("batch_norm", (128, 256, 56 * 56), "float16", "float64"),
    *each("layer_norm", (12288, 1, 5120, 1), "float32", "bfloat16"),
    *each("layer_norm", (65536, 1, 768, 1), "bfloat16"),
    *each("layer_norm", (4096, 1, 16384, 1), "bfloat16"),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--save", action="store_true", help="into results/gpu/, row by row")
    parser.add_argument("--first", type=int, default=len(CASES), metavar="N", help="only the N most telling cases")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="without the N most telling cases")
    parser.add_argument("--compiled", type=int, default=0, metavar="N", help="torch.compile too, of N cases")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="check only")
    only.add_argument("--once", action="store_true", help="make each call, and nothing else: to be profiled")
    options = parser.parse_args()
    need_device()
    import cupy

    results = about(cupy)
    path = RESULTS / "gpu" / (re.sub(r"[^a-z0-9]+", "-", results["device"].lower()).strip("-") + ".json")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for row in rows(cupy, stream, CASES[options.after : options.first], options):
            results["rows"].append(row)
            print(json.dumps(row), flush=True)
            if options.save:
                replace(path, json.dumps(results, indent=1) + "\n")
    failed = [row for row in results["rows"] if "failed" in row]
    print(f"{len(results['rows']) - len(failed)} of {len(results['rows'])} rows are within their bounds of float64")
    if failed:
        raise SystemExit(1)


def need_device() -> None:
    """End at once, with the reason, if there is no device."""
    if reason := gpu.available():
        print(reason, file=sys.stderr)
        raise SystemExit(NO_DEVICE)


def replace(path: Path, text: str) -> None:
    """Write a file so that it has the old text or the new one, even if this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def rows(cupy: Any, stream: Any, cases: list[Case], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows one by one. A row that fails says so, and the next one is tried."""
    measures: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = []
    if not (options.check or options.once or options.after):
        measures.append(({"kind": "host", "shape": [256, 64], "dtype": "float32"}, lambda: {"host": host(cupy)}))
    for i, case in enumerate(cases):
        measures.append((case._asdict(), partial(measured, cupy, stream, case, options, i < options.compiled)))
    for row, measure in measures:
        start = time.perf_counter()
        try:
            row |= measure()
        except Exception as error:  # one row less
            row["failed"] = f"{type(error).__name__}: {error}"
        cupy.get_default_memory_pool().free_all_blocks()
        yield row | {"took": round(time.perf_counter() - start, 2)}


def about(cupy: Any) -> dict[str, Any]:
    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    versions = {"bnorm": bnorm.__version__, "cupy": cupy.__version__, "torch": torch_version()}
    cuda = {"driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion()}
    return {"device": name, "versions": versions | cuda, "rows": []}


class Problem:
    """The arrays of a case, several sets of them, and the calls that are checked and timed."""

    def __init__(self, cupy: Any, case: Case) -> None:
        self.cupy, self.case, shape = cupy, case, case.shape
        self.size = prod(shape) * draw(cupy, (1,), case.dtype, 0).itemsize
        self.sets = max(1, min(64, ROTATED // self.size))
        self.x = [draw(cupy, shape, case.dtype, i) for i in range(self.sets)]
        self.dy = [draw(cupy, shape, case.dtype, 100 + i) for i in range(self.sets)]
        self.out = [cupy.empty_like(x) for x in self.x]
        self.channels = shape[1] if case.kind == "batch_norm" else shape[1] * shape[2]
        ends = (0.5, 2), (-1, 1) if case.kind != "rms_norm" else (0, 0), (-0.5, 0.5), (0.5, 2)
        # multiples of 1/64, which every type can hold, so that no library has errors from rounding its parameters
        vectors = (cupy.rint(cupy.linspace(low, high, self.channels) * 64) / 64 for low, high in ends)
        self.gamma, self.beta, self.mean, self.var = vectors
        self.rule = int(case.kind == "rms_norm") * MEAN_SQUARE
        self.passes = fewest_passes(case, launching.device_of(self.x[0]).limits)

    def calls(self) -> Calls:
        x, dy, out, beta = self.x, self.dy, self.out, None if self.case.kind == "rms_norm" else self.beta
        affine = self.gamma, beta
        if self.case.kind == "batch_norm":
            _, stats, count, _ = gpu.forward(x[0], *affine, EPS)
            return {
                "forward": lambda i: gpu.forward(x[i], *affine, EPS, out=out[i]),
                "inference": lambda i: gpu.forward(x[i], *affine, EPS, self.mean, self.var, out=out[i]),
                "backward": lambda i: gpu.backward(dy[i], x[i], stats, count, out=out[i]),
            }
        _, mean, rstd = gpu.rows_forward(x[0], *affine, EPS, self.rule)
        return {
            "forward": lambda i: gpu.rows_forward(x[i], *affine, EPS, self.rule, out=out[i]),
            "backward": lambda i: gpu.rows_backward(dy[i], x[i], mean, rstd, *affine, self.rule, out=out[i]),
        }

    def exact(self) -> Exact:
        """What the calls must give for the first set, in float64."""
        arrays = self.cupy, self.x[0], self.dy[0], self.gamma, self.beta
        if self.case.kind == "batch_norm":
            return exact_batch(*arrays, self.mean, self.var)
        return exact_rows(*arrays, rms=self.rule == MEAN_SQUARE)


def fewest_passes(case: Case, limits: plans.Limits) -> dict[str, int]:
    """Return the fewest passes of each operation for which the device is large enough."""
    if case.kind != "batch_norm":
        return ROW_PASSES
    size = case.shape[0], case.shape[1], prod(case.shape[2:]), case.dtype, True
    found = dict(CHANNEL_PASSES)
    for name, sums, then in (("forward", "moments", "normalize"), ("backward", "sums", "gradient")):
        first, *others = plans.reduction(sums, *size, False, then, IDENTITY.kind, limits).launches
        if not others and JOB.placed(first.geometry)["keep"]:
            found[name] = KEPT_PASSES[name]
    return found


def draw(cupy: Any, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    values = cupy.random.default_rng(seed).standard_normal(shape, dtype=cupy.float32) + cupy.float32(0.5)
    if dtype == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(dtype)


def measured(cupy: Any, stream: Any, case: Case, options: argparse.Namespace, compiled: bool) -> dict[str, Any]:
    """Return errors, seconds and rates by operation and library. `floor`: the time to copy as many bytes."""
    problem = Problem(cupy, case)
    calls = problem.calls()
    if options.once:
        for call in calls.values():
            call(0)
        stream.synchronize()
        return {}
    exact = problem.exact()
    results = exact.results()
    bounds = exact.bounds(ours(case.dtype), results)
    found: dict[str, Any] = {name: checked(cupy, problem, name, calls, results, bounds) for name in calls}
    if options.check:
        return {"operations": found}
    bounds = exact.bounds(theirs(*types(case.kind, case.dtype)), results)
    del exact
    copy = replayed(stream, lambda i: cupy.copyto(problem.out[i], problem.x[i]), problem.sets)
    for name, call in calls.items():
        seconds, moved = replayed(stream, call, problem.sets), problem.passes[name] * problem.size
        floor = copy * problem.passes[name] / 2  # a copy reads the array and writes it
        found[name] |= {"bnorm": seconds, "floor": floor, "GB/s": moved / seconds / 1e9, "of copy": floor / seconds}
    for library, cells in torch_calls(problem, EPS, compiled):
        for name, (timed, theirs_are) in cells.items():
            try:
                compare(cupy, f"{library} {name}", theirs_are(), results[name], bounds[name])
                found[name][library] = timed()
            except Exception as error:  # one cell less
                found[name][library] = f"{type(error).__name__}: {error}"
    return {"copy GB/s": 2 * problem.size / copy / 1e9, "operations": found}


def checked(
    cupy: Any, problem: Problem, name: str, calls: Calls, results: dict[str, list[Any]], bounds: dict[str, list[Any]]
) -> dict[str, float]:
    """Return the errors of a call. Two runs must give the same bits."""
    runs = []
    for _ in range(2):
        problem.out[0].fill(7)
        first, *others = calls[name](0)
        runs.append([first.copy(), *(others[:2] if name == "backward" else ())])
    for a, b in zip(*runs, strict=True):
        if a.tobytes() != b.tobytes():
            raise ArithmeticError(f"{name}: two runs differ")
    error, share = compare(cupy, name, runs[0], results[name], bounds[name])
    return {"error": error, "of bound": share}


# Timing --------------------------------------------------------------------------------------------------------------


def replayed(stream: Any, call: Callable[[int], object], sets: int) -> float:
    """Return seconds per call: the median of replays of a graph, which has memory of its own."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        kept = [call(i) for i in range(sets)]  # compiles the kernels, and puts memory into the pool
        stream.synchronize()
        per_call = looped(stream, call, sets)
        calls = sets * max(1, round(LEAST / per_call / sets))
        stream.begin_capture()
        try:
            kept += [call(i % sets) for i in range(calls)]
        except Exception:
            with suppress(Exception):  # otherwise the next row could not use the stream
                stream.end_capture()
            raise
        graph = stream.end_capture()
        graph.launch(stream)
        samples = [events(stream, lambda: graph.launch(stream)) / calls for _ in range(REPEATS)]
        del kept  # the graph wrote to it until now
    return statistics.median(samples)


def looped(stream: Any, call: Callable[[int], object], sets: int) -> float:
    """Return seconds per call, one after the other; for short calls that is the time of the host."""
    for i in range(sets):
        call(i)
    samples = [events(stream, lambda: [call(i) for i in range(sets)]) / sets for _ in range(REPEATS)]
    return statistics.median(samples)


def events(stream: Any, call: Callable[[], object]) -> float:
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    call()
    end.record(stream)
    end.synchronize()
    elapsed: float = cupy.cuda.get_elapsed_time(start, end)
    return elapsed * 1e-3


def host(cupy: Any) -> dict[str, float]:
    """Return the seconds that one call on (256, 64) costs the host, including CuPy's share."""
    problem = Problem(cupy, Case("batch_norm", (256, 64), "float32"))
    found = {}
    for name, call in problem.calls().items():
        call(0)
        cupy.cuda.get_current_stream().synchronize()
        start = time.perf_counter()
        for _ in range(2000):
            call(0)
        found[name] = (time.perf_counter() - start) / 2000
        cupy.cuda.get_current_stream().synchronize()
    return found


if __name__ == "__main__":
    main()
