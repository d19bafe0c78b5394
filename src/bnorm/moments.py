"""Count, mean and m2 per channel, and their exact merging.

Moments are merged by the difference of their means, never through sums of squares, so a mean far from zero costs no
accuracy of the variance. The rounding error of the float64 mean is kept in a second number: with means a million
standard deviations away from zero it affects the twelfth digit of the variance.
"""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks, devices
from bnorm.kernels import BACKENDS, moved

_COUNT, _MEAN, _M2, _LOW = range(4)


class Moments:
    """The number of values, their mean, and m2 = sum (x - mean)^2 per channel.

    `a + b` and `Moments.merge([a, b, ...])` return the moments of all values together, in any order and partition. A
    channel without values has count 0, mean NaN and m2 0, until it is merged with one that has values.

    Exact moments (`moments(x, exact=True)`) have sums that are integers; they can be subtracted, and have a digest.

    count, mean and m2 are read-only float64 arrays of shape (C,), or (G, C) for those of G groups of values
    (`moments(x, groups=codes)`). Moments of CuPy arrays are CuPy arrays, which are not read-only, and are merged on the
    device.

    Parameters
    ----------
    count : array_like of shape (C,)
        The number of values, or the sum of their weights.
    mean : array_like of shape (C,)
    m2 : array_like of shape (C,)
        The sum of (weighted) squared differences from the mean.

    Examples
    --------
    >>> a = Moments(count=[2], mean=[1.0], m2=[2.0])  # of 0 and 2
    >>> b = Moments(count=[1], mean=[4.0], m2=[0.0])  # of 4
    >>> (a + b).mean, (a + b).var()
    (array([2.]), array([2.66666667]))
    """

    __slots__ = ("_parts",)

    exact: bool = False  # whether count and sums are integers, as in bnorm.exact

    _parts: ndarray  # (4, C) or (4, G, C): count, mean, m2, and the rounding error of the mean

    def __init__(self, count: ArrayLike, mean: ArrayLike, m2: ArrayLike) -> None:
        first = _vector("count", count)
        vectors = [first, *(_vector(name, value, type(first)) for name, value in (("mean", mean), ("m2", m2)))]
        for name, vector in zip(("mean", "m2"), vectors[1:], strict=True):
            if vector.shape != vectors[0].shape:
                raise ValueError(
                    f"Moments: {name}: expected shape {vectors[0].shape}, that of count, got {vector.shape}"
                )
        if not (np.isfinite(vectors[0]) & (vectors[0] >= 0)).all():
            raise ValueError(f"Moments: count: expected finite values >= 0, got {vectors[0]}")
        if (vectors[2] < 0).any():
            raise ValueError(f"Moments: m2: expected no negative values, got {vectors[2]}")
        self._parts = self.from_parts(np.stack([*vectors, np.zeros_like(vectors[0])]))._parts

    @classmethod
    def from_parts(cls, parts: ndarray) -> Self:
        """Moments of the (4, C) array of count, mean, m2 and low that kernels return, or (4, G, C); it becomes
        read-only.
        """
        self = cls.__new__(cls)
        self._parts = parts
        if type(parts) is not ndarray:  # without a test of the values, which would synchronize
            _mark_empty(parts)
        elif parts.flags.writeable:  # otherwise the kernels' merge has done this
            if not parts[_COUNT].all():
                _mark_empty(parts)
            parts.flags.writeable = False
        return self

    @classmethod
    def merge(cls, items: Iterable["Moments"]) -> Self:
        """The moments of all values together.

        Parameters
        ----------
        items : iterable of Moments
            At least one, all with the same number of channels, and of groups, on the same device.

        Returns
        -------
        Moments

        Raises
        ------
        TypeError, ValueError
            If there are no items, or they cannot be merged.
        """
        items = list(items)
        for item in items:
            if not isinstance(item, Moments):
                raise TypeError(f"Moments.merge: items: expected Moments, got {type(item).__name__}")
        if len({item.exact for item in items}) > 1:
            raise TypeError(
                "Moments.merge: items: expected all of them exact, or none, got some of each; m.rounded() makes plain "
                "ones of exact ones"
            )
        shapes = sorted({item._shape for item in items})
        if len(shapes) != 1:
            got = [shape[0] if len(shape) == 1 else shape for shape in shapes]
            raise ValueError(f"Moments.merge: items: expected one number of channels, got {got or 'no items'}")
        if len({type(item._parts) for item in items}) != 1:
            raise TypeError(
                "Moments.merge: items: expected all of them on the CPU, or all on the GPU, got some of each; "
                "moments.to('cpu') and moments.to('cuda') move them"
            )
        return type(items[0])._merged(items)  # type: ignore[return-value]

    @classmethod
    def beside(cls, items: Iterable["Moments"]) -> "Moments":
        """The channels of all items, one after the other."""
        items = list(items)
        return type(items[0])._beside(items)

    def picked(self, channels: list[int]) -> "Moments":
        """The moments of these channels, in this order."""
        return self.from_parts(self._parts[:, channels].copy(order="C"))

    @classmethod
    def _merged(cls, items: list["Moments"]) -> "Moments":
        first = items[0]._parts
        if first.ndim == 2:
            return cls.from_parts(BACKENDS[type(first)].merge([item._parts for item in items]))
        flat = [item._parts.reshape(4, -1) for item in items]
        return cls.from_parts(BACKENDS[type(first)].merge(flat).reshape(first.shape))

    @classmethod
    def _beside(cls, items: list["Moments"]) -> "Moments":
        return cls.from_parts(np.concatenate([item._parts for item in items], axis=1))

    @property
    def _shape(self) -> tuple[int, ...]:
        """(C,), or (G, C)."""
        shape: tuple[int, ...] = self._parts.shape[1:]
        return shape

    @property
    def parts(self) -> ndarray:
        """(4, C) or (4, G, C): count, mean, m2, low. mean + low is the mean with more digits than float64 has."""
        return self._parts

    @property
    def count(self) -> ndarray:
        """The number of values per channel, or the sum of their weights."""
        return self._row(_COUNT)

    @property
    def mean(self) -> ndarray:
        """The mean per channel; NaN without values."""
        return self._row(_MEAN)

    @property
    def m2(self) -> ndarray:
        """The sum of (weighted) squared differences from the mean, per channel."""
        return self._row(_M2)

    def var(self, ddof: float = 0) -> ndarray:
        """The variance per channel, m2 / (count - ddof); NaN where count - ddof is not above 0."""
        left = self.count - ddof
        var: ndarray = np.where(left > 0, self.m2, np.nan) / np.where(left > 0, left, 1)
        return var

    def std(self, ddof: float = 0) -> ndarray:
        """The square root of `var`."""
        std: ndarray = np.sqrt(self.var(ddof))
        return std

    def to(self, device: str) -> Self:
        """The same moments on a device, "cpu" or "cuda"; the object itself if it is there already."""
        kind = devices.arrays_on("Moments", device)
        return self if type(self._parts) is kind else self.from_parts(moved(self._parts, kind))

    def __add__(self, other: object) -> "Moments":
        if not isinstance(other, Moments):
            return NotImplemented
        if self.exact or other.exact:
            return Moments.merge([self, other])
        mine, others = self._parts, other._parts
        if type(mine) is type(others) and mine.shape == others.shape and mine.ndim == 2:
            return Moments.from_parts(BACKENDS[type(mine)].merge([mine, others]))
        return Moments.merge([self, other])  # of groups, or an error

    def __radd__(self, other: object) -> "Moments":
        return self if isinstance(other, int) and other == 0 else NotImplemented  # where sum() starts

    def __sub__(self, other: object) -> "Moments":
        if not isinstance(other, Moments):
            return NotImplemented
        raise TypeError(
            "Moments: expected exact moments to subtract from, got plain ones, which are rounded: what is left would "
            "not be the moments of the other values; moments(x, exact=True) returns exact ones"
        )

    def __eq__(self, other: object) -> bool:
        """Whether all numbers are equal, rounding errors of the means included. Like arrays, Moments have no hash."""
        if not isinstance(other, Moments):
            return NotImplemented
        if other.exact:
            return False
        mine, others = (moved(item._parts, ndarray) for item in (self, other))
        return np.array_equal(mine, others, equal_nan=True)

    def __repr__(self) -> str:
        count, mean, m2 = (
            np.array2string(row, separator=", ", threshold=6, edgeitems=2)
            for row in moved(self._parts, ndarray)[: _M2 + 1]
        )
        return f"Moments(count={count}, mean={mean}, m2={m2})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._parts)

    def _row(self, which: int) -> ndarray:
        row: ndarray = self._parts[which]
        return row


def _mark_empty(parts: ndarray) -> None:
    """Set mean NaN and m2 0 in channels without values."""
    nothing = parts[_COUNT] == 0
    np.copyto(parts[_MEAN], np.nan, where=nothing)
    np.copyto(parts[_M2:], 0.0, where=nothing)


def _restored(cls: type[Moments], parts: ndarray) -> Moments:
    return cls.from_parts(devices.owned(parts.copy()))  # what is restored may be a memory map


def _vector(name: str, value: ArrayLike, kind: type | None = None) -> ndarray:
    a = checks.real("Moments", name, value, kind, "count")
    if a.ndim != 1:
        raise ValueError(f"Moments: {name}: expected one value per channel, shape (C,), got shape {a.shape}")
    return a.astype(np.float64)
