"""The kernels of sparse tables against their reference, and what holds without one."""

import inspect

import numpy as np
import pytest
from scipy import sparse

import bnorm
from bnorm.kernels import reference_sparse
from bnorm.kernels.cpu import sparse as kernels
from compare import assert_close, assert_same

EPS = np.finfo(np.float64).eps
FAR = 16  # as in sparse.pyx: the squares that are summed are at most so many times the result
SHAPES = [(1, 1, 1.0), (50, 7, 0.3), (400, 3, 1.0), (30, 200, 0.05), (5, 4, 0.0), (700, 30, 0.9)]
FORMATS = ["csr", "csc"]


def table(rows, columns, density, form="csr", dtype="float64", index="int32", seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.integers(-20, 20, columns))  # of every column
    x = (rng.normal(1.0, 2.0, (rows, columns)) * sizes).astype(dtype)
    x[rng.random((rows, columns)) >= density] = 0
    x = getattr(sparse, f"{form}_array")(x)
    x.indices, x.indptr = x.indices.astype(index), x.indptr.astype(index)
    return x


def arguments(x):
    return x.data, x.indices, x.indptr, x.shape, x.format == "csc"


def assert_moments(x, weight=None, **case):
    got, ordered = kernels.moments(*arguments(x), weight)
    want, also = reference_sparse.moments(*arguments(x), weight)
    assert ordered == also
    n = x.shape[0]
    spread = np.sqrt(want[2] / np.where(want[0] == 0, 1, want[0]))
    size = np.abs(want[1]) + FAR * spread
    assert_close(got[0], want[0], (n + 8) * EPS * want[0], part="count", **case)
    assert_close(got[1] + got[3], want[1] + want[3], (n + 8) * EPS * size, part="mean", **case)
    assert_close(got[2], want[2], FAR * (n + 8) * EPS * want[2], part="m2", **case)


@pytest.mark.parametrize("name", ["moments", "scaled"])
def test_signatures_are_those_of_the_reference(name):
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (kernels, reference_sparse))
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments(shape, form, dtype, index):
    x = table(*shape, form, dtype, index)
    rng = np.random.default_rng(1)
    weight = rng.exponential(1.0, x.shape[0]) * (rng.random(x.shape[0]) < 0.8)
    assert_moments(x, shape=shape, weighted=False)
    assert_moments(x, weight, shape=shape, weighted=True)
    x.data[rng.random(x.nnz) < 0.2] = np.nan
    assert_moments(x, shape=shape, weighted=False, nan=True)
    assert_moments(x, weight, shape=shape, weighted=True, nan=True)


@pytest.mark.parametrize("form", FORMATS)
def test_a_first_value_that_is_an_outlier(form):
    x = np.random.default_rng(0).normal(5.0, 1.0, (500, 3))
    x[0] = [1e9, -1e12, 5.0]
    for rows in (slice(None), slice(1, None)):
        assert_moments(getattr(sparse, f"{form}_array")(x[rows]), rows=rows)
    x[1:, 0] = 5.0 + 1e-7 * np.random.default_rng(1).normal(size=499)
    weight = np.ones(500)
    weight[0] = 1e-30  # so that nothing of the outlier is left in the mean
    assert_moments(getattr(sparse, f"{form}_array")(x), weight)
    x[0, 0], weight[0] = 1e60, 1e-150  # so far that its distance from the mean has none of the digits of the mean
    table = getattr(sparse, f"{form}_array")(x)
    assert_moments(table, weight)
    alone, among = (kernels.moments(*arguments(part), weight)[0] for part in (table[:, 2:], table))
    assert_same(alone, among[:, 2:])  # a column whose center is good is not changed by others


@pytest.mark.parametrize("form", FORMATS)
def test_squares_that_overflow(form):
    """Either only about the first value, or about the mean too: then m2 is infinite, and the mean is right."""
    for values, m2 in (([1e153] + [1.0] * 10_000, 1e306), ([1e200, 1, 1, 2], np.inf), ([1e160, 2e160, 3e160], np.inf)):
        x = np.array(values)[:, None]
        parts, _ = kernels.moments(*arguments(getattr(sparse, f"{form}_array")(x)))
        np.testing.assert_allclose(parts[:3, 0], [len(x), x.mean(), m2 * (1 - 1 / len(x))], rtol=1e-12)


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_of_little_weight(form):
    """Their weight is not what is left of that of all rows, which would be rounding errors."""
    n, rng = 2000, np.random.default_rng(3)
    x = 1 + 1e-9 * np.arange(n)[:, None] * [0, 1, 1, 1, 1]
    x[:700, :2] = x[500:600, 2] = x[::2, 3][:800] = x[rng.integers(0, n, 300), 4] = 0
    x[700:720, 1] = np.nan
    fade = 0.5 ** (np.arange(n)[::-1] / 30)
    gaps = fade * (rng.random(n) < 0.5)
    for rows, weight in ((x, fade), (x, gaps), (x[::-1], fade[::-1].copy()), (x, rng.permutation(fade))):
        assert_moments(getattr(sparse, f"{form}_array")(rows), weight)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", [0.1, 1e-300, -7e18, np.log(1e-5)])
def test_a_constant_column_is_exact(form, value):
    x = getattr(sparse, f"{form}_array")(np.full((1234, 2), value))
    for weight in (None, np.full(1234, 0.3)):
        parts, _ = kernels.moments(*arguments(x), weight)
        assert_same(parts[1:], np.array([[value] * 2, [0.0] * 2, [0.0] * 2]), value=value)


@pytest.mark.parametrize("form", FORMATS)
def test_many_pieces_and_threads(form):
    """More values than one piece takes: cut by what is stored, so the same bits on any number of threads."""
    x = table(150_000, 5, 0.8, form)
    threads = bnorm.get_num_threads()
    try:
        found = []
        for n in (1, 2, 3):
            bnorm.set_num_threads(n)
            found.append(kernels.moments(*arguments(x))[0].tobytes())
    finally:
        bnorm.set_num_threads(threads)
    assert len(set(found)) == 1
    assert_moments(x)


def test_few_rows_with_most_of_the_values():
    """Pieces that are empty, as one row holds what several would."""
    x = sparse.csr_array(np.random.default_rng(0).normal(size=(3, 200_000)))
    assert_moments(x)
    tall = sparse.vstack([sparse.csr_array((10, 4)), table(100_000, 4, 1.0), sparse.csr_array((10, 4))]).tocsr()
    assert_moments(tall)


@pytest.mark.parametrize("form", FORMATS)
def test_order_of_indices_is_told(form):
    x = table(50, 7, 0.5, form)
    assert kernels.moments(*arguments(x))[1]
    begin, end = x.indptr[2:4]
    for part in (x.indices, x.data):
        part[begin:end] = part[begin:end][::-1].copy()
    assert not kernels.moments(*arguments(x))[1]
    x.indices[begin:end] = x.indices[begin]  # one index several times
    assert not kernels.moments(*arguments(x))[1]


@pytest.mark.parametrize("wrong", [-1, 50, 2**31 - 1])
@pytest.mark.parametrize("form", FORMATS)
def test_an_index_outside_is_an_error(form, wrong):
    x = table(50, 7, 0.5, form)
    x.indices[9] = wrong
    for weight in (None, np.zeros(50)):  # in a row that does not count too
        with pytest.raises(ValueError, match=r"indices within its shape, \(50, 7\)"):
            kernels.moments(*arguments(x), weight)
    if form == "csr":
        with pytest.raises(ValueError, match="indices below 7"):
            kernels.scaled(x.data, x.indices, np.ones(7))


@pytest.mark.parametrize("change", [(0, -1), (-1, 10**6), (3, 10**6)])
@pytest.mark.parametrize("form", FORMATS)
def test_wrong_beginnings_are_an_error(form, change):
    x = table(50, 7, 0.5, form)
    place, value = change
    x.indptr[place] = value
    with pytest.raises(ValueError, match="sparse table"):
        kernels.moments(*arguments(x))


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 40, 30_000])
def test_scaled(rows, dtype, index):
    x = table(rows, 9, 0.6, "csr", dtype, index)
    factor = np.random.default_rng(2).normal(size=9)
    x.data[::7] = np.nan
    want = reference_sparse.scaled(x.data, x.indices, factor)
    assert_same(kernels.scaled(x.data, x.indices, factor), want)
    data = x.data.copy()
    assert kernels.scaled(data, x.indices, factor, data) is data
    assert_same(data, want)
    x.data[-1] = -np.inf
    with pytest.raises(FloatingPointError, match="infinity"):
        kernels.scaled(x.data, x.indices, factor)


def test_nothing_stored():
    x = sparse.csr_array((6, 4))
    parts, ordered = kernels.moments(*arguments(x))
    assert_same(parts, np.array([[6.0] * 4, [0.0] * 4, [0.0] * 4, [0.0] * 4]))
    assert ordered
    assert kernels.scaled(x.data, x.indices, np.ones(4)).shape == (0,)
