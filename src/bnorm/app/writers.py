"""The output of a command: a table in CSV, Parquet or Arrow by the suffix, written completely or not at all."""

import csv as text_csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from bnorm.app.errors import DataError
from bnorm.app.sources import ARROW, PARQUET, pyarrow, rows_per_batch
from bnorm.files.container import replacing

CSV = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*CSV, *PARQUET, *ARROW)
STDOUT = "-"


class Writer(Protocol):
    """The interface of pyarrow's writers."""

    def write_batch(self, batch: Any) -> None: ...

    def close(self) -> None: ...


def check_suffix(path: str) -> str:
    """The suffix of an output name; ValueError if there is no writer for it."""
    suffix = Path(path).suffix.lower()
    if path != STDOUT and suffix not in SUFFIXES:
        raise ValueError(f"expected a name that ends in {', '.join(SUFFIXES)}, got {path!r}")
    return suffix


@contextmanager
def table(path: str, schema: Any) -> Iterator[Writer]:
    """A writer of record batches. The file gets its name when all is written; "-" is standard output."""
    suffix = check_suffix(path)
    if path == STDOUT:
        to_stdout = _Csv(sys.stdout.buffer, schema, ",")
        yield to_stdout
        to_stdout.close()
        return
    with replacing(path) as file:
        writer: Writer
        if suffix in CSV:
            writer = _Csv(file, schema, CSV[suffix])
        elif suffix in PARQUET:
            writer = _Parquet(file, schema)
        else:
            writer = pyarrow().ipc.new_file(file, schema)
        yield writer
        writer.close()


class _Csv:
    """Quotes text only in batches that need it, because pyarrow quotes all text or none."""

    def __init__(self, file: Any, schema: Any, delimiter: str) -> None:
        from pyarrow import csv, types

        for field in schema:
            if types.is_nested(field.type):
                raise DataError(f"column {field.name!r}: expected what a CSV file can hold, got {field.type}")
        self._text = [i for i, kind in enumerate(schema.types) if types.is_string(kind) or types.is_large_string(kind)]
        self._special = f'["\\r\\n{re.escape(delimiter)}]'
        self._sink = pyarrow().PythonFile(file, "w")
        self._writers = {
            style: csv.CSVWriter(
                self._sink,
                schema,
                write_options=csv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style=style),
            )
            for style in ("none", "needed")
        }
        header = io.StringIO()
        text_csv.writer(header, delimiter=delimiter, lineterminator="\n").writerow(schema.names)
        self._sink.write(header.getvalue().encode())

    def write_batch(self, batch: Any) -> None:
        from pyarrow import compute

        needed = any(compute.any(compute.match_substring_regex(batch[i], self._special)).as_py() for i in self._text)
        self._writers["needed" if needed else "none"].write_batch(batch)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


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

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pyarrow().Table.from_batches(self._waiting, self._schema))
            self._waiting = []
