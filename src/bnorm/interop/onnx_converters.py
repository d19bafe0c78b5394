"""Converters of this package's estimators, as skl2onnx calls them: each adds nodes to the container of a model."""

from typing import Any

import numpy as np
from numpy import ndarray
from onnx.helper import np_dtype_to_tensor_dtype
from skl2onnx import update_registered_converter
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, guess_tensor_type
from skl2onnx.common.utils import check_input_and_output_numbers
from skl2onnx.operator_converters.scaler_op import convert_sklearn_scaler
from skl2onnx.shape_calculators.scaler import calculate_sklearn_scaler_output_shapes

from bnorm.interop.onnx_nodes import OPSETS, described, parts_of
from bnorm.sklearn import StandardScaler
from bnorm.transformer import BatchNormTransformer

TYPES = {"float32": FloatTensorType, "float64": DoubleTensorType}


def register() -> None:
    """Register these converters."""
    update_registered_converter(BatchNormTransformer, "BnormBatchNormTransformer", shapes, convert)
    update_registered_converter(
        StandardScaler,
        "BnormStandardScaler",
        calculate_sklearn_scaler_output_shapes,
        convert_scaler,
        options={"div": ["std", "div", "div_cast"]},
    )


def shapes(operator: Any) -> None:
    """Set the type and shape of what a transformer returns."""
    check_input_and_output_numbers(operator, input_count_range=1, output_count_range=1)
    given = operator.inputs[0].type
    floats = guess_tensor_type(given)  # integers become float32
    floats.shape = given.shape
    operator.outputs[0].type = floats


def convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the nodes of a transformer."""
    name, dtype = _floats(scope, operator, container)
    norm = described("register", operator.raw_operator, dtype)
    name = _subtracted(scope, container, name, norm.before, dtype)
    vectors = [_constant(scope, container, a, dtype) for a in norm.inputs.values()]
    _last(scope, operator, container, norm.kind, [name, *vectors], op_version=OPSETS[norm.kind], **norm.attributes)


def convert_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Add the nodes of a StandardScaler."""
    scaler = operator.raw_operator
    parts = parts_of(scaler.mean_, scaler.scale_, _type_of(operator)) if scaler.with_mean else ()
    if not parts:
        convert_sklearn_scaler(scope, operator, container)
        return
    name, dtype = _floats(scope, operator, container)
    name = _subtracted(scope, container, name, parts, dtype)
    if scaler.scale_ is None:
        _last(scope, operator, container, "Identity", [name])
    else:
        _last(scope, operator, container, "Div", [name, _constant(scope, container, scaler.scale_, dtype)])


def _type_of(operator: Any) -> str:
    return "float64" if isinstance(operator.inputs[0].type, TYPES["float64"]) else "float32"


def _floats(scope: Any, operator: Any, container: Any) -> tuple[str, str]:
    """Return the name of all columns as floats, and their type.

    Skl2onnx would join several inputs by a FeatureVectorizer, which rounds float64 to float32.
    """
    dtype = _type_of(operator)
    own, to = TYPES[dtype], np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [
        x.full_name if isinstance(x.type, own) else _add(scope, container, "Cast", x.full_name, to=to)
        for x in operator.inputs
    ]
    return names[0] if len(names) == 1 else _add(scope, container, "Concat", *names, axis=1), dtype


def _subtracted(scope: Any, container: Any, x: str, parts: tuple[ndarray, ...], dtype: str) -> str:
    for part in parts:
        x = _add(scope, container, "Sub", x, _constant(scope, container, part, dtype))
    return x


def _add(scope: Any, container: Any, kind: str, *inputs: str, **attributes: Any) -> str:
    made = str(scope.get_unique_variable_name(kind.lower()))
    container.add_node(kind, list(inputs), made, name=scope.get_unique_operator_name(kind), **attributes)
    return made


def _last(scope: Any, operator: Any, container: Any, kind: str, inputs: list[str], **attributes: Any) -> None:
    """Add the node whose output is that of the operator."""
    name = scope.get_unique_operator_name(kind)
    container.add_node(kind, inputs, operator.outputs[0].full_name, name=name, **attributes)


def _constant(scope: Any, container: Any, a: ndarray, dtype: str) -> str:
    name = str(scope.get_unique_variable_name("vector"))
    container.add_initializer(name, np_dtype_to_tensor_dtype(np.dtype(dtype)), list(a.shape), a.astype(dtype))
    return name
