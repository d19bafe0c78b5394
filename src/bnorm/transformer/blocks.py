"""Lazy collections as tables: each block is a table in memory, and results are merged in the order of the blocks."""

from collections.abc import Callable
from functools import partial
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels import halved, moved
from bnorm.moments import Moments
from bnorm.running import Step
from bnorm.transformer import tables
from bnorm.transformer.clock import Clock
from bnorm.transformer.tables import WHO, Dense
from bnorm.transformer.weights import refuse_no_weight


class Blocks:
    """A lazy collection of an engine, as a table of floats in blocks of rows. Making this object computes nothing.

    validate: converts a sample of X to floats, or raises the error.
    convert: converts a block to floats, on a worker; with integers=True it may keep integers.
    """

    def __init__(self, engine: Any, X: Any, validate: Callable[[Any], Any], convert: Callable[..., Any]) -> None:
        self.engine, self._validate, self._convert = engine, validate, convert
        self._collection = engine.Collection(WHO, X)
        like = validate(self._collection.sample)[:0]
        self._like, self.dtype = like, like.dtype
        self.kind = type(like)
        self.shape = (self._collection.rows, like.shape[1])
        self.rows = 0 if isnan(self.shape[0]) else int(self.shape[0])  # if the number is unknown, a reduction sets it
        self._collection.floats(partial(_declared, convert, self.dtype), like)

    def weights(self, sample_weight: Any, some: bool = True) -> Any:
        """Return the weights of rows, in blocks like those of the table. They are checked when they are computed."""
        return self._collection.weights(sample_weight)

    def parts(self, weight: Any) -> ndarray:
        found: ndarray = np.concatenate(self._reduced(weight, Dense.parts, tables.merged), axis=1)
        return found

    def exact(self, weight: Any) -> Moments:
        self._collection.floats(partial(self._convert, integers=True), self._like)  # as floats they would be rounded
        return Moments._beside(self._reduced(weight, Dense.exact, Moments.merge))

    def steps(self, weight: Any, clock: Clock | None, ddof: int) -> list[Step]:
        """Rows age in the order of the blocks."""
        if clock is None:
            return [Step(self.parts(weight), self.rows)]
        compute, join = partial(_faded, clock, ddof), partial(_joined, clock, ddof)
        columns: list[list[Step]] = self._reduced(weight, compute, join)
        if len(columns) > 1 and max(map(len, columns)) > 1:  # all features must be cut at the same rows
            columns = self._reduced(weight, compute, join, together=True)
        if len(columns) == 1:
            return columns[0]
        parts, _, seen, pairs, last, _ = zip(*(steps[0] for steps in columns), strict=True)
        whole: list[Any] = [np.concatenate(one) for one in (seen, pairs, last)]
        return [Step(np.concatenate(parts, axis=1), self.rows, *whole)]

    def mapped(self, stats: ndarray, in_place: bool) -> Any:
        """Return the result as a lazy collection with a copy of `stats`. Blocks are never written to."""
        return self._collection.mapped(partial(_mapped, self.dtype), moved(stats, ndarray).copy())

    def refuse_infinity(self) -> None:
        """Do nothing: every block was searched when it was computed."""

    def dense(self) -> ndarray:
        raise TypeError(f"{WHO}: backward: X: expected an array in memory, got a {self.engine.NAME} collection")

    def _reduced(
        self, weight: Any, compute: Callable[..., Any], join: Callable[..., Any], together: bool = False
    ) -> list[Any]:
        """Pass over the blocks once. Return a result for each chunk of features, or a single one with `together`."""
        found = self._collection.reduced(partial(Part.of, compute), partial(Part.merge, join), weight, together)
        if None in found:
            self._validate(self._collection.sample[:0])  # raises the error for a table without rows
        if weight is not None:
            refuse_no_weight(found[0].weight)
        self.rows = found[0].rows
        return [part.found for part in found]


class Part(NamedTuple):
    """The merged result of some blocks, in the order of the blocks."""

    found: Any
    rows: int
    weight: float  # of these rows

    @classmethod
    def of(cls, compute: Callable[..., Any], x: ndarray, weight: Any = None) -> "Part | None":
        """Return the part of one block; None if it has no rows."""
        if not len(x) and (weight is None or not len(weight)):
            return None
        table = Dense(x)
        with np.errstate(over="ignore"):  # of the sum of weights; as a decorator no cluster could send it
            w = None if weight is None else table.weights(weight, some=False)
            return cls(compute(table, w), len(x), float(len(x) if w is None else w.sum()))

    @staticmethod
    def merge(join: Callable[..., Any], parts: "list[Part | None]") -> "Part | None":
        """Merge the parts of several blocks. join: merges the `found` of these parts."""
        some = [part for part in parts if part is not None]
        if not some:
            return None
        return Part(join([part.found for part in some]), sum(p.rows for p in some), sum(p.weight for p in some))


def _declared(convert: Callable[[Any], Any], dtype: np.dtype[Any], block: Any) -> Any:
    """A block, whatever its dtype is, as floats of the declared dtype."""
    return convert(block).astype(dtype, copy=False)


def _mapped(dtype: np.dtype[Any], block: Any, statistics: ndarray) -> Any:
    return Dense(block).mapped(moved(statistics, type(block)), False) if block.size else block.astype(dtype)


def _faded(clock: Clock, ddof: int, x: Dense, weight: ndarray | None) -> list[Step]:
    steps = x.steps(weight, clock, ddof)
    for step in steps:
        tables.refuse_infinity_in(step.parts, x, weight)
    return steps


@np.errstate(under="ignore", invalid="ignore")
def _joined(clock: Clock, ddof: int, found: list[list[Step]]) -> list[Step]:
    """Merge steps into one if possible. The weights of a feature are relative to its youngest row with a value."""
    steps = [step for some in found for step in some]
    _, _, every_seen, every_pairs, every_last, _ = zip(*steps, strict=True)
    seen = np.array(every_seen, like=every_seen[0])
    rows = np.cumsum([step.rows for step in steps])
    ends = [clock.before(end - 1, rows[-1]) for end in rows]
    last = np.array([one + end for one, end in zip(every_last, ends, strict=True)], like=seen)
    last = np.where(seen > 0, last, -np.inf)
    youngest = last.max(axis=0)
    fade = np.where(seen > 0, halved((last - youngest) / clock.halflife), 0)
    parts = [one.parts.copy() for one in steps]
    for part, f in zip(parts, fade, strict=True):
        part[[0, 2]] *= f
    weight = np.array([part[0] for part in parts], like=seen)
    before = np.cumsum(weight, axis=0) - weight
    pairs = (np.array(every_pairs, like=seen) * fade * fade + 2 * weight * before).sum(axis=0)
    merged, seen = tables.merged(parts), seen.sum(axis=0)
    if ddof and bool(((pairs == 0) & (merged[2] == 0) & (seen > merged[0])).any()):
        return steps
    return [Step(merged, int(rows[-1]), seen, pairs, np.where(seen > 0, youngest, 0))]
