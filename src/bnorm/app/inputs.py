"""The input of a command: files, folders, globs and standard input as one stream of batches of columns."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from glob import glob  # of paths that may be absolute, which those of pathlib may not
from pathlib import Path
from typing import Any

from bnorm.app.errors import DataError
from bnorm.app.sources import SUFFIXES, Source, source
from bnorm.arrow import is_number

STDIN = "-"


def find(names: Sequence[str], delimiter: str | None = None) -> list[Source]:
    """The sources of paths, folders and globs, in the given order; files of a folder or glob are sorted by name."""
    found: list[Source] = []
    for name in names:
        if name == STDIN:
            if any(s.name == "standard input" for s in found):
                raise DataError("standard input: expected once, got it twice")
            found.append(source(None, delimiter))
        else:
            found += [source(path, delimiter) for path in _paths(name)]
    return found


def _paths(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        inside = sorted(p for p in path.rglob("*") if _is_data(p.relative_to(path)) and p.is_file())
        if not inside:
            raise DataError(f"{name}: expected a folder with {', '.join(SUFFIXES)} files, got none")
        return inside
    if path.exists():
        return [path]
    if any(c in name for c in "*?["):
        if matches := sorted(p for p in map(Path, glob(name, recursive=True)) if p.is_file()):  # noqa: PTH207
            return matches
        raise DataError(f"{name}: no file matches")
    raise DataError(f"{name}: no such file or folder")


def _is_data(path: Path) -> bool:
    """Whether a file of a folder is data: not hidden, and not one like _SUCCESS or _metadata."""
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and any(path.name.lower().endswith(suffix) for suffix in SUFFIXES)


class Stream:
    """Several sources as one stream, with the columns of the first.

    numbers   columns that are read as numbers
    others    columns that are passed through unchanged
    """

    def __init__(self, sources: Sequence[Source], numbers: Sequence[str], others: Sequence[str] = ()) -> None:
        self.sources, self.numbers, self.others = sources, list(numbers), list(others)
        for s in sources:
            self._check(s)
        self.where = sources[0].name  # the source that is being read
        self.row = 0  # rows of it before the last batch
        self._done = 0.0

    def __iter__(self) -> Iterator[Any]:
        return self.read()

    def read(self, skip: int = 0) -> Generator[Any]:
        """Record batches of `numbers` and `others`, in this order, without the first `skip` rows of the stream."""
        names = self.numbers + self.others
        for s in self.sources:
            self.where, self.row = s.name, 0
            for batch in s.read(names, self.numbers, skip):
                first = max(0, s.position - batch.num_rows)
                self.row = first
                yield batch
            skip = max(0, skip - s.position)
            self._done += s.size

    @property
    def size(self) -> int:
        """Bytes of all sources; 0 if one is of unknown size."""
        sizes = [s.size for s in self.sources]
        return sum(sizes) if all(sizes) else 0

    @property
    def progress(self) -> float:
        """About how many of these bytes have been read."""
        here = next((s for s in self.sources if s.name == self.where), None)
        return self._done + (here.size * here.fraction if here is not None and here.fraction < 1 else 0)

    def _check(self, s: Source) -> None:
        present = set(s.columns)
        first = self.sources[0]
        like = f", as {first.name} has it" if s is not first else ""
        for name in self.numbers + self.others:
            if name not in present:
                raise DataError(f"{s.name}: expected a column {name!r}{like}, got {_listed(s.columns)}")
        for name in self.numbers:
            if not s.is_number(name):
                raise DataError(f"{s.name}: column {name!r}: expected numbers{like}, got {s.columns[name]}")


def number_columns(first: Source) -> list[str]:
    """The columns of numbers in a source."""
    return [name for name, kind in first.columns.items() if is_number(kind)]


def choose(
    first: Source, only: Sequence[str] | None, exclude: Sequence[str] | None, weight: str | None = None
) -> list[str]:
    """The columns to learn from: those of `only`, or all columns of numbers except `exclude` and the weights."""
    for name in [*(only or ()), *(exclude or ()), *([weight] if weight else [])]:
        if name not in first.columns:
            raise DataError(f"{first.name}: expected a column {name!r}, got {_listed(first.columns)}")
    if only:
        chosen = list(dict.fromkeys(only))
        if weight in chosen:
            raise DataError(f"{first.name}: column {weight!r}: expected either a feature or the weights, got both")
    else:
        left_out = {*(exclude or ()), weight}
        chosen = [name for name in number_columns(first) if name not in left_out]
    if not chosen:
        raise DataError(f"{first.name}: expected a column of numbers, got {_listed(first.columns)}")
    return chosen


def check_same_columns(sources: Sequence[Source], names: Iterable[str]) -> None:
    """DataError if a later file has a column of numbers that the first file does not have."""
    known = set(names) | set(sources[0].columns)
    for s in sources[1:]:
        if more := [name for name in number_columns(s) if name not in known]:
            raise DataError(
                f"{s.name}: column {more[0]!r}: expected the columns of {sources[0].name}, which does not have it; "
                "choose with --columns or --exclude"
            )


def _listed(columns: Iterable[str], most: int = 8) -> str:
    names = list(columns)
    text = ", ".join(map(repr, names[:most])) or "no column"
    return text + (f" and {len(names) - most} more" if len(names) > most else "")
