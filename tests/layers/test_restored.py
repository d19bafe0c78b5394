"""Layers that come back, from files, other processes and copies: their arrays are writeable memory of their own."""

import copy
import pickle
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

import bnorm
from bnorm import devices
from compare import assert_same
from layer_oracle import held

C = 4
joblib = pytest.importorskip("joblib", reason="joblib comes with scikit-learn")


def mapped(mode):
    def again(layer, folder):
        joblib.dump(layer, folder / "layer.joblib")
        return joblib.load(folder / "layer.joblib", mmap_mode=mode)

    return again


def out_of_band(made):
    """Protocol 5 with buffers beside the pickle, in memory of some kind."""

    def again(layer, folder):
        buffers = []
        data = pickle.dumps(layer, protocol=5, buffer_callback=buffers.append)
        assert buffers
        return pickle.loads(data, buffers=[made(bytes(b)) for b in buffers])

    return again


def misaligned(b):
    return memoryview(bytearray(b"x" + b))[1:]


SHARED = []


def shared(b):
    memory = SharedMemory(create=True, size=max(len(b), 1))
    SHARED.append(memory)
    memory.buf[: len(b)] = b
    return memory.buf[: len(b)]


WAYS = {
    "mapped to read": mapped("r"),
    "mapped to write": mapped("r+"),
    "mapped, copied on write": mapped("c"),
    "joblib": mapped(None),
    "immutable buffers": out_of_band(bytes),
    "buffers that others hold": out_of_band(bytearray),
    "misaligned buffers": out_of_band(misaligned),
    "shared memory": out_of_band(shared),
    **{f"protocol {n}": lambda layer, _, n=n: pickle.loads(pickle.dumps(layer, protocol=n)) for n in range(6)},
    "deepcopy": lambda layer, _: copy.deepcopy(layer),
    "copy": lambda layer, _: copy.copy(layer),
}
LAYERS = {
    "batch": lambda: bnorm.BatchNorm1d(C, momentum=None),
    "batch in float32": lambda: bnorm.BatchNorm1d(C, dtype="float32"),
    "instance": lambda: bnorm.InstanceNorm1d(C, affine=True, track_running_stats=True),
    "layer": lambda: bnorm.LayerNorm(C),
    "rms": lambda: bnorm.RMSNorm((C,), None),
    "group": lambda: bnorm.GroupNorm(2, C, bias=False),
}


@pytest.fixture(autouse=True)
def no_memory_left_behind():
    yield
    while SHARED:
        memory = SHARED.pop()
        memory.close()
        memory.unlink()


def batch(name):
    shape = (6, C, 5) if name == "instance" else (6, C)
    return np.random.default_rng(0).standard_normal((2, *shape))


def trained(name):
    layer = LAYERS[name]()
    x, dy = batch(name)
    layer(x)
    layer.backward(dy)
    for p in layer.parameters():
        p.data -= 0.1 * p.grad
    return layer


def arrays(layer):
    return layer._memory()


def check(other, name):
    """It is as the layer was, and nobody else has its memory."""
    layer, (x, dy) = trained(name), batch(name)
    assert type(other) is type(layer) and held(other) == held(layer)
    for a in arrays(other).values():
        assert type(a) is np.ndarray and a.flags.owndata and a.flags.carray, a.flags
    for each in (layer, other):
        each.training = True
        each(x)
        each.backward(dy)
        each.eval()
        each(x)
        each.backward(dy)
    assert held(other) == held(layer)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_layer_that_comes_back(name, way, tmp_path):
    layer = trained(name)
    before = held(layer)
    other = WAYS[way](layer, tmp_path)
    for a in arrays(other).values():
        assert not any(np.shares_memory(a, b) for b in arrays(layer).values())
    check(other, name)
    assert held(layer) == before


def test_a_file_is_not_written_to(tmp_path):
    path = tmp_path / "layer.joblib"
    joblib.dump(trained("batch"), path)
    before = path.read_bytes()
    check(joblib.load(path, mmap_mode="r+"), "batch")
    assert path.read_bytes() == before


def test_immutable_bytes_stay_as_they_are():
    buffers = []
    data = pickle.dumps(trained("batch"), protocol=5, buffer_callback=buffers.append)
    kept = [bytes(b) for b in buffers]
    before = [bytes(bytearray(b)) for b in kept]
    check(pickle.loads(data, buffers=kept), "batch")
    assert kept == before


def test_layers_as_large_as_loky_maps():
    """joblib maps arguments of a megabyte and more, to be read only, into its workers."""
    bn = bnorm.BatchNorm1d(200_000)
    x = np.random.default_rng(0).standard_normal((3, 200_000))
    with joblib.parallel_config("loky", n_jobs=2, max_nbytes="100K"):
        results = joblib.Parallel()(joblib.delayed(_mean_after)(bn, x) for _ in range(2))
    bn(x)
    for mean in results:
        assert_same(mean, bn.running_mean)


def _mean_after(bn, x):
    bn(x)
    return np.array(bn.running_mean)


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_by_itself(way, tmp_path):
    p = bnorm.Parameter(np.arange(4.0), requires_grad=False)
    p.grad = np.arange(4.0) + 1
    other = WAYS[way](p, tmp_path)
    for a in (other.data, other.grad):
        assert type(a) is np.ndarray and a.flags.carray and a.flags.owndata
        assert not np.shares_memory(a, p.data) and not np.shares_memory(a, p.grad)
    assert_same(other.data, p.data)
    assert_same(other.grad, p.grad)
    assert other.requires_grad is False


def test_memory_of_its_own():
    good = np.arange(3.0)
    assert devices.owned(good) is good
    read_only = np.arange(3.0)
    read_only.flags.writeable = False
    others = [
        read_only,
        np.arange(6.0)[::2],
        np.arange(4.0)[1:],
        good.astype(">f8"),
        np.frombuffer(b"x" + good.tobytes(), np.float64, offset=1),
        good.view(np.recarray),
    ]
    for a in others:
        b = devices.owned(a)
        assert type(b) is np.ndarray and b.flags.carray and b.flags.owndata and b.dtype.isnative
        assert np.array_equal(a, b) and not np.shares_memory(a, b)
