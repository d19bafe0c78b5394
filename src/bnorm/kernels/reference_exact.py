"""Exact sums, and their mean and variance, in Python integers: the oracle of the tests of the compiled ones."""

from collections.abc import Iterator
from fractions import Fraction
from math import inf, isqrt, nan
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


def channels_of(counts: Array, sums: tuple[Limbs, Limbs]) -> Iterator[tuple[int, int, Fraction, Fraction]]:
    """Yield for each channel how many values it has, how many of them are finite, and the sums of these."""
    s, q = ([Fraction(2) ** (BITS * first) * n for n in numbers_of(0, limbs, 0)] for first, limbs in sums)
    for n, finite, *both in zip(counts[0].tolist(), (counts[0] - counts[1:].sum(0)).tolist(), s, q, strict=True):
        yield n, finite, *both


def rounded(counts: Array, sums: tuple[Limbs, Limbs]) -> Array:
    """Return parts, (4, C), of exact sums: count, mean, m2, and low, the rest of the rounded mean. counts: (4, C)."""
    parts = np.zeros((4, counts.shape[1]))
    for c, (n, finite, s, q) in enumerate(channels_of(counts, sums)):
        parts[0, c] = n
        if n == 0 or n != finite:
            parts[1:, c] = nan, 0.0 if n == 0 else nan, 0.0 if n == 0 else nan
            continue
        mean = nearest(s / n)
        low = 0.0 if abs(mean) == inf else nearest(s / n - Fraction(mean))
        parts[1:, c] = mean, nearest(q - s * s / n), low
    return parts


def variances(counts: Array, sums: tuple[Limbs, Limbs], ddof: float, root: bool) -> Array:
    """Return the variance (C,) of exact sums, or its root; NaN where count - ddof is not above 0."""
    found = np.full(counts.shape[1], nan)
    for c, (n, finite, s, q) in enumerate(channels_of(counts, sums)):
        if n > Fraction(ddof) and n == finite > 0:
            var = (q - s * s / n) / (n - Fraction(ddof))
            found[c] = root_of(var) if root else nearest(var)
    return found


def impossible(counts: Array, sums: tuple[Limbs, Limbs]) -> int:
    """Return the first channel whose integers no set of values can have, or -1 if there is none."""
    for c, (_, finite, s, q) in enumerate(channels_of(counts, sums)):
        if counts[:, c].min() < 0 or finite < 0 or q < 0 or (q > 0 and finite == 0) or finite * q < s * s:
            return c
    return -1


def nearest(v: Fraction) -> float:
    """Return the float nearest to v, infinite if v is above the largest one."""
    try:
        return float(v)
    except OverflowError:
        return inf if v > 0 else -inf


def root_of(v: Fraction) -> float:
    """Return the square root of v to within one last place, from that of an integer of 126 bits or more."""
    shift = 128 - v.numerator.bit_length() + v.denominator.bit_length()
    shift += shift % 2
    root = isqrt(int(v * Fraction(2) ** shift))
    return nearest(root * Fraction(2) ** (-shift // 2))
