"""`Parameter`: an array where arrays are wanted, with its gradient beside it."""

import copy
import operator
import pickle

import numpy as np
import pytest

import bnorm
from bnorm import Parameter
from compare import assert_same
from drawing import together


def parameter(dtype="float64"):
    p = Parameter(np.array([1.0, 2.0, -3.0, 4.0], dtype))
    p.grad = np.array([0.5, 0.25, 1.0, -1.0])
    return p


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_new_parameter(dtype):
    p = Parameter(np.ones((2, 3), dtype))
    assert (p.shape, p.ndim, p.size, p.dtype) == ((2, 3), 2, 6, np.dtype(dtype))
    assert type(p.data) is type(p.grad) is np.ndarray
    assert p.data.dtype == p.grad.dtype == np.dtype(dtype)
    assert_same(p.grad, np.zeros((2, 3)))
    assert p.requires_grad is True
    assert Parameter(np.ones(2), requires_grad=False).requires_grad is False
    p.requires_grad = False
    assert p.requires_grad is False
    for value in (1, "no", None):
        with pytest.raises(TypeError, match=r"^Parameter: requires_grad: expected True or False, got "):
            p.requires_grad = value
    assert p.requires_grad is False


def test_what_cannot_be_written_to_is_copied():
    values = np.arange(6.0)
    values.flags.writeable = False
    for given in (values, values[::-2], values.astype(">f8"), values.astype("f4")[1:].view("f4")[::2]):
        p = Parameter(given)
        p += 1
        assert_same(p, given + 1)
        assert p.data.flags.carray and p.dtype.isnative and not np.shares_memory(p.data, given)


def test_it_is_its_array():
    p = parameter()
    assert p.data is p.data and p.grad is p.grad
    assert np.asarray(p) is p.data
    assert np.shares_memory(np.array(p, copy=False), p.data)
    assert not np.shares_memory(np.array(p), p.data)
    assert np.asarray(p, "float32").dtype == np.float32
    assert_same(np.concatenate([p, p]), np.concatenate([p.data, p.data]))


def test_data_and_grad_are_filled_in_place():
    p = parameter()
    data, grad = p.data, p.grad
    p.data = [5, 6, 7, 8]
    p.grad = np.arange(4, dtype="int8")
    assert p.data is data and p.grad is grad
    assert_same(data, [5.0, 6, 7, 8])
    assert_same(grad, [0.0, 1, 2, 3])
    p.grad = None
    assert p.grad is grad and not grad.any()
    p.grad = np.ones(4)
    p.zero_grad()
    assert p.grad is grad and not grad.any()


def test_what_is_assigned_is_copied():
    p, values = parameter(), np.zeros(4)
    p.data = values
    p.grad = values
    values[:] = 9
    assert not p.data.any() and not p.grad.any()


def test_what_is_assigned_is_written_whole_or_not_at_all():
    """NumPy converts value by value, and may be set to raise at one of them."""
    bn, values = bnorm.BatchNorm1d(3, dtype="float32"), [5.0, 1e300, 2.0]
    places = (bn, "gamma"), (bn, "running_mean"), (bn, "running_var"), (bn.beta, "data"), (bn.beta, "grad")
    for holder, name in places:
        before = np.array(getattr(holder, name))
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            setattr(holder, name, values)
        assert_same(getattr(holder, name), before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_optimizer_steps(dtype):
    p = parameter(dtype)
    data, before, grad = p.data, p.data.copy(), p.grad.copy()
    p.data -= 0.1 * p.grad
    want = before - 0.1 * grad
    assert_same(p.data, want)
    p -= 0.1 * p.grad
    want = want - 0.1 * grad
    assert_same(p, want)
    assert isinstance(p, Parameter) and p.data is data and p.dtype == np.dtype(dtype)
    assert_same(p.grad, grad)


def test_a_layer_is_stepped_through_its_attribute():
    bn = bnorm.BatchNorm1d(4)
    gamma, data = bn.gamma, bn.gamma.data
    bn.gamma.grad += [1, 2, 3, 4]
    bn.gamma -= 0.1 * bn.gamma.grad
    assert bn.gamma is gamma and gamma.data is data
    assert_same(data, 1 - 0.1 * np.arange(1.0, 5))
    bn.gamma = np.arange(4, dtype="f4")
    assert bn.gamma is gamma and gamma.data is data and data.dtype == np.float64
    assert_same(data, np.arange(4.0))
    bn.beta = bnorm.BatchNorm1d(4).gamma
    assert_same(bn.beta, np.ones(4))
    assert bn.beta is not gamma and not np.shares_memory(bn.beta, gamma)


BINARY = "add sub mul truediv floordiv mod pow lt le gt ge eq ne".split()
OTHERS = {
    "int": 2,
    "float": 2.5,
    "float32": np.float32(2),
    "vector": np.arange(1.0, 5),
    "matrix": np.ones((3, 4)),
    "parameter": parameter(),
}


@together(dtype=["float32", "float64"], other=OTHERS.values())
@pytest.mark.parametrize("name", BINARY)
def test_operators_of_two_are_those_of_the_array(name, other, dtype):
    apply, p = getattr(operator, name), parameter(dtype)
    p.data[...] = abs(p.data)  # for the powers
    before, plain = p.data.copy(), abs(other.data) if isinstance(other, Parameter) else other
    if isinstance(other, Parameter):
        other = Parameter(plain)
    for got, want in ((apply(p, other), apply(p.data, plain)), (apply(other, p), apply(plain, p.data))):
        assert type(got) is type(want) is np.ndarray and got.dtype == want.dtype
        assert_same(got, want)
    assert_same(p.data, before)


@pytest.mark.parametrize("name", ["neg", "pos", "abs"])
def test_operators_of_one_are_those_of_the_array(name):
    apply, p = getattr(operator, name), parameter()
    assert type(apply(p)) is np.ndarray
    assert_same(apply(p), apply(p.data))
    assert not np.shares_memory(apply(p), p.data)


def test_matrix_products():
    p, a = parameter(), np.arange(12.0).reshape(3, 4)
    assert_same(a @ p, a @ p.data)
    assert_same(p @ a.T, p.data @ a.T)
    assert p @ p == p.data @ p.data


@pytest.mark.parametrize("ufunc", [np.add, np.maximum, np.multiply, np.true_divide, np.hypot])
def test_ufuncs_of_two(ufunc):
    p, a = parameter(), np.arange(1.0, 5)
    for got, want in (
        (ufunc(p, a), ufunc(p.data, a)),
        (ufunc(a, p), ufunc(a, p.data)),
        (ufunc(p, p), ufunc(p.data, p.data)),
    ):
        assert type(got) is np.ndarray
        assert_same(got, want)
    assert_same(ufunc(p, a, out=a), ufunc(p.data, np.arange(1.0, 5)))
    assert_same(ufunc.reduce(p), ufunc.reduce(p.data))
    assert_same(ufunc.outer(p, a), ufunc.outer(p.data, a))


def test_functions_of_one():
    p = parameter()
    for function in (np.exp, np.square, np.isfinite, np.sum, np.mean, np.linalg.norm, np.sort, len, list, np.shape):
        got, want = function(p), function(p.data)
        assert type(got) is type(want), function
        assert_same(got, want, function=function)


INPLACE = {
    "+=": lambda a: a.__iadd__(2),
    "-=": lambda a: a.__isub__(2),
    "*=": lambda a: a.__imul__([1.0, 2, 3, 4]),
    "/=": lambda a: a.__itruediv__(4),
    "**=": lambda a: a.__ipow__(2),
}


@pytest.mark.parametrize("name", INPLACE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operators_in_place(name, dtype):
    p, data, want = parameter(dtype), None, parameter(dtype).data
    data = p.data
    assert INPLACE[name](p) is p
    INPLACE[name](want)
    assert p.data is data and data.dtype == np.dtype(dtype)
    assert_same(data, want)
    assert_same(p.grad, parameter().grad)


def test_indexing():
    p = parameter()
    assert p[0] == 1 and p[-1] == 4 and len(p) == 4
    assert_same(p[1:3], p.data[1:3])
    assert_same(p[p.data > 0], [1.0, 2, 4])
    p[0] = 10
    p[1:3] = [11, 12]
    assert_same(p.data, [10.0, 11, 12, 4])
    p[...] = 0
    assert_same(p.data, np.zeros(4))


@pytest.mark.parametrize("name", ["data", "grad"])
@pytest.mark.parametrize(
    ("value", "exception"),
    [
        (np.ones(5), ValueError),
        (np.ones((1, 4)), ValueError),
        (np.ones((4, 1)), ValueError),
        (1.0, ValueError),
        (np.ones(0), ValueError),
        (np.ones(4) * 1j, TypeError),
        (np.array(["a"] * 4), TypeError),
        (np.array([None] * 4), TypeError),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(name, value, exception):
    p = parameter()
    with pytest.raises(exception, match=r"^Parameter.*: expected "):
        setattr(p, name, value)
    assert_same(p.data, parameter().data)
    assert_same(p.grad, parameter().grad)


def test_one_number_is_a_number():
    p = Parameter(2.5)
    assert (float(p), int(p), bool(p)) == (2.5, 2, True)
    with pytest.raises(TypeError, match="arrays can be converted"):
        float(parameter())


def test_no_data_is_no_parameter():
    for data in (None, np.array(["a"]), np.ones(3) * 1j):
        with pytest.raises((TypeError, ValueError), match="Parameter"):
            Parameter(data)
    p = parameter()
    with pytest.raises((TypeError, ValueError), match="Parameter"):
        p.data = None
    assert_same(p.data, parameter().data)


def test_it_is_itself_in_dictionaries():
    p, q = parameter(), parameter()
    state = {p: 1, q: 2}  # momentum buffers of an optimizer
    assert state[p] == 1 and state[q] == 2 and len({p, q, p}) == 2
    before = hash(p)
    p.data[...] = 7
    assert hash(p) == before


def test_copies_and_pickles():
    for p in (parameter(), parameter("float32")):
        p.requires_grad = False
        for other in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
            assert type(other) is Parameter and other.dtype == p.dtype
            assert other.requires_grad is False
            assert_same(other, p)
            assert not np.shares_memory(other.data, p.data) and not np.shares_memory(other.grad, p.grad)
            other.data -= 1
            other.grad += 1
            assert_same(p, parameter().data)
            assert_same(p.grad, parameter().grad)
    assert_same(copy.deepcopy(parameter()).grad, parameter().grad)


class Named(Parameter):
    """With attributes and arguments of its own."""

    __slots__ = ("__dict__", "place")

    def __init__(self, name, data):
        super().__init__(data)
        self.name, self.place = name, [1]


def test_copies_and_pickles_of_a_subclass_have_its_attributes():
    p = Named("scale", [1.0, 2.0])
    for other in (copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert (type(other), other.name, other.place, other.requires_grad) == (Named, "scale", [1], True)
        assert other.place is not p.place
        assert_same(other, p)


def test_formats_as_its_data():
    assert f"{Parameter(1.5):.2f}" == "1.50"
    assert f"{parameter()}" == str(parameter())
    with pytest.raises(TypeError, match="ndarray"):
        f"{parameter():.2f}"


def test_repr_shows_the_values():
    text = repr(parameter())
    assert text.startswith("Parameter(") and "-3." in text
