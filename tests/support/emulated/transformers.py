"""Pairs of transformers that have done the same, one of them on CuPy arrays of the emulator, and how they compare."""

import warnings

import numpy as np
import pytest

from bnorm import BatchNormTransformer
from compare import assert_close
from emulated import fake_cupy as stand_in

MODES = [{}, {"momentum": None}, {"halflife": 7.0}, {"halflife": 7.0, "ddof": 1}]
OTHERS = [{"affine": False}, {"momentum": None, "eps": 0, "ddof": 1}]
ERROR = {"float16": 2e-6, "float32": 2e-6, "float64": 1e-12}  # of statistics; half precision is computed in float32
ARRAYS = ("running_mean_", "running_var_", "mean_", "var_", "scale_", "gamma_", "beta_", "gamma_grad_", "beta_grad_")


@pytest.fixture(autouse=True)
def more_of_cupy(monkeypatch):
    """What NumPy asks CuPy for where `like=` is one of its arrays; these arguments CuPy 14 takes."""

    def arange(start, stop=None, step=1, dtype=None):
        return stand_in.wrapped(np.arange(start, stop, step, dtype))

    for function in (stand_in.zeros, arange):
        monkeypatch.setitem(stand_in.FUNCTIONS, function.__name__, function)


def table(n=40, dtype="float32", seed=0, nan=True):
    """With a constant feature, and with missing values; none of the last feature is there in the first ten rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(3.0, 2.0, (n, 4))
    x[:, 1] = 5
    if nan:
        x[rng.random((n, 4)) < 0.1] = np.nan
        x[:10, 3] = np.nan
    return x.astype(dtype)


def batches(x):
    return np.split(x, [10, 12, 13])


@pytest.fixture(name="pair")
def made_pair(cupy):
    """Two transformers that have done the same, the second on the device."""

    def made(x, parameters, weight=None):
        host, device = (BatchNormTransformer(**parameters) for _ in range(2))
        ends = np.cumsum([len(part) for part in batches(x)])
        for part, end in zip(batches(x), ends, strict=True):
            w = None if weight is None else weight[end - len(part) : end]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*a batch of one row has no variance")
                host.partial_fit(part, sample_weight=w)
                device.partial_fit(cupy.asarray(part), sample_weight=None if w is None else cupy.asarray(w))
        return host, device

    return made


def agree(device, host, error=1e-12):
    """All fitted attributes, one of them on the device."""
    for name in ARRAYS:
        assert hasattr(device, name) == hasattr(host, name), name
        want = getattr(host, name, None)
        if want is None:
            assert getattr(device, name, None) is None, name
        else:
            got = getattr(device, name)
            assert type(got) is stand_in.ndarray and got.dtype == np.float64, name
            assert_close(got.host, want, error * np.maximum(1, np.abs(want)), name=name)
    got, want = device.n_samples_seen_, host.n_samples_seen_
    assert type(got) is (stand_in.ndarray if np.ndim(want) else type(want))
    assert_close(getattr(got, "host", got), want, 1e-9)
    assert device.n_batches_seen_ == host.n_batches_seen_
    assert device.n_features_in_ == host.n_features_in_
    assert (device.layer_.device, host.layer_.device) == ("cuda", "cpu")


def state_of(t):
    """All that a call could change, as bytes."""
    moved = {name: getattr(t, name, None) for name in (*ARRAYS, "n_samples_seen_", "n_batches_seen_")}
    moved |= t.layer_._running.arrays()
    found = {name: np.asarray(getattr(a, "host", a)).tobytes() for name, a in moved.items()}
    return found | {"layer": id(t.layer_)}
