"""One file of a table as batches of columns, in constant memory.

The settings for each format come from measurements: 1 MiB blocks of CSV, Parquet pages through a small buffer instead
of whole row groups, and no memory maps, as their pages count as memory.
"""

import io
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bnorm.app.errors import DataError
from bnorm.arrow import is_number

CSV_BLOCK = 1 << 20
PARQUET_BUFFER = 1 << 16
BATCH = 8 << 20  # bytes of numbers in a batch, which stay in the cache from the reader to the kernels
MOST_ROWS = 1 << 18
CSV = {".csv": ",", ".tsv": "\t", ".txt": ","}
PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
SUFFIXES = (*CSV, *(csv + packed for csv in CSV for packed in PACKED), *PARQUET, *ARROW)


def pyarrow() -> Any:
    """The package pyarrow, imported when a table is read or written."""
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError("reading and writing tables needs pyarrow: pip install 'bnorm[app]'") from None
    return pa


def source(path: Path | None, delimiter: str | None = None) -> "Source":
    """The source for a file, by its suffix; None means CSV from standard input."""
    pa = pyarrow()
    if path is None:
        return CsvSource(None, delimiter or ",")
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    suffix = Path(name).suffix
    kinds = dict.fromkeys(PARQUET, ParquetSource) | dict.fromkeys(ARROW, ArrowSource)
    try:
        if suffix in CSV:
            return CsvSource(path, delimiter or CSV[suffix])
        if path.suffix.lower() in kinds:
            return kinds[path.suffix.lower()](path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {said(error)}") from None
    raise DataError(f"{path}: expected a suffix of {', '.join(SUFFIXES)}, got {path.suffix or 'none'}")


def said(error: Exception) -> str:
    """A library's error message in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()).removesuffix(".")


class Source:
    """A table in a file.

    columns    Arrow types by name
    position   rows that have been read, skipped ones included
    fraction   the fraction of the file that has been read, about
    """

    def __init__(self, path: Path | None, names: Sequence[str], kinds: Sequence[Any]) -> None:
        self.path = path
        self.name = "standard input" if path is None else str(path)
        self.size = 0 if path is None else path.stat().st_size
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{self.name}: column {twice[0]!r}: expected each name once, got it twice")
        self.columns: Mapping[str, Any] = dict(zip(names, kinds, strict=True))
        self.position = 0
        self.fraction = 0.0

    def is_number(self, name: str) -> bool:
        """Whether a column can be read as numbers; bools only if they are asked for by name."""
        return is_number(self.columns[name], bools=True)

    def read(self, names: Sequence[str], numbers: Sequence[str], skip: int = 0) -> Generator[Any]:
        """Record batches of these columns, in this order, without the first `skip` rows."""
        pa = pyarrow()
        self.position = 0
        try:
            for batch in self._batches(names, numbers, skip):
                self.position += batch.num_rows
                if (keep := self.position - skip) > 0:
                    yield batch if keep >= batch.num_rows else batch.slice(batch.num_rows - keep)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._error(error, names, numbers) from None
        self.fraction = 1.0

    def _batches(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        raise NotImplementedError

    def _error(self, error: Exception, names: Sequence[str], numbers: Sequence[str]) -> DataError:
        return DataError(f"{self.name}: after row {self.position}: {said(error)}")


def rows_per_batch(columns: int) -> int:
    """The number of rows whose numbers fill a batch."""
    return max(64, min(MOST_ROWS, BATCH // (8 * max(1, columns))))


class ParquetSource(Source):
    """Row groups of any size are read page by page; those before `skip` are not read at all."""

    def __init__(self, path: Path) -> None:
        with self._open(path) as file:
            schema = file.schema_arrow
            super().__init__(path, schema.names, schema.types)
            self.rows = file.metadata.num_rows

    @staticmethod
    def _open(path: Path | None) -> Any:
        from pyarrow import parquet

        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=PARQUET_BUFFER)

    def _batches(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        with self._open(self.path) as file:
            groups = list(range(file.num_row_groups))
            while groups and self.position + (rows := file.metadata.row_group(groups[0]).num_rows) <= skip:
                self.position += rows
                groups.pop(0)
            if not groups:
                return
            for batch in file.iter_batches(rows_per_batch(len(names)), row_groups=groups, columns=list(names)):
                self.fraction = self.position / max(1, self.rows)
                yield batch.select(list(names))


class ArrowSource(Source):
    """Arrow's IPC formats: the file, which is Feather too, and the stream."""

    def __init__(self, path: Path) -> None:
        with self._open(path) as reader:
            super().__init__(path, reader.schema.names, reader.schema.types)

    @staticmethod
    def _open(path: Path | None) -> Any:
        from pyarrow import ipc

        pa = pyarrow()
        file = pa.OSFile(str(path))
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        return ipc.open_file(file) if is_file else ipc.open_stream(file)

    def _batches(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        with self._open(self.path) as reader:
            if hasattr(reader, "num_record_batches"):
                count = reader.num_record_batches
                batches = (reader.get_batch(i) for i in range(count))
            else:
                count, batches = 0, iter(reader)
            for i, batch in enumerate(batches):
                self.fraction = i / count if count else 0.0
                batch = batch.select(list(names))
                for start in range(0, batch.num_rows, MOST_ROWS):
                    yield batch.slice(start, MOST_ROWS)


class CsvSource(Source):
    """Numbers are read as float64 and all else as text, because later rows may differ from the first."""

    def __init__(self, path: Path | None, delimiter: str) -> None:
        self._delimiter = delimiter
        self._first = b"" if path is not None else sys.stdin.buffer.read(CSV_BLOCK)
        self.path = path
        with self._open(None, None) as reader:
            kinds = reader.schema.types
            try:
                kinds = [_kind(column) for column in reader.read_next_batch().columns]
            except StopIteration:  # a header and nothing else
                pass
            super().__init__(path, reader.schema.names, kinds)

    def _file(self) -> tuple[Any, Any]:
        """The stream to read from, and the file below it, which knows its position."""
        pa = pyarrow()
        if self.path is None:
            return _Replayed(self._first), None
        file = pa.OSFile(str(self.path))
        packed = PACKED.get(self.path.suffix.lower())
        return (pa.CompressedInputStream(file, packed) if packed else file), file

    def _open(self, names: Sequence[str] | None, numbers: Sequence[str] | None, threads: bool = True) -> Any:
        """A reader of these columns; without names, of all columns, to infer their types."""
        from pyarrow import csv

        pa = pyarrow()
        options = csv.ConvertOptions()
        parse = csv.ParseOptions(delimiter=self._delimiter)
        if names is None:
            parse.invalid_row_handler = lambda row: "skip"  # it is an error when the rows are read
            file = _Replayed(self._first, more=False) if self.path is None else self._file()[0]
        else:
            float64, text, chosen = pa.float64(), pa.string(), set(numbers or ())
            options.column_types = {name: float64 if name in chosen else text for name in names}
            options.include_columns = list(names)
            file, self._below = self._file()
        read = csv.ReadOptions(block_size=CSV_BLOCK, use_threads=threads)
        return csv.open_csv(file, read_options=read, parse_options=parse, convert_options=options)

    def _batches(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        pa, enough = pyarrow(), rows_per_batch(len(names))
        waiting: list[Any] = []  # blocks are small, and the cost of each call would show
        with self._open(names, numbers) as reader:
            for batch in reader:
                waiting.append(batch)
                if sum(b.num_rows for b in waiting) >= enough:
                    if self._below is not None:
                        self.fraction = min(1.0, self._below.tell() / max(1, self.size))
                    yield pa.concat_batches(waiting)
                    waiting = []
            if waiting:
                yield pa.concat_batches(waiting)

    def _error(self, error: Exception, names: Sequence[str], numbers: Sequence[str]) -> DataError:
        """The error with its row, which only a reader without threads counts: the file is read again up to there."""
        if self.path is None:
            return super()._error(error, names, numbers)
        try:
            with self._open(names, numbers, threads=False) as reader:
                for _ in reader:
                    pass
        except (pyarrow().ArrowException, OSError, UnicodeDecodeError) as again:
            return DataError(f"{self.name}: {_plainly(said(again), list(self.columns))}")
        return super()._error(error, names, numbers)


def _kind(column: Any) -> Any:
    """The type of a column, inferred from its beginning.

    Text that is mostly numbers counts as numbers, so that the others are reported as errors. As text the column would
    silently be missing in the result.
    """
    from pyarrow import compute, types

    pa = pyarrow()
    if not (types.is_string(column.type) or types.is_binary(column.type)) or not len(column):
        return column.type
    numbers = compute.match_substring_regex(column, NUMBER)
    filled = compute.not_equal(compute.binary_length(column), 0)
    return pa.float64() if 2 * compute.sum(numbers).as_py() > compute.sum(filled).as_py() else column.type


def _plainly(text: str, names: Sequence[str]) -> str:
    """pyarrow's message with the name of the column, and rows counted from the first one below the header.

    names: of all columns in the file.
    """
    import re

    where = re.search(r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?Row #(\d+): (.*)", text)
    if where is None:
        return text
    column, row, what = where.groups()
    at = f"row {int(row) - 1} below the header"
    if column is None:
        return f"{at}: {what[0].lower()}{what[1:]}"
    what = re.sub(r"CSV conversion error to \w+: invalid value", "expected a number, got", what)
    return f"column {names[int(column)]!r}, {at}: {what}"


class _Replayed(io.RawIOBase):
    """Standard input with the beginning, which has been read already."""

    def __init__(self, first: bytes, more: bool = True) -> None:
        self._first, self._more = io.BytesIO(first), more

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = self._first.read(size)
        return found if found or not self._more else sys.stdin.buffer.read(size)
