"""What the transformer refuses on CuPy arrays: in the words that it has on the CPU, and nothing has changed."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.exceptions import NotFittedError

from bnorm import BatchNormTransformer
from compare import assert_same
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy  # noqa: F401
from emulated.transformers import ERROR, MODES, agree, made_pair, more_of_cupy, state_of, table  # noqa: F401

pytestmark = needs_emulator


INFINITE = table(nan=False)
INFINITE[7, 2] = np.inf
BAD = {
    "too few features": np.ones((3, 2)),
    "too many features": np.ones((3, 5), "float32"),
    "one axis": np.arange(4.0),
    "no axis": np.array(4.0),
    "three axes": np.ones((2, 4, 1)),
    "no rows": np.ones((0, 4)),
    "complex": np.full((2, 4), 1j),
    "infinite": INFINITE,
    "minus infinity": -INFINITE.astype("float64"),
    "infinite, in Fortran order": np.asfortranarray(INFINITE),
}


def message(call, *args, **options):
    with pytest.raises(ValueError) as error:
        call(*args, **options)
    return str(error.value)


@pytest.mark.parametrize("bad", BAD)
def test_tables_are_refused_in_the_same_words(cupy, pair, bad):
    x = BAD[bad]
    host, device = pair(table(), {"momentum": None})
    device.backward(cupy.asarray(table()), cupy.asarray(table()))
    kept = state_of(device)
    for name in ("fit", "partial_fit", "transform", "inverse_transform"):
        if name != "fit" or "features" not in bad:
            assert message(getattr(device, name), cupy.asarray(x)) == message(getattr(host, name), x)
    for name in ("transform", "inverse_transform"):
        a = cupy.asarray(x)
        message(getattr(device, name), a, copy=False)
        assert_same(a.host, x)
    message(device.backward, cupy.asarray(x), cupy.asarray(x))
    assert state_of(device) == kept
    new = BatchNormTransformer()
    if "features" not in bad:
        message(new.fit, cupy.asarray(x))
        message(new.partial_fit, cupy.asarray(x))
        with pytest.raises(NotFittedError):
            new.transform(cupy.asarray(x))


WEIGHTS = {
    "negative": np.where(np.arange(40) == 3, -1.0, 1),
    "NaN": np.where(np.arange(40) == 3, np.nan, 1),
    "infinite": np.where(np.arange(40) == 3, np.inf, 1),
    "all zero": np.zeros(40),
    "too few": np.ones(39),
    "two axes": np.ones((40, 1)),
    "too small a sum": np.full(40, 1e-300),
}


@pytest.mark.parametrize("bad", WEIGHTS)
def test_weights_are_refused_in_the_same_words(cupy, pair, bad):
    x, w = table(), WEIGHTS[bad]
    for parameters in ({}, {"halflife": 7.0}):
        host, device = pair(x, parameters)
        kept = state_of(device)
        for name in ("fit", "partial_fit"):
            expected = message(getattr(host, name), x, sample_weight=w)
            assert message(getattr(device, name), cupy.asarray(x), sample_weight=cupy.asarray(w)) == expected
            assert message(getattr(device, name), cupy.asarray(x), sample_weight=w.tolist()) == expected
        assert state_of(device) == kept


def test_no_weight_hides_infinity(cupy):
    w = cupy.asarray((np.arange(40) != 7).astype(float))
    for parameters in MODES:
        with pytest.raises(ValueError, match="Input X contains infinity"):
            BatchNormTransformer(**parameters).partial_fit(cupy.asarray(INFINITE), sample_weight=w)
    x = table()
    x[7] = np.nan
    device = BatchNormTransformer(momentum=None).fit(cupy.asarray(x), sample_weight=w)
    agree(device, BatchNormTransformer(momentum=None).fit(x, sample_weight=w.host), ERROR["float32"])


def test_large_finite_values_are_no_infinity(cupy):
    x = np.array([[1e200, 1e30], [-1e200, -1e30], [1.5e308, 1.0]])
    t = BatchNormTransformer().fit(cupy.asarray(x))
    assert np.isfinite(t.transform(cupy.asarray(x)).host[:, 1]).all()


def test_numpy_and_cupy_do_not_mix(cupy, pair):
    """Each call says which is which, and what moves it; nothing has happened."""
    x, w = table(), np.ones(40)
    a = cupy.asarray(x)
    host, device = pair(x, {"momentum": None})
    kept = state_of(host), state_of(device)
    expected_numpy = r"expected a NumPy array, as the layer_ is on the CPU, got a CuPy .*asnumpy\(X\).*layer_.to\('cuda"
    expected_cupy = r"expected a CuPy array, as the layer_ is on the GPU, got a NumPy .*asarray\(X\).*layer_.to\('cpu"
    for name in ("partial_fit", "transform", "inverse_transform"):
        with pytest.raises(TypeError, match=f"BatchNormTransformer: X: {expected_numpy}"):
            getattr(host, name)(a)
        with pytest.raises(TypeError, match=f"BatchNormTransformer: X: {expected_cupy}"):
            getattr(device, name)(x)
    beside = [
        (lambda: host.fit(x, sample_weight=cupy.asarray(w)), r"sample_weight: expected a NumPy .*asnumpy\(sample_w"),
        (lambda: device.fit(a, sample_weight=w), r"sample_weight: expected a CuPy .*cupy.asarray\(sample_weight\)"),
        (lambda: host.partial_fit(x, sample_weight=cupy.asarray(w)), r"sample_weight: .*cupy.asnumpy\(sample_weight\)"),
        (lambda: device.partial_fit(a, sample_weight=w), r"sample_weight: .*cupy.asarray\(sample_weight\)"),
        (lambda: host.backward(a, a), r"X: expected a NumPy array.*cupy.asnumpy\(X\)"),
        (lambda: device.backward(x, x), r"X: expected a CuPy array.*cupy.asarray\(X\)"),
        (lambda: host.backward(x, a), r"dY: expected a NumPy array.*cupy.asnumpy\(dY\)"),
        (lambda: device.backward(a, x), r"dY: expected a CuPy array.*cupy.asarray\(dY\)"),
        (lambda: setattr(host, "gamma_", cupy.ones(4)), r"gamma: expected a NumPy array.*cupy.asnumpy\(gamma\)"),
        (lambda: setattr(device, "beta_", np.ones(4)), r"beta: expected a CuPy array.*cupy.asarray\(beta\)"),
        (lambda: setattr(device, "running_mean_", np.ones(4)), r"running_mean: expected a CuPy .*cupy.asarray"),
        (lambda: host.merge(device), r"merge: .*'cpu' here and 'cuda' there.*other.layer_.to\('cpu'\)"),
        (lambda: device.merge(host), r"merge: .*'cuda' here and 'cpu' there.*other.layer_.to\('cuda'\)"),
    ]
    for call, words in beside:
        with pytest.raises(TypeError, match=words):
            call()
    assert (state_of(host), state_of(device)) == kept
    agree(host.fit(a), BatchNormTransformer(momentum=None).fit(x), ERROR["float32"])  # anew: of another kind
    assert type(device.fit(x).mean_) is np.ndarray


def test_data_frames_are_on_the_cpu(cupy):
    pd = pytest.importorskip("pandas", reason="a data frame")
    x = table()
    t = BatchNormTransformer().fit(pd.DataFrame(x, columns=list("abcd")))
    with pytest.raises(TypeError, match="X: expected a NumPy array"):
        t.transform(cupy.asarray(x))
    with pytest.raises(TypeError, match="X: expected a CuPy array"):
        BatchNormTransformer().fit(cupy.asarray(x)).transform(pd.DataFrame(x))
    assert list(t.fit(cupy.asarray(x)).get_feature_names_out()) == ["x0", "x1", "x2", "x3"]
    assert not hasattr(t, "feature_names_in_")
    assert list(t.get_feature_names_out(["p", "q", "r", "s"])) == ["p", "q", "r", "s"]


def test_merge_refuses_what_it_does_on_the_cpu(cupy, pair):
    _, device = pair(table(), {})
    with pytest.raises(ValueError, match="order of its batches"):
        device.merge(device)


def test_there_are_no_data_frames_of_cupy_arrays(cupy, pair):
    pytest.importorskip("pandas", reason="scikit-learn asks for it")
    x = cupy.asarray(table())
    words = "set_output: expected transform='default', as layer_ is on the GPU .*, got 'pandas'"
    _, t = pair(table(), {})
    with config_context(transform_output="pandas"):
        for name in ("transform", "inverse_transform"):
            a = x.copy()
            with pytest.raises(ValueError, match=words):
                getattr(t, name)(a, copy=False)
            assert_same(a.host, x.host)
    t.set_output(transform="pandas").partial_fit(x)
    with pytest.raises(ValueError, match=words):
        t.transform(x)
    assert type(t.set_output(transform="default").transform(x)) is cupy.ndarray
