"""Statistics over several processes: ranks of a communicator, and blocks of Dask collections.

There is one module for each engine, which is imported when it is first needed: `bnorm.distributed.dask`, `spark` and
`ray`.
"""

from importlib import import_module
from typing import Any

from bnorm.distributed.communicator import Communicator
from bnorm.distributed.merging import merge_all

__all__ = ["Communicator", "merge_all"]

_MODULES = ("dask", "engine", "ray", "spark")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bnorm.distributed' has no attribute {name!r}")
    return import_module(f"bnorm.distributed.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
