"""The transformer on a real device, against the same on the CPU. Skipped with the reason where there is none."""

import copy
import pickle

import numpy as np
import pytest

import bnorm
from backends import ON_A_DEVICE
from compare import assert_close, assert_same

pytestmark = ON_A_DEVICE


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.mark.parametrize(
    "parameters", [{}, {"momentum": None, "eps": 0}, {"halflife": 300.0, "ddof": 1}, {"affine": False}], ids=str
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_the_transformer(cupy, parameters, dtype):
    """As in test_transformer.py: a stream with missing values, both maps, gradients, merging, copies, refusals."""
    rng = np.random.default_rng(0)
    x, dy = rng.normal(5, 3, (2, 1000, 7)).astype(dtype)
    weight = rng.integers(0, 3, len(x)).astype(float)
    if x.dtype.kind == "f":
        x[rng.random(x.shape) < 0.1] = np.nan
        x[:250, 3] = np.nan
    a, da = cupy.asarray(x), cupy.asarray(dy)
    host, device = (bnorm.BatchNormTransformer(**parameters) for _ in range(2))
    unit = {"float16": 2.0**-9, "float32": 4e-6}.get(dtype, 1e-11)
    names = ["running_mean_", "running_var_", "mean_", "scale_"] + ["gamma_", "beta_"] * host.affine

    def alike(got, want, allowed=unit):
        assert type(got) is cupy.ndarray and got.dtype == want.dtype
        assert_close(cupy.asnumpy(got), want, allowed * np.maximum(1, np.abs(np.nan_to_num(want))))

    def agree(t, u):
        for name in names:
            alike(getattr(t, name), getattr(u, name), max(1e-11, min(unit, 4e-6)))
        assert t.n_batches_seen_ == u.n_batches_seen_
        got, want = t.n_samples_seen_, u.n_samples_seen_
        assert np.array_equal(got if np.ndim(want) == 0 else cupy.asnumpy(got), want)

    for i in range(0, 1000, 250):
        w = weight[i : i + 250] if i == 500 else None
        host.partial_fit(x[i : i + 250], sample_weight=w)
        device.partial_fit(a[i : i + 250], sample_weight=w if w is None else cupy.asarray(w))
        agree(device, host)
    alike(device.transform(a), host.transform(x))
    alike(device.transform(a[::2, ::-1][:, ::-1]), host.transform(x[::2]))
    for order in "CF":
        b = cupy.array(a, order=order)
        assert device.transform(b, copy=False) is b or dtype == "int32"
        alike(device.inverse_transform(device.transform(a)), host.inverse_transform(host.transform(x)), 8 * unit)
    alike(device.backward(a, da), host.backward(x, dy), 4 * unit)
    if host.affine:
        total = np.abs(dy).sum() * unit
        assert_close(cupy.asnumpy(device.gamma_grad_), host.gamma_grad_, total)
        assert_close(cupy.asnumpy(device.step(1e-6).beta_), host.step(1e-6).beta_, total)
        device.gamma_, device.beta_ = host.gamma_.tolist(), host.beta_.tolist()
    if "eps" in parameters or "halflife" in parameters:
        other = copy.deepcopy(device).partial_fit(a)
        alike(device.merge(other).mean_, host.merge(copy.deepcopy(host).partial_fit(x)).mean_, 4e-6)
    for copied in (copy.deepcopy(device), pickle.loads(pickle.dumps(device))):
        agree(copied.partial_fit(a), copy.deepcopy(host).partial_fit(x))
    moved = copy.deepcopy(device)
    moved.layer_.to("cpu")
    assert_same(moved.mean_, cupy.asnumpy(device.mean_))
    moved.partial_fit(x).layer_.to("cuda")
    agree(moved, copy.deepcopy(host).partial_fit(x))
    for method, bad in [("transform", x), ("partial_fit", x), ("inverse_transform", x), ("merge", moved)]:
        if method == "merge":
            moved.layer_.to("cpu")
        with pytest.raises(TypeError, match="do not mix"):
            getattr(device, method)(bad)
    agree(device.fit(a, sample_weight=cupy.asarray(weight)), host.fit(x, sample_weight=weight))
    for bad, words in [(a[:, :3], "X has 3 features"), (a[:0], "0 sample"), (cupy.full((2, 7), np.inf), "infinity")]:
        with pytest.raises(ValueError, match=words):
            device.transform(bad)
