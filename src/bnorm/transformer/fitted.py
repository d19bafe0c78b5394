"""What a stream has taught: statistics, the exact sums from which they may be rounded, and a record of the stream.

A transformer and the command learn by the same calls of `Fitted`. It has no layer, and no gamma and beta.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import starmap
from operator import call
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.exact import moments as exact_moments
from bnorm.kernels import BACKENDS
from bnorm.running import Statistics, Step, TooLarge, update
from bnorm.transformer import exact, tables
from bnorm.transformer.clock import Clock, clock_of
from bnorm.transformer.durations import is_duration, nanoseconds
from bnorm.transformer.history import History
from bnorm.transformer.tables import Table
from bnorm.transformer.times import Times, Zero
from bnorm.transformer.window import Rows, Window


def ticks(halflife: Any) -> float | None:
    """A half-life in rows, or in nanoseconds if it is a length of time."""
    return None if halflife is None else float(nanoseconds(halflife) if is_duration(halflife) else halflife)


def at_once(calls: list[tuple[Callable[..., Any], *tuple[Any, ...]]]) -> None:
    """Make compiled calls without an interrupt between them: Python handles signals between instructions of its own."""
    deque(starmap(call, calls), maxlen=0)


@contextmanager
def restored_after_errors(estimator: Any) -> Iterator[None]:
    """Give an estimator its attributes back after an error. For calls that replace them, and change none in place."""
    before = estimator.__dict__.copy()
    try:
        yield
    except BaseException:
        at_once([(estimator.__dict__.clear,), (estimator.__dict__.update, before)])
        raise


class Fitted:
    """What a stream has taught. It starts with NaN in the arrays `mean` and `var`. After an error nothing has changed.

    parameters: those of a transformer, by name.

    sums      the ExactMoments from which the statistics are rounded; None if they are not exact
    summed    the numbers of rows and of batches in the sums: a layer may change those of the statistics
    history   the record of the stream, or None
    weighted  whether there were sample weights, so that counts need not be integers
    told      whether the user has been warned that batches of one row have no variance
    timed     whether rows fade, or leave the window, by their times
    zero      the zero of the clock that reads these times; None before the first
    latest    if rows fade by their times, that of the newest row; None if only the statistics show it
    window    the rows that count, or None if all do
    """

    def __init__(self, mean: ndarray, var: ndarray, parameters: Mapping[str, Any]) -> None:
        p, halflife, window = parameters, parameters["halflife"], parameters["window"]
        mean.fill(np.nan)
        var.fill(np.nan)
        momentum = None if window is not None else p["momentum"]
        self.statistics = Statistics(mean, var, momentum, int(p["ddof"]), from_data=True, halflife=ticks(halflife))
        self.timed = is_duration(halflife) or is_duration(window)
        self.statistics.still = self.timed or window is not None
        self.zero: Zero | None = None
        self.latest: int | None = None
        self.history = None if p["history"] is None else History(p["history"])
        self.weighted = self.told = False
        self.sums: Any = None
        self.summed = 0, 0
        self.window: Window | None = None
        if window is not None:
            if type(mean) is not ndarray:
                raise TypeError(f"{tables.WHO}: window: expected None on a GPU, got {window!r}")
            by_time = is_duration(window)
            self.window = Window(None if by_time else int(window), nanoseconds(window) if by_time else None)
        if p["exact"]:
            if type(mean) is not ndarray:
                raise TypeError(f"{tables.WHO}: exact: expected False on a GPU, where sums are rounded, got True")
            self.sums = exact_moments(tables.WHO, np.empty((0, len(mean))), 1, None, True)

    @property
    def mean(self) -> ndarray:
        return self.statistics.mean

    @property
    def var(self) -> ndarray:
        return self.statistics.var

    @property
    def column(self) -> str | None:
        """The name of the column of times, which is not a feature."""
        return None if self.zero is None else self.zero.column

    @property
    def newest(self) -> int | None:
        """The time of the newest row, with or without values; None if the clock counts rows."""
        if self.zero is None:
            return None
        if self.window is not None:
            return self.window.latest
        return self.zero.newest(self.statistics) if self.latest is None else self.latest

    @property
    def now(self) -> float | None:
        """The time of the newest row, as the stream counts it; None if its clock counts rows."""
        if not self.timed:
            return None
        return 0.0 if self.zero is None or self.newest is None else float(self.newest - self.zero.origin)

    def begin(self, x: Table, weight: Any, times: Times | None = None) -> None:
        """Start from a complete table, whose rows all weigh the same unless they have times."""
        if self.sums is not None or times is not None or self.window is not None:
            return self.move(x, weight, times)
        (step,) = x.steps(weight, None, self.statistics.ddof)
        try:
            self.statistics.begin(step.parts, step.rows, x.refuse_infinity)
        except TooLarge as error:
            raise tables.too_large(x, error) from None
        self._count(weight is not None)

    def move(self, x: Table, weight: Any, times: Times | None = None) -> None:
        """Update by one batch of the stream."""
        before = self.weighted
        self.weighted |= weight is not None  # first: after an interrupt, sums of weights must not be taken for integers
        try:
            if self.sums is not None:
                sums = x.exact(weight)  # a lazy table knows x.rows only after this pass
                return self.add(sums, x.rows, 1, weight is not None)
            if times is not None and self.zero is not None:
                self.zero.check(tables.WHO, times)
            with nullcontext() if times is None else self.counting_until(times.newest):
                if self.window is not None:
                    self._slide(self.window, x, weight, times)
                else:
                    self.learn(self.steps(x, weight, times), weight is not None, x.refuse_infinity)
        except Exception as error:
            self.weighted = before
            if isinstance(error, TooLarge):
                raise tables.too_large(x, error) from None
            raise
        if times is not None and times.column is not None and self.zero is not None:
            self.zero = self.zero._replace(column=times.column)

    def steps(self, x: Table, weight: Any, times: Times | None = None) -> list[Step]:
        """The steps of a table, which `learn` takes."""
        return x.steps(weight, self._clock(times), self.statistics.ddof)

    def _slide(self, window: Window, x: Table, weight: Any, times: Times | None) -> None:
        """Add a batch to the window, from which older rows then leave."""
        dense: Any = tables.Dense(x.dense())
        if times is not None:
            self._checked(times)
        after = window.moved(Rows(dense.x, None if times is None else times.ns, weight))
        tables.refuse_infinity_unseen(dense, weight)
        if len(dense.x) > (window.size or len(dense.x)) or (times and times.oldest < after.latest - (window.span or 0)):
            dense.refuse_infinity()  # some rows are not in the window, so its moments do not show their infinity
        self._show(after, len(dense.x), 1, dense.refuse_infinity)
        self._count(weight is not None)

    def _show(self, window: Window, rows: int, batches: int, suspect: Callable[[], None] = lambda: None) -> None:
        """Set the statistics to those of a window, all or nothing. suspect: as in `update`."""
        mine, parts, kernels = self.statistics, window.parts, BACKENDS[ndarray]
        to = mine if parts[0].all() else exact.emptied(mine)  # a feature without values is NaN again
        then: list[Any] = [(self.__dict__.update, {"window": window})]
        if to is not mine:
            then.insert(0, (kernels.assign, mine.rule, to.rule))

        def move(finite: bool) -> None:
            numbers = rows, batches, 0.0, False, True
            at_once([(kernels.move, to.pooling(finite), parts, None, None, None, *numbers), *then])

        update(move, suspect, lambda: exact.emptied(mine).too_large(Step(parts, rows)))

    def _checked(self, times: Times) -> Zero:
        """Return the zero of the clock, set by these times if they are the first. ValueError if their kind differs."""
        if self.zero is None:
            self.zero = Zero(times.kind, times.newest, times.column)
        self.zero.check(tables.WHO, times)
        return self.zero

    def _clock(self, times: Times | None) -> Clock | None:
        """Return the clock by which rows fade, or None. A state that has seen no times yet counts from these."""
        halflife = self.statistics.halflife
        if times is None or halflife is None:
            return clock_of(halflife)
        return times.clock(halflife, self._checked(times).origin)

    @contextmanager
    def counting_until(self, newest: int | None) -> Iterator[None]:
        """Count until this time in a block that learns rows, the newest of which has this time; None without times.

        The zero of the clock moves to it if it is so much later that differences would be rounded. Unless the block
        learns something, both are as before after it.
        """
        mine, batches = self.statistics, self.statistics.batches
        undo: list[Any] = [(self.__dict__.update, {"zero": self.zero, "latest": self.latest})]
        try:
            if newest is not None and mine.last is not None:
                after: dict[str, Any] = {"latest": newest if self.newest is None else max(newest, self.newest)}
                calls: list[Any] = [(self.__dict__.update, after)]
                if self.zero is not None and (later := self.zero.until(newest)) is not self.zero:
                    undo.append((mine.last.__setitem__, ..., mine.last.copy()))
                    calls.append((np.add, mine.last, float(self.zero.origin - later.origin), mine.last))
                    after["zero"] = later
                at_once(calls)
            yield
        except BaseException:
            if mine.batches == batches:
                at_once(undo)
            raise

    def learn(self, steps: Sequence[Step], weighted: bool, suspect: Callable[[], None] = lambda: None) -> None:
        """Update by the steps of one batch, as `Statistics.learn` does. weighted: whether there were sample weights."""
        self.statistics.learn(steps, suspect)
        self._count(weighted)

    def add(self, sums: Any, rows: int, batches: int, weighted: bool) -> None:
        """Add rows to exact statistics, given by their exact moments."""
        self._follow(self.sums + sums, self.summed[0] + rows, self.summed[1] + batches)
        self._count(weighted)

    def forget(self, sums: Any, rows: int) -> None:
        """Take rows out of exact statistics, given by their exact moments."""
        left = self.sums._without(sums, f"{tables.WHO}: forget: X: expected rows that were learned", "feature")
        if rows > self.summed[0]:  # the sums do not show this if some rows have no values
            raise ValueError(f"{tables.WHO}: forget: expected at most {self.summed[0]} rows, got {rows}")
        self._follow(left, self.summed[0] - rows, self.summed[1])

    def merge(self, other: "Fitted") -> None:
        """Merge the statistics of another stream, on the same device."""
        mine, its = self.statistics, other.statistics
        if self.sums is not None:
            self._follow(self.sums + other.sums, *(a + b for a, b in zip(self.summed, other.summed, strict=True)))
        elif self.window is not None and other.window is not None:
            after = self.window
            for rows in other.window.rows():
                after = after.moved(rows)
            self._show(after, its.rows, its.batches)
        else:
            try:
                with self.counting_until(other.newest):
                    zero, late = self.zero, other.zero
                    mine.merge(its, None if zero is None or late is None else float(late.origin - zero.origin))
            except FloatingPointError as error:
                raise ValueError(
                    f"{tables.WHO}: merge: expected statistics that float64 can hold together: {error}"
                ) from None
        self.weighted |= other.weighted

    def own(self) -> Statistics:
        """Return the statistics; new ones if a layer has counted other values than those of the sums or the window."""
        mine, parts = self.statistics, None if self.window is None else self.window.parts
        if self.sums is not None:
            same = (self.sums.count == mine.seen).all() and (mine.rows, mine.batches) == self.summed
            return mine if same else exact.rounded(mine, self.sums, *self.summed)
        if parts is None or (parts[0] == mine.seen).all():
            return mine
        trial = exact.emptied(mine)
        trial.begin(parts.copy(), 0)
        trial.counters[...] = mine.counters
        return trial

    def arrange(self, order: Sequence[int]) -> None:
        """Put the channels into this order."""
        self.statistics.assign(self.statistics.picked(order))
        self.window = None if self.window is None else self.window.picked(order)
        self.sums = None if self.sums is None else self.sums._picked(order)

    def keep(self, moments: int | None) -> None:
        """Set the number of recorded moments; None stops recording."""
        if moments is None or self.history is None:
            self.history = None if moments is None else History(moments)
        else:
            self.history.limit = moments
            self.history.thin()

    def besides(self) -> dict[str, Any]:
        """Return the attributes that belong to the state beside the statistics."""
        names = ("history", "weighted", "told", "sums", "summed", "zero", "latest", "window")
        return {name: getattr(self, name) for name in names}

    def _follow(self, sums: Any, rows: int, batches: int) -> None:
        try:
            trial = exact.rounded(self.statistics, sums, rows, batches)
        except FloatingPointError as error:
            raise ValueError(f"{tables.WHO}: expected statistics that float64 can hold: {error}") from None
        at_once(self.taking(trial, {"sums": sums, "summed": (rows, batches)}))

    def taking(self, statistics: Statistics, besides: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Return compiled calls, with their arguments, that take over the statistics and `besides` of a copy."""
        assign = BACKENDS[type(self.mean)].assign
        return [(assign, self.statistics.rule, statistics.rule), (self.__dict__.update, besides)]

    def _count(self, weighted: bool) -> None:
        self.weighted |= weighted
        if self.history is not None:
            self.history.record(self.statistics, self.newest)
