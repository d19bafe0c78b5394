"""Moments and extremes of several vectors by one call: bit for bit those of one vector at a time."""

from itertools import product

import numpy as np
import pytest

from bnorm.kernels import cpu
from cases import cast
from drawing import every_pair

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
DTYPES = ("float16", "float32", "float64", "bool", *INTEGERS)
LENGTHS = (0, 1, 63, 64, 1000, 70_001)  # the last one on several threads


def vectors(n, dtype):
    """Plain ones, some with NaN, only NaN, and infinity."""
    rng = np.random.default_rng(n)
    found = [cast(rng.standard_normal(n) * 30 + 40 * c, dtype) for c in range(5)]
    if np.dtype(dtype).kind == "f":
        found[1][rng.random(n) < 0.3] = np.nan
        found[2][:] = np.nan
        found[3][: n // 2] = np.inf
    return found


def one_by_one(columns, weight=None):
    block = [x.reshape(1, 1, -1) for x in columns]
    w = None if weight is None else weight.reshape(1, -1)
    parts = [cpu.moments(x, w, True) for x in block], [cpu.extremes(x, weight, True) for x in block]
    return [np.concatenate(found, axis=1) for found in parts]


def weights(n, kind):
    w = np.random.default_rng(7).random(n)
    w[::3] = 0
    w[-1:] = {"weights": 1.5, "too large": np.inf, "negative": -1.0, "missing": np.nan}[kind]
    return w


@every_pair(
    ["n", "dtype"],
    product(LENGTHS, DTYPES),
    kind=["none", "weights", "too large", "negative", "missing"],
    threads=[1, 2],
    minmax=[False, True],
)
def test_bits(n, dtype, kind, threads, minmax, set_threads):
    columns, weight = vectors(n, dtype), None if kind == "none" else weights(n, kind)
    set_threads(1)
    want = one_by_one(columns, weight)
    set_threads(threads)
    got = cpu.column_moments(columns, weight, minmax)
    for found, expected in zip(got, want if minmax else [want[0], None], strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.tobytes() == expected.tobytes()


def test_slices_and_types_side_by_side():
    """Each vector begins somewhere else, and has a type of its own."""
    columns = [np.arange(100 + i, dtype=dtype)[i:] for i, dtype in enumerate(("f8", "f4", "f2", "i2", "u1"))]
    for got, want in zip(cpu.column_moments(columns, minmax=True), one_by_one(columns), strict=True):
        assert got.tobytes() == want.tobytes()


def test_no_vector():
    parts, extremes = cpu.column_moments([], minmax=True)
    assert parts.shape == (4, 0)
    assert extremes.shape == (2, 0)


@pytest.mark.parametrize(
    ("columns", "weight", "said"),
    [
        ([np.ones(3), np.ones(4)], None, "columns: expected 3 values each"),
        ([np.ones(3), np.ones((3, 1))], None, "x: expected at least 1 axes"),
        ([np.ones(6)[::2]], None, "x: expected at least 1 axes"),
        ([np.ones(3, ">f8")], None, "x: expected at least 1 axes"),
        ([np.frombuffer(bytes(25), "f8", offset=1)], None, "columns: expected 3 values each, aligned in memory"),
        ([np.ones(3, complex)], None, "x: expected floats, bools or integers"),
        ([np.ones(3), [1.0, 2.0, 3.0]], None, "Cannot convert list"),
        ([np.ones(3)], np.ones(4), "weight: expected 3 numbers"),
        ([np.ones(3)], np.ones(3, bool), "weight: expected 3 numbers of float64"),
    ],
)
def test_errors(columns, weight, said):
    with pytest.raises((TypeError, ValueError), match=said):
        cpu.column_moments(columns, weight, True)
