"""The exact sums against Python's integers: every type, every way that values lie, every SIMD level."""

import ctypes
import inspect
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

import bnorm
import compiled
import dropping
from bnorm.kernels import cpu, reference_exact
from bnorm.kernels.cpu import FLOATS, INTEGERS
from bnorm.kernels.cpu.exact import entries

SHAPES = {  # what the plan tells apart
    (1, 3): "one row",
    (33, 16): "one strip, and more rows than the first block",
    (40, 17): "columns that fill no strip",
    (300, 20): "several blocks",
    (503, 3): "widened, with a rest",
    (40, 270): "two groups, and a last strip that leaves lanes to the one before",
    (900, 1): "one channel",
    (60, 5, 3): "a few values inside",
    (4, 3, 49): "short runs, gathered",
    (2, 2, 700): "runs that are read where they are, with a rest",
    (600, 2, 18): "runs of many rows, read as columns",
    (5, 70, 7): "two groups, which share a channel",
}


def of_bits(rng, shape, dtype):
    """Any bits at all: every binade, subnormals, NaN and infinities."""
    size = np.dtype(dtype).itemsize
    return rng.integers(0, 256, (*shape, size), np.uint8).view(dtype)[..., 0]


def finite_bits(rng, shape, dtype):
    x = of_bits(rng, shape, dtype)
    x[~np.isfinite(x.astype(np.float64))] = 0
    return x


def cancelling(rng, shape, dtype):
    """The largest numbers, whose sum is nearly 0, between small ones."""
    largest = float(ml_dtypes.finfo(dtype).max)
    x = rng.standard_normal(shape)
    x.reshape(-1)[::3] = largest
    x.reshape(-1)[1::3] = -largest
    return x.astype(dtype)


def subnormal(rng, shape, dtype):
    return (rng.integers(-9, 9, shape) * float(ml_dtypes.finfo(dtype).smallest_subnormal)).astype(dtype)


def growing(rng, shape, dtype):
    """Every block of rows has other sizes than the one before, with zeros between."""
    x = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.3, 0.0, 1.0)
    return (x * 2.0 ** (np.arange(len(x)) // 40 * 3 - 9).reshape(-1, *[1] * (x.ndim - 1))).astype(dtype)


def far(rng, shape, dtype):
    return (rng.standard_normal(shape) + 3e4).astype(dtype)


def minus_zero(rng, shape, dtype):
    return np.full(shape, -0.0, dtype)


KINDS = (of_bits, finite_bits, cancelling, subnormal, growing, far, minus_zero)


def use(level):
    entries.use(import_module(f"bnorm.kernels.cpu.exact.{level}").task)


@pytest.fixture(autouse=True)
def back_to_the_usual_level():
    yield
    use(cpu.simd_level())


def check(x, mask=None):
    """With every build of the loops that this processor runs."""
    want = reference_exact.exact_sums(x, mask)
    for level in cpu.simd_levels():
        use(level)
        for a, b in zip(entries.exact_sums(x, mask), want, strict=True):
            assert (a is None) == (b is None), level
            np.testing.assert_array_equal(a, b, err_msg=level)
            assert not isinstance(a, np.ndarray) or a.dtype == np.int64


def masks(rng, shape):
    return rng.random((shape[0], int(np.prod(shape[2:])))) < 0.6


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPES.values())
def test_floats(shape):
    rng = np.random.default_rng(len(shape))
    with np.errstate(all="ignore"):
        for i, kind in enumerate(KINDS):
            for dtype in FLOATS if i < 2 else FLOATS[2:]:
                x = kind(rng, shape, getattr(ml_dtypes, dtype, dtype))
                check(x, masks(rng, shape) if kind is growing else None)


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 24), ("float64", 53)])
def test_values_at_the_edge_of_a_window(dtype, digits):
    """Sums as long as they can be, of values that have all their digits, and a small one in each column: here it just
    fits the window that the first block has set, there it just does not."""
    long = 2.0 - 2.0 ** (1 - digits)
    for rows in (600, 288, 160):
        x = np.full((rows, 32), long, dtype)
        x[rows - 20 :: 3] = long * np.ldexp(1.0, -np.arange(32))
        x[-1] = (1 + 2.0 ** (1 - digits)) * np.ldexp(1.0, -np.arange(32) - 5)
        for signs in (1, np.where(np.arange(rows) % 2, 1, -1)[:, None]):
            check((x * signs).astype(dtype))


def widest(dtype):
    """What needs every bit of a window: all lower parts of squares nearly as large as they can be, and of one sign, and
    one value that just fits, whose square ends in 1. windows.h has the bounds; here B + r is even."""
    x = np.full((32 + (1 << (8 if dtype == "float32" else 7)), 16), 1.5, dtype)
    x += (5 * 2.0**-23) if dtype == "float32" else (334 * 2.0**-52)  # 25/64 and 501/1024 of a place are left over
    # The window's e is -20 and -18.
    x[-1] = (1 + 2.0**-23) * 2.0**-20 if dtype == "float32" else (1 + 2.0**-26) * 2.0**-18
    return x


WINDOW = "bn_half_up(B + r) - (wide ? 27 : 30)"
PLANTED = {"none": None, "a bit more": ("windows.h", WINDOW, "bn_half_up(B + r) - (wide ? 28 : 31)")}


@compiled.needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_window_has_not_one_bit_to_spare(dtype, planted):
    """The loops of windows that are one bit wider are seen to round, of values that just fit those."""
    x = widest(dtype)
    check(x)
    library = compiled.library(
        '#include "tasks.h"\nvoid task(bn_exact_job *job, ptrdiff_t t) { bn_exact_task(job, t); }', PLANTED[planted]
    )
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.argtypes, capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    entries.use(capsule(ctypes.cast(library.task, ctypes.c_void_p), b"bnorm.exact", None))
    if planted != "none":
        x[-1] /= 2
    got, want = entries.exact_sums(x), reference_exact.exact_sums(x)
    equal = all(a is b or np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert equal == (planted == "none")


@pytest.mark.parametrize("shape", list(SHAPES)[::2], ids=list(SHAPES.values())[::2])
def test_integers(shape):
    rng = np.random.default_rng(1)
    for dtype in INTEGERS:
        check(rng.random(shape) < 0.5 if dtype == "bool" else of_bits(rng, shape, dtype), None)
        if dtype != "bool":
            check(np.full(shape, np.iinfo(dtype).min, dtype), masks(rng, shape))
            check(np.full(shape, np.iinfo(dtype).max, dtype))


def test_nothing():
    for shape in ((0, 3), (4, 0), (2, 3, 0)):
        check(np.zeros(shape))
        check(np.zeros(shape), np.zeros((shape[0], int(np.prod(shape[2:]))), bool))


def test_memory_is_that_of_the_channels_not_of_their_square():
    _, first, sums, _, squares = entries.exact_sums(np.ones((1, 300_000)))  # that would be 500 GB
    assert first == 0
    assert sums.shape == squares.shape == (1, 300_000)
    assert (sums == 1).all()


def test_threads_change_nothing():
    """Large enough to be shared out: pieces of rows, groups of columns, channels, segments of runs."""
    rng = np.random.default_rng(2)
    before = bnorm.get_num_threads()
    try:
        for shape in ((9000, 16), (500, 300), (3, 40, 700), (1, 1, 200_000)):
            x = rng.standard_normal(shape).astype(np.float32)
            got = []
            for n in (1, 2, 3):
                bnorm.set_num_threads(n)
                got.append(entries.exact_sums(x))
            for other in got[1:]:
                for a, b in zip(got[0], other, strict=True):
                    np.testing.assert_array_equal(a, b)
            if x.size < 150_000:
                check(x)
    finally:
        bnorm.set_num_threads(before)


def test_combined():
    rng = np.random.default_rng(3)
    items = [(int(at), rng.integers(0, 2**32, (n, 3))) for at, n in ((-3, 4), (5, 1), (0, 0), (-40, 2))]
    items = [reference_exact.combined([item], [1]) for item in items]
    for factors in ([1, 1, 1, 1], [1, -1, 5, 2**30], [-1, 0, 0, 0], [0, 0, 0, 0]):
        for got, want in zip(entries.combined(items, factors), reference_exact.combined(items, factors), strict=True):
            np.testing.assert_array_equal(got, want)
    first, limbs = entries.combined([items[0], items[0]], [1, -1])
    assert (first, len(limbs)) == (0, 0)


@pytest.mark.parametrize("factor", [2**31 - 1, 1 - 2**31])
def test_large_factors_carry_after_each_item(factor):
    """Two products of the largest limb and the largest factor are more than a limb in memory holds."""
    limbs = np.array([[2**32 - 1, 5], [2**32 - 1, 0], [1, 7]])
    got = entries.combined([(0, limbs)] * 3, [factor] * 3)
    want = [3 * factor * number for number in reference_exact.numbers_of(0, limbs, 0)]
    assert reference_exact.numbers_of(*got, 0) == want


def test_signatures_are_those_of_the_reference():
    for name in ("exact_sums", "combined", "rounded", "variances", "impossible"):
        assert list(inspect.signature(getattr(entries, name)).parameters) == list(
            inspect.signature(getattr(reference_exact, name)).parameters
        )


def test_a_thread_that_drops_subnormals():
    """Another library may have set the processor to take them for 0: exact sums do not."""
    code = """
x = np.full((40, 2), 3e-45, np.float32)
want = entries.exact_sums(x)
drop()
got = entries.exact_sums(x)
dropped = float(np.float32(3e-45) * np.float32(2)) == 0
print(dropped, drops(), all(np.array_equal(a, b) for a, b in zip(got[1:], want[1:])))
"""
    assert dropping.output(code).split() == ["True", "True", "True"]
