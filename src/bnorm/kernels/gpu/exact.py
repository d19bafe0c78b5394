"""Exact sums of CuPy arrays: integers computed on the device, the same as those of `kernels/cpu/exact/entries.pyx`."""

from typing import Any

import numpy as np

from ..cpu.exact import entries
from ..cpu.launches import dtype_name
from . import plans
from .calls import begun
from .jobs import JOB

Array = Any  # cupy.ndarray
SUMS = JOB.packer("x", "weight", "sums")
DTYPES = ("float16", "bfloat16", "float32")  # with at most 24 binary digits
ROWS, SQUARES, ODD = 36, 12, 33  # rows of the result, and where those of squares and of the counts begin; see exact.cu
FIRST = -5, -10  # the exponents of the first limbs of the sum and of the sum of squares, in limbs
MOST = 1 << 29  # values of a channel: a limb does not overflow if each of these is added to it by itself


def exact_sums(x: Array, mask: Array | None = None) -> tuple[np.ndarray | None, int, np.ndarray, int, np.ndarray]:
    """Return the counts (3, C) of NaN, infinity, minus infinity (or None), and the limbs of both sums over the rest.

    The results are NumPy arrays. Arrays of other types, or with more than MOST values, are summed on the host.
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
    """Return `a` as a NumPy array. If it is on the device, the host waits for it."""
    there: np.ndarray = a if isinstance(a, np.ndarray) else a.get()
    return there
