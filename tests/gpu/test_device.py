"""A real device: the GPU backend against the reference, and all public entries against the CPU.

Skipped with the reason where there is none.
"""

import copy
import pickle

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from backends import ON_A_DEVICE
from bnorm.kernels import gpu, reference
from bnorm.kernels.activation import RELU
from compare import EPS, assert_close, assert_same
from kinds import KINDS, every_kind
from layer_oracle import held
from rules import rule

pytestmark = ON_A_DEVICE
SHAPES = [(256, 64), (4099, 3), (65536, 100), (70, 3, 49), (3, 5, 333), (32, 130, 784), (16, 512, 49)]
SHAPES += [(24, 32, 3136)]  # for clusters


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def drawn(cupy, shape, dtype, seed):
    return cupy.asarray((np.random.default_rng(seed).standard_normal(shape) + 2).astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_backward(cupy, shape, dtype):
    x, dy = drawn(cupy, shape, dtype, 0), drawn(cupy, shape, dtype, 1)
    gamma, beta = cupy.linspace(0.5, 2, shape[1]), cupy.linspace(-1, 1, shape[1])
    host = [cupy.asnumpy(a).astype(np.float64) for a in (x, dy, gamma, beta)]
    unit = 2.0**-10 if dtype == "float16" else 16 * EPS[np.dtype(dtype)]
    running = rule(cupy.zeros(shape[1]), cupy.ones(shape[1]), 0.1, ddof=1)
    y, stats, count, left = gpu.forward(x, gamma, beta, 1e-5, act=RELU, running=running)
    left = gpu.settle(running, stats, count, x.size, left)  # which may be what launches
    want, want_stats, want_count, _ = reference.forward(host[0], *host[2:], 1e-5, act=RELU)
    assert (count, int(left)) == (want_count, 0)
    assert_close(cupy.asnumpy(y), want, unit * np.maximum(1, np.abs(want)), shape=shape, dtype=dtype)
    assert_close(cupy.asnumpy(stats), want_stats, 1e-6 * np.maximum(1, np.abs(want_stats)), shape=shape)
    found = gpu.backward(dy, x, stats, count)
    wanted = reference.backward(host[1], host[0], want_stats, count)
    assert_close(cupy.asnumpy(found[0]), wanted[0], 8 * unit * np.maximum(1, np.abs(wanted[0])), shape=shape)
    total = 1e-5 * np.abs(host[1]).sum()
    for got, exact in zip(found[1:], wanted[1:], strict=True):
        assert_close(cupy.asnumpy(got), exact, total, shape=shape)
    again = gpu.forward(x, gamma, beta, 1e-5, act=RELU)[0], *gpu.backward(dy, x, stats, count)
    for got, first in zip(again, (y, *found), strict=True):
        assert_same(cupy.asnumpy(got), cupy.asnumpy(first), shape=shape, what="a second run")


@pytest.mark.parametrize(
    "shape", [(20, 1, 768, 1), (3, 1, 16500, 1), (3, 4, 2, 49), (2, 5, 1, 1025), (9, 3, 4, 3136)], ids=str
)
def test_rows(cupy, shape):
    x, dy = drawn(cupy, shape, "float32", 0), drawn(cupy, shape, "float32", 1)
    gamma, beta = cupy.linspace(0.5, 2, shape[1] * shape[2]), cupy.linspace(-1, 1, shape[1] * shape[2])
    host = [cupy.asnumpy(a).astype(np.float64) for a in (x, dy, gamma, beta)]
    y, mean, rstd = gpu.rows_forward(x, gamma, beta, 1e-5)
    want = reference.rows_forward(host[0], *host[2:], 1e-5)
    assert_close(cupy.asnumpy(y), want[0], 4e-6 * np.maximum(1, np.abs(want[0])), shape=shape)
    found = gpu.rows_backward(dy, x, mean, rstd, gamma, beta)
    wanted = reference.rows_backward(host[1], host[0], *want[1:], *host[2:])
    for got, exact in zip(found, wanted, strict=True):
        assert_close(cupy.asnumpy(got), exact, 1e-5 * np.maximum(1, np.abs(exact).max()), shape=shape)


@pytest.mark.parametrize("shape", [(256, 64), (65536, 100)], ids=str)
def test_a_graph_captures_calls(cupy, shape):
    """A host that waited for the device would break the capture."""
    x, out = drawn(cupy, shape, "float32", 0), cupy.empty(shape, "float32")
    gamma, beta = cupy.ones(shape[1]), cupy.zeros(shape[1])
    running = rule(cupy.zeros(shape[1]), cupy.ones(shape[1]), 0.1)
    cupy.cuda.get_current_stream().synchronize()  # what was made there is read on another stream
    pool = cupy.cuda.MemoryPool()

    def moving():
        y, stats, count, left = gpu.forward(x, gamma, beta, 1e-5, running=running, out=out)
        return y, stats, gpu.settle(running, stats, count, x.size, left)  # which may be what launches

    with cupy.cuda.Stream(non_blocking=True) as stream, cupy.cuda.using_allocator(pool.malloc):
        want, stats, count, _ = gpu.forward(x, gamma, beta, 1e-5)
        dx = gpu.backward(x, x, stats, count)[0]
        kept = moving(), cupy.empty_like(x)
        stream.synchronize()
        stream.begin_capture()
        forward = moving()
        backward = gpu.backward(x, x, stats, count, out=kept[1])
        graph = stream.end_capture()
        out[...] = 0
        kept[1][...] = 0
        graph.launch(stream)
        stream.synchronize()
        assert_same(cupy.asnumpy(out), cupy.asnumpy(want))
        assert_same(cupy.asnumpy(kept[1]), cupy.asnumpy(dx))
        del forward, backward  # the graph wrote to them


@pytest.mark.slow
def test_more_than_two_billion_elements(cupy):
    rows = (1 << 31) // 64 + 1000
    x = cupy.ones((rows, 64), "float16")
    x[rows // 2 :] = 3
    y, stats, _, _ = gpu.forward(x, None, None, 0.0, out=x)
    assert_close(cupy.asnumpy(stats[:2]), np.array([[2.0], [1.0]]) * np.ones(64), 1e-9)
    assert bool((y[: rows // 2] == -1).all()) and bool((y[rows // 2 :] == 1).all())


# Functions and layers ------------------------------------------------------------------------------------------------
# As in test_functional.py and test_layers.py, where the stand-in for CuPy is; here the rest of CuPy is tested.


def same(cupy, got, want, dtype="float64", what=None):
    assert (got is None) == (want is None), what
    if want is not None:
        assert type(got) is cupy.ndarray and got.dtype == want.dtype, what
        allowed = 1024 * EPS[np.dtype(dtype)] * np.abs(want).max(initial=1)
        assert_close(cupy.asnumpy(got), want, allowed, what=what)


def on_device(cupy, value):
    """With the axes in the same order of memory; what is no array stays what it is."""
    if not isinstance(value, np.ndarray):
        return value
    order = np.argsort([-abs(stride) for stride in value.strides], kind="stable")
    return cupy.asarray(np.ascontiguousarray(value.transpose(order))).transpose(np.argsort(order).tolist())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@every_kind
def test_every_function(cupy, kind, dtype):
    x, dy, gamma, beta = kind.example()
    x, dy = x.astype(dtype), dy.astype("float32" if dtype == "float32" else "float64")
    unit = "float32" if dtype == "float32" else "float64"
    last_first = tuple(range(x.ndim))[::-1]
    for memory in (x, x.transpose(last_first).copy().transpose(last_first), np.repeat(x, 2, -1)[..., ::2]):
        options = {"gamma": gamma, "activation": "relu"} | ({"beta": beta} if kind.has_beta else {})
        want, saved = kind.forward(memory, **options)
        device = {name: on_device(cupy, value) for name, value in options.items()}
        got, device_saved = kind.forward(on_device(cupy, memory), **device)
        same(cupy, got, want, unit, "y")
        found = F.backward(on_device(cupy, dy), device_saved)
        for g, w, what in zip(found, F.backward(dy, saved), ("dx", "dgamma", "dbeta"), strict=True):
            same(cupy, g, w, unit, what)
        out = cupy.empty(x.shape, want.dtype)
        assert kind.forward(on_device(cupy, memory), **device, out=out)[0] is out
        same(cupy, out, want, unit, "out")


def test_weights_moments_and_inference(cupy):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((30, 5)), rng.random(30)
    x[3, 2] = np.nan
    for w in (None, weight, weight > 0.5):
        m, device_m = (
            F.moments(a[:10], weight=v, skipna=True) + F.moments(a[10:], weight=u, skipna=True)
            for a, v, u in (
                (x, None if w is None else w[:10], None if w is None else w[10:]),
                (cupy.asarray(x), *(None if w is None else cupy.asarray(p) for p in (w, w)))
                if w is None
                else (cupy.asarray(x), cupy.asarray(w[:10]), cupy.asarray(w[10:])),
            )
        )
        same(cupy, device_m._parts[:3], m._parts[:3])
        same(cupy, device_m.var(1), m.var(1))
        assert device_m.to("cpu").to("cuda") == device_m and repr(device_m)[:30] == repr(m)[:30]
        assert pickle.loads(pickle.dumps(device_m)) == device_m
    x = np.nan_to_num(x)
    for w in (weight, weight > 0.5, np.zeros(30)):
        want, saved = F.batch_norm(x, weight=w)
        got, device_saved = F.batch_norm(cupy.asarray(x), weight=cupy.asarray(w))
        same(cupy, got, want)
        same(cupy, F.backward(cupy.asarray(x), device_saved)[0], F.backward(x, saved)[0])
    mean, var = x.mean(0), x.var(0)
    want, _ = F.batch_norm(x, mean=mean, var=var)
    same(cupy, F.batch_norm(cupy.asarray(x), mean=cupy.asarray(mean), var=cupy.asarray(var))[0], want)
    same(cupy, F.batch_norm(cupy.asarray(x), gamma=[2.0] * 5, weight=[1.0] * 30)[0], F.batch_norm(x, [2.0] * 5)[0])


def test_bfloat16_through_the_functions(cupy):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(bfloat16)
    y, saved = F.batch_norm(cupy.asarray(x), np.ones(8).tolist())
    dx, _, _ = F.backward(cupy.ones(x.shape, "float32"), saved)
    want, _ = F.batch_norm(x.astype("float32"))
    assert y.dtype == dx.dtype == bfloat16
    assert_close(cupy.asnumpy(y).astype("float32"), want, 2.0**-8 * np.maximum(1, np.abs(want)))


MAKERS = [
    lambda device: bnorm.BatchNorm1d(4, device=device),
    lambda device: bnorm.BatchNorm1d(4, momentum=None, activation="relu", device=device),
    lambda device: bnorm.BatchNorm1d(4, dtype="float32", ddof=1, device=device),
    lambda device: bnorm.BatchNorm1d(4, affine=False, nonfinite="raise", device=device),
    lambda device: bnorm.LayerNorm(4, device=device),
    lambda device: bnorm.RMSNorm(4, dtype="float32", device=device),
    lambda device: bnorm.GroupNorm(2, 4, device=device),
]


@pytest.mark.parametrize("make", MAKERS)
def test_layers_train_alike(cupy, make):
    rng = np.random.default_rng(0)
    layers = make("cuda"), make("cpu")
    for step in range(4):
        x, dy = rng.standard_normal((2, 12, 4)) + step
        same(cupy, layers[0](cupy.asarray(x)), layers[1](x), what="y")
        same(cupy, layers[0].backward(cupy.asarray(dy)), layers[1].backward(dy), what="dx")
        if step == 1 and isinstance(layers[0], bnorm.BatchNorm1d):
            for layer, parts in ((layers[0], [cupy.asarray(x[:5]), cupy.asarray(x[5:])]), (layers[1], [x[:5], x[5:]])):
                with layer.pooled_stats():
                    [layer(part) for part in parts]
        for layer in layers:
            for p in layer.parameters():
                p.data -= 0.1 * p.grad
            layer.zero_grad()
    for copied in (copy.deepcopy(layers[0]), pickle.loads(pickle.dumps(layers[0]))):
        assert held_if_batch(copied) == held_if_batch(layers[0])
    parameters = layers[0].parameters()
    bits = [p.data.tobytes() for p in parameters]
    layers[0].to("cpu").to("cuda").to("cpu")
    assert layers[0].parameters() == parameters or not parameters
    assert [p.data.tobytes() for p in layers[0].parameters()] == bits
    for p, q in zip(parameters, layers[1].parameters(), strict=True):
        assert_close(p.data, q.data, 1e-5 if p.dtype == np.float32 else 1e-11)
    for name in ("running_mean", "running_var", "num_batches_tracked", "num_batches_skipped"):
        if hasattr(layers[0], name):
            assert_close(getattr(layers[0], name), getattr(layers[1], name), 1e-5, what=name)
    state = layers[1].state_dict()
    on_gpu = make("cuda")
    on_gpu.load_state_dict(state)
    for name, value in on_gpu.state_dict().items():
        assert_same(cupy.asnumpy(value), state[name], what=name)
    make("cpu").load_state_dict(on_gpu.state_dict())


def held_if_batch(layer):
    return held(layer) if isinstance(layer, bnorm.BatchNorm1d) else repr(layer)


def test_skipped_batches_are_counted(cupy):
    x = cupy.asarray(np.random.default_rng(0).standard_normal((12, 4)))
    broken = x.copy()
    broken[0, 1] = cupy.nan
    bn = bnorm.BatchNorm1d(4, device="cuda")
    for a in (x, broken, broken, x, broken):
        bn(a)
    with bn.pooled_stats():
        bn(broken)
        bn(x)
    with pytest.warns(RuntimeWarning, match="1 of 4 channels"):
        assert bn.num_batches_skipped == 4
    assert bn.num_batches_tracked == 6 and bool(cupy.isfinite(bn.running_mean).all())
    strict = bnorm.BatchNorm1d(4, nonfinite="raise", device="cuda")
    before = held(strict)
    with pytest.raises(FloatingPointError, match="1 of 4 channels"):
        strict(broken)
    assert held(strict) == before


def test_errors_before_anything_is_launched(cupy):
    x, bn = np.ones((6, 4)), bnorm.BatchNorm1d(4, device="cuda")
    block = cupy.zeros(64)
    for call, error, message in (
        (lambda: F.batch_norm(cupy.asarray(x), np.ones(4)), TypeError, r"gamma: .* cupy\.asarray\(gamma\)"),
        (lambda: F.batch_norm(x, cupy.ones(4)), TypeError, r"gamma: .* cupy\.asnumpy\(gamma\)"),
        (lambda: F.batch_norm(cupy.asarray(x), out=np.empty((6, 4))), TypeError, "out: expected a CuPy array"),
        (lambda: F.batch_norm(cupy.asarray(x) * 1j), TypeError, "complex128"),
        (lambda: F.batch_norm(cupy.asarray(x), weight=-cupy.ones(6)), ValueError, ">= 0"),
        (lambda: F.batch_norm(cupy.asarray(x), weight=cupy.ones(6) * cupy.nan), ValueError, "finite"),
        (lambda: F.batch_norm(block[:24].reshape(6, 4), out=block[1:25].reshape(6, 4)), ValueError, "overlaps x"),
        (lambda: F.batch_norm(cupy.asarray(x), out=cupy.broadcast_to(block[:4], (6, 4))), ValueError, "of its own"),
        (lambda: bn(x), TypeError, r"layer\.to\('cpu'\)"),
        (lambda: bnorm.BatchNorm1d(4)(cupy.asarray(x)), TypeError, r"layer\.to\('cuda'\)"),
        (lambda: setattr(bn, "gamma", np.ones(4)), TypeError, "as the layer is on the GPU"),
        (lambda: np.asarray(bn.gamma), TypeError, "asnumpy"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_parameter_is_an_operand(cupy):
    p = bnorm.Parameter(cupy.asarray([1.0, 2.0, 3.0]))
    a = cupy.asarray([10.0, 20.0, 30.0])
    for result, want in (
        *(
            (p + a, [11, 22, 33]),
            (a + p, [11, 22, 33]),
            (np.sqrt(p * p), [1, 2, 3]),
            (cupy.multiply(a, p), [10, 40, 90]),
        ),
        *((np.float64(2) * p, [2, 4, 6]), (-p, [-1, -2, -3]), (cupy.asarray(p), [1, 2, 3])),
    ):
        assert type(result) is cupy.ndarray
        assert_same(cupy.asnumpy(result), np.array(want, float))
    a += p
    p.grad += a
    p -= p.grad
    assert_same(cupy.asnumpy(p.data), np.array([-10.0, -20.0, -30.0]))
    assert repr(p) == "Parameter([-10., -20., -30.])"


def test_a_graph_captures_a_layer(cupy):
    """Neither a forward nor a backward waits for the device: that would break the capture."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 64, 32)).astype("float32")
    on_cpu = bnorm.BatchNorm1d(32, activation="relu")
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.Stream(non_blocking=True) as stream, cupy.cuda.using_allocator(pool.malloc):
        bn = bnorm.BatchNorm1d(32, activation="relu", device="cuda")
        device_x, device_dy = cupy.asarray(x), cupy.asarray(dy)
        y, z, dx = (cupy.empty_like(device_x) for _ in range(3))

        def step():
            bn(device_x, out=y)
            bn.backward(device_dy, out=dx)
            F.batch_norm(device_x, bn.gamma.data, bn.beta.data, out=z)

        step()  # compiles what is needed
        stream.synchronize()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        for result in (y, z, dx):
            result[...] = 0
        for _ in range(2):
            graph.launch(stream)
        stream.synchronize()
        for _ in range(3):  # the first step, and the graph twice
            want, wanted = on_cpu(x), on_cpu.backward(dy)
        same(cupy, y, want, "float32", "y")
        same(cupy, z, F.batch_norm(x)[0], "float32", "the function")
        same(cupy, dx, wanted, "float32", "dx")
        assert_close(cupy.asnumpy(bn.running_mean), on_cpu.running_mean, 1e-6)
        assert_close(cupy.asnumpy(bn.gamma.grad), on_cpu.gamma.grad, 1e-3)
        assert (bn.num_batches_tracked, bn.num_batches_skipped) == (2, 0)  # calls, of which one was captured


def test_a_layer_of_another_device(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one device only")
    bn = bnorm.BatchNorm1d(4, device="cuda")
    with cupy.cuda.Device(1), pytest.raises(ValueError, match="expected arrays on device 1"):
        bn(cupy.ones((6, 4)))


def test_every_function_is_here():
    assert len({kind.function.func for kind in KINDS}) == 5
