"""Lazy collections, and the engines that compute them. An engine is one line here, and one module.

The module of an engine has a NAME for messages; `in_memory`, which says how to get an array; `array_of`, `aligned` and
`reduced` for arrays of any shape; `is_beside`, `beside` and `partitions` for data frames with a series of weights;
`ordered`, a data frame whose partitions have its columns; and `Collection`, a table that `transformer/blocks.py` uses.
It is imported only if there is a collection: engines are recognized through `sys.modules`.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from numpy import ndarray

from bnorm.kernels.cpu.threads import limit_caller

Result = TypeVar("Result")


class Engine(NamedTuple):
    """package: defines the collections; test: its function that recognizes them; module: bnorm's for this engine."""

    package: str
    test: str
    module: str


ENGINES = [Engine("dask", "is_dask_collection", "bnorm.distributed.dask")]


def engine_of(value: object) -> Any:
    """Return the module of the engine that a lazy collection belongs to; None for a value in memory."""
    if type(value) is ndarray:  # the most frequent case
        return None
    for package, test, module in ENGINES:
        library = sys.modules.get(package)
        if library is not None and getattr(library, test)(value):
            return import_module(module)
    return None


def serially(*blocks: Any, function: Callable[..., Result]) -> Result:
    """Return function(*blocks), computed by one thread, as the engine computes other blocks at the same time."""
    before = limit_caller(1)
    try:
        return function(*blocks)
    finally:
        limit_caller(before)
