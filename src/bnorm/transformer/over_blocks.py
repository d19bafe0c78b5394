"""Statistics of tables in blocks: those of each block by `tables`, merged in the order of the blocks."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.running import FADE, Statistics
from bnorm.transformer import tables
from bnorm.transformer.blocks import Blocks
from bnorm.transformer.tables import Faded


class Part(NamedTuple):
    """The result of some blocks, in their order."""

    found: Any
    rows: int
    weight: float  # of these rows

    @classmethod
    def of(cls, compute: Callable[..., Any], x: ndarray, weight: Any = None) -> "Part | None":
        """The part of one block; None without rows."""
        if not len(x) and (weight is None or not len(weight)):
            return None
        w = None if weight is None else tables.sample_weights(weight, x, some=False)
        return cls(compute(x, w), len(x), float(len(x) if w is None else w.sum()))

    @staticmethod
    def merge(join: Callable[..., Any], parts: "list[Part | None]") -> "Part | None":
        """The part of all blocks. join: merges the `found` of several parts."""
        some = [part for part in parts if part is not None]
        if not some:
            return None
        return Part(join([part.found for part in some]), sum(p.rows for p in some), sum(p.weight for p in some))


class Segment(NamedTuple):
    """Consecutive rows that fade with age, as `tables.faded` returns them."""

    faded: Faded
    rows: int


def whole(x: Blocks, weight: Any) -> ndarray:
    """As `tables.whole`; infinity is an error."""
    found: ndarray = np.concatenate(_reduced(x, weight, _whole, tables.merged), axis=1)
    return found


def move(statistics: Statistics, x: Blocks, weight: Any) -> None:
    """Update by all blocks as one batch. After an error nothing has changed. Rows age in the order of the blocks."""
    if statistics.mode != FADE:
        _take(statistics, (whole(x, weight), None, None, None), x.rows, 1)
        return
    segments = _segments(x, weight, float(statistics.halflife or 0), statistics.ddof)
    trial = statistics if len(segments) == 1 else statistics.copy()
    for i, (faded, rows) in enumerate(segments, 1):
        *values, last, _ = faded
        _take(trial, (*values, last + float(trial.rows + rows)), rows, int(i == len(segments)))
    if trial is not statistics:
        statistics.assign(trial)


def _take(statistics: Statistics, values: tuple[Any, ...], rows: int, batches: int) -> None:
    try:
        statistics.move(*values, rows=rows, typical=float(rows), batches=batches)
    except FloatingPointError:  # finite values whose variance overflows: every block has been tested for infinity
        statistics.move(*values, rows=rows, typical=float(rows), batches=batches, finite=False)


def _reduced(
    x: Blocks, weight: Any, compute: Callable[..., Any], join: Callable[..., Any], together: bool = False
) -> list[Any]:
    """One pass over the blocks: a result for each chunk of features, or one with `together`."""
    parts = x.reduced(partial(Part.of, compute), partial(Part.merge, join), weight, together)
    if None in parts:
        x.refuse_no_rows()
    if weight is not None:
        tables.refuse_no_weight(parts[0].weight)
    x.rows = parts[0].rows
    return [part.found for part in parts]


def _whole(x: ndarray, weight: ndarray | None) -> ndarray:
    parts = tables.whole(x, weight)
    tables.refuse_infinity_in(parts, x, weight)
    return parts


def _segments(x: Blocks, weight: Any, halflife: float, ddof: int) -> list[Segment]:
    """All rows as one segment, or as several in the rare case that one cannot represent them."""
    compute, join = partial(_of_block, halflife, ddof), partial(_joined, halflife, ddof)
    columns = _reduced(x, weight, compute, join)
    if len(columns) > 1 and max(map(len, columns)) > 1:  # all features must be cut at the same rows
        columns = _reduced(x, weight, compute, join, together=True)
    if len(columns) == 1:
        found: list[Segment] = columns[0]
        return found
    *arrays, _ = zip(*(segments[0].faded for segments in columns), strict=True)
    parts, seen, pairs, last = (np.concatenate(some, axis=-1) for some in arrays)
    return [Segment(Faded(parts, seen, pairs, last, 0), x.rows)]


def _of_block(halflife: float, ddof: int, x: ndarray, weight: ndarray | None) -> list[Segment]:
    faded = tables.faded(x, weight, halflife, ddof)
    tables.refuse_infinity_in(faded.parts, x, weight)
    if not faded.split:
        return [Segment(faded, len(x))]
    halves = slice(0, faded.split), slice(faded.split, len(x))
    return [s for h in halves for s in _of_block(halflife, ddof, x[h], None if weight is None else weight[h])]


@np.errstate(under="ignore", invalid="ignore")
def _joined(halflife: float, ddof: int, found: list[list[Segment]]) -> list[Segment]:
    """Segments merged into one if possible. The weights of a feature are those at its youngest row with a value."""
    segments = [segment for some in found for segment in some]
    faded = [segment.faded for segment in segments]
    rows = np.cumsum([segment.rows for segment in segments])
    seen = np.array([one.seen for one in faded], like=faded[0].seen)
    last = np.array([one.last - float(later) for one, later in zip(faded, rows[-1] - rows, strict=True)], like=seen)
    last = np.where(seen > 0, last, -np.inf)
    youngest = last.max(axis=0)
    fade = np.where(seen > 0, np.exp2((last - youngest) / halflife), 0)
    parts = [one.parts.copy() for one in faded]
    for part, f in zip(parts, fade, strict=True):
        part[[0, 2]] *= f
    weight = np.array([part[0] for part in parts], like=seen)
    before = np.cumsum(weight, axis=0) - weight
    pairs = (np.array([one.pairs for one in faded], like=seen) * fade * fade + 2 * weight * before).sum(axis=0)
    merged, seen = tables.merged(parts), seen.sum(axis=0)
    if ddof and bool(((pairs == 0) & (merged[2] == 0) & (seen > merged[0])).any()):
        return segments
    return [Segment(Faded(merged, seen, pairs, np.where(seen > 0, youngest, 0), 0), int(rows[-1]))]
