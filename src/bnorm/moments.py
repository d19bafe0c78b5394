"""Count, mean and m2 per channel, and their exact merging.

Moments are merged by the difference of their means, never through sums of squares, so the variance is accurate even if
the mean is far from zero. The rounding error of the float64 mean is kept in a second number, because with means a
million standard deviations away from zero it affects the twelfth digit of the variance.
"""

from __future__ import annotations

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

    Exact moments (`moments(x, exact=True)`) keep their sums as integers; they can be subtracted, and have a digest.

    count, mean and m2 are read-only float64 arrays of shape (C,), with several axes if `moments` kept several, or
    (G, C) for G groups of values (`moments(x, groups=codes)`). Moments of CuPy arrays are CuPy arrays, which are not
    read-only, and are merged on the device. `moments(x, minmax=True)` records the extremes too, as min and max.

    Parameters
    ----------
    count : array_like
        The number of values, or the sum of their weights.
    mean : array_like of the shape of count
    m2 : array_like of the shape of count
        The sum of (weighted) squared differences from the mean.

    Examples
    --------
    >>> a = Moments(count=[2], mean=[1.0], m2=[2.0])  # of 0 and 2
    >>> b = Moments(count=[1], mean=[4.0], m2=[0.0])  # of 4
    >>> (a + b).mean, (a + b).var()
    (array([2.]), array([2.66666667]))
    """

    __slots__ = ("_extremes", "_parts", "_shape")

    exact: bool = False  # whether count and sums are kept as integers, as in bnorm.exact

    _parts: ndarray  # (4, C): count, mean, m2, and low; mean + low has more digits than float64 has
    _shape: tuple[int, ...]  # the shape of count, mean and m2, of C values in all
    _extremes: ndarray | None  # (2, C): the least and the greatest value, if they were recorded

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
        stacked = np.stack([*vectors, np.zeros_like(vectors[0])])
        self._parts = self._from_parts(stacked.reshape(4, vectors[0].size))._parts
        self._shape, self._extremes = vectors[0].shape, None

    @classmethod
    def _from_parts(cls, parts: ndarray, shape: tuple[int, ...] | None = None, extremes: ndarray | None = None) -> Self:
        """Return moments of the (4, C) or (4, G, C) array of count, mean, m2 and low that kernels return.

        The array becomes read-only. shape: of count, mean and m2, if it is not that of a row of parts. extremes: the
        least and the greatest values, (2, C).
        """
        self = cls.__new__(cls)
        self._shape, self._extremes = parts.shape[1:] if shape is None else shape, extremes
        self._parts = parts = parts if parts.ndim == 2 else parts.reshape(4, -1)
        if type(parts) is not ndarray:  # without a test of the values, which would synchronize
            _mark_empty(parts)
        elif parts.flags.writeable:  # otherwise the kernels' merge has done this
            if not parts[_COUNT].all():
                _mark_empty(parts)
            parts.flags.writeable = False
        return self

    @classmethod
    def merge(cls, items: Iterable[Moments]) -> Self:
        """Return the moments of all values together.

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
        if len({item._extremes is None for item in items}) > 1:
            raise ValueError(
                "Moments.merge: items: expected all of them with min and max, or none, got some of each; minmax=True "
                "records them, and a difference of exact moments has none"
            )
        if not items[0].exact and len({type(item._parts) for item in items}) != 1:  # exact ones are on the CPU
            raise TypeError(
                "Moments.merge: items: expected all of them on the CPU, or all on the GPU, got some of each; "
                "moments.to('cpu') and moments.to('cuda') move them"
            )
        return type(items[0])._merged(items)._of(items[0]._shape, _outermost(items))  # type: ignore[return-value]

    @classmethod
    def _beside(cls, items: Iterable[Moments]) -> Moments:
        """Return moments of the channels of all items, one after the other, along one axis."""
        items = list(items)
        if len(items) == 1:
            return items[0]._shaped((items[0]._width,))
        found = [item._extremes for item in items if item._extremes is not None]
        extremes = np.concatenate(found, axis=1) if found else None
        return type(items[0])._joined(items)._of((sum(item._width for item in items),), extremes)

    @classmethod
    def _merged(cls, items: list[Moments]) -> Moments:
        return cls._from_parts(BACKENDS[type(items[0]._parts)].merge([item._parts for item in items]))

    @classmethod
    def _joined(cls, items: list[Moments]) -> Moments:
        return cls._from_parts(np.concatenate([item._parts for item in items], axis=1))

    def _of(self, shape: tuple[int, ...], extremes: ndarray | None) -> Self:
        """Set the shape and the extremes of these moments, which must be new and not yet in use, and return them."""
        self._shape, self._extremes = shape, extremes
        return self

    def _shaped(self, shape: tuple[int, ...]) -> Moments:
        """Return the same moments in another shape, with as many channels."""
        return self._from_parts(self._parts, shape, self._extremes)

    def _picked(self, channels: Any) -> Moments:
        """Return the moments of some channels, given by their flat indices, along one axis."""
        extremes = None if self._extremes is None else self._extremes[:, channels]
        return self._from_parts(self._parts[:, channels].copy(), None, extremes)  # in C order

    @np.errstate(all="ignore")
    def scaled(self, scale: float) -> Moments:
        """Return the moments of all values times `scale`, a positive number. Each statistic is rounded once more."""
        scale = checks.factor("Moments.scaled", "scale", scale)
        parts = self._parts * np.array([[1.0], [scale], [scale * scale], [scale]], like=self._parts)
        return self._from_parts(parts, self._shape, None if self._extremes is None else self._extremes * scale)

    @np.errstate(all="ignore")
    def _weighing(self, weight: ndarray) -> Moments:
        """Return the moments of the same values, each with the weight of its channel, finite and not negative."""
        parts = np.where(weight > 0, self._parts, 0.0)
        parts[[_COUNT, _M2]] *= weight
        extremes = None if self._extremes is None else np.where(weight > 0, self._extremes, np.nan)
        return self._from_parts(parts, self._shape, extremes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of count, mean and m2: (C,), or the lengths of the axes that were kept."""
        return self._shape

    @property
    def _width(self) -> int:
        channels: int = self._parts.shape[1]
        return channels

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

    @np.errstate(all="ignore")
    def var(self, ddof: float = 0) -> ndarray:
        """Return the variance per channel, m2 / (count - ddof); NaN where count - ddof is not above 0.

        Parameters
        ----------
        ddof : float, default 0
            0 divides by the count; 1 gives the unbiased variance of a sample.
        """
        left = self.count - checks.ddof("Moments", ddof)
        var: ndarray = np.where(left > 0, self.m2, np.nan) / np.where(left > 0, left, 1)
        return var

    @property
    def min(self) -> ndarray:
        """The least value per channel; NaN if there are no values, or a NaN that was not skipped."""
        return self._extreme(0)

    @property
    def max(self) -> ndarray:
        """The greatest value per channel; NaN if there are no values, or a NaN that was not skipped."""
        return self._extreme(1)

    def _extreme(self, which: int) -> ndarray:
        if self._extremes is None:
            raise AttributeError(
                "Moments: min, max: expected moments with extremes, got some without; minmax=True records them, and a "
                "difference of exact moments has none"
            )
        row: ndarray = self._extremes[which].reshape(self._shape)
        if type(row) is ndarray:
            row.flags.writeable = False
        return row

    def std(self, ddof: float = 0) -> ndarray:
        """Return the square root of `var`.

        Parameters
        ----------
        ddof : float, default 0
            As in `var`.
        """
        std: ndarray = np.sqrt(self.var(ddof))
        return std

    def to(self, device: str) -> Self:
        """Return the same moments on a device, "cpu" or "cuda"; the object itself if it is there already."""
        kind = devices.arrays_on("Moments", device)
        if type(self._parts) is kind:
            return self
        extremes = None if self._extremes is None else moved(self._extremes, kind)
        return self._from_parts(moved(self._parts, kind), self._shape, extremes)

    def __add__(self, other: object) -> Self:
        if not isinstance(other, Moments):
            return NotImplemented
        if self.exact or other.exact:
            return self.merge([self, other])
        mine, others = self._parts, other._parts
        plain = self._extremes is None and other._extremes is None
        if plain and type(mine) is type(others) and self._shape == other._shape:
            return self._from_parts(BACKENDS[type(mine)].merge([mine, others]), self._shape)
        return self.merge([self, other])

    def __radd__(self, other: object) -> Self:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # where sum() starts

    def __sub__(self, other: object) -> Moments:
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
        return self._alike(other) and np.array_equal(mine, others, equal_nan=True)

    def _alike(self, other: Moments) -> bool:
        """Whether shapes and extremes are equal."""
        mine, others = (None if m._extremes is None else moved(m._extremes, ndarray) for m in (self, other))
        if self._shape != other._shape or mine is None or others is None:
            return self._shape == other._shape and mine is others
        return np.array_equal(mine, others, equal_nan=True)

    def __repr__(self) -> str:
        count, mean, m2 = (
            np.array2string(row.reshape(self._shape), separator=", ", threshold=6, edgeitems=2)
            for row in moved(self._parts, ndarray)[: _M2 + 1]
        )
        return f"Moments(count={count}, mean={mean}, m2={m2})"

    def save(self, path: Any) -> None:
        """Write a file that `bnorm.load` reads, with all digits, on any machine.

        Parameters
        ----------
        path : str or path-like
            A name that ends in .safetensors or .npz. An existing file is replaced in one step.
        """
        from bnorm.files import container  # it takes a while to import

        arrays = self._stored()
        if self._extremes is not None:
            arrays["extremes"] = moved(self._extremes, ndarray)
        config = {"class": "Moments", "exact": self.exact, "shape": list(self._shape)}
        container.write("Moments", path, config, arrays)

    def _stored(self) -> dict[str, ndarray]:
        """Return the arrays that represent these moments in a file, without extremes."""
        return {"parts": moved(self._parts, ndarray)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._parts, self._shape, self._extremes)

    def _row(self, which: int) -> ndarray:
        row: ndarray = self._parts[which]
        return row if len(self._shape) == 1 else row.reshape(self._shape)


class Tree:
    """Moments that are added one by one, and merged as a tree: neighbors in pairs, then pairs of pairs.

    Rounding errors grow with the logarithm of the number of items, and so does the memory. The result depends only on
    the order of the items.
    """

    def __init__(self) -> None:
        self._count, self._merged = 0, list[Moments]()  # one for each bit that is set in the count, of that many items

    def add(self, item: Moments) -> None:
        """Add the next item."""
        before, self._count = self._count, self._count + 1
        while before & 1:
            item = Moments.merge([self._merged.pop(), item])
            before >>= 1
        self._merged.append(item)

    def result(self) -> Moments:
        """Return the moments of all items so far. There must be at least one."""
        found = self._merged[-1]
        for item in reversed(self._merged[:-1]):
            found = Moments.merge([item, found])
        return found


def _outermost(items: list[Moments]) -> ndarray | None:
    """Return the extremes of several moments together. If any with values has NaN, the result has NaN."""
    every = [item._extremes for item in items if item._extremes is not None]
    if not every:
        return None
    least, greatest = every[0]
    for low, high in every[1:]:
        least, greatest = np.minimum(least, low), np.maximum(greatest, high)  # these functions keep NaN
    if type(least) is ndarray and not np.isnan(least).any():
        return np.stack([least, greatest])
    extremes: ndarray = np.stack(every)
    odd = np.isnan(extremes[:, 0])
    empty = np.stack([item.count.reshape(-1) == 0 for item in items])
    bad = (odd & ~empty).any(axis=0)
    nothing = odd.all(axis=0)
    least = np.where(odd, np.inf, extremes[:, 0]).min(axis=0)
    greatest = np.where(odd, -np.inf, extremes[:, 1]).max(axis=0)
    return np.where(bad | nothing, np.nan, np.stack([least, greatest]))


def _mark_empty(parts: ndarray) -> None:
    """Set mean NaN and m2 0 in channels without values."""
    nothing = parts[_COUNT] == 0
    np.copyto(parts[_MEAN], np.nan, where=nothing)
    np.copyto(parts[_M2:], 0.0, where=nothing)


def _restored(cls: type[Moments], parts: ndarray, shape: tuple[int, ...], extremes: ndarray | None) -> Moments:
    found = None if extremes is None else devices.owned(extremes.copy())
    return cls._from_parts(devices.owned(parts.copy()), shape, found)  # copies, as a pickle may give a memory map


def _vector(name: str, value: ArrayLike, kind: type | None = None) -> ndarray:
    a = checks.real("Moments", name, value, kind, "count")
    return a.astype(np.float64)
