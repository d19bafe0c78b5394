"""The least and the greatest value of each channel: the reference's, for every type, shape and SIMD level."""

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from bnorm.kernels import cpu, reference
from bnorm.kernels.cpu.entries import processor_level
from bnorm.kernels.cpu.extremes import entries
from cases import cast

rng = np.random.default_rng(0)
SHAPES = [
    (3000, 3),
    (70, 4, 300),
    (40, 700),
    (1, 1, 5000),
    (20, 3, 2),
    (5, 2, 64),
    (2, 3, 4097),
    (600, 20),
    (9, 300, 3),
    (12, 5, 130),
    (3, 2, 9000),
    (0, 3),
    (4, 0),
    (1, 1),
]
INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
TYPES = ["float64", "float32", "float16", "bool", *INTEGERS]
LEVELS = cpu.LEVELS[: processor_level() + 1]
LEVELS = tuple(level for level in LEVELS if find_spec(f"bnorm.kernels.cpu.extremes.{level}"))


@pytest.fixture(params=LEVELS)
def level(request):
    yield entries.use(import_module(f"bnorm.kernels.cpu.extremes.{request.param}").task)
    entries.use(import_module(f"bnorm.kernels.cpu.extremes.{cpu.simd_level()}").task)


@pytest.mark.parametrize("dtype", TYPES)
def test_as_the_reference(dtype, level):
    for shape in SHAPES:
        x = cast(rng.standard_normal(shape) * 40, dtype)
        for bad in (None, np.nan, np.inf, -np.inf) if x.dtype.kind == "f" else (None,):
            if bad is not None:
                x[rng.random(shape) < 0.3] = bad
            weight = rng.integers(0, 2, (shape[0], int(np.prod(shape[2:])))).astype(float)
            weight[:1], weight[1:2] = 1, 0
            for skipna in (False, True):
                for w in (None, weight, weight + 0.5):
                    want, got = reference.extremes(x, w, skipna), cpu.extremes(x, w, skipna)
                    np.testing.assert_array_equal(got, want, err_msg=f"{shape} {bad} {skipna} {w is None}")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_ends_of_integers(dtype, level):
    """Where float64 has fewer digits than the integers, the extremes are rounded, but no other value is found."""
    ends = np.iinfo(dtype)
    for shape in ((300, 5), (2, 3, 700)):
        x = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        want = np.stack([x.min(axis=(0, *range(2, x.ndim))), x.max(axis=(0, *range(2, x.ndim)))]).astype(np.float64)
        np.testing.assert_array_equal(cpu.extremes(x), want)
        x[:, 0], x[:, 1] = ends.max, ends.min
        assert cpu.extremes(x)[:, :2].tolist() == [[float(ends.max), float(ends.min)]] * 2


def test_bfloat16():
    x = rng.standard_normal((30, 3, 5)).astype(pytest.importorskip("ml_dtypes").bfloat16)
    assert np.array_equal(cpu.extremes(x)[1], x.astype(float).max(axis=(0, 2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((4, 6))[:, ::2],), "contiguous"),
        ((np.ones(4),), "at least 2 axes"),
        ((np.ones((2, 2), complex),), "x: expected floats, bools or integers"),
        ((np.ones((2, 2), ">f8"),), "byte order"),
        ((np.ones((2, 3, 4)), np.ones(3)), "weight: expected 8 numbers"),
        ((np.ones((2, 3, 4)), np.ones(8, np.float32)), "weight: expected 8 numbers"),
    ],
)
def test_what_would_crash_is_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cpu.extremes(*arguments)
