"""Layers from and to Flax, linen and nnx.

    layer = from_flax(module, variables)            linen: BatchNorm, LayerNorm, RMSNorm, GroupNorm or InstanceNorm
    layer = from_flax(module)                       nnx
    module, variables = to_flax(layer)              linen
    module = to_flax(layer, api="nnx")

In Flax momentum is the weight of the old value, channels are on the last axis, and running variances are population
variances (ddof=0). A batch norm with use_running_average=True becomes a layer in inference mode. An instance norm
becomes a group norm with groups of one channel, which takes arrays of any number of dimensions.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import layers
from bnorm.interop import neighbors
from bnorm.interop.neighbors import arrays, load, without_activation
from bnorm.layers import Layer
from bnorm.layers.batch import BatchNorm

__all__ = ["from_flax", "to_flax"]

ACTIVATIONS = {name: f"flax.linen.{name}" for name in ("relu", "leaky_relu", "silu", "gelu")}

NAMES = ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")
PARAMETERS = {"scale": "weight", "bias": "bias"}
STATISTICS = {"mean": "running_mean", "var": "running_var"}


def from_flax(module: Any, variables: Mapping[str, Any] | None = None, *, ndim: int | None = None) -> Layer:
    """Convert a normalization module of Flax to a layer, with copies of its arrays.

    Parameters
    ----------
    module : flax.linen.Module or flax.nnx.Module
        BatchNorm, LayerNorm, RMSNorm, GroupNorm or InstanceNorm.
    variables : mapping, optional
        The variables of this module, {"params": ..., "batch_stats": ...}. Required for linen, whose modules have none.
    ndim : int, optional
        The number of dimensions of x, which decides between BatchNorm1d (the default), 2d and 3d. Required for a group
        norm with reduction_axes.

    Returns
    -------
    layer : Layer

    Raises
    ------
    TypeError, ValueError
        If there is no layer for the module.
    """
    who = "from_flax"
    linen, nnx = load(who, "flax.linen", "flax"), load(who, "flax.nnx", "flax")
    kinds = {getattr(api, name): name for name in NAMES for api in (linen, nnx) if hasattr(api, name)}
    name = neighbors.known(who, "module", module, kinds)
    state = _read(who, module, variables, isinstance(module, linen.Module))
    scale, center = "weight" in state, "bias" in state
    options: dict[str, Any] = {"eps": module.epsilon, "dtype": neighbors.dtype_of(state)}
    if name != "RMSNorm":
        options |= neighbors.parameters(scale, center)
    if name == "BatchNorm":
        options |= {"axis": _axis(who, module.axis), "momentum": neighbors.complement(module.momentum)}
        layer: Layer = neighbors.batch_norm_for(who, ndim)(len(state["running_mean"]), **options)
        layer.train(not module.use_running_average)
    elif name in ("GroupNorm", "InstanceNorm"):
        _check_axes(who, module, ndim)
        channels = _shape(who, module, state)[0]
        groups = channels if name == "InstanceNorm" else module.num_groups or channels // module.group_size
        layer = layers.GroupNorm(groups, channels, axis=-1, **options)
    else:
        shape = _shape(who, module, state)
        for axes in (module.reduction_axes, module.feature_axes):
            if _tuple(axes) != tuple(range(-len(shape), 0)):
                raise ValueError(f"{who}: module: expected the last axes, for both kinds of axes, got {axes}")
        layer = (layers.RMSNorm if name == "RMSNorm" else layers.LayerNorm)(shape, **options)
    layer.load_state_dict(state, strict=False)
    neighbors.fix(layer, scale, center)
    return layer


def to_flax(layer: Layer, api: str = "linen") -> Any:
    """Convert a layer to a module of Flax, with copies of its arrays.

    Parameters
    ----------
    layer : Layer
        A layer without an activation, but no subclass.
    api : {"linen", "nnx"}, default "linen"
        The kind of module.

    Returns
    -------
    module, or (module, variables) for linen
        The arrays are NumPy arrays, so float64 stays float64 even if JAX's 64-bit mode is off.

    Raises
    ------
    TypeError, ValueError
        If it is no layer of this package, or a subclass, or Flax has no such module.

    Warns
    -----
    UserWarning
        If training continues differently in Flax: in training mode with ddof=1.
    """
    who = "to_flax"
    if api not in ("linen", "nnx"):
        raise ValueError(f"{who}: api: expected 'linen' or 'nnx', got {api!r}")
    flax = load(who, f"flax.{api}", "flax")
    neighbors.without_inverse(who, "layer", layer)
    neighbors.known(who, "layer", layer, neighbors.LAYERS)
    without_activation(who, layer, ACTIVATIONS)
    name, shape, options = _described(who, layer)
    state = arrays(layer)
    params, statistics = _written(state, PARAMETERS, options["use_scale"]), {}
    if name == "BatchNorm":
        statistics = _written(state, STATISTICS)
    if api == "linen":
        variables = {"params": params} | ({"batch_stats": statistics} if statistics else {})
        return getattr(flax, name)(**options), variables
    if len(shape) > 1:
        raise ValueError(f"{who}: layer: expected one axis to normalize, as nnx has it, got {shape}")
    dtype = options.pop("param_dtype")  # not yet: JAX warns of float64 in its own arrays, which are replaced here
    module = getattr(flax, name)(*shape, **options, rngs=flax.Rngs(0))
    module.param_dtype = dtype
    for key, value in params.items():
        setattr(module, key, flax.Param(value))
    for key, value in statistics.items():
        setattr(module, key, flax.BatchStat(value))
    return module


def _described(who: str, layer: Layer) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    """Return the name of the Flax module, the shape of its parameters (even if it has none), and its keywords."""
    given: Any = layer
    scale, center = neighbors.scales_and_centers(layer)
    options = {"epsilon": neighbors.epsilon(layer), "param_dtype": given.dtype, "use_scale": scale}
    if not isinstance(layer, layers.RMSNorm):
        options["use_bias"] = center
    if isinstance(layer, BatchNorm):
        options |= {"axis": layer.axis, "momentum": neighbors.moving(who, layer, "Flax")}
        neighbors.warn_of_variance(who, layer, 0, "Flax")
        return "BatchNorm", (layer.num_features,), options | {"use_running_average": not layer.training}
    if isinstance(layer, layers.LayerNorm | layers.RMSNorm):
        axes = tuple(range(-len(given.normalized_shape), 0))
        options |= {"reduction_axes": axes, "feature_axes": axes}
        return type(layer).__name__, given.normalized_shape, options
    neighbors.only_axis(who, given, -1, "Flax")
    if isinstance(layer, layers.GroupNorm):
        return "GroupNorm", (layer.num_channels,), options | {"num_groups": layer.num_groups}
    if given.track_running_stats:
        raise ValueError(f"{who}: layer: expected no running statistics, as Flax' instance norm has none")
    return "InstanceNorm", (given.num_features,), options


def _read(who: str, module: Any, variables: Mapping[str, Any] | None, linen: bool) -> dict[str, ndarray]:
    if linen != (variables is not None):
        raise TypeError(f"{who}: variables: expected those of a module of linen, and None for one of nnx")
    names = PARAMETERS | STATISTICS
    if variables is not None:
        found = {**variables.get("params", {}), **variables.get("batch_stats", {})}
        _require(who, module, variables)
    else:
        found = {key: v[...] for key in names if (v := getattr(module, key, None)) is not None}
    return {ours: np.asarray(found[theirs]) for theirs, ours in names.items() if theirs in found}


def _require(who: str, module: Any, variables: Mapping[str, Any]) -> None:
    """Raise ValueError unless the variables are those of this module of linen, and not of the net around it."""
    needed = {"params": [name for name in PARAMETERS if getattr(module, f"use_{name}", False)]}
    if type(module).__name__ == "BatchNorm":
        needed["batch_stats"] = list(STATISTICS)
    if any(name not in variables.get(kind, {}) for kind, names in needed.items() for name in names):
        expected = " and ".join(f"{kind} with {' and '.join(names)}" for kind, names in needed.items() if names)
        got = ", ".join(f"{kind} with {list(found)}" for kind, found in variables.items()) or "none"
        raise ValueError(f"{who}: variables: expected {expected} of this module, got {got}")


def _written(state: Mapping[str, ndarray], names: Mapping[str, str], scale: bool = True) -> dict[str, ndarray]:
    return {theirs: state[ours] for theirs, ours in names.items() if ours in state and (scale or ours != "weight")}


def _shape(who: str, module: Any, state: Mapping[str, ndarray]) -> tuple[int, ...]:
    if state:
        return next(iter(state.values())).shape
    if hasattr(module, "num_features"):
        return _tuple(module.num_features)
    raise ValueError(f"{who}: module: expected a scale or a bias, whose shape says how many channels there are")


def _check_axes(who: str, module: Any, ndim: int | None) -> None:
    """Raise ValueError unless channels are on the last axis, and statistics are over all axes but the first."""
    if (axes := getattr(module, "feature_axes", -1)) not in (-1, (-1,)):
        raise ValueError(f"{who}: module: feature_axes: expected -1, the last axis, got {axes}")
    axes = getattr(module, "reduction_axes", None)
    every = set() if ndim is None else set(range(1, ndim))
    if axes is not None and {axis % (ndim or 1) for axis in _tuple(axes)} != every:
        raise ValueError(
            f"{who}: module: reduction_axes: expected None, or all axes but the first of x, whose number is ndim, got "
            f"{axes} with ndim={ndim}"
        )


def _axis(who: str, axis: Any) -> int:
    axes = _tuple(axis)
    if len(axes) != 1:
        raise ValueError(f"{who}: module: axis: expected one axis, got {axis}")
    return axes[0]


def _tuple(axes: Any) -> tuple[int, ...]:
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)
