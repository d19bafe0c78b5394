"""Layers and transformers in inference as ONNX nodes, which `onnx.py` explains."""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import layers
from bnorm.interop.neighbors import LAYERS, complement, groups_and_channels, inference, known, without_inverse
from bnorm.kernels import moved
from bnorm.layers import Layer

OPSETS = {"BatchNormalization": 15, "LayerNormalization": 17, "GroupNormalization": 21, "RMSNormalization": 23}
FAR = 4.0  # a mean that is more than this many standard deviations from zero is subtracted first


class Node(NamedTuple):
    """A norm as an ONNX node: input vectors by name, attributes, and the axis of the channels (None: any).

    before: vectors that are subtracted from X first
    """

    kind: str
    inputs: dict[str, ndarray]
    attributes: dict[str, Any]
    axis: int | None
    before: tuple[ndarray, ...] = ()


def described(who: str, obj: Any, dtype: str) -> Node:
    """Return the node of a layer or a transformer."""
    if not isinstance(obj, Layer):
        return _of_transformer(who, obj, dtype)
    given: Any = obj
    without_inverse(who, "obj", obj)
    known(who, "obj", obj, LAYERS)
    if isinstance(obj, layers.batch.BatchNorm) or getattr(obj, "track_running_stats", False):
        if not given.track_running_stats:
            raise ValueError(f"{who}: obj: expected running statistics, which inference needs, got a layer without")
        return _batch(given, dtype)
    eps = given.eps if given.eps is not None else float(np.finfo(dtype).eps)
    scale, shift = (None if p is None else moved(p.data, ndarray) for p in (given.gamma, given.beta))
    if isinstance(obj, layers.LayerNorm | layers.RMSNorm):
        shape = given.normalized_shape
        inputs = {"scale": np.ones(shape) if scale is None else scale} | ({} if shift is None else {"B": shift})
        kind = "LayerNormalization" if isinstance(obj, layers.LayerNorm) else "RMSNormalization"
        return Node(kind, inputs, {"axis": -len(shape), "epsilon": eps}, None)
    groups, channels = groups_and_channels(given)
    inputs = {
        "scale": np.ones(channels) if scale is None else scale,
        "B": np.zeros(channels) if shift is None else shift,
    }
    attributes = {"num_groups": groups, "epsilon": eps}
    if dtype == "float64":
        attributes["stash_type"] = 11  # statistics in double precision too
    return Node("GroupNormalization", inputs, attributes, given.axis)


def _of_transformer(who: str, transformer: Any, dtype: str) -> Node:
    from bnorm.transformer import BatchNormTransformer

    if not isinstance(transformer, BatchNormTransformer):
        raise TypeError(f"{who}: obj: expected a layer or a BatchNormTransformer, got {type(transformer).__name__}")
    return _batch(transformer.layer_, dtype)


def _batch(layer: Any, dtype: str) -> Node:
    eps, (mean, var, rstd) = layer.eps, inference(layer)
    kept = np.float32(eps)
    if float(kept) > eps:
        kept = np.nextafter(kept, np.float32(0))  # so that no variance becomes negative
    var = var + (eps - float(kept))
    gamma, beta = (None if p is None else moved(p.data, ndarray) for p in (layer.gamma, layer.beta))
    scale = np.ones_like(mean) if gamma is None else gamma
    limits = np.finfo(dtype)
    beyond = (var > limits.max) | (var + float(kept) < limits.tiny)  # though its root is in range
    parts = parts_of(mean, 1 / rstd, dtype)
    inputs = {
        "scale": np.where(beyond, scale * rstd * np.sqrt(1 + float(kept)), scale),
        "B": np.zeros_like(mean) if beta is None else beta,
        "input_mean": np.zeros_like(mean) if parts else mean,
        "input_var": np.where(beyond, 1.0, var),
    }
    attributes = {"epsilon": float(kept)}
    if layer.momentum is not None:
        attributes["momentum"] = complement(layer.momentum)
    return Node("BatchNormalization", inputs, attributes, layer.axis, parts)


@np.errstate(all="ignore")
def parts_of(mean: ndarray, std: ndarray | None, dtype: str) -> tuple[ndarray, ...]:
    """Return the mean as a sum of numbers of a type, to subtract from X; nothing if no mean is far from zero.

    The nodes are left out where they gain little, because runtimes merge a batch norm that follows a convolution.
    """
    if not (np.abs(mean) > FAR * (1.0 if std is None else std)).any():
        return ()
    high = mean.astype(dtype).astype(np.float64)
    low = mean - high
    return (high, low) if low.any() else (high,)
