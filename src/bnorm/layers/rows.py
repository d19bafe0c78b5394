"""Normalization of each sample separately: layer, RMS and group norm. Training and inference are the same."""

from typing import Any, ClassVar, overload

from numpy import ndarray
from numpy.typing import ArrayLike, DTypeLike

from bnorm import checks
from bnorm.checks import FLOATS
from bnorm.documents import described
from bnorm.kernels import MEAN_SQUARE, VARIANCE, view
from bnorm.kernels.activation import Name
from bnorm.kernels.cpu.entries import again
from bnorm.layers.backward import OPEN, drops, keep
from bnorm.layers.base import Layer, adjustable, fixed, signature_of
from bnorm.layers.documents import OF_CALLS, Y, normalizes, public
from bnorm.passes import row_forward

OF_FLOAT32, OF_FLOAT64 = 2.0**-23, 2.0**-52  # machine epsilon: the spacing of numbers above 1


class OverLastAxes(Layer):
    """The base class of layer and RMS norm."""

    __slots__ = ("_normalized_shape",)

    _RULE: ClassVar[int]
    _SINGLE = ("cpu", "cuda")

    normalized_shape = fixed("normalized_shape", "The sizes of the normalized axes, the last ones of x.")
    elementwise_affine = fixed("affine", "PyTorch's name for affine.")

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float | None,
        affine: bool,
        bias: bool,
        elementwise_affine: bool | None,
        activation: Name,
        negative_slope: float,
        dtype: "DTypeLike | None",
        device: str | None,
    ) -> None:
        name = type(self).__name__
        sizes = tuple(normalized_shape) if isinstance(normalized_shape, tuple | list) else (normalized_shape,)
        shape = tuple(checks.positive(name, "normalized_shape", n) for n in sizes)
        if not shape:
            raise ValueError(f"{name}: normalized_shape: expected one size or more, got {normalized_shape!r}")
        who = signature_of(name, shape if len(shape) > 1 else shape[0])  # a file does not say if it was 3 or (3,)
        if elementwise_affine is not None:
            affine = affine and checks.flag(who, "elementwise_affine", elementwise_affine)
        super().__init__(who, shape, eps, affine, bias, activation, negative_slope, dtype, device)
        self._normalized_shape = shape

    @overload
    def __call__(self, x: Any, out: ndarray | None = None) -> ndarray: ...
    @overload
    def __call__(self, x: Any, out: ndarray | None = None, *, residual: Any) -> Any: ...
    @described(
        OF_CALLS,
        f"{Y} With a residual the pair (y, h);\n    then the backward takes (dy, dh).",
        x="The input, whose last axes have the shape `normalized_shape`.",
    )
    def __call__(self, x: Any, out: ndarray | None = None, *, residual: Any = None) -> Any:
        """Normalize each sample of x; with a residual, of their sum."""
        given = () if out is None else ({"x": x, "residual": residual}, self._own or self._owned())
        layout: Any = self._layout
        block = again(x, layout)  # in a loop every x is like the last one, and needs fewer checks
        if block is None:
            if type(x) is not self._kind or x.dtype not in FLOATS:
                x = self._taken(x)
            shape = self._normalized_shape
            if x.shape[-len(shape) :] != shape:
                expected = ", ".join(["...", *map(str, shape)])
                raise ValueError(f"{self._who}: x: expected shape ({expected}), got {x.shape}")
            block, layout = view.rows(x, len(shape))
            self._layout = layout if type(x) is ndarray else None
        eps = self._eps
        if eps is None:  # half precision is computed in float32
            eps = OF_FLOAT64 if x.dtype.itemsize == 8 else OF_FLOAT32
        who, seen, keeps = self._who, (block, layout), not OPEN or not drops(self)
        gamma, beta = self._constants or self._vectors()
        y, saved = row_forward(who, x, seen, gamma, beta, eps, self._RULE, self._act, out, given, residual, None, keeps)
        if OPEN and keeps:
            keep(self, saved)
        else:
            self._saved = saved
        return y


@public()
class LayerNorm(OverLastAxes):
    """Normalize each sample over its last axes, of shape `normalized_shape`.

    y = (x - mean) / sqrt(var + eps) gamma + beta, where gamma and beta have the shape `normalized_shape` too.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> ln = bnorm.LayerNorm(4, eps=0.0)
    >>> ln(np.array([[1.0, 3.0, 1.0, 3.0], [10.0, 10.0, 30.0, 30.0]]))
    array([[-1.,  1., -1.,  1.],
           [-1., -1.,  1.,  1.]])
    """

    __slots__ = ()
    _RULE = VARIANCE

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        *,
        elementwise_affine: bool | None = None,
        activation: Name = None,
        negative_slope: float = 0.01,
        dtype: "DTypeLike | None" = "float64",
        device: str | None = "cpu",
    ) -> None:
        super().__init__(
            normalized_shape, eps, affine, bias, elementwise_affine, activation, negative_slope, dtype, device
        )


def _epsilon_or_none(who: str, eps: Any) -> float | None:
    return None if eps is None else checks.epsilon(who, eps)


@public(
    eps="Added to the mean square, inside the root. None, PyTorch's default, is the machine epsilon of the type in\n"
    "which x is computed: 2^-52 for float64, otherwise 2^-23.",
    affine="Whether there is a gamma (also called weight). There is never a beta.",
)
class RMSNorm(OverLastAxes):
    """Divide each sample by the root of the mean square of its last axes, of shape `normalized_shape`.

    y = x / sqrt(mean(x^2) + eps) gamma; there is no beta.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> norm = bnorm.RMSNorm(2, eps=0.0)
    >>> norm(np.array([[1.0, 7.0]]))
    array([[0.2, 1.4]])
    """

    __slots__ = ()
    _RULE = MEAN_SQUARE

    eps = adjustable("eps", _epsilon_or_none, "Added to the mean square, inside the root; None: machine epsilon.")

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float | None = 1e-5,
        affine: bool = True,
        *,
        elementwise_affine: bool | None = None,
        activation: Name = None,
        negative_slope: float = 0.01,
        dtype: "DTypeLike | None" = "float64",
        device: str | None = "cpu",
    ) -> None:
        super().__init__(
            normalized_shape, eps, affine, False, elementwise_affine, activation, negative_slope, dtype, device
        )


@public()
class GroupNorm(Layer):
    """Normalize each of `num_groups` groups of channels of each sample.

    A group is a run of num_channels / num_groups channels. y = (x - mean) / sqrt(var + eps) gamma + beta, with gamma
    and beta of shape (C,). Samples are on the first axis that is not `axis`.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> gn = bnorm.GroupNorm(2, 4, eps=0.0)
    >>> gn(np.array([[1.0, 3.0, 10.0, 30.0]]))
    array([[-1.,  1., -1.,  1.]])
    """

    __slots__ = ("_axis", "_num_channels", "_num_groups")

    _SINGLE = ("cuda",)

    num_groups = fixed("num_groups", "The number of groups, a divisor of num_channels.")
    num_channels = fixed("num_channels", "The number of channels.")
    axis = fixed("axis", "The axis of the channels. Samples are on the first other axis.")

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
        axis: int = 1,
        activation: Name = None,
        negative_slope: float = 0.01,
        dtype: "DTypeLike | None" = "float64",
        device: str | None = "cpu",
    ) -> None:
        name = type(self).__name__
        self._num_channels = checks.positive(name, "num_channels", num_channels)
        self._num_groups = checks.groups(name, num_groups, self._num_channels)
        who = signature_of(name, self._num_groups, self._num_channels)
        super().__init__(who, (self._num_channels,), eps, affine, bias, activation, negative_slope, dtype, device)
        self._axis = checks.integer(who, "axis", axis)

    @normalizes(x="The input, with num_channels channels on `axis`.")
    def __call__(self, x: Any, weight: "ArrayLike | None" = None, out: ndarray | None = None) -> ndarray:
        """Normalize each group of channels of each sample of x."""
        given = () if out is None else ({"x": x, "weight": weight}, self._own or self._owned())
        who = self._who
        layout: Any = self._layout
        block = again(x, layout)
        if block is None:
            if type(x) is not self._kind or x.dtype not in FLOATS:
                x = self._taken(x)
            shape, rank, axis = x.shape, x.ndim, self._axis
            if rank < 2 or not -rank <= axis < rank or shape[axis] != self._num_channels:
                raise ValueError(
                    f"{who}: x: expected samples and {self._num_channels} channels on axis {axis}, got shape {shape}"
                )
            block, layout = view.groups(x, self._num_groups, axis)
            checks.several_values(who, block, shape, each=False)
            self._layout = layout if type(x) is ndarray else None
        seen, act, keeps = (block, layout), self._act, not OPEN or not drops(self)
        gamma, beta = self._constants or self._vectors()
        y: ndarray
        y, saved = row_forward(who, x, seen, gamma, beta, self._eps, VARIANCE, act, out, given, None, weight, keeps)
        if OPEN and keeps:
            keep(self, saved)
        else:
            self._saved = saved
        return y
