"""The statistics of a stream: what has been seen, how several streams merge, and the state that is saved."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Self

import numpy as np
from numpy import ndarray

from bnorm import devices
from bnorm.kernels import BACKENDS, halved, moved
from bnorm.kernels.rule import EPSILON, spread
from bnorm.layers import state
from bnorm.layers.base import fixed
from bnorm.running import BATCHES, ROWS, SKIPPED, Statistics
from bnorm.streams.base import Normalizer

LATER = SKIPPED  # the counter that is 1 in a difference of values that fade: no batch of a stream is skipped as a whole
NOISE = 8 * EPSILON
NAMES = {"seen": "count"}  # names of arrays that differ from those of `Statistics`
OWN = {f"_{name}" for name in ("clip", "device", "dtype", "eps", "halflife", "limit", "momentum", "shape", "skipped")}
OWN |= {"_statistics", "_training", "_who"}  # what is copied and pickled, beside what a subclass has added
MADE_ANEW = ("_fading", "_kind", "_online", "_whole")  # by `_settle`


class Followed(Normalizer):
    """Running statistics of observations of one shape; `RunningNorm` adds how they normalize."""

    __slots__ = (
        *("__weakref__", "_clip", "_device", "_dtype", "_eps", "_fading", "_halflife", "_kind", "_limit"),
        *("_momentum", "_online", "_shape", "_skipped", "_statistics", "_who", "_whole"),
    )

    _who: str
    _shape: tuple[int, ...]
    _dtype: np.dtype[Any]
    _eps: float
    _momentum: float | None
    _halflife: float | None
    _device: str
    _statistics: Statistics
    _skipped: ndarray

    shape: tuple[int, ...] = fixed("shape", "The shape of one observation.")
    momentum: float | None = fixed("momentum", "The weight of a new batch, or None.")
    halflife: float | None = fixed("halflife", "The half-life in observations, or None.")
    nonfinite: str = fixed("statistics.nonfinite", "How to treat a value that is not finite.")
    dtype: np.dtype[Any] = fixed("dtype", "The dtype of mean, var and std.")
    device: str = fixed("device", 'The device of the statistics and of the observations: "cpu" or "cuda".')

    @property
    def mean(self) -> ndarray:
        """The mean of each component, a copy; 0 before the first value."""
        return self._shown(self._statistics.mean)

    @property
    def var(self) -> ndarray:
        """The variance of each component, m2 / count, a copy; 1 before the first value."""
        return self._shown(self._statistics.var)

    @property
    def std(self) -> ndarray:
        """What the difference from the mean is divided by: sqrt(var + eps), or 1 where there is no spread."""
        return self._shown(self._spread())

    @property
    def count(self) -> ndarray:
        """The number of values of each component so far, a copy."""
        count: ndarray = self._statistics.seen.reshape(self._shape).copy()
        return count

    @property
    def skipped(self) -> ndarray:
        """The number of values of each component that were left out, as they were not finite, a copy."""
        skipped: ndarray = self._skipped.reshape(self._shape).copy()
        return skipped

    # Several streams ----------------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Self:
        """The statistics of both streams; settings are those of the first.

        Streams that fade end at the same time. But the values of a difference, `worker - base`, come after those of the
        other; of two differences, those of the second come last.
        """
        if not isinstance(other, Followed):
            return NotImplemented
        self._alike(other, "+")
        new = self.copy()
        _unite(new._statistics, other._statistics)
        new._skipped += other._skipped
        return new

    def __sub__(self, base: object) -> Self:
        """What was seen since the statistics were those of `base`.

        The counts are exact. The rest is as good as float64 statistics can tell: with n values in all and k of them
        new, the variance of the new ones is known to about n/k rounding errors (1e-16) of the variance of all, and the
        mean to as many of their standard deviation. Merged again, errors are rounding errors of the whole.

        Where values fade, the difference knows how long it took, so `base + (self - base)` is `self`. It is no state of
        a stream from which another can be taken out.
        """
        if not isinstance(base, Followed):
            return NotImplemented
        self._alike(base, "-")
        if self._statistics.counters[LATER] or base._statistics.counters[LATER]:
            raise ValueError(
                f"{self._who}: -: expected two states of a stream whose values fade, got a difference of states"
            )
        new = self.copy()
        new._skipped -= base._skipped
        if not _take_out(base._statistics, new._statistics) or bool((new._skipped < 0).any()):
            raise ValueError(
                f"{self._who}: -: expected an earlier state of these statistics, got one with values that they lack"
            )
        return new

    def copy(self) -> Self:
        """An independent copy, of what a subclass has added too."""
        new, state = object.__new__(type(self)), self.__getstate__()
        added = {name: state.pop(name) for name in state.keys() - OWN}
        new.__setstate__(state | deepcopy(added, {id(self): new}))
        return new

    # State --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> state.StateDict:
        """Copies of all arrays: mean, var, count, what is needed to continue exactly, and the counters."""
        return state.StateDict((name, a.copy()) for name, a in self._state().items())

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> state.Incompatible:
        """Load a `state_dict()`. After an error nothing is loaded.

        Parameters
        ----------
        state_dict : mapping of str to array
            Of one with the same shape, and the same momentum or half-life.
        strict : bool, default True
            Whether missing and unexpected names are an error. A wrong shape always is. What is missing begins anew.

        Returns
        -------
        Incompatible
            A named tuple of the `missing_keys` and `unexpected_keys`.
        """
        return state.load(self._who, "state_dict", {"": self}, state_dict, strict)

    def reset(self) -> None:
        """Forget everything that was seen."""
        self._statistics.reset()
        self._skipped[...] = 0

    def to(self, device: str) -> Self:
        """Move the statistics to a device, "cpu" or "cuda", whose arrays it takes from then on. Returns the object."""
        kind = devices.arrays_on(self._who, device)
        if kind is not self._kind:
            self._statistics.place({name: moved(a, kind) for name, a in self._statistics.arrays().items()})
            self._skipped, self._device = moved(self._skipped, kind), device
            self._settle()
        return self

    # Inside -------------------------------------------------------------------------------------------------------

    def _spread(self) -> ndarray:
        statistics = self._statistics
        std: ndarray = spread(statistics.mean, statistics.var, statistics.seen, self._eps)
        return std

    @np.errstate(over="ignore", under="ignore")
    def _shown(self, a: ndarray) -> ndarray:
        return a.reshape(self._shape).astype(self._dtype)

    def _alike(self, other: "Followed", sign: str) -> None:
        """Check that statistics can be added or subtracted."""
        for name in ("shape", "momentum", "halflife", "device"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(f"{self._who}: {sign}: expected {name} {mine!r} on both sides, got {others!r}")

    def _settle(self) -> None:
        """Renew what follows from the settings and the device."""
        self._kind: Any = devices.arrays_on(self._who, self._device)
        self._online = BACKENDS[self._kind].online
        self._whole = self._momentum is not None
        self._fading: ndarray | None = None

    def _state(self) -> dict[str, ndarray]:
        arrays = {NAMES.get(name, name): a for name, a in self._statistics.arrays().items() if name != "pairs"}
        arrays["skipped"] = self._skipped
        shaped = {name: a.reshape(self._shape) for name, a in arrays.items()}
        return shaped | {"counters": self._statistics.counters}

    def _loading(self, found: Mapping[str, ndarray], seen: ndarray | None) -> list[state.Change]:
        """The changes that load these arrays, as `state.load` makes them."""
        check_state(self._who, found)
        here = self._state()
        missing = [] if not found else [state.write(a, name == "var") for name, a in here.items() if name not in found]
        return missing + [state.write(here[name], a) for name, a in found.items()]

    def __getstate__(self) -> dict[str, Any]:
        both: Any = super().__getstate__()
        added, slots = both  # the __dict__ of a subclass, and all slots
        state = (added or {}) | {name: value for name, value in slots.items() if name not in MADE_ANEW}
        return state | {"_statistics": self._statistics.copy(), "_skipped": self._skipped.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._skipped = devices.owned(self._skipped)
        self._settle()


def check_state(who: str, found: Mapping[str, ndarray]) -> None:
    """Raise ValueError unless these are arrays of statistics."""
    for name, a in found.items():
        if not bool(np.isfinite(a).all()) or (name not in ("mean", "low", "last") and bool((a < 0).any())):
            least = "" if name in ("mean", "low", "last") else " >= 0"
            raise ValueError(f"{who}: state_dict: {name}: expected finite numbers{least}, got {a}")


def _unite(s: Statistics, others: Statistics) -> None:
    """Merge other statistics into s. If values fade, those of a difference come last, and all earlier ones age."""
    later = None
    if others.counters[LATER]:
        later = float(s.rows)
    elif s.counters[LATER] and s.last is not None:
        s.last += others.rows
        later = 0.0
    s.counters[LATER] &= others.counters[LATER]
    s.merge(others, later)


@np.errstate(all="ignore")
def _take_out(base: Statistics, s: Statistics) -> bool:
    """Take the values of `base` out of s, statistics that include them. False if they cannot include them.

    The reverse of `Statistics.merge`. A variance that is below the rounding errors of its difference becomes 0.
    """
    n, n0 = (of.seen if of.weight is None else of.weight for of in (s, base))
    left = s.seen - base.seen
    rows, batches = s.counters[ROWS] - base.counters[ROWS], s.counters[BATCHES] - base.counters[BATCHES]
    if min(rows, batches) < 0 or bool((left < 0).any()):
        return False
    if s.last is not None and base.last is not None:
        n0 = n0 * halved((base.last - s.last) / float(s.halflife or 1.0))
    n1 = np.where(left > 0, np.maximum(n - n0, 0), 0)
    low: Any = s.low
    apart = (s.mean - base.mean) + (low - base.low)  # the smaller the difference, the more exact
    step = np.where(n1 * n0 > 0, apart * (n0 / n1), 0)
    m2 = s.var * n
    m2_left = m2 - base.var * n0 - np.where(n1 > 0, (apart + step) ** 2 * (n0 * n1 / n), 0)
    m2_left = np.where((left <= 1) | (m2_left <= NOISE * m2), 0, m2_left)
    mean = s.mean + step
    back = mean - s.mean
    rest = low + ((s.mean - (mean - back)) + (step - back))
    some = n1 > 0
    s.mean[...] = np.where(some, mean, 0)
    low[...] = np.where(some, rest, 0)
    s.var[...] = np.where(some, m2_left / n1, 1)
    s.seen[...] = left
    if s.weight is not None and s.last is not None:
        s.weight[...] = n1
        s.last[...] = np.where(some, s.last - base.rows, 0)  # its time begins where the base ends
        s.counters[LATER] = 1
    s.counters[ROWS], s.counters[BATCHES] = rows, batches
    return True
