"""Record batches as the lines of a CSV file. A value is quoted only if it has to be, or if its column asks for it.

pyarrow's own writer quotes all text of a batch or none, and writes a missing value that is alone in its row as an empty
line, which readers skip.
"""

import re
import struct
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bnorm.app.sources import pyarrow


class Csv:
    """Writes batches to a file. quoted: the columns whose values and names are all quoted."""

    def __init__(self, file: Any, schema: Any, delimiter: str, quoted: Collection[str] = ()) -> None:
        self._file, self._delimiter = file, delimiter.encode()
        self._special = f'["\\r\\n{re.escape(delimiter)}]'
        self._quoted = [name in quoted for name in schema.names]
        self._pool = ThreadPoolExecutor(pyarrow().cpu_count())  # most of the time goes into writing numbers as text
        self._alone = len(schema) == 1
        self._empty = _bytes(b'""' if self._alone else b"")
        names = [self._name(name, quoted) for name, quoted in zip(schema.names, self._quoted, strict=True)]
        self._file.write(self._delimiter.join(names) + b"\n")

    def write_batch(self, batch: Any) -> None:
        columns = list(self._pool.map(self._column, batch.columns, self._quoted))
        columns[-1] = _joined(columns[-1], b"\n", b"")
        lines = _joined(*columns, self._delimiter)
        if len(lines):
            self._file.write(lines.buffers()[2])

    def finish(self) -> None:
        """Nothing is left to write."""

    def close(self) -> None:
        self._pool.shutdown()

    def _name(self, name: str, quoted: bool) -> bytes:
        text = name.encode(errors="surrogateescape")
        if quoted or re.search(self._special, name) or not text:
            return b'"' + text.replace(b'"', b'""') + b'"'
        return text

    def _column(self, array: Any, quoted: bool) -> Any:
        """A column as bytes, none of them missing."""
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
    """Columns and bytes joined, with the last of them between the others."""
    from pyarrow import compute

    return compute.binary_join_element_wise(*(_bytes(part) if isinstance(part, bytes) else part for part in parts))


def _bytes(value: bytes) -> Any:
    """Bytes as a scalar of pyarrow, whose own way there imports pandas."""
    pa = pyarrow()
    buffers = [None, pa.py_buffer(struct.pack("=2q", 0, len(value))), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.large_binary(), 1, buffers)[0]


def is_text(kind: Any) -> bool:
    """Whether a type has values that may contain a delimiter."""
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)
