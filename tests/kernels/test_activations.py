"""Smooth activations and their exponential: against mpmath over the whole range, and what is not a number."""

import numpy as np
import pytest

import bnorm.functional as F
from bnorm.kernels import cpu
from bnorm.kernels.activation import GELU, SILU
from compare import assert_same

mp = pytest.importorskip("mpmath", reason="its numbers are the oracle").mp
STATS = np.array([[0.0], [1], [1], [1], [0]])  # which leave x as it is
SMOOTH = {"silu": SILU, "gelu": GELU}


def points(dtype):
    """The usual range densely, the tails to where they end, and every size of number."""
    rng, info = np.random.default_rng(0), np.finfo(dtype)
    sizes = 10.0 ** rng.uniform(np.log10(info.smallest_subnormal) + 1, np.log10(info.max), 60)
    values = [rng.normal(size=300) * 3, rng.uniform(-120, 120, 150), rng.uniform(-760, 60, 100), sizes, -sizes]
    return np.concatenate([*values, [0.0, -0.0, info.smallest_subnormal, -info.max, info.max]]).astype(dtype)


def exact(name, v):
    """The activation and its derivative."""
    v = mp.mpf(float(v))
    a, b = (1, 0) if name == "silu" else (2 * mp.sqrt(2 / mp.pi), mp.mpf("0.044715") * 2 * mp.sqrt(2 / mp.pi))
    s = 1 / (1 + mp.exp(-(a * v + b * v**3)))
    return v * s, s + v * s * (1 - s) * (a + 3 * b * v * v)


def both(act, x):
    """The activation and its derivative, by the kernels."""
    x = x.reshape(-1, 1)
    one = np.ones_like(x)
    y, dx = cpu.normalize(x, STATS, act), cpu.backward(one, x, STATS, 1.0, None, act, True, False)[0]
    return y.ravel(), dx.ravel()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SMOOTH)
def test_within_a_last_place(name, dtype):
    """Of 1, or of the value where it is larger: the exponential is exact to a last place, and v s(u) is formed of
    max(v, 0) and what the exponential makes."""
    x, eps = points(dtype), float(np.finfo(dtype).eps)
    with mp.workdps(60):
        for v, *results in zip(x, *both(SMOOTH[name], x), strict=True):
            for got, want in zip(results, exact(name, v), strict=True):
                assert abs(mp.mpf(float(got)) - want) <= eps * max(1, abs(want)), (v, got)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_left_tail_keeps_its_digits(dtype):
    """silu(v) is about v exp(v) there: to a few last places of itself, as long as exp(v) is a normal number."""
    eps, x = float(np.finfo(dtype).eps), np.linspace(-87 if dtype == "float32" else -708, -1, 200, dtype=dtype)
    with mp.workdps(60):
        for v, got in zip(x, both(SILU, x)[0], strict=True):
            want = exact("silu", v)[0]
            assert abs(mp.mpf(float(got)) - want) <= 4 * eps * abs(want), (v, got)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", SMOOTH)
def test_what_is_not_a_number_is_that_of_pytorch(name, dtype):
    """In y. In the gradient NaN counts as above 0, and infinities have the slopes that they tend to."""
    torch = pytest.importorskip("torch", reason="it is the oracle")
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -60000.0, 60000.0], dtype)
    then = torch.nn.functional
    wanted = {"silu": then.silu, "gelu": lambda v: then.gelu(v, approximate="tanh")}[name](torch.from_numpy(x).double())
    y, dx = both(SMOOTH[name], x)
    assert_same(np.isnan(y), np.isnan(wanted.numpy()))
    assert_same(y[~np.isnan(y)], wanted.numpy().astype(dtype)[~np.isnan(y)])
    assert_same(np.signbit(y[3:]), np.signbit(wanted.numpy()[3:]))
    assert_same(dx, np.array([1, 1, 0, 0.5, 0, 1], dtype))


@pytest.mark.parametrize("name", SMOOTH)
def test_padding_of_weight_zero_may_be_nan(name):
    rng = np.random.default_rng(3)
    x, dy, mask = rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), np.arange(9) < 6
    x[6:], dy[6:] = np.nan, 0.0
    _, saved = F.batch_norm(x, weight=mask, activation=name)
    _, alone = F.batch_norm(x[:6], activation=name)
    dx, *_ = F.backward(dy, saved)
    np.testing.assert_allclose(dx[:6], F.backward(dy[:6], alone)[0], atol=1e-14)
    assert_same(dx[6:], np.zeros((3, 4)))


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("length", [5, 40, 2000, 9000])  # runs of each kind
def test_the_backward_has_the_scale_of_the_forward(length, name):
    x = np.full((2, 4, length), 3, dtype=np.float32)  # so y is the activation of beta
    gamma, one = np.full(4, 1e25, dtype=np.float32), np.ones(4, dtype=np.float32)
    _, saved = F.instance_norm(x, gamma, one, eps=1e-40, activation=name)  # the scale is 1e45, beyond float32
    _, _, dbeta = F.backward(np.ones_like(x), saved)
    _, saved = F.instance_norm(x.astype(float), 0 * gamma, one, activation=name)
    np.testing.assert_allclose(dbeta, F.backward(np.ones(x.shape), saved)[2], rtol=1e-6)


SHAPES = [(7, 8, 65), (1, 40, 1025), (2, 3, 3137), (40, 2, 300), (9, 5, 20), (501, 3, 1), (999, 70, 1), (3, 1200, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("odd", [0.5, np.nan, np.inf, 1e30])
def test_no_bit_depends_on_where_dx_is(shape, dtype, odd):
    """Unless it replaces x, dx first holds dy before the activation."""
    rng = np.random.default_rng(6)
    x, dy = rng.standard_normal((2, *shape)).astype(dtype)
    gamma, beta = rng.standard_normal((2, shape[1]))
    x[0, 0, 0] = odd
    _, stats, count, _ = cpu.forward(x, gamma, beta, 1e-5, act=SILU)
    want = [a.tobytes() for a in cpu.backward(dy, x, stats, count, act=SILU)]
    for place in range(2):
        given = dy.copy(), x.copy()
        got = cpu.backward(*given, stats, count, act=SILU, out=given[place])
        assert [a.tobytes() for a in got] == want


@pytest.mark.parametrize("shape", [(64, 48), (5, 6, 700), (3, 64, 49)])
def test_y_is_within_the_bound_of_float32(shape):
    """2e-6 for |y| up to 8, with a mean a million standard deviations away from zero."""
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(shape) + 1e6).astype("f4")
    wide = x.astype(np.longdouble)
    over = (0, *range(2, x.ndim))
    v = (wide - wide.mean(over, keepdims=True)) / np.sqrt(wide.var(over, keepdims=True) + 1e-5)
    y, _ = F.batch_norm(x, activation="silu")
    assert abs(y - v / (1 + np.exp(-v))).max() <= 2e-6
