"""`python -m benchmarks.gpu_host`: what a call on the GPU costs the host, without a GPU.

CuPy is replaced by as little as the calls need: arrays that have an address and no memory, and kernels that do nothing.
What is left is bnorm's own time before and between the launches. The stand-in counts what else CuPy would be asked to
do: launches, among them copies, fills and arithmetic on arrays, which are launches of CuPy's own kernels, and new
arrays. A launch is taken to cost LAUNCH microseconds of the host, which is an estimate; the time for new arrays comes
on top.

--save writes the table of the functions and layers into docs/gpu_kernels.md.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from . import machine, page

SHAPE = (256, 64)
ROUNDS, CALLS = 30, 100  # of each call in turn; the quickest round counts, as other programs can only add to the time
LAUNCH = 4.5


class Tally:
    """What CuPy was asked to do since the last `take`."""

    launches = arrays = 0

    @classmethod
    def take(cls) -> tuple[int, int]:
        found = cls.launches, cls.arrays
        cls.launches = cls.arrays = 0
        return found


def launched(result: Any = None) -> Any:
    Tally.launches += 1
    return result


class Data:
    """The address of an array, away from the addresses of all others."""

    __slots__ = ("device_id", "ptr")
    last = 0

    def __init__(self) -> None:
        Data.last += 1 << 20
        self.device_id, self.ptr = 0, Data.last

    def __add__(self, offset: int) -> "Data":
        return self


class Flags:
    c_contiguous = True


class Array:
    """What CuPy's arrays are to a call, made once for each shape: making them is CuPy's time."""

    device = SimpleNamespace(id=0)
    flags = Flags()
    made: ClassVar[dict[tuple[tuple[int, ...], np.dtype[Any]], "Array"]] = {}

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), Data()
        self.ndim, self.size = len(shape), prod(shape)
        self.nbytes = self.size * self.dtype.itemsize
        strides = [prod(shape[i + 1 :]) * self.dtype.itemsize for i in range(len(shape))]
        self.strides = tuple(strides)

    def reshape(self, *shape: Any) -> "Array":
        return empty(shape[0] if isinstance(shape[0], tuple) else shape, self.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> "Array":
        return self if self.dtype == dtype and not copy else launched(empty(self.shape, np.dtype(dtype)))

    def flatten(self) -> "Array":
        return launched(empty((self.size,), self.dtype))

    def __getitem__(self, index: Any) -> "Array":
        return empty(self.shape[1:], self.dtype) if isinstance(index, int) else self

    def __iadd__(self, other: Any) -> "Array":
        return launched(self)

    def __add__(self, other: Any) -> "Array":
        return launched(empty(self.shape, self.dtype))

    def __setitem__(self, index: Any, value: Any) -> None:
        launched()

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> "Array":
        """The result of NumPy's functions on arrays of layers: an array like this one."""
        return empty(self.shape)

    def fill(self, value: float) -> None:
        launched()

    def sum(self) -> "Array":
        return launched(empty((), int))

    __hash__ = object.__hash__


def empty(shape: tuple[int, ...], dtype: Any = float) -> Array:
    Tally.arrays += 1
    key = shape, dtype
    found = Array.made.get(key)
    if found is None:
        found = Array.made[key] = Array(shape, dtype)
    return found


def zeros(shape: tuple[int, ...], dtype: Any = float) -> Array:
    made: Array = launched(empty(shape, dtype))
    return made


class Module:
    def __init__(self, **_: Any) -> None:
        pass

    def compile(self) -> None:
        pass

    def get_function(self, name: str) -> "Kernel":
        return Kernel()


class Kernel:
    ptr = 0

    @property
    def kernel(self) -> "Kernel":
        return self

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int) -> None:
        Tally.launches += 1


def stand_in() -> ModuleType:
    stream = SimpleNamespace(ptr=0, is_capturing=lambda: False)
    limits = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 227 << 10}
    cupy: Any = ModuleType("cupy")
    cupy.__version__, cupy.ndarray, cupy.RawModule = "14.2", Array, Module
    cupy.empty, cupy.zeros = empty, zeros
    cupy.asarray = lambda a: a if isinstance(a, Array) else empty(np.shape(a), np.asarray(a).dtype)
    runtime = SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1)
    cupy.cuda = SimpleNamespace(
        Device=lambda index: SimpleNamespace(attributes=limits, compute_capability="90"),
        driver=SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda *_: 2),
        runtime=runtime,
        get_current_stream=lambda: stream,
    )
    return cupy


def calls(dtype: str = "float64") -> dict[str, Callable[[], object]]:
    """Return the calls by name, on float32 of 256 rows and 64 columns. CuPy must have been replaced.

    dtype: that of parameters and running statistics.
    """
    import bnorm
    import bnorm.functional as F
    from bnorm.kernels import gpu
    from bnorm.kernels.rule import Rule

    x, out = Array(SHAPE, "float32"), Array(SHAPE, "float32")
    gamma, beta = Array(SHAPE[1:], dtype), Array(SHAPE[1:], dtype)
    rows = Array((SHAPE[0], 1, SHAPE[1], 1), "float32")
    seen = Array(SHAPE[1:], "float64")
    arrays = gamma, beta, None, seen, None, None, None  # of a layer
    left = Array((2 + 2 * SHAPE[1],), "int32")
    running = Rule(0, *arrays, np.zeros(4, np.int64), 0.1, 1.0, 0.0, False, "skip", left)
    stats = Array((5, SHAPE[1]), "float64")
    mean = Array((SHAPE[0],), "float64")
    _, saved = F.batch_norm(x, gamma, beta, out=out)
    _, of_rows = F.layer_norm(x, gamma, beta, normalized_shape=SHAPE[1], out=out)
    kinds = bnorm.BatchNorm1d, bnorm.LayerNorm, bnorm.BatchNorm1d
    batch_norm, layer_norm, evaluated = (kind(SHAPE[1], dtype=dtype, device="cuda") for kind in kinds)
    evaluated.eval()

    def moved() -> None:
        y, *found = gpu.forward(x, gamma, beta, 1e-5, running=running, out=out)
        gpu.settle(running, *found[:2], y.size, found[2])

    def step(layer: Any) -> None:
        layer(x, out=out)
        layer.backward(x, out=out)

    return {
        "gpu.forward": lambda: gpu.forward(x, gamma, beta, 1e-5, out=out),
        "gpu.forward, running": moved,
        "gpu.forward, inference": lambda: gpu.forward(x, gamma, beta, 1e-5, gamma, beta, out=out),
        "gpu.backward": lambda: gpu.backward(x, x, stats, 256.0, out=out),
        "gpu.rows_forward": lambda: gpu.rows_forward(rows, gamma, beta, 1e-5, out=rows),
        "gpu.rows_backward": lambda: gpu.rows_backward(rows, rows, mean, mean, gamma, beta, out=rows),
        "F.batch_norm": lambda: F.batch_norm(x, gamma, beta, out=out),
        "F.backward of it": lambda: F.backward(x, saved, out=out),
        "F.layer_norm": lambda: F.layer_norm(x, gamma, beta, normalized_shape=SHAPE[1], out=out),
        "F.backward of that": lambda: F.backward(x, of_rows, out=out),
        "BatchNorm1d": lambda: batch_norm(x, out=out),
        "BatchNorm1d and backward": lambda: step(batch_norm),
        "BatchNorm1d, inference": lambda: evaluated(x, out=out),
        "LayerNorm": lambda: layer_norm(x, out=out),
        "LayerNorm and backward": lambda: step(layer_norm),
    }


def median_of(call: Callable[[], object]) -> float:
    """Return the median of the seconds of some calls."""
    seconds = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_host", description=__doc__)
    parser.add_argument("--save", action="store_true", help="write the table into docs/gpu_kernels.md")
    save = parser.parse_args().save
    sys.modules["cupy"] = stand_in()
    others = machine.Others()
    table = [["", "own time, us", "launches", "new arrays", "with the launches, us"]]
    print(f"{'':<24}{'us':>6}  launches  arrays  with {LAUNCH} us for each launch")
    asked, best = {}, dict.fromkeys(made := calls(), float("inf"))
    for name, call in made.items():
        call()
        Tally.take()
        call()
        asked[name] = Tally.take()
    for _ in range(ROUNDS):
        for name, call in made.items():
            best[name] = min(best[name], median_of(call))
    for name, (launches, arrays) in asked.items():
        own = best[name] * 1e6
        whole = own + LAUNCH * launches
        print(f"{name:<24}{own:6.1f}{launches:10}{arrays:8}{whole:8.1f}")
        if not name.startswith("gpu."):
            table.append([name, f"{own:.1f}", str(launches), str(arrays), f"{whole:.1f}"])
    if save:
        page.save("gpu_kernels.md", "host", table, f"float32, {SHAPE}", others.cores())


if __name__ == "__main__":
    main()
