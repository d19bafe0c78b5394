"""A stream of CSV cut into blocks of whole rows: at line breaks outside of quotes."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from bnorm.app.opening import Bytes

BLOCK = 1 << 21  # bytes of a block: if it was half as large, reading would take a tenth more time in all
LONGEST = 1 << 26  # bytes of a row
QUOTE, NEWLINES = 34, b"\r\n"
LINE_END = re.compile(rb"\n|\r(?=[^\n])")  # as pyarrow's reader; after a last CR there may be an LF


class LongRowError(Exception):
    """A row without an end."""


def blocks(stream: Bytes, size: int, delimiter: str) -> Iterator[Any]:
    """Yield blocks of about `size` bytes, as buffers of pyarrow; None and then an error if the last row has no end."""
    rest, more = b"", size
    while data := stream.read(more):
        data = rest + data
        cut = last_end(data, delimiter)
        if not cut:
            more = len(data)
            if more >= LONGEST:
                yield None
                raise LongRowError(f"expected a row of at most {LONGEST >> 20} MiB; is a quote never closed?")
            rest = data
            continue
        yield _owned(data, cut)
        rest, more = data[cut:], size
    if rest:
        if last_end(rest + b"\n", delimiter) != len(rest) + 1:
            yield None
            raise LongRowError("a quote is never closed")
        yield _owned(rest + b"\n", len(rest) + 1)


def after_lines(text: bytes, lines: int) -> int:
    """The place below so many lines, whatever quotes are in them; the end if there are fewer."""
    return next((found.end() for found in islice(LINE_END.finditer(text), lines - 1, lines)), len(text)) if lines else 0


def _owned(data: bytes, size: int) -> Any:
    """Return the first bytes in memory of pyarrow. Its threads may let go of them when Python has ended: to free memory
    of Python's would end the process with SIGABRT then.
    """
    import pyarrow as pa

    buffer = pa.allocate_buffer(size)
    np.frombuffer(buffer, np.uint8)[:] = np.frombuffer(data, np.uint8, size)
    return buffer


def last_end(data: bytes, delimiter: str) -> int:
    """The end of the last row of some bytes that begin with a row; 0 if there is none."""
    if b'"' not in data:
        return data.rfind(b"\n") + 1
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == QUOTE)
    if not _regular(data, quotes, delimiter):
        return _by_letters(data, delimiter)
    stop = len(data)
    while (found := data.rfind(b"\n", 0, stop)) >= 0:
        before = int(np.searchsorted(quotes, found))
        if before % 2 == 0:
            break
        stop = int(quotes[before - 1])  # this quote opened the value with the line break
    return found + 1


def _regular(data: bytes, quotes: Any, delimiter: str) -> bool:
    """Whether the first, third, ... quote opens a value, or is the second of two that stand for one.

    Then a line break is in a value if the number of quotes before it is odd, whatever follows a quote that closes a
    value. Quotes in values that are not quoted, as in 5" pipe, make it false.
    """
    around = np.frombuffer(b"\n" + data, np.uint8)
    ends = np.zeros(256, bool)
    ends[list(delimiter.encode() + NEWLINES)] = True
    opens = ends[around[quotes[::2]]]
    opens[1:] |= np.diff(quotes)[1::2] == 1
    return bool(opens.all())


def _by_letters(data: bytes, delimiter: str) -> int:
    """The same as `last_end` for any text, by a search for all values in quotes, which takes longer."""
    starts = re.escape(delimiter.encode()) + NEWLINES
    values = re.compile(rb'(?:^|(?<=[%s]))"[^"]*(?:""[^"]*)*(?:"|\Z)' % starts)
    stop, last = len(data), [found.span() for found in values.finditer(data)]
    while (found := data.rfind(b"\n", 0, stop)) >= 0:
        while last and last[-1][0] > found:
            last.pop()
        if not last or found >= last[-1][1]:
            break
        stop = last[-1][0]
    return found + 1
