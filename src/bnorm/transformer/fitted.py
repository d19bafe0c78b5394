"""What a stream has taught: statistics, the exact sums that they may be rounded from, and a record of the stream.

A transformer and the command learn by the same calls of `Fitted`. It has no layer and no parameters.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.exact import moments as exact_moments
from bnorm.running import Statistics, Step, TooLarge
from bnorm.transformer import exact, tables
from bnorm.transformer.clock import clock_of
from bnorm.transformer.history import History
from bnorm.transformer.tables import Table


class Fitted:
    """It starts with NaN statistics, in the arrays `mean` and `var`. An error changes nothing.

    sums      ExactMoments that the statistics are rounded from; None if they are not exact
    history   the record of the stream, or None
    weighted  whether there were sample weights, so that counts need not be integers
    told      whether the user has been warned that batches of one row have no variance
    """

    def __init__(
        self,
        mean: ndarray,
        var: ndarray,
        momentum: float | None,
        halflife: float | None,
        ddof: int,
        history: int | None = None,
        in_integers: bool = False,
    ) -> None:
        mean.fill(np.nan)
        var.fill(np.nan)
        fade = None if halflife is None else float(halflife)
        self.statistics = Statistics(mean, var, momentum, int(ddof), from_data=True, halflife=fade)
        self.history = None if history is None else History(history)
        self.weighted = self.told = False
        self.sums: Any = None
        if in_integers:
            if type(mean) is not ndarray:
                raise TypeError(f"{tables.WHO}: exact: expected False on a GPU, where sums are rounded, got True")
            self.sums = exact_moments(tables.WHO, np.empty((0, len(mean))), 1, None, True)

    @property
    def mean(self) -> ndarray:
        return self.statistics.mean

    @property
    def var(self) -> ndarray:
        return self.statistics.var

    def begin(self, x: Table, weight: Any) -> None:
        """Start from a whole table, whose rows all weigh the same."""
        if self.sums is not None:
            return self.move(x, weight)
        parts = x.parts(weight)
        try:
            self.statistics.begin(parts, x.rows)
        except TooLarge as error:
            raise tables.too_large(x, error) from None
        self._count(weight is not None)

    def move(self, x: Table, weight: Any) -> None:
        """Update by one batch of the stream."""
        if self.sums is not None:
            sums = x.exact(weight)  # of a lazy table, rows are known after a pass
            return self.add(sums, x.rows, 1, weight is not None)
        try:
            self.learn(self.steps(x, weight), weight is not None, x.refuse_infinity)
        except TooLarge as error:
            raise tables.too_large(x, error) from None

    def steps(self, x: Table, weight: Any) -> list[Step]:
        """The steps of a table, which `learn` takes."""
        return x.steps(weight, clock_of(self.statistics.halflife), self.statistics.ddof)

    def learn(self, steps: Sequence[Step], weighted: bool, suspect: Callable[[], None] = lambda: None) -> None:
        """Update by the steps of one batch, as `Statistics.learn` does. weighted: whether there were sample weights."""
        self.statistics.learn(steps, suspect)
        self._count(weighted)

    def add(self, sums: Any, rows: int, batches: int, weighted: bool) -> None:
        """Add rows to exact statistics, given by their exact moments."""
        self._follow(self.sums + sums, self.statistics.rows + rows, self.statistics.batches + batches)
        self._count(weighted)

    def forget(self, sums: Any, rows: int) -> None:
        """Take rows out of exact statistics, given by their exact moments."""
        self._follow(self.sums - sums, self.statistics.rows - rows, self.statistics.batches)

    def merge(self, other: "Fitted") -> None:
        """Merge the statistics of another stream, on the same device."""
        mine, its = self.statistics, other.statistics
        if self.sums is not None:
            self._follow(self.sums + other.sums, mine.rows + its.rows, mine.batches + its.batches)
        else:
            try:
                mine.merge(its)
            except FloatingPointError as error:
                raise ValueError(
                    f"{tables.WHO}: merge: expected statistics that float64 can hold together: {error}"
                ) from None
        self.weighted |= other.weighted

    def arrange(self, order: Sequence[int]) -> None:
        """Put the channels into this order."""
        self.statistics.assign(self.statistics.picked(order))
        self.sums = None if self.sums is None else self.sums.picked(order)

    def keep(self, moments: int | None) -> None:
        """Set the number of recorded moments; None stops recording."""
        if moments is None or self.history is None:
            self.history = None if moments is None else History(moments)
        else:
            self.history.limit = moments
            self.history.thin()

    def besides(self) -> dict[str, Any]:
        """What there is beside the statistics."""
        return {"history": self.history, "weighted": self.weighted, "told": self.told, "sums": self.sums}

    def _follow(self, sums: Any, rows: int, batches: int) -> None:
        try:
            exact.follow(self.statistics, sums, rows, batches)
        except FloatingPointError as error:
            raise ValueError(f"{tables.WHO}: expected statistics that float64 can hold: {error}") from None
        self.sums = sums

    def _count(self, weighted: bool) -> None:
        self.weighted |= weighted
        if self.history is not None:
            self.history.record(self.statistics)
