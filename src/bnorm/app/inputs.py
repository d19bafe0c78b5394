"""The input of a command: files, folders, globs and standard input as one stream of batches of columns."""

import os
import re
from collections.abc import Generator, Iterator, Sequence
from glob import glob  # pathlib's glob takes no absolute paths
from itertools import takewhile
from pathlib import Path
from typing import Any

from bnorm.app import opening, places
from bnorm.app.choosing import refuse_unknown
from bnorm.app.columnar import ArrowSource, ParquetSource
from bnorm.app.csv_source import CsvSource
from bnorm.app.dialects import PLAIN, Dialect
from bnorm.app.errors import DataError
from bnorm.app.opening import Input
from bnorm.app.sources import ARROW, CSV, PACKED, PARQUET, SUFFIXES, Place, Source, pyarrow, said

STDIN = "-"
MAGIC = frozenset("*?[")  # in the names of globs
REMOTE = {"s3": "aws s3 cp {} -", "gs": "gcloud storage cat {}", "gcs": "gcloud storage cat {}"}
KINDS: dict[bytes, type[ParquetSource] | type[ArrowSource]] = {
    opening.PARQUET: ParquetSource,
    opening.ARROW_FILE: ArrowSource,
    opening.ARROW_STREAM: ArrowSource,
}


def find(names: Sequence[str], dialect: Dialect = PLAIN, output: str | None = None) -> list[Source]:
    """Return the sources of paths, folders and globs, in this order; files of a folder or glob are sorted by name.

    output: a folder that the command writes to. What a folder or glob has there is left out, unless that is all: it may
    be from the same command, before an interrupt.
    """
    found: list[Source] = []
    for name in names:
        if name == STDIN:
            if any(s.name == "standard input" for s in found):
                raise DataError("standard input: expected once, got it twice")
            found.append(source(None, dialect))
        else:
            paths = _paths(name, dialect.delimiter is not None)
            if output is not None:
                paths = [p for p in paths if not _is_below(p, output)] or paths
            found += [source(path, dialect) for path in paths]
    return found


def once(sources: Sequence[Source]) -> None:
    """Raise DataError for a file that a command would count twice, also as a file and as standard input."""
    places.once(s.name if s.path else "/dev/stdin" for s in sources)


def source(path: Path | None, dialect: Dialect = PLAIN) -> Source:
    """Return the source for a file, by its suffix, or for a pipe or standard input (None), by its first bytes."""
    pa = pyarrow()
    name = path.name.lower() if path else ""
    for packed in PACKED:
        name = name.removesuffix(packed)
    suffix = Path(name).suffix
    try:
        given = Input(path)
        if path and path.suffix.lower() in PARQUET:
            return ParquetSource(given)
        if path and path.suffix.lower() in ARROW:
            return ArrowSource(given)
        first = given.first(16)
        given.refuse(first, "a table")
        if given.again and suffix not in CSV and not dialect.delimiter:
            raise DataError(f"{path}: expected a suffix of {', '.join(SUFFIXES)}, got {suffix or 'none'}; "
                            "with --delimiter , any file is read as CSV")  # fmt: skip
        for magic, kind in KINDS.items():
            if opening.begins(first, magic):
                return kind(given)
        return CsvSource(given, dialect.delimiter or CSV.get(suffix, ","), dialect)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path or 'standard input'}: {said(error)}") from None


def _paths(name: str, any_name: bool) -> list[Path]:
    """Return the files of a name. any_name: whether a glob finds tables whatever they are called."""
    if remote := re.match(r"(\w+)://", name):
        fetch = REMOTE.get(remote[1].lower(), "curl -fsSL '{}'").format(name)
        raise DataError(f"{name}: expected a file here; {fetch} | bnorm ... - reads one from elsewhere")
    if not name:  # such as an unset variable of a shell, which would be this folder
        raise DataError("expected the name of a file or folder, got ''")
    path = Path(name)
    if path.is_dir():
        inside = sorted(p for p in path.rglob("*") if _is_data(p.relative_to(path)) and _is_file(p))
        if not inside:
            raise DataError(f"{name}: expected a folder with {', '.join(SUFFIXES)} files, got none")
        return inside
    if path.exists():
        return [path]
    if MAGIC.intersection(name):
        if matches := sorted(p for p in map(Path, glob(name, recursive=True)) if _is_file(p)):  # noqa: PTH207
            given = len(list(takewhile(lambda part: not MAGIC.intersection(part), path.parts)))  # parts that are named
            return [p for p in matches if _is_data(Path(*p.parts[given:]), any_name)] or matches
        raise DataError(f"{name}: no file matches")
    raise DataError(f"{name}: no such file or folder")


def _is_file(path: Path) -> bool:
    """Whether it is a file, or a broken link: this is not left out, so that opening it is an error."""
    return path.is_file() or not path.exists()


def _is_below(path: Path, folder: str) -> bool:
    """Whether a file is in a folder or further down, by links too."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _is_data(path: Path, any_name: bool = False) -> bool:
    """Whether a file of a folder is data: not hidden, and not one like _SUCCESS or _metadata."""
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and (any_name or path.name.lower().endswith(SUFFIXES))


def size_of(sources: Sequence[Source]) -> int:
    """Bytes of all sources; 0 if one is of unknown size."""
    sizes = [s.size for s in sources]
    return sum(sizes) if all(sizes) else 0


class Stream:
    """Several sources as one stream, with the columns of the first.

    numbers   columns that are read as numbers
    others    columns that are passed through unchanged
    """

    def __init__(self, sources: Sequence[Source], numbers: Sequence[str], others: Sequence[str] = ()) -> None:
        self.sources, self.numbers, self.others = sources, list(numbers), list(others)
        for s in sources:
            self._check(s)
        self.here = sources[0]  # the source that is being read
        self.row = 0  # rows of this source before the last batch
        self._done = 0.0

    def shares(self, most: int, beside: Sequence[str] = ()) -> list["Stream"]:
        """Split the numbers into at most `most` streams, one for each thread, all with the same batches of rows. Return
        [self] if there are other columns, or if its sources cannot be shared. beside: numbers that each stream has.
        """
        names = [name for name in self.numbers if name not in beside]
        width = -(-len(names) // most)
        sets = [[*names[i : i + width], *beside] for i in range(0, len(names), width)]
        shared = [[s.share(len(self.numbers)) for s in self.sources] for _ in sets]
        if len(sets) == 1 or self.others or None in shared[0]:
            return [self]
        return [Stream([s for s in sources if s], names) for sources, names in zip(shared, sets, strict=True)]

    def __iter__(self) -> Iterator[Any]:
        return self.read()

    def read(self, skip: int = 0) -> Generator[Any]:
        """Yield batches of `numbers` and `others`, in this order, without the first `skip` rows of the stream."""
        names = self.numbers + self.others
        self._done = 0.0
        for s in self.sources:
            self.here, self.row = s, 0
            for batch in s.read(names, self.numbers, skip):
                self.row = s.position - batch.num_rows
                yield batch
            skip = max(0, skip - s.position)
            self._done += s.size

    @property
    def where(self) -> str:
        """The name of the source that is being read."""
        return self.here.name

    @property
    def place(self) -> Place:
        """Where the last batch is."""
        return Place(self.here.name, self.row, self.here.below)

    @property
    def size(self) -> int:
        """Bytes of all sources; 0 if one is of unknown size."""
        return size_of(self.sources)

    @property
    def progress(self) -> float:
        """About how many of these bytes have been read, while a batch is in use."""
        return self._done + self.here.size * self.here.fraction

    def _check(self, s: Source) -> None:
        first = self.sources[0]
        like = f", as {first.name} has it" if s is not first else ""
        refuse_unknown(s, self.numbers + self.others, like)
        for name in self.numbers:
            if not s.is_number(name):
                got = s.reasons.get(name) or s.columns[name]
                raise DataError(f"{s.name}: column {name!r}: expected numbers{like}, got {got}")
