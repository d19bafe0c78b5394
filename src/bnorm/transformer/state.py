"""The fitted state of a transformer: a layer whose running statistics are those of the stream.

Transformer and layer share the same `Statistics`. Either may update them: the transformer with a batch of its stream,
or the layer in training mode.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS, view
from bnorm.kernels.activation import IDENTITY
from bnorm.kernels.rule import AVERAGE, FADE, POOL
from bnorm.layers import BatchNorm1d
from bnorm.running import mode_of
from bnorm.transformer import durations, maps, tables
from bnorm.transformer.durations import is_duration
from bnorm.transformer.fitted import Fitted, at_once, ticks
from bnorm.transformer.tables import Table

KINDS = {AVERAGE: "an average of batches", POOL: "rows that weigh the same", FADE: "rows that fade"}


def manner(momentum: float | None, halflife: Any, window: Any) -> str:
    """The same in words; also whether rows fade by their times, and the window."""
    if window is not None:
        return f"a window of {durations.text(window) if is_duration(window) else window}"
    by_time = " by their times" if is_duration(halflife) else ""
    return KINDS[mode_of(momentum, halflife)] + by_time


class State(Fitted):
    """The fitted state of a transformer. It starts with NaN statistics, gamma 1 and beta 0, for the features and the
    device of x.
    """

    followed: tuple[Any, ...] | None = None  # the settings that it was last told to follow: not in a copy

    def __init__(
        self,
        x: Table,
        momentum: float | None,
        halflife: Any,
        eps: float,
        ddof: int,
        affine: bool,
        history: int | None = None,
        in_integers: bool = False,
        window: Any = None,
    ) -> None:
        self.layer = BatchNorm1d(
            x.shape[1],
            eps=float(eps),
            momentum=None if window is not None else momentum,
            ddof=int(ddof),
            affine=bool(affine),
            dtype="float64",
            device="cpu" if x.kind is ndarray else "cuda",
        ).eval()
        running = self.layer._running
        super().__init__(running.mean, running.var, momentum, halflife, ddof, history, in_integers, window)
        self.layer._adopt(self.statistics)
        self.manner = manner(momentum, halflife, window)

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
        """As in `maps`."""
        return maps.forward(self.statistics, self.parameters, self.layer.eps)

    def take(self, other: Fitted) -> None:
        """Become a copy of another state, on the same device."""
        at_once(self.taking(other.statistics, other.besides()))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "followed"}

    def becoming(self, other: "State") -> list[tuple[Any, ...]]:
        """Compiled calls, with their arguments, that make this state that of its copy which has moved on."""
        its, limit = other.statistics, None if other.history is None else other.history.limit
        self._follow_numbers(its.momentum, its.halflife, other.layer.eps, limit)
        return self.taking(its, other.besides())

    def follow(self, momentum: float | None, halflife: Any, eps: float, history: int | None) -> None:
        """Continue with other parameters, of those that may change during a stream."""
        self._follow_numbers(None if self.window is not None else momentum, ticks(halflife), eps, history)

    def _follow_numbers(self, momentum: float | None, halflife: float | None, eps: float, history: int | None) -> None:
        if self.layer.eps != eps:
            self.layer.eps = float(eps)
        if self.statistics.momentum != momentum:
            self.statistics.momentum = momentum
        if self.statistics.halflife != halflife:
            self.statistics.halflife = halflife
        if history != (self.history and self.history.limit):
            self.keep(history)

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
