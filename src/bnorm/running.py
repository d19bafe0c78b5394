"""Statistics that change over time, which layers and the transformer share.

    average   statistics += share (batch - statistics): an exponential moving average of batch means and variances
    pool      the statistics of all values together, each counted by its weight, however they were cut into batches
    fade      the same, but a value weighs half as much as one that is `halflife` rows younger

The arithmetic of a channel is `bn_move` in formulas.h. A backend has two compiled functions that update the arrays and
count the batch, all or nothing: `settle` takes the results of a layer's forward, `move` the moments of any values.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import devices
from bnorm.kernels import BACKENDS, cpu, zeros_like
from bnorm.kernels.rule import AVERAGE, FADE, POOL, Rule

BATCHES, SKIPPED, ROWS, UNCOUNTED = range(4)  # the entries of `counters`: see Statistics
CHANNELS = 2  # the index in `left` at which the flags of channels begin, as in moving.cu; [0] counts skipped batches


class Step(NamedTuple):
    """Consecutive values of a stream, as `Statistics.learn` takes them. The last four are only for values that fade.

    parts     the parts of the values; if they fade, with the weights that they have at the row `last`
    rows      the number of rows, by which a clock that counts rows advances
    seen      the number of values of each channel, or the sum of their sample weights
    pairs     as in formulas.h
    last      the time of the row with full weight, relative to the end of the step: zero or negative
    end       the time of the end of the step on the clock of the stream; None if this clock counts rows
    """

    parts: ndarray
    rows: int
    seen: ndarray | None = None
    pairs: ndarray | None = None
    last: ndarray | None = None
    end: float | None = None


class TooLarge(FloatingPointError):
    """Finite values have led to statistics that float64 cannot hold.

    channel   the first such channel
    weights   whether the sum of the channel's weights is too large; otherwise its mean is
    """

    def __init__(self, channel: int, weights: bool) -> None:
        super().__init__(f"channel {channel}: the {'sum of its weights' if weights else 'mean'} is too large")
        self.channel, self.weights = channel, weights


def update(move: Callable[[bool], object], suspect: Callable[[], None], error: Callable[[], TooLarge]) -> None:
    """Call `move(True)`, or if statistics would not be finite (FloatingPointError), `suspect()`, which raises an error
    if values were infinite, and `move(False)`. If that raises FloatingPointError too, raise `error()`."""
    try:
        move(True)
    except FloatingPointError:
        suspect()
        try:
            move(False)
        except FloatingPointError:
            raise error() from None


def mode_of(momentum: float | None, halflife: Any) -> int:
    """Return the mode that these settings mean: FADE, POOL or AVERAGE."""
    if halflife is not None:
        return FADE
    return POOL if momentum is None else AVERAGE


def _setting(name: str) -> Any:
    """Return a property for a setting of `Statistics`. Assigning makes a new rule."""

    def assign(statistics: "Statistics", value: Any) -> None:
        setattr(statistics, f"_{name}", value)
        statistics._renew()

    return property(attrgetter(f"_{name}"), assign)


class Statistics:
    """Mean and variance of each channel, and how a batch updates them. The arrays are changed in place.

    mean, var     float64 or float32 (C,)
    seen          the number of values in each channel so far, or the sum of their weights
    low           the rounding error of the float64 mean; None in a layer
    weight        of the current statistics, see formulas.h; None if the average is settled, or values are pooled
    pairs, last   only if values fade, see formulas.h

    A layer starts from mean 0 and variance 1, which the average then includes. A transformer starts without values
    (`from_data`): the first batch of a channel replaces the initial values, and if count - ddof is not above 0, m2 is
    divided by the count.

    With momentum None every value weighs the same. With a half-life, momentum has no meaning. `still` statistics need
    more than the values of a batch, such as the times of its rows, so a layer in training does not update them.
    """

    __slots__ = (
        *("counters", "last", "low", "mean", "pairs", "seen", "var", "weight"),
        *("_ddof", "_halflife", "_momentum", "_moving", "_nonfinite", "from_data", "rule"),
        *("left", "still"),
    )
    ARRAYS = ("mean", "var", "seen", "low", "weight", "pairs", "last")

    momentum: float | None = _setting("momentum")
    halflife: float | None = _setting("halflife")
    nonfinite: str = _setting("nonfinite")
    ddof: Any = property(attrgetter("_ddof"))
    rule: Rule  # arrays and settings, as the kernels take them
    _moving: tuple[Rule, Rule]  # the same for `move`: [False] propagates what is not finite, [True] raises
    counters: ndarray  # int64: batches, batches that some channel skipped, rows, and batches that `seen` lacks

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
        self.still = False
        self.counters = np.zeros(4, np.int64)
        self.left: ndarray | None = None  # on a device: what was skipped since the last `look`, see CHANNELS
        self.seen = self._zeros()
        self.low = self._zeros() if from_data else None
        self.weight = self._zeros() if from_data and self.mode != POOL else None
        self.pairs = self._zeros() if self.mode == FADE else None
        self.last = self._zeros() if self.mode == FADE else None
        self._renew()

    @property
    def mode(self) -> int:
        return mode_of(self._momentum, self._halflife)

    @property
    def batches(self) -> int:
        return int(self.counters[BATCHES])

    @property
    def skipped(self) -> int:
        """The number of batches that some channel skipped; on a device, before the last `look`."""
        return int(self.counters[SKIPPED])

    @property
    def rows(self) -> int:
        return int(self.counters[ROWS])

    def arrays(self) -> dict[str, ndarray]:
        """Return all per-channel arrays by name."""
        return {name: a for name in self.ARRAYS if (a := getattr(self, name)) is not None}

    def place(self, arrays: dict[str, ndarray]) -> None:
        """Replace the arrays of these names, on whichever device they are."""
        for name, array in arrays.items():
            setattr(self, name, array)
        self._renew()

    # Updating -----------------------------------------------------------------------------------------------------

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
        """Update by a batch, given by its `parts` as in `Moments`. After an error no channel has changed.

        FloatingPointError if the statistics of a channel would not be finite, unless `finite` is False.
        The batch makes the stream `rows` longer. If values fade, the count is the sum of their weights, faded as seen
        from the row `last` of the stream; `seen` is the sum of the weights before fading; `pairs` is as in formulas.h.
        typical: the assumed number of values in each batch that was never counted.
        """
        BACKENDS[type(self.mean)].move(self._moving[finite], parts, seen, pairs, last, rows, batches, typical)

    def learn(self, steps: Sequence[Step], suspect: Callable[[], None] = lambda: None) -> None:
        """Update by consecutive steps, which count as one batch. After an error nothing has changed.

        suspect: as in `update`. TooLarge if the result would not be a state that may be saved.
        """
        if self.mode != FADE and len(steps) > 1:
            merged = BACKENDS[type(self.mean)].merge([step.parts for step in steps])
            steps = [Step(merged, sum(step.rows for step in steps))]
        trial = self if len(steps) == 1 else self.copy()
        for i, step in enumerate(steps, 1):
            update(partial(trial._take, step, int(i == len(steps))), suspect, partial(trial.too_large, step))
        if trial is not self:
            self.assign(trial)

    def _take(self, step: Step, batches: int, finite: bool) -> None:
        parts, rows, seen, pairs, last, end = step
        last = None if last is None else last + (float(self.rows + rows) if end is None else end)
        self.move(parts, seen, pairs, last, rows=rows, batches=batches, typical=float(rows), finite=finite)

    def too_large(self, step: Step) -> TooLarge:
        """Return the error for a step of finite values that cannot be taken, by taking its channels one by one."""
        for c in range(len(self.seen)):
            here = slice(c, c + 1)
            of_values: list[Any] = [a if a is None else a[here] for a in (step.seen, step.pairs, step.last)]
            one = Step(step.parts[:, here].copy(), step.rows, *of_values)._replace(end=step.end)
            try:
                self.picked(here)._take(one, 1, False)
            except FloatingPointError:
                break
        seen = step.parts[0] if step.seen is None else step.seen
        return TooLarge(c, not isfinite(float(self.seen[c]) + float(seen[c])))

    def begin(self, parts: ndarray, rows: int, suspect: Callable[[], None] = lambda: None) -> None:
        """Start from the statistics of a complete table, whose rows all weigh the same; an average is then settled.

        suspect, TooLarge: as in `learn`.
        """
        update(
            lambda finite: BACKENDS[type(self.mean)].move(self.pooling(finite), parts, rows=rows),
            suspect,
            lambda: Statistics(self.mean, self.var, from_data=True).too_large(Step(parts, rows)),
        )
        if self.weight is not None:
            self.weight[...] = np.where(self.seen > 0, np.inf if self.mode == AVERAGE else self.seen, 0)
        if self.pairs is not None and self.last is not None:
            with np.errstate(over="ignore"):
                self.pairs[...] = np.minimum(self.seen * (self.seen - 1), np.finfo(np.float64).max)
            self.last[...] = rows

    def pooling(self, finite: bool) -> Rule:
        """Return the rule of `move` by which all values weigh the same, whatever the mode."""
        rule = self._moving[finite]
        return rule if rule.mode == POOL else rule._replace(mode=POOL)

    def refade(self, halflife: float | None, now: float | None) -> None:
        """Continue with another half-life. Until now everything has faded by the present one, in gaps too.

        So a channel whose last value is k half-lives old gets a `last` that is k new half-lives before now.
        now: as the stream counts it, the time of its newest row; None if its clock counts rows.
        """
        if self.last is not None and halflife is not None and self._halflife is not None:
            now = float(self.rows) if now is None else now
            with np.errstate(over="ignore", invalid="ignore"):
                last = now - (now - self.last) / self._halflife * halflife
            lowest = np.finfo(np.float64).min
            self.last[...] = np.where(self.last < now, np.where(last > lowest, last, lowest), self.last)
        self.halflife = halflife

    def merge(self, other: "Statistics", later: float | None = None) -> None:
        """Merge other statistics of the same mode. If values fade, both streams end now, or with `later` the time zero
        of the others is that much later."""
        last = None if other.last is None else other.last + (float(self.rows - other.rows) if later is None else later)
        rows = 0 if self.mode == FADE and later is None else other.rows
        self.move(other.parts(), other.seen, other.pairs, last, rows=rows, batches=other.batches, finite=False)

    @np.errstate(under="ignore")  # m2 of tiny values, or under tiny weights, is 0
    def parts(self) -> ndarray:
        """Return the parts of all values as of one batch; of a moving average as if all values weighed the same."""
        weight = self.seen if self.weight is None or self.mode == AVERAGE else self.weight
        m2 = self.var * (weight if self.mode == AVERAGE else self.divisor())
        return np.where(weight == 0, 0, np.array([weight, self.mean, m2, self.low], like=weight))

    @np.errstate(all="ignore")
    def divisor(self) -> ndarray:
        """Return the divisor of m2, as in formulas.h, for statistics that started without values (`from_data`)."""
        weight = self.seen if self.weight is None else self.weight
        if not self._ddof:
            return weight
        left = weight - 1 if self.pairs is None else np.where(weight > 2.0**54, weight, self.pairs / weight)
        return np.where(left > 0, left, weight)

    def copy(self) -> "Statistics":
        """Return a copy with its own arrays."""
        new = object.__new__(Statistics)
        new.__setstate__(self.__getstate__())
        return new

    def picked(self, channels: Any) -> "Statistics":
        """Return a copy with these channels, in this order."""
        new = self.copy()
        new.place({name: a[channels].copy() for name, a in new.arrays().items()})
        return new

    def assign(self, other: "Statistics") -> None:
        """Copy the values of another object, made by `copy`, into the arrays of this one."""
        BACKENDS[type(self.mean)].assign(self.rule, other.rule)

    def pool(self) -> "Statistics":
        """Return empty statistics for several batches that will count as one."""
        mean = np.zeros_like(self.mean, np.float64)
        return Statistics(mean, np.ones_like(mean), None, 0, self._nonfinite)

    @np.errstate(under="ignore")  # as in `parts`
    def commit(self, pool: "Statistics", replace: bool) -> int:
        """Update by pooled statistics as one batch, or with `replace` replace the current statistics by them.

        Return the number of skipped channels. With nonfinite="raise" it is a FloatingPointError if there would be any,
        and then nothing has changed.
        """
        if not pool.batches:
            return 0
        parts = np.array([pool.seen, pool.mean, pool.var * pool.seen, np.zeros_like(pool.mean)], like=pool.seen)
        pairs = last = None
        if self.mode == FADE:
            parts, pairs, last = self._of_random_order(parts, pool.rows)
        typical = pool.seen.max() if self.counters[UNCOUNTED] else 0.0
        left = BACKENDS[type(pool.mean)].move(
            self.rule, parts, pool.seen, pairs, last, pool.rows, 1, typical, pool.skipped > 0, replace
        )
        if pool.left is not None and self.left is not None:  # a channel that skipped one of the batches has skipped
            number, channels, flags = self.left[:1], self._left_channels, pool._left_channels
            number += flags.any()
            channels |= flags
        return int(left)

    def look(self) -> int:
        """Update `skipped`, which synchronizes. Return the number of channels that were skipped since the last call."""
        if self.left is None:
            return 0
        skipped, left = BACKENDS[type(self.left)].numbers(self.left[0], self._left_channels.sum())
        self.left.fill(0)
        self.counters[SKIPPED] += int(skipped)
        return int(left)

    @property
    def _left_channels(self) -> Any:
        """Flags on a device: which channels were skipped."""
        return self.left[CHANNELS : CHANNELS + self.mean.size]  # type: ignore[index]

    # Starting again -----------------------------------------------------------------------------------------------

    def counted_as(self, batches: int, seen: ndarray | None) -> list[tuple[ndarray, Any]]:
        """Return pairs of an array and its new value, which set the counts of a saved state.

        Without `seen`, the batches are assumed to have been as large as the next one.
        """
        counters = self.counters.copy()
        counters[BATCHES], counters[UNCOUNTED] = batches, batches if seen is None else 0
        return [(self.counters, counters), (self.seen, 0 if seen is None else seen)]

    def reset(self) -> None:
        """Reset to the state before the first batch."""
        for array in self.arrays().values():
            array[...] = 0
        self.var[...] = 1
        self.counters[...] = 0
        if self.left is not None:
            self.left.fill(0)

    def _of_random_order(self, parts: ndarray, rows: int) -> tuple[ndarray, ndarray, ndarray]:
        """Return parts, pairs and last of a batch of equal weights, for a stream whose rows fade with age.

        The batch has `rows` rows, and its values count as if they were in random order.
        """
        share, square = cpu.mean_weights(float(self._halflife or 1.0), rows)
        faded = parts.copy()
        faded[[0, 2]] *= share
        return faded, faded[0] * faded[0] - parts[0] * square, np.full_like(parts[0], float(self.rows + rows))

    def _zeros(self) -> ndarray:
        return zeros_like(self.mean, np.float64)  # type: ignore[no-any-return]

    def _renew(self) -> None:
        """Make the rules anew after an array or a setting was replaced."""
        mean, size = self.mean, CHANNELS + 2 * self.mean.size
        if isinstance(mean, ndarray):
            self.left = None
        elif self.left is None or self.left.size != size:
            self.left = np.zeros((size,), np.int32, like=mean)
        arrays = self.mean, self.var, self.low, self.seen, self.weight, self.pairs, self.last, self.counters
        numbers = self._momentum or 0.0, self._halflife or 1.0, float(self._ddof), self.from_data
        self.rule, propagating, raising = (
            Rule(self.mode, *arrays, *numbers, nonfinite, self.left)
            for nonfinite in (self._nonfinite, "propagate", "raise")
        )
        self._moving = propagating, raising

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("rule", "_moving")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state with copies of its arrays: memory from a file or a process may be read-only or shared."""
        for name, value in state.items():
            if name in (*self.ARRAYS, "counters", "left") and value is not None:
                value = devices.owned(value.copy())
            setattr(self, name, value)
        self._renew()
