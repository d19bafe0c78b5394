"""How far a result may be from the exact one: means a million standard deviations from zero, hard data, constants.

Exact means computed from the numbers as they are in x, in float64 for float32 and in long double for float64, both
with the data shifted next to zero first; the errors of that are thousands of times smaller than what is promised.
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, partial
from itertools import product

import numpy as np
import pytest

import bnorm.functional as F
from bnorm import Moments
from compare import EPS, assert_close, assert_same
from drawing import every_pair

RATIOS = (0.0, 1e2, 1e4, 1e6)  # mean / std
CHANNELS = (1, 3, 64, 1000)
SIZES = (2, 3, 17, 64, 1000, 4099, 100_000)
SIZES_OF = {1: SIZES, 3: SIZES, 64: SIZES[:-1], 1000: SIZES[:-2]}
WIDER = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps
needs_long_double = pytest.mark.skipif(not WIDER, reason="long double is no wider than float64 here")


# From a table of (values, channels) to the layouts that batch norm takes ----------------------------------------------


@cache
def divisor(n, most):
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


def nc(table):
    return table, 1


def ncl(table, most=49):
    """(N, C, L) with runs as long as the number of values allows."""
    n, c = table.shape
    run = divisor(n, most)
    return np.ascontiguousarray(table.reshape(n // run, run, c).swapaxes(1, 2)), 1


def long_run(table):
    return ncl(table, len(table))


def channels_last(table):
    """NLC memory seen as (N, C, L)."""
    n, c = table.shape
    run = divisor(n, 49)
    return table.reshape(n // run, run, c).swapaxes(1, 2), 1


def fortran(table):
    return np.asfortranarray(table), 1


def channels_first(table):
    return np.ascontiguousarray(table.T), 0


LAYOUTS = (nc, ncl, long_run, channels_last, fortran, channels_first)


def exact(table, eps):
    """mean, var and y of each column."""
    wide = table.astype(np.longdouble if table.dtype == np.float64 else np.float64)
    shifted = wide - wide[0]
    center = shifted.mean(0)
    shifted -= center
    rest = shifted.mean(0)  # what rounding left over
    shifted -= rest
    var = (shifted * shifted).mean(0)
    return wide[0] + (center + rest), var, shifted / np.sqrt(var + eps)


def mean_over_std(mean, var):
    return np.abs(mean) / np.sqrt(np.where(var > 0, var, np.inf))  # few values may all round to the same


def data(n, c, ratio, dtype):
    """Columns of about that mean / std, each of its own size."""
    rng = np.random.default_rng([n, c, int(ratio)])
    x = rng.standard_normal((n, c)) + rng.choice([-1, 1], c) * ratio
    return (x * 10 ** rng.uniform(-1, 5, c)).astype(dtype)


def promised(dtype, want, ratio):
    """In float32 2e-6 up to |y| = 8 at any mean, in float64 8 eps max(1, mean / std) max(1, |y|)."""
    size = np.abs(want)
    if dtype == np.float32:
        return 2e-6 * np.maximum(1, size / 8)
    return 8 * EPS[dtype] * np.maximum(1, ratio) * np.maximum(1, size)


def assert_within(y, want, allowed, **case):
    if not (np.abs(y - want) <= allowed).all():  # compared at once, since there are many
        assert_close(y, want, allowed, **case)


def check_batch_norm(table, layouts, eps=1e-5, truth=None, **case):
    """`truth` is what `exact` says of the table, if that is known."""
    mean, var, want = truth or exact(table, eps)
    given = {"mean": mean.astype("f8"), "var": var.astype("f8")}
    bound = promised(table.dtype, want, mean_over_std(mean, var))
    for layout in layouts:
        (x, axis), (laid_out, _), (allowed, _) = map(layout, (table, want, bound))
        for statistics in ({}, given):
            y, _ = F.batch_norm(x, axis=axis, eps=eps, **statistics)
            assert y.dtype == x.dtype
            assert_within(y, laid_out, allowed, layout=layout.__name__, inference=bool(statistics), **case)


def check_rows(table, eps=1e-5, truth=None, **case):
    """The columns of a table as rows of layer, group and instance norm."""
    mean, var, want = truth or exact(table, eps)
    x, want = np.ascontiguousarray(table.T), np.ascontiguousarray(want.T)
    allowed = promised(x.dtype, want, mean_over_std(mean, var)[:, None])
    rows, d = x.shape
    k = divisor(d, 7)
    affine = {"gamma": np.ones(d), "beta": np.zeros(d)}  # neutral, but another path
    calls = {
        "layer": (F.layer_norm, (rows, d), {"normalized_shape": d}),
        "layer, affine": (F.layer_norm, (rows, d), {"normalized_shape": d} | affine),
        "group": (partial(F.group_norm, num_groups=1), (rows, k, d // k), {}),
        "groups": (partial(F.group_norm, num_groups=rows), (1, rows * k, d // k), {}),
        "instance": (F.instance_norm, (1, rows, d), {}),
    }
    for name, (function, shape, options) in calls.items():
        y, _ = function(x.reshape(shape), eps=eps, **options)
        assert y.dtype == x.dtype
        assert_within(y.reshape(rows, d), want, allowed, function=name, **case)
    wide = x.astype(want.dtype)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + eps)
    y, _ = F.rms_norm(x, normalized_shape=d, eps=eps)
    assert_within(y, want, promised(y.dtype, want, 1), function="rms", **case)


# Any mean -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("c", CHANNELS)
def test_float32_far_from_zero(c, ratio):
    for n in SIZES_OF[c]:
        table = data(n, c, ratio, "f4")
        check_batch_norm(table, LAYOUTS, n=n)
        check_rows(table, n=n)


def test_float32_of_many_values():
    check_batch_norm(data(100_000, 64, 1e6, "f4"), (nc, ncl))


@pytest.mark.slow
@pytest.mark.parametrize("ratio", RATIOS)
def test_float32_of_very_many_values(ratio):
    check_batch_norm(data(100_000, 1000, ratio, "f4"), (nc, ncl))


@needs_long_double
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("c", CHANNELS)
def test_float64_far_from_zero(c, ratio):
    for n in SIZES_OF[c]:
        if n * c <= 70_000:
            table = data(n, c, ratio, "f8")
            truth = exact(table, 1e-5)
            check_batch_norm(table, LAYOUTS, truth=truth, n=n)
            check_rows(table, truth=truth, n=n)


# Hard data ------------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
NORMAL = RNG.standard_normal(5000)
PLACES = np.r_[:16, 1666:1682, 3318:3334, 4984:5000]  # the values that give the center of a row of 5,000
HARD = {
    "sorted": np.sort(NORMAL),
    "drifting": np.linspace(0, 1e6, 5000) + NORMAL,
    "one outlier, first": np.r_[1e6, NORMAL],
    "one outlier, last": np.r_[NORMAL, -1e6],
    "one outlier, a million standard deviations of all": np.r_[1e6, np.zeros(4), NORMAL * 1e-6],
    "one value differs, first": np.r_[1.0, np.zeros(5000)],
    "one value differs, last": np.r_[np.full(5000, 0.1), 0.1001],
    "two values, |y| of about 8": np.where(np.arange(5000) % 65 == 7, 1.1, 0.3),
    "a jump": np.r_[np.zeros(2500), np.full(2500, 1e6)] + NORMAL,
    "a center far from the mean": np.where(np.isin(np.arange(5000), PLACES), 1.1, 0.3),
    "zero, a, -a": np.tile([0.0, 1.1, -1.1], 1700),
    "zeros, then values": np.r_[np.zeros(1500), NORMAL],
    "ever larger": np.exp2(np.arange(5000) / 200) * np.sign(NORMAL),
    "ever smaller": np.exp2(-np.arange(5000) / 200) * np.sign(NORMAL),
    "heavy tail": np.exp(3 * NORMAL),
}


@every_pair("name", HARD, dtype=["f4", "f8"] if WIDER else ["f4"], scale=[1.0, 1e-30, 1e30])
def test_hard_data(name, dtype, scale):
    """Moments to a few roundings, and y as promised, also where squares are no float32."""
    column = (HARD[name] * scale).astype(dtype)[:, None]
    unit = EPS[column.dtype]
    for c in (1, 5, 70):
        table = column if c == 1 else np.column_stack([np.roll(column, i if i % 2 else 0) for i in range(c)])
        mean, var, _ = truth = exact(table, 0)
        assert (var > 0).all()
        for layout in (nc, long_run, ncl):
            x, axis = layout(table)
            m = F.moments(x, axis=axis)
            case = {"layout": layout.__name__, "c": c, "scale": scale}
            assert_close(m.mean, mean, 4 * unit * np.sqrt(var) + EPS[np.dtype("f8")] * np.abs(mean), **case)
            assert_close(m.var(), var, 16 * unit * var, **case)
        check_batch_norm(table, (nc, long_run, ncl), eps=0, truth=truth, c=c, scale=scale)
        if c == 1:
            check_rows(table, eps=0, truth=truth, scale=scale)


# Statistics that are known -------------------------------------------------------------------------------------------


NIST = {  # the univariate data sets of accuracy: certified std 1, 0.1, 0.1, 0.1 in decimals
    "NumAcc1": np.array([10000001.0, 10000003.0, 10000002.0]),
    "NumAcc2": np.r_[1.2, np.tile([1.1, 1.3], 500)],
    "NumAcc3": np.r_[1000000.2, np.tile([1000000.1, 1000000.3], 500)],
    "NumAcc4": np.r_[10000000.2, np.tile([10000000.1, 10000000.3], 500)],
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("values", NIST.values(), ids=NIST)
def test_nist(values, layout):
    """As near to the exact mean and std of these doubles as NumPy's two passes, or within a unit in the last place."""
    rational = [Fraction(v) for v in values]
    mean = sum(rational) / len(rational)
    var = sum((v - mean) ** 2 for v in rational) / (len(rational) - 1)
    with localcontext(prec=60):
        mean, std = (Decimal(q.numerator) / Decimal(q.denominator) for q in (mean, var))
        std = std.sqrt()
        for columns in (1, 4):
            x, axis = layout(np.column_stack([values] * columns))
            merged = Moments.merge([F.moments(x, axis=axis), F.moments(np.empty((0, columns)))])
            for ours, numpys, truth in (
                (merged.mean, values.mean(), mean),
                (merged.std(ddof=1), values.std(ddof=1), std),
            ):
                allowed = abs(Decimal(float(numpys)) - truth) + Decimal(float(np.spacing(float(truth))))
                for got in ours:
                    assert abs(Decimal(float(got)) - truth) <= allowed, (got, numpys, truth)


# Constants ------------------------------------------------------------------------------------------------------------

CONSTANTS = (0.1, 14.62, 1 / 3, 1e-3, -1e10, 1e-30, -1e-45, 3e38, -3e38, 65504.0, 123456.789, 5e-324, 1e300, 0.0)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("n", [2, 3, 1000, 4099])
def test_constant_channels_are_beta(n, dtype):
    """Exactly, whatever the constant, in batch statistics and given ones, weighted too, in each layout and function."""
    with np.errstate(over="ignore", under="ignore"):
        constants = np.array(CONSTANTS).astype(dtype)
    constants = constants[np.isfinite(constants)]
    c = len(constants)
    beta, gamma = np.linspace(-3.3, 3.3, c), np.linspace(1, 1000, c)
    table = np.tile(constants, (n, 1))
    of_beta = np.tile(beta.astype(dtype), (n, 1))
    weight = np.random.default_rng(n).uniform(0.1, 3, n)
    given = {"mean": constants.astype("f8"), "var": np.zeros(c)}
    for layout, eps in product(LAYOUTS, (1e-5, 0.0)):
        x, axis = layout(table)
        want, _ = layout(of_beta)
        for options in ({}, given, {"weight": weight.reshape(np.delete(x.shape, axis))}):
            y, _ = F.batch_norm(x, gamma, beta, axis=axis, eps=eps, **options)
            assert_same(y, want, layout=layout.__name__, eps=eps, options=list(options))
        m = F.moments(x, axis=axis)
        assert_same([m.mean, m.var()], [constants, np.zeros(c)], layout=layout.__name__)
    rows, row_beta = np.ascontiguousarray(table.T), np.linspace(-3.3, 3.3, n)
    for eps in (1e-5, 0):
        y, _ = F.layer_norm(rows, np.ones(n), row_beta, normalized_shape=n, eps=eps)
        assert_same(y, np.tile(row_beta.astype(dtype), (c, 1)))
        assert_same(F.layer_norm(rows, normalized_shape=n, eps=eps)[0], np.zeros_like(rows))
        assert_same(F.layer_norm(rows[:, :1], [3.0], [0.5], normalized_shape=1, eps=eps)[0], np.full((c, 1), 0.5))
        y, _ = F.instance_norm(rows[None], gamma, beta, eps=eps)
        assert_same(y[0], of_beta.T)
        y, _ = F.group_norm(rows.reshape(c, n, 1), 1, np.ones(n), row_beta, eps=eps)
        assert_same(y[..., 0], np.tile(row_beta.astype(dtype), (c, 1)))


@needs_long_double
@every_pair("n", [2, 3, 31, 33, 1000, 4099, 100_000], offset=[0.0, 1e3, 1e6], layout=LAYOUTS)
def test_moments_of_float32_are_as_exact_as_of_float64(n, offset, layout):
    """To 1e-12 of the standard deviation, so that what two libraries say of a table agrees; here to some roundings."""
    table = (np.random.default_rng(n).standard_normal((n, 3)) + offset).astype("float32")
    mean, var, _ = exact(table.astype("float64"), 0)
    x, axis = layout(table)
    m = F.moments(x, axis=axis)
    of_mean = m._parts[1].astype(np.longdouble) + m._parts[3]
    assert_close(of_mean, mean, 1e-14 * np.sqrt(var), n=n, offset=offset, layout=layout.__name__)
    assert_close(m.var(), var, 1e-14 * var, n=n, offset=offset, layout=layout.__name__)


@needs_long_double
@pytest.mark.parametrize(("channels", "positions"), [(65536, 1), (32768, 2), (8192, 8), (1024, 49), (512, 128)])
def test_weights_of_samples_cost_no_digit(channels, positions):
    """Of many channels with few positions, whose values at one position have one weight."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(1, 1, (2, channels, positions)), rng.uniform(0.5, 1.5, (2, positions))
    wide, of = x.astype(np.longdouble), np.broadcast_to(w[:, None], x.shape).astype(np.longdouble)
    n = of.sum((1, 2), keepdims=True)
    mean = (of * wide).sum((1, 2), keepdims=True) / n
    want = (wide - mean) / np.sqrt((of * (wide - mean) ** 2).sum((1, 2), keepdims=True) / n + 1e-5)
    y, _ = F.group_norm(x, 1, weight=w)
    assert_close(y, want, 8 * EPS[np.dtype("float64")] * np.maximum(1, np.abs(want)), channels=channels)


@needs_long_double
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("how", ["one weight", "weights", "skipna"])
def test_weights_and_missing_values_cost_no_digit(how, layout):
    """Sums of 100,000 numbers of one size, whose roundings all go the same way: 59 eps if each is added to the next."""
    rng = np.random.default_rng(0)
    table = rng.choice([-1.7, 1.7], (100_000, 3))
    w = rng.choice([0.3, 0.7], 100_000) if how == "weights" else np.full(100_000, 0.3)
    wide, of = table.astype(np.longdouble), w.astype(np.longdouble)[:, None]
    mean = (of * wide).sum(0) / of.sum()
    var = (of * (wide - mean) ** 2).sum(0) / of.sum()
    x, axis = layout(table)
    weight, _ = layout(np.repeat(w[:, None], 3, 1))
    weight = np.take(weight, 0, axis)
    eps = EPS[np.dtype("float64")]
    if how == "skipna":  # without weights, but with a value left out
        m = F.moments(x, axis=axis)
        first = F.moments(np.concatenate([x, np.full_like(x, np.nan)], axis=0 if axis else 1), axis=axis, skipna=True)
        assert_close(first.mean, m.mean, 8 * eps * np.sqrt(m.var()), layout=layout.__name__)
        assert_close(first.var(), m.var(), 16 * eps * m.var(), layout=layout.__name__)
        return
    y, saved = F.batch_norm(x, eps=0, axis=axis, weight=weight)
    want, _ = layout(((wide - mean) / np.sqrt(var)).astype(np.longdouble))
    assert_close(y, want, 8 * eps * np.maximum(1, np.abs(want)), layout=layout.__name__)
    assert_close(saved.stats[1], var, 16 * eps * var, layout=layout.__name__)


@needs_long_double
@pytest.mark.parametrize("parts", [1, 2])
def test_values_far_away_that_weigh_almost_nothing_cost_no_digit(parts):
    """They come first: in blocks of one array, or in moments that are merged."""
    x = np.random.default_rng(0).normal(size=(3000, 40))
    x[:1500] += 1e6
    w = np.longdouble(0.5) ** (np.arange(3000)[::-1] / 25)
    mean = w @ x.astype(np.longdouble) / w.sum()
    var = w @ (x - mean) ** 2 / w.sum()
    pieces = zip(np.array_split(x, parts), np.array_split(w.astype(float), parts), strict=True)
    m = sum(F.moments(piece, weight=weight) for piece, weight in pieces)
    assert_close(m.mean, mean, EPS[np.dtype("float64")] * np.sqrt(var), parts=parts)
    assert_close(m.var(), var, 16 * EPS[np.dtype("float64")] * var, parts=parts)
