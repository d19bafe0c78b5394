"""The bytes of a file, a pipe or standard input, and their format, which their beginning tells."""

import codecs
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bnorm.app.errors import DataError

PARQUET, ARROW_FILE, ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
PACKED |= {bytes([i]) + b"\x2a\x4d\x18": "zstd" for i in range(0x50, 0x60)}  # it may begin with a frame to skip
REFUSED = {
    b"PK\x03\x04": "a ZIP archive, as Excel's files are: unpack it, or save the table as CSV",
    b"\xfd7zXZ\x00": "a file packed by xz: xz -dc FILE | bnorm ... -",
    b"\x89HDF": "HDF5: write the table as Parquet",
    b"SQLite format 3": "a database of SQLite: write the table as CSV",
    b"Obj\x01": "Avro: write the table as Parquet",
    b"ORC": "ORC: write the table as Parquet",
}
CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r")  # bytes that no text has
BOMS = {  # those of UTF-32 first: one of them begins like one of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Input:
    """A file, or standard input if the path is None.

    again   whether it can be read from the beginning more than once, as pipes cannot
    size    in bytes; 0 if unknown
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.name = path, "standard input" if path is None else str(path)
        self.again, self.size = False, 0
        self._pipe: Bytes | None = None
        if path is not None:
            found = path.stat()
            self.again = stat.S_ISREG(found.st_mode)
            self.size = found.st_size if self.again else 0

    @contextmanager
    def opened(self) -> Iterator["Bytes"]:
        """Open its bytes from the beginning; of a pipe, those that nobody has read yet."""
        if self.again and self.path is not None:
            with self.path.open("rb", buffering=0) as file, Bytes(file) as found:
                yield found
            return
        if self._pipe is None:
            self._pipe = Bytes(_standard_input() if self.path is None else _Pipe(self.path))
        yield self._pipe

    def first(self, size: int) -> bytes:
        """Return its first `size` bytes, or all if there are fewer."""
        with self.opened() as file:
            return file.peek(size)

    def refuse(self, first: bytes, expected: str) -> None:
        """Raise DataError if it begins like a file that cannot be read."""
        for magic, what in REFUSED.items():
            if begins(first, magic):
                raise DataError(f"{self.name}: expected {expected}, got {what}")

    def check(self, expected: str, *magic: bytes) -> None:
        """Raise DataError unless it begins in one of these ways."""
        first = self.first(16)
        self.refuse(first, expected)
        if not first.startswith(magic):
            raise DataError(f"{self.name}: expected {expected}, got other bytes")


class Bytes(io.RawIOBase):
    """A stream of bytes whose beginning can be looked at before it is read."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._waiting = raw, b""

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, or all if there are fewer, which stay to be read."""
        if len(self._waiting) < size:
            self._waiting += self._filled(size - len(self._waiting))
        return self._waiting[:size]

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer only at the end: readers take what they get for a complete block. It may be a few
        more, where one byte of another encoding becomes several.
        """
        if not self._waiting:
            return self._filled(size)
        found, self._waiting = self._waiting[:size], self._waiting[size:]
        return found if len(found) == size else found + self._filled(size - len(found))

    def tell(self) -> int:
        """About the position in the underlying file."""
        return int(self._raw.tell())

    def _filled(self, size: int) -> bytes:
        found = self._raw.read(size)
        if len(found) in (0, size):
            return found  # type: ignore[no-any-return]
        parts, missing = [found], size - len(found)
        while missing > 0 and (found := self._raw.read(missing)):
            parts.append(found)
            missing -= len(found)
        return b"".join(parts)


class Unpacked:
    """The bytes of a compressed stream, as a raw stream for Bytes."""

    def __init__(self, packed: Bytes, codec: str) -> None:
        import pyarrow as pa

        self._packed = packed
        self._stream = pa.CompressedInputStream(pa.PythonFile(packed, "r"), codec)

    def read(self, size: int) -> bytes:
        return self._stream.read(size)  # type: ignore[no-any-return]

    def tell(self) -> int:
        return self._packed.tell()


class Recoded:
    """Text in another encoding as bytes of UTF-8, as a raw stream for Bytes."""

    def __init__(self, stream: Bytes, encoding: str) -> None:
        self._stream, self._decoder, self._over = stream, codecs.getincrementaldecoder(encoding)(), False

    def read(self, size: int) -> bytes:
        while not self._over:
            data = self._stream.read(max(1, size // 3))  # a byte becomes up to three in UTF-8
            self._over = not data
            if text := self._decoder.decode(data, self._over):
                return text.encode()
        return b""

    def tell(self) -> int:
        return self._stream.tell()


class _Pipe:
    """What comes through a file descriptor. It is read by the main thread, so that a signal ends the wait for more."""

    def __init__(self, file: Path | int) -> None:
        self._fd = file if isinstance(file, int) else os.open(file, os.O_RDONLY)

    def read(self, size: int) -> bytes:
        return os.read(self._fd, size)

    def tell(self) -> int:
        return 0


def _standard_input() -> _Pipe:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("standard input: expected a table, but it is closed")
    return _Pipe(sys.stdin.fileno())


def begins(first: bytes, magic: bytes) -> bool:
    """Whether a file, of which these are the first 16 bytes or more, has the format of a mark. A mark that is text, as
    ORC is, may be the name of a column: then one of these bytes must be none of text.
    """
    return first.startswith(magic) and not (magic.isascii() and CONTROLS.isdisjoint(first[:16]))


def codec_of(first: bytes) -> str | None:
    """The name of the compression of a file, of which these are the first 16 bytes or more; None if there is none."""
    return next((codec for magic, codec in PACKED.items() if begins(first, magic)), None)


def spooled(stream: Bytes) -> BinaryIO:
    """Copy a stream to a temporary file without a name, for formats that are not read front to back."""
    import shutil
    import tempfile

    file = tempfile.TemporaryFile()
    shutil.copyfileobj(stream, file, 1 << 20)
    file.seek(0)
    return file
