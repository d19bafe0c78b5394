"""Wide row groups of Parquet files, read some columns at a time.

A reader of Parquet holds a page and a dictionary of each column that it reads: gigabytes, if there are thousands.
So a row group is read in stripes of columns, which are kept on the disk, and put together again row by row.
"""

import io
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from bnorm.app.sources import pyarrow

PAGE = 1 << 20  # bytes, with the usual settings of writers
MOST_STATE = 192 << 20  # bytes that a reader may hold
STRIPE_STATE = 48 << 20
DECODED = 16 << 20  # bytes of a stripe that are decoded together: for few rows, the call costs more than they do


def state(columns: int, size: int) -> int:
    """About how many bytes a reader of this many columns holds. size: of a row group, decompressed."""
    return 3 * min(size, columns * PAGE)  # measured: a page, its dictionary, and what is decoded from them


def striped(file: Any, groups: Sequence[int], names: Sequence[str], rows: int) -> Iterator[Any]:
    """Yield the rows of row groups, in record batches of `rows` rows."""
    from pyarrow import ipc

    pa, fields = pyarrow(), {field.name: field for field in file.schema_arrow}
    for group in groups:
        size = file.metadata.row_group(group).total_byte_size
        width = max(1, len(names) * STRIPE_STATE // max(1, state(len(names), size)))
        with tempfile.TemporaryFile() as disk:
            starts = [
                _kept(file, group, [fields[name] for name in names[i : i + width]], rows, disk)
                for i in range(0, len(names), width)
            ]
            readers = [ipc.open_stream(_Region(disk, start)) for start in starts]
            for parts in zip(*readers, strict=True):
                yield pa.record_batch([column for part in parts for column in part.columns], names=list(names))


def _kept(file: Any, group: int, fields: Sequence[Any], rows: int, disk: Any) -> int:
    """Write some columns of a row group to the disk. Return where they begin."""
    from pyarrow import ipc

    start: int = disk.tell()
    schema = pyarrow().schema(fields)
    numbers = all(pyarrow().types.is_primitive(field.type) for field in fields)  # text may be long
    together = rows * max(1, DECODED // (8 * rows * len(fields))) if numbers else rows
    with ipc.new_stream(disk, schema) as writer:
        for batch in file.iter_batches(together, row_groups=[group], columns=schema.names):
            whole = batch.select(schema.names)
            for first in range(0, batch.num_rows, rows):
                writer.write_batch(whole.slice(first, rows))
    return start


class _Region(io.RawIOBase):
    """A file from some position on, with a position of its own, whoever else reads the file."""

    def __init__(self, file: Any, at: int) -> None:
        self._file, self._at = file, at

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._file.seek(self._at)
        found: bytes = self._file.read(size)
        self._at += len(found)
        return found
