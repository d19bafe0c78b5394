"""F.double_backward: against its twin in NumPy, PyTorch's autograd and central differences, and what it promises."""

import numpy as np
import pytest

import second_reference
from bnorm import functional as F
from bnorm.kernels import cpu
from bnorm.kernels.activation import GELU, IDENTITY, RELU, leaky
from bnorm.kernels.activation import NAMES as ACTIVATIONS
from bnorm.kernels.cpu import second
from drawing import together

CHANNELS = {  # (outer, C, inner)
    (7, 3, 1): "a table",
    (40, 5, 6): "short runs, several channels to a tile",
    (9, 70, 7): "channels that do not fill the last tile",
    (3, 2, 300): "runs longer than the lanes, with some left over",
    (2, 3, 64): "runs as long as the lanes",
    (700, 33, 1): "several pieces",
    (1, 2, 40001): "one long run per channel",
    (0, 3, 2): "no samples",
    (4, 0, 3): "no channels",
}
ROWS = {  # (N, G, K, L)
    (7, 1, 9, 1): "layer norm of short rows",
    (300, 1, 71, 1): "several pieces, rows that do not fill the lanes",
    (2, 1, 3000, 1): "long rows",
    (4, 3, 2, 6): "group norm",
    (3, 2, 1, 700): "instance norm of long runs",
    (0, 2, 3, 4): "no samples",
    (3, 1, 0, 1): "no values",
}


def draw(rng, shape, dtype):
    """x, dy and ddx."""
    return [np.asarray(a, dtype) for a in (2 * rng.normal(size=shape) + 3, *rng.normal(size=(2, *shape)))]


def check_close(results, expected, dtype, terms):
    """Sums of so many terms, of which none is much larger than the largest result of its kind."""
    for got, wanted in zip(results, expected, strict=True):
        bound = (8 * np.finfo(dtype).eps + 4e-16 * np.sqrt(terms)) * max(1.0, float(np.abs(wanted).max(initial=0)))
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max(initial=0) <= bound


@together(dtype=["float32", "float64"], frozen=[False, True], weighted=[False, True])
@pytest.mark.parametrize("shape", CHANNELS, ids=CHANNELS.get)
def test_channels_agree_with_the_twin(shape, weighted, frozen, dtype):
    rng = np.random.default_rng(1)
    channels = shape[1]
    x, dy, ddx = draw(rng, shape, dtype)
    gamma, beta, ddgamma, ddbeta = rng.normal(size=(4, channels))
    weight = rng.integers(0, 3, (shape[0], shape[2])).astype(float) if weighted else None
    mean, var = (rng.normal(size=channels), 1 + rng.random(channels)) if frozen else (None, None)
    for act in (IDENTITY, RELU, leaky(0.25), GELU):
        _, stats, count, _ = cpu.forward(x, gamma, beta, 1e-5, mean, var, weight, act)
        given = (ddx, dy, x, stats, count, weight, act, frozen, ddgamma, ddbeta)
        check_close(second.channels(*given), second_reference.channels(*given), dtype, max(x.size, 1))


@pytest.mark.parametrize("n", [1, 63, 65, 16384, 16385, 40001])
def test_a_single_channel_agrees_with_the_twin(n):
    """It is cut into runs, of which the last is shorter."""
    rng = np.random.default_rng(1)
    x, dy, ddx = draw(rng, (n, 1, 1), "float64")
    weight = rng.integers(1, 3, (n, 1)).astype(float)
    for w in (None, weight):
        _, stats, count, _ = cpu.forward(x, np.ones(1), np.zeros(1), 1e-5, weight=w)
        given = (ddx, dy, x, stats, count, w, RELU, False, np.ones(1), np.ones(1))
        check_close(second.channels(*given), second_reference.channels(*given), "float64", n)


@together(dtype=["float32", "float64"], rule=[0, 1], affine=[False, True])
@pytest.mark.parametrize("shape", ROWS, ids=ROWS.get)
def test_rows_agree_with_the_twin(shape, affine, rule, dtype):
    rng = np.random.default_rng(2)
    channels = shape[1] * shape[2]
    x, dy, ddx = draw(rng, shape, dtype)
    gamma, beta, ddgamma, ddbeta = rng.normal(size=(4, channels)) if affine else [None] * 4
    for act in (IDENTITY, RELU, leaky(0.25), GELU):
        _, mean, rstd = cpu.rows_forward(x, gamma, beta, 1e-5, rule, act)
        given = (ddx, dy, x, mean, rstd, gamma, beta, rule, act, ddgamma, ddbeta)
        check_close(second.rows(*given), second_reference.rows(*given), dtype, max(x.size, 1))


def test_same_bits_for_any_number_of_threads(set_threads):
    rng = np.random.default_rng(3)
    tables, rows = draw(rng, (20000, 9), "float32"), draw(rng, (300, 8, 20, 5), "float64")
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        _, saved = F.batch_norm(tables[0], np.arange(9.0), activation="relu")
        results = list(F.double_backward(tables[2], saved, tables[1], np.ones(9)))
        _, saved = F.group_norm(rows[0], 4, np.arange(8.0))
        results += F.double_backward(rows[2], saved, rows[1], np.ones(8))
        found.append([a.tobytes() for a in results])
    assert found[0] == found[1] == found[2]


def formula(torch, norm, x, gamma, beta, weight, options):
    """The norms in PyTorch, as their definitions."""
    axes, shape = {
        "batch_norm": ((0, 2), (1, -1, 1)),
        "layer_norm": ((1, 2), x.shape[1:]),
        "rms_norm": ((1, 2), x.shape[1:]),
        "instance_norm": ((2,), (1, -1, 1)),
        "group_norm": ((2, 3), (1, -1, 1)),
    }[norm]
    whole = x
    if norm == "group_norm":
        whole = x.reshape(x.shape[0], options["num_groups"], -1, x.shape[2])
    w = torch.ones_like(whole) if weight is None else weight.reshape(6, *[1] * (whole.ndim - 2), 5).expand_as(whole)
    count = w.sum(axes, keepdim=True)
    mean = 0 if norm == "rms_norm" else (w * whole).sum(axes, keepdim=True) / count
    var = (w * (whole - mean) ** 2).sum(axes, keepdim=True) / count
    if "mean" in options:
        mean, var = (torch.from_numpy(options[name]).reshape(1, -1, 1) for name in ("mean", "var"))
    y = ((whole - mean) / (var + 1e-5).sqrt()).reshape(x.shape)
    y = y if gamma is None else y * gamma.reshape(shape)
    return y if beta is None else y + beta.reshape(shape)


CASES = [
    ("batch_norm", {}),
    ("batch_norm", {"weight": True}),
    ("batch_norm", {"mean": np.array([0.5, 1.0, 3.0, 2.0]), "var": np.array([1.0, 2.0, 3.0, 0.5])}),
    ("layer_norm", {"normalized_shape": (4, 5)}),
    ("rms_norm", {"normalized_shape": (4, 5)}),
    ("group_norm", {"num_groups": 2}),
    ("instance_norm", {}),
    ("group_norm", {"num_groups": 2, "weight": True}),
    ("instance_norm", {"weight": True}),
]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("norm", "options"), CASES)
def test_second_derivatives_are_those_of_autograd(norm, options, affine, activation):
    torch = pytest.importorskip("torch", reason="its autograd is the oracle")
    rng = np.random.default_rng(4)
    x, dy, ddx = draw(rng, (6, 4, 5), "float64")
    options = dict(options)
    weight = options["weight"] = rng.integers(0, 3, (6, 5)).astype(float) if options.pop("weight", False) else None
    if weight is None:
        del options["weight"]
    shape = (4, 5) if norm in ("layer_norm", "rms_norm") else (4,)
    names = ("gamma",) if norm == "rms_norm" else ("gamma", "beta")
    parameters = {name: rng.normal(size=shape) for name in names} if affine else {}
    dd = {name: rng.normal(size=shape) for name in parameters}

    y, saved = getattr(F, norm)(x, **parameters, activation=activation, **options)
    results = F.double_backward(ddx, saved, dy, *dd.values(), dbeta=True)

    tensors = {name: torch.from_numpy(a).requires_grad_() for name, a in {"x": x, "dy": dy, **parameters}.items()}
    w = None if weight is None else torch.from_numpy(weight)
    wanted = formula(torch, norm, tensors["x"], tensors.get("gamma"), tensors.get("beta"), w, options)
    then = torch.nn.functional
    wanted = {
        None: lambda v: v,
        "relu": then.relu,
        "leaky_relu": then.leaky_relu,
        "silu": then.silu,
        "gelu": lambda v: then.gelu(v, approximate="tanh"),
    }[activation](wanted)
    np.testing.assert_allclose(y, wanted.detach().numpy(), atol=1e-13)
    by = [tensors["x"], *(tensors[name] for name in parameters)]
    first = torch.autograd.grad(wanted, by, tensors["dy"], create_graph=True)
    loss = sum((g * torch.from_numpy(v)).sum() for g, v in zip(first, [ddx, *dd.values()], strict=True))
    by = [tensors["dy"], tensors["x"], *(tensors[name] for name in parameters)]
    for got, expected in zip(results, torch.autograd.grad(loss, by, materialize_grads=True), strict=False):
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-12, atol=1e-12)
    assert [result is not None for result in results[2:]] == [name in parameters for name in ("gamma", "beta")]


@pytest.mark.parametrize(("norm", "options"), [case for case in CASES if "mean" not in case[1]])
def test_second_derivatives_are_central_differences_of_backward(norm, options):
    rng = np.random.default_rng(5)
    x, dy, ddx = draw(rng, (6, 4, 5), "float64")
    options = {name: rng.random((6, 5)) if name == "weight" else value for name, value in options.items()}
    gamma = rng.normal(size=(4, 5) if norm in ("layer_norm", "rms_norm") else (4,))
    ddgamma = rng.normal(size=gamma.shape)
    step = 1e-5

    def loss(x, dy, gamma):
        _, saved = getattr(F, norm)(x, gamma=gamma, activation="leaky_relu", **options)
        dx, dgamma, _ = F.backward(dy, saved)
        return np.sum(dx * ddx) + np.sum(dgamma * ddgamma)

    _, saved = getattr(F, norm)(x, gamma=gamma, activation="leaky_relu", **options)
    d_dy, dx, dgamma = F.double_backward(ddx, saved, dy, ddgamma)
    for place, gradient in ((0, dx), (1, d_dy), (2, dgamma)):
        values = [x, dy, gamma]
        direction = rng.normal(size=values[place].shape)
        around = [
            loss(*(v + sign * step * direction if i == place else v for i, v in enumerate(values))) for sign in (1, -1)
        ]
        np.testing.assert_allclose((around[0] - around[1]) / (2 * step), np.sum(gradient * direction), rtol=2e-6)


@pytest.mark.parametrize("order", ["C", "F", "channels last", "strided"])
def test_layout_changes_no_bit(order):
    rng = np.random.default_rng(6)
    x, dy, ddx = draw(rng, (6, 4, 5), "float32")

    def laid_out(a):
        if order == "channels last":
            return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)
        return np.repeat(a, 2, axis=2)[:, :, ::2] if order == "strided" else np.asarray(a, order=order)

    gamma = np.arange(4.0)
    _, plain = F.instance_norm(x, gamma)
    _, other = F.instance_norm(laid_out(x), gamma)
    wanted = F.double_backward(ddx, plain, dy, gamma)
    for got, expected in zip(F.double_backward(laid_out(ddx), other, laid_out(dy), gamma), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu"])
def test_padding_of_weight_zero_may_be_nan(activation):
    rng = np.random.default_rng(7)
    x, dy, ddx = draw(rng, (8, 3, 6), "float64")
    weight = np.ones((8, 6))
    weight[:, 4:] = 0
    dy[:, :, 4:] = 0
    results = []
    for padding in (0.0, np.nan):
        x[:, :, 4:] = padding
        _, saved = F.batch_norm(x, np.ones(3), np.ones(3), weight=weight, activation=activation)
        results.append(F.double_backward(ddx, saved, dy, np.ones(3), np.ones(3), dbeta=True))
    (wanted_dy, *wanted), (d_dy, *others) = results
    np.testing.assert_array_equal(d_dy[:, :, :4], wanted_dy[:, :, :4])
    for got, expected in zip(others, wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_those_bits_of_float32(dtype):
    """Values that overflow too, arrays in any memory order, and a dy that is wider than x."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 is its type").bfloat16
    x, dy, ddx = draw(np.random.default_rng(3), (9, 4, 5), dtype)
    dy[0, 0, 0] = 3e4
    for change in (lambda a: a, lambda a: np.asfortranarray(a), lambda a: a[::-1, :, ::2]):
        arrays = [change(a) for a in (x, dy, ddx)]
        wide = [a.astype("float32") for a in arrays]
        saved, wide_saved = (F.batch_norm(a)[1] for a in (arrays[0], wide[0]))
        for mixed in (arrays[1], wide[1]):
            results = F.double_backward(arrays[2], saved, mixed)
            expected = F.double_backward(wide[2], wide_saved, wide[1])
            for got, wanted in zip(results[:2], expected[:2], strict=True):
                with np.errstate(over="ignore"):
                    assert got.dtype == arrays[0].dtype
                    assert got.tobytes() == wanted.astype(got.dtype).tobytes()
    empty = F.batch_norm(x[:0])[1]
    assert F.double_backward(ddx[:0], empty, dy[:0])[0].shape == (0, 4, 5)


def test_half_precision_is_computed_in_single():
    rng = np.random.default_rng(8)
    x, dy, ddx = draw(rng, (20, 3), "float16")
    _, saved = F.batch_norm(x, np.ones(3))
    results = F.double_backward(ddx, saved, dy, np.ones(3))
    _, wide = F.batch_norm(x.astype(np.float32), np.ones(3))
    wanted = F.double_backward(ddx.astype(np.float32), wide, dy.astype(np.float32), np.ones(3))
    assert [a.dtype for a in results] == [np.float16, np.float16, np.float64]
    for got, expected in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)


def test_none_is_zero_and_everything_is_linear_in_what_comes_in():
    rng = np.random.default_rng(9)
    x, dy, ddx = draw(rng, (9, 4), "float64")
    ddgamma, ddbeta = rng.normal(size=(2, 4))
    _, saved = F.batch_norm(x, rng.normal(size=4), np.zeros(4))
    whole = F.double_backward(ddx, saved, dy, ddgamma, ddbeta)
    parts = [
        F.double_backward(ddx, saved, dy),
        F.double_backward(None, saved, dy, ddgamma),
        F.double_backward(None, saved, dy, None, ddbeta),
    ]
    for wanted, *some in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(sum(some), wanted, rtol=0, atol=1e-14)


def test_constant_channel_and_weights_of_nothing():
    x, ones = np.full((5, 2), 7.0), np.ones((5, 2))
    _, saved = F.batch_norm(x, [2.0, 3.0], eps=0)
    d_dy, dx, _ = F.double_backward(np.eye(5, 2), saved, ones)
    np.testing.assert_allclose(d_dy, (np.eye(5, 2) - 0.2) * [2.0, 3.0])  # scale 1, and centered
    np.testing.assert_array_equal(dx, 0)
    _, saved = F.batch_norm(x, [2.0, 3.0], [0.0, 0.0], weight=np.zeros(5))
    for result in F.double_backward(ones, saved, ones, [1.0, 1.0]):
        np.testing.assert_array_equal(result, 0)


def test_errors_name_the_parameter():
    x = np.arange(12.0).reshape(6, 2) ** 2
    _, saved = F.batch_norm(x)
    for name, given, message in (
        ("ddx", {"ddx": x[:5], "saved": saved, "dy": x}, r"double_backward: ddx: expected the shape of x, \(6, 2\)"),
        ("dy", {"ddx": x, "saved": saved, "dy": x.T}, r"double_backward: dy: expected the shape of x"),
        ("ddgamma", {"ddx": x, "saved": saved, "dy": x, "ddgamma": [1, 2]}, "ddgamma: expected None"),
        ("ddbeta", {"ddx": x, "saved": saved, "dy": x, "ddbeta": [1, 2]}, "ddbeta: expected None"),
    ):
        with pytest.raises(ValueError, match=message):
            F.double_backward(**given)
        assert name in message
    _, saved = F.batch_norm(x, np.ones(2))
    with pytest.raises(ValueError, match=r"ddgamma: expected shape \(2,\)"):
        F.double_backward(x, saved, x, np.ones(3))
    with pytest.raises(TypeError, match="ddx: expected real numbers"):
        F.double_backward(x + 1j, saved, x)
    _, saved = F.batch_norm(x, out=x)
    with pytest.raises(RuntimeError, match="x: expected it as it was in the forward, got one that out= overwrote"):
        F.double_backward(x, saved, x)
    _, saved = F.batch_norm(np.ones((6, 2)))
    saved.x = saved.x.view(np.recarray)
    with pytest.raises(TypeError, match=r"saved: expected the forward of a NumPy array, got one of numpy.*recarray"):
        F.double_backward(x, saved, x)
    with pytest.raises(TypeError, match="saved: expected what a forward of functional returned, got int"):
        F.double_backward(x, 1, x)
