"""Calls that must fail: each says who was called, which parameter, what was expected, and changes nothing."""

import inspect
import sys

import numpy as np
import pytest
from scipy.sparse import csr_array

import bnorm
import bnorm.functional as F
import cases
from bnorm import Moments
from bnorm.kernels import BACKENDS, gpu, kernels_for
from compare import assert_same
from emulated import fake_cupy
from placing import masked, read_only

rng = np.random.default_rng(0)
X, DY = rng.standard_normal((2, 8, 4))
IMAGES = rng.standard_normal((2, 4, 3, 5))
ONES = np.ones(4)
BYTES = np.zeros(1024, np.uint8)  # memory to cut overlapping arrays from


def cut(offset, shape, dtype="f8", strides=None):
    return np.ndarray(shape, dtype, BYTES, offset, strides)


def on_device(a):
    return fake_cupy.wrapped(np.array(a))


BATCH = {"x": X}
LAYER = {"x": X, "normalized_shape": 4}
GROUP = {"x": IMAGES, "num_groups": 2}
INSTANCE = {"x": IMAGES}
UNIT = {"mean": np.zeros(4), "var": ONES}

# function, what fits, what does not, the exception, the parameter it names, a part of the message
BAD = [
    # x
    ("batch_norm", BATCH, {"x": X.astype(complex)}, TypeError, "x", "complex128"),
    ("batch_norm", BATCH, {"x": X.astype("longdouble")}, TypeError, "x", "float16, float32 or float64"),
    ("batch_norm", BATCH, {"x": X.astype(object)}, TypeError, "x", "numpy.ndarray: x.astype(float) converts numbers"),
    ("batch_norm", BATCH, {"x": csr_array(X)}, TypeError, "x", "csr_array: x.toarray() is dense"),
    ("batch_norm", BATCH, {"x": X.astype(str)}, TypeError, "x", "expected real numbers"),
    ("batch_norm", BATCH, {"x": X.astype("M8[s]")}, TypeError, "x", "datetime64"),
    ("batch_norm", BATCH, {"x": np.zeros((8, 4), [("a", "f4")])}, TypeError, "x", "expected real numbers"),
    ("batch_norm", BATCH, {"x": masked(X)}, TypeError, "x", "filled() returns one, and weight= of batch, group and"),
    ("batch_norm", BATCH, {"x": [[1.0, 2.0], [3.0]]}, TypeError, "x", "list"),
    ("batch_norm", BATCH, {"x": None}, TypeError, "x", "NoneType"),
    ("batch_norm", BATCH, {"x": "X"}, TypeError, "x", "str"),
    ("batch_norm", BATCH, {"x": X[:1]}, ValueError, "x", "more than one value per channel .* got shape (1, 4)"),
    ("batch_norm", BATCH, {"x": X[:1], "eps": 0}, ValueError, "x", "mean= and var="),
    ("layer_norm", LAYER, {"x": X.astype(complex)}, TypeError, "x", "complex128"),
    ("rms_norm", LAYER, {"x": masked(X)}, TypeError, "x", "mask"),
    ("group_norm", GROUP, {"x": ONES}, ValueError, "x", "samples and one of channels, got shape (4,)"),
    ("group_norm", GROUP, {"x": X[:1], "num_groups": 4}, bnorm.SingleValueError, "x", "more than one value per group"),
    ("instance_norm", INSTANCE, {"x": X}, bnorm.SingleValueError, "x", "more than one value"),
    ("instance_norm", INSTANCE, {"x": IMAGES[:, :, :1, :1]}, ValueError, "x", "got shape (2, 4, 1, 1)"),
    ("moments", BATCH, {"x": X.astype(complex)}, TypeError, "x", "complex128"),
    # axis
    ("batch_norm", BATCH, {"axis": 2}, ValueError, "axis", "shape (8, 4), got 2"),
    ("batch_norm", BATCH, {"axis": -3}, ValueError, "axis", "got -3"),
    ("batch_norm", BATCH, {"axis": 1.0}, TypeError, "axis", "integer, got 1.0"),
    ("batch_norm", BATCH, {"axis": True}, TypeError, "axis", "got True"),
    ("batch_norm", BATCH, {"axis": (0, 1)}, TypeError, "axis", "integer"),
    ("batch_norm", BATCH, {"axis": None}, TypeError, "axis", "None"),
    ("batch_norm", BATCH, {"x": 1.0}, ValueError, "axis", "shape ()"),
    ("batch_norm", BATCH, {"x": ONES}, ValueError, "axis", "shape (4,), got 1"),
    ("group_norm", GROUP, {"axis": 4}, ValueError, "axis", "got 4"),
    ("instance_norm", INSTANCE, {"axis": "1"}, TypeError, "axis", "integer, got '1'"),
    ("moments", BATCH, {"axis": 2}, ValueError, "axis", "got 2"),
    # gamma and beta
    ("batch_norm", BATCH, {"gamma": np.ones(5)}, ValueError, "gamma", "expected shape (4,), got (5,)"),
    ("batch_norm", BATCH, {"gamma": 1.0}, ValueError, "gamma", "expected shape (4,), got ()"),
    ("batch_norm", BATCH, {"gamma": np.ones((1, 4))}, ValueError, "gamma", "got (1, 4)"),
    ("batch_norm", BATCH, {"gamma": ONES.astype(complex)}, TypeError, "gamma", "complex128"),
    ("batch_norm", BATCH, {"gamma": ONES.astype(bool)}, TypeError, "gamma", "bools"),
    ("batch_norm", BATCH, {"gamma": masked(ONES)}, TypeError, "gamma", "MaskedArray"),
    ("batch_norm", BATCH, {"gamma": ONES, "beta": np.ones(8)}, ValueError, "beta", "expected shape (4,), got (8,)"),
    ("batch_norm", BATCH, {"beta": ["a"] * 4}, TypeError, "beta", "real numbers"),
    ("layer_norm", LAYER, {"gamma": np.ones(8)}, ValueError, "gamma", "expected shape (4,), got (8,)"),
    ("layer_norm", LAYER, {"beta": np.ones((8, 4))}, ValueError, "beta", "got (8, 4)"),
    ("rms_norm", LAYER, {"gamma": np.ones(3)}, ValueError, "gamma", "got (3,)"),
    ("group_norm", GROUP, {"gamma": np.ones(2)}, ValueError, "gamma", "expected shape (4,), got (2,)"),
    ("instance_norm", INSTANCE, {"beta": np.ones(2)}, ValueError, "beta", "expected shape (4,), got (2,)"),
    # mean and var
    ("batch_norm", BATCH, {"mean": ONES}, ValueError, "var", "as mean is given"),
    ("batch_norm", BATCH, {"var": ONES}, ValueError, "mean", "as var is given"),
    ("batch_norm", BATCH, {**UNIT, "mean": np.ones(3)}, ValueError, "mean", "expected shape (4,), got (3,)"),
    ("batch_norm", BATCH, {**UNIT, "var": np.ones((4, 1))}, ValueError, "var", "expected shape (4,), got (4, 1)"),
    ("batch_norm", BATCH, {**UNIT, "var": np.array([1, 1, -1e-9, 1])}, ValueError, "var", "negative"),
    ("batch_norm", BATCH, {**UNIT, "var": np.array([1, np.nan, -1.0, 1])}, ValueError, "var", "negative"),
    ("batch_norm", BATCH, {**UNIT, "var": ONES * 1j}, TypeError, "var", "complex128"),
    # eps
    ("batch_norm", BATCH, {"eps": -1e-5}, ValueError, "eps", "got -1e-05"),
    ("batch_norm", BATCH, {"eps": np.nan}, ValueError, "eps", "finite"),
    ("batch_norm", BATCH, {"eps": np.inf}, ValueError, "eps", "finite"),
    ("batch_norm", BATCH, {"eps": 10**400}, ValueError, "eps", "finite"),
    ("batch_norm", BATCH, {"eps": "1e-5"}, TypeError, "eps", "real number"),
    ("batch_norm", BATCH, {"eps": None}, TypeError, "eps", "None"),
    ("batch_norm", BATCH, {"eps": True}, TypeError, "eps", "True"),
    ("batch_norm", BATCH, {"eps": np.timedelta64(1, "ns")}, TypeError, "eps", "real number, got np.timedelta64"),
    ("layer_norm", LAYER, {"eps": -1}, ValueError, "eps", "got -1"),
    ("rms_norm", LAYER, {"eps": 1j}, TypeError, "eps", "1j"),
    ("group_norm", GROUP, {"eps": np.float32(-1)}, ValueError, "eps", ">= 0"),
    ("instance_norm", INSTANCE, {"eps": ONES}, TypeError, "eps", "real number"),
    # activation
    (
        "batch_norm",
        BATCH,
        {"activation": "tanh"},
        ValueError,
        "activation",
        "None or one of relu, leaky_relu, silu, gelu, got 'tanh'",
    ),
    ("batch_norm", BATCH, {"negative_slope": 1}, ValueError, "negative_slope", "from 0 to below 1, got 1"),
    ("layer_norm", LAYER, {"negative_slope": -0.1}, ValueError, "negative_slope", "got -0.1"),
    ("rms_norm", LAYER, {"negative_slope": np.nan}, ValueError, "negative_slope", "got nan"),
    ("group_norm", GROUP, {"negative_slope": "0.1"}, TypeError, "negative_slope", "real number"),
    *(
        (call, arguments, {"negative_slope": np.full(2, 0.1)}, TypeError, "negative_slope", "real number")
        for call, arguments in (("batch_norm", BATCH), ("layer_norm", LAYER), ("group_norm", GROUP))
    ),
    ("batch_norm", BATCH, {"activation": "ReLU"}, ValueError, "activation", "relu, leaky_relu, silu, gelu, got 'ReLU'"),
    ("batch_norm", BATCH, {"activation": np.maximum}, TypeError, "activation", "None or a name"),
    ("layer_norm", LAYER, {"activation": ""}, ValueError, "activation", "relu"),
    ("rms_norm", LAYER, {"activation": True}, TypeError, "activation", "bool"),
    ("group_norm", GROUP, {"activation": "tanh"}, ValueError, "activation", "relu"),
    ("instance_norm", INSTANCE, {"activation": 1}, TypeError, "activation", "int"),
    # weight
    ("batch_norm", BATCH, {"weight": ONES}, ValueError, "weight", "expected shape (8,) .* got (4,)"),
    ("batch_norm", BATCH, {"weight": 1.0}, ValueError, "weight", "got ()"),
    ("batch_norm", BATCH, {"weight": np.ones((8, 1))}, ValueError, "weight", "got (8, 1)"),
    ("batch_norm", {"x": IMAGES}, {"weight": np.ones((2, 3))}, ValueError, "weight", "(2, 3, 5) or (2,) .* got (2, 3)"),
    ("batch_norm", BATCH, {"weight": -np.ones(8)}, ValueError, "weight", ">= 0"),
    ("batch_norm", BATCH, {"weight": np.array([1] * 7 + [np.nan])}, ValueError, "weight", "finite"),
    ("batch_norm", BATCH, {"weight": np.array([np.inf] + [1] * 7)}, ValueError, "weight", "finite"),
    ("batch_norm", BATCH, {**UNIT, "weight": -np.ones(8)}, ValueError, "weight", ">= 0"),
    ("batch_norm", BATCH, {"weight": np.full(8, 1e308)}, ValueError, "weight", "sum .* got inf"),
    ("batch_norm", BATCH, {"weight": np.full(8, 1e-300)}, ValueError, "weight", "sum .* got 8e-300"),
    ("batch_norm", BATCH, {"weight": np.ones(8, complex)}, TypeError, "weight", "complex128"),
    ("batch_norm", BATCH, {"weight": masked(np.ones(8))}, TypeError, "weight", "MaskedArray"),
    ("batch_norm", BATCH, {"weight": np.arange(8) == 3}, ValueError, "x", "with one weight above zero"),
    ("moments", BATCH, {"weight": -np.ones(8)}, ValueError, "weight", ">= 0"),
    ("moments", BATCH, {"weight": np.ones(7)}, ValueError, "weight", "expected shape (8,)"),
    ("moments", BATCH, {"skipna": 1}, TypeError, "skipna", "True or False, got 1"),
    ("moments", BATCH, {"skipna": "yes"}, TypeError, "skipna", "'yes'"),
    # normalized_shape and num_groups
    ("layer_norm", LAYER, {"normalized_shape": 8}, ValueError, "normalized_shape", "shape (8, 4), got (8,)"),
    ("layer_norm", LAYER, {"normalized_shape": (4, 8)}, ValueError, "normalized_shape", "got (4, 8)"),
    ("layer_norm", LAYER, {"normalized_shape": (1, 8, 4)}, ValueError, "normalized_shape", "got (1, 8, 4)"),
    ("layer_norm", LAYER, {"normalized_shape": ()}, ValueError, "normalized_shape", "got ()"),
    ("layer_norm", LAYER, {"normalized_shape": 4.0}, TypeError, "normalized_shape", "4.0"),
    ("layer_norm", LAYER, {"normalized_shape": (4.0,)}, TypeError, "normalized_shape", "4.0"),
    ("layer_norm", LAYER, {"normalized_shape": None}, TypeError, "normalized_shape", "None"),
    ("layer_norm", LAYER, {"x": 1.0}, ValueError, "normalized_shape", "shape ()"),
    ("rms_norm", LAYER, {"normalized_shape": -4}, ValueError, "normalized_shape", "got (-4,)"),
    ("group_norm", GROUP, {"num_groups": 3}, ValueError, "num_groups", "divisor of the 4 channels, got 3"),
    ("group_norm", GROUP, {"num_groups": 0}, ValueError, "num_groups", "got 0"),
    ("group_norm", GROUP, {"num_groups": -2}, ValueError, "num_groups", "got -2"),
    ("group_norm", GROUP, {"num_groups": 2.0}, TypeError, "num_groups", "integer, got 2.0"),
    ("group_norm", GROUP, {"num_groups": ONES}, TypeError, "num_groups", "integer"),
    # out
    ("batch_norm", BATCH, {"out": np.zeros((4, 8))}, ValueError, "out", "expected shape (8, 4), got (4, 8)"),
    ("batch_norm", BATCH, {"out": np.zeros((8, 4, 1))}, ValueError, "out", "got (8, 4, 1)"),
    ("batch_norm", BATCH, {"out": np.zeros((8, 4), "f4")}, TypeError, "out", "expected dtype float64, got float32"),
    ("batch_norm", BATCH, {"x": X.astype("f4"), "out": X}, TypeError, "out", "expected dtype float32, got float64"),
    ("batch_norm", BATCH, {"x": X.astype(int), "out": np.zeros((8, 4), int)}, TypeError, "out", "dtype float64"),
    ("batch_norm", BATCH, {"out": X.tolist()}, TypeError, "out", "NumPy array, got list"),
    ("batch_norm", BATCH, {"out": masked(X.copy())}, TypeError, "out", "MaskedArray"),
    ("batch_norm", BATCH, {"out": read_only(np.zeros((8, 4)))}, ValueError, "out", "read-only"),
    ("batch_norm", BATCH, {"out": cut(0, (8, 4), strides=(0, 8))}, ValueError, "out", "of its own"),
    ("batch_norm", BATCH, {"out": cut(0, (8, 4), strides=(8, 8))}, ValueError, "out", "of its own"),
    ("batch_norm", BATCH, {"out": cut(0, (8, 4), strides=(16, 8))}, ValueError, "out", "of its own"),
    ("batch_norm", {"x": cut(0, (8, 4))}, {"out": cut(8, (8, 4))}, ValueError, "out", "overlaps x"),
    ("batch_norm", {"x": cut(0, (2, 4))}, {"out": cut(0, (2, 4), strides=(64, 8))}, ValueError, "out", "overlaps x"),
    ("batch_norm", {"x": cut(0, (4, 4))}, {"out": cut(0, (4, 4)).T}, ValueError, "out", "overlaps x"),
    ("batch_norm", {"x": cut(0, (8, 4))}, {"out": cut(0, (8, 4))[::-1]}, ValueError, "out", "overlaps x"),
    ("batch_norm", {"x": cut(0, (8, 4), "i8")}, {"out": cut(0, (8, 4))}, ValueError, "out", "overlaps x"),
    ("batch_norm", BATCH, {"gamma": cut(64, 4), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps gamma"),
    ("batch_norm", BATCH, {"beta": cut(64, 4, "f4"), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps beta"),
    ("batch_norm", BATCH, {**UNIT, "mean": cut(64, 4), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps mean"),
    ("batch_norm", BATCH, {**UNIT, "var": cut(64, 4), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps var"),
    ("batch_norm", BATCH, {"weight": cut(64, 8, "?"), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps weight"),
    ("layer_norm", LAYER, {"out": np.zeros((8, 4), "f4")}, TypeError, "out", "float32"),
    ("layer_norm", LAYER, {"gamma": cut(64, 4), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps gamma"),
    ("rms_norm", LAYER, {"out": read_only(np.zeros((8, 4)))}, ValueError, "out", "read-only"),
    ("group_norm", GROUP, {"out": np.zeros((2, 4, 3, 4))}, ValueError, "out", "got (2, 4, 3, 4)"),
    ("instance_norm", INSTANCE, {"out": IMAGES[:, ::-1]}, ValueError, "out", "overlaps x"),
    # CuPy
    ("batch_norm", BATCH, {"gamma": on_device(ONES)}, TypeError, "gamma", "NumPy array, as x is one, got a CuPy array"),
    ("batch_norm", BATCH, {"beta": on_device(ONES)}, TypeError, "beta", "cupy.asnumpy(beta) .* cupy.asarray(x)"),
    ("batch_norm", BATCH, {**UNIT, "mean": on_device(ONES)}, TypeError, "mean", "do not mix"),
    ("batch_norm", BATCH, {**UNIT, "var": on_device(ONES)}, TypeError, "var", "do not mix"),
    ("batch_norm", BATCH, {"out": on_device(X)}, TypeError, "out", "NumPy and CuPy arrays do not mix"),
    ("batch_norm", BATCH, {"weight": on_device(np.ones(8))}, TypeError, "weight", "cupy.asnumpy(weight)"),
    ("layer_norm", LAYER, {"gamma": on_device(ONES)}, TypeError, "gamma", "got a CuPy array"),
    ("group_norm", GROUP, {"beta": on_device(ONES)}, TypeError, "beta", "got a CuPy array"),
    ("moments", BATCH, {"weight": on_device(np.ones(8))}, TypeError, "weight", "cupy.asarray(x)"),
]

# of a batch_norm of X: dy and out, the exception, the parameter it names, a part of the message
BAD_BACKWARD = [
    ({"dy": X[:4]}, ValueError, "dy", "(8, 4), got (4, 4)"),
    ({"dy": X.T}, ValueError, "dy", "got (4, 8)"),
    ({"dy": 1.0}, ValueError, "dy", "got ()"),
    ({"dy": X.astype(complex)}, TypeError, "dy", "complex128"),
    ({"dy": X.astype(object)}, TypeError, "dy", "object"),
    ({"dy": masked(X)}, TypeError, "dy", "MaskedArray"),
    ({"dy": None}, TypeError, "dy", "NoneType"),
    ({"dy": on_device(DY)}, TypeError, "dy", "NumPy and CuPy arrays do not mix; cupy.asnumpy(dy)"),
    ({"out": on_device(DY)}, TypeError, "out", "expected a NumPy array, as x is one, got a CuPy array"),
    ({"saved": None}, TypeError, "saved", "got NoneType"),
    ({"saved": X}, TypeError, "saved", "ndarray"),
    ({"out": np.zeros((4, 4))}, ValueError, "out", "expected shape (8, 4), got (4, 4)"),
    ({"out": np.zeros((8, 4), "f4")}, TypeError, "out", "float32"),
    ({"out": X.tolist()}, TypeError, "out", "list"),
    ({"out": read_only(np.zeros((8, 4)))}, ValueError, "out", "read-only"),
    ({"out": X[::-1]}, ValueError, "out", "dy itself or memory of its own, got one that overlaps x"),
    ({"dy": cut(0, (8, 4)), "out": cut(8, (8, 4))}, ValueError, "out", "overlaps dy"),
    ({"dy": cut(0, (8, 4), "i8"), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps dy"),
]


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)


def must_fail(function, arguments, exception, parameter, message):
    """The call raises, names the function and the parameter, and changes no argument."""
    arrays = [a for a in arguments.values() if isinstance(a, np.ndarray)]
    before = [(a.shape, a.dtype, a.tobytes()) for a in arrays]
    with pytest.raises(exception) as caught:
        function(**arguments)
    assert [(a.shape, a.dtype, a.tobytes()) for a in arrays] == before
    text = str(caught.value)
    assert text.startswith(f"{function.__name__}: {parameter}: expected "), text
    place = 0
    for part in message.split(".*"):  # in this order
        assert part.strip() in text[place:], f"{part!r} in {text!r}"
        place = text.index(part.strip(), place)


def named(rows):
    return [f"{i}-{row[0] if isinstance(row[0], str) else 'backward'}-{row[-2]}" for i, row in enumerate(rows)]


@pytest.mark.parametrize(("name", "good", "bad", "exception", "parameter", "message"), BAD, ids=named(BAD))
def test_bad_calls(name, good, bad, exception, parameter, message):
    must_fail(getattr(F, name), good | bad, exception, parameter, message)


@pytest.mark.parametrize(("bad", "exception", "parameter", "message"), BAD_BACKWARD, ids=named(BAD_BACKWARD))
def test_bad_backwards(bad, exception, parameter, message):
    _, saved = F.batch_norm(X)
    want, _, _ = F.backward(DY, saved)
    must_fail(F.backward, {"dy": DY, "saved": saved} | bad, exception, parameter, message)
    assert_same(F.backward(DY, saved)[0], want)  # the forward is as it was


def test_what_fits_does_fit():
    """Else the calls above might fail for another reason."""
    for name, good, *_ in BAD:
        getattr(F, name)(**good)


def test_numpy_integers_and_reals_are_numbers():
    want, _ = F.batch_norm(X, axis=1, eps=0.5)
    assert_same(F.batch_norm(X, axis=np.int8(1), eps=np.float32(0.5))[0], want)
    want, _ = F.group_norm(IMAGES, 2, eps=1.0)
    assert_same(F.group_norm(IMAGES, np.uint16(2), eps=1)[0], want)
    want, _ = F.layer_norm(X, normalized_shape=4)
    for shape in ((4,), [4], np.int64(4), (np.int32(4),)):
        assert_same(F.layer_norm(X, normalized_shape=shape)[0], want)


def test_backward_after_a_forward_that_overwrote_its_input():
    x = X.copy()
    _, saved = F.batch_norm(x, out=x)
    with pytest.raises(RuntimeError, match=r"^backward: x: expected it as it was in the forward, got one that out="):
        F.backward(X, saved)


@pytest.mark.parametrize("name", ["batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm", "moments"])
def test_options_are_keywords(name):
    required = {"x", "num_groups", "normalized_shape"}
    for parameter in inspect.signature(getattr(F, name)).parameters.values():
        if parameter.name not in {"x", "num_groups", "gamma", "beta"}:
            assert parameter.kind is parameter.KEYWORD_ONLY, parameter
        assert (parameter.default is parameter.empty) == (parameter.name in required), parameter


def test_the_backend_is_that_of_the_type_of_array():
    before = set(sys.modules)
    assert kernels_for(X, "here") is kernels_for([1.0], "here") is BACKENDS[np.ndarray]
    device_x = on_device(X)
    assert kernels_for(device_x, "here") is gpu
    for value in ([1.0], 1.0, np.float64(1)):  # what is no array goes along
        assert kernels_for(value, "here", "gamma", type(device_x)) is gpu
    for value in (X, np.ma.array(X), np.array(1.0)):
        with pytest.raises(TypeError, match=r"^here: gamma: expected a CuPy array, as x is one, got a NumPy array"):
            kernels_for(value, "here", "gamma", type(device_x))
    assert set(sys.modules) == before  # looking imports nothing


BAD_MOMENTS = [
    (([1], [1, 2], [1]), ValueError, "mean", "expected shape (1,), that of count, got (2,)"),
    (([1], [1], [1, 2]), ValueError, "m2", "got (2,)"),
    (([[1]], [1], [1]), ValueError, "mean", "expected shape (1, 1), that of count, got (1,)"),
    (([-1], [1], [1]), ValueError, "count", ">= 0"),
    (([np.inf], [1], [1]), ValueError, "count", "finite"),
    (([np.nan], [1], [1]), ValueError, "count", "finite"),
    (([1], [1], [-1]), ValueError, "m2", "negative"),
    (([1], ["a"], [1]), TypeError, "mean", "real numbers"),
    (([1], [1j], [1]), TypeError, "mean", "complex128"),
    ((ONES, on_device(ONES), ONES), TypeError, "mean", "as count is one, got a CuPy array"),
]


@pytest.mark.parametrize(("arguments", "exception", "parameter", "message"), BAD_MOMENTS)
def test_bad_moments(arguments, exception, parameter, message):
    must_fail(Moments, dict(zip(("count", "mean", "m2"), arguments, strict=True)), exception, parameter, message)


def test_moments_that_do_not_merge():
    two, three = Moments([1, 1], [0, 0], [0, 0]), Moments([1] * 3, [0] * 3, [0] * 3)
    with pytest.raises(ValueError, match=r"^Moments.merge: items: expected one number of channels, got \[2, 3\]"):
        two + three
    with pytest.raises(ValueError, match=r"^Moments.merge: items: .* got no items"):
        Moments.merge([])
    with pytest.raises(TypeError, match=r"^Moments.merge: items: expected Moments, got int"):
        Moments.merge([two, 0])
    with pytest.raises(TypeError):
        two + 1
    with pytest.raises(TypeError):
        1 + two
    with pytest.raises(AttributeError):
        two.mean = np.zeros(2)
    for values in (two.count, two.mean, two.m2):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_every_function_has_bad_calls():
    assert {name for name, *_ in BAD} == set(F.__all__) - {"Saved", "backward", "double_backward"}


def test_a_wrong_type_is_wrong_in_any_memory():
    for memory in (cases.strided, cases.byte_swapped, cases.unaligned, cases.broadcast, cases.read_only):
        with pytest.raises(TypeError, match=r"^batch_norm: x: expected real numbers, got dtype"):
            F.batch_norm(memory(X.astype(complex)))
