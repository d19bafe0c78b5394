"""How statistics move over time: the running statistics that layers and the transformer share.

    average   statistics += share (batch - statistics): an exponential moving average of batch means and variances
    pool      every value counts by its weight, wherever the batches were cut, with the spread between batches
    fade      the same, but a value weighs half of what one does that is `halflife` rows younger

The arithmetic of a channel is `bn_move` in formulas.h. A batch comes in by one of two compiled calls, each of which
moves the arrays and counts the batch, all or nothing: the `settle` of a backend takes what a layer's forward has left,
and `move` the moments of any set of values.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import devices
from bnorm.kernels import BACKENDS
from bnorm.kernels.rule import Rule

AVERAGE, POOL, FADE = range(3)  # as in formulas.h
BATCHES, SKIPPED, ROWS, UNCOUNTED = range(4)  # what `counters` counts: see Statistics
LATER = 256  # batches on a device whose flags wait to be read; then they are counted, on the device
LOG2 = float(np.log(2.0))


class Statistics:
    """Mean and variance of each channel, and how a batch moves them. The arrays are changed in place.

    mean, var   float64 or float32 (C,)
    seen        values behind each channel so far, or the sum of their weights
    low         what the float64 mean rounds off; None in a layer
    weight      of what is behind a channel, see formulas.h; None where the average is settled, or values are pooled
    pairs, last   where values fade

    A layer starts from mean 0 and variance 1, and an average moves on from there. A transformer starts from nothing
    (`from_data`): the first batch of a channel replaces what stands there, and where ddof leaves nothing to divide by,
    the variance is that of the values themselves.

    momentum None: every value weighs the same. With a half-life, momentum has no meaning.
    """

    __slots__ = (
        *("counters", "last", "low", "mean", "pairs", "seen", "var", "weight"),
        *("_ddof", "_halflife", "_momentum", "_nonfinite", "from_data", "rule"),
        *("counted", "flags"),
    )
    ARRAYS = ("mean", "var", "seen", "low", "weight", "pairs", "last")

    rule: Rule  # what the kernels take: arrays and settings
    counters: ndarray  # int64: batches, those in which a channel was left alone, rows, and batches that `seen` lacks

    def __init__(
        self,
        mean: ndarray,
        var: ndarray,
        momentum: float | None = None,
        ddof: int = 0,
        nonfinite: str = "skip",
        *,
        from_data: bool = False,
        halflife: float | None = None,
    ) -> None:
        self.mean, self.var, self.from_data = mean, var, from_data
        self._momentum, self._halflife, self._ddof, self._nonfinite = momentum, halflife, ddof, nonfinite
        self.counters = np.zeros(4, np.int64)
        self.flags: list[ndarray] = []  # of batches not counted yet
        self.counted: list[ndarray] = []  # of those before: their number, and flags of all of them, on the device
        self.seen = self._zeros()
        self.low = self._zeros() if from_data else None
        self.weight = self._zeros() if from_data and self.mode != POOL else None
        self.pairs = self._zeros() if self.mode == FADE else None
        self.last = self._zeros() if self.mode == FADE else None
        self._settle()

    @property
    def mode(self) -> int:
        if self._halflife is not None:
            return FADE
        return POOL if self._momentum is None else AVERAGE

    @property
    def momentum(self) -> float | None:
        return self._momentum

    @momentum.setter
    def momentum(self, value: float | None) -> None:
        self._momentum = value
        self._settle()

    @property
    def halflife(self) -> float | None:
        return self._halflife

    @halflife.setter
    def halflife(self, value: float | None) -> None:
        self._halflife = value
        self._settle()

    @property
    def ddof(self) -> int:
        return self._ddof

    @property
    def nonfinite(self) -> str:
        return self._nonfinite

    @nonfinite.setter
    def nonfinite(self, value: str) -> None:
        self._nonfinite = value
        self._settle()

    @property
    def batches(self) -> int:
        return int(self.counters[BATCHES])

    @property
    def skipped(self) -> int:
        """Batches in which a channel was left alone; on a device those before the last `look`."""
        return int(self.counters[SKIPPED])

    @property
    def rows(self) -> int:
        return int(self.counters[ROWS])

    def arrays(self) -> dict[str, ndarray]:
        """All arrays of channels, by name."""
        return {name: a for name in self.ARRAYS if (a := getattr(self, name)) is not None}

    def place(self, arrays: dict[str, ndarray]) -> None:
        """Take these for the arrays of that name, on whichever device they are."""
        for name, array in arrays.items():
            setattr(self, name, array)
        self._settle()

    # Moving -------------------------------------------------------------------------------------------------------

    def move(
        self,
        parts: ndarray,
        seen: ndarray | None = None,
        pairs: ndarray | None = None,
        last: ndarray | None = None,
        *,
        rows: int = 0,
        batches: int = 1,
        typical: float = 0.0,
        finite: bool = True,
    ) -> None:
        """By a batch known by its parts, which are those of `Moments`. All channels move, or after an error none.

        FloatingPointError where one would not be finite any more, unless `finite` is False.
        Where values fade, count is the sum of their faded weights, relative to the row `last` of the stream (after this
        batch the stream has `rows` more), seen the sum of those before fading, and pairs as in formulas.h.
        typical: values of a batch, if some were never counted.
        """
        rule = self.rule._replace(nonfinite="raise" if finite else "propagate")
        BACKENDS[type(self.mean)].move(rule, parts, seen, pairs, last, rows, batches, typical)

    def begin(self, parts: ndarray, rows: int) -> None:
        """From the statistics of a whole table, whose rows all weigh the same: an average is settled then."""
        kernels = BACKENDS[type(self.mean)]
        kernels.move(self.rule._replace(mode=POOL, nonfinite="propagate"), parts, None, None, None, rows)
        if self.weight is not None:
            self.weight[...] = np.where(self.seen > 0, np.inf if self.mode == AVERAGE else self.seen, 0)
        if self.pairs is not None and self.last is not None:
            self.pairs[...], self.last[...] = self.seen * (self.seen - 1), rows

    def merge(self, other: "Statistics") -> None:
        """By what is behind other statistics of the same mode; where values fade, both end now."""
        weight = other.seen if other.weight is None else other.weight
        divisor = other.divisor()
        parts = np.array([weight, other.mean, other.var * divisor, other.low], like=weight)
        parts = np.where(weight == 0, 0, parts)
        last = None if other.last is None else other.last + float(self.rows - other.rows)
        rows = 0 if self.mode == FADE else other.rows
        self.move(parts, other.seen, other.pairs, last, rows=rows, batches=other.batches, finite=False)

    @np.errstate(all="ignore")
    def divisor(self) -> ndarray:
        """What m2 is divided by, as in formulas.h."""
        weight = self.seen if self.weight is None else self.weight
        if not self._ddof:
            return weight
        left = weight - 1 if self.pairs is None else self.pairs / weight
        divisor: ndarray = np.where(left > 0, left, weight if self.from_data else 0)
        return divisor

    def copy(self) -> "Statistics":
        """The same, with arrays of its own."""
        new = object.__new__(Statistics)
        new.__setstate__(self.__getstate__())
        return new

    def assign(self, other: "Statistics") -> None:
        """Become what a copy of these statistics has become: its values go into the arrays that are here."""
        BACKENDS[type(self.mean)].assign(self.rule, other.rule)

    def pool(self) -> "Statistics":
        """Empty statistics for several batches that will count as one."""
        mean = np.zeros_like(self.mean, np.float64)
        return Statistics(mean, np.ones_like(mean), None, 0, self._nonfinite)

    def commit(self, pool: "Statistics", replace: bool) -> int:
        """Let in what was pooled, as one batch; with `replace` it takes the place of what stood there.

        Returns the number of channels that were left alone, as `note` does. FloatingPointError, with nonfinite="raise",
        where there would be any; then nothing has changed.
        """
        if not pool.batches:
            return 0
        parts = np.array([pool.seen, pool.mean, pool.var * pool.seen, np.zeros_like(pool.mean)], like=pool.seen)
        pairs = last = None
        if self.mode == FADE:
            parts, pairs, last = self._of_random_order(parts, pool.rows)
        typical = pool.seen.max() if self.counters[UNCOUNTED] else 0.0
        skipped = pool.skipped > 0 or bool(pool.flags or pool.counted)
        left = BACKENDS[type(pool.mean)].move(
            self.rule, parts, pool.seen, pairs, last, pool.rows, 1, typical, skipped and not pool.flags, replace
        )
        if pool.flags or pool.counted:
            self.note(left)
            return self._keep(pool.count()[1])
        return self.note(left)

    def note(self, left: Any) -> int:
        """The channels that a batch left alone: their number, or 0 where a device has to be asked for it.

        A device tells by flags, one per channel, which are not read while batches go on, as the host would have to
        wait for each of them: `look` does.
        """
        return left if isinstance(left, int) else self._keep(left.flags)

    def _keep(self, flags: ndarray) -> int:
        if not BACKENDS[type(flags)].capturing():  # or there is nothing in them yet
            self.flags.append(flags)
        if len(self.flags) >= LATER:
            self.count()
        return 0

    def count(self) -> list[ndarray]:
        """Count the batches whose flags are kept, on their device: their number, and flags of them all."""
        if self.flags:
            flags = np.stack(self.flags) != 0
            number, channels = flags.any(1).sum(), flags.any(0)
            if self.counted:
                number, channels = number + self.counted[0], channels | self.counted[1]
            self.counted, self.flags = [number, channels], []
        return self.counted

    def look(self) -> int:
        """Bring `skipped` up to date, waiting for the device; the number of channels that were left alone since."""
        if not self.flags and not self.counted:
            return 0
        number, channels = self.count()
        skipped, left = BACKENDS[type(number)].numbers(number, channels.sum())
        self.counted = []
        self.counters[SKIPPED] += int(skipped)
        return int(left)

    # Beginning anew -----------------------------------------------------------------------------------------------

    def counted_as(self, batches: int, seen: ndarray | None) -> list[tuple[ndarray, Any]]:
        """What is to be written, and where, so that these have the counts of a saved state.

        Without `seen`, its batches are taken to have been as large as the next one.
        """
        counters = self.counters.copy()
        counters[BATCHES], counters[UNCOUNTED] = batches, batches if seen is None else 0
        return [(self.counters, counters), (self.seen, 0 if seen is None else seen)]

    def reset(self) -> None:
        """As if there had been no batch."""
        for array in self.arrays().values():
            array[...] = 0
        self.var[...] = 1
        self.counters[...] = 0
        self.flags, self.counted = [], []

    def _of_random_order(self, parts: ndarray, rows: int) -> tuple[ndarray, ndarray, ndarray]:
        """A batch of so many rows that all weigh the same, as part of a stream whose rows fade by age."""
        half = LOG2 / float(self._halflife or 1.0)
        share, square = (np.expm1(-k * half * rows) / np.expm1(-k * half) / rows for k in (1, 2))
        faded = parts.copy()
        faded[[0, 2]] *= share
        last = np.full(parts.shape[1], float(self.rows + rows), like=parts)
        return faded, faded[0] * faded[0] - parts[0] * square, last

    def _zeros(self) -> ndarray:
        return np.zeros_like(self.mean, np.float64)

    def _settle(self) -> None:
        """Arrays and settings as the kernels take them."""
        self.rule = Rule(
            self.mode,
            *(self.mean, self.var, self.low, self.seen, self.weight, self.pairs, self.last, self.counters),
            *(self._momentum or 0.0, self._halflife or 1.0, float(self._ddof), self.from_data, self._nonfinite),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "rule"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Memory that came with a file or from another process may be read-only, or shared: each array gets its own."""
        for name, value in state.items():
            if name in (*self.ARRAYS, "counters") and value is not None:
                value = devices.owned(value.copy())
            setattr(self, name, value)
        self._settle()
