"""Exact moments: the count, the sum and the sum of squares of each channel, kept as integers and rounded once.

A sum of integers does not depend on the order of additions. So exact moments do not depend on the order of the values,
on how they were cut into batches, on threads or on machines. They can be subtracted too.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy import ndarray

from bnorm import checks
from bnorm.integers import BITS, Integers
from bnorm.kernels import BACKENDS, moved, view
from bnorm.kernels.cpu.exact.entries import impossible, rounded, variances
from bnorm.moments import Moments

HEAVIEST = 2**31  # an integer weight is below this
MOST = 2**63 - 1  # the largest number of values, which are counted in int64
STORED = 4096  # limbs of a file, and the index of the first, are below this: a damaged file must not fill the memory
_DIGEST = b"bnorm exact moments 1"


class ExactMoments(Moments):
    """Moments whose count and sums are integers, as `F.moments(x, exact=True)` returns them.

    count, mean, m2, var and std are the exact rational values, rounded to float64: count, mean, m2 and var correctly,
    std to within one last place. A result above the largest float64 is infinite.

    `a + b` and `Moments.merge` add exactly, in any order, and `a - b` removes values that were added: the result has
    the same bits as if they had never been there. Values that are not finite are counted, so they can be removed too.
    The result has no min and max, as sums do not tell them; it merges with moments that have none.
    """

    __slots__ = ("_counts", "_rounded", "_sums")

    _counts: ndarray  # (4, C): the number of values, and how many of them are NaN, infinity, minus infinity
    _sums: tuple[Integers, Integers]  # the sums of the finite values, and of their squares
    _rounded: ndarray | None  # `_parts`, once computed

    def __init__(self, counts: ndarray, values: Integers, squares: Integers) -> None:
        counts.flags.writeable = False
        self._counts, self._sums, self._rounded = counts, (values, squares), None
        self._shape, self._extremes = counts.shape[1:], None

    exact = True

    @property
    def _infinite(self) -> bool:
        """Whether any value is infinite."""
        return bool(self._counts[2:].any())

    @property
    def _width(self) -> int:
        channels: int = self._counts.shape[1]
        return channels

    @property
    def _parts(self) -> ndarray:  # type: ignore[override]
        if self._rounded is None:
            parts = rounded(self._counts, self._sums)
            parts.flags.writeable = False
            self._rounded = parts  # last, as other threads may read it from now on
        return self._rounded

    @property
    def count(self) -> ndarray:
        """The number of values per channel, or the sum of their weights."""
        count: ndarray = self._counts[0].astype(np.float64)
        return count.reshape(self._shape)

    def var(self, ddof: float = 0) -> ndarray:
        """Return the variance per channel, m2 / (count - ddof), rounded once; NaN where count - ddof is not above 0."""
        ddof = checks.ddof("Moments", ddof)
        return variances(self._counts, self._sums, ddof, False).reshape(self._shape)

    def std(self, ddof: float = 0) -> ndarray:
        """Return the square root of the variance, to within one last place."""
        ddof = checks.ddof("Moments", ddof)
        return variances(self._counts, self._sums, ddof, True).reshape(self._shape)

    def rounded(self) -> Moments:
        """Return plain moments of the same values: count, mean and m2 as float64."""
        return Moments._from_parts(self._parts.copy(), self._shape, self._extremes)

    def _shaped(self, shape: tuple[int, ...]) -> ExactMoments:
        """Return the same moments in another shape, with as many channels."""
        return ExactMoments(self._counts, *self._sums)._of(shape, self._extremes)

    def _picked(self, channels: Any) -> ExactMoments:
        """Return the moments of some channels, given by their flat indices, along one axis."""
        sums = (Integers.combined([Integers(first, limbs[:, channels].copy())], [1]) for first, limbs in self._sums)
        picked = ExactMoments(self._counts[:, channels].copy(), *sums)
        return picked._of(picked._shape, None if self._extremes is None else self._extremes[:, channels])

    @np.errstate(all="ignore")
    def scaled(self, scale: float) -> ExactMoments:
        """Return the exact moments of all values times `scale`, a positive number; the products are not rounded."""
        scale = checks.factor("Moments.scaled", "scale", scale)
        p, q = scale.as_integer_ratio()
        down = -(-(q.bit_length() - 1) // BITS)  # q is a power of two: scale = (p 2^k) 2^(-32 down) for some k >= 0
        p <<= BITS * down - (q.bit_length() - 1)
        values, squares = (integers.times(p**k, k * down) for k, integers in enumerate(self._sums, 1))
        extremes = None if self._extremes is None else self._extremes * scale
        return ExactMoments(self._counts, values, squares)._of(self._shape, extremes)

    def digest(self) -> str:
        """Return a short hexadecimal string of all integers: equal for equal moments, on every machine."""
        from hashlib import blake2b  # it takes a while to import

        counts = self._counts.astype("<i8")
        shapes = [f"{counts.shape[1]}", *(f"{first} {len(limbs)}" for first, limbs in self._sums)]
        limbs = [limbs.astype("<i8").tobytes() for _, limbs in self._sums]
        return blake2b(
            b"\n".join([_DIGEST, " ".join(shapes).encode(), counts.tobytes(), *limbs]), digest_size=16
        ).hexdigest()

    def to(self, device: str) -> Self:
        """Return the object itself for "cpu". Integers stay on the CPU; the result of `rounded()` can be moved."""
        if device != "cpu":
            raise ValueError(
                f"Moments: device: expected 'cpu' for exact moments, got {device!r}; m.rounded().to({device!r}) moves "
                "the rounded ones"
            )
        return self

    @classmethod
    def _merged(cls, items: list[Any]) -> ExactMoments:
        return cls._combined(items, [1] * len(items))

    @classmethod
    def _combined(cls, items: list[ExactMoments], factors: list[int]) -> ExactMoments:
        """Return the moments of the values of all items together; an item counts as often as its factor says."""
        most = sum(factor * int(item._counts[0].max(initial=0)) for item, factor in zip(items, factors, strict=True))
        if most > MOST:
            raise ValueError(f"Moments: expected fewer than 2^63 values, or weights in sum, got {most}")
        counts = np.zeros_like(items[0]._counts)
        for item, factor in zip(items, factors, strict=True):
            counts += factor * item._counts
        values, squares = (Integers.combined([item._sums[i] for item in items], factors) for i in range(2))
        return cls(counts, values, squares)

    @classmethod
    def _joined(cls, items: list[Any]) -> ExactMoments:
        sums = [Integers.beside([item._sums[which] for item in items]) for which in range(2)]
        return cls(np.concatenate([item._counts for item in items], axis=1), *sums)

    def __sub__(self, other: object) -> ExactMoments:
        if not isinstance(other, Moments):
            return NotImplemented
        if not isinstance(other, ExactMoments):
            raise TypeError("Moments: expected exact moments to subtract, got plain ones")
        if self._shape != other._shape:
            mine, others = (s[0] if len(s) == 1 else s for s in (self._shape, other._shape))
            raise ValueError(f"Moments: expected {mine} channels to subtract, got {others}")
        return self._without(other, "Moments: expected the moments of a part of these values to subtract", "channel")

    def _without(self, other: ExactMoments, expected: str, of: str) -> ExactMoments:
        """Return the moments of the other values. expected: who expects what, for the error; of: what sums are of."""
        left = self._combined([self, other], [1, -1])._of(self._shape, None)  # extremes cannot be subtracted
        c = impossible(left._counts, left._sums)
        if c >= 0:
            got = f"others: no values have the count and the sums that would be left in {of} {c}"
            raise ValueError(f"{expected}, got {got}")
        return left

    def __eq__(self, other: object) -> bool:
        """Whether all integers are equal. Plain moments are never equal to exact ones."""
        if not isinstance(other, Moments):
            return NotImplemented
        return (
            isinstance(other, ExactMoments)
            and self._alike(other)
            and np.array_equal(self._counts, other._counts)
            and all(a.equals(b) for a, b in zip(self._sums, other._sums, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, exact=True)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._stored(), self._shape, self._extremes)

    def _stored(self) -> dict[str, ndarray]:
        """Return small int64 arrays, from which `_from_stored` makes these moments again."""
        (a, values), (b, squares) = ((integers.first, integers.packed()) for integers in self._sums)
        if max(abs(a), abs(b), len(values), len(squares)) >= STORED:
            raise ValueError(
                f"Moments: expected integers of fewer than {STORED * BITS} bits to store, got some that `scaled` has "
                "made longer: rounded() has few digits"
            )
        return {"counts": self._counts, "first": np.array([a, b]), "values": values, "squares": squares}

    @classmethod
    def _from_stored(cls, arrays: dict[str, ndarray]) -> Self:
        """Return the moments of a result of `_stored`; ValueError if the arrays cannot be one."""
        counts, first, values, squares = (np.asarray(arrays[key]) for key in ("counts", "first", "values", "squares"))
        sound = counts.ndim == 2 and len(counts) == 4 and first.shape == (2,)
        for a in (counts, first, values, squares):
            sound = sound and a.dtype == np.int64 and a.ndim == (1 if a is first else 2) and len(a) < STORED
        sound = sound and bool(((first > -STORED) & (first < STORED)).all())
        if not (sound and values.shape[1:] == squares.shape[1:] == counts.shape[1:]):
            raise ValueError("expected exact moments, got other arrays")
        sums = (Integers.unpacked(int(at), limbs) for at, limbs in zip(first, (values, squares), strict=True))
        self = cls(counts.copy(), *sums)
        if impossible(self._counts, self._sums) >= 0:
            raise ValueError("expected exact moments, got integers that are those of no values")
        return self


def moments(who: str, x: Any, axis: Any, weight: Any, skipna: bool, weight_name: str = "weight") -> ExactMoments:
    """Return the exact moments of an array in memory. The arguments are those of `functional.moments`.

    An array on a GPU is summed there if it is float16, bfloat16 or float32, and otherwise copied.
    """
    x = array(who, x)
    block, layout = view.channels(x, checks.channel_axis(who, axis, x.shape))
    w = None
    if weight is not None:
        w = checks.placed(who, view.weights, whole_weights(who, weight_name, weight), layout).astype(np.int64)
    return of_block(block, w, skipna)


def of_block(block: Any, w: ndarray | None, skipna: bool) -> ExactMoments:
    """Return the exact moments of a block in the view of the kernels. w: None, or int64 (outer, inner)."""
    kernels = BACKENDS[type(block)]
    if w is None:
        return _moments_of(kernels.exact_sums(block), block.size // max(block.shape[1], 1), skipna)
    w = moved(w, ndarray)
    planes = [bit for bit in range(int(w.max(initial=0)).bit_length()) if ((w >> bit) & 1).any()]
    masks = [((w >> bit) & 1).astype(bool) for bit in planes] or [np.zeros(w.shape, bool)]
    items = [
        _moments_of(kernels.exact_sums(block, kernels.asarray(mask)), int(np.count_nonzero(mask)), skipna)
        for mask in masks
    ]
    return ExactMoments._combined(items, [1 << bit for bit in planes] or [1])


def _moments_of(sums: tuple[Any, ...], count: int, skipna: bool) -> ExactMoments:
    odd, a, values, b, squares = sums
    counts = np.zeros((4, values.shape[1]), np.int64)
    counts[0] = count
    if odd is not None:
        counts[1:] = odd
        if skipna:
            counts[0] -= odd[0]
            counts[1] = 0
    return ExactMoments(counts, Integers(a, values), Integers(b, squares))


def array(who: str, x: Any) -> ndarray:
    """Return x as an array of floats of at most 64 bits, integers or bools."""
    if type(x) is ndarray and x.dtype in checks.FLOATS:
        return x
    a = checks.real(who, "x", x)
    floats = BACKENDS[type(a)].FLOATS
    if a.dtype.kind not in "bui" and a.dtype.name not in floats:
        raise TypeError(f"{who}: x: expected bools, integers or {', '.join(floats)}, got dtype {a.dtype}")
    return a


def whole_weights(who: str, name: str, weight: Any) -> ndarray:
    """Return weights, which must be a mask or integers, in any type."""
    w: ndarray = moved(checks.real(who, name, weight), ndarray)
    if w.dtype.kind not in "bui":
        w = w.astype(np.float64)  # float16 cannot hold HEAVIEST, with which they are compared
    sound = w.dtype.kind == "b" or ((w >= 0) & (w < HEAVIEST)).all()
    if not sound or (w.dtype.kind not in "bui" and (w != np.floor(w)).any()):
        raise ValueError(
            f"{who}: {name}: expected a mask or integers from 0 to 2^31 - 1, as a sum with other weights is not exact, "
            f"got {w.dtype} values from {w.min()} to {w.max()}"
        )
    return w


def _restored(
    cls: type[ExactMoments], arrays: dict[str, ndarray], shape: tuple[int, ...], extremes: ndarray | None
) -> ExactMoments:
    return cls._from_stored(arrays)._of(shape, extremes)
