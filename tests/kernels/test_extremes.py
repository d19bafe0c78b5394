"""The kernels of every backend at the ends: NaN, infinity, no weight, constants, sizes and offsets that eat digits."""

from itertools import product

import numpy as np
import pytest

from backends import SWITCH, Backend, at_the_ends, each_backend
from bnorm.kernels import MEAN_SQUARE, VARIANCE, cpu, reference
from bnorm.kernels.activation import IDENTITY, RELU
from cases import DTYPES
from compare import EPS, assert_close, assert_same, normalized_error
from drawing import every_pair
from kernel_checks import (
    BLOCKS,
    as_block,
    assert_forward,
    assert_moments,
    channel,
    every_activation,
    every_dtype,
    problem,
)
from rules import forward, rule

both = Backend("cpu", cpu).both


@at_the_ends(bad=[np.nan, np.inf, -np.inf])
def test_not_finite(backend, case, dtype, bad):
    """One such value spoils the statistics of its channel, and of no other."""
    p = problem(case, dtype)
    if p.x.size < 2:
        return
    x = p.x.copy()
    x[tuple(n // 2 for n in x.shape)] = bad
    spoilt = np.arange(case.num_channels) == x.shape[1] // 2
    got, want = backend.both("moments", x)
    assert_same(np.isfinite(got[1]) & np.isfinite(got[2]), ~spoilt, case=case.name, dtype=dtype)
    assert_moments(got[:, ~spoilt], want[:, ~spoilt], dtype, False, case=case.name)
    (y, stats, _, _), (y_want, *_) = backend.both("forward", x, p.gamma, p.beta, 1e-5)
    assert np.isnan(np.moveaxis(y, 1, 0)[spoilt]).sum() == np.isnan(np.moveaxis(y_want, 1, 0)[spoilt]).sum()
    assert np.isfinite(stats[:, ~spoilt]).all() and np.isfinite(np.moveaxis(y, 1, 0)[~spoilt]).all()
    _, stats, count, _ = reference.forward(p.x, p.gamma, p.beta, 1e-5)
    y, want = backend.both("normalize", x, stats, RELU)
    assert_same(np.isnan(y), np.isnan(want), case=case.name, dtype=dtype, bad=bad)
    (dx, *_), (want, *_) = backend.both("backward", p.dy, x, stats, count, frozen=True)
    assert_same(np.isfinite(dx), np.isfinite(want), what="frozen dx", case=case.name, dtype=dtype, bad=bad)
    if np.isnan(bad):
        backend("normalize", x, stats, finite=True)
    else:
        with pytest.raises(FloatingPointError, match="x holds an infinity"):
            backend("normalize", x, stats, finite=True)


@at_the_ends(dtypes=DTYPES)
def test_no_weight_is_not_looked_at(backend, case, dtype):
    p = problem(case, dtype)
    x = np.where(np.broadcast_to(p.weight[:, None] == 0, as_block(p.x).shape).reshape(p.x.shape), np.nan, p.x)
    for got, want in zip(backend("moments", x, p.weight), backend("moments", p.x, p.weight), strict=True):
        assert_same(got, want, case=case.name, dtype=dtype)
    (y, stats, count, _), (want, *_) = (backend("forward", a, p.gamma, p.beta, 1e-5, weight=p.weight) for a in (x, p.x))
    assert_same(y[~np.isnan(x)], want[~np.isnan(x)], case=case.name, dtype=dtype)
    assert np.isnan(y[np.isnan(x)]).all()
    dy = np.where(np.isnan(x), 0, p.dy).astype(dtype)
    for got, want in zip(*(backend("backward", dy, a, stats, count, p.weight) for a in (x, p.x)), strict=True):
        assert np.isfinite(got).all()
        assert_same(got, want, case=case.name, dtype=dtype)


@every_pair(["case", "dtype"], product(BLOCKS, DTYPES), weighted=SWITCH)
def test_skipna_of_a_channel_without_values(case, dtype, weighted):
    p = problem(case, dtype)
    x = p.x.copy()
    x[:, ::2] = np.nan
    got, want = both("moments", x, p.weight if weighted else None, True)
    assert_moments(got, want, dtype, weighted, case=case.name)
    for values in got:
        assert_same(values[::2], np.zeros_like(values[::2]), case=case.name, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_skipna_of_a_channel_that_begins_with_nan(dtype):
    """Its later blocks hold as many values as those of the other channels, but are added to fewer."""
    x = np.random.default_rng(6).standard_normal((2000, 3)).astype(dtype) + np.asarray(5, dtype)
    x[:20, 1] = np.nan
    got, want = both("moments", x, skipna=True)
    assert got[0].tolist() == [2000, 1980, 2000]
    assert_moments(got, want, dtype, False)


@at_the_ends(dtypes=DTYPES)
def test_all_weights_zero(backend, case, dtype):
    p = problem(case, dtype)
    nothing = np.zeros_like(p.weight)
    running = [backend.up(np.full(case.num_channels, value)) for value in (5.0, 6.0)]
    moving = rule(*running, 0.1, nonfinite="raise")
    y, stats, count, skipped = forward(backend, p.x, p.gamma, p.beta, 1e-5, weight=nothing, running=moving)
    assert (count, skipped) == (0.0, 0)
    exact_beta = np.broadcast_to(channel(p.beta.astype(dtype)), as_block(p.x).shape).reshape(p.x.shape)
    assert_same(y, exact_beta, case=case.name, dtype=dtype)
    for kept, value in zip(running, (5.0, 6.0), strict=True):
        assert_same(backend.down(kept), np.full(case.num_channels, value))
    dx, dgamma, _ = backend("backward", p.dy, p.x, stats, count, nothing)
    assert_same(dx, np.zeros_like(p.x), case=case.name, dtype=dtype)
    assert_same(dgamma, np.zeros(case.num_channels), case=case.name, dtype=dtype)


@at_the_ends(dtypes=DTYPES, eps=[0.0, 1e-5])
def test_a_constant_channel_is_exactly_beta(backend, case, dtype, eps):
    p = problem(case, dtype)
    exact_beta = np.broadcast_to(channel(p.beta.astype(dtype)), as_block(p.x).shape).reshape(p.x.shape)
    for value in (0.0, 100.0, 14.62, -1e-3, 6e4, 1e10, 3e38, 1e-45, 1e300):
        if value > float(np.finfo(dtype).max):
            continue
        x = np.full_like(p.x, value)
        y, stats, count, _ = backend("forward", x, p.gamma, p.beta, eps)
        tags = {"case": case.name, "dtype": dtype, "value": value, "eps": eps}
        assert_same(y, exact_beta, **tags)
        if count:
            assert_same(stats[0], np.full(case.num_channels, np.asarray(value, dtype), "float64"), what="mean", **tags)
            assert_same(stats[1], np.zeros(case.num_channels), what="var", **tags)
            rstd = eps**-0.5 if eps else 1.0
            assert_close(stats[2], np.full(case.num_channels, rstd), 1e-15 * rstd, what="rstd", **tags)
            _, stats, count, _ = backend("forward", x, p.gamma, None, eps, act=RELU)  # y is 0, which is not above 0
            for gradient in backend("backward", p.dy, x, stats, count, act=RELU):
                assert_same(gradient, np.zeros_like(gradient), what="gradients where the ReLU is", **tags)
        rows = x.reshape(x.shape[0], 1, int(np.prod(x.shape[1:])), 1)
        if backend.name == "cpu":  # of CUDA in tests/gpu/test_rows.py
            assert_same(cpu.rows_forward(rows, None, None, eps)[0], np.zeros_like(rows), what="rows", **tags)


@each_backend(single=SWITCH)
def test_the_inverse_of_a_map(backend, single):
    """The mean that is added is a float32 if the results are, and the rest of it is subtracted before."""
    stats = np.random.default_rng(1).normal(size=(5, 7))
    stats[0, 1:] = 1e6 + 1 / 3, 1e39, -np.inf, np.nan, 5.0, 5.0
    stats[3, 4:] = np.nan, 0.0, -0.0
    got, want = stats.copy(), reference.inverse(stats.copy(), single)
    got = backend("inverse", got, single)
    assert_same(got, want, single=single)
    with np.errstate(over="ignore"):
        high = stats[0].astype(np.float32 if single else np.float64)
    assert_same(got[4], high.astype(np.float64), single=single)
    assert_same(got[3, 5:], np.zeros(2), single=single)
    center, _, _, back, high = got[:, :2]
    mean, _, _, scale, shift = stats[:, :2]
    exact = (0.7 - shift) / scale + mean
    assert_close((0.7 - center) * back + high, exact, 1e-15 * (np.abs(exact) + np.abs(mean)))


@each_backend(dtype=["float32", "float64"])
def test_the_bound_on_every_backend(backend, dtype):
    """Four last places: below them the scale is 1, above them it is one over the deviation; of an empty channel 0."""
    mean = np.array([1.0, -3e7, 1e-140, 1e200, 0.0, 5e-324])
    eps = np.finfo(np.float64).eps
    with np.errstate(over="ignore", under="ignore"):
        below, above = (np.square(share * 4 * eps * mean) for share in (0.99, 1.01))
    below, above = (np.minimum(var, np.finfo(np.float64).max) for var in (below, above))
    assert_same(backend("known", mean, below, None, None, 0.0)[2], np.ones(6))
    got = backend("known", mean[:3], above[:3], None, None, 0.0)[2]
    assert_close(got, 1 / np.sqrt(above[:3]), 1e-15 / np.sqrt(above[:3]))
    assert_same(backend("known", mean, np.full(6, np.inf), None, None, 0.0)[2], np.zeros(6))
    x = np.stack([mean[:2] * (1 + s * eps) for s in (0, 0, 4)]).astype(dtype)
    got, want = backend("forward", x, None, None, 0.0), reference.forward(x, None, None, 0.0)
    assert_same(got[1][2], np.ones(2))
    assert_same(want[1][2], np.ones(2))
    assert_same(backend("forward", x[:0], None, None, 0.0)[1][2], np.zeros(2))


@each_backend(dtype=["float32", "float64"], eps=[1e-80, 1e-300])
def test_a_constant_channel_whose_scale_no_float32_holds(backend, dtype, eps):
    """1 / sqrt(eps) is 1e40: 0 times it is 0 all the same, forward and backward."""
    beta = np.array([1.0, -2.0, 0.5])
    for shape, act in product([(40, 3), (1, 3, 4000), (4, 3, 7)], (IDENTITY, RELU)):
        x, tags = np.full(shape, 5.0, dtype), {"shape": shape, "act": act}
        dy = np.ones_like(x)  # its mean is taken off, and nothing is left
        y, stats, count, _ = backend("forward", x, None, beta, eps, act=act)
        want = np.maximum(beta, 0) if act == RELU else beta
        assert_same(y, np.broadcast_to(channel(want.astype(dtype)), as_block(x).shape).reshape(shape), **tags)
        assert_same(backend("normalize", x, stats, act=act), y, **tags)
        assert_same(backend("backward", dy, x, stats, count, act=act)[0], np.zeros_like(x), **tags)
    for shape in [(40, 1, 3, 1), (10, 3, 4, 1), (10, 3, 1, 4), (2, 1, 3, 20), (1, 1, 1, 9000)]:
        rows = np.full(shape, 5.0, dtype)
        of = shape[1] * shape[2]
        for gamma, weight in product((None, np.full(of, 2.0)), (None, np.ones((shape[0], shape[3])))):
            tags = {"shape": shape, "weighted": weight is not None}
            y, mean, rstd = backend("rows_forward", rows, gamma, None, eps, weight=weight)
            assert_same(y, np.zeros_like(rows), **tags)
            found = backend("rows_backward", np.ones_like(rows), rows, mean, rstd, gamma, None, weight=weight)
            for gradient in found[:2]:  # dx and dgamma
                assert_same(gradient, np.zeros_like(gradient), **tags)


@at_the_ends(size=[1e-30, 1e-20, 1e20, 1e30])
def test_very_large_and_very_small_values(backend, case, dtype, size):
    """Squares of 1e30 are no float32: variances are finite all the same, and as exact as any, and so is y."""
    p = problem(case, dtype)
    p = p._replace(x=(p.x * size).astype(dtype))
    got, want = backend.both("moments", p.x)
    assert np.isfinite(got).all()
    assert_moments(got, want, dtype, False, case=case.name, size=size)
    got, want = backend.both("forward", p.x, p.gamma, p.beta, 0.0)
    assert np.isfinite(got[0]).all()
    assert_forward(got, want, p, dtype, False, case=case.name, size=size)
    _, stats, count, _ = want
    # small where 1 / std is large: products leave the range of float32, dx does not
    dy = (p.dy * min(1.0, size * 1e10)).astype(dtype)
    for g, w, what in zip(*backend.both("backward", dy, p.x, stats, count), ("dx", "dgamma", "dbeta"), strict=True):
        allowed = 1e-4 * np.abs(w).max(initial=0.0)
        if what == "dx":  # of two values nothing is left of their gradients but rounding
            scaled = np.abs(as_block(dy) * channel(stats[3]))
            allowed += 16 * EPS[np.dtype(dtype)] * scaled.max(initial=0.0)
        assert_close(g, w, allowed, what=what, case=case.name, dtype=dtype, size=size)
    if backend.name != "cpu":
        return
    n = p.x.shape[0]
    rows = p.x.reshape(n, 1, int(np.prod(p.x.shape[1:])), 1)
    for by in (VARIANCE, MEAN_SQUARE):
        (y, mean, rstd), (y_want, _, rstd_want) = both("rows_forward", rows, None, None, 0.0, by)
        tags = {"case": case.name, "dtype": dtype, "size": size, "rule": by}
        assert_close(rstd, rstd_want, 16 * EPS[np.dtype(dtype)] * rstd_want, what="rstd", **tags)
        of_y = normalized_error(dtype, y_want.astype(np.longdouble), (mean * rstd).reshape(n, 1, 1, 1))
        assert_close(y, y_want, of_y, what="rows", **tags)


@at_the_ends(offset=[1e2, 1e4, 1e6])
def test_a_mean_far_from_zero_costs_nothing(backend, case, dtype, offset):
    p = problem(case, dtype)
    p = p._replace(x=(p.x + np.asarray(offset, dtype)))
    got, want = backend.both("forward", p.x, p.gamma, p.beta, 1e-5)
    assert_forward(got, want, p, dtype, False, case=case.name, offset=offset)
    got, want = backend.both("moments", p.x)
    assert_moments(got, want, dtype, False, case=case.name, offset=offset)


PRODUCTS = [(1e30, 1e9), (1e35, 1e4), (1e-30, 1e-10), (1e-20, 1e-20)]  # sizes of x and dy


def assert_products(both, sizes, act, balanced=False):
    rng = np.random.default_rng(5)
    x, dy = (np.float32(size) * rng.standard_normal((300, 3)).astype("float32") for size in sizes)
    if balanced:
        dy = np.full_like(dy, sizes[1])
        dy.flat[1::2] *= -1
    gamma, beta = np.full(3, 1.5), np.full(3, 0.25)
    for shape in [(300, 3), (1, 3, 300), (10, 3, 30)]:
        x_, dy_ = x.reshape(shape), dy.reshape(shape)
        _, stats, count, _ = reference.forward(x_, gamma, beta, 0.0, act=act)
        for got, want in zip(*both("backward", dy_, x_, stats, count, act=act), strict=True):
            assert_close(got, want, 1e-5 * np.abs(want).max(), shape=shape, sizes=sizes, act=act)
    for shape in [(300, 1, 3, 1), (1, 1, 900, 1), (50, 3, 6, 1), (3, 2, 3, 50), (1, 1, 1, 900)]:
        rows, drows, of = x.reshape(shape), dy.reshape(shape), shape[1] * shape[2]
        gamma, beta = np.linspace(0.5, 1.5, of) if not balanced else np.ones(of), np.full(of, 0.25)
        _, mean, rstd = reference.rows_forward(rows, gamma, beta, 0.0, act=act)
        for got, want in zip(*both("rows_backward", drows, rows, mean, rstd, gamma, beta, act=act), strict=True):
            assert_close(got, want, 1e-5 * np.abs(want).max(), shape=shape, sizes=sizes, act=act)


@pytest.mark.parametrize("sizes", PRODUCTS)
@every_activation
def test_products_beyond_float32(sizes, act):
    """dy (x - mean) may leave the range of float32 where dgamma and dx do not."""
    assert_products(both, sizes, act)


@each_backend(sizes=PRODUCTS)
def test_products_beyond_float32_by_each(backend, sizes):
    assert_products(backend.both, sizes, IDENTITY)


@each_backend()
def test_products_beyond_float32_of_gradients_whose_sum_is_zero(backend):
    """They are not all 0, so that their products have to be looked at."""
    assert_products(backend.both, (1e-20, 1e-19), IDENTITY, balanced=True)
    assert_products(backend.both, (1e-21, 1e-21), IDENTITY, balanced=True)


@pytest.mark.parametrize("size", [1e-280, 1e-45, 1e39, 1e280])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_size_of_the_weights_does_not_matter(dtype, size):
    rng = np.random.default_rng(6)
    x, dy = rng.standard_normal((2, 40, 3, 2)).astype(dtype)
    weight = rng.integers(0, 3, (40, 2)).astype(float)
    for kernels in (cpu, reference):
        y, stats, count, _ = kernels.forward(x, None, None, 1e-5, weight=weight)
        y_scaled, stats_scaled, count_scaled, _ = kernels.forward(x, None, None, 1e-5, weight=weight * size)
        unit = 16 * EPS[np.dtype(dtype)]
        assert_close(stats_scaled, stats, 1e-13, kernels=kernels.__name__)
        assert_close(y_scaled, y, unit * np.abs(y).max(), kernels=kernels.__name__)
        dx = kernels.backward(dy, x, stats, count, weight)[0]
        dx_scaled = kernels.backward(dy, x, stats_scaled, count_scaled, weight * size)[0]
        assert_close(dx_scaled, dx, unit * np.abs(dx).max(), kernels=kernels.__name__)


def test_masked_nan_is_safe_backward():
    """Padding may hold NaN: with weight 0 and dy 0 there, all gradients are those of the rest."""
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((2, 30, 4))
    weight = (rng.random((30, 1)) < 0.7).astype(float)
    dy *= weight
    padded = np.where(weight == 0, np.nan, x)
    for kernels in (cpu, reference):
        _, stats, count, _ = kernels.forward(padded, None, None, 1e-5, weight=weight)
        got = kernels.backward(dy, padded, stats, count, weight)
        want = kernels.backward(dy, x, stats, count, weight)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w, kernels=kernels.__name__)


@pytest.mark.parametrize("shape", [(1, 3, 200_001), (1, 1, 500_000), (2, 1, 300_000)])
def test_a_long_run_is_cut(shape):
    """A Fortran-ordered table is one run per column; its pieces are merged, and weights follow the cut."""
    rng = np.random.default_rng(8)
    x, dy = (rng.standard_normal((2, *shape)) + 3).astype("float32")
    weight = rng.random((shape[0], shape[2]))
    for w in (None, weight):
        assert_moments(*both("moments", x, w), "float32", w is not None, shape=shape)
        _, stats, count, _ = reference.forward(x, None, None, 1e-5, weight=w)
        dx, want = (kernels.backward(dy, x, stats, count, w)[0] for kernels in (cpu, reference))
        assert_close(dx, want, 4e-6 * np.abs(want).max(), shape=shape)


@every_dtype
@pytest.mark.parametrize("n", [5, 64, 1000, 8000])
def test_rows_that_begin_far_from_their_mean(dtype, n):
    """All values of a row are summed about its first; where that is far away they are all rounded alike."""
    x = np.full((3, 1, n, 1), 0.1, dtype)
    x[:, :, 0] = 1e4
    _, mean, rstd = cpu.rows_forward(x, None, None, 0.0)
    exact = x.astype(np.longdouble)
    var = exact.var(axis=(1, 2, 3))
    assert_close(mean, exact.mean(axis=(1, 2, 3)), 8 * EPS[np.dtype(dtype)] * np.sqrt(var), n=n)
    assert_close(rstd, 1 / np.sqrt(var), 8 * EPS[np.dtype(dtype)] / np.sqrt(var), n=n)
