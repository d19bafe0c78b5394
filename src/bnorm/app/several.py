"""`bnorm transform -o folder/`: one output for each input, under its name.

Every output is complete or not there, so a command that was interrupted can go on with `--resume`: a journal in the
folder lists what is done, with the settings that it was done with.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bnorm.app import places
from bnorm.app.errors import DataError
from bnorm.app.progress import Progress
from bnorm.app.sources import Source
from bnorm.app.writers import check_suffix
from bnorm.files.replacing import replacing, sweep

JOURNAL = ".bnorm-transform.jsonl"


def is_folder(output: str) -> bool:
    """Whether an output stands for one file for each input."""
    try:
        return output.endswith(("/", os.sep)) or (output != "" and Path(output).is_dir())
    except OSError:  # a folder that may not be searched: `places.check` reports it
        return False


def outputs(sources: Sequence[Source], named: Sequence[str], folder: str) -> list[Path]:
    """Return the path of each output: below `folder`, as its source is below the folder that has all sources.

    named: what the command names, files and folders. A folder keeps its subfolders, even if all sources are in one.
    """
    for s in sources:
        if s.path is None:
            raise DataError(f"{folder}: expected the name of a file for standard input, which has no name")
        try:
            check_suffix(s.name)
        except ValueError as error:
            raise DataError(f"{s.name}: {error}") from None
    paths = [_normal(s.name) for s in sources]
    folders = [_normal(name) for name in named if Path(name).is_dir()]
    base = os.path.commonpath([*folders, *(path.parent for path in paths)])
    return [Path(folder) / path.relative_to(base) for path in paths]


def _normal(name: str) -> Path:
    return Path(os.path.normpath(Path(name).absolute()))


class Journal:
    """What a command that writes several files has done: its settings, and a line for each complete file."""

    def __init__(self, folder: str, asked: dict[str, Any], resume: bool) -> None:
        self._path = Path(folder) / JOURNAL
        self._asked, self._done = self._read() if resume else (asked, {})
        for name, value in asked.items():
            if (before := self._asked.get(name)) != value:
                raise DataError(f"{folder}: {name}: expected {value!r}, as asked for now, got {before!r}")

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            *lines, _ = self._path.read_text().split("\n")  # an unfinished line can only be the last one
            if lines:
                asked, *done = map(json.loads, lines)
                return dict(asked), dict(done)
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{self._path}: expected the journal of a command, got a damaged one: {error}") from None
        raise DataError(f"{self._path.parent}: expected an interrupted command to continue, got none")

    def has(self, s: Source, output: Path) -> bool:
        """Whether the output of a source is done, and the source is as it was then."""
        return output.exists() and self._done.get(str(output)) == _mark(s.name)

    def made(self, output: Path) -> bool:
        """Whether a file is an output that is done, of whatever its source was then."""
        return str(output) in self._done

    def begin(self) -> None:
        """Write a journal of what is done so far. Until it is complete, the one before stays."""
        sweep([self._path])
        with replacing(self._path) as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in [self._asked, *self._done.items()]).encode())

    def note(self, s: Source, output: Path) -> None:
        with self._path.open("a") as file:
            file.write(f"{json.dumps([str(output), _mark(s.name)])}\n")

    def is_there(self) -> bool:
        """Whether an earlier command has begun and not ended."""
        return self._path.exists()

    def end(self) -> None:
        self._path.unlink(missing_ok=True)


def each(
    sources: Sequence[Source],
    named: Sequence[str],
    folder: str,
    asked: dict[str, Any],
    resume: bool,
    force: bool,
    make: Callable[[Source, str], None],
    goes_on: list[str],
    progress: Progress,
) -> int:
    """Call `make` for every source with its output, but not for those that are done. Returns how many these are.

    named: the files and folders that the command names.
    goes_on: gets the argument that continues the command.
    """
    pairs = list(zip(sources, outputs(sources, named, folder), strict=True))
    places.keep([s.name for s in sources], [path for _, path in pairs])
    journal = Journal(folder, asked, resume)
    left = [(s, path) for s, path in pairs if not journal.has(s, path)]
    for _, path in pairs:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        places.check([path for _, path in left if journal.made(path)], force=True)
        places.check([path for _, path in left if not journal.made(path)], force)
    except DataError as error:
        more = ", and --resume goes on with an interrupted command" if journal.is_there() and not resume else ""
        raise DataError(f"{error}{more}") from None
    journal.begin()
    goes_on.append("--resume")
    progress.resume(0, sum(s.size for s in sources) - sum(s.size for s, _ in left))
    for s, path in left:
        before = _mark(path) if path.exists() else None
        try:
            make(s, str(path))
        finally:
            if path.exists() and _mark(path) != before:  # also if a signal came when it was there already
                journal.note(s, path)
    journal.end()
    return len(pairs) - len(left)


def _mark(path: str | Path) -> list[int]:
    """Return size and time of a file, which show whether it has changed."""
    known = Path(path).stat()
    return [known.st_size, known.st_mtime_ns]
