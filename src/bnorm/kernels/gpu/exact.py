"""Exact sums of CuPy arrays: integers made on the device, as `kernels/cpu/exact/entries.pyx` has them."""

from typing import Any

import numpy as np

from ..cpu.exact import entries
from ..cpu.launches import dtype_name
from . import plans
from .calls import begun
from .jobs import JOB

Array = Any  # cupy.ndarray
SUMS = JOB.packer("x", "weight", "sums")
DTYPES = ("float16", "bfloat16", "float32")  # of 24 binary digits at most
ROWS, SQUARES, ODD = 36, 12, 33  # of the result, and where some of them begin; as in exact.cu
FIRST = -5, -10  # the exponents of the first limbs, in limbs
MOST = 1 << 29  # values of a channel: so many may go to a limb one by one


def exact_sums(x: Array, mask: Array | None = None) -> tuple[np.ndarray | None, int, np.ndarray, int, np.ndarray]:
    """Counts (3, C) of NaN, infinity and minus infinity, or None; the sums of all other values and of their squares.

    The results are NumPy arrays. Other types, and more values than limbs have room for, are copied to the host.
    """
    if dtype_name(x.dtype) not in DTYPES or x.size > MOST * x.shape[1]:
        found: tuple[np.ndarray | None, int, np.ndarray, int, np.ndarray]
        found = entries.exact_sums(_on_host(x), None if mask is None else _on_host(mask))
        return found
    call = begun(x, None, writes=False)
    device = call.device
    totals = device.zeros((ROWS, call.channels), np.int64)
    plan = plans.exact_sums(*call.size, mask is not None, device.limits)
    call.run(plan, SUMS(call.at, *device.addresses(mask, totals)))
    limbs = _on_host(totals)
    odd = limbs[ODD:]
    sums, squares = (
        entries.combined([(first, some)], [1])
        for first, some in zip(FIRST, (limbs[:SQUARES], limbs[SQUARES:ODD]), strict=True)
    )
    return odd.copy() if odd.any() else None, *sums, *squares


def _on_host(a: Array) -> np.ndarray:
    """Waits for the device."""
    there: np.ndarray = a if isinstance(a, np.ndarray) else a.get()
    return there
