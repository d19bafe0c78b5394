"""Layers between CPU and GPU, on the stand-in: moves, state dicts, pickles, and parameters on both sides."""

import copy
import pickle

import numpy as np
import pytest

import bnorm
from bnorm import Parameter
from compare import assert_same
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import BROKEN, DY, MAKERS, C, X, arrays, assert_alike, back, every_layer, pair, there
from layer_oracle import held

STATISTICS = ["running_mean", "running_var", "num_batches_tracked"]


def trained(device, **options):
    """A layer that has seen two batches, on the CPU, then moved."""
    rng = np.random.default_rng(1)
    bn = bnorm.BatchNorm1d(C, **options)
    for n in (5, 8):
        bn(rng.standard_normal((n, C)) + n)
        bn.backward(rng.standard_normal((n, C)))
        for p in bn.parameters():
            p.data -= 0.1 * p.grad
    return bn.to(device)


# Moves ---------------------------------------------------------------------------------------------------------------


@every_layer
def test_there_and_back_is_what_it_was(cupy, make, shape):
    _, layer = pair(make)
    before, parameters = held(layer), layer.parameters()
    bits = {name: None if a is None else a.tobytes() for name, a in arrays(layer).items()}
    assert layer.to("cuda") is layer and layer.device == "cuda"
    assert [p is q for p, q in zip(layer.parameters(), parameters, strict=True)] == [True] * len(parameters)
    tracked = [a for a in arrays(layer).values() if a is not None]
    assert {type(a) for a in tracked} <= {cupy.ndarray}
    with cupy.nothing_waits():
        assert layer.to("cuda") is layer
    assert layer.to("cpu") is layer and layer.device == "cpu"
    assert {name: None if a is None else a.tobytes() for name, a in arrays(layer).items()} == bits
    assert held(layer) == before
    y = layer(np.random.default_rng(0).standard_normal(shape))
    assert type(y) is np.ndarray


@needs_emulator
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_goes_on_where_it_was(cupy, momentum):
    bn, want = trained("cuda", momentum=momentum), trained("cpu", momentum=momentum)
    optimizer = bn.parameters()
    assert_alike(bn(there(X)), want(X))
    assert_alike(bn.backward(there(DY)), want.backward(DY))
    bn.to("cpu")
    for p, q in zip(optimizer, want.parameters(), strict=True):
        p.data -= 0.1 * p.grad  # who holds a parameter holds it still
        q.data -= 0.1 * q.grad
    np.testing.assert_allclose(bn(X), want(X), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(bn.running_var, want.running_var, rtol=1e-12)
    assert bn.num_batches_tracked == want.num_batches_tracked == 4


@needs_emulator
def test_a_forward_stays_behind(cupy):
    for device, other, on_side in (("cpu", "cuda", lambda a: a), ("cuda", "cpu", there)):
        bn = bnorm.BatchNorm1d(C, device=device)
        bn(on_side(X))
        bn.to(device)  # stays, and so does the forward
        bn.backward(on_side(DY))
        bn(on_side(X))
        bn.to(other)
        with pytest.raises(RuntimeError, match=r"backward: expected a forward before each backward, got none"):
            bn.backward(on_side(DY))


@pytest.mark.parametrize(("device", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_move_that_fails_half_way(cupy, monkeypatch, device, other):
    bn = trained(device)
    before, types, done = held(bn), [type(a) for a in arrays(bn).values()], []
    owner, name = (cupy, "asarray") if other == "cuda" else (cupy.ndarray, "get")
    real = getattr(owner, name)

    def fails(*arguments, **options):
        done.append(1)
        if len(done) == 4:
            raise MemoryError("out of memory")
        return real(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(owner, name, fails)
        bn.to(other)
    assert bn.device == device and [type(a) for a in arrays(bn).values()] == types
    assert held(bn) == before


# State dicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["cpu", "cuda"])
@pytest.mark.parametrize("source", ["cpu", "cuda"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_state_dicts_cross(cupy, source, to, momentum):
    layer = trained(source, momentum=momentum)
    state = layer.state_dict()
    assert list(state) == ["weight", "bias", *STATISTICS]
    kind = np.ndarray if source == "cpu" else cupy.ndarray
    assert {type(a) for name, a in state.items() if name != "num_batches_tracked"} == {kind}
    assert type(state["num_batches_tracked"]) is np.ndarray and state["num_batches_tracked"] == 2
    new = bnorm.BatchNorm1d(C, momentum=momentum, device=to)
    data = [p.data for p in new.parameters()]
    assert tuple(new.load_state_dict(state)) == ([], [])
    assert [p.data is a for p, a in zip(new.parameters(), data, strict=True)] == [True, True]
    for name, a in state.items():
        assert_same(back(new.state_dict()[name]), back(a), what=name)
    if momentum is None:
        assert_same(back(new._running.seen), back(layer._running.seen))
        assert (back(new._running.seen) == 13).all()
    state["weight"][...] = 77  # a copy
    assert not (back(layer.gamma.data) == 77).any() and not (back(new.gamma.data) == 77).any()


def test_state_dicts_of_other_kinds(cupy):
    want = trained("cpu").state_dict()
    for given in (
        {name: a.tolist() for name, a in want.items()},
        {"gamma": there(want["weight"]), "beta": want["bias"], **{name: want[name] for name in STATISTICS}},
        {name: there(a.astype("f4") if a.ndim else a) for name, a in want.items()},
        {name: Parameter(there(a)) if a.ndim else a for name, a in want.items()},
    ):
        bn = bnorm.BatchNorm1d(C, device="cuda")
        bn.load_state_dict(given)
        for name, a in bn.state_dict().items():
            assert np.allclose(back(a), want[name], rtol=1e-6), name
    bn = bnorm.LayerNorm((2, 3), device="cuda")
    bn.load_state_dict({"weight": np.ones((2, 3)), "bias": there(np.ones((2, 3)))})
    assert (bn.beta.data.host == 1).all()


@pytest.mark.parametrize(
    "change", [{"weight": None}, {"bias": np.ones(5)}, {"running_var": -np.ones(C)}, {"x": np.ones(1)}, {"bias": "a"}]
)
def test_a_state_that_does_not_fit_is_refused_whole(cupy, change):
    bn = trained("cuda")
    before = held(bn)
    state = {name: there(a + 1) for name, a in trained("cpu").state_dict().items()}
    state |= {name: there(a) for name, a in change.items()}
    state = {name: a for name, a in state.items() if a is not None}
    with pytest.raises(ValueError, match=rf"^BatchNorm1d\(4\): state_dict: expected .*{next(iter(change))}"):
        bn.load_state_dict(state)
    assert held(bn) == before


def test_a_state_that_has_no_room(cupy, monkeypatch):
    bn = trained("cuda")
    before, state, left = held(bn), trained("cpu").state_dict(), [1, 1]
    state["weight"] += 1
    real = cupy.asarray

    def fails(*arguments, **options):
        if not left:
            raise MemoryError("out of memory")
        left.pop()
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cupy, "asarray", fails)
        with pytest.raises(MemoryError):
            bn.load_state_dict(state)
    assert held(bn) == before


def test_tensors(cupy):
    torch = pytest.importorskip("torch")
    module = torch.nn.BatchNorm1d(C)
    module(torch.ones(3, C) * 5)
    bn = bnorm.BatchNorm1d(C, device="cuda")
    bn.load_state_dict(module.state_dict())
    assert bn.num_batches_tracked == 1 and np.allclose(bn.running_mean.host, 0.5)
    state = {name: torch.as_tensor(cupy.asnumpy(a)) for name, a in bn.state_dict().items()}
    assert not module.load_state_dict(state).missing_keys


# Copies --------------------------------------------------------------------------------------------------------------


@needs_emulator
@pytest.mark.parametrize("again", [lambda a: pickle.loads(pickle.dumps(a)), copy.deepcopy], ids=["pickle", "deepcopy"])
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False}, {"dtype": "float32"}], ids=str)
def test_copies(cupy, again, options):
    bn = trained("cuda", **options)
    other = again(bn)
    assert type(other) is bnorm.BatchNorm1d and other.device == "cuda" and held(other) == held(bn)
    before = held(other)
    y, dx = bn(there(X)), bn.backward(there(DY))
    assert held(other) == before  # nothing is shared
    assert_same(other(there(X)).host, y.host)
    assert_same(other.backward(there(DY)).host, dx.host)
    assert held(other) == held(bn)


@needs_emulator
def test_a_copy_counts_on(cupy):
    bn = bnorm.BatchNorm1d(C, device="cuda")
    bn(there(BROKEN))
    with pytest.warns(RuntimeWarning, match="2 of 4"):
        other = copy.deepcopy(bn)
    bn(there(BROKEN))
    assert (bn.num_batches_skipped, other.num_batches_skipped) == (2, 1)


# Parameters ----------------------------------------------------------------------------------------------------------


def test_a_parameter_on_the_device(cupy):
    values = np.array([1.0, 2.0, 3.0])
    p, q = Parameter(there(values)), Parameter(values.copy())
    on_device = there(np.array([10.0, 20.0, 30.0]))
    with cupy.nothing_waits():
        p.grad += on_device
        p.data -= 0.1 * p.grad
        results = (
            *(p * 2, 2 * p, p + p, p - on_device, on_device / p, np.sqrt(abs(p)), p == p.data, p[0], -p, p.sum()),
            *(np.float64(3) * p, p.T, np.add(p, 1)),
        )
        p[1] = 7
        p.grad = None
        p.zero_grad()
    q -= 0.1 * on_device.host
    assert {type(result) for result in results} == {cupy.ndarray}
    q[1] = 7
    assert_same(p.data.host, q.data)
    assert type(p.grad) is cupy.ndarray and (p.grad.host == 0).all()
    assert repr(p) == repr(q) and len(p) == 3 and p.shape == (3,) and p.dtype == np.float64
    data = p.data
    p.data = [5.0, 6.0, 7.0]
    p.grad = on_device
    assert p.data is data and (data.host == [5, 6, 7]).all() and p.grad is not on_device
    p *= 2
    assert p.data is data and (data.host == [10, 12, 14]).all()
    for again in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert type(again.data) is cupy.ndarray and (again.data.host == [10, 12, 14]).all()
        assert (again.grad.host == [10, 20, 30]).all()
    with pytest.raises(TypeError, match=r"cupy\.asnumpy\(p\.data\)"):
        np.asarray(p)
    for mixed in (lambda: p + values, lambda: values * p, lambda: np.multiply(values, values, out=p)):
        with pytest.raises(TypeError):
            mixed()
    for name in ("data", "grad"):
        with pytest.raises(ValueError, match=rf"^Parameter: {name}: expected shape \(3,\), got \(2,\)"):
            setattr(p, name, there(np.ones(2)))


def test_what_a_parameter_is_made_of(cupy):
    a = there(np.ones(3))
    assert Parameter(a).data is a and Parameter(Parameter(a)).data is a
    assert Parameter(there(np.ones(3, "f4"))).dtype == np.float32
    for values in (np.arange(3), np.ones(3, "f2"), np.ones((3, 2))[:, 0], np.ones((2, 3)).T):
        p = Parameter(there(values))
        assert type(p.data) is cupy.ndarray and p.dtype == np.float64 and p.data.flags.c_contiguous
    with pytest.raises(TypeError, match=r"^Parameter: data: expected real numbers"):
        Parameter(there(np.ones(3) * 1j))


def test_values_are_written_where_a_parameter_is(cupy):
    bn = bnorm.BatchNorm1d(C, device="cuda", dtype="float32")
    data, mean = bn.gamma.data, bn.running_mean
    bn.gamma = [1.0, 2.0, 3.0, 4.0]
    bn.beta = there(np.arange(4.0))
    bn.gamma *= 2
    bn.running_mean = there(np.arange(4.0))
    bn.running_mean += 1
    assert bn.gamma.data is data and (data.host == [2, 4, 6, 8]).all() and data.dtype == np.float32
    assert bn.running_mean is mean and (mean.host == [1, 2, 3, 4]).all()
    assert set(MAKERS) and (bn.beta.data.host == np.arange(4)).all()
