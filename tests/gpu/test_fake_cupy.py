"""The stand-in for CuPy is as strict as CuPy, and counts."""

import copy
import pickle
from importlib.util import find_spec

import numpy as np
import pytest

import child
from bnorm.kernels import BACKENDS, gpu, reference
from compare import assert_close
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy  # noqa: F401

HOST = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def a(cupy):
    return cupy.asarray(HOST)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda a: np.asarray(a),
        lambda a: np.array([a, a]),
        lambda a: a + HOST,
        lambda a: HOST + a,
        lambda a: a + np.array(1.0),
        lambda a: np.multiply(a, HOST, out=np.empty_like(HOST)),
        lambda a: np.add(HOST, HOST, out=a),
        lambda a: np.where(a > 0, a, HOST),
        lambda a: np.where(HOST > 0, a, a),
        lambda a: np.stack([a, HOST]),
        lambda a: np.concatenate([a, HOST]),
        lambda a: np.full_like(a, HOST),
        lambda a: np.spacing(a),
        lambda a: np.add.reduce(a),
        lambda a: np.linalg.norm(a),
        lambda a: np.sum(a),
        lambda a: np.ones(8)[a],
        lambda a: a.min(initial=0.0),
        lambda a: a.flags.writeable,
        lambda a: a.setflags(write=False),
        lambda a: operator_iadd(a),
        lambda a: [1, 2, 3][a.sum()],
        lambda a: hash(a),
    ],
)
def test_numpy_and_the_device_do_not_mix(a, mixed):
    with pytest.raises((TypeError, AttributeError, IndexError)):
        mixed(a)


def operator_iadd(a):
    a += HOST


def test_arrays_of_the_host_are_no_values(a, cupy):
    with pytest.raises(ValueError, match="non-scalar"):
        a[...] = HOST
    with pytest.raises(ValueError, match="non-scalar"):
        np.copyto(a, HOST)
    a[...] = np.array(2.0)
    assert (a.host == 2).all()


def test_what_is_possible_stays_on_the_device(a, cupy):
    with cupy.nothing_waits():
        results = [
            *(a + 1, 2.0 * a, np.float64(3) * a, -a, a / a, a**2, np.sqrt(a), a < np.array(1.0), ~(a > 1)),
            *(a.sum(), a.sum(0), a.min(), a[0], a[0, 0], a[:, 1:], a.T, a.reshape(-1), a.astype("f4"), a.copy()),
            *(np.where(a > 0, a, 0), np.stack([a, a]), np.zeros_like(a), np.isfinite(a), np.count_nonzero(a)),
            *(copy.copy(a), copy.deepcopy(a), a.flatten(), np.broadcast_to(a, (2, 2, 3))),
        ]
        a += 1
        a[0] = a[1]
        a[1, 2] = 7
        np.copyto(a, a * 2, where=a > 3)
    assert {type(result) for result in results} == {cupy.ndarray}
    assert a.host[1, 2] == 14
    assert type(np.may_share_memory(a, a[:1])) is bool and not isinstance(a, np.ndarray)


@pytest.mark.parametrize(
    "waiting", [float, int, bool, repr, str, lambda a: a.item(), lambda a: a.get(), lambda a: f"{a}", pickle.dumps]
)
def test_waiting_is_counted(a, cupy, waiting):
    with pytest.raises(AssertionError, match="1 waits"), cupy.nothing_waits():
        waiting(a[0, 1])
    with pytest.raises(AssertionError, match="waits"), cupy.nothing_waits():
        a[a > 1]
    with pytest.raises(AssertionError, match="1 uploads"), cupy.nothing_waits():
        cupy.asarray(HOST)


def test_new_memory_is_no_number_and_copies_are_copies(a, cupy):
    assert np.isnan(cupy.empty((2, 3), "f4").host).all() and np.isnan(np.empty_like(a).host).all()
    assert not np.shares_memory(cupy.asarray(HOST).host, HOST)
    assert cupy.asarray(a) is a and np.shares_memory(a[1:].host, a.host)
    assert (pickle.loads(pickle.dumps(a)).host == HOST).all()


@needs_emulator
def test_the_backend_runs_on_it(cupy):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 70, 6)).astype("float32")
    device_x, device_dy = cupy.asarray(x), cupy.asarray(dy)
    assert BACKENDS[type(device_x)] is gpu
    with cupy.nothing_waits():
        y, stats, count, _ = gpu.forward(device_x, None, None, 1e-5)
        dx = gpu.backward(device_dy, device_x, stats, count)[0]
    want = reference.forward(x.astype("f8"), None, None, 1e-5)
    assert_close(cupy.asnumpy(y), want[0], 1e-5)
    assert_close(cupy.asnumpy(dx), reference.backward(dy.astype("f8"), x.astype("f8"), want[1], count)[0], 1e-5)
    with cupy.launches_nothing():
        assert np.isnan(gpu.forward(device_x, None, None, 1e-5)[0].host).all()


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_has_what_the_stand_in_has():
    """And what is asked of it elsewhere. No device is needed to import it."""
    assert child.output("cupy_names.py").split() == []
