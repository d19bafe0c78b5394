"""Moments and maps by groups: against the oracle, with the same bits however they are computed."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from bnorm.kernels import cpu
from bnorm.kernels import reference_groups as reference
from bnorm.kernels.cpu import groups

KINDS = ["f8", "f4", "f2", ml_dtypes.bfloat16, "?", "u1", "i1", "u2", "i2"]
SHAPES = [(40, 3, 1), (7, 13, 5), (1, 8, 90), (200, 1, 1), (33, 40, 1), (0, 2, 1), (3, 0, 1), (600, 15, 1)]
LAST = 2.0**-52


def table(rng, shape, kind, missing=0.0):
    x = rng.normal(5, 3, shape)
    if np.dtype(kind).kind in "u?":
        return (np.abs(x) if kind != "?" else x > 5).astype(kind)
    if np.dtype(kind).kind not in "i":
        x[rng.random(shape) < missing] = np.nan
    return x.astype(kind)


def assert_close(parts, expected):
    count, mean, m2, low = expected
    assert np.isnan(parts).tolist() == np.isnan(expected).tolist()
    n = np.where(count > 0, count, 1)
    std = np.sqrt(m2 / n)
    np.testing.assert_allclose(parts[0], count, rtol=1e-14)
    apart = np.abs((parts[1] - mean) + (parts[3] - low))
    assert not (apart > 1e-13 * np.maximum(std, LAST * np.abs(mean))).any()
    np.testing.assert_allclose(parts[2], m2, rtol=1e-12, atol=0 if not m2.size else 1e-30)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_moments(kind, weighted):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        positions = shape[0] * shape[2]
        for n, dtype in ((5, np.int64), (1, np.int32), (97, np.int32)):
            codes = rng.integers(-1, n, positions).astype(dtype)
            w = None if not weighted else np.where(rng.random(positions) < 0.3, 0, rng.random(positions))
            for skipna in (False, True):
                x = table(rng, shape, kind, missing=0.1 * skipna)
                found = groups.moments(x, codes, n, w, skipna)
                assert found.shape == (4, n, shape[1])
                assert_close(found, reference.moments(x, codes, n, w, skipna))


def test_nan_without_skipna():
    x, codes = np.arange(12.0).reshape(6, 2), np.array([0, 0, 1, 1, 2, 2])
    x[2, 1] = np.nan
    parts = groups.moments(x, codes, 3)
    assert np.isnan(parts[1]).tolist() == [[False, False], [False, True], [False, False]]
    assert parts[0].tolist() == [[2, 2]] * 3


def test_a_constant_group_is_exact():
    for weight in (None, np.linspace(0.1, 3, 3000)):
        parts = groups.moments(np.full((3000, 9), 0.1), np.arange(3000) % 3, 3, weight, True)
        assert (parts[1] == 0.1).all()
        assert not parts[2:].any()


@pytest.mark.parametrize("weight", [0.1, 0.3, 7.0])
def test_equal_weights_round_as_none(weight):
    """Their sum, one by one, would be off by dozens of last places."""
    rng = np.random.default_rng(4)
    x, codes = table(rng, (5000, 3), "f8", missing=0.1), rng.integers(-1, 4, 5000)
    want = groups.moments(x, codes, 4, None, True)
    want[[0, 2]] *= weight
    np.testing.assert_array_equal(groups.moments(x, codes, 4, np.full(5000, weight), True), want)


def test_missing_values_before_the_first():
    """The first value of a channel is that about which it is summed, whatever the others do."""
    x = np.full((900, 10), 1e8) + np.random.default_rng(2).normal(size=(900, 10))
    x[:300, 3] = x[5:40, 9] = x[::2, 0] = np.nan
    codes = np.arange(900) // 30 % 2
    assert_close(groups.moments(x, codes, 2, None, True), reference.moments(x, codes, 2, None, True))
    x[:, 4] = np.nan
    assert not groups.moments(x, codes, 2, None, True)[:, :, 4].any()


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_far_from_zero(weighted):
    """Means a million deviations away, and a first value that is far from all others."""
    rng = np.random.default_rng(3)
    x, codes = 1e6 + rng.normal(size=(9000, 3)), rng.integers(0, 2, 9000)
    x[:2, 1], x[:2, 2], x[7, 2] = -1e12, 1e9, np.nan
    w = rng.random(9000) if weighted else None
    for dtype in ("f8", "f4"):
        y = x.astype(dtype)
        assert_close(groups.moments(y, codes, 2, w, True), reference.moments(y, codes, 2, w, True))


@pytest.mark.parametrize("outlier", [1e9, 1e20, 1e30, -1e60, 1e120])
def test_an_outlier_that_has_faded(outlier):
    """Its distance from the mean has none of the digits of the mean."""
    x = np.random.default_rng(11).normal(5, 1, (3000, 5))
    x[0, :3], x[1, 2], x[9, 1] = outlier, -outlier, np.nan
    codes, w = np.arange(3000) % 2, 0.5 ** (np.arange(3000)[::-1] / 3)
    assert_close(groups.moments(x, codes, 2, w, True), reference.moments(x, codes, 2, w, True))


def test_one_outlier_of_some_hundred_values():
    x = np.random.default_rng(12).normal(0, 1, (900, 40))
    x[0] = 1e9
    found, expected = (k.moments(x, np.zeros(900, int), 1) for k in (groups, reference))
    np.testing.assert_allclose(found[2], expected[2], rtol=3e-13)


def test_same_bits():
    """For any number of threads; and of rows or columns, for numbers that are the same."""
    rng = np.random.default_rng(4)
    before = cpu.get_num_threads()
    for rows, channels, n in ((90_000, 3, 900), (200_000, 1, 7), (40_000, 9, 3000)):
        x = rng.normal(size=(rows, channels)).astype("f4")
        x[rng.random(x.shape) < 1e-3] = np.nan
        x[:20] = 1e20  # groups that get other centers
        for codes in (rng.integers(-1, n, rows), np.sort(rng.integers(0, n, rows))):
            found = []
            try:
                for threads in (1, 2, 3, 7):
                    cpu.set_num_threads(threads)
                    found.append(groups.moments(x, codes, n, None, True).tobytes())
                    found.append(groups.moments(x.T[None].copy(), codes.astype("i4"), n, None, True).tobytes())
                    found.append(groups.moments(x.astype("f8"), codes, n, None, True).tobytes())
            finally:
                cpu.set_num_threads(before)
            assert len(set(found)) == 1


def test_pieces():
    """Pieces of which each has groups of its own, or none."""
    rng = np.random.default_rng(8)
    x = rng.normal(5, 3, (170_000, 3))
    codes = np.repeat([-1, 7, 3, 4, 3, -1, 5], [50_000, 30_000, 20_000, 1, 39_999, 29_000, 1_000])
    assert_close(groups.moments(x, codes, 9, None, True), reference.moments(x, codes, 9, None, True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_columns(kind):
    """Columns that lie anywhere have the results of a table of rows, to the last bit."""
    rng = np.random.default_rng(9)
    for rows, channels in ((1, 1), (331, 9), (2200, 4), (700, 1), (90, 150)):
        x, codes = table(rng, (rows, channels), kind, missing=0.1), rng.integers(-1, 4, rows)
        numbers, w = rng.normal(size=(4, 3, channels)), rng.random(rows)
        ends = sorted({0, rows // 7, rows // 7 + 1, rows // 2, rows})
        columns = [[np.append(x[:1, c], x[a:b, c])[1:] for c in range(channels)] for a, b in itertools.pairwise(ends)]
        columns.insert(1, [x[:0, 0]] * channels)
        for weight in (None, w):
            found, expected = (groups.moments(table, codes, 4, weight, True) for table in (columns, x))
            assert found.tobytes() == expected.tobytes()
        y, expected = (groups.normalize(table, codes, numbers, None, True) for table in (columns, x))
        assert y.shape == (1, channels, rows)
        assert y[0].T.tobytes() == expected.tobytes()


def test_large_columns():
    """Results that are sent past the caches, whose columns begin within a line."""
    rng = np.random.default_rng(10)
    for kind, channels in (("f8", 7), ("f4", 9)):
        x = rng.normal(size=(4_400_001 // channels, channels)).astype(kind)
        codes, numbers = rng.integers(0, 50, len(x)), rng.normal(size=(50, 3, channels))
        columns = [list(np.ascontiguousarray(x.T))]
        assert groups.normalize(columns, codes, numbers)[0].T.tobytes() == groups.normalize(x, codes, numbers).tobytes()


def test_bad_columns():
    x, codes = np.zeros(3), np.zeros(3, int)
    for bad in (
        [],
        [[]],
        [[x], [x, x]],
        [[x, x[:2]]],
        [[x, x.astype("f4")]],
        [[np.zeros(6)[::2]]],
        [[x.tolist()]],
        [[x], 3],
    ):
        for call in (
            lambda bad=bad: groups.moments(bad, codes, 1),
            lambda bad=bad: groups.normalize(bad, codes, np.ones((3, 1, 1))),
        ):
            with pytest.raises((TypeError, ValueError), match=r"x: |ndarray|len\(\)"):
                call()
    with pytest.raises(ValueError, match="codes: expected 6 numbers"):
        groups.moments([[x], [x]], codes, 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_normalize(kind):
    rng = np.random.default_rng(5)
    for shape in SHAPES:
        x = table(rng, shape, kind, missing=0.1)
        codes = rng.integers(-1, 6, shape[0] * shape[2])
        numbers = rng.normal(size=(6, 3, shape[1]))
        y = groups.normalize(x, codes, numbers, None, True)
        expected = reference.normalize(x, codes, numbers, None, True)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y.astype("f8"), expected.astype("f8"))
        if y.dtype == x.dtype:
            groups.normalize(x, codes.astype("i4"), numbers, x)
            np.testing.assert_array_equal(x.astype("f8"), expected.astype("f8"))


def test_normalize_large():
    """Results that are sent past the caches, of widths that fill lines or do not."""
    rng = np.random.default_rng(6)
    for channels in (8, 7, 1, 300):
        x = rng.normal(size=(1_500_000 // channels, channels))
        codes = rng.integers(0, 50, len(x))
        numbers = rng.normal(size=(50, 3, channels))
        mean, scale, shift = numbers[codes].transpose(1, 0, 2)
        np.testing.assert_array_equal(groups.normalize(x, codes, numbers), (x - mean) * scale + shift)


def test_infinity_and_wrong_codes():
    x, codes = np.ones((4, 2)), np.array([0, 1, -1, 1])
    numbers = np.ones((2, 3, 2))
    for bad in (2, -2, 2**31, -(2**40)):
        wrong = np.array([0, bad, 0, 0])
        for call in (
            lambda wrong=wrong: groups.moments(x, wrong, 2),
            lambda wrong=wrong: groups.moments(x, wrong, 2, np.zeros(4)),
            lambda wrong=wrong: groups.normalize(x, wrong, numbers),
            lambda wrong=wrong: groups.later(wrong, 2),
        ):
            with pytest.raises(IndexError, match="codes: expected -1 to 1"):
                call()
    x[2, 1] = np.inf
    with pytest.raises(FloatingPointError):
        groups.normalize(x, codes, numbers, None, True)
    assert np.isnan(groups.normalize(x, codes, numbers)[2]).all()


def test_later_and_distinct():
    rng = np.random.default_rng(7)
    codes = rng.integers(-1, 4, 50)
    np.testing.assert_array_equal(groups.later(codes, 4), reference.later(codes, 4))
    for values in (
        rng.integers(-5, 9, 300),
        rng.integers(-(2**63), 2**63 - 1, 300).repeat(2),
        np.array([2**63 - 1, -(2**63), 0, -1, -(2**63)]),
        np.arange(200_000) // 3 * 12345678901,
        np.empty(0, np.int64),
    ):
        for found, expected in zip(groups.distinct(values), reference.distinct(values), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_long_groups():
    """Sums of many values are sums of shorter ones: one after the other they would round to a few parts in 10^13."""
    x = np.tile([[0.1, 0.3], [0.9, 1.0], [0.9, 0.4]], (10_000, 1))
    found, expected = (k.moments(x, np.zeros(30_000, int), 1) for k in (groups, reference))
    apart = np.abs((found[1] - expected[1]) + (found[3] - expected[3])) / np.sqrt(expected[2] / 30_000)
    assert (apart < 1e-14).all()
    np.testing.assert_allclose(found[2], expected[2], rtol=2e-14)
