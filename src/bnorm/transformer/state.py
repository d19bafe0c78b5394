"""The fitted state of a transformer, which is also available as a layer with the statistics of the stream.

Transformer and layer share the same `Statistics`. Either may update them: the transformer with a batch of its stream,
or the layer in training mode. The layer is made only when somebody asks for it, because making it takes as long as the
rest of a small fit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS, moved, view
from bnorm.kernels.activation import IDENTITY
from bnorm.kernels.rule import AVERAGE, FADE, POOL
from bnorm.layers import BatchNorm1d
from bnorm.running import mode_of
from bnorm.transformer import durations, maps, tables
from bnorm.transformer.durations import is_duration, nanoseconds
from bnorm.transformer.fitted import Fitted, at_once, ticks
from bnorm.transformer.tables import Table

KINDS = {AVERAGE: "a moving average of batches", POOL: "rows that weigh the same", FADE: "rows that fade"}


def manner(momentum: float | None, halflife: Any, window: Any) -> str:
    """Say in words how a stream weighs its rows, whether they fade by their times, and how long a window is."""
    if window is not None:
        return f"a window of {durations.in_units(nanoseconds(window)) if is_duration(window) else window}"
    by_time = " by their times" if is_duration(halflife) else ""
    return KINDS[mode_of(momentum, halflife)] + by_time


class State(Fitted):
    """The fitted state of a transformer with these parameters. It starts with NaN statistics, gamma 1 and beta 0, for
    the features and on the device of x.
    """

    _layer: BatchNorm1d | None = None

    followed: tuple[Any, ...] | None = None  # the settings when `follow` was last called; copies do not have them

    def __init__(self, x: Table, parameters: Mapping[str, Any]) -> None:
        mean, var = (moved(np.empty(x.shape[1]), x.kind) for _ in range(2))
        p = parameters
        super().__init__(mean, var, p)
        self._eps, self.affine = float(p["eps"]), bool(p["affine"])
        self.manner = manner(p["momentum"], p["halflife"], p["window"])

    @property
    def layer(self) -> BatchNorm1d:
        """The state as a layer, always the same object."""
        if self._layer is None:
            mine, device = self.statistics, "cpu" if self.array_type is ndarray else "cuda"
            options: Any = {"eps": self._eps, "momentum": mine.momentum, "ddof": mine.ddof, "affine": self.affine}
            layer = BatchNorm1d(len(mine.mean), **options, dtype="float64", device=device).eval()
            layer._adopt(mine)
            self.__dict__.setdefault("_layer", layer)  # another thread may have made one
        return self.__dict__["_layer"]  # type: ignore[no-any-return]

    @property
    def eps(self) -> float:
        """The eps of the layer, to which users can assign another."""
        return self._eps if self._layer is None else self._layer.eps

    @property
    def array_type(self) -> type:
        """NumPy's or CuPy's array type."""
        return type(self.mean)

    @property
    def parameters(self) -> tuple[ndarray, ndarray] | None:
        """gamma and beta; None without affine."""
        return (self.layer.gamma.data, self.layer.beta.data) if self.affine else None

    @np.errstate(all="ignore")
    def std(self) -> ndarray:
        """sqrt(var + eps); with eps 0, 1 for a constant feature."""
        std: ndarray = np.sqrt(self.var + self.eps)
        if self.eps == 0:
            np.copyto(std, 1, where=self.forward()[2] == 1)
        return std

    def forward(self) -> ndarray:
        """As in `maps`. While nobody has asked for the layer, gamma is 1 and beta is 0."""
        return maps.forward(self.statistics, None if self._layer is None else self.parameters, self.eps)

    def take(self, other: Fitted) -> None:
        """Become a copy of another state, on the same device."""
        at_once(self.taking(other.statistics, other.besides()))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "followed"}

    def becoming(self, other: "State") -> list[tuple[Any, ...]]:
        """Return compiled calls, with their arguments, that take over what a copy of this state has learned since."""
        its, limit = other.statistics, None if other.history is None else other.history.limit
        self._follow_numbers(its.momentum, its.halflife, other.eps, limit)
        return self.taking(its, other.besides())

    @contextmanager
    def following(self, estimator: Any) -> Iterator[None]:
        """Continue with the parameters of a transformer in this block; if nothing is learned in it, with those before.

        Only those are read that may change during a stream.
        """
        mine, history = self.statistics, copy(self.history)
        before, eps, zero = mine.copy(), self.eps, self.zero
        try:
            self.follow(estimator.momentum, estimator.halflife, estimator.eps, estimator.history)
            yield
        except BaseException:
            if mine.batches == before.batches:
                self.history = history
                refaded = mine.halflife != before.halflife
                limit = None if history is None else history.limit
                self._follow_numbers(before.momentum, before.halflife, eps, limit)
                if refaded:
                    at_once(self.taking(before, {"zero": zero}))
            raise

    def continued(self, estimator: Any) -> "State":
        """Return a copy without a layer that continues with the parameters of a transformer, as `following` does."""
        new = copy(self)
        new.statistics, new.history, new._layer = self.statistics.copy(), copy(self.history), None
        new.follow(estimator.momentum, estimator.halflife, estimator.eps, estimator.history)
        return new

    def follow(self, momentum: float | None, halflife: Any, eps: float, history: int | None) -> None:
        """Continue with other values of those parameters that may change during a stream."""
        self._follow_numbers(None if self.window is not None else momentum, ticks(halflife), eps, history)

    def _follow_numbers(self, momentum: float | None, halflife: float | None, eps: float, history: int | None) -> None:
        if self.eps != eps:
            self._eps = float(eps)
            if self._layer is not None:
                self._layer.eps = self._eps
        if self.statistics.momentum != momentum:
            self.statistics.momentum = momentum
        if self.statistics.halflife != halflife:
            self.statistics.refade(halflife, self.now)
        if history != (self.history and self.history.limit):
            self.keep(history)

    def pull_back(self, x: ndarray, dy: ndarray) -> tuple[ndarray, ndarray | None, ndarray | None]:
        """Return dx, dgamma, dbeta. In dgamma and dbeta, NaN and values of features without statistics do not count."""
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
