"""Normalization of each sample by itself: layer, RMS, group and instance norm. Training and inference are the same."""

from typing import Any, ClassVar

from numpy import ndarray

from bnorm import checks
from bnorm.checks import FLOATS
from bnorm.kernels import MEAN_SQUARE, VARIANCE, view
from bnorm.layers.base import Layer, fixed, signature_of
from bnorm.layers.shapes import Names, axis_and_names, wrong_shape
from bnorm.passes import row_forward

Shape = int | tuple[int, ...] | list[int]


class _OverLastAxes(Layer):
    _RULE: ClassVar[int]

    normalized_shape = fixed("normalized_shape", "The sizes of the axes that are normalized, the last ones of x.")

    def __init__(
        self,
        normalized_shape: Shape,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        activation: str | None = None,
        negative_slope: float = 0.01,
        dtype: Any = "float64",
        device: str = "cpu",
    ) -> None:
        name = type(self).__name__
        several = isinstance(normalized_shape, tuple | list)
        sizes = tuple(normalized_shape) if isinstance(normalized_shape, tuple | list) else (normalized_shape,)
        shape = tuple(checks.positive(name, "normalized_shape", n) for n in sizes)
        if not shape:
            raise ValueError(f"{name}: normalized_shape: expected one size or more, got {normalized_shape!r}")
        who = signature_of(name, shape if several else shape[0])
        super().__init__(
            who, shape, eps, affine, activation, negative_slope, dtype, device, shifts=self._RULE == VARIANCE
        )
        self._normalized_shape = shape
        self._settle()

    def __call__(self, x: Any, out: ndarray | None = None) -> ndarray:
        """y, in the shape, type and memory order of x. out: x itself, or memory of its own."""
        given = None if out is None else {"x": x, **self._own}
        if type(x) is not self._kind or x.dtype not in FLOATS:
            x = self._taken(x)
        shape = self._normalized_shape
        if x.shape[-len(shape) :] != shape:
            expected = ", ".join(["...", *map(str, shape)])
            raise ValueError(f"{self._who}: x: expected shape ({expected}), got {x.shape}")
        rows = view.rows(x, len(shape))
        gamma, beta = self._constants or self._wide()
        y, self._saved = row_forward(self._who, x, rows, gamma, beta, self._eps, self._RULE, self._slope, out, given)
        return y

    forward = __call__


class LayerNorm(_OverLastAxes):
    """Normalize each sample over its last axes, of shape `normalized_shape`, which gamma and beta have too.

    y = (x - mean) / sqrt(var + eps) gamma + beta. affine: whether there are gamma and beta.
    activation: None, "relu" or "leaky_relu" (of slope `negative_slope` below 0), in the same pass.
    dtype: of the parameters, float64 or float32.
    """

    _RULE = VARIANCE


class RMSNorm(_OverLastAxes):
    """Divide each sample by the root of the mean square of its last axes, of shape `normalized_shape`.

    y = x / sqrt(mean(x^2) + eps) gamma; there is no beta. affine: whether there is gamma.
    activation: None, "relu" or "leaky_relu" (of slope `negative_slope` below 0), in the same pass.
    dtype: of the parameters, float64 or float32.
    """

    _RULE = MEAN_SQUARE


class _OverGroups(Layer):
    axis = fixed("axis", "The axis of the channels; samples are on the first of the others.")
    _axis: int
    _channels: int
    _groups: int
    _names: Names | None  # of the axes of every rank that is accepted; None: any with samples and channels

    def __call__(self, x: Any, out: ndarray | None = None) -> ndarray:
        """y, in the shape, type and memory order of x. out: x itself, or memory of its own."""
        given = None if out is None else {"x": x, **self._own}
        who, axis = self._who, self._axis
        if type(x) is not self._kind or x.dtype not in FLOATS:
            x = self._taken(x)
        if self._names is None:
            self._check_any(x.shape)
        elif x.ndim not in self._names or x.shape[axis] != self._channels:
            raise wrong_shape(who, x.shape, self._channels, self._names)
        rows = view.groups(x, self._groups, axis)
        checks.several_values(who, rows[0], x.shape, self._names is not None)
        gamma, beta = self._constants or self._wide()
        y, self._saved = row_forward(who, x, rows, gamma, beta, self._eps, VARIANCE, self._slope, out, given)
        return y

    forward = __call__

    def _check_any(self, shape: tuple[int, ...]) -> None:
        rank, axis = len(shape), self._axis
        if rank < 2 or not -rank <= axis < rank or shape[axis] != self._channels:
            raise ValueError(
                f"{self._who}: x: expected samples and {self._channels} channels on axis {axis}, got shape {shape}"
            )


class GroupNorm(_OverGroups):
    """Normalize each of `num_groups` groups of channels of each sample.

    A group is a run of num_channels / num_groups channels. The rest is as in LayerNorm, gamma and beta of shape (C,);
    axis: of the channels; samples are on the first of the other axes.
    """

    _names = None

    num_groups = fixed("groups", "The number of groups, a divisor of num_channels.")
    num_channels = fixed("channels", "The number of channels.")

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        axis: int = 1,
        activation: str | None = None,
        negative_slope: float = 0.01,
        dtype: Any = "float64",
        device: str = "cpu",
    ) -> None:
        name = type(self).__name__
        self._channels = checks.positive(name, "num_channels", num_channels)
        self._groups = checks.groups(name, num_groups, self._channels)
        who = signature_of(name, self._groups, self._channels)
        super().__init__(who, (self._channels,), eps, affine, activation, negative_slope, dtype, device)
        self._axis = checks.integer(who, "axis", axis)
        self._settle()


class InstanceNorm(_OverGroups):
    """What the layers of each rank share."""

    _POSITIONS: ClassVar[tuple[str, ...]]

    num_features = fixed("channels", "The number of channels.")

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        affine: bool = False,
        axis: int = 1,
        activation: str | None = None,
        negative_slope: float = 0.01,
        dtype: Any = "float64",
        device: str = "cpu",
    ) -> None:
        name = type(self).__name__
        self._channels = self._groups = checks.positive(name, "num_features", num_features)
        who = signature_of(name, self._channels)
        super().__init__(who, (self._channels,), eps, affine, activation, negative_slope, dtype, device)
        self._axis, self._names = axis_and_names(who, axis, self._POSITIONS)
        self._settle()


class InstanceNorm1d(InstanceNorm):
    """Normalize each channel of each sample over its positions: (N, C, L). No parameters unless affine."""

    _POSITIONS = ("L",)


class InstanceNorm2d(InstanceNorm):
    """Normalize each channel of each sample over its positions: (N, C, H, W). No parameters unless affine."""

    _POSITIONS = ("HW",)


class InstanceNorm3d(InstanceNorm):
    """Normalize each channel of each sample over its positions: (N, C, D, H, W). No parameters unless affine."""

    _POSITIONS = ("DHW",)
