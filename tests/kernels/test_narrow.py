"""Integers and half precision: what they are converted to, what is exact, and that no array is copied for it."""

import ctypes
import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import bnorm
import bnorm.functional as F
import compiled
from bnorm.kernels import cpu
from bnorm.kernels.activation import IDENTITY, RELU, SILU, leaky
from bnorm.sklearn import StandardScaler
from kernel_checks import stats_of

HALVES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
INTEGERS = list(map(np.dtype, cpu.INTEGERS))
SMALL = [dtype for dtype in INTEGERS if dtype.itemsize <= 2]  # sums of their squares are made in 64 bits
RNG = np.random.default_rng(0)
# Every way from a shape to the sums of integers: short and long runs, widened rows, what is left over, none at all.
SHAPES = [(1000, 7), (33, 3, 40), (5000, 100), (7, 3, 3000), (1, 2, 100_000), (300, 1500), (40, 30, 300), (0, 3)]
halves = pytest.mark.parametrize("dtype", HALVES, ids=str)
integers = pytest.mark.parametrize("dtype", INTEGERS, ids=str)
small = pytest.mark.parametrize("dtype", SMALL, ids=str)


def span(dtype):
    return (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def drawn(dtype, shape):
    if dtype in HALVES:
        return RNG.normal(3, 2, shape).astype(dtype)
    return RNG.integers(*span(dtype), shape, dtype=dtype, endpoint=True)


@halves
def test_every_half_becomes_its_float32(dtype):
    x = np.arange(1 << 16).astype("u2").view(dtype)
    with np.errstate(invalid="ignore"):  # NumPy's own warning of signaling NaN, on some processors
        got, want = cpu.widened(x), x.astype("f4")
    number = ~np.isnan(want)
    assert got.dtype == np.float32
    assert np.array_equal(got[number].view("u4"), want[number].view("u4"))  # the sign of zero too
    assert np.isnan(got[~number]).all() and np.array_equal(np.signbit(got), np.signbit(want))


@halves
def test_float32_is_rounded_to_the_nearest_half(dtype):
    """Every number of the type, what lies half way to the next, and what lies just beside that; and some of all."""
    x = np.arange(0x7C00 if dtype == np.float16 else 0x7F80).astype("u2").view(dtype)
    numbers = x.astype("f4")
    middle = numbers[:-1] / 2 + numbers[1:] / 2
    some = RNG.integers(0, 1 << 32, 1 << 20, dtype="u4").view("f4")
    ends = np.float32([65519.996, 65520, 65536, 3.4e38, np.inf, 1e-45, 2**-25, 2**-24])
    beside = [np.nextafter(middle, np.float32(to)) for to in (-np.inf, np.inf)]
    values = np.concatenate([numbers, middle, *beside, ends, some])
    values = np.concatenate([values, -values])
    got = cpu.narrowed(values, x)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        want = values.astype(dtype)
    number = ~np.isnan(values)
    assert got.dtype == dtype
    assert np.array_equal(got[number].view("u2"), want[number].view("u2"))
    assert np.isnan(got[~number].astype("f4")).all()


# Lines of few and many columns, and planes: whole pairs of vectors and odd ends, several planes and parts of one.
MAPPED = [(500, 7), (3, 33), (40, 100), (300, 64), (2, 2500), (70, 3, 5), (5, 6, 32), (4, 30, 49), (3, 2, 1030)]
MAPPED += [(2, 2, 1055), (2, 1, 5000), (1, 20)]


@pytest.mark.parametrize("shape", MAPPED, ids=str)
@halves
def test_maps_are_those_of_float32_rounded_once(dtype, shape):
    """Bit by bit, of every number of the type, also in place."""
    bits = RNG.permutation(1 << 16).astype("u2")
    x, dy = (np.resize(bits[i:], shape).view(dtype) for i in (0, 100))
    mean, scale, shift, *coefficients = RNG.normal(size=(6, shape[1]))
    stats, coefficients = stats_of(mean, scale, shift), np.stack(coefficients)
    wide, wide_dy = cpu.widened(x), cpu.widened(dy)
    for act in (IDENTITY, RELU, leaky(0.2), SILU):
        want = cpu.narrowed(cpu.normalize(wide, stats, act), x)
        assert cpu.normalize(x, stats, act).tobytes() == want.tobytes(), act
        out = x.copy()
        assert cpu.normalize(out, stats, act, out).tobytes() == want.tobytes(), act
        want = cpu.narrowed(cpu.grad_input(wide_dy, wide, stats, coefficients, None, act), x)
        assert cpu.grad_input(dy, x, stats, coefficients, None, act).tobytes() == want.tobytes(), act
        for out in (x.copy(), dy.copy()):
            args = (dy, out) if out.tobytes() == x.tobytes() else (out, x)
            assert cpu.grad_input(*args, stats, coefficients, None, act, out).tobytes() == want.tobytes(), act
    y, saved = F.batch_norm(x, scale, shift, mean=mean, var=scale**2)
    want, wanted = F.batch_norm(wide, scale, shift, mean=mean, var=scale**2)
    assert y.tobytes() == cpu.narrowed(want, x).tobytes()
    assert F.backward(dy, saved)[0].tobytes() == cpu.narrowed(F.backward(wide_dy, wanted)[0], x).tobytes()


@pytest.mark.parametrize("length", [32, 49, 1000, 2048 + 7, 4096 + 5, 4096 + 33, 9000])
@halves
def test_sums_of_planes(dtype, length):
    """Which are made in parts, of which none may be too short: far from zero, against float64."""
    x, dy = drawn(dtype, (11, 3, length)) + dtype.type(20), drawn(dtype, (11, 3, length))
    wide, wide_dy = x.astype("f8"), dy.astype("f8")
    mean, var = wide.mean((0, 2)), wide.var((0, 2))
    _, stats, *_ = cpu.forward(x, None, None, 1e-5)
    assert np.abs(stats[0] - mean).max() <= 1e-6 * np.sqrt(var).max()
    assert np.abs(stats[1] - var).max() <= 1e-6 * var.max()
    sums, dots = cpu.grad_moments(dy, x, stats_of(mean, mean, mean))
    centered = wide - mean[:, None]
    assert np.abs(sums - wide_dy.sum((0, 2))).max() <= 1e-6 * np.abs(wide_dy).sum((0, 2)).max()
    assert np.abs(dots - (wide_dy * centered).sum((0, 2))).max() <= 1e-6 * np.abs(wide_dy * centered).sum((0, 2)).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@small
def test_moments_of_integers_are_exact(dtype, shape):
    x = drawn(dtype, shape)
    count, mean, m2, _ = cpu.moments(x)
    n = x.size // shape[1]
    for c in range(0, shape[1], max(1, shape[1] // 7)):
        values = x[:, c].astype("i8").ravel()
        total, squares = int(values.sum()), int((values * values).sum())
        assert count[c] == n
        if n:
            want = squares - Fraction(total * total, n)
            assert abs(Fraction(m2[c]) - want) <= Fraction(2) ** -49 * want  # what merging the pieces rounds
            assert abs(Fraction(mean[c]) - Fraction(total, n)) <= 2.0**-51 * (abs(mean[c]) + (m2[c] / n) ** 0.5)


@integers
def test_integers_are_rounded_to_the_nearest_float64(dtype):
    low, high = span(dtype)
    near = [v for p in (24, 31, 53, 54, 63) for d in (-3, -1, 0, 1, 3) for v in (2**p + d, 3 * 2 ** (p - 1) + d)]
    x = np.array([v for v in [low, high, *near, *(-v for v in near)] if low <= v <= high], dtype)
    for a in (x, drawn(dtype, 1000)):
        assert cpu.widened(a).tolist() == [float(v) for v in a.tolist()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [dtype for dtype in INTEGERS if dtype not in SMALL], ids=str)
def test_moments_of_larger_integers_are_those_of_float64(dtype, shape):
    """Of small numbers far from 0, and of all numbers of the type."""
    high = span(dtype)[1]
    for x in (high - 10**6 + RNG.integers(0, 50, shape).astype(dtype), drawn(dtype, shape)):
        got, want = cpu.moments(x), cpu.moments(x.astype("f8"))
        std = np.sqrt(want[2] / np.maximum(want[0], 1)) + 1
        assert np.array_equal(got[0], want[0])
        assert np.all(np.abs(got[1] - want[1]) <= 1e-12 * std + 2.0**-52 * np.abs(want[1]))
        assert np.allclose(got[2], want[2], rtol=1e-12)


@integers
def test_moments_of_the_ends_of_a_type(dtype):
    """Squares and sums at their largest, of more values than a sum of 32 bits has room for."""
    low, high = map(float, span(dtype))
    x = np.full((1 << 18, 3), span(dtype)[1], dtype)
    x[:, 1] = x[::2, 2] = span(dtype)[0]
    _, mean, m2, _ = cpu.moments(x)
    assert mean.tolist() == [high, low, (low + high) / 2]
    assert m2.tolist() == [0, 0, len(x) * ((high - low) / 2) ** 2]


SUMS = """
#include "narrow.h"
void moments(int kind, int64_t pieces, const int64_t (*sums)[3], double *to)
{
    int64_t n = 0, s = 0, center;
    bn_square_sum q = {0, 0};
    for (int64_t p = 0; p < pieces; p++)
        n += sums[p][0], s += sums[p][1];
    center = bn_center(n, s);
    for (int64_t p = 0; p < pieces; p++)
        bn_add_squares(&q, sums[p][0], sums[p][1], sums[p][2], center);
    bn_integer_moments(kind, n, s, &q, center, to, 1);
}
"""


@compiled.needs_compiler
@pytest.mark.parametrize("ends", [(-32768, 32767), (-32768, -32767), (32767, 32766), (0, 1)], ids=str)
@pytest.mark.parametrize("values", [7, 2**32 - 5, 2**37 - 1], ids=["few", "2**32", "2**37"])
def test_more_values_than_memory_has(values, ends):
    """From 2^33 int16 on, their squares have no room in 64 bits: the sums of 64 pieces, of which each has half a
    terabyte in the last case. One half of the pieces is at one end of the values, the other at the other."""
    pieces = np.zeros((64, 3), np.int64)
    pieces[:, 0] = values // 64
    pieces[0, 0] += values % 64
    pieces[:, 1] = np.where(np.arange(64) < 32, *ends) * pieces[:, 0]
    pieces[:, 2] = np.where(np.arange(64) < 32, *ends) ** 2 * pieces[:, 0]
    n, s, q = (sum(map(int, column)) for column in pieces.T)
    for kind, shift in ((7, 0), (6, 32768)):  # int16; uint16, whose values are summed about 32768
        got = np.empty(4)
        compiled.library(SUMS).moments(
            kind, ctypes.c_int64(64), ctypes.c_void_p(pieces.ctypes.data), ctypes.c_void_p(got.ctypes.data)
        )
        mean, m2 = Fraction(s, n) + shift, q - Fraction(s * s, n)
        assert got[0] == n and got[1] == float(mean)
        assert abs(got[2] - m2) <= 1e-15 * m2
        assert abs(Fraction(got[1]) + Fraction(got[3]) - mean) <= abs(mean) * Fraction(2) ** -100


def test_a_bool_of_any_bits_is_true():
    x = np.array([[0], [1], [2], [255]], "u1").view(bool)
    assert cpu.moments(x)[1] == 0.75
    assert cpu.moments(x, np.ones((4, 1)))[1] == 0.75
    assert cpu.widened(x).ravel().tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@integers
def test_integers_go_through_batch_norm_as_float64_does(dtype, shape):
    x, w = drawn(dtype, shape), RNG.random((shape[0], int(np.prod(shape[2:])))).round(1)
    wide = x.astype("f8")
    atol = 1e-10 if dtype in SMALL else 1e-12 * span(dtype)[1]
    assert np.allclose(cpu.moments(x, w), cpu.moments(wide, w), rtol=1e-12, atol=atol)
    stats = cpu.finish(cpu.moments(wide), None, None, 1e-5)
    assert cpu.normalize(x, stats, leaky(0.2)).tobytes() == cpu.normalize(wide, stats, leaky(0.2)).tobytes()
    y, *_ = cpu.forward(x, None, None, 1e-5)
    assert y.dtype == np.float64
    assert np.allclose(y, cpu.forward(wide, None, None, 1e-5)[0], rtol=1e-12, atol=1e-12)


@integers
def test_functions_and_layers_of_integers(dtype):
    x, dy = drawn(dtype, (20, 3, 5)), RNG.normal(size=(20, 3, 5))
    wide = x.astype("f8")
    y, saved = F.batch_norm(x, np.ones(3))
    want, wanted = F.batch_norm(wide, np.ones(3))
    assert y.dtype == np.float64 and np.allclose(y, want)
    for got, expected in zip(F.backward(dy, saved)[:2], F.backward(dy, wanted)[:2], strict=True):
        assert got.dtype == np.float64 and np.allclose(got, expected)
    for got, expected in zip(F.double_backward(dy, saved, dy), F.double_backward(dy, wanted, dy), strict=True):
        assert got.dtype == np.float64 and np.allclose(got, expected)
    for layer in (bnorm.BatchNorm1d(3), bnorm.InstanceNorm1d(3), bnorm.GroupNorm(1, 3)):
        y = layer(x)
        dx = layer.backward(dy)
        assert y.dtype == dx.dtype == np.float64
        assert np.allclose(y, layer(wide)) and np.allclose(dx, layer.backward(dy))
    out = np.empty_like(wide)
    assert F.batch_norm(x, out=out)[0] is out
    with pytest.raises(TypeError, match="batch_norm: out: expected dtype float64, got"):
        F.batch_norm(x, out=x)


@integers
def test_rows_of_integers_are_refused(dtype):
    x = np.zeros((2, 1, 8, 1), dtype)
    with pytest.raises(TypeError, match=f"x: expected floats, got {dtype}"):
        cpu.rows_forward(x, None, None, 1e-5)


def test_bfloat16_through_every_function():
    dtype = HALVES[1]
    x, dy = drawn(dtype, (24, 6, 10)), drawn(dtype, (24, 6, 10))
    for function in (
        F.batch_norm,
        lambda a: F.batch_norm(a, weight=np.ones(len(a))),
        lambda a: F.batch_norm(a.transpose(2, 0, 1), axis=2, activation="relu"),
        lambda a: F.batch_norm(a[::2, :, ::-1], np.ones(6)),
        lambda a: F.layer_norm(a, np.ones(10), normalized_shape=10),
        lambda a: F.rms_norm(a, normalized_shape=(6, 10)),
        lambda a: F.group_norm(a, 2, np.ones(6)),
        F.instance_norm,
    ):
        y, saved = function(x)
        want, wanted = function(x.astype("f4"))
        assert y.dtype == dtype and np.abs(y.astype("f4") - want).max() <= 2.0**-8 * np.abs(want).max()
        g = np.resize(dy, y.shape)
        dx, want = F.backward(g, saved)[0], F.backward(g.astype("f4"), wanted)[0]
        assert dx.dtype == dtype and np.abs(dx.astype("f4") - want).max() <= 2.0**-8 * np.abs(want).max() + 1e-5
    out = np.empty_like(x)
    assert F.batch_norm(x, out=out)[0] is out
    m, want = F.moments(x), F.moments(x.astype("f4"))
    assert np.allclose(m.mean, want.mean, rtol=1e-15) and np.allclose(m.m2, want.m2, rtol=1e-12)


@halves
def test_not_a_number_and_infinity(dtype):
    x = drawn(dtype, (3000, 4))
    x[5, 1], x[2000, 2], x[2500, 3] = np.nan, np.inf, -np.inf
    y, _ = F.batch_norm(x)
    assert np.isfinite(y[:, 0].astype("f4")).all() and not np.isfinite(y[:, 1:].astype("f4")).any()
    m = F.moments(x, skipna=True)
    assert m.count.tolist() == [3000, 2999, 3000, 3000]
    assert np.isfinite(m.mean).tolist() == [True, True, False, False]
    t = bnorm.BatchNormTransformer().fit(x[:, :2].astype("f2"))
    assert t.n_samples_seen_.tolist() == [3000, 2999]
    with pytest.raises(ValueError, match="infinity"):
        t.transform(x[:, [0, 2]].astype("f2"))


@halves
def test_a_constant_channel_and_tiny_numbers(dtype):
    """Among them those whose squares float32 has no room for, which bfloat16 can be."""
    tiny = 1e-30 if dtype == HALVES[1] else 1e-7
    x = (drawn(dtype, (5000, 3)).astype("f4") * np.float32([1, tiny, 0]) + np.float32([0, 0, 7])).astype(dtype)
    y, saved = F.batch_norm(x, eps=0.0)
    want, wanted = F.batch_norm(x.astype("f8"), eps=0.0)
    assert not y[:, 2].any()
    assert np.abs(y.astype("f8") - want).max() <= 2.0**-8 * np.abs(want).max()
    dy = (drawn(dtype, x.shape) * dtype.type(tiny)).astype(dtype)
    dx, want = (F.backward(a, s)[0].astype("f8") for a, s in ((dy, saved), (dy.astype("f8"), wanted)))
    error = np.abs(dx - want).max(0)
    assert (error <= 2.0**-8 * np.abs(want).max(0) + 2.0**-25)[[0, 2]].all()
    assert error[1] <= 2.0**-8 * np.abs(want[:, 1]).max()


# Memory ---------------------------------------------------------------------------------------------------------------


def peak(function):
    """Bytes that a call has allocated beyond what it returns, at most at any time."""
    limit = bnorm.get_buffer_limit() if hasattr(bnorm, "get_buffer_limit") else cpu.get_buffer_limit()
    cpu.set_buffer_limit(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = function()
        after, most = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
        cpu.set_buffer_limit(limit)
    return most - after + min(0, after - before)


LAYERS = {
    "batch norm": lambda: (bnorm.BatchNorm2d(16), (64, 16, 32, 32)),
    "batch norm, columns": lambda: (bnorm.BatchNorm1d(64), (20_000, 64)),
    "layer norm": lambda: (bnorm.LayerNorm(256), (4096, 256)),
    "RMS norm": lambda: (bnorm.RMSNorm(256), (4096, 256)),
    "group norm": lambda: (bnorm.GroupNorm(4, 16), (64, 16, 32, 32)),
    "instance norm": lambda: (bnorm.InstanceNorm2d(16), (64, 16, 32, 32)),
}


@pytest.mark.parametrize("name", LAYERS)
@halves
def test_a_layer_of_halves_makes_no_other_array(dtype, name):
    layer, shape = LAYERS[name]()
    x, dy = drawn(dtype, shape), drawn(dtype, shape)
    assert peak(lambda: layer(x)) < x.nbytes / 8
    assert peak(lambda: layer.backward(dy)) < x.nbytes / 8
    layer.eval()
    assert peak(lambda: layer(x)) < x.nbytes / 8


@integers
def test_integers_are_read_without_a_copy(dtype):
    x = drawn(dtype, (60_000, 32))
    t = bnorm.BatchNormTransformer()
    scaler = StandardScaler()
    layer = bnorm.BatchNorm1d(32).eval()
    for function in (
        lambda: F.moments(x),
        lambda: t.fit(x),
        lambda: t.transform(x),
        lambda: scaler.fit(x),
        lambda: scaler.transform(x),
        lambda: scaler.inverse_transform(x),
        lambda: layer(x),
    ):
        assert peak(function) < x.nbytes / 8


@integers
def test_the_transformer_of_integers(dtype):
    x, w = drawn(dtype, (700, 5)), RNG.random(700)
    for a in (x, np.asfortranarray(x), x[::2], x[:, ::-1], x.astype(x.dtype.newbyteorder())):
        for options in ({}, {"halflife": 50.0, "ddof": 1}, {"momentum": None}):
            got, want = (
                bnorm.BatchNormTransformer(**options).fit(b, sample_weight=w[: len(a)]).partial_fit(b[:50])
                for b in (a, a.astype("f8"))
            )
            assert np.allclose(got.mean_, want.mean_, rtol=1e-12) and np.allclose(got.var_, want.var_, rtol=1e-12)
            for copy in (True, False):
                z = got.transform(a, copy=copy)
                assert z.dtype == np.float64 and np.allclose(z, want.transform(a.astype("f8")), atol=1e-11)
            assert z.tobytes() == np.ascontiguousarray(got.layer_.eval()(a)).tobytes()
            assert np.allclose(got.backward(a, z), want.backward(a.astype("f8"), z))
            assert np.allclose(got.inverse_transform(a), want.inverse_transform(a.astype("f8")))


@pytest.mark.parametrize("dtype", ["i1", "u1", "?", "u2"])
def test_numbers_are_narrowed_to_halves_only(dtype):
    with pytest.raises(TypeError, match="like: expected float16, bfloat16, float32 or float64, got"):
        cpu.narrowed(np.ones(3, "f4"), np.zeros(3, dtype))
