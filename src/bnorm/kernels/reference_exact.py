"""Exact sums in Python integers: the oracle of the tests of the compiled ones."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Limbs = tuple[int, Array]

UNIT = 1074  # every float64 is a multiple of 2^-1074
BITS = 32  # of a limb
MASK = 2**BITS - 1


def exact_sums(x: Array, mask: Array | None = None) -> tuple[Array | None, int, Array, int, Array]:
    """Return the counts (3, C) of NaN, infinity, minus infinity (or None), and the limbs of both sums over the rest."""
    channels = x.shape[1]
    a = np.moveaxis(x, 1, 0).reshape(channels, x.size // max(channels, 1))
    counts = np.ones(a.shape[1], bool) if mask is None else mask.reshape(-1)
    odd, sums, squares = np.zeros((3, channels), np.int64), [], []
    for c in range(channels):
        values = [integer_of(v) if isinstance(v, float) else v << UNIT for v in a[c, counts].tolist()]
        numbers = [v for v in values if not isinstance(v, str)]
        odd[:, c] = [values.count("nan"), values.count("inf"), values.count("-inf")]
        sums.append(sum(numbers))
        squares.append(sum(v * v for v in numbers))
    return (odd if odd.any() else None, *limbs_of(sums, UNIT), *limbs_of(squares, 2 * UNIT))


def integer_of(v: float) -> int | str:
    """Return a float in units of 2^-1074, or its name ("nan", "inf", "-inf") if it is not finite."""
    if not np.isfinite(v):
        return str(v)
    num, den = v.as_integer_ratio()
    return num << UNIT - den.bit_length() + 1


def limbs_of(numbers: list[int], unit: int) -> Limbs:
    """Return numbers in units of 2^-unit as limbs: as few as hold all of the numbers."""
    if not any(numbers):
        return 0, np.zeros((0, len(numbers)), np.int64)
    whole = -(-unit // BITS)
    numbers = [n << BITS * whole - unit for n in numbers]
    least = min((n & -n).bit_length() - 1 for n in numbers if n) // BITS
    numbers = [n >> BITS * least for n in numbers]
    size = max((n if n >= 0 else ~n).bit_length() for n in numbers) // BITS + 1
    rows = [[n >> BITS * i if i == size - 1 else n >> BITS * i & MASK for n in numbers] for i in range(size)]
    return least - whole, np.array(rows, np.int64).reshape(size, len(numbers))


def numbers_of(first: int, limbs: Array, unit: int) -> list[int]:
    """Return the numbers that limbs stand for, in units of 2^-unit."""
    return [sum(int(v) << BITS * (first + i) + unit for i, v in enumerate(column)) for column in limbs.T]


def combined(items: list[Limbs], factors: list[int]) -> Limbs:
    """Return the sum of the integers that limbs stand for, each times its factor, as limbs."""
    every = [numbers_of(first, limbs, 2 * UNIT + BITS) for first, limbs in items]
    return limbs_of(
        [sum(f * n for f, n in zip(factors, column, strict=True)) for column in zip(*every, strict=True)],
        2 * UNIT + BITS,
    )
