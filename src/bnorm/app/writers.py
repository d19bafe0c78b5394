"""The output of a command: a table in CSV, Parquet or Arrow by the suffix, written completely or not at all."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from bnorm.app.dictionaries import Arrow
from bnorm.app.errors import DataError
from bnorm.app.kinds import converted, written
from bnorm.app.sources import ARROW, BATCH, CSV, PACKED, PARQUET, SUFFIXES, pyarrow, rows_per_batch, said
from bnorm.app.text import FEW, Csv, Quotes
from bnorm.files.replacing import replacing

STDOUT = "-"


class Writer(Protocol):
    """Takes record batches. `finish` completes the file, and `close` frees what is held, after an error too."""

    def write_batch(self, batch: Any) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


def check_suffix(path: str) -> None:
    """ValueError if there is no writer for an output name."""
    if path != STDOUT and not path.lower().endswith(SUFFIXES):
        raise ValueError(f"expected a name that ends in {', '.join(SUFFIXES)}, got {path!r}")


@contextmanager
def table(path: str, schema: Any, quotes: Quotes = FEW) -> Iterator[Writer]:
    """A writer of record batches. The file gets its name when all is written; "-" is standard output.

    quotes: what a CSV file has in quotes.
    """
    kind = _kind(path)
    schema = written(schema, kind)
    if path == STDOUT:
        if sys.__stdout__ is None:
            raise DataError("standard output: expected a place for the table, but it is closed")
        with closing(Csv(sys.stdout.buffer, schema, ",", quotes)) as to_stdout:
            yield _Converted(to_stdout, schema)
        return
    with replacing(path) as file:
        writer: Writer
        if kind == "csv":
            writer = _Packed(path, file, schema, quotes)
        elif kind == "parquet":
            writer = _Parquet(file, schema)
        else:
            writer = Arrow(file, schema)
        try:
            yield _Converted(writer, schema)
            writer.finish()
        except pyarrow().ArrowException as error:
            raise DataError(f"{path}: {said(error)}") from None
        finally:
            writer.close()


def has_types(path: str) -> bool:
    """Whether columns have types in the format of an output name."""
    return _kind(path) != "csv"


def _kind(path: str) -> str:
    """The format of an output name."""
    suffix = Path(path).suffix.lower()
    return "parquet" if suffix in PARQUET else "arrow" if suffix in ARROW else "csv"


class _Converted:
    """A writer that converts batches to what its file can hold."""

    def __init__(self, writer: Writer, schema: Any) -> None:
        self._writer, self._schema = writer, schema
        self.finish, self.close = writer.finish, writer.close

    def write_batch(self, batch: Any) -> None:
        self._writer.write_batch(converted(batch, self._schema))


class _Packed(Csv):
    """A CSV file, compressed if its name says so."""

    def __init__(self, path: str, file: Any, schema: Any, quotes: Quotes) -> None:
        name, packed = Path(path), PACKED.get(Path(path).suffix.lower())
        delimiter = CSV[(Path(name.stem) if packed else name).suffix.lower()]
        self._stream = pyarrow().CompressedOutputStream(_StaysOpen(file), packed) if packed else None
        super().__init__(self._stream or file, schema, delimiter, quotes)

    def finish(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        super().close()
        if self._stream is not None:
            with suppress(Exception):  # an error came before this
                self._stream.close()


class _StaysOpen:
    """A file that a stream of pyarrow does not close."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        pass


class _Parquet:
    """Collects batches into row groups of a useful size. A row group is in memory while it is written."""

    def __init__(self, file: Any, schema: Any) -> None:
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(file, schema, use_dictionary=False)
        self._schema = schema
        self._waiting: list[Any] = []
        self._rows = rows_per_batch(len(schema))

    def write_batch(self, batch: Any) -> None:
        self._waiting.append(batch)
        if sum(b.num_rows for b in self._waiting) >= self._rows:
            self._flush()
        elif sum(b.nbytes for b in self._waiting) >= 2 * BATCH:  # text may be long
            self._flush()
            pyarrow().default_memory_pool().release_unused()  # otherwise it keeps the memory of several such row groups

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def close(self) -> None:
        if self._writer.is_open:  # an error came before this
            with suppress(Exception):
                self._writer.close()
            self._writer.is_open = False  # otherwise it closes itself again later, when the file is closed already

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pyarrow().Table.from_batches(self._waiting, self._schema))
            self._waiting = []
