"""Every cell of the table in docs/interop.md, found out from the library that it speaks of."""

import inspect
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import bnorm
from later import later

if "KERAS_BACKEND" not in os.environ:
    os.environ["KERAS_BACKEND"] = "torch"
WHY = "the table speaks of it"
torch = pytest.importorskip("torch", reason=WHY)
keras = later("keras", WHY)
linen = pytest.importorskip("flax.linen", reason=WHY)
nnx = pytest.importorskip("flax.nnx", reason=WHY)
onnx = pytest.importorskip("onnx", reason=WHY)
evaluator = pytest.importorskip("onnx.reference", reason=WHY).ReferenceEvaluator

# NumPy warns of how PyTorch hands over its tensors, on which Keras runs here.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

DOCUMENT = Path(__file__).parents[2] / "docs" / "interop.md"
X = np.array([[1.0, 5.0, 2.0], [3.0, -1.0, 2.5], [2.0, 2.0, 7.0], [-2.0, 1.0, 0.5]], np.float32)
ABSENT = "–"


def table():
    """Rows of cells by label, in the order of COLUMNS."""
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0][1:] == list(COLUMNS)
    return {label: cells for label, *cells in rows[2:]}


def array(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable))


class Ours:
    """One training batch of X with momentum m; what there is by name; and the layer's defaults."""

    kind = bnorm.BatchNorm1d
    epsilon = "eps"

    def trained(self, m):
        layer = bnorm.BatchNorm1d(3, momentum=m)
        layer(X)
        return layer.running_mean, layer.running_var

    def names(self):
        return set(bnorm.BatchNorm1d(3).state_dict())

    def axis(self):
        return bnorm.BatchNorm1d(3).axis

    def trains(self):
        return bnorm.BatchNorm1d(3).training


class PyTorch(Ours):
    kind = torch.nn.BatchNorm1d

    def trained(self, m):
        module = torch.nn.BatchNorm1d(3, momentum=m)
        module(torch.from_numpy(X))
        return module.running_mean.numpy(), module.running_var.numpy()

    def names(self):
        return set(torch.nn.BatchNorm1d(3).state_dict())

    def axis(self):
        torch.nn.BatchNorm1d(3)(torch.zeros(2, 3, 5))  # (2, 5, 3) would be refused
        return 1

    def trains(self):
        return torch.nn.BatchNorm1d(3).training


class Keras(Ours):
    kind = property(lambda self: keras.layers.BatchNormalization)
    epsilon = "epsilon"

    def trained(self, m):
        layer = keras.layers.BatchNormalization(momentum=m)
        layer(X, training=True)
        return array(layer.moving_mean), array(layer.moving_variance)

    def names(self):
        layer = keras.layers.BatchNormalization()
        layer.build((None, 3))
        return {variable.name for variable in layer.variables}

    def axis(self):
        layer = keras.layers.BatchNormalization()
        layer.build((2, 5, 3))
        assert layer.gamma.shape == (3,)
        return layer.axis

    def trains(self):
        layer = keras.layers.BatchNormalization()
        layer(X)
        return bool(array(layer.moving_mean).any())


class Flax(Ours):
    kind = linen.BatchNorm
    epsilon = "epsilon"

    def trained(self, m):
        module = nnx.BatchNorm(3, momentum=m, rngs=nnx.Rngs(0))
        module(X)
        return np.asarray(module.mean[...]), np.asarray(module.var[...])

    def names(self):
        variables = linen.BatchNorm(use_running_average=True).init(__import__("jax").random.key(0), X)
        return {*variables["params"], *variables["batch_stats"]}

    def axis(self):
        return linen.BatchNorm().axis

    def trains(self):
        return not nnx.BatchNorm(3, rngs=nnx.Rngs(0)).use_running_average


class Scikit(Ours):
    kind = StandardScaler

    def trained(self, m):
        scaler = StandardScaler().fit(X)
        return m * scaler.mean_, 1 - m + m * scaler.var_  # as if there were a momentum

    def names(self):
        return set(vars(StandardScaler().fit(X)))

    def axis(self):
        return 1 if StandardScaler().fit(X).mean_.shape == X.shape[1:] else 0


class Onnx(Ours):
    def node(self, **attributes):
        inputs = ["X", "scale", "B", "input_mean", "input_var"]
        training = attributes.get("training_mode", 0)
        node = onnx.helper.make_node(
            "BatchNormalization", inputs, ["Y", "m", "v"][: 3 if training else 1], **attributes
        )
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (*inputs, *node.output)
        ]
        graph = onnx.helper.make_graph([node], "g", infos[:5], infos[5:])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=10)
        one, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
        return evaluator(model).run(None, dict(zip(inputs, (X, one, zero, zero, one), strict=True)))

    def schema(self):
        return onnx.defs.get_schema("BatchNormalization", 15)

    def default(self, name):
        return onnx.helper.get_attribute_value(self.schema().attributes[name].default_value)

    def trained(self, m):
        _, mean, var = self.node(momentum=m, training_mode=1)
        return mean, var

    def names(self):
        return {argument.name for argument in self.schema().inputs}

    def axis(self):
        return 1 if self.node()[0].shape == X.shape else 0

    def trains(self):
        return bool(self.default("training_mode"))


COLUMNS = {
    "bnorm": Ours(),
    "PyTorch": PyTorch(),
    "Keras 3": Keras(),
    "Flax": Flax(),
    "scikit-learn": Scikit(),
    "ONNX": Onnx(),
}


def momentum_weighs(library):
    mean, _ = library.trained(0.25)
    share = float(np.mean(mean / X.mean(0)))
    if isinstance(library, Scikit):
        return ABSENT
    return {0.25: "the new batch", 0.75: "the old value"}[round(share, 5)]


def default(library, name):
    if isinstance(library, Onnx):
        return float(np.float32(library.default(name)).astype(str))
    return inspect.signature(library.kind).parameters[name].default if library.kind is not StandardScaler else ABSENT


def running_variance(library):
    mean, var = library.trained(0.25)
    share = float(np.mean(mean / X.mean(0)))
    batch = (var - (1 - share)) / share
    for ddof, name in enumerate(("population", "unbiased")):
        if np.allclose(batch, X.var(0, ddof=ddof), rtol=1e-5):
            return name
    return "something else"


def named(*names):
    def found(library):
        (name,) = [name for name in names if name in library.names()] or [ABSENT]
        return name

    return found


ROWS = {
    "momentum weighs": momentum_weighs,
    "momentum by default": lambda library: default(library, "momentum"),
    "running variance": running_variance,
    "eps by default": lambda library: default(library, "epsilon" if isinstance(library, Onnx) else library.epsilon),
    "axis of the channels": lambda library: library.axis(),
    "scale": named("weight", "gamma", "scale"),
    "shift": named("bias", "beta", "B"),
    "mean": named("running_mean", "moving_mean", "mean", "mean_", "input_mean"),
    "variance": named("running_var", "moving_variance", "var", "var_", "input_var"),
    "a new layer": lambda library: (
        ABSENT if isinstance(library, Scikit) else "trains" if library.trains() else "infers"
    ),
}


def test_every_row_has_its_test():
    assert list(table()) == list(ROWS)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", ROWS)
def test_cells(row, column):
    cell = table()[row][list(COLUMNS).index(column)]
    assert str(ROWS[row](COLUMNS[column])) == cell
