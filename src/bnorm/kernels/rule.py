"""The record that tells kernels about running statistics."""

from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray

AVERAGE, POOL, FADE = range(3)  # as in formulas.h
EPSILON = float(np.finfo(np.float64).eps)


class Rule(NamedTuple):
    """The arrays of a `bnorm.running.Statistics`, which are updated in place, and its settings.

    An array that is None is not kept. `bn_statistics` in `formulas.h` explains the arrays.
    """

    mode: int  # AVERAGE of batches, POOL of all values, or FADE: values lose weight with age
    mean: Array
    var: Array
    low: Array | None
    seen: Array
    weight: Array | None
    pairs: Array | None
    last: Array | None
    counters: Any  # int64, always on the host: batches, batches that some channel skipped, rows, batches not in `seen`
    momentum: float
    halflife: float
    ddof: float
    from_data: bool
    nonfinite: str  # "skip", "raise" or "propagate"
    left: Array | None = None  # on a device: counts the batches that some channel skipped; see count_left in moving.cu
    waits: bool = True  # whether a forward on a device may be launched only when `settle` is called

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays of the statistics, the counters last."""
        return self[1:9]

    def copy(self) -> "Rule":
        """Return a copy with its own arrays."""
        return Rule._make([self.mode, *(a if a is None else a.copy() for a in self.arrays), *self[9:]])


@np.errstate(all="ignore")
def constant(mean: Array, var: Array) -> Array:
    """Whether each channel is constant: `bn_constant` of formulas.h for arrays."""
    return (np.sqrt(var) <= 4 * EPSILON * abs(mean)) & np.isfinite(var)


@np.errstate(all="ignore")
def spread(mean: Array, var: Array, seen: Array, eps: float) -> Array:
    """Return what running statistics divide by: 1 for channels with no value, one value, or only equal values."""
    return np.where((seen == 0) | constant(mean, var), 1.0, np.sqrt(var + eps))
