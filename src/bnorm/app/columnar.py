"""Parquet and Arrow files as batches of columns, however large their row groups and batches are."""

import mmap
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from bnorm.app.ahead import alone, together
from bnorm.app.errors import DataError
from bnorm.app.opening import ARROW_FILE, ARROW_STREAM, PARQUET, Input, spooled
from bnorm.app.sources import BATCH, MOST_ROWS, Source, joined, pyarrow, rows_per_batch
from bnorm.app.stripes import MOST_STATE, state, striped

BUFFER = 1 << 14  # bytes of a column to read at once; of a page, which is longer, this many bytes are copied once more
FEW_ROWS = 64  # rows of a batch of text whose length is not known yet
TEXT_ROWS = 1 << 12  # at most this many rows of text are decoded together


class ColumnarSource(Source):
    """A file whose row groups or batches have any size, and may be skipped."""

    _all = 0  # if not 0, batches have as many rows as if this many columns were read

    def _rows_of(self, names: Sequence[str]) -> int:
        return rows_per_batch(self._all or len(names))

    def _batches(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        rows, beside = self._rows_of(names), set(names) - set(numbers)
        if all(pyarrow().types.is_primitive(self.columns[name]) for name in beside):
            yield from even(self._groups(names, numbers, skip), skip, rows, None)
        else:  # where a batch of text ends depends on all rows before it
            yield from self._after(even(self._groups(names, numbers, 0), 0, rows, BATCH), skip)

    def _groups(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        """Record batches of any size, from row `skip` on."""
        raise NotImplementedError


class ParquetSource(ColumnarSource):
    """Row groups of any size are read page by page; those before `skip` are not read at all."""

    def __init__(self, given: Input) -> None:
        self._path: Any = given.path
        if not given.again:
            given.check("a Parquet file", PARQUET)
            with given.opened() as stream:  # its metadata is at its end
                self._path = spooled(stream)
            weakref.finalize(self, self._path.close)
        with self._open() as file:
            schema = file.schema_arrow
            super().__init__(given, schema.names, schema.types)
            meta = file.metadata
            self._rows = meta.num_rows
            self._largest = max((meta.row_group(i).total_byte_size for i in range(meta.num_row_groups)), default=0)

    def share(self, columns: int) -> "ParquetSource | None":
        if not isinstance(self._path, Path) or state(columns, self._largest) > MOST_STATE:
            return None
        shared = copy(self)
        shared._all = columns
        return shared

    def _open(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetFile(self._path, pre_buffer=False, buffer_size=BUFFER)

    def _groups(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        with self._open() as file:
            meta = file.metadata
            groups, start = list(range(file.num_row_groups)), 0
            while groups and start + (rows := meta.row_group(groups[0]).num_rows) <= skip:
                start += rows
                groups.pop(0)
            self._read = start
            if not groups:
                return
            most, rows = max(meta.row_group(i).total_byte_size for i in groups), self._rows_of(names)
            if state(len(names), most) > MOST_STATE:
                batches = striped(file, groups, names, rows)
                yield from self._after(self._counted(batches), skip, start)
            elif set(names) == set(numbers):
                shared = self._all > 0  # other threads read the other columns
                batches = file.iter_batches(rows, row_groups=groups, columns=list(names), use_threads=not shared)
                with closing(alone(batches) if shared else together([batches])) as found:
                    yield from self._after(self._counted(b.select(list(names)) for [b] in found), skip, start)
            else:
                yield from self._texts(file, groups, names, skip, start)

    def _texts(self, file: Any, groups: list[int], names: Sequence[str], skip: int, start: int) -> Iterator[Any]:
        """Yield batches with text of any length. If text is longer or shorter than expected, begin again with another
        number of rows, because a reader cannot change this number.
        """
        rows, grown = FEW_ROWS, False
        while True:
            # With threads, pyarrow keeps the memory of several batches, which may be long.
            batches = file.iter_batches(rows, row_groups=groups, columns=list(names), use_threads=False)
            wanted = rows
            for batch in self._after(
                self._counted(b.select(list(names)) for b in batches), max(skip, self._read), start
            ):
                yield batch
                fit = max(1, min(rows_per_batch(len(names)), TEXT_ROWS, BATCH * batch.num_rows // max(1, batch.nbytes)))
                if 4 * fit <= rows or (fit > rows and not grown):
                    wanted, grown = fit, True
                    break
            if wanted == rows:
                return
            rows = wanted
            while groups and start + (n := file.metadata.row_group(groups[0]).num_rows) <= self._read:
                start += n
                groups = groups[1:]
            if not groups:
                return

    def _counted(self, batches: Any) -> Iterator[Any]:
        for batch in batches:
            self.fraction = self._read / max(1, self._rows)
            yield batch


class ArrowSource(ColumnarSource):
    """Arrow's IPC formats: the file, which is Feather too, and the stream.

    They have no checksums, so every value is checked: a wrong offset would crash the process.
    """

    def __init__(self, given: Input) -> None:
        self._input = given
        if not given.again:
            given.check("an Arrow file", ARROW_FILE, ARROW_STREAM)
        self._reader: Any = None  # of a pipe, which can be opened once
        with self._open() as (reader, _):
            super().__init__(given, reader.schema.names, reader.schema.types)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any]]:
        """Open a reader, and the memory map of the file; None for a pipe."""
        from pyarrow import ipc

        pa = pyarrow()
        if not self._input.again:
            if self._reader is None:
                with self._input.opened() as stream:
                    if stream.peek(6) == ARROW_FILE:  # after its first bytes it is a stream too
                        stream.read(8)
                    self._reader = ipc.open_stream(pa.PythonFile(stream, "r"))
            yield self._reader, None
            return
        if not self._input.size:
            raise DataError(f"{self._input.name}: expected an Arrow file, got an empty one")
        with self._input.path.open("rb") as file:  # type: ignore[union-attr]
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        opened = ipc.open_file if pages[:6] == ARROW_FILE else ipc.open_stream
        with pa.BufferReader(pa.py_buffer(pages)) as self._mapped, opened(self._mapped) as reader:
            yield reader, pages

    def _groups(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        yield from self._after(self._slices(names), skip)

    def _slices(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield slices of the batches, and release the pages of the file that they used, or all would be in memory."""
        with self._open() as (reader, pages):
            count = getattr(reader, "num_record_batches", None)  # of a file
            for i, batch in enumerate(reader if count is None else map(reader.get_batch, range(count))):
                batch = batch.select(list(names))
                batch.validate()
                rows = max(1, min(MOST_ROWS, BATCH * batch.num_rows // max(BATCH, batch.nbytes)))
                for start in range(0, batch.num_rows, rows):
                    piece = batch.slice(start, rows)
                    piece.validate(full=True)
                    yield piece
                    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
                        pages.madvise(mmap.MADV_DONTNEED)
                    if count:
                        self.fraction = (i + start / batch.num_rows) / count
                    elif pages is not None:
                        self.fraction = self._mapped.tell() / len(pages)


def even(batches: Iterable[Any], row: int, rows: int, most: int | None) -> Iterator[Any]:
    """Yield the same rows in batches that end at multiples of `rows`, and at the end.

    row    the number of the first row
    most   about how many bytes a batch may have, if it has columns of text
    """
    waiting: list[Any] = []
    size = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            take = min(batch.num_rows - start, rows - row % rows)
            if most and (bytes_ := batch.slice(start, take).nbytes) > most:
                take = max(1, take * most // bytes_)
            piece = batch if take == batch.num_rows else batch.slice(start, take)
            start += take
            waiting.append(piece)
            size += piece.nbytes if most else 0
            row += take
            if row % rows == 0 or (most and size >= most):
                yield joined(waiting)
                waiting, size = [], 0
    if waiting:
        yield joined(waiting)
