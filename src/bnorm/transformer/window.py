"""The last rows of a stream, and their moments: those of a fresh pass over these rows, however long the stream is.

The rows are kept, oldest first, in chunks of about 8192 values. Nothing is ever subtracted: the moments of complete
chunks are merged in a tree. Only the moments of the oldest chunk, if it has lost rows, and of the newest rows, which do
not fill a chunk yet, are computed anew. So a batch costs in proportion to its rows, and rounding errors do not grow
with the stream. A row that comes late is put into the chunk of its time.

A window never changes: `moved` returns the next one, which shares the chunks. So an error or an interrupt changes
nothing, and a copy takes no memory.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.checks import FLOATS
from bnorm.kernels import cpu
from bnorm.transformer import ropes
from bnorm.transformer.ropes import Node

CHUNK = 8192  # values
FEW, MANY = 32, 8192  # the least and the most rows that a chunk usually has
BLOCK = 4  # memory for new rows is as long as this many chunks, which then share it
LARGE = 3  # a chunk is cut when late rows have made it this many times as long as usual
BEFORE_ALL = -(2**63)
KEPT = FLOATS.union(map(np.dtype, cpu.INTEGERS))  # types of rows; others become float64


class Rows:
    """Some rows, oldest first, with their times if this is a window of time, and their weights if they have any."""

    __slots__ = ("ns", "weight", "x")

    def __init__(self, x: ndarray, ns: ndarray | None = None, weight: ndarray | None = None) -> None:
        self.x, self.ns, self.weight = x, ns, weight

    def __len__(self) -> int:
        return len(self.x)

    def of(self, rows: Any) -> "Rows":
        """Return some of the rows; for a slice, as views."""
        ns, weight = self.ns, self.weight
        return Rows(self.x[rows], None if ns is None else ns[rows], None if weight is None else weight[rows])

    def time(self, row: int) -> int:
        """The time of a row."""
        return 0 if self.ns is None else int(self.ns[row])

    def before(self, time: int) -> int:
        """Return the number of rows that are older than `time`."""
        return 0 if self.ns is None or not len(self.x) or self.ns[0] >= time else int(np.searchsorted(self.ns, time))

    def copy(self) -> "Rows":
        """Return the same rows in memory of their own."""
        return joined([self])

    def parts(self) -> ndarray:
        """Return the moments of the rows."""
        n, features = self.x.shape  # rows in memory of their own are contiguous, as the kernel needs
        return cpu.moments(self.x.reshape(n, features, 1), None if self.weight is None else self.weight[:, None], True)

    def in_order(self) -> "Rows":
        """Return the same rows, the oldest first."""
        if self.ns is None or bool((self.ns[1:] >= self.ns[:-1]).all()):
            return self
        return self.of(np.argsort(self.ns, kind="stable"))


def joined(pieces: Sequence[Rows], capacity: int = 0) -> Rows:
    """Return all rows one after the other in new memory, which holds `capacity` rows if that is more."""
    n = sum(map(len, pieces))
    dtype = np.result_type(*(piece.x.dtype for piece in pieces))
    x = np.empty((max(n, capacity), pieces[0].x.shape[1]), dtype if dtype in KEPT else np.float64)
    ns = None if pieces[0].ns is None else np.empty(len(x), np.int64)
    weight = np.empty(len(x)) if any(piece.weight is not None for piece in pieces) else None
    made, start = Rows(x, ns, weight), 0
    for piece in pieces:
        written(made, start, piece)
        start += len(piece)
    return made


def written(to: Rows, start: int, rows: Rows) -> None:
    """Write rows into `to`, from row `start` on."""
    here = slice(start, start + len(rows))
    to.x[here] = rows.x
    if to.ns is not None:
        to.ns[here] = rows.ns
    if to.weight is not None:
        to.weight[here] = 1.0 if rows.weight is None else rows.weight


class Newest:
    """The newest rows of a window, in memory that can hold more. The windows of a stream share it. If two windows
    continue the same one, only the first to append can use it; the other takes new memory.
    """

    __slots__ = ("filled", "memory")

    def __init__(self, memory: Rows, filled: int) -> None:
        self.memory, self.filled = memory, filled

    def appended(self, n: int, rows: Rows) -> bool:
        """Append rows after the first n, if this is possible. Return whether it was: if not, they need new memory."""
        memory, end = self.memory, n + len(rows)
        fits = end <= len(memory) and self.filled == n
        if not fits or rows.x.dtype != memory.x.dtype or (memory.weight is None and rows.weight is not None):
            return False
        written(memory, n, rows)
        self.filled = end
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return Newest, (self.memory.of(slice(0, self.filled)).copy(), self.filled)


class Window(NamedTuple):
    """The last `size` rows, or those that are at most `span` nanoseconds older than the newest."""

    size: int | None
    span: int | None
    oldest: Rows | None = None  # what is left of a chunk some of whose rows have left the window
    chunks: Node | None = None  # all rows of these are in the window
    newest: Newest | None = None
    gone: int = 0  # where the newest rows begin in the memory of `newest`
    n: int = 0  # where they end
    held: int = 0  # the number of rows, in a window of `size` rows
    latest: int = BEFORE_ALL  # the newest time
    parts: Any = None  # the moments of all rows in the window

    def moved(self, rows: Rows) -> "Window":
        """Return the window after some more rows."""
        after = _Move(self, rows.in_order())
        after.expire()
        after.put_late()
        after.append()
        return after.window()

    def rows(self) -> Iterator[Rows]:
        """The rows in the window."""
        if self.oldest is not None:
            yield self.oldest
        yield from ropes.items(self.chunks)
        if self.newest is not None:
            yield self.newest.memory.of(slice(self.gone, self.n))

    def picked(self, order: Sequence[int]) -> "Window":
        """Return the window with its columns in this order."""
        after = Window(self.size, self.span)
        for rows in self.rows():
            after = after.moved(Rows(rows.x[:, order], rows.ns, rows.weight))
        return after

    def __deepcopy__(self, memo: Any) -> "Window":
        return self


class _Move:
    """The steps from one window to the next."""

    def __init__(self, window: Window, rows: Rows) -> None:
        self.before, self.rows = window, rows
        self.oldest, self.chunks = window.oldest, window.chunks
        self.newest, self.gone, self.n = window.newest, window.gone, window.n
        self.latest = window.latest if rows.ns is None else max(window.latest, rows.time(-1))
        self.usual = min(MANY, max(FEW, CHUNK // max(1, rows.x.shape[1])))  # rows of a chunk
        self.held = 0

    def expire(self) -> None:
        """Drop rows that are no longer in the window."""
        size, span = self.before.size, self.before.span
        if span is not None:
            cut = max(BEFORE_ALL, self.latest - span)
            if gone := self.rows.before(cut):
                self.rows = self.rows.of(slice(gone, None))
            self._drop(lambda rows: rows.before(cut))
        elif size is not None:
            if len(self.rows) > size:
                self.rows = self.rows.of(slice(len(self.rows) - size, None))
            total = self.before.held + len(self.rows)
            self.held = min(total, size)
            left = total - self.held

            def too_many(rows: Rows) -> int:
                nonlocal left
                gone = min(left, len(rows))
                left -= gone
                return gone

            self._drop(too_many)

    def _drop(self, count: Callable[[Rows], int]) -> None:
        """Drop the oldest rows. count: returns how many of some rows, the oldest that are left, have to go."""
        if self.oldest is not None:
            gone = count(self.oldest)
            if gone < len(self.oldest):
                self.oldest = self.oldest.of(slice(gone, None)) if gone else self.oldest
                return
            self.oldest = None
        while self.chunks is not None:
            oldest: Rows = ropes.first(self.chunks)
            gone = count(oldest)
            if gone:
                self.chunks = ropes.rest(self.chunks)
            if gone < len(oldest):
                self.oldest = oldest.of(slice(gone, None)) if gone else None
                return
        if self.newest is not None and self.n > self.gone:
            self.gone += count(self.newest.memory.of(slice(self.gone, self.n)))

    def put_late(self) -> None:
        """Put rows that are older than the end of the last chunk into the chunks of their times."""
        if self.rows.ns is None or not len(self.rows):
            return
        if self.oldest is not None:
            bound = self.chunks.first if self.chunks is not None else self.oldest.time(-1)
            if late := self.rows.before(min(bound, self.oldest.time(-1))):
                self._put_in_oldest(self.oldest, late)
        if self.chunks is not None and (late := self.rows.before(ropes.last(self.chunks).time(-1))):
            self._put_in_chunks(late)

    def _put_in_oldest(self, oldest: Rows, late: int) -> None:
        rows = joined([oldest, self.rows.of(slice(0, late))]).in_order()
        self.rows, self.oldest = self.rows.of(slice(late, None)), rows
        if len(rows) >= LARGE * self.usual:
            self.oldest, self.chunks = None, ropes.joined(self._cut(rows), self.chunks)

    def _put_in_chunks(self, late: int) -> None:
        rows, start = self.rows, 0
        while start < late and self.chunks is not None:
            time = rows.time(start)
            bound = ropes.after(self.chunks, time)
            if bound is not None and time < self.chunks.first:  # older than all chunks: into the first
                bound = ropes.after(self.chunks, self.chunks.first)
            stop = late if bound is None else min(late, max(start + 1, rows.before(bound)))
            more = rows.of(slice(start, stop))
            self.chunks = ropes.replaced(self.chunks, time, partial(self._with, more))
            start = stop
        self.rows = rows.of(slice(late, None))

    def _with(self, more: Rows, chunk: Rows) -> Node | None:
        rows = joined([chunk, more]).in_order()
        return leaf_of(rows) if len(rows) < LARGE * self.usual else self._cut(rows)

    def _cut(self, rows: Rows) -> Node | None:
        """Cut rows into chunks of about the usual size."""
        n, chunks = len(rows), -(-len(rows) // self.usual)
        cuts = [slice(i * n // chunks, (i + 1) * n // chunks) for i in range(chunks)]
        return ropes.of([leaf_of(rows.of(cut).copy()) for cut in cuts])

    def append(self) -> None:
        """Add the remaining rows at the end, and make chunks of the newest rows if there are enough."""
        rows, had = self.rows, self.n - self.gone
        if not len(rows):
            return
        nothing = rows.of(slice(0, 0))
        here = nothing if self.newest is None or not had else self.newest.memory.of(slice(self.gone, self.n))
        if had and rows.time(0) < here.time(-1):
            rows, here, had, self.newest = joined([here, rows]).in_order(), nothing, 0, None
        chunks = max(0, (had + len(rows) - self.usual // 2) // self.usual)
        cuts = range(0, chunks * self.usual, self.usual)
        if had and self.newest is not None and self.newest.appended(self.n, rows):
            memory = self.newest.memory
            made = [leaf_of(memory.of(slice(self.gone + cut, self.gone + cut + self.usual))) for cut in cuts]
            self.gone, self.n = self.gone + chunks * self.usual, self.n + len(rows)
        else:
            made = [leaf_of(_section(here, rows, cut, cut + self.usual)) for cut in cuts]
            rest = _section(here, rows, chunks * self.usual, had + len(rows), BLOCK * self.usual)
            self.gone, self.n = 0, had + len(rows) - chunks * self.usual
            self.newest = Newest(rest, self.n)
        if made:
            self.chunks = ropes.joined(self.chunks, ropes.of(made))

    def window(self) -> Window:
        """The next window."""
        size, span, *_ = self.before
        newest = None if self.newest is None else self.newest.memory.of(slice(self.gone, self.n))
        state = self.oldest, self.chunks, self.newest, self.gone, self.n, self.held, self.latest
        return Window(size, span, *state, merged(self.oldest, self.chunks, newest))


def merged(oldest: Rows | None, chunks: Node | None, newest: Rows | None) -> ndarray:
    """Return the moments of all these rows. At least one of the arguments is not None."""
    found = [] if oldest is None else [oldest.parts()]
    found += [] if chunks is None else [chunks.parts]
    found += [newest.parts()] if newest else []
    return found[0] if len(found) == 1 else cpu.merge(found)


def leaf_of(rows: Rows) -> Node:
    return ropes.leaf(rows.parts(), rows.time(0), rows)


def _section(a: Rows, b: Rows, start: int, stop: int, capacity: int = 0) -> Rows:
    """Return the rows from `start` to `stop` of a followed by b, in new memory."""
    n = len(a)
    pieces = [a.of(slice(start, min(stop, n)))] if start < n else []
    pieces += [b.of(slice(max(0, start - n), stop - n))] if stop > n else []
    return joined(pieces, capacity)
