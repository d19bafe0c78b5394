"""Where a backward puts the gradients of parameters: into new arrays, or added to the gradients of a layer."""

from typing import Any

import numpy as np

from ..cpu.launches import separate
from . import launching
from .jobs import TO_FLOAT32, TO_FLOAT64, WRITTEN

Array = Any  # cupy.ndarray
Wanted = Any  # a bool; or a tuple: the holder of the forward, and the arrays to add dgamma and dbeta to, or None
FLOAT64 = np.dtype("float64")
SUMS = {FLOAT64: TO_FLOAT64, np.dtype("float32"): TO_FLOAT32}

# The arrays to which kernels give dgamma and dbeta, and how they do; the holder, which drops its forward at the launch;
# and the gradients that a backward returns.
Receiver = tuple[Array | None, Array | None, int, Any, tuple[Array | None, Array | None]]
NOBODY: Receiver = None, None, WRITTEN, None, (None, None)


def receiver(wanted: Wanted, channels: int, device: launching.Device, *read: Array | None) -> Receiver:
    """Return the gradients of a layer, for kernels to add to, unless kernels read that memory; else new arrays."""
    if not wanted:
        return NOBODY
    if wanted is not True:
        holder, dgamma, dbeta = wanted
        dtype = (dbeta if dgamma is None else dgamma).dtype
        if dtype in SUMS and separate((dgamma, dbeta), channels, dtype, read):
            return dgamma, dbeta, SUMS[dtype], holder, (None, None)
    new = device.empty((channels,), FLOAT64), device.empty((channels,), FLOAT64)
    return *new, WRITTEN, None, new
