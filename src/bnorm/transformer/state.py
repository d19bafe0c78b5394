"""The fitted state of a transformer: a layer whose running statistics are those of the stream.

Transformer and layer share the same `Statistics`. Either may update them: the transformer with a batch of its stream,
or the layer in training mode.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.exact import ExactMoments
from bnorm.exact import moments as exact_moments
from bnorm.kernels import BACKENDS, view
from bnorm.kernels.activation import IDENTITY
from bnorm.layers import BatchNorm1d
from bnorm.running import AVERAGE, FADE, POOL, Statistics
from bnorm.transformer import exact, tables
from bnorm.transformer.clock import clock_of
from bnorm.transformer.history import History
from bnorm.transformer.tables import Table

KINDS = {AVERAGE: "an average of batches", POOL: "rows that weigh the same", FADE: "rows that fade"}


def mode(momentum: float | None, halflife: float | None) -> int:
    """How a batch is weighed against the past."""
    if halflife is not None:
        return FADE
    return POOL if momentum is None else AVERAGE


class State:
    """The fitted state. It starts with NaN statistics, gamma 1 and beta 0, for the features and the device of x."""

    sums: ExactMoments | None = None  # what the statistics are rounded from, if they are exact

    def __init__(
        self,
        x: Table,
        momentum: float | None,
        halflife: float | None,
        eps: float,
        ddof: int,
        affine: bool,
        history: int | None = None,
        in_integers: bool = False,
    ) -> None:
        self.layer = BatchNorm1d(
            x.shape[1],
            eps=float(eps),
            momentum=momentum,
            ddof=int(ddof),
            affine=bool(affine),
            dtype="float64",
            device="cpu" if x.kind is ndarray else "cuda",
        ).eval()
        mean, var = self.layer._running.mean, self.layer._running.var
        mean.fill(np.nan)
        var.fill(np.nan)
        fade = None if halflife is None else float(halflife)
        self.layer._adopt(Statistics(mean, var, momentum, int(ddof), from_data=True, halflife=fade))
        self.history = None if history is None else History(history)
        self.weighted = False  # whether there were sample weights, so that counts need not be integers
        self.sums = None
        if in_integers:
            if x.kind is not ndarray:
                raise TypeError(f"{tables.WHO}: exact: expected False on a GPU, where sums are rounded, got True")
            nothing = np.empty((0, x.shape[1]))
            self.sums = exact_moments(tables.WHO, nothing, 1, None, True)
        self.told = False  # whether it has warned that batches of one row have no variance

    @property
    def statistics(self) -> Statistics:
        return self.layer._running

    @property
    def mean(self) -> ndarray:
        return self.statistics.mean

    @property
    def var(self) -> ndarray:
        return self.statistics.var

    @property
    def array_type(self) -> type:
        """NumPy's or CuPy's array type."""
        kind: type = self.layer._kind
        return kind

    @property
    def parameters(self) -> tuple[ndarray, ndarray] | None:
        """gamma and beta; None without affine."""
        gamma, beta = self.layer.gamma, self.layer.beta
        return None if gamma is None or beta is None else (gamma.data, beta.data)

    @np.errstate(all="ignore")
    def std(self) -> ndarray:
        """sqrt(var + eps); with eps 0, 1 for a constant feature."""
        std: ndarray = np.sqrt(self.var + self.layer.eps)
        if self.layer.eps == 0:
            np.copyto(std, 1, where=self.forward()[2] == 1)
        return std

    def forward(self) -> ndarray:
        """The rows mean, var, rstd, scale, shift, as the kernels take them: y = (x - mean) scale + shift."""
        gamma, beta = self.parameters or (None, None)
        stats: ndarray = BACKENDS[self.array_type].known(self.mean, self.var, gamma, beta, self.layer.eps)
        return stats

    @np.errstate(all="ignore")
    def inverse(self, dtype: np.dtype[Any]) -> ndarray:
        """The same rows for the inverse, x = (y - beta) std / gamma + mean; where gamma is 0 the result is the mean.

        The mean is split: its high part, which the type of y can represent, is added, and its low part is included in
        the number that is subtracted from y. So a mean far from zero costs no accuracy.
        """
        stats = self.forward()
        center, low, _, scale, high = stats
        beta = high.copy()
        if dtype.itemsize == 8:
            high[...], center[...] = center, beta
        else:
            high[...] = center.astype(np.float32)
            np.subtract(center, high, out=low)
            low *= scale
            np.copyto(low, 0, where=~np.isfinite(low))
            np.subtract(beta, low, out=center)
        lost = scale == 0
        np.divide(1, scale, out=scale)
        np.copyto(scale, 0, where=lost)
        return stats

    def begin(self, x: Table, weight: Any) -> None:
        """Start from a whole table, whose rows all weigh the same."""
        if self.sums is not None:
            return self.move(x, weight)
        parts = x.parts(weight)
        try:
            self.statistics.begin(parts, x.rows)
        except FloatingPointError:
            raise tables.too_large(x, weight, self.statistics) from None
        self._count(weight)

    def move(self, x: Table, weight: Any) -> None:
        """Update by one batch of the stream. After an error nothing has changed."""
        statistics = self.statistics
        if self.sums is not None:
            sums = x.exact(weight)
            return self.add(sums, x.rows, 1, weight is not None)
        steps = x.steps(weight, clock_of(statistics.halflife), statistics.ddof)
        try:
            statistics.learn(steps, x.refuse_infinity)
        except FloatingPointError:
            raise tables.too_large(x, weight, statistics) from None
        self._count(weight)

    def forget(self, sums: Any, rows: int) -> None:
        """Take rows out of exact statistics, given by their exact moments."""
        self._follow(self.sums - sums, self.statistics.rows - rows, self.statistics.batches)

    def add(self, sums: Any, rows: int, batches: int, weighted: bool) -> None:
        """Add rows to exact statistics, given by their exact moments."""
        self._follow(self.sums + sums, self.statistics.rows + rows, self.statistics.batches + batches)
        self.weighted |= weighted
        self.record()

    def _follow(self, sums: Any, rows: int, batches: int) -> None:
        try:
            exact.follow(self.statistics, sums, rows, batches)
        except FloatingPointError as error:
            raise ValueError(f"{tables.WHO}: expected statistics that float64 can hold: {error}") from None
        self.sums = sums

    def _count(self, weight: Any) -> None:
        self.weighted |= weight is not None
        self.record()

    def merge(self, other: "State") -> None:
        """Merge the statistics of another stream, on the same device."""
        if self.sums is not None:
            its = other.statistics
            self._follow(self.sums + other.sums, self.statistics.rows + its.rows, self.statistics.batches + its.batches)
            self.weighted |= other.weighted
            return
        try:
            self.statistics.merge(other.statistics)
        except FloatingPointError as error:
            raise ValueError(
                f"{tables.WHO}: merge: expected statistics that float64 can hold together: {error}"
            ) from None
        self.weighted |= other.weighted

    def becoming(self, other: "State") -> list[tuple[Any, ...]]:
        """Compiled calls, with their arguments, that make this state that of its copy which has moved on."""
        mine, its = self.statistics, other.statistics
        limit = None if other.history is None else other.history.limit
        self.follow(its.momentum, its.halflife, other.layer.eps, limit)
        flags = {"history": other.history, "weighted": other.weighted, "told": other.told, "sums": other.sums}
        return [(BACKENDS[self.array_type].assign, mine.rule, its.rule), (self.__dict__.update, flags)]

    def follow(self, momentum: float | None, halflife: float | None, eps: float, history: int | None) -> None:
        """Continue with other parameters, of those that may change during a stream."""
        if self.layer.eps != eps:
            self.layer.eps = float(eps)
        if self.statistics.momentum != momentum:
            self.statistics.momentum = momentum
        if self.statistics.halflife != halflife:
            self.statistics.halflife = None if halflife is None else float(halflife)
        if history != (self.history and self.history.limit):
            self._keep(history)

    def _keep(self, moments: int | None) -> None:
        """Set the number of recorded moments; None stops recording."""
        if moments is None or self.history is None:
            self.history = None if moments is None else History(moments)
        else:
            self.history.limit = moments
            self.history.thin()

    def record(self) -> None:
        """Add the present statistics to the history, if there is one."""
        if self.history is not None:
            self.history.record(self.statistics)

    def pull_back(self, x: ndarray, dy: ndarray) -> tuple[ndarray, ndarray | None, ndarray | None]:
        """dx, dgamma, dbeta. NaN, and values of a feature without statistics, do not count in dgamma and dbeta."""
        stats = self.forward()
        dx, dgamma, dbeta = _pull_back(x, dy, stats)
        if not (np.isfinite(dgamma) & np.isfinite(dbeta)).all():
            tables.Dense(x).refuse_infinity()
            unseen = np.isnan(stats[0])
            missing = np.isnan(x) | unseen
            stats[:3] = np.where(unseen, 0, stats[:3])
            kept = np.where(missing, stats[0], x).astype(x.dtype)
            _, dgamma, dbeta = _pull_back(kept, np.where(missing, dy.dtype.type(0), dy), stats)
        return (dx, None, None) if self.parameters is None else (dx, dgamma, dbeta)


def _pull_back(x: ndarray, dy: ndarray, stats: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    block, layout = view.channels(x, 1)
    dx, dgamma, dbeta = BACKENDS[type(x)].backward(
        view.like(dy, layout), block, stats, float(len(x)), None, IDENTITY, True, True, None
    )
    return view.restore(dx, layout), dgamma, dbeta
