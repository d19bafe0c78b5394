"""ONNX' own cases of the norms: those that its generator makes, and those that were exported from PyTorch."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import bnorm
from bnorm import functional as F
from bnorm.interop.neighbors import complement

onnx = pytest.importorskip("onnx", reason="ONNX has the cases")

KINDS = ("BatchNormalization", "LayerNormalization", "GroupNormalization", "InstanceNormalization", "RMSNormalization")


def generated():
    """By the modules of ONNX that speak of these nodes, each of which makes its cases as it is imported: all of them,
    which `collect_testcases` imports, take seconds."""
    from onnx.backend.test.case import node

    for path in sorted(Path(node.__file__).parent.glob("*.py")):
        if any(kind in path.read_text(encoding="utf-8") for kind in KINDS):
            import_module(f"{node.__name__}.{path.stem}")
    for case in node._NodeTestCases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in KINDS:
            yield pytest.param(nodes[0], *case.data_sets[0], id=case.name)


def exported():
    for folder in sorted(Path(onnx.__file__).parent.glob("backend/test/data/pytorch-converted/test_BatchNorm*")):
        yield pytest.param(folder, id=folder.name)


def numbers(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def trained(x, scale, shift, mean, var, eps, momentum):
    """Output and running statistics of one training batch."""
    layer = bnorm.BatchNorm2d(x.shape[1], eps=eps, momentum=complement(momentum))
    layer.gamma, layer.beta, layer.running_mean, layer.running_var = scale, shift, mean, var
    return layer(x), layer.running_mean, layer.running_var


def computed(node, x, scale, *rest):
    """What ONNX' node puts out, by the functions of this package."""
    given, kind = numbers(node), node.op_type
    eps = given.get("epsilon", 1e-5)
    if kind == "BatchNormalization":
        shift, mean, var = rest
        if given.get("training_mode"):
            return trained(x, scale, shift, mean, var, eps, given.get("momentum", 0.9))
        return (F.batch_norm(x, scale, shift, mean=mean, var=var, eps=eps)[0],)
    if kind == "GroupNormalization":
        return (F.group_norm(x, given["num_groups"], scale, *rest, eps=eps)[0],)
    if kind == "InstanceNormalization":
        return (F.instance_norm(x, scale, *rest, eps=eps)[0],)
    shape = x.shape[given.get("axis", -1) :]
    if kind == "RMSNormalization":
        return (F.rms_norm(x, scale, normalized_shape=shape, eps=eps)[0],)
    y, saved = F.layer_norm(x, scale, *rest, normalized_shape=shape, eps=eps)
    return y, saved.mean, saved.rstd


@pytest.mark.parametrize(("node", "inputs", "outputs"), list(generated()))
def test_generated_cases(node, inputs, outputs):
    results = computed(node, *inputs)
    assert len(results) == len(outputs)
    for got, wanted in zip(results, outputs, strict=True):
        np.testing.assert_allclose(np.reshape(got, wanted.shape), wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("folder", list(exported()))
def test_cases_exported_from_pytorch(folder):
    model = onnx.load(folder / "model.onnx")
    (node,) = model.graph.node
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    tensors = [
        onnx.TensorProto.FromString((folder / "test_data_set_0" / f"{name}_0.pb").read_bytes())
        for name in ("input", "output")
    ]
    x, wanted = map(onnx.numpy_helper.to_array, tensors)
    scale, shift, mean, var = (values[name] for name in node.input[1:])
    y, _ = F.batch_norm(x, scale, shift, mean=mean, var=var, eps=numbers(node)["epsilon"])
    np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=2e-6)
