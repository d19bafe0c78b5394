"""Calls of layers that must fail: each names the layer and what was expected, and changes nothing at all."""

import sys
from types import ModuleType

import numpy as np
import pytest

import bnorm
from compare import assert_same
from layer_oracle import held
from placing import masked, read_only

rng = np.random.default_rng(0)
X, DY = rng.standard_normal((2, 2, 4, 3, 2))
EITHER = (ValueError, TypeError)
NAN = float("nan")


class FakeCupyArray:
    """A stand-in: its type is what CuPy's is to the library."""


@pytest.fixture(autouse=True)
def fake_cupy(monkeypatch):
    cupy = ModuleType("cupy")
    cupy.ndarray = FakeCupyArray
    monkeypatch.setitem(sys.modules, "cupy", cupy)


# Calls of one layer --------------------------------------------------------------------------------------------------

# what is called, with what, the exception, the parameter, and parts of the message in their order
CALLS = [
    # x
    ("call", {"x": X[0]}, ValueError, "", "expected 4 dimensions (N, C, H, W), got shape (4, 3, 2)"),
    ("call", {"x": X[None]}, ValueError, "", "expected 4 dimensions (N, C, H, W), got shape (1, 2, 4, 3, 2)"),
    ("call", {"x": X[0, 0, 0]}, ValueError, "", "expected 4 dimensions .* got shape (2,)"),
    ("call", {"x": 1.0}, ValueError, "", "expected 4 dimensions .* got shape ()"),
    ("call", {"x": X[:, :3]}, ValueError, "", "4 channels .* got shape (2, 3, 3, 2)"),
    ("call", {"x": X.transpose(0, 2, 3, 1)}, ValueError, "", "got shape (2, 3, 2, 4); axis=-1 takes the axis of 4 for"),
    ("call", {"x": X.astype(complex)}, TypeError, "x", "complex128"),
    ("call", {"x": X.astype("longdouble")}, TypeError, "x", "float16, float32 or float64"),
    ("call", {"x": X.astype(str)}, TypeError, "x", "real numbers"),
    ("call", {"x": X.astype(object)}, TypeError, "x", "object"),
    ("call", {"x": masked(X)}, TypeError, "x", "mask"),
    ("call", {"x": None}, TypeError, "x", "NoneType"),
    ("call", {"x": "X"}, TypeError, "x", "str"),
    ("call", {"x": FakeCupyArray()}, TypeError, "x", "CuPy"),
    # weight
    ("call", {"weight": np.ones(4)}, ValueError, "weight", "(2, 3, 2) or (2,) .* got (4,)"),
    ("call", {"weight": np.ones((2, 3))}, ValueError, "weight", "got (2, 3)"),
    ("call", {"weight": np.ones((2, 1))}, ValueError, "weight", "got (2, 1)"),
    ("call", {"weight": np.ones((2, 4, 3, 2))}, ValueError, "weight", "got (2, 4, 3, 2)"),
    ("call", {"weight": 1.0}, ValueError, "weight", "got ()"),
    ("call", {"weight": np.array([1.0, -1.0])}, ValueError, "weight", ">= 0"),
    ("call", {"weight": np.array([1.0, NAN])}, ValueError, "weight", "finite"),
    ("call", {"weight": np.array([1.0, np.inf])}, ValueError, "weight", "finite"),
    ("call", {"weight": np.ones(2, complex)}, TypeError, "weight", "complex128"),
    ("call", {"weight": np.array(["a", "b"])}, TypeError, "weight", "real numbers"),
    ("call", {"weight": FakeCupyArray()}, TypeError, "weight", "CuPy"),
    # out
    ("call", {"out": np.empty((2, 4, 2, 3))}, ValueError, "out", "(2, 4, 3, 2), got (2, 4, 2, 3)"),
    ("call", {"out": np.empty(48)}, ValueError, "out", "got (48,)"),
    ("call", {"out": np.empty(X.shape, "f4")}, TypeError, "out", "float64, got float32"),
    ("call", {"out": X.tolist()}, TypeError, "out", "list"),
    ("call", {"out": read_only(X.copy())}, ValueError, "out", "read-only"),
    ("call", {"out": X[::-1]}, ValueError, "out", "overlaps x"),
    ("call", {"out": np.broadcast_to(np.zeros(2), X.shape)}, ValueError, "out", ""),
    ("call", {"out": FakeCupyArray()}, TypeError, "out", "CuPy"),
    # backward
    ("backward", {"dy": DY[:1]}, ValueError, "dy", "(2, 4, 3, 2), got (1, 4, 3, 2)"),
    ("backward", {"dy": DY[0]}, ValueError, "dy", "got (4, 3, 2)"),
    ("backward", {"dy": 1.0}, ValueError, "dy", "got ()"),
    ("backward", {"dy": DY.astype(complex)}, TypeError, "dy", "complex128"),
    ("backward", {"dy": DY.astype(object)}, TypeError, "dy", "object"),
    ("backward", {"dy": masked(DY)}, TypeError, "dy", "mask"),
    ("backward", {"dy": None}, TypeError, "dy", "NoneType"),
    ("backward", {"dy": FakeCupyArray()}, TypeError, "dy", "CuPy"),
    ("backward", {"out": np.empty((2, 4))}, ValueError, "out", "(2, 4, 3, 2), got (2, 4)"),
    ("backward", {"out": np.empty(X.shape, "f4")}, TypeError, "out", "float32"),
    ("backward", {"out": read_only(X.copy())}, ValueError, "out", "read-only"),
    ("backward", {"out": DY[::-1]}, ValueError, "out", "overlaps dy"),
    ("backward", {"out": [1.0]}, TypeError, "out", "list"),
    # mode and device
    ("train", {"mode": "yes"}, EITHER, "", "got 'yes'"),
    ("train", {"mode": 1.5}, EITHER, "", "got 1.5"),
    ("to", {"device": "tpu"}, ValueError, "device", "'tpu'"),
    ("to", {"device": None}, EITHER, "device", "None"),
    ("to", {"device": 0}, EITHER, "device", "0"),
]
IN_TRAINING = [  # inference needs no variance of the batch
    ("call", {"x": X[:1, :, :1, :1]}, ValueError, "x", "more than one value per channel .* (1, 4, 1, 1)"),
    ("call", {"weight": np.arange(12).reshape(2, 3, 2) == 5}, ValueError, "x", "one weight above zero"),
]
CASES = [(training, *row) for training in (True, False) for row in (*CALLS, *(IN_TRAINING if training else ()))]
GOOD = {"call": {"x": X}, "backward": {"dy": DY}, "train": {}, "to": {}, "load": {}}


def layer():
    """A layer in the middle of things: trained, with gradients, and with a forward that waits for its backward."""
    bn = bnorm.BatchNorm2d(4, momentum=None, ddof=1)
    values = np.random.default_rng(1)
    bn.gamma, bn.beta = values.uniform(0.5, 2, 4), values.standard_normal(4)
    for _ in range(2):
        bn(values.standard_normal((2, 4, 3, 2)))
        bn.backward(values.standard_normal((2, 4, 3, 2)))
    bn(values.standard_normal((2, 4, 3, 2)))
    return bn


def assert_says(text, message):
    """The parts of the message, in their order."""
    place = 0
    for part in filter(None, map(str.strip, message.split(".*"))):
        assert part in text[place:], f"{part!r} in {text!r}"
        place = text.index(part, place)


def must_fail(bn, call, exception, parameter, message=""):
    """The call raises and says why, and afterwards the layer goes on as one that knows nothing of it."""
    other = layer()
    other.training = bn.training
    before = held(bn)
    with pytest.raises(exception) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(f"{type(bn).__name__}(4"), text
    assert "expected " in text and "got " in text, text
    assert f"): {parameter}: expected " in text or not parameter, text
    assert_says(text, message)
    assert held(bn) == before == held(other)
    assert_same(bn.backward(DY), other.backward(DY))  # of the forward before
    for each in (bn, other):
        each(X)
        each.backward(DY)
    assert held(bn) == held(other)


def case_id(i, training, name, bad, *rest):
    return "-".join([str(i), "training" if training else "inference", name, *bad])


@pytest.mark.parametrize(
    ("training", "name", "bad", "exception", "parameter", "message"),
    CASES,
    ids=[case_id(i, *row) for i, row in enumerate(CASES)],
)
def test_bad_calls(training, name, bad, exception, parameter, message):
    bn = layer()
    bn.training = training
    method = bn if name == "call" else getattr(bn, name)
    must_fail(bn, lambda: method(**GOOD[name] | bad), exception, parameter, message)


@pytest.mark.filterwarnings("ignore:.* has no counts")
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(
    "row", [row for row in (*CALLS, *IN_TRAINING) if row[0] == "call"], ids=lambda row: row[4][-20:]
)
def test_bad_calls_after_loading(momentum, row):
    """A plain dictionary leaves something to be settled by the next batch: not by one that is refused."""
    _, bad, exception, parameter, message = row
    layers = [bnorm.BatchNorm2d(4, momentum=momentum) for _ in range(2)]
    for bn in layers:
        bn.load_state_dict(dict(layer().state_dict()))
    with pytest.raises(exception, match=rf"^BatchNorm2d\(4\): ({parameter}: )?expected ") as caught:
        layers[0](**{"x": X} | bad)
    assert_says(str(caught.value), message)
    for bn in layers:
        bn(X)
    assert held(layers[0]) == held(layers[1])


def test_what_fits_does_fit():
    """Else the calls above might fail for another reason."""
    bn = layer()
    bn(X)
    bn.backward(DY)
    bn.train(True).to("cpu")


@pytest.mark.parametrize("pooled", [True, False])
def test_bad_calls_inside_a_pool(pooled):
    """The pool goes on as if there had been no such call."""
    bn, other = layer(), layer()
    for each in (bn, other):
        with each.pooled_stats() if pooled else each.frozen_stats():
            each(X)
            if each is bn:
                for _, bad, exception, _, _ in [row for row in (*CALLS, *IN_TRAINING) if row[0] == "call"]:
                    with pytest.raises(exception):
                        bn(**{"x": X} | bad)
            each(DY)
    assert held(bn) == held(other)


OWN = {
    "gamma": lambda layer: layer.gamma.data,
    "beta": lambda layer: layer.beta.data,
    "the gradient of gamma": lambda layer: layer.gamma.grad,
    "the gradient of beta": lambda layer: layer.beta.grad,
    "running_mean": lambda layer: layer.running_mean,
    "running_var": lambda layer: layer.running_var,
}
OWNERS = [(bnorm.BatchNorm1d, own) for own in OWN] + [(bnorm.LayerNorm, own) for own in list(OWN)[:4]]


@pytest.mark.parametrize(("cls", "own"), OWNERS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("method", ["forward", "backward"])
def test_out_is_not_the_memory_of_the_layer(cls, own, training, method):
    layer, other = cls(4), cls(4)
    x = rng.standard_normal((2, 4)).astype("f4")
    for each in (layer, other):
        each.training = training
        each(x)
    before = held(layer)
    with pytest.raises(ValueError, match=rf"^{cls.__name__}\(4\): out: expected .* overlaps"):
        getattr(layer, method)(x, out=OWN[own](layer).view("f4").reshape(2, 4))
    assert held(layer) == before
    assert_same(layer.backward(x), other.backward(x))


def test_out_is_not_the_memory_of_the_weights():
    bn, memory = bnorm.BatchNorm1d(4), np.ones(8)
    before = held(bn)
    with pytest.raises(ValueError, match=r"^BatchNorm1d\(4\): out: expected .* overlaps weight"):
        bn(np.arange(8.0).reshape(2, 4), memory[:2], memory.reshape(2, 4))
    assert held(bn) == before


# Assignments ---------------------------------------------------------------------------------------------------------

ASSIGNMENTS = [
    *(("eps", value) for value in (-1.0, NAN, "1", None)),
    *(("momentum", value) for value in (-0.1, 2.0, NAN, "0.1")),
    *(("nonfinite", value) for value in ("ignore", None)),
    *(("on_single", value) for value in ("skip", None)),
    *(("training", value) for value in ("yes", None, 2)),
    *((name, value) for name in ("gamma", "beta") for value in (np.ones(5), 1.0, np.ones(4) * 1j, ["a"] * 4)),
    *((name, value) for name in ("running_mean", "running_var") for value in (np.ones(5), np.ones(4) * 1j, ["a"] * 4)),
]


@pytest.mark.parametrize(("name", "value"), ASSIGNMENTS, ids=[f"{name}-{value}" for name, value in ASSIGNMENTS])
def test_bad_assignments(name, value):
    bn = layer()
    must_fail(bn, lambda: setattr(bn, name, value), EITHER, name)


@pytest.mark.parametrize(
    "name", ["num_features", "ddof", "axis", "affine", "track_running_stats", "activation", "negative_slope"]
)
def test_what_cannot_change_after_construction(name):
    bn = layer()
    before, value = held(bn), getattr(bn, name)
    with pytest.raises((AttributeError, ValueError, TypeError)):
        setattr(bn, name, value)
    assert getattr(bn, name) == value
    assert held(bn) == before


# Other ranks ---------------------------------------------------------------------------------------------------------

DIMENSIONS = [
    ("BatchNorm1d", (4,), "2 or 3 dimensions (N, C) or (N, C, L)"),
    ("BatchNorm1d", (2, 4, 3, 2), "2 or 3 dimensions (N, C) or (N, C, L)"),
    ("BatchNorm2d", (8, 64, 32), "4 dimensions (N, C, H, W)"),
    ("BatchNorm3d", (2, 4, 3, 2), "5 dimensions (N, C, D, H, W)"),
    ("InstanceNorm2d", (2, 4, 3), "4 dimensions (N, C, H, W)"),
    ("InstanceNorm3d", (2, 4, 3, 2), "5 dimensions (N, C, D, H, W)"),
]


@pytest.mark.parametrize(("name", "shape", "message"), DIMENSIONS)
def test_the_dimensions_are_named(name, shape, message):
    with pytest.raises(ValueError) as caught:
        getattr(bnorm, name)(64)(np.zeros(shape))
    assert str(caught.value) == f"{name}(64): expected {message}, got shape {shape}"
