"""ONNX models of layers and transformers in inference, and a converter for skl2onnx.

    model = to_onnx(layer_or_transformer)     one node, X to Y, and more for an activation
    register()                                from then on skl2onnx converts pipelines with this package's estimators

ONNX stores epsilon in single precision. In a batch norm the rounding error is added to the variance. The other norms
store no variance: their float64 models are off by about 1e-13 / var for an eps of 1e-5.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import layers
from bnorm.interop.neighbours import complement, load
from bnorm.kernels import moved
from bnorm.layers import Layer

__all__ = ["register", "to_onnx"]

IR_VERSION = 10  # runtimes of 2024 read it; the onnx package would write a newer one
OPSETS = {"BatchNormalization": 15, "LayerNormalization": 17, "GroupNormalization": 21, "RMSNormalization": 23}
TYPES = ("float32", "float64")


class Node(NamedTuple):
    """A norm as an ONNX node: input vectors by name, attributes, and the axis of the channels (None: any)."""

    kind: str
    inputs: dict[str, ndarray]
    attributes: dict[str, Any]
    axis: int | None


def to_onnx(obj: Any, dtype: str = "float32", ndim: int | None = None) -> Any:
    """Convert a layer or a fitted BatchNormTransformer, in inference, to an ONNX model.

    Parameters
    ----------
    obj : Layer or BatchNormTransformer
    dtype : {"float32", "float64"}, default "float32"
        The type of X and Y.
    ndim : int, optional
        The number of dimensions of X, whose sizes are free except that of the channels. By default the lowest that the
        layer accepts for a batch, and 4 for a group norm.

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
    if dtype not in TYPES:
        raise ValueError(f"{who}: dtype: expected 'float32' or 'float64', got {dtype!r}")
    norm = described(who, obj, dtype)
    rank = _rank(who, obj, ndim)
    before, after = _transposed(norm.axis, rank)
    helper, nodes, inputs = onnx.helper, [], dict(norm.inputs)

    def then(x: str, kind: str, *others: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, [x, *others], [f"{kind}_of_{x}"], **attributes))
        return f"{kind}_of_{x}"

    y = then("X", "Transpose", perm=before) if before else "X"
    y = then(y, norm.kind, *norm.inputs, **norm.attributes)
    y = then(y, "Transpose", perm=after) if after else y
    activation = getattr(obj, "activation", None)
    if activation == "relu":
        then(y, "Relu")
    elif activation is not None:  # LeakyRelu is not in every runtime for float64, and would round its slope to float32
        inputs["slope"] = np.array(obj.negative_slope)
        then(y, "Max", then(y, "Mul", "slope"))
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


def register() -> None:
    """Register converters of this package's estimators with skl2onnx, for use alone or in a pipeline.

    A BatchNormTransformer becomes the node of `to_onnx`; a StandardScaler of bnorm.sklearn becomes that of
    scikit-learn's.
    """
    onnx, skl2onnx = load("register", "onnx", "onnx"), load("register", "skl2onnx", "onnx")
    from skl2onnx.common.utils import check_input_and_output_numbers
    from skl2onnx.operator_converters.scaler_op import convert_sklearn_scaler
    from skl2onnx.shape_calculators.scaler import calculate_sklearn_scaler_output_shapes

    from bnorm.sklearn import StandardScaler
    from bnorm.transformer import BatchNormTransformer

    def shapes(operator: Any) -> None:
        check_input_and_output_numbers(operator, input_count_range=1, output_count_range=1)
        given = operator.inputs[0].type
        floats = skl2onnx.common.data_types.guess_tensor_type(given)  # integers become float32
        floats.shape = given.shape
        operator.outputs[0].type = floats

    def convert(scope: Any, operator: Any, container: Any) -> None:
        name, given = operator.inputs[0].full_name, operator.inputs[0].type
        types = skl2onnx.common.data_types
        double = isinstance(given, types.DoubleTensorType)
        kind = onnx.TensorProto.DOUBLE if double else onnx.TensorProto.FLOAT
        if not isinstance(given, types.FloatTensorType | types.DoubleTensorType):
            floats = scope.get_unique_variable_name("floats")
            container.add_node("Cast", name, floats, to=kind, name=scope.get_unique_operator_name("Cast"))
            name = floats
        norm = described("register", operator.raw_operator, TYPES[double])
        inputs = [name]
        for key, values in norm.inputs.items():
            inputs.append(scope.get_unique_variable_name(key))
            container.add_initializer(inputs[-1], kind, [len(values)], values.astype(TYPES[double]))
        container.add_node(
            norm.kind,
            inputs,
            operator.outputs[0].full_name,
            op_version=OPSETS[norm.kind],
            name=scope.get_unique_operator_name(norm.kind),
            **norm.attributes,
        )

    skl2onnx.update_registered_converter(BatchNormTransformer, "BnormBatchNormTransformer", shapes, convert)
    skl2onnx.update_registered_converter(
        StandardScaler,
        "BnormStandardScaler",
        calculate_sklearn_scaler_output_shapes,
        convert_sklearn_scaler,
        options={"div": ["std", "div", "div_cast"]},
    )


def described(who: str, obj: Any, dtype: str) -> Node:
    """The node of a layer or a transformer."""
    if not isinstance(obj, Layer):
        return _of_transformer(who, obj)
    given: Any = obj
    if isinstance(obj, layers.batch.BatchNorm) or getattr(obj, "track_running_stats", False):
        if not given.track_running_stats:
            raise ValueError(f"{who}: obj: expected running statistics, which inference needs, got a layer without")
        return _batch(given)
    eps = given.eps if given.eps is not None else float(np.finfo(dtype).eps)
    scale, shift = (None if p is None else moved(p.data, ndarray) for p in (given.gamma, given.beta))
    if isinstance(obj, layers.LayerNorm | layers.RMSNorm):
        shape = given.normalized_shape
        inputs = {"scale": np.ones(shape) if scale is None else scale} | ({} if shift is None else {"B": shift})
        kind = "LayerNormalization" if isinstance(obj, layers.LayerNorm) else "RMSNormalization"
        return Node(kind, inputs, {"axis": -len(shape), "epsilon": eps}, None)
    channels, groups = _channels(given)
    inputs = {
        "scale": np.ones(channels) if scale is None else scale,
        "B": np.zeros(channels) if shift is None else shift,
    }
    attributes = {"num_groups": groups, "epsilon": eps}
    if dtype == "float64":
        attributes["stash_type"] = 11  # statistics in double precision too
    return Node("GroupNormalization", inputs, attributes, given.axis)


def _of_transformer(who: str, transformer: Any) -> Node:
    from bnorm.transformer import BatchNormTransformer

    if not isinstance(transformer, BatchNormTransformer):
        raise TypeError(f"{who}: obj: expected a layer or a BatchNormTransformer, got {type(transformer).__name__}")
    return _batch(transformer.layer_)


def _batch(layer: Any) -> Node:
    eps, (mean, var, rstd, *_) = layer.eps, moved(layer._inference(), ndarray)
    kept = np.float32(eps)
    if float(kept) > eps:
        kept = np.nextafter(kept, np.float32(0))  # so that no variance becomes negative
    if eps == 0:
        var = 1 / rstd**2  # 1 where the channel is constant
    gamma, beta = (None if p is None else moved(p.data, ndarray) for p in (layer.gamma, layer.beta))
    inputs = {
        "scale": np.ones_like(mean) if gamma is None else gamma,
        "B": np.zeros_like(mean) if beta is None else beta,
        "input_mean": mean,
        "input_var": var + (eps - float(kept)),
    }
    attributes = {"epsilon": float(kept)}
    if layer.momentum is not None:
        attributes["momentum"] = complement(layer.momentum)
    return Node("BatchNormalization", inputs, attributes, layer.axis)


def _channels(layer: Any) -> tuple[int, int]:
    if isinstance(layer, layers.GroupNorm):
        return layer.num_channels, layer.num_groups
    return layer.num_features, layer.num_features


def _rank(who: str, obj: Any, ndim: int | None) -> int:
    if not isinstance(obj, Layer):
        ranks = [2]
    elif isinstance(obj, layers.LayerNorm | layers.RMSNorm):
        least = len(obj.normalized_shape)
        ranks = list(range(least + 1, 10)) if ndim is None else list(range(least, 10))
    else:
        ranks = list(getattr(obj, "_names", None) or range(2, 10))
    if ndim is None:
        return 4 if isinstance(obj, layers.GroupNorm) else min(ranks)
    if ndim not in ranks:
        raise ValueError(f"{who}: ndim: expected one of {ranks}, got {ndim!r}")
    return ndim


def _transposed(axis: int | None, rank: int) -> tuple[list[int], list[int]]:
    """The permutations of axes before and after a node with channels on axis 1; empty if they are there already."""
    if axis is None or axis % rank == 1:
        return [], []
    before = [i for i in range(rank) if i != axis % rank]
    before.insert(1, axis % rank)
    return before, [before.index(i) for i in range(rank)]
