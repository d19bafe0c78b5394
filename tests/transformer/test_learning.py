"""Learned gamma and beta, the layer that shares the transformer's arrays, and copies of the whole through files."""

import copy
import io
import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import bnorm
from bnorm import BatchNormTransformer
from compare import assert_close


def table(n=60, dtype="float64", seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, (n, 4)).astype(dtype)


def fitted(dtype="float64", **parameters):
    t = BatchNormTransformer(**parameters).fit(table(dtype=dtype))
    if t.affine:
        t.gamma_, t.beta_ = [1.5, -2, 0.5, 1], [0, 1, 2, 3]
    return t


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_backward_by_hand(dtype, order):
    t = fitted(dtype)
    x, dy = (np.asarray(table(dtype=dtype, seed=seed), order=order) for seed in (1, 2))
    dx = t.backward(x, dy)
    assert dx.dtype == x.dtype
    z = (x.astype("float64") - t.mean_) / t.scale_
    unit = np.finfo(dtype).eps
    assert_close(dx, dy.astype("float64") * t.gamma_ / t.scale_, 8 * unit * (1 + np.abs(dy)))
    total = np.abs(dy).astype("float64").sum(axis=0)
    assert_close(t.gamma_grad_, (dy * z).sum(axis=0), 60 * unit * total)
    assert_close(t.beta_grad_, dy.sum(axis=0, dtype="float64"), 60 * unit * total)


def test_backward_by_differences():
    t, x, w = fitted(), table(seed=1), table(seed=2)

    def loss(x):
        return float((w * np.tanh(t.transform(x))).sum())

    dx = t.backward(x, w * (1 - np.tanh(t.transform(x)) ** 2))
    h = 1e-6
    for p, grad in ((t.gamma_, t.gamma_grad_), (t.beta_, t.beta_grad_)):
        for i in range(4):
            p[i] += h
            above = loss(x)
            p[i] -= 2 * h
            assert (above - loss(x)) / (2 * h) == pytest.approx(grad[i], rel=1e-6, abs=1e-6)
            p[i] += h
    for i, j in [(0, 0), (17, 3), (59, 1)]:
        at = x.copy()
        at[i, j] += h
        above = loss(at)
        at[i, j] -= 2 * h
        assert (above - loss(at)) / (2 * h) == pytest.approx(dx[i, j], rel=1e-6, abs=1e-6)


def test_backward_overwrites_and_step_moves():
    t, x, dy = fitted(), table(seed=1), table(seed=2)
    t.backward(x, 5 * dy)
    t.backward(x, dy)
    gamma, beta, grads = t.gamma_.copy(), t.beta_.copy(), (t.gamma_grad_.copy(), t.beta_grad_.copy())
    held = t.gamma_
    assert t.step(0.01) is t
    np.testing.assert_allclose(t.gamma_, gamma - 0.01 * grads[0], rtol=1e-15)
    np.testing.assert_allclose(t.beta_, beta - 0.01 * grads[1], rtol=1e-15)
    assert t.gamma_ is held
    np.testing.assert_array_equal(t.layer_.gamma.grad, 0)


def test_missing_values_have_no_part_in_gradients():
    t, x, dy = fitted(), table(seed=1), table(seed=2)
    t.running_mean_ = [np.nan, *t.mean_[1:]]  # a feature never seen
    x[3, 1] = x[7, 2] = np.nan
    t.backward(x, dy)
    z = (x - t.mean_) / t.scale_
    np.testing.assert_allclose(t.gamma_grad_, np.nansum(dy * z, axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(t.beta_grad_, (dy * ~np.isnan(z)).sum(axis=0), rtol=1e-12, atol=1e-12)
    assert t.gamma_grad_[0] == t.beta_grad_[0] == 0


def test_backward_without_parameters():
    t, x, dy = fitted(affine=False), table(seed=1), table(seed=2)
    np.testing.assert_allclose(t.backward(x, dy), dy / t.scale_, rtol=1e-14)
    assert t.gamma_grad_ is t.beta_grad_ is None
    with pytest.raises(RuntimeError, match="step: expected gamma_ and beta_ to update, got affine=False"):
        t.step(0.1)


def test_order_of_calls_and_arguments():
    with pytest.raises(NotFittedError):
        BatchNormTransformer().step(0.1)
    t = fitted()
    with pytest.raises(RuntimeError, match="step: expected a call of backward before, got none"):
        t.step(0.1)
    t.backward(table(), table())
    for rate, error in [("0.1", TypeError), (True, TypeError), (np.inf, ValueError)]:
        with pytest.raises(error, match="BatchNormTransformer: learning_rate: expected a"):
            t.step(rate)
    with pytest.raises(ValueError, match=r"dY: expected the shape of x, \(60, 4\), got \(60, 3\)"):
        t.backward(table(), table()[:, :3])


def test_layer_is_the_same_state():
    x, dy = table(seed=1), table(seed=2)
    t = fitted(momentum=None, eps=1e-3, ddof=1)
    layer = t.layer_
    assert type(layer) is bnorm.BatchNorm1d
    assert (layer.eps, layer.momentum, layer.ddof, layer.training, layer.num_features) == (1e-3, None, 1, False, 4)
    np.testing.assert_array_equal(layer(x), t.transform(x))
    np.testing.assert_array_equal(layer.backward(dy), t.backward(x, dy))
    np.testing.assert_array_equal(layer.gamma.grad, t.gamma_grad_)
    np.testing.assert_array_equal(layer.beta.grad, t.beta_grad_)


def test_changes_are_seen_both_ways():
    t, x = fitted(), table(seed=1)
    layer = t.layer_
    layer.gamma.data -= 0.5  # in place, as an optimizer does
    layer.beta = [9.0, 8, 7, 6]
    layer.running_mean[0] = 100
    layer.running_var = np.full(4, 4.0)
    np.testing.assert_array_equal(t.gamma_, layer.gamma.data)
    assert t.beta_.tolist() == [9, 8, 7, 6]
    assert t.mean_[0] == 100
    np.testing.assert_array_equal(t.transform(x), layer(x))
    t.gamma_ *= 2
    t.beta_ = np.zeros(4)
    t.running_mean_ = np.arange(4)
    t.running_var_[1] = 25
    assert layer.running_mean.tolist() == [0, 1, 2, 3]
    assert layer.running_var[1] == 25
    np.testing.assert_array_equal(layer(x), t.transform(x))
    t.partial_fit(x)
    np.testing.assert_array_equal(layer.running_mean, t.mean_)
    assert layer.num_batches_tracked == t.n_batches_seen_ == 2


@pytest.mark.parametrize("ddof", [0, 1])
def test_layer_in_training_mode_pools(ddof):
    """Rows that came through the layer count like rows that came through partial_fit."""
    x = table(90)
    t = BatchNormTransformer(momentum=None, ddof=ddof).partial_fit(x[:30])
    t.layer_.train()(x[30:60])
    t.layer_.eval()
    t.partial_fit(x[60:])
    np.testing.assert_allclose(t.mean_, x.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(t.var_, x.var(axis=0, ddof=ddof), rtol=1e-12)
    assert t.n_batches_seen_ == 3


def test_state_of_a_layer_can_be_loaded():
    x = table(60)
    bn = bnorm.BatchNorm1d(4, momentum=None)
    bn(x[:40])
    t = BatchNormTransformer(momentum=None).fit(table(10, seed=9))
    t.layer_.load_state_dict(bn.state_dict())
    np.testing.assert_allclose(t.mean_, x[:40].mean(axis=0), rtol=1e-13)
    t.partial_fit(x[40:])
    np.testing.assert_allclose(t.var_, x.var(axis=0), rtol=1e-12)


def test_a_plain_state_counts_its_batches_as_large_as_the_next():
    x = table(60)
    bn = bnorm.BatchNorm1d(4, momentum=None)
    bn(x[:20])
    bn(x[20:40])
    t = BatchNormTransformer(momentum=None).fit(table(10, seed=9))
    with pytest.warns(UserWarning, match="no counts"):
        t.layer_.load_state_dict(dict(bn.state_dict()))
    t.partial_fit(x[40:])
    np.testing.assert_allclose([t.mean_, t.var_], [x.mean(axis=0), x.var(axis=0)], rtol=1e-12)


@pytest.mark.parametrize("parameters", [{}, {"halflife": 5.0}, {"halflife": 5.0, "ddof": 1}])
@pytest.mark.parametrize("state", [lambda layer: layer.state_dict(), lambda layer: dict(layer.state_dict())])
def test_what_has_loaded_the_state_of_a_layer_can_be_saved(tmp_path, parameters, state):
    t = fitted(**parameters)
    counted = t.n_samples_seen_
    loaded = state(t.layer_)
    t.layer_.load_state_dict(loaded)
    assert t.n_samples_seen_ == (0 if type(loaded) is dict else counted)
    t.save(tmp_path / "t.npz")
    back = bnorm.load(tmp_path / "t.npz")
    for each in (t, back):
        each.partial_fit(table(seed=1))
    for name in ("mean_", "var_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(back, name), getattr(t, name))


def _assign(t, mean, var):
    t.running_mean_, t.running_var_ = mean, var


def _assign_to_layer(t, mean, var):
    t.layer_.running_mean, t.layer_.running_var = mean, var


def _load_into_layer(t, mean, var):
    state = t.layer_.state_dict()
    state["running_mean"], state["running_var"] = mean, var
    t.layer_.load_state_dict(state)


def _change_in_place(t, mean, var):
    t.layer_.running_mean *= mean
    t.layer_.running_var *= var


@pytest.mark.parametrize("assign", [_assign, _assign_to_layer, _load_into_layer, _change_in_place])
def test_a_mean_that_is_assigned_is_exact(assign):
    """Nothing of what the old one had rounded off is left."""
    t = BatchNormTransformer(momentum=None)
    for seed in range(5):
        t.partial_fit(1e9 + table(7, seed=seed))
    assign(t, np.zeros(4), np.zeros(4))
    t.partial_fit(np.zeros((3, 4)))
    np.testing.assert_array_equal([t.mean_, t.var_], 0)


def through_pickle(t):
    return pickle.loads(pickle.dumps(t))


def through_joblib(t):
    file = io.BytesIO()
    joblib.dump(t, file)
    file.seek(0)
    return joblib.load(file)


@pytest.mark.parametrize("copied", [through_pickle, through_joblib, copy.deepcopy])
@pytest.mark.parametrize("parameters", [{}, {"momentum": None, "ddof": 1}, {"halflife": 5.0}, {"affine": False}])
def test_copies_share_as_the_original_does(copied, parameters):
    x = table(seed=1)
    t = fitted(**parameters)
    t.partial_fit(x)
    u = copied(t)
    for _ in range(2):
        for name in ("mean_", "var_", "gamma_", "beta_", "n_samples_seen_", "n_batches_seen_"):
            np.testing.assert_array_equal(getattr(u, name), getattr(t, name))
        np.testing.assert_array_equal(u.transform(x), t.transform(x))
        np.testing.assert_array_equal(u.layer_(x), t.transform(x))
        t.partial_fit(x[:20])
        u.partial_fit(x[:20])
    kept = t.mean_.copy()
    u.layer_.running_mean[...] = 7
    if u.affine:
        u.layer_.gamma.data[...] = 5
        assert u.gamma_[0] == 5
    assert u.mean_[0] == 7
    np.testing.assert_array_equal(t.mean_, kept)
    if parameters.get("momentum", 0) is None:
        u.layer_.train()(x)
        assert u.layer_._running.seen[0] == 60 + 60 + 20 + 20 + 60
        assert u.n_samples_seen_ == 60 + 60 + 20 + 20 + 60


def test_joblib_maps_to_memory(tmp_path):
    """Arrays that a file backs, to be read only: transform reads them, partial_fit moves a copy."""
    x = table()
    t = fitted(momentum=None)
    joblib.dump(t, tmp_path / "t.joblib")
    u = joblib.load(tmp_path / "t.joblib", mmap_mode="r")
    np.testing.assert_array_equal(u.transform(x), t.transform(x))
    u.partial_fit(x)
    t.partial_fit(x)
    np.testing.assert_array_equal(u.var_, t.var_)
    u.gamma_ = np.ones(4)
    u.layer_.gamma.data += 1
    np.testing.assert_array_equal(u.gamma_, 2)


def test_clone_is_unfitted():
    t = clone(fitted(halflife=4.0, eps=0.5))
    assert t.get_params()["halflife"] == 4
    assert not hasattr(t, "layer_")


def test_fit_leaves_what_was_handed_out():
    t = fitted()
    layer, mean = t.layer_, t.mean_.copy()
    t.fit(2 * table())
    assert t.layer_ is not layer
    np.testing.assert_array_equal(layer.running_mean, mean)
