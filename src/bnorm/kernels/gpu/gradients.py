"""Where a backward leaves the gradients of parameters: in new arrays, or added to those of a layer."""

from typing import Any

import numpy as np

from ..cpu.launches import separate
from . import launching
from .jobs import TO_FLOAT32, TO_FLOAT64, WRITTEN

Array = Any  # cupy.ndarray
Wanted = Any  # a bool; or a tuple: who holds the forward, and what dgamma and dbeta are added to, None where to nothing
FLOAT64 = np.dtype("float64")
SUMS = {FLOAT64: TO_FLOAT64, np.dtype("float32"): TO_FLOAT32}

# dgamma and dbeta, to which kernels give gradients, and how; who has no forward afterwards; what a backward returns
Receiver = tuple[Array | None, Array | None, int, Any, tuple[Array | None, Array | None]]
NOBODY: Receiver = None, None, WRITTEN, None, (None, None)


def receiver(wanted: Wanted, channels: int, device: launching.Device, *read: Array | None) -> Receiver:
    """The sums of a layer where they are in memory that the kernels do not read: then no gradients are left to add."""
    if not wanted:
        return NOBODY
    if wanted is not True:
        holder, dgamma, dbeta = wanted
        dtype = (dbeta if dgamma is None else dgamma).dtype
        if dtype in SUMS and separate((dgamma, dbeta), channels, dtype, read):
            return dgamma, dbeta, SUMS[dtype], holder, (None, None)
    new = device.empty((channels,), FLOAT64), device.empty((channels,), FLOAT64)
    return *new, WRITTEN, None, new
