"""One table as batches of columns, in constant memory: what its formats have in common."""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from bnorm.app.dialects import PLAIN
from bnorm.app.errors import DataError
from bnorm.app.opening import Input
from bnorm.arrow import is_number

BATCH = 8 << 20  # bytes of numbers in a batch, which stay in the cache from the reader to the kernels
MOST_ROWS = 1 << 18
CSV = {".csv": ",", ".tsv": "\t", ".txt": ","}
PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
SUFFIXES = (*CSV, *(csv + packed for csv in CSV for packed in PACKED), *PARQUET, *ARROW)


class Place(NamedTuple):
    """Where the rows of a batch are: the name of their file, how many of its rows come before them, and words for a
    header, which is not counted."""

    where: str
    before: int
    below: str

    def row(self, i: int) -> str:
        """The i-th row of the batch in words."""
        return f"row {self.before + i + 1}{self.below}"

    def value(self, name: str, i: int) -> str:
        """Where the i-th value of a column is, with its file."""
        return f"{self.where}: column {name!r}, {self.row(i)}"


@cache
def pyarrow() -> Any:
    """The package pyarrow, imported when a table is read or written."""
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError("reading and writing tables needs pyarrow: pip install 'bnorm[app]'") from None
    pa.enable_signal_handlers(False)  # it would take signals away from the handlers of the command
    return pa


def said(error: Exception) -> str:
    """A library's error message in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()).removesuffix(".")


class Source:
    """A table in a file.

    columns    Arrow types by name
    reasons    why columns are not numbers, if their type does not say it
    doubts     what users might want to know about the way it is read
    position   rows that have been read, skipped ones included
    fraction   the fraction of the file that has been read, about
    dialect    how text is written in it
    below      " below the header" if there is one, as errors count the rows after it
    """

    below = ""
    dialect = PLAIN

    def __init__(
        self, given: Input, names: Sequence[str], kinds: Sequence[Any], reasons: dict[str, str] | None = None
    ) -> None:
        self.path, self.name, self.size = given.path, given.name, given.size
        if twice := sorted(name for name, n in Counter(names).items() if n > 1):
            raise DataError(f"{self.name}: column {twice[0]!r}: expected each name once, got it twice")
        self.columns: Mapping[str, Any] = dict(zip(names, kinds, strict=True))
        self.reasons = reasons or {}
        self.doubts: list[str] = []
        self.position = self._read = 0  # _read: rows that the reader has returned
        self.fraction = 0.0

    def is_number(self, name: str) -> bool:
        """Whether a column can be read as numbers; bools only if they are asked for by name."""
        return is_number(self.columns[name], bools=True)

    def share(self, columns: int) -> "Source | None":
        """Return the same table for one of several threads, which share `columns` columns of numbers and must read the
        same batches of rows. None if this table can only be read by one thread.
        """
        return None

    def read(self, names: Sequence[str], numbers: Sequence[str], skip: int = 0) -> Generator[Any]:
        """Yield record batches of these columns, in this order, without the first `skip` rows.

        They end at the same rows however much is skipped, so what is summed together is the same too.
        """
        self.position, self._read, self.fraction = 0, 0, 0.0
        try:
            for batch in self._batches(names, numbers, skip):
                self.position = max(self.position, skip) + batch.num_rows
                yield batch
        except (pyarrow().ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.name}: after row {self._read}: {said(error)}") from None
        self.position, self.fraction = self._read, 1.0

    def _batches(self, names: Sequence[str], numbers: Sequence[str], skip: int) -> Iterator[Any]:
        """Yield record batches from row `skip` on, which end at the same rows for every `skip`."""
        raise NotImplementedError

    def _after(self, batches: Iterable[Any], skip: int, start: int = 0) -> Iterator[Any]:
        """Yield batches, which begin at row `start`, without the rows before `skip`."""
        for batch in batches:
            start += batch.num_rows
            self._read = max(self._read, start)
            if (keep := start - skip) > 0:
                yield batch if keep >= batch.num_rows else batch.slice(batch.num_rows - keep)


def rows_per_batch(columns: int) -> int:
    """The number of rows whose numbers fill a batch."""
    return max(64, min(MOST_ROWS, BATCH // (8 * max(1, columns))))


def joined(batches: Sequence[Any]) -> Any:
    """Return record batches as one."""
    return batches[0] if len(batches) == 1 else pyarrow().concat_batches(batches)
