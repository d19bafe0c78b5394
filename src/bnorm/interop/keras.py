"""Layers from and to Keras 3, on any of its backends.

    layer = from_keras(keras_layer)     of BatchNormalization, LayerNormalization, GroupNormalization, RMSNormalization
    keras_layer = to_keras(layer)       built, with copies of the layer's arrays

In Keras momentum is the weight of the old value, epsilon is 1e-3 by default, channels are on the last axis, and moving
variances are population variances (ddof=0). A layer from Keras is in inference mode, as calling a Keras layer is;
`train()` continues training. Keras computes batch norm in float32 whatever the dtype.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import checks, layers
from bnorm.interop import neighbors
from bnorm.interop.neighbors import arrays, load, without_activation
from bnorm.layers import Layer
from bnorm.layers.batch import BatchNorm

__all__ = ["from_keras", "to_keras"]

ACTIVATIONS = {
    "relu": "keras.layers.ReLU",
    "leaky_relu": "keras.layers.LeakyReLU",
    "silu": "keras.activations.silu",
    "gelu": "keras.activations.gelu(approximate=True)",
}

NAMES = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization")


def from_keras(keras_layer: Any) -> Layer:
    """Convert a normalization layer of Keras to a layer, with copies of its arrays.

    Parameters
    ----------
    keras_layer : keras.layers.Layer
        A BatchNormalization, LayerNormalization, GroupNormalization or RMSNormalization that has been built.

    Returns
    -------
    layer : Layer
        In inference mode. A batch norm is a BatchNorm1d, 2d or 3d, depending on the number of dimensions it was built
        for. Its dtype is float64 if that of the Keras layer is, otherwise float32.

    Raises
    ------
    TypeError, ValueError
        If the layer is not built, or there is no layer for it here.
    """
    who = "from_keras"
    keras = load(who, "keras", "keras")
    name = neighbors.known(who, "keras_layer", keras_layer, {getattr(keras.layers, n): n for n in NAMES})
    if not keras_layer.built:
        raise ValueError(f"{who}: keras_layer: expected one that has been built or called, got one without weights")
    if getattr(keras_layer, "renorm", False) or getattr(keras_layer, "rms_scaling", False):
        raise ValueError(f"{who}: keras_layer: expected no renorm and no rms_scaling, got {keras_layer.get_config()}")
    variables = {ours: getattr(keras_layer, theirs, None) for theirs, ours in _names(name).items()}
    state = {key: np.asarray(keras.ops.convert_to_numpy(v)) for key, v in variables.items() if v is not None}
    eps = keras.config.epsilon() if keras_layer.epsilon is None else keras_layer.epsilon
    options: dict[str, Any] = {"eps": eps, "dtype": neighbors.dtype_of(state)}
    scale, center = "weight" in state, "bias" in state
    if name != "RMSNormalization":
        options |= neighbors.parameters(scale, center)
    if name == "BatchNormalization":
        options |= {"axis": keras_layer.axis, "momentum": neighbors.complement(keras_layer.momentum)}
        spec = keras_layer.input_spec
        kind = neighbors.batch_norm_for(who, None if spec is None else spec.ndim)
        layer: Layer = kind(len(state["running_mean"]), **options)
    elif name == "GroupNormalization":
        channels = keras_layer.input_spec.axes[keras_layer.axis]
        layer = layers.GroupNorm(keras_layer.groups, channels, axis=keras_layer.axis, **options)
    else:
        shape = _last_axes(who, keras_layer, state)
        layer = (layers.RMSNorm if name == "RMSNormalization" else layers.LayerNorm)(shape, **options)
    layer.load_state_dict(state, strict=False)
    neighbors.fix(layer, scale, center)
    for p in layer.parameters():
        p.requires_grad = p.requires_grad and keras_layer.trainable
    return layer.eval()


def to_keras(layer: Layer, ndim: int | None = None) -> Any:
    """Convert a layer to a built layer of Keras, with copies of its arrays, in their dtype.

    Parameters
    ----------
    layer : Layer
        A layer without an activation, but no subclass.
    ndim : int, optional
        The number of dimensions of x, for which Keras builds the layer; by default the lowest that the layer accepts.

    Returns
    -------
    keras_layer : keras.layers.Layer

    Raises
    ------
    TypeError, ValueError
        If it is no layer of this package, or a subclass, or Keras has no such layer.

    Warns
    -----
    UserWarning
        If training continues differently in Keras: in training mode with ddof=1.
    """
    who = "to_keras"
    keras = load(who, "keras", "keras")
    neighbors.without_inverse(who, "layer", layer)
    neighbors.known(who, "layer", layer, neighbors.LAYERS)
    without_activation(who, layer, ACTIVATIONS)
    given: Any = layer
    scale, center = neighbors.scales_and_centers(layer)
    options: dict[str, Any] = {"epsilon": neighbors.epsilon(layer), "dtype": given.dtype.name}
    if isinstance(layer, BatchNorm):
        momentum = neighbors.moving(who, layer, "Keras")
        neighbors.warn_of_variance(who, layer, 0, "Keras")
        made = keras.layers.BatchNormalization(layer.axis, momentum, scale=scale, center=center, **options)
        shape = _shape(who, given, layer.num_features, ndim)
    elif isinstance(layer, layers.LayerNorm | layers.RMSNorm):
        axes = list(range(-len(given.normalized_shape), 0))
        shape = [None, *given.normalized_shape]
        if isinstance(layer, layers.RMSNorm):
            made = keras.layers.RMSNormalization(axes, **options)
        else:
            made = keras.layers.LayerNormalization(axes, scale=scale, center=center, **options)
    else:
        if getattr(layer, "track_running_stats", False):
            raise ValueError(f"{who}: layer: expected no running statistics, as Keras has no such instance norm")
        groups, channels = neighbors.groups_and_channels(layer)
        options |= {"scale": scale, "center": center}
        made = keras.layers.GroupNormalization(groups, given.axis, **options)
        shape = _shape(who, given, channels, ndim)
        if shape[0] is not None:
            raise ValueError(f"{who}: layer: expected samples on axis 0, as Keras has them, got axis={given.axis}")
    made.build(tuple(shape))
    state = arrays(layer)
    for theirs, ours in _names(type(made).__name__).items():
        variable = getattr(made, theirs, None)
        if variable is not None and ours in state:
            variable.assign(state[ours])
    if layer.parameters() and not layer.training and not any(p.requires_grad for p in layer.parameters()):
        made.trainable = False
    return made


def _shape(who: str, layer: Any, channels: int, ndim: int | None) -> list[int | None]:
    """Return the shape for which Keras builds a layer, with the channels on the axis of the layer."""
    ranks = neighbors.ranks(layer)
    default = max(3, ranks[0]) if isinstance(layer, layers.GroupNorm) else min(ranks)
    shape: list[int | None] = [None] * (default if ndim is None else checks.choice(who, "ndim", ndim, ranks))
    shape[layer.axis] = channels
    return shape


def _names(name: str) -> dict[str, str]:
    """The names of the weights of a Keras layer, and their names here."""
    if name == "RMSNormalization":
        return {"scale": "weight"}
    names = {"gamma": "weight", "beta": "bias"}
    return names | {"moving_mean": "running_mean", "moving_variance": "running_var"} if "Batch" in name else names


def _last_axes(who: str, keras_layer: Any, state: dict[str, ndarray]) -> tuple[int, ...]:
    axes = list(keras_layer.axis)
    if not state or axes != list(range(-len(axes), 0)):
        raise ValueError(
            f"{who}: keras_layer: expected the last axes, as in axis=-1 or axis=[-2, -1], and a gamma or beta that "
            f"says how long they are, got axis={keras_layer.axis} and weights {list(state)}"
        )
    return next(iter(state.values())).shape
