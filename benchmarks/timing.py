"""Check, then time: several libraries on one shape, in turns."""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from math import log10, prod
from statistics import median

import numpy as np

from .providers import Provider
from .shapes import LEAST_PASSES, OPERATIONS, Data, Shape

try:
    import resource
except ImportError:  # Windows
    resource = None

Call = Callable[[], object]
Samples = dict[str, list[tuple[float, float]]]  # of each call: seconds, and pages of memory that were new
Turn = Callable[["Effort", bool], Samples]
LONG = 0.05  # seconds: a sample this long is alone in its turn


class WrongResult(RuntimeError):
    """A library's result is not what float64 says, so how long it took is of no interest."""


@dataclass(frozen=True)
class Effort:
    """How long to measure. A sample is as many calls as fill `sample` seconds, one at least."""

    processes: int  # of every library, one after the other
    rounds: int  # turns in each of these, unless `budget` seconds have gone by and there were `least`
    least: int
    budget: float
    sample: float
    samples: int = 3  # in a turn
    # Before a turn. A runtime's threads spin for a few milliseconds after their work and would be in the way of another
    # runtime's; they are asleep by then, and calls that are not timed wake the next ones up.
    pause: float = 0.02
    warm_up: float = 0.001


FULL = Effort(processes=3, rounds=5, least=2, budget=4.0, sample=0.002)
QUICK = Effort(processes=1, rounds=4, least=2, budget=0.8, sample=0.001, samples=2)


class Calls:
    """Calls that are timed together, in one turn."""

    def __init__(self, calls: dict[str, Call]) -> None:
        self.calls = calls
        self.repeats: dict[str, int] = {}

    def turn(self, effort: Effort, backwards: bool = False) -> Samples:
        """`effort.samples` of each call, or one where that is long enough."""
        order, enabled = list(self.calls.items()), gc.isenabled()
        for label, call in order:
            if label not in self.repeats:
                call()
                self.repeats[label] = max(1, round(effort.sample / min(seconds(call) for _ in range(3))))
        gc.disable()
        try:
            time.sleep(effort.pause)
            end = time.perf_counter() + effort.warm_up
            while time.perf_counter() < end:
                order[0][1]()
            samples: Samples = {}
            for label, call in reversed(order) if backwards else order:
                call()
                repeats, samples[label] = self.repeats[label], []
                for _ in range(effort.samples):
                    before = new_pages()
                    took = seconds(call, repeats)
                    samples[label].append((took, (new_pages() - before) / repeats))
                    if took * repeats > LONG:
                        break
            return samples
        finally:
            if enabled:
                gc.enable()


class Worker:
    """One library on one shape: its data, settings and calls. `processes.Remote` is one in a process of its own."""

    def __init__(self, provider: type[Provider], shape: Shape, threads: int, dtype: str = "float32") -> None:
        self.session = provider.session(threads)
        self.session.__enter__()
        self.data = Data(shape, dtype)
        self.out = np.empty_like(self.data.x)
        self.adapter = provider(self.data)
        self.calls = {operation: Calls(calls(self.adapter, operation, self.out)) for operation in OPERATIONS}

    def check(self, operation: str) -> dict[str, float]:
        return check(self.adapter, self.data, operation, self.out)

    def turn(self, operation: str, effort: Effort, backwards: bool) -> Samples:
        return self.calls[operation].turn(effort, backwards)

    def close(self) -> None:
        self.session.__exit__(None, None, None)


def measure(
    shape: Shape,
    providers: Sequence[type[Provider]],
    threads: int,
    effort: Effort,
    dtype: str = "float32",
    worker: Callable[..., Worker] = Worker,
) -> list[dict[str, object]]:
    """One row per operation: what each library took, in milliseconds, and its error. WrongResult before any timing."""
    errors: dict[str, dict[str, float]] = {operation: {} for operation in OPERATIONS}
    samples: dict[str, Samples] = {operation: {} for operation in OPERATIONS}
    for _ in range(effort.processes):
        with ExitStack() as stack:
            workers = [stack.enter_context(closing(worker(p, shape, threads, dtype))) for p in providers]
            for each in workers:
                for operation in OPERATIONS:
                    errors[operation] |= each.check(operation)
            for operation in OPERATIONS:
                in_turns([partial(each.turn, operation) for each in workers], effort, samples[operation])
    return [
        {
            "shape": shape.name,
            "dtype": dtype,
            "threads": threads,
            "operation": operation,
            "bytes": LEAST_PASSES[operation] * prod(shape.sizes) * np.dtype(dtype).itemsize,
            "ms": {label: quartiles([1e3 * took for took, _ in found]) for label, found in samples[operation].items()},
            "new_pages": {label: round(median(n for _, n in found)) for label, found in samples[operation].items()},
            "error": errors[operation],
        }
        for operation in OPERATIONS
    ]


def calls(adapter: Provider, operation: str, out: np.ndarray) -> dict[str, Call]:
    """With a fresh result, and with out= where the library has it."""
    method = getattr(adapter, operation)
    found = {adapter.name: method}
    if operation in adapter.with_out:
        found[f"{adapter.name} out="] = partial(method, adapter.target(out))
    return found


def check(adapter: Provider, data: Data, operation: str, out: np.ndarray) -> dict[str, float]:
    """The largest error of each call, relative to the largest value of the result it is in."""
    wanted, tolerance, errors = data.exact(operation), adapter.tolerance[data.x.dtype.name], {}
    for label, call in calls(adapter, operation, out).items():
        case = f"{label}: {operation} of {data.shape.name}"
        out.fill(np.nan)
        results = adapter.arrays(call())
        if [result.shape for result in results] != [want.shape for want in wanted]:
            shapes = [[a.shape for a in arrays] for arrays in (wanted, results)]
            raise WrongResult(f"{case}: expected shapes {shapes[0]}, got {shapes[1]}")
        if results[0].dtype != data.x.dtype:
            raise WrongResult(f"{case}: expected {data.x.dtype}, got {results[0].dtype}")
        if label.endswith("out=") and not _same(results[0], out):
            raise WrongResult(f"{case}: expected the result in out, got it elsewhere")
        error = max(_distance(got, want) / np.abs(want).max() for got, want in zip(results, wanted, strict=True))
        if not error <= tolerance:  # nor NaN
            raise WrongResult(f"{case}: expected to be within {tolerance:g} of float64, got {error:.2g}")
        errors[label] = _short(error)
    return errors


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.__array_interface__["data"] == b.__array_interface__["data"]


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    difference = np.subtract(a, b, dtype="float64")
    return float(np.abs(difference, out=difference).max())


def in_turns(turns: Sequence[Turn], effort: Effort, samples: Samples) -> None:
    """Add what the turns of several rounds measure to the samples. Who comes first changes."""
    start = time.perf_counter()
    for done in range(effort.rounds):
        if done >= effort.least and time.perf_counter() - start > effort.budget:
            break
        for turn in turns if done % 2 == 0 else reversed(turns):
            for label, found in turn(effort, done % 4 >= 2).items():
                samples.setdefault(label, []).extend(found)


def new_pages() -> int:
    """Pages of memory that the system has given this process so far, each after an interruption."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0


def seconds(call: Call, repeats: int = 1) -> float:
    """Of one call, of `repeats` together. A result is dropped before the next call, as a loop of training would."""
    again = range(repeats)
    start = time.perf_counter_ns()
    for _ in again:
        call()
    return (time.perf_counter_ns() - start) * 1e-9 / repeats


def quartiles(values: Sequence[float]) -> list[float]:
    return [_short(value) for value in np.percentile(values, [25, 50, 75])]


def _short(value: float, digits: int = 4) -> float:
    """Four digits: more would be noise."""
    return round(float(value), digits - 1 - int(log10(value) // 1)) if value else 0.0
