"""The kernels on NumPy arrays: compiled functions, with the loops of the widest SIMD build that this processor runs."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from numpy import asarray

from . import entries, tuned
from .buffers import get_buffer_limit, set_buffer_limit
from .entries import (
    add,
    apart,
    assign,
    backward,
    column_moments,
    finish,
    finish_gradients,
    forward,
    grad_input,
    grad_moments,
    halved,
    inverse,
    keep_weights,
    known,
    mean_weights,
    merge,
    moments,
    move,
    narrowed,
    normalize,
    online,
    rows_backward,
    rows_forward,
    settle,
    widened,
)
from .exact import entries as exact
from .exact.entries import exact_sums
from .extremes import entries as extreme
from .extremes.entries import extremes
from .threads import get_num_threads, set_num_threads

__all__ = [
    "FLOATS",
    "INTEGERS",
    "add",
    "apart",
    "asarray",
    "assign",
    "backward",
    "column_moments",
    "exact_sums",
    "extremes",
    "finish",
    "finish_gradients",
    "forward",
    "get_buffer_limit",
    "get_num_threads",
    "grad_input",
    "grad_moments",
    "halved",
    "inverse",
    "keep_weights",
    "known",
    "mean_weights",
    "memory",
    "merge",
    "moments",
    "move",
    "narrowed",
    "normalize",
    "numbers",
    "online",
    "rows_backward",
    "rows_forward",
    "set_buffer_limit",
    "set_num_threads",
    "settle",
    "simd_level",
    "simd_levels",
    "widened",
]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
memory = asarray


def numbers(*some: Any) -> list[float]:
    """Return NumPy scalars as Python floats."""
    return list(map(float, some))


LEVELS = ("baseline", "avx2", "avx512")  # in the order of processor_level()


def simd_levels() -> list[str]:
    """Return the SIMD builds of the kernels that are installed and that this processor can run, widest last."""
    return [level for level in LEVELS[: entries.processor_level() + 1] if find_spec(_module(level))]


def simd_level() -> str:
    """Return the name of the SIMD build in use."""
    return _level


def _module(level: str) -> str:
    return f"{__package__}.loops.{level}"


def _choose(wanted: str | None) -> str:
    have = simd_levels()
    if wanted is None or wanted == "":
        return have[-1]
    if wanted not in have:
        raise ImportError(f"BNORM_SIMD: expected one of {', '.join(have)} on this processor, got {wanted!r}")
    return wanted


_level = _choose(os.environ.get("BNORM_SIMD"))
entries.use(import_module(_module(_level)).loops)
exact.use(import_module(f"{__package__}.exact.{_level}").task)
extreme.use(import_module(f"{__package__}.extremes.{_level}").task)
tuned.load()
