"""Running statistics that a batch updates and that then normalize it: `reference_online.py` on CuPy arrays.

Nothing here waits for the device, except statistics with "raise".
"""

from math import inf
from typing import Any

import numpy as np

from ..rule import Rule, spread
from .channels import moments, normalize
from .statistics import LeftAlone, move, refuse

Array = Any  # cupy.ndarray


def online(
    x: Array,
    rule: Rule,
    skipped: Array,
    eps: float,
    clip: float = inf,
    update: bool = True,
    maps: bool = True,
    weight: Array | None = None,
    whole: bool = False,
) -> Array | None:
    """Return z = (x - mean) / std by running statistics, which x updates first. Return None without `maps`."""
    block = x.reshape(-1, skipped.size)
    if update and block.size:
        _follow(block, rule, skipped, weight, whole)
    if not maps:
        return None
    if not block.size:
        return x.copy()
    rstd = 1 / spread(rule.mean, rule.var, rule.seen, eps)
    low: Array = rule.low
    z = normalize(block, np.stack([rule.mean, rule.var, rstd, rstd, -low * rstd]))
    if clip < inf:
        z = np.minimum(np.maximum(z, -clip), clip)
    return z.reshape(x.shape)


def _follow(block: Array, rule: Rule, skipped: Array, weight: Array | None, whole: bool) -> None:
    rows = len(block)
    finite = np.isfinite(block)
    parts = moments(np.where(finite, block, np.nan).astype(block.dtype, copy=False), weight, True)
    if whole:
        values = np.where(parts[0] > 0, parts[0], 1)
        parts = np.stack([np.where(parts[0] > 0, 1.0, 0.0), parts[1], parts[2] / values, parts[3]])
    fit = np.isfinite(parts[1]) & np.isfinite(parts[2])
    parts = np.where(fit, parts, 0.0)
    seen = np.where(fit, finite.sum(axis=0), 0).astype(np.float64)
    if rule.nonfinite == "raise":
        refuse(LeftAlone((seen < rows).astype(np.int32)))
    nothing = np.zeros(seen.shape, like=seen)
    after = 1 if whole else rows
    last = nothing + float(rule.counters[2] + after)
    left = move(rule._replace(left=None), parts, seen, nothing, last, after)
    if isinstance(left, LeftAlone):
        skipped += np.where(left.flags != 0, float(rows), rows - seen).astype(np.int64)
