"""A CSV file as batches of columns, by pyarrow's reader, which gets it in blocks of whole rows.

Numbers are read as float64 and all else as text, because later rows may differ from the first. pyarrow's own streaming
reader is not used: it does not report a quote that is never closed, waits for pipes where no signal reaches it, and
sometimes never ends if it is abandoned.
"""

import codecs
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from bnorm.app.csv_blocks import BLOCK, LINE_END, LONGEST, LongRowError, after_lines, blocks
from bnorm.app.dialects import NULLS, Dialect, doubts
from bnorm.app.errors import DataError, NotANumberError
from bnorm.app.opening import BOMS, Bytes, Input, Recoded, Unpacked, codec_of
from bnorm.app.sources import BATCH, Place, Source, joined, pyarrow, said
from bnorm.app.text import Quotes
from bnorm.arrow import is_number

BEGINNING = 1 << 20  # bytes that show the types of columns
FEW_ROWS = 1 << 12  # a batch has at least this many rows, so that work for each of its columns costs little
LOOK = 1 << 16  # bytes at the beginning that show which columns are quoted
OTHERS = "--encoding cp1252 (Windows in Western Europe), latin-1 or another reads others"
SHOWN = 1000  # values of a column of text that are looked at to say what it is
LOOKS = 16  # parts of a file; columns without values in the first are looked at where the others begin


class CsvSource(Source):
    """A file, a pipe or standard input, compressed or not."""

    def __init__(self, given: Input, delimiter: str, dialect: Dialect) -> None:
        self._delimiter, self.dialect, self._block = delimiter, dialect, BLOCK
        self._input = given
        self._stream: Bytes | None = None  # of a pipe, which is looked at and read only once
        with ExitStack() as stack:
            first = self._looked_at(self._bytes(stack))
        names, columns = self._beginning(first)
        reasons: dict[str, str] = {}
        kinds = [self._kind(name, column, reasons) for name, column in zip(names, columns, strict=True)]
        super().__init__(given, names, kinds, reasons)
        self.below = " below the header" if dialect.header else ""
        if (empty := [n for n, kind in self.columns.items() if pyarrow().types.is_null(kind)]) and self._far(first):
            self._look_further(names, empty)
        if dialect.header:
            filled = [n for n, kind in self.columns.items() if is_number(kind) and not pyarrow().types.is_null(kind)]
            self.doubts += doubts(names, filled, delimiter)

    def _bytes(self, stack: ExitStack) -> Bytes:
        """Return the text of the file in UTF-8, from its beginning; for a pipe, what has not been read yet."""
        if self._stream is not None:
            return self._stream
        stream = stack.enter_context(self._input.opened())
        if codec := codec_of(stream.peek(16)):
            stream = Bytes(Unpacked(stream, codec))
        encoding = self.dialect.encoding
        encoding = next((name for bom, name in BOMS.items() if stream.peek(4).startswith(bom)), encoding)
        self._in_ascii = codec is None and "1\n".encode(encoding) == b"1\n"  # whether numbers are, at any place
        if encoding.replace("_", "-").lower() not in ("utf-8", "utf8", "ascii"):
            stream = Bytes(Recoded(stream, encoding))
        if not self._input.again:
            self._stream = stream
        return stream

    def _looked_at(self, stream: Bytes) -> bytes:
        """Return the beginning, with at least the first two lines. Make blocks large enough for such lines."""
        size, skip = BEGINNING, self.dialect.skip_rows
        first = stream.peek(size)
        if b"\0" in first:
            raise DataError(f"{self._input.name}: expected text, got bytes of zero: no CSV file, or another --encoding")
        while len(first) == size < LONGEST and first.count(b"\n", after_lines(first, skip)) < 2:
            size *= 4
            first = stream.peek(size)
        table = first[after_lines(first, skip) :]
        if len(first) >= LONGEST and b"\n" not in table:
            raise DataError(f"{self._input.name}: expected a first row that ends within {LONGEST >> 20} MiB")
        longest = max(map(len, table.split(b"\n", 2)[:2]))
        while self._block < min(LONGEST, 4 * longest):
            self._block *= 4
        return first

    def _beginning(self, first: bytes) -> tuple[list[str], list[Any]]:
        """Return the names of the columns, and the columns of the rows at the beginning."""
        text = first[after_lines(first, self.dialect.skip_rows) :].removeprefix(codecs.BOM_UTF8)
        if len(first) >= BEGINNING and (stop := text.rfind(b"\n")) > 0:
            text = text[: stop + 1]
        if not text.strip():
            if (skipped := self.dialect.skip_rows) and first.strip():
                raise DataError(f"{self._input.name}: expected a table below {skipped} lines, got no more lines")
            raise DataError(f"{self._input.name}: expected a table, got an empty file")
        for option, mark in (("--decimal", self.dialect.decimal), ("--thousands", self.dialect.thousands)):
            if mark == self._delimiter:
                self._refuse_between_values(option, text[after_lines(text, self.dialect.header) :])
        found = self._look(text)
        try:
            names = [name.encode("latin-1").decode() for name in found.schema.names]
        except UnicodeDecodeError:
            raise DataError(f"{self._input.name}: expected names of columns in UTF-8; {OTHERS}") from None
        if not self.dialect.header:
            names = [f"x{i}" for i in range(len(names))]
        self.quotes = Quotes.of(text[:LOOK], names, self._delimiter, self.dialect.header)
        return names, [column.combine_chunks() for column in found.columns]

    def _refuse_between_values(self, option: str, rows: bytes) -> None:
        """Raise DataError if a mark in numbers, which is also the delimiter, is not told apart by quotes."""
        if self._delimiter.encode() in rows and b'"' not in rows:
            raise DataError(
                f"{self._input.name}: {option}: expected another character than --delimiter, as no values are in "
                f"quotes, got {self._delimiter!r} for both"
            )

    def _kind(self, name: str, column: Any, reasons: dict[str, str]) -> Any:
        """Return the type of a column, by its beginning. For a column of text, note in `reasons` why it is not numbers.

        Text that is mostly numbers counts as numbers, so that all else in it is reported as errors. As text, the column
        would silently be missing in the result.
        """
        if not pyarrow().types.is_string(column.type) or not len(column):
            return column.type
        from pyarrow import compute  # importing it takes a tenth of the time of a small command

        seen = self.dialect.as_latin_1
        numbers = compute.match_substring_regex(column, seen.number)
        marks = pyarrow().array([*NULLS, *seen.nulls])
        filled = len(column) - compute.sum(compute.is_in(compute.utf8_trim_whitespace(column), marks)).as_py()
        if not filled:  # only marks with many spaces around them
            return pyarrow().null()
        if 2 * (compute.sum(numbers).as_py() or 0) > filled:
            return pyarrow().float64()
        beginning = [text and text.encode("latin-1").decode(errors="replace") for text in column[:SHOWN].to_pylist()]
        reasons[name] = self.dialect.why_text(pyarrow().array(beginning, pyarrow().string()))
        return column.type

    def _far(self, first: bytes) -> bool:
        return self._input.again and self.size > len(first) and self._in_ascii

    def _look_further(self, names: Sequence[str], empty: Sequence[str]) -> None:
        """Look into the file here and there for the types of columns that have no values at its beginning."""
        found: dict[str, list[Any]] = {name: [] for name in empty}
        with self._input.path.open("rb") as file:  # type: ignore[union-attr]
            for i in range(1, LOOKS):
                file.seek(self.size * i // LOOKS)
                file.readline()
                text = b"".join(file.readlines(BEGINNING // 4))
                if not text.strip():
                    continue
                rows = self._look(text, names)
                for name in empty:
                    column = rows.column(name).combine_chunks()
                    found[name].append(column.cast(pyarrow().string()))
        kinds = dict(self.columns)
        for name, columns in found.items():
            filled = pyarrow().chunked_array(columns).combine_chunks().drop_null() if columns else []
            if len(filled):
                kinds[name] = self._kind(name, filled, self.reasons)
        self.columns = kinds

    def _look(self, text: bytes, names: Sequence[str] | None = None, kinds: dict[str, Any] | None = None) -> Any:
        """Return rows as a table, with columns of the types that they seem to have, without rows of another length.

        kinds: the types of columns for which it is known.

        The bytes are read as Latin-1, in which all bytes are valid: whether they are UTF-8 matters where they are used.
        They are memory of Python's, so no thread of pyarrow may have them, see csv_blocks.
        """
        from pyarrow import csv

        pa, data = pyarrow(), text.decode("latin-1").encode() + b"\n"
        found = csv.read_csv(
            io.BytesIO(data),
            csv.ReadOptions(
                use_threads=False,
                block_size=len(data) + 1,
                column_names=names,
                autogenerate_column_names=names is None and not self.dialect.header,
            ),
            csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=lambda row: "skip"
            ),
            csv.ConvertOptions(
                null_values=self.dialect.as_latin_1.missing,
                decimal_point=self.dialect.point,
                column_types=kinds,
            ),
        )
        whole = [i for i, kind in enumerate(found.schema.types) if pa.types.is_integer(kind)]
        if kinds is None and whole and b"0x" in text.lower():  # pyarrow takes 0x1A for an integer, but not for a float
            from pyarrow import compute

            as_text = self._look(text, names, {found.schema.names[i]: pa.string() for i in whole})
            for i in whole:
                if compute.any(compute.match_substring(as_text.column(i), "0x", ignore_case=True)).as_py():
                    found = found.set_column(i, as_text.schema.field(i), as_text.column(i))
        return found

    def _batches(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        try:
            yield from self._after(_large(self._rows(names, numbers)), skip)
        except LongRowError as error:
            raise DataError(f"{self.name}: after row {self._read}: {error}") from None

    def _rows(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[Any]:
        """Yield the batches of all blocks. While one is in use, another thread parses the next."""
        with ExitStack() as stack:
            stream = self._bytes(stack)
            self._to_the_header(stream)
            pool = stack.enter_context(ThreadPoolExecutor(1))
            ahead: Future[Any] | None = None
            header = self.dialect.header
            for block in blocks(stream, self._block, self._delimiter):
                coming = block and pool.submit(self._parsed, block, names, numbers, header)
                if ahead is not None:
                    yield self._result(ahead)
                ahead, header = coming or None, False
                self.fraction = min(1.0, stream.tell() / self.size) if self.size else 0.0
            if ahead is not None:
                yield self._result(ahead)

    def _result(self, parsed: "Future[Any]") -> Any:
        try:
            batch = parsed.result()
        except _BadRowError as error:
            raise error.told(Place(self.name, self._read, self.below)) from None
        self._read += batch.num_rows
        return batch

    def _to_the_header(self, stream: Bytes) -> None:
        """Leave out the lines before the header, and the mark that some programs put before all text in UTF-8."""
        for _ in range(self.dialect.skip_rows):
            size = self._block
            while (found := LINE_END.search(stream.peek(size))) is None and len(stream.peek(size)) == size:
                size *= 2
            stream.read(found.end() if found else size)
        if stream.peek(3) == codecs.BOM_UTF8:
            stream.read(3)

    def _parsed(self, block: Any, names: Sequence[str], numbers: Sequence[str], header: bool) -> Any:
        """Return the rows of a block. Numbers that pyarrow does not understand are read as text first."""
        as_text = self.dialect.in_text or (self.dialect.nulls and self.dialect.hides(bytes(block), self._delimiter))
        in_text = {n for n in numbers if as_text or pyarrow().types.is_boolean(self.columns[n])}
        try:
            found = self._read_by_pyarrow(block, names, set(numbers) - in_text, header)
        except pyarrow().ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise self._located(block, names, header, error) from None
            in_text = set(numbers)
            try:
                found = self._read_by_pyarrow(block, names, set(), header)
            except pyarrow().ArrowInvalid as again:
                raise self._located(block, names, header, again) from None
        return self._converted(found, in_text) if in_text else found

    def _read_by_pyarrow(
        self, block: Any, names: Sequence[str], numbers: set[str], header: bool, threads: bool = True
    ) -> Any:
        from pyarrow import csv

        pa = pyarrow()
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(
                block_size=block.size + 1, use_threads=threads, column_names=None if header else list(self.columns)
            ),
            csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            csv.ConvertOptions(
                null_values=self.dialect.missing,
                decimal_point=self.dialect.point,
                column_types={name: pa.float64() if name in numbers else pa.string() for name in names},
                include_columns=list(names),
            ),
        )
        whole = table.combine_chunks().to_batches()
        return whole[0] if whole else pa.RecordBatch.from_pylist([], table.schema)

    def _converted(self, batch: Any, in_text: set[str]) -> Any:
        """Return the batch with these columns as float64."""
        pa, columns = pyarrow(), []
        for name, text in zip(batch.schema.names, batch.columns, strict=True):
            column = text
            if name in in_text:
                is_bool = pa.types.is_boolean(self.columns[name])
                column, bad = self.dialect.numbers(_of_bools(text) if is_bool else text)
                if bad is not None:
                    raise _BadRowError(bad, name, text[bad].as_py())
            columns.append(column)
        return pa.record_batch(columns, names=batch.schema.names)

    def _located(self, block: Any, names: Sequence[str], header: bool, error: Exception) -> Exception:
        """Return the error with the number of its row, which only a reader without threads knows."""
        try:
            self._read_by_pyarrow(block, names, set(), header, threads=False)
        except pyarrow().ArrowInvalid as again:
            error = again
        column, row, what = re.fullmatch(
            r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?(?:Row #(\d+): )?(.*)", said(error)
        ).groups()  # type: ignore[union-attr]
        if "UTF8" in what:
            what = f"expected text in UTF-8; {OTHERS}"
        if row is None:
            return DataError(f"{self.name}: after row {self._read}: {what}")
        return _BadRowError(int(row) - 1 - header, list(self.columns)[int(column)] if column else None, None, what)


def _large(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the same rows in batches that are not small, so that wide files are not read a few rows at a time."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if sum(b.num_rows for b in waiting) >= FEW_ROWS or sum(b.nbytes for b in waiting) >= BATCH:
            yield joined(waiting)
            waiting = []
    if waiting:
        yield joined(waiting)


class _BadRowError(Exception):
    """A row of a block, counted from its first, that cannot be read."""

    def __init__(self, row: int, column: str | None, value: str | None, what: str = "") -> None:
        super().__init__(what)
        self.row, self.column, self.value, self.what = row, column, value, what

    def told(self, block: Place) -> DataError:
        """Return the error for the place of the block."""
        at = block.row(self.row)
        if self.column is not None and self.value is not None:
            return NotANumberError(block.where, self.column, at, self.value)
        column = f"column {self.column!r}, " if self.column is not None else ""
        return DataError(f"{block.where}: {column}{at}: {self.what[0].lower()}{self.what[1:]}")


def _of_bools(column: Any) -> Any:
    """Return text of true and false as text of the numbers 1 and 0."""
    from pyarrow import compute as pc

    column = pc.utf8_lower(pc.utf8_trim_whitespace(column))
    return pc.replace_substring_regex(pc.replace_substring_regex(column, "^true$", "1"), "^false$", "0")
