"""The sums of some rows of a table, as they travel between machines: bytes that can be merged."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from bnorm.exact import ExactMoments
from bnorm.exact import moments as exact_moments
from bnorm.files import container
from bnorm.moments import Moments

CLASS = "Moments"
FAN_IN = 8  # this many neighbors are merged at once
UNKNOWN, NUMBER = -1, 0  # widths of columns without any value, and of numbers; that of vectors is their length

Item = TypeVar("Item")


class Sums(NamedTuple):
    """The moments of some rows.

    widths   of each column: UNKNOWN, NUMBER or the length of its vectors
    moments  of all features of the columns, in their order; a column of unknown width has none
    weight   the sum of the weights of the rows
    """

    columns: tuple[str, ...]
    widths: tuple[int, ...]
    moments: Moments
    rows: int
    weight: float

    @classmethod
    def merged(cls, who: str, items: "Sequence[Sums]") -> "Sums":
        """Return the sums of the rows of all items."""
        columns = items[0].columns
        if other := next((item.columns for item in items if item.columns != columns), None):
            raise ValueError(f"{who}: expected the sums of the columns {', '.join(columns)}, got {', '.join(other)}")
        widths = tuple(_width(who, *found) for found in zip(columns, *(item.widths for item in items), strict=True))
        moments = [item._widened(widths) for item in items]
        return cls(columns, widths, Moments.merge(moments), sum(s.rows for s in items), sum(s.weight for s in items))

    def complete(self) -> Self:
        """Return the sums with one feature for each column that has never had a value."""
        widths = tuple(max(width, NUMBER) for width in self.widths)
        return self._replace(widths=widths, moments=self._widened(widths))

    def features(self) -> list[str]:
        """The names of the features: a number is named as its column, the items of a vector x are x[0], x[1], ..."""
        named = zip(self.columns, self.widths, strict=True)
        return [name for column, width in named for name in names_of(column, width)]

    def _widened(self, widths: Sequence[int]) -> Moments:
        """Return the moments with empty features for columns whose widths other sums have shown."""
        if self.widths == widths:
            return self.moments
        places: list[int] = []
        start, none = 0, sum(map(_features, self.widths))
        for mine, width in zip(self.widths, widths, strict=True):
            n = _features(width)
            places += range(start, start + n) if mine == width else [none] * n
            start += _features(mine)
        return Moments._beside([self.moments, empty(self.moments.exact, 1)])._picked(places)

    def to_bytes(self) -> bytes:
        about = {"columns": self.columns, "widths": self.widths, "rows": self.rows, "weight": self.weight}
        return container.dumped({"class": CLASS, "exact": self.moments.exact, **about}, self.moments._stored())

    @classmethod
    def from_bytes(cls, who: str, data: bytes) -> Self:
        """The reverse of `to_bytes`; ValueError for other bytes."""
        config, entries = container.loaded(who, data)
        arrays = {name: entry.array() for name, entry in entries.items()}
        try:
            if config["class"] != CLASS:
                raise ValueError(config["class"])
            moments = ExactMoments._from_stored(arrays) if config["exact"] else _plain(arrays["parts"])
            columns, widths = tuple(map(str, config["columns"])), tuple(map(int, config["widths"]))
            if len(columns) != len(widths) or sum(map(_features, widths)) != len(moments.count):
                raise ValueError(f"widths {widths}")
            return cls(columns, widths, moments, int(config["rows"]), float(config["weight"]))
        except Exception as error:  # values that someone has changed may lead to any error
            raise ValueError(f"{who}: expected the sums of some rows, got others: {error!r}") from None


def merged_in_order(merge: Callable[[list[Item]], Item], items: Iterable[Item]) -> Item | None:
    """Merge all items as a tree of neighbors, with few of them in memory at a time; None if there are none."""
    levels: list[list[Item]] = [[]]
    for item in items:
        level, carried = 0, item
        levels[0].append(carried)
        while len(levels[level]) == FAN_IN:
            carried = merge(levels[level])
            levels[level] = []
            level += 1
            if level == len(levels):
                levels.append([])
            levels[level].append(carried)
    left = [item for some in reversed(levels) for item in some]  # a higher level has earlier items
    return merge(left) if left else None


def names_of(column: str, width: int) -> list[str]:
    """The names of the features of a column."""
    return [column] if width == NUMBER else [f"{column}[{i}]" for i in range(width)]


def empty(exact: bool, features: int) -> Moments:
    """The moments of no rows."""
    return exact_moments(CLASS, np.empty((0, features)), 1, None, True) if exact else _plain(np.zeros((4, features)))


def _plain(parts: Any) -> Moments:
    sound = parts.ndim == 2 and len(parts) == 4 and parts.dtype == np.float64
    if not sound or not (parts[0] >= 0).all() or (parts[2] < 0).any():  # m2 is NaN if float64 cannot hold the sums
        raise ValueError(f"parts of shape {parts.shape} and type {parts.dtype}")
    return Moments._from_parts(parts)


def _features(width: int) -> int:
    return {UNKNOWN: 0, NUMBER: 1}.get(width, width)


def _width(who: str, column: str, *widths: int) -> int:
    known = sorted(set(widths) - {UNKNOWN})
    if len(known) > 1:
        words = ["numbers" if width == NUMBER else f"vectors of length {width}" for width in known]
        raise ValueError(f"{who}: column {column!r}: expected the same in all rows, got {' and '.join(words)}")
    return known[0] if known else UNKNOWN
