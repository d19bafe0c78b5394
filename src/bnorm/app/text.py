"""Record batches as the lines of a CSV file. A value is quoted only if it has to be, or if its column asks for it.

pyarrow's own writer quotes all text of a batch or none, and writes a missing value that is alone in its row as an empty
line, which readers skip.
"""

import re
import struct
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple, Self

from bnorm.app.sources import pyarrow


class Quotes(NamedTuple):
    """The columns whose names, and those whose values, are in quotes even if they need none."""

    names: Collection[str] = ()
    values: Collection[str] = ()

    @classmethod
    def of(cls, beginning: bytes, names: Sequence[str], delimiter: str, header: bool = True) -> Self:
        """Return the quotes of the beginning of a CSV file: of a column, if all its values but empty ones have them."""
        # It matches at every place, and reads nothing twice (*+): a cell may be as long as the whole text.
        ends = rb"%b|\r?\n|\r|\Z" % re.escape(delimiter).encode()
        cell = re.compile(rb'("(?:[^"]|"")*+"|[^%b\r\n]*+)(%b)' % (re.escape(delimiter).encode(), ends))
        rows: list[list[bytes]] = [[]]
        for found in cell.finditer(beginning):
            rows[-1].append(found[1])
            if found[2].endswith(b"\n"):
                rows.append([])
        rows = [row for row in rows if len(row) == len(names)]
        head = rows.pop(0) if header and rows else []
        filled = [[row[i] for row in rows if row[i]] for i in range(len(names))]
        return cls(
            {name for name, text in zip(names, head, strict=False) if text.startswith(b'"')},
            {name for name, texts in zip(names, filled, strict=True) if texts and all(t[:1] == b'"' for t in texts)},
        )


FEW = Quotes()
ROWS = 1 << 13  # few enough that their text stays in a cache


class Csv:
    """Writes batches to a file."""

    def __init__(self, file: Any, schema: Any, delimiter: str, quotes: Quotes) -> None:
        self._file, self._delimiter = file, delimiter.encode()
        self._special = f'["\\r\\n{re.escape(delimiter)}]'
        self._quoted = [name in quotes.values for name in schema.names]
        self._threads = pyarrow().cpu_count()
        self._pool = ThreadPoolExecutor(self._threads)  # most of the time goes into writing numbers as text
        self._alone = len(schema) == 1
        self._empty = _bytes(b'""' if self._alone else b"")
        names = [self._name(name, name in quotes.names) for name in schema.names]
        self._file.write(self._delimiter.join(names) + b"\n")

    def write_batch(self, batch: Any) -> None:
        for start in range(0, batch.num_rows, ROWS):
            self._write(batch.slice(start, ROWS))

    def _write(self, batch: Any) -> None:
        every = -(-batch.num_columns // self._threads)
        starts = range(0, batch.num_columns, every)
        parts = self._pool.map(
            lambda i: list(map(self._column, batch.columns[i : i + every], self._quoted[i:])), starts
        )
        columns = list(chain.from_iterable(parts))
        columns[-1] = _joined(columns[-1], b"\n", b"")
        self._file.write(_joined(*columns, self._delimiter).buffers()[2])

    def finish(self) -> None:
        """Do nothing: all rows have been written."""

    def close(self) -> None:
        self._pool.shutdown()

    def _name(self, name: str, quoted: bool) -> bytes:
        text = name.encode(errors="surrogateescape")
        if quoted or re.search(self._special, name) or not text:
            return b'"' + text.replace(b'"', b'""') + b'"'
        return text

    def _column(self, array: Any, quoted: bool) -> Any:
        """Return a column as bytes, without missing values."""
        from pyarrow import compute

        pa = pyarrow()
        if is_text(array.type):
            values = array.cast(pa.large_binary())
            special = compute.match_substring_regex(values, self._special)
            if quoted or compute.any(special).as_py():
                inside = _joined(b'"', compute.replace_substring(values, b'"', b'""'), b'"', b"")
                values = inside if quoted else compute.if_else(special, inside, values)
        else:
            values = array.cast(pa.large_string()).cast(pa.large_binary())
            values = _joined(b'"', values, b'"', b"") if quoted else values
        values = compute.fill_null(values, self._empty) if values.null_count else values
        return compute.if_else(compute.equal(values, _bytes(b"")), self._empty, values) if self._alone else values


def _joined(*parts: Any) -> Any:
    """Join columns and bytes, with the last part between the others."""
    from pyarrow import compute

    return compute.binary_join_element_wise(*(_bytes(part) if isinstance(part, bytes) else part for part in parts))


def _bytes(value: bytes) -> Any:
    """Return bytes as a scalar of pyarrow, whose own conversion imports pandas."""
    pa = pyarrow()
    buffers = [None, pa.py_buffer(struct.pack("=2q", 0, len(value))), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.large_binary(), 1, buffers)[0]


def is_text(kind: Any) -> bool:
    """Whether a type has values that may contain a delimiter."""
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)
