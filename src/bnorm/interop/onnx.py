"""ONNX models of layers and transformers in inference, and a converter for skl2onnx.

    model = to_onnx(layer_or_transformer)     one node, X to Y, and more for an activation
    register()                                from then on skl2onnx converts pipelines with this package's estimators

A runtime rounds the mean to the type of X. If the mean of a channel is more than 4 standard deviations from zero, that
would show: then the model subtracts the means first, in two parts that together have the digits of float64, and the
node has mean 0. With z = (x - mean) / std, a model of a batch norm or a transformer is off by at most
2^-19 (|gamma| (1 + |z|) + |beta|) for float32, and by 2^-48 of that for float64, in the runtime's plain arithmetic.

ONNX stores epsilon in single precision. In a batch norm the rounding error is added to the variance. The other norms
store no variance: their float64 models are off by about 1e-13 / var for an eps of 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike

from bnorm import checks, layers
from bnorm.interop import neighbors
from bnorm.interop.neighbors import load
from bnorm.interop.onnx_nodes import OPSETS, described
from bnorm.layers import Layer

__all__ = ["register", "to_onnx"]

IR_VERSION = 10  # runtimes of 2024 read it; the onnx package would write a newer one


def to_onnx(obj: Any, dtype: DTypeLike = "float32", ndim: int | None = None) -> Any:
    """Convert a layer or a fitted BatchNormTransformer, in inference, to an ONNX model.

    Parameters
    ----------
    obj : Layer or BatchNormTransformer
        A layer must not be a subclass, which may compute something else.
    dtype : {"float32", "float64"} or the NumPy dtype of that name, default "float32"
        The type of X and Y.
    ndim : int, optional
        The number of dimensions of X, whose sizes are free except that of the channels. By default the lowest that the
        layer accepts for a batch, and at least 4 for a group norm.

    Returns
    -------
    model : onnx.ModelProto
        Its input is X, its output Y.

    Raises
    ------
    TypeError, ValueError
        If the object cannot be converted.
    """
    who = "to_onnx"
    onnx = load(who, "onnx", "onnx")
    dtype = _name_of(who, dtype)
    norm = described(who, obj, dtype)
    rank = _rank(who, obj, ndim)
    before, after = _transposed(norm.axis, rank)
    helper, nodes, inputs = onnx.helper, [], dict(norm.inputs)

    def then(x: str, kind: str, *others: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, [x, *others], [f"{kind}_of_{x}"], **attributes))
        return f"{kind}_of_{x}"

    y = then("X", "Transpose", perm=before) if before else "X"
    for i, part in enumerate(norm.before):
        inputs[f"mean_{i}"] = part.reshape(-1, *[1] * (rank - 2))  # channels are on axis 1
        y = then(y, "Sub", f"mean_{i}")
    y = then(y, norm.kind, *norm.inputs, **norm.attributes)
    y = then(y, "Transpose", perm=after) if after else y
    inputs |= _activate(then, y, obj)
    nodes[-1].output[0] = "Y"
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shape = [f"n{i}" for i in range(rank)]
    graph = helper.make_graph(
        nodes,
        type(obj).__name__,
        [helper.make_tensor_value_info("X", kind, shape)],
        [helper.make_tensor_value_info("Y", kind, shape)],
        [onnx.numpy_helper.from_array(a.astype(dtype), name) for name, a in inputs.items()],
    )
    opset = helper.make_opsetid("", OPSETS[norm.kind])
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="bnorm")
    onnx.checker.check_model(model)
    return model


def _activate(then: Callable[..., str], y: str, obj: Any) -> dict[str, ndarray]:
    """Add the nodes of a layer's activation after y. Returns the constants that they use, by name."""
    activation = getattr(obj, "activation", None)
    if activation == "relu":
        then(y, "Relu")
    elif activation == "gelu":  # Gelu came later than the norms, and not to every runtime for float64
        u = then(then(then(then(y, "Mul", y), "Mul", "b"), "Add", "a"), "Mul", y)
        then(then(u, "Sigmoid"), "Mul", y)
        return {"a": np.array(1.5957691216057308), "b": np.array(0.07135481627260025)}
    elif activation == "silu":
        then(y, "Mul", then(y, "Sigmoid"))
    elif activation is not None:  # LeakyRelu is not in every runtime for float64, and would round its slope to float32
        then(y, "Max", then(y, "Mul", "slope"))
        return {"slope": np.array(obj.negative_slope)}
    return {}


def register() -> None:
    """Register converters of this package's estimators with skl2onnx, for use alone or in a pipeline.

    A BatchNormTransformer becomes the nodes of `to_onnx`. A StandardScaler of bnorm.sklearn becomes those of
    scikit-learn's; but if a mean is far from zero, it is subtracted in two parts, and the result divided by the scale.
    """
    for module in ("onnx", "skl2onnx"):
        load("register", module, "onnx")
    from bnorm.interop import onnx_converters

    onnx_converters.register()


def _name_of(who: str, dtype: Any) -> str:
    """The name of a type of X."""
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = ""
    if dtype is None or name not in ("float32", "float64"):
        raise ValueError(f"{who}: dtype: expected 'float32' or 'float64', got {dtype!r}")
    return name


def _rank(who: str, obj: Any, ndim: int | None) -> int:
    if not isinstance(obj, Layer):
        ranks: tuple[int, ...] = (2,)
    elif isinstance(obj, layers.LayerNorm | layers.RMSNorm):
        least = len(obj.normalized_shape)
        ranks = tuple(range(least + 1 if ndim is None else least, 10))
    else:
        ranks = neighbors.ranks(obj)
    if ndim is None:
        return max(4, ranks[0]) if isinstance(obj, layers.GroupNorm) else min(ranks)
    return int(checks.choice(who, "ndim", ndim, ranks))


def _transposed(axis: int | None, rank: int) -> tuple[list[int], list[int]]:
    """The permutations of axes before and after a node with channels on axis 1; empty if they are there already."""
    if axis is None or axis % rank == 1:
        return [], []
    before = [i for i in range(rank) if i != axis % rank]
    before.insert(1, axis % rank)
    return before, [before.index(i) for i in range(rank)]
