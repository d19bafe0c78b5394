"""What a transformer has learned: a layer, the stream that moves its statistics, and counters.

The layer's arrays are the state. The stream moves its running mean and variance in place, and with momentum None its
weights are the values that the layer has counted, so a layer that is put into training mode pools right. When the layer
is moved to another device, the rest follows.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS, moved, view
from bnorm.layers import BatchNorm1d
from bnorm.running import Stream
from bnorm.transformer.tables import Step, refuse_infinity

AVERAGE, POOL, FADE = "an average of batches", "rows that weigh the same", "rows that fade"
EPSILON = float(np.finfo(np.float64).eps)


def kind(momentum: float | None, halflife: float | None) -> str:
    """How a batch is weighed against what came before."""
    if halflife is not None:
        return FADE
    return POOL if momentum is None else AVERAGE


class State:
    """From a table x on, of which it takes the features and the device: NaN statistics, gamma 1 and beta 0."""

    def __init__(
        self, x: ndarray, momentum: float | None, halflife: float | None, eps: float, ddof: int, affine: bool
    ) -> None:
        self.kind = kind(momentum, halflife)
        self.layer = BatchNorm1d(
            x.shape[1],
            eps=float(eps),
            momentum=momentum,
            ddof=int(ddof),
            affine=bool(affine),
            dtype="float64",
            device="cpu" if type(x) is ndarray else "cuda",
        ).eval()
        running = self.layer._running
        running.mean[...] = running.var[...] = np.nan
        self.stream = Stream(running.mean, running.var)
        self.values = np.zeros(x.shape[1], like=running.mean)  # how much has been seen of each feature
        self.weighted = False  # by sample weights, so that it may be no whole number
        self.told = False  # that batches of one row have no variance
        self._link()

    @property
    def mean(self) -> ndarray:
        return self.layer._running.mean

    @property
    def var(self) -> ndarray:
        return self.layer._running.var

    @property
    def array_type(self) -> type:
        """NumPy's or CuPy's."""
        kind: type = self.layer._kind
        return kind

    @property
    def parameters(self) -> tuple[ndarray, ndarray] | None:
        """gamma and beta; None without affine."""
        gamma, beta = self.layer.gamma, self.layer.beta
        return None if gamma is None or beta is None else (gamma.data, beta.data)

    @np.errstate(all="ignore")
    def std(self) -> ndarray:
        """sqrt(var + eps); with eps 0, 1 where rounding alone may be all the variance (Chan, Golub, LeVeque 1983)."""
        std: ndarray = np.sqrt(self.var + self.layer.eps)
        if self.layer.eps == 0:
            self.follow()
            n, mean, var = self.values, self.mean, self.var
            np.copyto(std, 1, where=var <= n * EPSILON * var + (n * mean * EPSILON) ** 2)
        return std

    @np.errstate(all="ignore")
    def forward(self) -> ndarray:
        """mean, var, rstd, scale, shift by rows, as the kernels take them: y = (x - mean) scale + shift."""
        std, parameters = self.std(), self.parameters
        rstd = 1 / std
        gamma, beta = parameters or (None, np.zeros(std.shape, like=std))
        scale = rstd if gamma is None else gamma * rstd  # rounded as the layer rounds it
        return np.stack([self.mean, self.var, rstd, scale, beta])

    @np.errstate(all="ignore")
    def inverse(self, dtype: np.dtype[Any]) -> ndarray:
        """The same of the inverse, x = (y - beta) std / gamma + mean; gamma 0 gives the mean.

        The mean is split: its high part, which the type of y can hold, is added, and the low part goes into what is
        subtracted from y. So a mean far from zero costs no digit.
        """
        std = self.std()
        gamma, beta = self.parameters or (np.ones_like(std), np.zeros_like(std))
        zero = gamma == 0
        scale = np.where(zero, 0, std / np.where(zero, 1, gamma))
        high = self.mean if dtype.itemsize == 8 else self.mean.astype(np.float32).astype(np.float64)
        low = (self.mean - high) / np.where(scale == 0, 1, scale)
        center = np.where(np.isfinite(low), beta - low, beta)
        return np.stack([center, self.var, std, scale, high])

    @np.errstate(all="ignore")
    def move(self, steps: list[Step], alike: bool, momentum: float | None, halflife: float | None) -> None:
        """By a batch, or by the steps that it was cut into; alike: as the first one, all rows weighing the same."""
        self.follow()
        values = self.values + sum(step.values for step in steps)
        stream, ddof = self.stream, self.layer.ddof
        if self.kind == AVERAGE and momentum is not None and not alike:
            stream.average(steps[0].moments, momentum, ddof)
        elif self.kind == FADE and halflife is not None and not alike:
            moving = stream if len(steps) == 1 else _copy(stream)  # several moves are seen all at once, or none
            for step in steps:
                moving.pool(step.moments, ddof, 2.0 ** (-step.rows / halflife), step.square)
            _assign(stream, moving)
        else:
            stream.pool(steps[0].moments, ddof)
            if self.kind == AVERAGE:
                stream.weight[...] = stream.square[...] = stream.weight > 0
        self.values = values
        self.layer._running.batches += 1

    def merge(self, other: "State") -> None:
        """Values of another stream, on the same device, beside those of this one."""
        self.follow()
        other.follow()
        values, weighted = self.values + other.values, self.weighted or other.weighted
        batches = other.layer._running.batches
        self.stream.pool(other.stream.moments(other.layer.ddof), self.layer.ddof, 1.0, other.stream.square.copy())
        self.values, self.weighted = values, weighted
        self.layer._running.batches += batches

    def pull_back(self, x: ndarray, dy: ndarray) -> tuple[ndarray, ndarray | None, ndarray | None]:
        """dx, dgamma, dbeta, of which a value that is NaN, or of a feature never seen, has no part."""
        stats = self.forward()
        dx, dgamma, dbeta = _pull_back(x, dy, stats)
        if not (np.isfinite(dgamma) & np.isfinite(dbeta)).all():
            refuse_infinity(x)
            unseen = np.isnan(stats[0])
            missing = np.isnan(x) | unseen
            stats[:3] = np.where(unseen, 0, stats[:3])
            kept = np.where(missing, stats[0], x).astype(x.dtype)
            _, dgamma, dbeta = _pull_back(kept, np.where(missing, dy.dtype.type(0), dy), stats)
        return (dx, None, None) if self.parameters is None else (dx, dgamma, dbeta)

    def follow(self) -> None:
        """Go where the layer's arrays are, if it has been moved: all of it, or after an error none."""
        running, stream = self.layer._running, self.stream
        if stream.mean is not running.mean:
            rest = [moved(a, type(running.mean)) for a in (stream.weight, stream.square, stream.low, self.values)]
            stream.weight, stream.square, stream.low, self.values = rest
            self._link()

    def _link(self) -> None:
        """Make layer and stream share their arrays."""
        running, stream = self.layer._running, self.stream
        stream.mean, stream.var = running.mean, running.var
        if self.kind == POOL:
            stream.weight = stream.square = running.seen

    def __setstate__(self, state: dict[str, Any]) -> None:
        """After joblib the arrays are not shared, and may be mapped to a file, to be read only."""
        self.__dict__ |= state
        for owner, names in (
            (self.layer._running, ("mean", "var", "seen")),
            (self.stream, ("weight", "square", "low")),
        ):
            for name in names:
                if isinstance(array := getattr(owner, name), ndarray):
                    setattr(owner, name, np.require(array, requirements=["C", "A", "W", "E"]))
        self._link()
        self.layer._settle()


def _pull_back(x: ndarray, dy: ndarray, stats: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    block, layout = view.channels(x, 1)
    dx, dgamma, dbeta = BACKENDS[type(x)].backward(
        view.like(dy, layout), block, stats, float(len(x)), None, 1.0, True, True, None
    )
    return view.restore(dx, layout), dgamma, dbeta


def _copy(stream: Stream) -> Stream:
    copied = Stream(stream.mean.copy(), stream.var.copy())
    _assign(copied, stream)
    return copied


def _assign(to: Stream, stream: Stream) -> None:
    if to is not stream:
        for name in Stream.__slots__:
            getattr(to, name)[...] = getattr(stream, name)
