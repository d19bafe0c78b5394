"""Copies from one memory order into another: the values of NumPy's, whatever the strides, and nothing beside them."""

from itertools import product
from math import prod

import ml_dtypes
import numpy as np
import pytest

from bnorm.kernels.cpu.entries import contiguous, copy_into
from drawing import together

DTYPES = ["uint8", "float16", "float32", "float64"]  # one of each size
SHAPES = [(33, 47), (64, 16), (3, 200), (200, 3), (5, 17, 31), (2, 3, 16, 18), (130,), (), (0, 4), (7, 0, 2)]


@pytest.fixture(params=[1, 3], ids="threads={}".format)
def threads(request, set_threads):
    set_threads(request.param)


def numbered(shape, dtype):
    return np.random.default_rng(0).integers(0, 200, shape).astype(dtype)


def views(a):
    """Arrays of any strides: turned, reversed, with gaps, cut, repeated."""
    yield a
    yield a.T
    if a.ndim:
        yield a[::-1]
        yield a[..., ::-2]
        yield a[1:, ...].T
        yield np.moveaxis(a, 0, -1)
        yield np.moveaxis(a, -1, 0)[..., None]
    yield np.broadcast_to(a[None], (3, *a.shape))
    yield np.broadcast_to(a[..., None], (*a.shape, 3))


def within(memory, shape, turned, slices):
    """An array of that shape somewhere in a flat memory, with gaps."""
    lengths = [2 * n + 3 for n in shape]
    whole = memory[: prod(lengths)].reshape(lengths[::-1] if turned else lengths)
    return (whole.T if turned else whole)[(*map(slices, shape), ...)]


def beside(n):
    return slice(1, n + 1)


def backwards(n):
    return slice(2 * n, 0, -2)


@together(dtype=DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_strides(shape, dtype, threads):
    for a in views(numbered(shape, dtype)):
        copy = contiguous(a)
        assert copy.flags.c_contiguous and copy.dtype == a.dtype and not np.shares_memory(copy, a)
        np.testing.assert_array_equal(copy, a)
        memory = numbered(prod(2 * n + 3 for n in a.shape), dtype)
        for turned, slices in product((False, True), (beside, backwards)):
            got, want = memory.copy(), memory.copy()
            copy_into(within(got, a.shape, turned, slices), a)
            within(want, a.shape, turned, slices)[...] = a
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(1000, 700), (3, 257, 301), (40, 3, 50, 60)], ids=str)
def test_large_arrays_are_shared_by_threads(shape, threads):
    a = numbered(shape, "float32")
    for turned in (a.T, np.moveaxis(a, 1, -1), np.moveaxis(a, -1, 1), a[::-1, ::2]):
        np.testing.assert_array_equal(contiguous(turned), turned)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, "int64", "bool", "complex64", ">f4", "complex128", "U3", object, "M8[s]"], ids=str
)
def test_other_types(dtype):
    """The last ones are left to NumPy."""
    a = numbered((5, 6), "uint8").astype(dtype).T
    copy = contiguous(a)
    assert copy.flags.c_contiguous and copy.dtype == a.dtype.newbyteorder("=")
    np.testing.assert_array_equal(copy, a)
    to = np.zeros((6, 5), dtype)
    copy_into(to, a)
    np.testing.assert_array_equal(to, a)


def test_a_target_of_another_kind():
    a = np.arange(6.0).reshape(2, 3)
    hours = np.zeros((2, 3), "M8[h]")
    copy_into(hours, (3600 * a).astype("M8[s]"))
    np.testing.assert_array_equal(hours, a.astype("M8[h]"))
    to = np.zeros((2, 3), np.float32)
    copy_into(to, a)
    np.testing.assert_array_equal(to, a)
    with pytest.raises(ValueError, match="could not broadcast"):
        copy_into(np.zeros((3, 2)), a)
    to.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy_into(to, a.astype(np.float32))
