"""`python -m benchmarks.gpu_compile`: every instance of the CUDA kernels, on all cores, into CuPy's cache on disk.

CuPy keeps what it has compiled in the folder that CUPY_CACHE_DIR names. A kernel that is there already is only loaded,
on this machine or on another one with the same device, CuPy and compiler, installed in the same place.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from math import inf
from multiprocessing import get_context
from pathlib import Path

from bnorm.kernels.activation import IDENTITY, KINDS, RELU
from bnorm.kernels.gpu import launching, plans

from . import gpu_names
from .gpu import need_device
from .machine import cores

MOST = 16  # processes: each has a context on the device, of some hundred megabytes
MAKERS = {
    "channels": gpu_names.channel_kernels,
    "clusters": gpu_names.cluster_kernels,
    "planes": gpu_names.plane_kernels,
    "rows": gpu_names.row_kernels,
    "rows_weighted": gpu_names.weighted_kernels,
    "row_channels": gpu_names.row_channel_kernels,
    "exact": lambda dtype, kinds: gpu_names.exact_kernels(dtype),
}
FIRST = IDENTITY.kind, RELU.kind  # most calls have no activation, and most of the others have ReLU


def instances(family: str, dtypes: Iterable[str] = plans.ITEMSIZE, kinds: Iterable[int] = KINDS) -> list[str]:
    """Return the names of all kernels of a family that plans may ask for, each once."""
    names = [name for dtype in dtypes for name in MAKERS[family](dtype, kinds)] if family in MAKERS else []
    return list(dict.fromkeys([*names, *gpu_names.per_channel_kernels(family)]))


def items(with_clusters: bool) -> list[tuple[str, str]]:
    """Return families and names of all kernels; those that most calls need come first."""
    families = [family for family in launching.FAMILIES if family != "clusters" or with_clusters]
    kinds = [*FIRST, *(kind for kind in KINDS if kind not in FIRST)]
    return list(dict.fromkeys((f, name) for kind in kinds for f in families for name in instances(f, kinds=(kind,))))


def compiled(item: tuple[str, str]) -> dict[str, object]:
    """Compile a kernel in a process of its own, as the library does, so that the cache finds it."""
    family, name = item
    start = time.perf_counter()
    try:
        launching.Device(0).compile(family, name)
    except Exception as error:
        return {"kernel": name, "failed": f"{type(error).__name__}: {error}"[-2000:]}
    return {"kernel": name, "seconds": round(time.perf_counter() - start, 3)}


def kept() -> int:
    """Return the number of files in the cache."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    return sum(path.suffix == ".cubin" for path in folder.iterdir()) if folder.is_dir() else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_compile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=inf, help="then stop; what is missing is compiled when needed")
    options = parser.parse_args()
    need_device()
    todo = items(launching.Device(0).limits.clusters)
    processes, before, start, done, failed = min(cores(), MOST), kept(), time.perf_counter(), 0, 0
    pool = ProcessPoolExecutor(processes, get_context("spawn"))
    try:
        for found in pool.map(compiled, todo):
            done, failed = done + 1, failed + ("failed" in found)
            if "failed" in found or done % 100 == 0:
                print(json.dumps(found | {"number": done, "of": len(todo)}), flush=True)
            if time.perf_counter() - start > options.seconds:
                break
    finally:
        pool.shutdown(cancel_futures=True)
    row = {"instances": len(todo), "compiled or loaded": done, "failures": failed, "processes": processes}
    row |= {"in the cache before": before, "in the cache": kept(), "seconds": round(time.perf_counter() - start, 1)}
    print(json.dumps(row), flush=True)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
