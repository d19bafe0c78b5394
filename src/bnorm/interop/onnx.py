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

from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from numpy.typing import DTypeLike

from bnorm import layers
from bnorm.interop.neighbours import complement, load
from bnorm.kernels import moved
from bnorm.layers import Layer

__all__ = ["register", "to_onnx"]

IR_VERSION = 10  # runtimes of 2024 read it; the onnx package would write a newer one
OPSETS = {"BatchNormalization": 15, "LayerNormalization": 17, "GroupNormalization": 21, "RMSNormalization": 23}
TYPES = ("float32", "float64")
FAR = 4.0  # standard deviations between a mean and zero from which on the mean is subtracted first


class Node(NamedTuple):
    """A norm as an ONNX node: input vectors by name, attributes, and the axis of the channels (None: any).

    before: vectors that are subtracted from X first
    """

    kind: str
    inputs: dict[str, ndarray]
    attributes: dict[str, Any]
    axis: int | None
    before: tuple[ndarray, ...] = ()


def to_onnx(obj: Any, dtype: DTypeLike = "float32", ndim: int | None = None) -> Any:
    """Convert a layer or a fitted BatchNormTransformer, in inference, to an ONNX model.

    Parameters
    ----------
    obj : Layer or BatchNormTransformer
    dtype : {"float32", "float64"} or the NumPy dtype of that name, default "float32"
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
    activation = getattr(obj, "activation", None)
    if activation == "relu":
        then(y, "Relu")
    elif activation == "gelu":  # Gelu came later than the norms, and not to every runtime for float64
        inputs |= {"a": np.array(1.5957691216057308), "b": np.array(0.07135481627260025)}
        u = then(then(then(then(y, "Mul", y), "Mul", "b"), "Add", "a"), "Mul", y)
        then(then(u, "Sigmoid"), "Mul", y)
    elif activation == "silu":
        then(y, "Mul", then(y, "Sigmoid"))
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

    A BatchNormTransformer becomes the nodes of `to_onnx`. A StandardScaler of bnorm.sklearn becomes those of
    scikit-learn's; but if a mean is far from zero, it is subtracted in two parts, and the result divided by the scale.
    """
    onnx, skl2onnx = load("register", "onnx", "onnx"), load("register", "skl2onnx", "onnx")
    from skl2onnx.common.utils import check_input_and_output_numbers
    from skl2onnx.operator_converters.common import concatenate_variables
    from skl2onnx.operator_converters.scaler_op import convert_sklearn_scaler
    from skl2onnx.shape_calculators.scaler import calculate_sklearn_scaler_output_shapes

    from bnorm.sklearn import StandardScaler
    from bnorm.transformer import BatchNormTransformer

    helper = onnx.helper

    def shapes(operator: Any) -> None:
        check_input_and_output_numbers(operator, input_count_range=1, output_count_range=1)
        given = operator.inputs[0].type
        floats = skl2onnx.common.data_types.guess_tensor_type(given)  # integers become float32
        floats.shape = given.shape
        operator.outputs[0].type = floats

    types = skl2onnx.common.data_types

    def add(scope: Any, container: Any, kind: str, *inputs: str, **attributes: Any) -> str:
        made = str(scope.get_unique_variable_name(kind.lower()))
        container.add_node(kind, list(inputs), made, name=scope.get_unique_operator_name(kind), **attributes)
        return made

    def constant(scope: Any, container: Any, a: ndarray, dtype: str) -> str:
        name = str(scope.get_unique_variable_name("vector"))
        container.add_initializer(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(a.shape), a.astype(dtype)
        )
        return name

    def type_of(operator: Any) -> str:
        return TYPES[isinstance(operator.inputs[0].type, types.DoubleTensorType)]

    def floats(scope: Any, operator: Any, container: Any) -> tuple[str, str]:
        """The input as floats, and their type."""
        name, given = concatenate_variables(scope, operator.inputs, container), operator.inputs[0].type
        dtype = type_of(operator)
        if not isinstance(given, types.FloatTensorType | types.DoubleTensorType):
            name = add(scope, container, "Cast", name, to=onnx.TensorProto.FLOAT)
        return name, dtype

    def subtracted(scope: Any, container: Any, x: str, parts: tuple[ndarray, ...], dtype: str) -> str:
        for part in parts:
            x = add(scope, container, "Sub", x, constant(scope, container, part, dtype))
        return x

    def convert(scope: Any, operator: Any, container: Any) -> None:
        name, dtype = floats(scope, operator, container)
        norm = described("register", operator.raw_operator, dtype)
        name = subtracted(scope, container, name, norm.before, dtype)
        container.add_node(
            norm.kind,
            [name, *(constant(scope, container, a, dtype) for a in norm.inputs.values())],
            operator.outputs[0].full_name,
            op_version=OPSETS[norm.kind],
            name=scope.get_unique_operator_name(norm.kind),
            **norm.attributes,
        )

    def convert_scaler(scope: Any, operator: Any, container: Any) -> None:
        scaler = operator.raw_operator
        parts = _parts(scaler.mean_, scaler.scale_, type_of(operator)) if scaler.with_mean else ()
        if not parts:
            convert_sklearn_scaler(scope, operator, container)
            return
        name, dtype = floats(scope, operator, container)
        name = subtracted(scope, container, name, parts, dtype)
        kind, more = ("Identity", []) if scaler.scale_ is None else ("Div", [scaler.scale_])
        container.add_node(
            kind,
            [name, *(constant(scope, container, a, dtype) for a in more)],
            operator.outputs[0].full_name,
            name=scope.get_unique_operator_name(kind),
        )

    skl2onnx.update_registered_converter(BatchNormTransformer, "BnormBatchNormTransformer", shapes, convert)
    skl2onnx.update_registered_converter(
        StandardScaler,
        "BnormStandardScaler",
        calculate_sklearn_scaler_output_shapes,
        convert_scaler,
        options={"div": ["std", "div", "div_cast"]},
    )


def described(who: str, obj: Any, dtype: str) -> Node:
    """The node of a layer or a transformer."""
    if not isinstance(obj, Layer):
        return _of_transformer(who, obj, dtype)
    given: Any = obj
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
    channels, groups = _channels(given)
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
    eps, (mean, var, rstd, *_) = layer.eps, moved(layer._inference(), ndarray)
    kept = np.float32(eps)
    if float(kept) > eps:
        kept = np.nextafter(kept, np.float32(0))  # so that no variance becomes negative
    if eps == 0:
        var = 1 / rstd**2  # 1 where the channel is constant
    gamma, beta = (None if p is None else moved(p.data, ndarray) for p in (layer.gamma, layer.beta))
    parts = _parts(mean, 1 / rstd, dtype)
    inputs = {
        "scale": np.ones_like(mean) if gamma is None else gamma,
        "B": np.zeros_like(mean) if beta is None else beta,
        "input_mean": np.zeros_like(mean) if parts else mean,
        "input_var": var + (eps - float(kept)),
    }
    attributes = {"epsilon": float(kept)}
    if layer.momentum is not None:
        attributes["momentum"] = complement(layer.momentum)
    return Node("BatchNormalization", inputs, attributes, layer.axis, parts)


@np.errstate(all="ignore")
def _parts(mean: ndarray, std: ndarray | None, dtype: str) -> tuple[ndarray, ...]:
    """The mean as a sum of numbers of a type, to be subtracted from X; none if no mean is far from zero.

    The nodes are left out where they gain little, because runtimes merge a batch norm that follows a convolution.
    """
    if not (np.abs(mean) > FAR * (1.0 if std is None else std)).any():
        return ()
    high = mean.astype(dtype).astype(np.float64)
    low = mean - high
    return (high, low) if low.any() else (high,)


def _name_of(who: str, dtype: Any) -> str:
    """The name of a type of X."""
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = ""
    if dtype is None or name not in TYPES:
        raise ValueError(f"{who}: dtype: expected 'float32' or 'float64', got {dtype!r}")
    return name


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
