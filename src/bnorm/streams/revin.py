"""`RevIN`: instance normalization of series, which a forecast is brought back through."""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks
from bnorm.kernels import BACKENDS, view
from bnorm.kernels.activation import IDENTITY
from bnorm.layers.backward import OPEN, changed, digest, drops, keep
from bnorm.layers.base import Layer, fixed, signature_of
from bnorm.layers.shapes import wrong_shape
from bnorm.layers.state import apply, write
from bnorm.streams.series import Level, Series, levels

AXES = {1: ("N", "C", "T"), 2: ("N", "T", "C")}  # by the axis of the channels


class RevIN(Layer):
    """Reversible instance normalization (Kim et al., 2022): each series by its own level and spread.

    z = (x - mean) / sqrt(var + eps) gamma + beta, with the mean and variance of each channel of each sample over time.
    A model forecasts from z, and `rev.inverse(out)` brings the forecast back to the level and spread of its series:
    y = (out - beta) / gamma sqrt(var + eps) + mean. That is the exact inverse, even for constant series.

    Gradients flow through both, and through the mean and variance, on which the forecast depends:

        z, pull = rev.vjp(x)
        y, pull_inverse = rev.inverse.vjp(model(z))
        dout = pull_inverse(dy)             # or rev.inverse.backward(dy), after rev.inverse(out)
        dx = pull(dz)                       # or rev.backward(dz); last, as x has a part in y

    Parameters
    ----------
    num_features : int
        The number of channels, C.
    affine : bool, default True
        Whether there are parameters gamma (also called weight) and beta (also called bias).
    axis : int, default -1
        The axis of the channels: -1 for (N, T, C), 1 for (N, C, T).
    eps : float, default 1e-5
        Added to the variance, inside the root. With 0 the result does not depend on the units of x, and a series that
        is constant is divided by 1.
    subtract_last : bool, default False
        Whether to subtract the last value of each series instead of its mean.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> rev = bnorm.RevIN(1)
    >>> x = np.array([[[10.0], [20.0], [30.0]]])  # one series of three steps
    >>> z = rev(x)
    >>> rev.inverse(z[:, -1:])  # a forecast: the last value once more
    array([[[30.]]])
    """

    __slots__ = ("_axis", "_level", "_num_features", "_pull", "_subtract_last")

    _level: Level | None  # of the last forward: the inverse brings back to it
    _pull: "PullBack | None"  # of the last inverse

    num_features = fixed("num_features", "The number of channels.")
    axis = fixed("axis", "The axis of the channels.")
    subtract_last = fixed("subtract_last", "Whether the last value is subtracted instead of the mean.")

    def __init__(
        self,
        num_features: int,
        *,
        affine: bool = True,
        axis: int = -1,
        eps: float = 1e-5,
        subtract_last: bool = False,
    ) -> None:
        channels = checks.positive("RevIN", "num_features", num_features)
        who = signature_of("RevIN", channels)
        super().__init__(who, (channels,), eps, affine, True, None, 0.01, "float64", "cpu")
        self._num_features = channels
        self._axis = checks.choice(who, "axis", axis, (-1, 1, 2, -2))
        self._subtract_last = checks.flag(who, "subtract_last", subtract_last)

    def __call__(self, x: Any, weight: "ArrayLike | None" = None) -> ndarray:
        """Normalize each series.

        Parameters
        ----------
        x : array_like
            Of shape (N, T, C), or (N, C, T) with axis=1.
        weight : array_like, optional
            How much each time step counts, finite and not negative, or a bool mask: of shape (N, T), or (N, T, C) as x.
            A value of weight 0, even NaN, does not count, and z is computed for it all the same. A series without any
            weight stays as it is, but for gamma and beta.

        Returns
        -------
        z : ndarray
            In the shape and dtype of x; float64 for bools and integers.
        """
        x = self._series(x, "x")
        block, layout = view.groups(x, self._num_features, self._axis)
        rows = block.reshape(len(block), self._num_features, layout.block[3])
        w = None if weight is None else self._weights(weight, x)
        gamma, beta = self._constants or self._vectors()
        level = levels(rows, w, gamma, beta, self._eps, self._subtract_last)
        z = BACKENDS[type(x)].normalize(block.reshape(1, rows.shape[0] * rows.shape[1], rows.shape[2]), level.stats())
        saved = Series()
        saved.kernels, saved.x, saved.layout, saved.act = BACKENDS[type(x)], block, layout, IDENTITY
        saved.level, saved.weight = level, w
        saved.order = None if layout.order is None and x.flags.c_contiguous else view.axes_in_memory(x)
        self._level = level
        if OPEN:
            keep(self, saved)
        else:
            self._saved = saved
        result: ndarray = view.ordered(view.restore(z.reshape(layout.block), layout), saved.order)
        return result

    @property
    def inverse(self) -> "Inverse":
        """`y = rev.inverse(out)` brings a forecast back to the series of the last forward; see `Inverse`."""
        return Inverse(self)

    def _series(self, x: Any, name: str) -> ndarray:
        """x as an array of floats of the right shape."""
        a = checks.floating(checks.array(self._who, x, self._kind, "the layer"))
        if a.ndim != 3 or a.shape[self._axis] != self._num_features:
            names = {3: AXES[self._axis % 3]}
            if name == "x":
                raise wrong_shape(self._who, a.shape, self._num_features, names)
            raise ValueError(
                f"{self._who}: inverse: out: expected shape ({', '.join(names[3])}) with {self._num_features} "
                f"channels, got {a.shape}"
            )
        return a

    def _weights(self, weight: Any, x: ndarray) -> ndarray:
        """Weights as float64 (N, C or 1, T), a copy."""
        axis = self._axis % 3
        steps = (len(x), x.shape[3 - axis])
        w = checks.real(self._who, "weight", weight, self._kind)
        if w.shape not in (steps, x.shape):
            raise ValueError(f"{self._who}: weight: expected shape {steps} or {x.shape}, got {w.shape}")
        if not bool((np.isfinite(w) & (w >= 0)).all()):
            raise ValueError(f"{self._who}: weight: expected finite values >= 0, got others")
        w = w.astype(np.float64)
        w = w[:, None, :] if w.ndim == 2 else w if axis == 1 else w.transpose(0, 2, 1)
        with np.errstate(over="ignore"):
            if not bool(np.isfinite(w.sum(axis=2)).all()):
                raise ValueError(f"{self._who}: weight: expected sums over time that float64 can hold, got others")
        return w

    def _settle(self) -> None:
        super()._settle()
        self._level = self._pull = None

    def __getstate__(self) -> tuple[Any, dict[str, Any]]:
        own, slots = super().__getstate__()
        return own, {name: value for name, value in slots.items() if name not in ("_level", "_pull")}


class Inverse:
    """The inverse of a RevIN, with a backward of its own: `rev.inverse`.

    It uses the level and spread of the series of the last `rev(x)`, and their gamma and beta.
    """

    __slots__ = ("_layer",)

    def __init__(self, layer: RevIN) -> None:
        self._layer = layer

    def __call__(self, out: Any) -> ndarray:
        """Bring a forecast back: y = (out - beta) / gamma std + mean.

        Parameters
        ----------
        out : array_like
            The forecast, with the samples and channels of x, over any number of time steps. It is kept for the
            backward, not copied: do not change it in between (`bnorm.set_debug` checks it).

        Returns
        -------
        y : ndarray
            In the shape and dtype of out.

        Raises
        ------
        RuntimeError
            If there was no forward.
        ValueError
            If a gamma is 0, which cannot be inverted.
        """
        y, pull = self.vjp(out)
        self._layer._pull = None if drops(self._layer) else pull
        return y

    def vjp(self, out: Any) -> tuple[ndarray, "PullBack"]:
        """The result y, and the backward of this call: dout = pull(dy), once."""
        layer, level = self._layer, self._layer._level
        if level is None:
            raise RuntimeError(f"{layer._who}: inverse: expected a forward first, whose series it is, got none")
        a = layer._series(out, "out")
        if len(a) != level.samples:
            raise ValueError(
                f"{layer._who}: inverse: out: expected {level.samples} samples, as in the last forward, got {len(a)}"
            )
        if type(a) is ndarray and not level.gain.all():
            raise ValueError(f"{layer._who}: inverse: gamma: expected no zeros, which have no inverse, got some")
        return level.back(a, layer._axis % 3), PullBack(layer, level, a)

    def backward(self, dy: "ArrayLike") -> ndarray:
        """The gradient of out, for the last call. It adds to the gradients of gamma and beta, and is kept for x."""
        pull = self._layer._pull
        if pull is None:
            raise RuntimeError(f"{self._layer._who}: inverse: backward: expected a call before each, got none")
        dout = pull(dy)
        self._layer._pull = None
        return dout


class PullBack:
    """The backward of one inverse: `dout = pull(dy)`, once. The backward of x adds what y contributes to dx."""

    __slots__ = ("_digest", "_layer", "_level", "_out")

    def __init__(self, layer: RevIN, level: Level, out: ndarray) -> None:
        self._layer, self._level = layer, level
        self._out: ndarray | None = out
        self._digest = digest(out)

    def __call__(self, dy: "ArrayLike") -> ndarray:
        """The gradient of out for dy, the gradient of y."""
        layer, out = self._layer, self._out
        if out is None:
            raise RuntimeError(f"{layer._who}: inverse: pull: expected one call for each vjp, got a second one")
        if self._level.pulled:
            raise RuntimeError(
                f"{layer._who}: inverse: pull: expected it before the backward of its forward, which needs it, got it "
                "after that"
            )
        if changed(out, self._digest):
            raise RuntimeError(
                f"{layer._who}: inverse: pull: expected out as it was in the call, got it changed in place since; call "
                "the inverse with a copy, rev.inverse(out.copy()), or change out after the backward"
            )
        dy = checks.gradient(layer._who, dy, out.shape, out.dtype, type(out))
        dout: ndarray
        dout, dgamma, dbeta, changes = self._level.pull_back(out, dy, layer._axis % 3)
        changes.append(partial(setattr, self, "_out", None))
        for p, grad in ((layer._gamma, dgamma), (layer._beta, dbeta)):
            if p is not None and p.requires_grad:
                changes.append(write(p.grad, p.grad + grad))
        apply(changes)
        return dout
