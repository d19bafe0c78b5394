"""Instance normalization: each channel of each sample separately, with running statistics if asked."""

from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, DTypeLike

from bnorm import checks
from bnorm.checks import FLOATS
from bnorm.kernels import BACKENDS, VARIANCE, view
from bnorm.kernels.activation import Name
from bnorm.kernels.cpu.entries import again
from bnorm.layers.backward import OPEN, drops, keep
from bnorm.layers.documents import OF_CALLS, normalizes, public
from bnorm.layers.shapes import wrong_shape
from bnorm.layers.tracking import Tracking
from bnorm.passes import known_forward, row_forward

TRACKING = "Whether there are running statistics for inference. Without them inference works as training does."
MOMENTUM = (
    "The weight of the new batch in running_mean and running_var. With 0 they never change.\n"
    "With None every value seen weighs the same. (In PyTorch's instance norm None means 0.)"
)
WEIGHT = (
    f"{OF_CALLS['weight'][1]} Such a sample does not count in the running\n"
    "statistics; with a momentum, neither does a sample whose weights add up to ddof or less. In inference by running\n"
    "statistics weight has no effect."
)


class InstanceNorm(Tracking):
    """The base class of instance norm for each number of dimensions."""

    __slots__ = ()

    _SINGLE = ("cuda",)
    _DOCUMENT = """
    y = (x - mean) / sqrt(var + eps) gamma + beta; there are gamma and beta only with affine.
    A training batch updates running statistics, if there are any, by the means and variances of its samples, averaged
    over the samples. With momentum None they are the statistics of all values seen.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        bias: bool = True,
        ddof: int = 0,
        axis: int = 1,
        activation: Name = None,
        negative_slope: float = 0.01,
        nonfinite: str = "skip",
        dtype: "DTypeLike | None" = "float64",
        device: str | None = "cpu",
    ) -> None:
        super().__init__(
            *(num_features, eps, momentum, affine, track_running_stats, bias, ddof, axis),
            *(activation, negative_slope, nonfinite, dtype, device),
        )

    @normalizes(weight=WEIGHT)
    def __call__(self, x: Any, weight: "ArrayLike | None" = None, out: ndarray | None = None) -> ndarray:
        """Normalize each channel of each sample of x. In training this updates running statistics, if there are any."""
        given = () if out is None else ({"x": x, "weight": weight}, self._own or self._owned())
        who, axis, eps, act = self._who, self._axis, self._eps, self._act
        known = self._track_running_stats and not self._training
        layout: Any = self._layout
        block = None if known else again(x, layout)
        if block is None:
            if type(x) is not self._kind or x.dtype not in FLOATS:
                x = self._taken(x)
            if x.ndim not in self._names or x.shape[axis] != self._num_features:
                raise wrong_shape(who, x.shape, self._num_features, self._names)
        gamma, beta, mean, var = self._constants or self._vectors()
        moving, parts, keeps = None, None, not OPEN or not drops(self)
        if known:
            seen = view.channels(x, axis, False)
            stats = mean, var
            y, saved = known_forward(who, x, seen, gamma, beta, stats, eps, act, weight, out, given, keeps)
        else:
            if block is None:
                block, layout = view.groups(x, self._num_features, axis)
                checks.several_values(who, block, x.shape, each=True)
                self._layout = layout if type(x) is ndarray else None
            rows = block, layout
            if self._training and self._moving is not None and x.size:
                kernels, typical = BACKENDS[type(x)], x.size / self._num_features
                parts = self._parts(x, rows, weight)  # before y, as `out` may be x
                moving = None if parts is None else self._moving
                warns = type(parts) is ndarray and not self._warned
                if moving is not None and (warns or moving.nonfinite == "raise"):
                    try:  # on a copy, before anything is written
                        self._warn_once(kernels.move(moving.rule.copy(), parts, None, None, None, 0, 1, typical))
                    except FloatingPointError as error:
                        raise self._not_finite(error) from None
            y, saved = row_forward(who, x, rows, gamma, beta, eps, VARIANCE, act, out, given, None, weight, keeps)
        if OPEN and keeps:
            keep(self, saved)
        else:
            self._saved = saved
        if moving is not None:
            # As in batch norm, this call and the lines above it are all that changes the layer.
            left = kernels.move(moving.rule, parts, None, None, None, 0, 1, typical)
            if left:
                self._warn_once(left)
        return y

    @np.errstate(all="ignore")  # infinity and NaN are data
    def _parts(self, x: ndarray, rows: tuple[ndarray, view.Layout], weight: "ArrayLike | None") -> ndarray | None:
        """Return the parts (count, mean, m2, low) of each channel for the running statistics; None if no value counts.

        With a momentum they are averages over the samples whose weights count, as in PyTorch; with momentum None they
        are the parts of all values.
        """
        kernels, running = BACKENDS[type(x)], self._running
        pooled = running.momentum is None
        block, layout = view.channels(x, self._axis) if pooled else rows
        w: Any = None
        if weight is not None:
            w, positive = checks.weights(self._who, weight, layout, type(x), keep=False)
            if not positive:
                return None
        return kernels.moments(block, w) if pooled else _averaged(kernels, block, w, running.ddof)


def _averaged(kernels: Any, samples: ndarray, w: ndarray | None, ddof: int) -> ndarray:
    """Return the averages over the samples, of shape (n, channels, 1, length), of the parts of each channel."""
    n, channels, _, length = samples.shape
    parts: ndarray
    if w is None:
        parts = kernels.moments(samples.reshape(1, n * channels, length)).reshape(4, n, channels).mean(1)
        parts[1] += parts[3]
    else:
        each = samples.reshape(n, 1, channels, length)
        parts = _of_sample(kernels, each[0], w[:1], ddof)
        for i in range(1, n):
            parts += _of_sample(kernels, each[i], w[i : i + 1], ddof)
        parts /= parts[3] + (parts[3] == 0)
        parts[2] *= parts[0] - ddof
    parts[3] = 0
    return parts


def _of_sample(kernels: Any, x: ndarray, weight: ndarray, ddof: int) -> ndarray:
    """Return count, mean, variance and 1 for each channel of a sample, or zeros if it has no variance."""
    parts: ndarray = kernels.moments(x, weight)
    divisor = parts[0] - ddof
    parts[1] += parts[3]
    parts[2] /= divisor
    parts[3] = 1
    return np.where(divisor > 0, parts, 0)


@public(track_running_stats=TRACKING, momentum=MOMENTUM)
class InstanceNorm1d(InstanceNorm):
    """Instance normalization of (N, C, L): each channel of each sample over its positions.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> norm = bnorm.InstanceNorm1d(2, eps=0.0)
    >>> norm(np.array([[[1.0, 3.0], [10.0, 30.0]]]))
    array([[[-1.,  1.],
            [-1.,  1.]]])
    """

    __slots__ = ()
    _POSITIONS = ("L",)


@public(track_running_stats=TRACKING, momentum=MOMENTUM)
class InstanceNorm2d(InstanceNorm):
    """Instance normalization of (N, C, H, W): each channel of each sample over its positions.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> norm = bnorm.InstanceNorm2d(3, affine=True)
    >>> y = norm(np.random.default_rng(0).normal(size=(8, 3, 5, 5)))
    """

    __slots__ = ()
    _POSITIONS = ("HW",)


@public(track_running_stats=TRACKING, momentum=MOMENTUM)
class InstanceNorm3d(InstanceNorm):
    """Instance normalization of (N, C, D, H, W): each channel of each sample over its positions.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> norm = bnorm.InstanceNorm3d(3, axis=-1)
    >>> y = norm(np.random.default_rng(0).normal(size=(2, 4, 5, 5, 3)))
    """

    __slots__ = ()
    _POSITIONS = ("DHW",)
