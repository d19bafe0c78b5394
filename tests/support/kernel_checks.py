"""What the tests of the kernels share: a problem for every case, both answers to it, and how far apart they may be.

A bound is a few units of rounding of the terms that the exact formula adds, never of their sum, which may be small.
Nothing but the rounding of these terms is allowed.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from bnorm.kernels import VARIANCE, gpu, reference, view
from bnorm.kernels.activation import GELU, IDENTITY, RELU, leaky
from bnorm.kernels.cpu import entries
from cases import CASES, DTYPES
from compare import EPS, assert_close, normalized_error, rounding, sum_error
from drawing import together

every_dtype = together(dtype=DTYPES)


every_activation = together(act=[IDENTITY, RELU, leaky(0.2), GELU])


@pytest.fixture(name="caches", params=[False, True], ids=["through the caches", "past the caches"])
def both_ways(request):
    """Results of rows of any size go past the caches, or none."""
    before = entries.use_sizes(**dict.fromkeys(("stream_two", "far_maps", "far_rows"), 0 if request.param else 1 << 40))
    yield
    entries.use_sizes(**before)


def on_off(*names):
    """Every combination of some switches."""
    return together(**dict.fromkeys(names, (False, True)))


def exact(a):
    """Return the same numbers in float64, so that the reference does not round its results to the type under test."""
    return a.astype(np.float64) if isinstance(a, np.ndarray) else a


def channel(values):
    """Return (C,) in a shape that broadcasts against a block."""
    return np.asarray(values)[:, None]


def wider(dtype):
    """Return a type in which products of three numbers of dtype are finite, with negligible rounding errors."""
    return np.longdouble if np.dtype(dtype) == np.float64 else np.float64


def as_block(x, dtype=None):
    """Return x with three axes, in a type wider than its own or than dtype."""
    x = x.astype(wider(x.dtype if dtype is None else dtype))
    return x[:, :, None] if x.ndim == 2 else x


def map_error(dtype, result, *terms):
    """The error of a map: a few roundings of each added term. Results of half precision are rounded once more."""
    largest = sum(np.abs(term) for term in terms)
    return 4 * EPS[np.dtype(dtype)] * largest + rounding(dtype, result) + float(np.finfo(np.float32).tiny)


@np.errstate(invalid="ignore")
def as_stored(dtype, got, want, allowed):
    """Return the wanted result as the type can hold it: float16 is infinite from 65520 on, and either close to it."""
    if np.dtype(dtype) != np.float16:
        return want
    infinite = np.copysign(np.inf, want)
    edge = (np.abs(np.abs(want) - 65520) <= allowed) & (got == infinite)
    return np.where(edge | (np.abs(want) - allowed >= 65520), infinite, want)


class Problem(NamedTuple):
    x: np.ndarray
    dy: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    weight: np.ndarray  # (outer, inner)


@cache
def problem(case, dtype):
    """The problem of a case, made once for all tests, none of which may write to it."""
    rng = np.random.default_rng(case.num_channels)
    x, layout = view.channels(case.array(dtype), case.axis)
    dy = rng.standard_normal(x.shape).astype(dtype)
    gamma = rng.uniform(0.5, 2.0, case.num_channels) * rng.choice([-1, 1], case.num_channels)
    weight = view.weights(case.weight(), layout)
    made = Problem(x, dy, gamma, rng.standard_normal(case.num_channels), weight)
    for a in made:
        a.flags.writeable = False
    return made


def distinct(cases):
    """Those that are not, to a kernel, one before in another memory order: a kernel gets a block, and its arrays."""
    found = {}
    for case in cases:
        p = problem(case, "float32")
        found.setdefault((p.x.strides, *((a.shape, a.tobytes()) for a in p)), case)
    return list(found.values())


BLOCKS = distinct(CASES)
every_case = pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case.name)


def stats_of(mean, scale, shift):
    """Return (5, C) for maps. The rows of var and rstd, which they do not read, are NaN."""
    nobody = np.full_like(mean, np.nan)
    return np.stack([mean, nobody, nobody, scale, shift])


def away_from_zero(dy, x, dtype, stats):
    """Return dy, with 0 where y is so close to 0 that rounding decides on which side of the ReLU it is."""
    mean, _, _, scale, shift = stats
    t = as_block(x) - channel(mean)
    y = t * channel(scale) + channel(shift)
    bound = map_error(dtype, 0.0, t * channel(scale), channel(shift))
    return np.where((np.abs(y) <= bound).reshape(x.shape), 0, dy).astype(dtype)


def assert_moments(got, want, dtype, weighted, **case):
    case |= {"dtype": dtype, "weighted": weighted}
    count, mean, m2, low = want
    std = np.sqrt(m2 / np.maximum(count, 1))
    assert {a.dtype for a in got} == {np.dtype("float64")}
    assert_close(got[0], count, 1e-13 * count if weighted else 0.0, what="count", **case)
    exact = mean.astype(np.longdouble) + low
    allowed = 4 * EPS[np.dtype(dtype)] * std + 2.0**-62 * np.abs(mean)
    assert_close(got[1].astype(np.longdouble) + got[3], exact, allowed, what="mean", **case)
    assert_close(got[3], np.zeros_like(low), np.spacing(np.abs(got[1])) + 2.0**-60 * std, what="low", **case)
    assert_close(got[2], m2, 16 * EPS[np.dtype(dtype)] * m2, what="m2", **case)


def assert_forward(got, want, p, dtype, weighted, **case):
    case |= {"dtype": dtype, "weighted": weighted}
    (y, stats, count, skipped), (y_want, stats_want, count_want, skipped_want) = got, want
    mean, var, rstd, scale, shift = stats_want
    unit, std = EPS[np.dtype(dtype)], np.sqrt(var)
    relative = 8 * unit * var * rstd**2 + 4 * EPS[np.dtype("float64")]  # of rstd: half of that of var + eps
    allowed = [
        4 * unit * std + EPS[np.dtype("float64")] * np.abs(mean),
        16 * unit * var,
        relative * rstd,
        relative * np.abs(scale),
        0 * shift,
    ]
    assert skipped == skipped_want
    assert_close(count, count_want, 1e-13 * count_want if weighted else 0.0, what="count", **case)
    assert_close(stats, stats_want, np.array(allowed), what="stats", **case)
    xhat = (as_block(p.x) - channel(mean)) * channel(rstd)
    gain = channel(np.divide(scale, rstd, out=np.ones_like(scale), where=rstd > 0))
    allowed = np.abs(gain) * normalized_error(dtype, xhat, channel(mean * rstd)) + map_error(
        dtype, as_block(y_want, dtype), channel(shift), xhat * gain
    )
    assert y.dtype == p.x.dtype
    assert_close(y, y_want, allowed.reshape(y.shape), what="y", **case)


def assert_backward(got, want, dy, x, stats, count, weight, frozen, dtype, **case):
    case |= {"dtype": dtype, "weighted": weight is not None, "frozen": frozen}
    mean, _, rstd, scale, _ = stats
    wide_dy, t = as_block(dy), as_block(x) - channel(mean)
    of_sum, of_dot = sum_error(dtype, wide_dy, (0, 2)), sum_error(dtype, wide_dy * t, (0, 2))
    assert_close(got[1], want[1], rstd * of_dot, what="dgamma", **case)
    assert_close(got[2], want[2], of_sum, what="dbeta", **case)
    allowed = map_error(dtype, as_block(want[0], dtype), channel(scale) * wide_dy)
    if not frozen and count:
        w = 1.0 if weight is None else weight[:, None]
        b, c = channel(scale * rstd**2 / count), channel(scale / count)
        sums = wide_dy.sum((0, 2)), (wide_dy * t).sum((0, 2))
        allowed = allowed + map_error(dtype, 0.0, w * b * t * channel(sums[1]), w * c * channel(sums[0]))
        allowed = allowed + w * np.abs(b * t) * channel(of_dot) + w * np.abs(c) * channel(of_sum)
    assert got[0].dtype == x.dtype
    allowed = np.broadcast_to(allowed, wide_dy.shape).reshape(dy.shape)
    assert_close(got[0], as_stored(dtype, got[0], want[0], allowed), allowed, what="dx", **case)


def rows_of(shape, dtype, affine):
    """x, dy, gamma and beta of rows (N, G, K, L)."""
    rng = np.random.default_rng(shape)
    n, g, k, _ = shape
    x = (rng.standard_normal(shape) + 3 * rng.standard_normal((n, g, 1, 1))).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    return x, dy, *((rng.uniform(0.5, 2, g * k), rng.standard_normal(g * k)) if affine else (None, None))


def assert_rows(backend, x, dy, gamma, beta, rule, act, tags):
    """Check a forward and a backward of rows against the reference. Return the arguments of the backward, its results,
    the wanted results, and the allowed error of dx."""
    n, g, k, _ = x.shape
    dtype, unit, wide = x.dtype, EPS[x.dtype], wider(x.dtype)
    got, want = backend.both("rows_forward", x, gamma, beta, 1e-5, rule, act)
    mean, rstd = want[1:]
    of_mean = 4 * unit / np.where(rstd > 0, rstd, 1) + np.spacing(np.abs(mean))  # both are rounded to float64
    assert_close(got[1], mean, of_mean, what="mean", **tags)
    assert_close(got[2], rstd, 16 * unit * rstd, what="rstd", **tags)
    r, gain = rstd.reshape(n, g, 1, 1), np.ones((g, k, 1)) if gamma is None else gamma.reshape(g, k, 1)
    shift = np.zeros((g, k, 1)) if beta is None else beta.reshape(g, k, 1)
    xhat = (x.astype(wide) - mean.reshape(n, g, 1, 1)) * r
    of_y = gain * normalized_error(dtype, xhat, mean.reshape(n, g, 1, 1) * r) + map_error(
        dtype, want[0].astype(wide), shift, xhat * gain
    )
    assert got[0].dtype == x.dtype
    assert_close(got[0], want[0], of_y, what="y", **tags)

    dy = np.where(np.abs(xhat * gain + shift) <= 2 * of_y, 0, dy).astype(dtype)  # too close to the ReLU's corner
    args = dy, x, mean, rstd, gamma, beta, rule, act
    got, want = backend.both("rows_backward", *args)
    wide_dy = np.abs(dy.astype(wide))
    dxhat, count = wide_dy * gain, max(x[0].size // max(g, 1), 1) if n else 1
    terms = dxhat, np.abs(xhat) * (dxhat * np.abs(xhat)).sum((2, 3), keepdims=True) / count
    if rule == VARIANCE:
        terms = *terms, dxhat.sum((2, 3), keepdims=True) / count
    of_dx = 4 * map_error(dtype, want[0].astype(wide), *(r * term for term in terms))
    assert_close(got[0], want[0], of_dx, what="dx", **tags)
    assert_close(got[1], want[1], sum_error(dtype, wide_dy * np.abs(xhat), (0, 3)).ravel(), what="dgamma", **tags)
    assert_close(got[2], want[2], sum_error(dtype, wide_dy, (0, 3)).ravel(), what="dbeta", **tags)
    return args, got, want, of_dx


def assert_trained(p, y, stats, count, got, case, dtype):
    """Check a forward without weights or activation, whose map alone gives the same bits, and its backward."""
    assert gpu.normalize(p.x, stats).tobytes() == y.tobytes()
    want = reference.forward(exact(p.x), p.gamma, p.beta, 1e-5)
    assert_forward((y, stats, count, 0), want, p, dtype, False, case=case.name)
    want = reference.backward(exact(p.dy), exact(p.x), stats, count)
    assert_backward(got, want, p.dy, p.x, stats, count, None, False, dtype, case=case.name)
