"""The record that tells kernels about running statistics."""

from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray

AVERAGE, POOL, FADE = range(3)  # as in formulas.h
EPSILON = float(np.finfo(np.float64).eps)
NAMES = ("mean", "var", "low", "seen", "weight", "pairs", "last", "counters")


class Rule(NamedTuple):
    """The arrays of a `bnorm.running.Statistics`, which are updated in place, and its settings.

    An array that is None is not kept. `bn_statistics` in `formulas.h` explains the arrays.
    """

    mode: int  # an average of batches, values that are pooled, or values that fade
    mean: Array
    var: Array
    low: Array | None
    seen: Array
    weight: Array | None
    pairs: Array | None
    last: Array | None
    counters: Any  # int64, never on a device: batches, batches that some channel skipped, rows, uncounted batches
    momentum: float
    halflife: float
    ddof: float
    from_data: bool
    nonfinite: str  # "skip", "raise" or "propagate"
    left: Array | None = None  # on a device, which counts the batches of forwards there that some channel skipped
    waits: bool = True  # a forward on a device may be launched as late as its statistics are settled

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays of the statistics, the counters last."""
        return self[1:9]

    def under(self, mode: int, nonfinite: str) -> "Rule":
        """The same arrays and numbers with another mode and another way to treat what is not finite."""
        return self._replace(mode=mode, nonfinite=nonfinite)

    def copy(self) -> "Rule":
        """A copy with its own arrays."""
        arrays: Any = {name: a if a is None else a.copy() for name, a in zip(NAMES, self.arrays, strict=True)}
        return self._replace(**arrays)


@np.errstate(all="ignore")
def constant(mean: Array, var: Array) -> Array:
    """Whether channels are constant: for arrays what `bn_constant` of formulas.h is for one channel."""
    return (np.sqrt(var) <= 4 * EPSILON * abs(mean)) & np.isfinite(var)


@np.errstate(all="ignore")
def spread(mean: Array, var: Array, seen: Array, eps: float) -> Array:
    """What running statistics divide by: 1 for what has no value, one, or a constant."""
    return np.where((seen == 0) | constant(mean, var), 1.0, np.sqrt(var + eps))
