"""Dask collections: their blocks, and tree reductions over them. This module is imported only if there is a collection.

A block is an array or a pandas frame that Dask computes in one piece. Blocks are never concatenated. The results of
neighbouring blocks are merged in their order, so the result does not depend on the scheduler.
"""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any, TypeVar

import dask
import dask.array as da
import numpy as np

from bnorm.kernels.cpu.threads import limit_caller

FAN_IN = 8  # neighbours that one task merges

Result = TypeVar("Result")


def array_of(who: str, name: str, value: Any) -> Any:
    """A Dask array or DataFrame as a Dask array; TypeError for any other value. Nothing is computed."""
    if isinstance(value, da.Array):
        return value
    if hasattr(type(value), "to_dask_array"):  # of the type, as a Delayed has every attribute
        return value.to_dask_array()
    raise TypeError(f"{who}: {name}: expected a Dask array or DataFrame, got {type(value).__name__}")


def blocks_of(function: Callable[..., Any], x: Any, axis: int, weight: Any = None) -> list[list[Any]]:
    """`function(block, weights)` of each block of an array, delayed: one list for each chunk along `axis`, in order.

    weight: None, or a result of `aligned`.
    """
    every = tuple(range(x.ndim))
    others = every[:axis] + every[axis + 1 :]
    args = (x, every) if weight is None else (x, every, weight, others[: weight.ndim])
    results = da.blockwise(
        serially, every, *args, function=function, align_arrays=False, meta=np.empty((0,) * x.ndim, object)
    )
    cuts = np.moveaxis(results.to_delayed(), axis, 0)
    return [list(some.reshape(-1)) for some in cuts]


def mapped(function: Callable[[Any, Any], Any], x: Any, statistics: Any, like: Any) -> Any:
    """`function(block, statistics)` of each block of a table, lazily. like: an array of the type of the results.

    statistics: an array (k, features); each block gets the columns of its features.
    """
    s = da.from_array(statistics, chunks=(-1, x.chunks[1]))
    return da.blockwise(
        serially, "ij", x, "ij", s, "kj", function=function, concatenate=True, align_arrays=False, meta=like
    )


def aligned(who: str, name: str, weight: Any, x: Any, axis: int) -> Any:
    """Weights as a Dask array with the blocks of x.

    weight: a Dask or other array in the shape of x without `axis`, or (N,), one per index of the first of those axes.
    """
    chunks = x.chunks[:axis] + x.chunks[axis + 1 :]
    lazy = dask.is_dask_collection(weight)
    w: Any = array_of(who, name, weight) if lazy else np.asarray(weight)
    wanted = chunks if w.ndim == len(chunks) else chunks[:1]
    unknown = any(isnan(size) for sizes in wanted for size in sizes)
    shape = tuple(sum(sizes) for sizes in wanted)
    if w.ndim != len(wanted) or not (unknown or any(map(isnan, w.shape)) or w.shape == shape):
        raise ValueError(f"{who}: {name}: expected shape {shape} beside chunks {wanted}, got {w.shape}")
    if not lazy:
        if unknown:
            raise TypeError(
                f"{who}: {name}: expected a Dask array, as the sizes of the blocks of x are not known, "
                f"got {type(weight).__name__}; x.compute_chunk_sizes() computes them"
            )
        return da.from_array(w, chunks=wanted)
    if unknown or any(map(isnan, w.shape)):  # block by block; each block is checked when it is computed
        if w.numblocks != tuple(map(len, wanted)):
            raise ValueError(
                f"{who}: {name}: expected {tuple(map(len, wanted))} blocks, as many as x has, got {w.numblocks}"
            )
        return w
    return w.rechunk(wanted)


def serially(*blocks: Any, function: Callable[..., Result]) -> Result:
    """The function of these blocks, on one thread: the scheduler runs other blocks at the same time."""
    before = limit_caller(1)
    try:
        return function(*blocks)
    finally:
        limit_caller(before)


def tree(items: Sequence[Any], merge: Callable[[list[Any]], Any]) -> Any:
    """Delayed items merged in groups of neighbours, level by level, down to one. merge: takes a list in order."""
    merged = dask.delayed(merge, pure=True)
    items = list(items)
    while len(items) > 1:
        items = [merged(items[i : i + FAN_IN]) for i in range(0, len(items), FAN_IN)]
    return items[0]


def computed(items: list[Any]) -> list[Any]:
    """The values of delayed items, in one computation."""
    return list(dask.compute(*items))
