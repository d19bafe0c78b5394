"""What every call does first: find its device, and make its result. The host time of a small call is spent here."""

from typing import Any

from ..cpu.launches import Call
from . import launching
from .shapes import VECTOR_BYTES

Array = Any  # cupy.ndarray


def begun(x: Array, out: Array | None, dy: Array | None = None, writes: bool = True) -> Call:
    """Return a call on the device of x, with an array for its result if it `writes`."""
    return Call(launching.device_of(x), x, out, dy, writes, VECTOR_BYTES)
