"""The functions on CuPy arrays, on the stand-in: what they give on the CPU, without waiting for the device."""

from functools import partial

import numpy as np
import pytest

import bnorm.functional as F
from bnorm import Parameter
from compare import EPS, assert_close
from emulated import fake_cupy
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from kinds import KINDS, activations, batch, every_kind, group, layer, rms

IMAGES = batch("batch-NHWC-memory", (2, 3, 4, 2))
SOME = [
    batch("batch", (6, 3)),
    IMAGES,
    layer("layer", (4, 7), 7),
    rms("rms", (4, 7), 7),
    group("group", (2, 6, 3, 2), 3),
]
some_kinds = pytest.mark.parametrize("kind", SOME, ids=str)
NAN = float("nan")


def there(cupy, a):
    """On the device, with the axes in the same order of memory; what is no array stays what it is."""
    return fake_cupy.wrapped(a.copy("K")) if isinstance(a, np.ndarray) else a


def assert_alike(got, want, x, *, dtype="float64", factor=64, **case):
    """Arrays on the device of the shape, type and memory of those on the CPU, and as close as sums over x are."""
    assert (got is None) == (want is None), case
    if want is not None:
        assert type(got) is fake_cupy.ndarray and got.dtype == want.dtype, case
        unit = 2.0**-10 if want.dtype == np.float16 else factor * EPS[np.dtype(dtype)]
        size = np.abs(np.nan_to_num(want.astype("f8"))).max(initial=1.0)
        assert_close(got.host, want, unit * size * max(1, np.abs(np.nan_to_num(x)).max(initial=0)), **case)


def both(cupy, kind, x, dy, *, dtype="float64", waits=False, **options):
    """Forward and backward on both sides, the results compared; those of the device."""
    want, saved = kind.forward(x, **options)
    wanted = F.backward(dy, saved)
    device_x, device_dy = there(cupy, x), there(cupy, dy)
    options = {name: there(cupy, value) for name, value in options.items()}
    before = cupy.waits
    got, device_saved = kind.forward(device_x, **options)
    found = F.backward(device_dy, device_saved)
    assert cupy.waits - before == waits
    assert_alike(got, want, x, dtype=dtype, kind=kind, what="y")
    for g, w, what in zip(found, wanted, ("dx", "dgamma", "dbeta"), strict=True):
        assert_alike(g, w, x, dtype=dtype, kind=kind, what=what)
    for g, w in ((got, want), (found[0], wanted[0])):  # strides of axes of length 1 say nothing
        assert [s for s, n in zip(g.strides, g.shape, strict=True) if n > 1] == [
            s for s, n in zip(w.strides, w.shape, strict=True) if n > 1
        ]
    return got, *found


@needs_emulator
@every_kind
@activations
def test_every_kind(cupy, kind, activation):
    x, dy, gamma, beta = kind.example()
    options = {"gamma": gamma, "beta": beta} if kind.has_beta else {"gamma": gamma}
    both(cupy, kind, x, dy, activation=activation, **options)
    both(cupy, kind, x, dy, activation=activation)


@needs_emulator
@some_kinds
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_types(cupy, kind, dtype):
    x, dy, gamma, _ = kind.example()
    x = (x > 3).astype(bool) if dtype == "bool" else x.astype(dtype)
    got = both(cupy, kind, x, dy.astype("f4"), dtype=dtype if dtype[0] == "f" else "float64", gamma=gamma)
    assert got[0].dtype == (x.dtype if dtype[0] == "f" else np.float64)


@needs_emulator
@some_kinds
@pytest.mark.parametrize("memory", ["F", "strided", "backwards", "broadcast"])
def test_memory(cupy, kind, memory):
    x, dy, gamma, _ = kind.example()
    if memory == "F":
        device_x = fake_cupy.wrapped(x.copy("F"))
    elif memory == "strided":
        device_x = fake_cupy.wrapped(np.repeat(x, 2, -1))[..., ::2]
    elif memory == "backwards":
        device_x = fake_cupy.wrapped(x[::-1].copy())[::-1]
    else:
        device_x = np.broadcast_to(there(cupy, x[:1]), x.shape)
    x = device_x.host
    want, saved = kind.forward(x, gamma)
    got, device_saved = kind.forward(device_x, there(cupy, gamma))
    dx, wanted = F.backward(there(cupy, dy), device_saved)[0], F.backward(dy, saved)[0]
    assert_alike(got, want, x, kind=kind)
    assert_alike(dx, wanted, x, factor=1e4, kind=kind)
    assert (got.strides, dx.strides) == (want.strides, wanted.strides)


@needs_emulator
def test_bfloat16(cupy):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x, dy, gamma, beta = batch("batch", (6, 3)).example()
    low = x.astype(bfloat16)
    want, _ = F.batch_norm(low.astype("f4"), gamma, beta)
    with cupy.nothing_waits():
        y, saved = F.batch_norm(there(cupy, low), there(cupy, gamma), there(cupy, beta))
        dx, _, _ = F.backward(there(cupy, dy), saved)
    assert y.dtype == dx.dtype == bfloat16
    for result in (y.host, F.batch_norm(low, gamma, beta)[0]):
        assert_close(result.astype("f4"), want, 2.0**-8 * np.maximum(1, np.abs(want)))


EMPTY = [(0, 4), (0, 300, 3), (2, 0), (2, 0, 5), (2, 0, 300), (2, 4, 0), (0, 0, 5)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_arrays_without_elements(cupy, shape, dtype):
    """Of every kind results of the CPU's shapes, however such arrays would be dealt out."""
    x, c, row = np.empty(shape, dtype), np.ones(shape[1]), np.ones(shape[1:])
    with cupy.launches_nothing():
        for call, *options in (
            (F.batch_norm, c, c),
            (F.instance_norm, c, c),
            (F.group_norm, 2, c, c),
            (partial(F.layer_norm, normalized_shape=shape[1:]), row, row),
            (partial(F.rms_norm, normalized_shape=shape[1:]), row),
        ):
            if call is F.instance_norm and len(shape) < 3:
                continue
            want, saved = call(x, *options)
            got, device_saved = call(there(cupy, x), *(there(cupy, option) for option in options))
            wanted, found = F.backward(x, saved), F.backward(there(cupy, x), device_saved)
            shapes = [[None if a is None else a.shape for a in some] for some in ((want, *wanted), (got, *found))]
            assert shapes[0] == shapes[1], call


@needs_emulator
def test_inference(cupy):
    kind = batch("batch", (6, 3))
    x, dy, gamma, beta = kind.example()
    both(cupy, kind, x, dy, gamma=gamma, beta=beta, mean=x.mean(0), var=x.var(0) * 2)
    both(cupy, kind, x, dy, mean=x.mean(0), var=x.var(0))
    y, _ = F.batch_norm(there(cupy, x), mean=there(cupy, x.mean(0)), var=there(cupy, -x.var(0)))
    assert np.isnan(y.host).all()  # nobody looked


@needs_emulator
@pytest.mark.parametrize("number", range(5))
def test_weights_are_looked_at_once(cupy, number):
    kind = IMAGES
    x, dy, gamma, beta = kind.example()
    rng = np.random.default_rng(3)
    weight = [rng.random((2, 4, 2)), rng.random((2, 4, 2)) > 0.4, np.array([1.0, 0.0]), np.array([True, False])]
    weight = [*weight, np.zeros(2)][number]
    both(cupy, kind, x, dy, waits=True, gamma=gamma, beta=beta, weight=weight)
    with pytest.raises(AssertionError, match="1 waits"), cupy.nothing_waits():
        F.batch_norm(there(cupy, x), weight=there(cupy, weight))


@needs_emulator
def test_weights_are_the_callers_no_more(cupy):
    kind = batch("batch", (6, 3))
    x, dy, _, _ = kind.example()
    weight = np.arange(6.0)
    device_weight = there(cupy, weight)
    _, saved = F.batch_norm(there(cupy, x), weight=device_weight)
    device_weight[...] = NAN
    want = F.backward(dy, F.batch_norm(x, weight=weight)[1])[0]
    assert_alike(F.backward(there(cupy, dy), saved)[0], want, x)


@needs_emulator
@pytest.mark.parametrize("out", ["own", "x", "strided", "F"])
@pytest.mark.parametrize("kind", SOME[:3], ids=str)
def test_out(cupy, kind, out):
    x, dy, gamma, _ = kind.example()
    want, saved = kind.forward(x, gamma)
    wanted = F.backward(dy, saved)
    device_x, device_dy, device_gamma = there(cupy, x), there(cupy, dy), there(cupy, gamma)
    target, back = device_x, device_dy
    if out == "own":
        target, back = cupy.empty(x.shape), cupy.empty(x.shape)
    if out == "strided":
        target, back = (cupy.empty((*x.shape[:-1], 2 * x.shape[-1]))[..., ::2] for _ in range(2))
    if out == "F":
        target, back = (cupy.empty(x.shape, order="F") for _ in range(2))
    with cupy.nothing_waits():
        y, device_saved = kind.forward(device_x, device_gamma, out=target)
    assert y is target
    assert_alike(y, want, x)
    if out == "x":
        with pytest.raises(
            RuntimeError, match=r"^backward: x: expected it as it was in the forward, got one that out="
        ):
            F.backward(device_dy, device_saved)
        return
    with cupy.nothing_waits():
        dx, dgamma, _ = F.backward(device_dy, device_saved, out=back)
    assert dx is back
    assert_alike(dx, wanted[0], x)
    assert_alike(dgamma, wanted[1], x)


X, DY = np.random.default_rng(0).standard_normal((2, 8, 4))
ONES = np.ones(4)
UNIT = {"mean": np.zeros(4), "var": ONES}
LAYER = {"normalized_shape": 4}
BLOCK = fake_cupy.wrapped(np.zeros(128))  # memory to cut overlapping arrays from

# function, arguments beside x, the name and the value that does not fit, and what the message says of it
MIXED = [
    ("batch_norm", {}, "gamma", ONES),
    ("batch_norm", {}, "beta", ONES),
    ("batch_norm", UNIT, "mean", ONES),
    ("batch_norm", UNIT, "var", ONES),
    ("batch_norm", {}, "weight", np.ones(8)),
    ("batch_norm", {}, "weight", np.ones(8, bool)),
    ("batch_norm", {}, "out", X),
    ("layer_norm", LAYER, "gamma", ONES),
    ("layer_norm", LAYER, "beta", ONES),
    ("layer_norm", LAYER, "out", X),
    ("rms_norm", LAYER, "gamma", ONES),
    ("group_norm", {"num_groups": 2}, "gamma", ONES),
    ("group_norm", {"num_groups": 2}, "beta", ONES),
    ("instance_norm", {}, "gamma", ONES),
    ("moments", {}, "weight", np.ones(8)),
]


@pytest.mark.parametrize(("name", "others", "parameter", "value"), MIXED, ids=[f"{r[0]}-{r[2]}" for r in MIXED])
def test_mixed_arguments(cupy, name, others, parameter, value):
    """In both directions, each argument beside an x of the other side."""
    x = X if name not in ("group_norm", "instance_norm") else X.reshape(2, 4, 4)
    for arrays, wrong, wanted, got, way, other in (
        (lambda a: there(cupy, a), value, "CuPy", "NumPy", "asarray", "asnumpy"),
        (lambda a: a, there(cupy, value), "NumPy", "CuPy", "asnumpy", "asarray"),
    ):
        given = {key: arrays(item) for key, item in others.items()} | {parameter: wrong}
        with pytest.raises(TypeError) as caught, cupy.nothing_waits():
            getattr(F, name)(arrays(x), **given)
        assert str(caught.value) == (
            f"{name}: {parameter}: expected a {wanted} array, as x is one, got a {got} array: NumPy and CuPy arrays do "
            f"not mix; cupy.{way}({parameter}) moves the one, cupy.{other}(x) the other"
        )


def test_mixed_gradients(cupy):
    saved, device_saved = F.batch_norm(X)[1], None
    with cupy.launches_nothing():
        device_saved = F.batch_norm(there(cupy, X))[1]
    for which, dy, out in ((saved, there(cupy, DY), None), (device_saved, DY, None)):
        with pytest.raises(TypeError, match=r"^backward: dy: expected a .* as x is one, .* do not mix"):
            F.backward(dy, which, out)
    for which, dy, out in ((saved, DY, there(cupy, DY)), (device_saved, there(cupy, DY), DY)):
        with pytest.raises(TypeError, match=r"^backward: out: expected a .* as x is one, .* do not mix"):
            F.backward(dy, which, out)


@needs_emulator
def test_lists_and_numbers_go_along(cupy):
    gamma, weight = [1.0, 2.0, 3.0, 4.0], [1, 0] * 4
    want, saved = F.batch_norm(X, gamma, tuple(gamma), weight=weight, eps=np.float64(0.1))
    got, device_saved = F.batch_norm(there(cupy, X), gamma, tuple(gamma), weight=weight, eps=np.float64(0.1))
    assert_alike(got, want, X)
    wanted, found = F.backward(DY.tolist(), saved), F.backward(DY.tolist(), device_saved)
    for g, w in zip(found, wanted, strict=True):
        assert_alike(g, w, X)


@needs_emulator
def test_a_parameter_stands_for_its_array(cupy):
    gamma = np.arange(1.0, 5.0)
    p, q = Parameter(there(cupy, gamma)), Parameter(gamma)
    want, _ = F.batch_norm(X, q, q)
    with cupy.nothing_waits():
        got, _ = F.batch_norm(there(cupy, X), p, p)
    assert_alike(got, want, X)
    with pytest.raises(TypeError, match=r"gamma: expected a CuPy array, as x is one, got a NumPy array"):
        F.batch_norm(there(cupy, X), q)
    with pytest.raises(TypeError, match=r"gamma: expected a NumPy array, as x is one, got a CuPy array"):
        F.batch_norm(X, p)


def cut(start, shape, strides=None):
    a = BLOCK.host[start:]
    return fake_cupy.wrapped(np.ndarray(shape, "f8", a, 0, strides))


BAD = [
    ({"x": X.astype(complex)}, TypeError, "x", "complex128"),
    ({"x": X.astype("V8")}, TypeError, "x", "expected real numbers"),
    ({"x": X.astype("longdouble")}, TypeError, "x", "float16, bfloat16, float32 or float64"),
    ({"x": X[:1]}, ValueError, "x", "more than one value per channel"),
    ({"axis": 2}, ValueError, "axis", "got 2"),
    ({"eps": -1.0}, ValueError, "eps", ">= 0"),
    ({"gamma": np.ones(5)}, ValueError, "gamma", "expected shape (4,), got (5,)"),
    ({"gamma": ONES > 0}, TypeError, "gamma", "bools"),
    ({"beta": ONES * 1j}, TypeError, "beta", "complex128"),
    ({"beta": ["a"] * 4}, TypeError, "beta", "real numbers"),
    ({"mean": ONES}, ValueError, "var", "as mean is given"),
    ({"weight": ONES}, ValueError, "weight", "expected shape (8,)"),
    ({"weight": -np.ones(8)}, ValueError, "weight", ">= 0"),
    ({"weight": np.array([NAN] + [1.0] * 7)}, ValueError, "weight", "finite"),
    ({"weight": np.array([np.inf] + [1.0] * 7)}, ValueError, "weight", "finite"),
    ({"weight": np.full(8, 1e308)}, ValueError, "weight", "sum"),
    ({"weight": np.arange(8) == 3}, ValueError, "x", "with one weight above zero"),
    ({"out": np.zeros((4, 8))}, ValueError, "out", "expected shape (8, 4)"),
    ({"out": np.zeros((8, 4), "f4")}, TypeError, "out", "expected dtype float64, got float32"),
    ({"out": X.tolist()}, TypeError, "out", "expected a CuPy array, got list"),
    ({"x": cut(0, (8, 4)), "out": cut(1, (8, 4))}, ValueError, "out", "overlaps x"),
    ({"x": cut(0, (8, 4)), "out": cut(0, (8, 4))[::-1]}, ValueError, "out", "overlaps x"),
    ({"gamma": cut(8, 4), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps gamma"),
    ({"weight": cut(8, 8), "out": cut(0, (8, 4))}, ValueError, "out", "overlaps weight"),
    ({"out": cut(0, (8, 4), (0, 8))}, ValueError, "out", "memory of its own for every element"),
]


@pytest.mark.parametrize(("bad", "exception", "parameter", "message"), BAD, ids=[f"{r[2]}-{r[3]}" for r in BAD])
def test_errors_are_those_of_the_cpu(cupy, bad, exception, parameter, message):
    BLOCK[...] = 1.0
    given = {"x": X} | bad
    given = {name: there(cupy, value) for name, value in given.items()}
    cupy.launched.clear()
    with pytest.raises(exception) as caught:
        F.batch_norm(**given)
    assert str(caught.value).startswith(f"batch_norm: {parameter}: expected ") and message in str(caught.value)
    assert not cupy.launched


@needs_emulator
def test_what_lies_between_does_not_overlap(cupy):
    """The rows of out between the rows of x: the ranges meet, the elements do not."""
    BLOCK.host[...] = np.random.default_rng(0).standard_normal(128)
    x, out = cut(0, (8, 4), (64, 8)), cut(4, (8, 4), (64, 8))
    want, _ = F.batch_norm(x.host.copy())
    assert F.batch_norm(x, out=out)[0] is out
    assert_alike(out, want, x.host)


@needs_emulator
def test_a_subclass_gives_plain_arrays(cupy, monkeypatch):
    class Mine(cupy.ndarray):
        pass

    mine = there(cupy, X).view(Mine)
    monkeypatch.setattr(cupy, "asarray", None)  # which copies from another device
    y, saved = F.batch_norm(mine, there(cupy, ONES).view(Mine), out=there(cupy, X).view(Mine))
    dx, _, _ = F.backward(mine, saved)
    z, _ = F.batch_norm(mine)
    assert (type(y), type(dx), type(z)) == (Mine, cupy.ndarray, cupy.ndarray)
    want, saved = F.batch_norm(X, ONES)
    assert_alike(z, want, X)
    assert_alike(dx, F.backward(X, saved)[0], X)


def test_an_array_of_another_device(cupy, monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 1)
    with pytest.raises(ValueError, match=r"^x: expected an array on the current device, 1, got one on device 0"):
        F.batch_norm(there(cupy, X))
    monkeypatch.undo()


@needs_emulator
def test_the_same_bits_again(cupy):
    for kind in SOME:
        x, dy, gamma, _ = kind.example()
        runs = []
        for _ in range(2):
            y, saved = kind.forward(there(cupy, x), there(cupy, gamma))
            runs.append([a.host.tobytes() for a in (y, *F.backward(there(cupy, dy), saved)[:2])])
        assert runs[0] == runs[1]


def test_the_table_has_every_kind():
    assert {kind.function.func for kind in KINDS} == {
        getattr(F, name) for name in F.__all__ if name not in ("Saved", "backward", "double_backward", "moments")
    }
