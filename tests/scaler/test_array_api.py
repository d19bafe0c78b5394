"""Tables of PyTorch and array_api_strict: seen without a copy, and given back as what they were."""

import pickle
from functools import partial

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn import config_context, preprocessing
from sklearn.base import clone
from sklearn.utils import estimator_checks

import bnorm
import bnorm.functional as F
from bnorm import BatchNormTransformer
from bnorm.arrays import borrowed, given_back, library
from bnorm.sklearn import StandardScaler
from compare import assert_same

torch = pytest.importorskip("torch", reason="tensors are given")
strict = pytest.importorskip("array_api_strict", reason="its arrays are given")

if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8):
    pytest.skip("scikit-learn's own StandardScaler takes tensors from 1.8 on", allow_module_level=True)

ESTIMATORS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    BatchNormTransformer(),
    BatchNormTransformer(momentum=None, affine=False),
    BatchNormTransformer(halflife=20.0, ddof=1),
]
ARRAYS = {
    "torch float64": lambda x: torch.from_numpy(x.copy()),
    "torch float32": lambda x: torch.from_numpy(x.astype(np.float32)),
    "torch float16": lambda x: torch.from_numpy(x.astype(np.float16)),
    "torch transposed": lambda x: torch.from_numpy(x.T.copy()).T,
    "torch strided": lambda x: torch.from_numpy(np.repeat(x, 2, axis=0))[::2],
    "strict float64": lambda x: strict.asarray(x.copy()),
    "strict on a device": lambda x: strict.asarray(x.copy(), device=strict.Device("device1")),
}
SCALERS = (StandardScaler, preprocessing.StandardScaler)
FITTED = ["mean_", "var_", "scale_", "n_samples_seen_", "running_mean_", "running_var_", "gamma_", "beta_"]
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
every_array = pytest.mark.parametrize("kind", ARRAYS)


@pytest.fixture(autouse=True)
def dispatch(monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    with config_context(array_api_dispatch=True):
        yield


def values(n=50):
    return np.random.default_rng(0).normal(3.0, 2.0, (n, 4))


def numpy_of(a):
    return np.from_dlpack(a)


def assert_like(a, x, name):
    assert library(a) is library(x), name
    assert a.device == x.device, name


@every_estimator
@pytest.mark.parametrize(
    ("namespace", "device", "dtype"),
    [("torch", "cpu", "float64"), ("torch", "cpu", "float32"), ("array_api_strict", None, "float64")],
)
def test_scikit_learns_check(estimator, namespace, device, dtype):
    for weighted in (False, True):
        estimator_checks.check_array_api_input_and_values(
            type(estimator).__name__, clone(estimator), namespace, device, dtype, check_sample_weight=weighted
        )


@every_array
@every_estimator
def test_the_same_bits_as_of_numpy(estimator, kind):
    x = ARRAYS[kind](values())
    same = numpy_of(x)
    ours, theirs = clone(estimator), clone(estimator)
    for step in ("fit", "partial_fit"):
        assert getattr(ours, step)(x) is ours
        getattr(theirs, step)(same)
        for name in FITTED:
            if getattr(theirs, name, None) is not None:
                got = getattr(ours, name)
                assert_like(got, x, name)
                assert_same(numpy_of(got), getattr(theirs, name), name=name, step=step)
    for method in ("transform", "inverse_transform"):
        y = getattr(ours, method)(x)
        assert_like(y, x, method)
        assert y.dtype == x.dtype
        assert_same(numpy_of(y), getattr(theirs, method)(same), method=method)


@every_array
@every_estimator
def test_in_place_is_in_its_memory(estimator, kind):
    x = ARRAYS[kind](values())
    memory, before = numpy_of(x), numpy_of(x).copy()
    assert np.shares_memory(memory, borrowed(x))
    fitted = clone(estimator).fit(x)
    want = numpy_of(fitted.transform(x))
    assert_same(memory, before)  # a copy, unless it is asked for
    assert np.shares_memory(numpy_of(fitted.transform(x, copy=False)), memory)
    assert_same(memory, want)


@every_estimator
def test_nothing_as_large_as_the_table_is_made_beside_the_result(estimator):
    """Neither of the table on its way in, nor of the result on its way out."""
    made = []
    table = torch.from_numpy(values(20_000))

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.numel() >= table.numel():
                made.append((getattr(function, "__name__", str(function)), result.data_ptr()))
            return result

    with Counting():
        y = clone(estimator).fit(table).transform(table)
    assert {address for _, address in made} <= {table.data_ptr(), y.data_ptr()}, made


@every_estimator
def test_weights_of_other_libraries_go_along(estimator):
    w = np.linspace(0.0, 1.0, 50)
    want = clone(estimator).fit(values(), sample_weight=w)
    x = torch.from_numpy(values())
    for weight in (w, torch.from_numpy(w), strict.asarray(w)):
        got = clone(estimator).fit(x, sample_weight=weight)
        assert_like(got.mean_, x, "mean_")
        assert_same(numpy_of(got.mean_), want.mean_)


@every_array
@pytest.mark.parametrize("weight", [None, np.linspace(0.0, 1.0, 50)], ids=["", "weighted"])
def test_iterables_of_tables(kind, weight):
    """As lists and generators, in `fit`, and in `partial_fit` before and after it."""
    x = ARRAYS[kind](values())
    same, w = numpy_of(x), None if weight is None else torch.from_numpy(weight)
    ours, theirs = (BatchNormTransformer(momentum=None) for _ in range(2))
    for step, kind_of_items in (("partial_fit", iter), ("fit", list), ("fit", iter), ("partial_fit", list)):
        getattr(ours, step)(kind_of_items([x if w is None else (x, w)] * 2))
        getattr(theirs, step)(kind_of_items([same if w is None else (same, weight)] * 2))
        for name in FITTED:
            got = getattr(ours, name)
            assert_like(got, x, name)
            assert_same(numpy_of(got), getattr(theirs, name), name=name, step=step)
        assert_like(ours.transform(x), x, "transform")


@pytest.mark.parametrize(("one", "other"), [(np, torch), (torch, np), (torch, strict)])
def test_iterables_of_mixtures_are_refused(one, other):
    first, second = (library.asarray(values()) for library in (one, other))
    t = BatchNormTransformer(momentum=None).fit(first)
    before = pickle.dumps(t)
    for call in (partial(t.fit, [first, second]), partial(t.partial_fit, [second])):
        with pytest.raises(ValueError, match="must use the same namespace and device"):
            call()
    assert pickle.dumps(t) == before
    t.fit([second])
    assert_like(t.mean_, second, "mean_")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # on theirs' way to an error
@every_estimator
def test_mixtures_are_refused_as_scikit_learn_refuses_them(estimator):
    tables = {"numpy": values(), "torch": torch.from_numpy(values()), "strict": strict.asarray(values())}
    for one, first in tables.items():
        ours, theirs = clone(estimator).fit(first), preprocessing.StandardScaler().fit(first)
        before = pickle.dumps(ours)
        for other, second in tables.items():
            for method in ("transform", "inverse_transform", "partial_fit"):
                if one == other:
                    getattr(ours, method)(second)
                    continue
                with pytest.raises((AttributeError, TypeError, ValueError)) as expected:
                    getattr(theirs, method)(second)
                with pytest.raises(expected.type, match="must use the same namespace and device"):
                    getattr(ours, method)(second)
            if one == other:
                before = pickle.dumps(ours)
        assert pickle.dumps(ours) == before
        ours.fit(values()).transform(values())  # which begins anew


@every_estimator
def test_two_devices_are_a_mixture(estimator):
    x = values()
    fitted = clone(estimator).fit(strict.asarray(x))
    with pytest.raises(ValueError, match="must use the same namespace and device"):
        fitted.transform(strict.asarray(x, device=strict.Device("device1")))


@every_estimator
def test_without_dispatch_tensors_are_numpys(estimator):
    with config_context(array_api_dispatch=False):
        x = torch.from_numpy(values())
        fitted = clone(estimator).fit(x)
        assert type(fitted.mean_) is np.ndarray
        assert type(fitted.transform(x)) is np.ndarray
    tensors = clone(estimator).fit(x)
    with config_context(array_api_dispatch=False), pytest.raises(ValueError, match="must use the same namespace"):
        tensors.transform(x)  # as scikit-learn's, whose attributes are tensors then


@every_estimator
def test_pickles(estimator):
    x = torch.from_numpy(values())
    fitted = clone(estimator).fit(x)
    other = pickle.loads(pickle.dumps(fitted))
    assert torch.equal(other.transform(x), fitted.transform(x))
    assert_like(other.partial_fit(x).mean_, x, "mean_")


@every_estimator
def test_infinity_and_nan(estimator):
    x = torch.from_numpy(values())
    x[3, 2] = float("nan")
    fitted = clone(estimator).fit(x)
    assert int(torch.isnan(fitted.transform(x)).sum()) == 1
    before = pickle.dumps(fitted)
    x[5, 1] = float("inf")
    for method in (fitted.fit, fitted.partial_fit, fitted.transform):
        with pytest.raises(ValueError, match="infinity"):
            method(x)
    assert pickle.dumps(fitted) == before


@pytest.mark.filterwarnings("ignore:torch.asarray. unspecified requires_grad:UserWarning")  # in scikit-learn
def test_a_tensor_that_requires_a_gradient():
    x = torch.from_numpy(values()).requires_grad_()
    y = StandardScaler().fit(x.detach()).transform(x)  # scikit-learn's own code: PyTorch records it
    y.sum().backward()
    assert x.grad is not None
    assert borrowed(x) is None
    for method in (BatchNormTransformer().fit, BatchNormTransformer().fit(x.detach()).transform):
        with pytest.raises(TypeError, match="requires no gradient"):
            method(x)


def test_types_that_numpy_does_not_have():
    x = torch.from_numpy(values()).bfloat16()
    y = StandardScaler().fit(x).transform(x)
    assert y.dtype == torch.float64  # what scikit-learn makes of types that it does not know
    with pytest.raises(TypeError, match="a type that NumPy has"):
        BatchNormTransformer().fit(x)


def test_a_device_without_float64():
    x = strict.asarray(values().astype(np.float32), device=strict.Device("no_float64"))
    for estimator in (StandardScaler(), BatchNormTransformer()):
        fitted = clone(estimator).fit(x)
        assert fitted.mean_.dtype == strict.float32
        assert_like(fitted.transform(x), x, "transform")
        assert_like(fitted.partial_fit(x).mean_, x, "mean_")


def test_the_transformer_learns_in_tensors():
    x = torch.from_numpy(values())
    t, other = BatchNormTransformer().fit(x), BatchNormTransformer().fit(values())
    dy = torch.linspace(-1, 1, 200, dtype=torch.float64).reshape(50, 4)
    dx, same = t.backward(x, dy), other.backward(values(), dy.numpy())
    for got, want in ((dx, same), (t.gamma_grad_, other.gamma_grad_), (t.beta_grad_, other.beta_grad_)):
        assert_like(got, x, "gradient")
        assert_same(got.numpy(), want)
    t.step(0.1)
    other.step(0.1)
    assert_same(t.gamma_.numpy(), other.gamma_)
    t.running_mean_[0] = 5.0  # the memory of the layer
    assert t.layer_.running_mean[0] == 5.0
    t.mean_[1] = 9.0  # to read: a copy
    assert t.running_mean_[1] != 9.0
    t.gamma_ = torch.full((4,), 2.0, dtype=torch.float64)
    assert_same(t.layer_.gamma.data, np.full(4, 2.0))


@every_array
def test_rows_are_forgotten(kind):
    x, weight = ARRAYS[kind](values().round(2)), np.arange(10.0)
    t = BatchNormTransformer(momentum=None, exact=True).fit(x).forget(x[40:, :])
    rest = BatchNormTransformer(momentum=None, exact=True).fit(x[:40, :])
    assert t.digest() == rest.digest()
    some = ARRAYS["torch float64"](weight) if "torch" in kind else weight
    t.partial_fit(x[:10, :], sample_weight=some).forget(x[:10, :], sample_weight=some)
    assert t.digest() == rest.digest()
    assert_like(t.mean_, x, "mean_")
    with pytest.raises(ValueError, match="same namespace"):
        t.forget(np.zeros((1, 4)))


def test_sparse_tables_are_numpys():
    x = sparse.csr_array(values() * (values() > 3))
    fitted = StandardScaler(with_mean=False).fit(x)
    assert type(fitted.mean_) is np.ndarray
    tensors = StandardScaler(with_mean=False).fit(torch.from_numpy(values()))
    with pytest.raises(ValueError, match="must use the same namespace"):
        tensors.transform(x)


# Functions and layers, whatever scikit-learn's setting is --------------------------------------------------------


def nets():
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3, 5, 5)))
    yield images
    yield images.float()
    yield images.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("x", list(nets()), ids=["float64", "float32", "channels last"])
def test_functions_and_layers_read_a_tensor_where_it_lies(x):
    same = x.numpy()
    layer, twin = bnorm.BatchNorm2d(3), bnorm.BatchNorm2d(3)
    for got, want in ((F.batch_norm(x), F.batch_norm(same)), (F.layer_norm(x, normalized_shape=5), None)):
        y, saved = got
        assert type(y) is np.ndarray
        if want is not None:
            assert np.shares_memory(saved.x, same)
            assert_same(y, want[0])
            assert all(type(grad) is np.ndarray for grad in F.backward(x, saved) if grad is not None)
    y = layer(x)
    assert type(y) is np.ndarray
    assert_same(y, twin(same))
    assert_same(layer.backward(x), twin.backward(same))
    assert type(F.moments(x).mean) is np.ndarray


def test_functions_refuse_a_tensor_that_requires_a_gradient():
    x = torch.ones(4, 3).requires_grad_()
    for call in (F.batch_norm, bnorm.BatchNorm1d(3)):
        with pytest.raises(TypeError, match=r"x: .*detach"):
            call(x)


@pytest.mark.parametrize("settings", [{}, {"with_mean": False}, {"with_std": False}], ids=str)
def test_plain_tensors_after_one_that_requires_a_gradient(settings):
    """scikit-learn's own code computes statistics that require one, and goes on with them."""
    x = torch.from_numpy(values())
    ours, theirs = (scaler(**settings).fit(x.clone().requires_grad_()) for scaler in SCALERS)
    for method in ("transform", "inverse_transform"):
        got, want = (getattr(scaler, method)(x) for scaler in (ours, theirs))
        assert_same(got.detach().numpy(), want.detach().numpy())
    for scaler in (ours, theirs):
        scaler.partial_fit(x)
    for name in ("mean_", "var_"):
        got, want = getattr(ours, name), getattr(theirs, name)
        assert (got is want is None) or torch.equal(got, want)


def test_an_array_is_given_back_in_its_memory():
    a = np.arange(6.0).reshape(2, 3)
    for x in (torch.zeros(1), strict.zeros(1)):
        assert np.shares_memory(numpy_of(given_back(a, x)), a)
