"""Running statistics that a batch updates and that then normalize it, in plain NumPy: see `reference.py`."""

from math import inf
from typing import Any

import numpy as np

from .reference import moments, normalize
from .reference_statistics import move
from .rule import Rule, spread

Array = np.ndarray[Any, Any]


@np.errstate(all="ignore")
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
    """Return z = (x - mean) / std by running statistics, which x updates first. Return None without `maps`.

    x: rows of all channels, in any shape. skipped: int64 (C,); the number of values that are left out because they are
    not finite is added to it. weight: of each row, if rows fade one by one. whole: all rows fade as one row. If the
    rule has "raise", a value that would be left out is a FloatingPointError, and nothing has changed then.
    """
    block = x.reshape(-1, skipped.size)
    if x.dtype.kind in "bui":
        block = block.astype(np.float64)
    rows = len(block)
    if update and rows:
        finite = np.isfinite(block)
        parts = moments(np.where(finite, block, np.nan).astype(block.dtype), weight, True)
        if whole:
            parts[2] /= np.where(parts[0] > 0, parts[0], 1)
            parts[0] = parts[0] > 0
        fit = np.isfinite(parts[1]) & np.isfinite(parts[2])
        seen = np.where(fit, finite.sum(0), 0).astype(np.float64)
        if rule.nonfinite == "raise" and (seen < rows).any():
            raise FloatingPointError("x holds values that are not finite")
        after = 1 if whole else rows
        last = np.full(seen.shape, float(rule.counters[2] + after))
        move(rule, np.where(fit, parts, 0), seen, 0 * seen, last, after)
        skipped += (rows - seen).astype(np.int64)
    if not maps:
        return None
    rstd = 1 / spread(rule.mean, rule.var, rule.seen, eps)
    z = normalize(block, np.stack([rule.mean, rule.var, rstd, rstd, -np.asarray(rule.low) * rstd]))
    return np.clip(z, -clip, clip).reshape(x.shape)
