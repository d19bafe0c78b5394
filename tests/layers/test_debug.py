"""An x that changes before its backward, and one layer in several threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bnorm
from bnorm.layers.backward import OPEN

LAYERS = [bnorm.BatchNorm1d(3), bnorm.LayerNorm(3), bnorm.InstanceNorm1d(3, affine=True)]


@pytest.fixture
def debug():
    bnorm.set_debug(True)
    bnorm.set_debug(True)  # again: it stays on
    yield
    bnorm.set_debug(False)
    assert not OPEN


def batch(layer):
    return np.random.default_rng(0).normal(size=(4, 3, 3) if "Instance" in repr(layer) else (4, 3))


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_a_changed_x_is_found(layer, debug):
    x = batch(layer)
    layer.zero_grad()
    y = layer(x)
    x[0, 1] += 1
    with pytest.raises(RuntimeError, match=r"backward: expected x as it was in the forward, got it changed in place"):
        layer.backward(y)
    assert not layer.gamma.grad.any()
    x[0, 1] = batch(layer)[0, 1]
    np.testing.assert_array_equal(layer.backward(y), layer.vjp(x)[1](y))  # as it was: nothing has happened
    _, pull = layer.vjp(x)
    x *= 2
    with pytest.raises(RuntimeError, match="changed in place"):
        pull(y)


def test_a_changed_forecast_is_found(debug):
    rev, x = bnorm.RevIN(3), np.random.default_rng(0).normal(size=(2, 5, 3))
    out = rev(x) + 1
    y = rev.inverse(out)
    _, pull = rev.inverse.vjp(out)
    out *= 2
    for backward in (rev.inverse.backward, pull):
        with pytest.raises(RuntimeError, match=r"inverse: pull: expected out as it was .* changed in place"):
            backward(y)
    assert not rev.gamma.grad.any()
    out /= 2
    np.testing.assert_array_equal(rev.inverse.backward(y), pull(y))  # as it was: nothing has happened
    rev.inverse(out)
    out += 1
    bnorm.set_debug(False)
    rev.inverse.backward(y)


@pytest.mark.parametrize("x", [np.asfortranarray(np.eye(4, 3)), np.eye(8, 6)[::2, ::2], np.eye(4, 3, dtype=int)])
def test_an_x_of_any_memory(x, debug):
    layer = bnorm.BatchNorm1d(3)
    assert layer.backward(layer(x)).shape == x.shape


def test_integers_are_the_same_after_a_backward_that_failed(debug):
    layer, x = bnorm.BatchNorm1d(3), np.eye(4, 3, dtype="i1")  # which the first backward makes floats of
    y = layer(x)
    with pytest.raises(ValueError, match="dy: expected the shape of x"):
        layer.backward(y[:2])
    assert layer.backward(y).shape == (4, 3)


def test_off_by_default_and_within_no_backward(debug):
    layer, x = bnorm.LayerNorm(3), np.eye(3)
    with bnorm.no_backward():
        layer(x)
    with pytest.raises(RuntimeError, match="got none"):
        layer.backward(x)
    bnorm.set_debug(False)
    y = layer(x)
    x += 1
    layer.backward(y)
    with pytest.raises(TypeError, match="set_debug: on"):
        bnorm.set_debug("yes")


def test_threads_share_a_layer_that_only_reads():
    layer = bnorm.BatchNorm1d(3)
    tables = [np.random.default_rng(seed).normal(seed, 1, (50, 3)) for seed in range(4)]
    for x in tables:
        layer(x)
    layer.eval()
    expected, state, wrong = [layer(x) for x in tables], layer.state_dict(), []

    def work(x, y):
        for _ in range(100):
            with bnorm.no_backward():
                if not np.array_equal(layer(x), y):
                    wrong.append(x)

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(work, tables, expected))
    assert not wrong
    assert not OPEN
    for name, a in layer.state_dict().items():
        np.testing.assert_array_equal(a, state[name])


def test_a_forward_that_another_thread_took():
    layer, x = bnorm.LayerNorm(3), np.eye(3)
    layer(x)
    thread = threading.Thread(target=layer.backward, args=(x,))
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="of any thread"):
        layer.backward(x)


def test_pytorchs_none():
    layer = bnorm.BatchNorm1d(3, dtype=None, device=None)
    assert (layer.dtype, layer.device, repr(layer)) == (np.float64, "cpu", "BatchNorm1d(3)")
    assert bnorm.LayerNorm(3, dtype=None, device=None).device == "cpu"
