"""Helpers of these modules: importing the other library, converting momentum, copying a layer's arrays to the CPU,
adding up discounted rewards.
"""

import warnings
from collections.abc import Mapping
from decimal import Decimal
from importlib import import_module
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.checks import missing, type_name, user_level
from bnorm.kernels import moved
from bnorm.kernels.rule import constant
from bnorm.layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    Layer,
    LayerNorm,
    RMSNorm,
)
from bnorm.layers.batch import BatchNorm
from bnorm.streams import RunningNorm

BATCH_NORMS: dict[int, type[BatchNorm]] = {2: BatchNorm1d, 3: BatchNorm1d, 4: BatchNorm2d, 5: BatchNorm3d}
OVER_CHANNELS = (BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)
LAYERS: dict[type, str] = {kind: kind.__name__ for kind in (*OVER_CHANNELS, LayerNorm, RMSNorm, GroupNorm)}


def load(who: str, module: str, extra: str) -> Any:
    """Import a module of another library. An error names the extra of bnorm that installs it, or what it lacks."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if package == "keras" and error.name == "tensorflow":
            raise ImportError(
                f"{who}: expected keras with its backend, got {error}: Keras takes TensorFlow unless the environment "
                "variable KERAS_BACKEND is jax or torch, before it is imported"
            ) from error
        raise missing(who, package, extra, error) from error


def differentiable(who: str, norm: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword of a norm whose gradient would be lost."""
    if options.get("residual") is not None:
        raise TypeError(
            f"{who}.{norm}: residual: expected None, as there would be no gradient of it, got an array: "
            f"call {norm}(x + residual)"
        )


def complement(momentum: float) -> float:
    """Return 1 - momentum in decimal arithmetic: 0.99 becomes 0.01, and 0.01 becomes 0.99."""
    return float(1 - Decimal(repr(float(momentum))))


def arrays(layer: Layer) -> dict[str, ndarray]:
    """The state dict of a layer, on the CPU, with the running variance of `inference`."""
    state = {name: moved(a, ndarray) for name, a in layer.state_dict().items()}
    if "running_var" in state:
        state["running_var"] = inference(layer)[1].astype(state["running_var"].dtype)
    return state


def inference(layer: Any) -> tuple[ndarray, ndarray, ndarray]:
    """Return mean, variance and rstd of inference, float64 on the CPU.

    With eps=0 a constant channel is not scaled here, and would be divided by 0 elsewhere: its variance is 1.
    """
    mean, var, rstd, *_ = moved(layer._inference(), ndarray)
    if layer.eps == 0:
        var = np.where(constant(mean, var), 1.0, var)
    return mean, var, rstd


def discounted(returns: ndarray, gamma: float, rewards: Any, statistics: RunningNorm | None) -> ndarray:
    """Return the discounted returns after these rewards, and add them to statistics, if there are any.

    A reward that is not finite does not count, and its return goes on as if it had been 0.
    """
    finite = np.isfinite(rewards)
    after = returns * gamma + np.where(finite, rewards, 0.0)
    if statistics is not None:
        statistics.update(np.where(finite, after, np.nan))
    return after


def dtype_of(state: Mapping[str, ndarray]) -> str:
    """The dtype of a layer with these arrays."""
    return "float64" if any(a.dtype == np.float64 for a in state.values()) else "float32"


def epsilon(layer: Any) -> float:
    """Return the eps of a layer as a number: that of the layer's dtype if it is None, which means that of x's dtype."""
    return float(np.finfo(layer.dtype).eps) if layer.eps is None else layer.eps


def parameters(scale: bool, center: bool) -> dict[str, bool]:
    """The options of a layer with a scale, a shift, or both. Call `fix` for the layer afterwards."""
    return {"affine": scale or center, "bias": center or not scale}


def fix(layer: Layer, scale: bool, center: bool) -> None:
    """Fix the gamma of a layer at 1 if the other library's layer has only a beta."""
    if center and not scale and layer.gamma is not None:
        layer.gamma.requires_grad = False


def scales_and_centers(layer: Layer) -> tuple[bool, bool]:
    """Whether the other library's layer needs a gamma, and a beta: the inverse of `parameters` and `fix`."""
    gamma, centers = layer.gamma, layer.beta is not None
    return gamma is not None and not (centers and not gamma.requires_grad and bool((gamma.data == 1).all())), centers


def moving(who: str, layer: BatchNorm, name: str) -> float:
    """Return the weight of the old value in running statistics; ValueError if they are not a moving average."""
    if not layer.track_running_stats or layer.momentum is None:
        got = "momentum=None" if layer.track_running_stats else "track_running_stats=False"
        raise ValueError(f"{who}: layer: expected a moving average of batches, which is all that {name} has, got {got}")
    return complement(layer.momentum)


def warn_of_variance(who: str, layer: Any, ddof: int, name: str) -> None:
    """Warn if the other library's layer will update its running variance by another convention than this layer.

    In inference mode there is nothing to warn of: both layers compute the same.
    """
    if layer.training and layer.track_running_stats and layer.momentum != 0 and layer.ddof != ddof:
        convention = ("the count", "the count - 1")
        warnings.warn(
            f"{who}: the running variance divides by {convention[layer.ddof]} here (ddof={layer.ddof}), and by "
            f"{convention[ddof]} in {name}, from its next training batch on",
            stacklevel=user_level(),
        )


def known(who: str, name: str, value: object, kinds: dict[type, Any]) -> Any:
    """The entry for the type of a value. A subclass may behave differently, so it is a TypeError."""
    if type(value) not in kinds:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{who}: {name}: expected one of {names}, got {type_name(value)}")
    return kinds[type(value)]


def without_activation(who: str, layer: Layer, instead: dict[str, str]) -> None:
    """Raise ValueError for a layer with an activation, which would be lost. instead: what to apply there, by name."""
    if layer.activation is not None:
        raise ValueError(
            f"{who}: layer: expected activation=None, as a layer there has none, got {layer.activation!r}: "
            f"convert a layer without it, and apply {instead[layer.activation]} to the result"
        )


def without_inverse(who: str, name: str, layer: Any) -> None:
    """Raise TypeError for a layer with an inverse, a RevIN: only half of it would be converted."""
    if hasattr(layer, "inverse"):
        raise TypeError(f"{who}: {name}: expected a layer without an inverse, which would be lost, got {layer}")


def only_axis(who: str, layer: Any, axis: int, name: str) -> None:
    """Raise ValueError if the channels' axis differs from the other library's for an accepted number of dimensions."""
    ranks = getattr(layer, "_names", None) or {None: ()}
    for rank in ranks:
        here, there = (a if rank is None else a % rank for a in (layer.axis, axis))
        if here != there:
            raise ValueError(f"{who}: layer: expected axis={axis}, where {name} has its channels, got {layer.axis}")


def ranks(layer: Any) -> tuple[int, ...]:
    """The numbers of dimensions of x that a layer with channels on an axis accepts."""
    return tuple(getattr(layer, "_names", range(max(2, layer.axis + 1, -layer.axis), 10)))


def groups_and_channels(layer: Any) -> tuple[int, int]:
    """Return both numbers for a group norm, or an instance norm, whose groups have one channel."""
    if isinstance(layer, GroupNorm):
        return layer.num_groups, layer.num_channels
    return layer.num_features, layer.num_features


def batch_norm_for(who: str, ndim: int | None) -> type[BatchNorm]:
    """The batch norm for arrays of `ndim` dimensions; BatchNorm1d if ndim is None."""
    if ndim is not None and ndim not in BATCH_NORMS:
        raise ValueError(f"{who}: ndim: expected one of 2, 3, 4 and 5 dimensions of x, got {ndim!r}")
    return BatchNorm1d if ndim is None else BATCH_NORMS[ndim]
