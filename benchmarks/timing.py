"""Check, then time: several libraries on one case, in turns."""

import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf, log10
from statistics import median
from typing import Any, Self

import numpy as np

from . import adapters
from .adapters import About, Adapter, Library
from .exact import Exact, blocks
from .shapes import Case, Data

try:
    import resource
except ImportError:  # Windows
    resource = None

Call = Callable[[], object]
Samples = dict[str, list[tuple[float, float]]]  # by label: the seconds of each call, and the new pages of memory
Turn = Callable[["Effort", bool], Samples]
Row = dict[str, object]
LONG = 0.05  # seconds: a call this long is sampled once in a turn, and needs no other call to warm up
ONE_PROCESS = 1 << 25  # bytes: results this large are always new memory, whatever the process did before
ENOUGH = 1.0  # seconds: a library that has taken this long for the turns of an operation gets no more turns


class WrongResult(RuntimeError):
    """A library's result is not what float64 says, so how long it took is of no interest."""


@dataclass(frozen=True)
class Effort:
    """How long to measure. A sample is as many calls as fill `sample` seconds, one at least."""

    processes: int  # of every library, one after the other
    rounds: int  # turns in each process, if the library has seconds left of its `budget`
    least: int  # the budget counts only after this many turns
    budget: float
    sample: float
    samples: int = 3  # in a turn
    # Seconds before a turn. A runtime's threads spin for a few milliseconds after their work, and would disturb another
    # runtime's: after the pause they sleep. Untimed calls then wake the next threads, which takes up to 8 ms.
    pause: float = 0.02
    warm_up: float = 0.02


FULL = Effort(processes=2, rounds=6, least=2, budget=0.15, sample=0.002)
QUICK = Effort(processes=1, rounds=4, least=2, budget=0.1, sample=0.001, samples=2)


class Calls:
    """Calls that are timed together, in one turn."""

    def __init__(self, calls: dict[str, Call]) -> None:
        self.calls = calls
        self.took: dict[str, float] = {}

    def once(self, label: str, took: float) -> None:
        """Note what a first call took. If that was long, it need not be estimated again."""
        if took > LONG:
            self.took[label] = took

    def turn(self, effort: Effort, backwards: bool = False) -> Samples:
        """Return `effort.samples` samples of each call, or one if that is long enough."""
        order, enabled = list(self.calls.items()), gc.isenabled()
        for label, call in order:
            if label not in self.took:
                self.took[label] = _estimate(call)
        gc.disable()
        try:
            time.sleep(effort.pause)
            end = time.perf_counter() + effort.warm_up
            while self.took[order[0][0]] < LONG and time.perf_counter() < end:
                order[0][1]()
            samples: Samples = {}
            for label, call in reversed(order) if backwards else order:
                if self.took[label] < LONG:
                    call()
                repeats, samples[label] = max(1, round(effort.sample / self.took[label])), []
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
    """One library on one case: its data, settings and calls."""

    def __init__(self, library: Library, case: Case, dtype: str, threads: int) -> None:
        self.session = library.session(threads, dtype)
        self.session.__enter__()
        try:
            self.data = Data(case, dtype)
            self.adapter = library.adapters[case.kind](self.data)
            self.out = np.empty_like(self.data.x) if self.adapter.with_out else None
            self.calls = {
                operation: Calls(calls(library.about.name, self.adapter, operation, self.out))
                for operation in case.passes
                if hasattr(self.adapter, operation)
            }
        except BaseException:
            self.close()
            raise

    def operations(self) -> list[str]:
        return list(self.calls)

    def check(self, operation: str, exact: Exact) -> dict[str, float]:
        return check(self.adapter, self.data, exact, operation, self.calls[operation], self.out)

    def turn(self, operation: str, effort: Effort, backwards: bool) -> Samples:
        with self.adapter.around(operation):
            return self.calls[operation].turn(effort, backwards)

    def close(self) -> None:
        self.session.__exit__(None, None, None)


class Local:
    """A library in this process; `processes.Remote` is one in a process of its own."""

    about: About

    def __init__(self, module: str) -> None:
        self.module = module  # in adapters
        self.worker: Worker | None = None

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *error: object) -> None:
        self.end()

    def ready(self) -> Self:
        """Wait until the library is imported; adapters.Missing if it cannot be."""
        self.library = adapters.load(self.module)
        self.about = self.library.about
        return self

    def open(self, case: Case, dtype: str, threads: int) -> list[str]:
        """Begin a case. Return the operations that the library has."""
        self.worker = Worker(self.library, case, dtype, threads)
        return self.worker.operations()

    def check(self, operation: str, exact: Exact) -> dict[str, float]:
        return self.worker.check(operation, exact)

    def turn(self, operation: str, effort: Effort, backwards: bool) -> Samples:
        return self.worker.turn(operation, effort, backwards)

    def apply(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return the function's result in the process of the library. Call `close` afterwards."""
        return function(*arguments)

    def close(self) -> None:
        """End the case that was opened, if any."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()

    def end(self) -> None:
        """End the library's process, if it has one."""


def measure(
    case: Case, dtype: str, threads: int, libraries: Sequence[Local], effort: Effort, exact: Exact | None
) -> list[Row]:
    """Return a row per operation: what each library took, in milliseconds, and its error. WrongResult before timing.

    Without `exact` nothing is checked.
    """
    size = case.values * np.dtype(dtype).itemsize
    present = [library for library in libraries if case.kind in library.about.kinds]
    errors: dict[str, dict[str, dict[str, float]]] = {operation: {} for operation in case.passes}
    samples: dict[str, Samples] = {operation: {} for operation in case.passes}
    for _ in range(effort.processes if size < ONE_PROCESS else 1):
        with ExitStack() as stack:
            having: dict[str, list[Local]] = {operation: [] for operation in case.passes}
            for library in present:
                stack.callback(library.close)
                for operation in library.open(case, dtype, threads):
                    having[operation].append(library)
                    if exact is not None:
                        errors[operation][library.about.name] = library.check(operation, exact)
            for operation, those in having.items():
                in_turns([partial(library.turn, operation) for library in those], effort, samples[operation])
    return [
        {
            "kind": case.kind,
            "shape": case.name,
            "dtype": dtype,
            "threads": threads,
            "operation": operation,
            "bytes": passes * size,
            "ms": {label: quartiles(1e3 * took for took, _ in found) for label, found in samples[operation].items()},
            "new_pages": {
                label: pages
                for label, found in samples[operation].items()
                if (pages := round(median(n for _, n in found)))
            },
            "error": {name: max(found.values()) for name, found in errors[operation].items()},
        }
        for operation, passes in case.passes.items()
        if samples[operation]
    ]


def calls(name: str, adapter: Adapter, operation: str, out: np.ndarray | None) -> dict[str, Call]:
    """Return the calls with a fresh result, and with out= if the library has it."""
    method = getattr(adapter, operation)
    found = {name: method}
    if operation in adapter.with_out:
        found[f"{name} out="] = partial(method, adapter.target(out))
    return found


def check(
    adapter: Adapter, data: Data, exact: Exact, operation: str, calls: Calls, out: np.ndarray | None
) -> dict[str, float]:
    """Return the largest error of each call, relative to the largest value of the result that has it."""
    tolerance, vectors = adapter.tolerance[data.x.dtype.name], exact.vectors(operation)
    wholes = 0 if operation in ("fit", "partial_fit") else 1  # arrays of the size of x: all but these are vectors
    wanted = [data.x.shape] * wholes + [v.shape for v in vectors]
    arrays: dict[str, np.ndarray] = {}
    found: dict[str, list[float]] = {}
    for label, call in calls.calls.items():
        case = f"{label}: {operation} of {data.case.name}"
        if out is not None:
            out.fill(np.nan)
        adapter.reset()
        start = time.perf_counter()
        result = call()
        calls.once(label, time.perf_counter() - start)
        results = adapter.arrays(operation, result)
        if [result.shape for result in results] != wanted:
            raise WrongResult(f"{case}: expected shapes {wanted}, got {[result.shape for result in results]}")
        found[label] = [_error(got, want) for got, want in zip(results[wholes:], vectors, strict=True)]
        if not wholes:
            continue
        if results[0].dtype != data.x.dtype:
            raise WrongResult(f"{case}: expected {data.x.dtype}, got {results[0].dtype}")
        if label.endswith("out=") and not _same(results[0], out):
            raise WrongResult(f"{case}: expected the result in out, got it elsewhere")
        arrays[label] = results[0]
    if wholes:
        for label, error in _errors(arrays, data, exact, operation).items():
            found[label].append(error)
    errors = {label: float(np.max(each)) for label, each in found.items()}
    for label, error in errors.items():
        if not error <= tolerance:  # NaN too
            case = f"{label}: {operation} of {data.case.name}"
            raise WrongResult(f"{case}: expected to be within {tolerance:g} of float64, got {error:.2g}")
    return {label: _short(error, 2) for label, error in errors.items()}


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.__array_interface__["data"] == b.__array_interface__["data"]


def _error(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference over the largest value."""
    return float(np.abs(got - want).max() / np.abs(want).max())


def _errors(arrays: Mapping[str, np.ndarray], data: Data, exact: Exact, operation: str) -> dict[str, float]:
    """The same for arrays whose float64 results are computed block by block."""
    distance, largest = dict.fromkeys(arrays, 0.0), 0.0
    for block in blocks(data):
        want = exact.block(operation, data, block)
        largest = max(largest, np.abs(want).max())
        for label, got in arrays.items():  # np.maximum propagates NaN, which max does not
            distance[label] = float(np.maximum(distance[label], np.abs(got[block] - want).max()))
    return {label: each / largest for label, each in distance.items()}


def in_turns(turns: Sequence[Turn], effort: Effort, samples: Samples) -> None:
    """Add the samples of the turns of several rounds. Who is first changes; slow libraries get fewer turns."""
    spent = [0.0] * len(turns)
    for done in range(effort.rounds):
        allowed = ENOUGH if done < effort.least else effort.budget
        waiting = [i for i in range(len(turns)) if spent[i] < allowed]
        for i in waiting if done % 2 == 0 else reversed(waiting):
            start = time.perf_counter()
            for label, found in turns[i](effort, done % 4 >= 2).items():
                samples.setdefault(label, []).extend(found)
            spent[i] += time.perf_counter() - start


def new_pages() -> int:
    """Return how many pages of memory the system has given this process so far, each by a page fault."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0


def keep_core() -> None:
    """Keep this process on one core, the same for all that do so: cores of a shared machine may differ in speed."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS and Windows
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def seconds(call: Call, repeats: int = 1) -> float:
    """Return the seconds of a call, the mean of `repeats`. As in training, a result is dropped before the next call."""
    again = range(repeats)
    start = time.perf_counter_ns()
    for _ in again:
        call()
    return (time.perf_counter_ns() - start) * 1e-9 / repeats


def best(call: Call, times: int) -> float:
    """Return the shortest time in seconds of several calls, one after the other."""
    return min(seconds(call) for _ in range(times))


def quickest(calls: Mapping[Any, Call], length: float) -> dict[Any, float]:
    """Return the least time of each call in seconds, when they are called in turn for `length` seconds."""
    least, end = dict.fromkeys(calls, inf), time.perf_counter() + length
    while time.perf_counter() < end:
        for name, call in calls.items():
            least[name] = min(least[name], seconds(call))
    return least


def quickest_of_rounds(calls: Mapping[Any, Call], rounds: int, least: float) -> dict[Any, float]:
    """The same in several rounds, in which a call that takes less than `least` seconds is repeated."""
    for call in calls.values():
        call()
    repeats = {name: max(1, int(least / max(1e-7, seconds(call)))) for name, call in calls.items()}
    best = dict.fromkeys(calls, inf)
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], seconds(call, repeats[name]))
    return best


def _estimate(call: Call) -> float:
    shortest = seconds(call)
    for _ in range(3):
        if shortest < LONG:
            shortest = min(shortest, seconds(call))
    return shortest


def quartiles(values: Iterable[float]) -> list[float]:
    return [_short(value) for value in np.percentile(list(values), [25, 50, 75])]


def _short(value: float, digits: int = 4) -> float:
    """Round to this many digits: more would be noise."""
    return round(float(value), digits - 1 - int(log10(value) // 1)) if value else 0.0
