"""The paths that a command may write, checked before any work is done."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from bnorm.app.errors import DataError
from bnorm.files.replacing import sweep


def check(outputs: Iterable[str | Path], force: bool) -> None:
    """Raise DataError for paths that cannot be written, or that exist already, unless `force` overwrites them.

    Temporary files that a killed command has left beside them are removed.
    """
    paths, seen = [Path(path) for path in outputs], set()
    for path in paths:
        kind, folder = _kind(path), Path(os.path.realpath(path)).parent
        if kind == stat.S_IFDIR or not folder.is_dir():
            raise DataError(f"{path}: expected the name of a file in an existing folder")
        if kind not in (0, stat.S_IFREG):
            raise DataError(f"{path}: expected a file, got a pipe or device: -o - writes CSV to standard output")
        if (identity := _identity(path)) in seen:
            raise DataError(f"{path}: expected two files, got one for two outputs")
        if kind and not force:
            raise DataError(f"{path}: already exists; --force overwrites it")
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise DataError(f"{path}: expected a folder that may be written to")
        seen.add(identity)
    sweep(paths)


def keep(inputs: Iterable[str | Path], outputs: Iterable[str | Path]) -> None:
    """Raise DataError for an output that is an input, even with `force`: the input would be lost."""
    read = set(map(_identity, inputs))
    for path in outputs:
        if _identity(path) in read:
            raise DataError(f"{path}: is read by this command, which does not write over it")


def once(inputs: Iterable[str | Path]) -> None:
    """Raise DataError for a file that is given twice, by links too: its rows would count twice."""
    seen: dict[object, str | Path] = {}
    for path in inputs:
        if (identity := _identity(path)) in seen:
            raise DataError(f"{path}: expected each file once, got it twice, first as {seen[identity]}")
        seen[identity] = path


def same(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to the same file, by links too."""
    return _identity(one) == _identity(other)


def _identity(path: str | Path) -> tuple[int, int] | str:
    """Return a value that is the same for all names of a file."""
    try:
        known = Path(path).stat()
    except OSError:
        return os.path.realpath(path)
    return known.st_dev, known.st_ino


def _kind(path: Path) -> int:
    """The kind of a file, as in `stat`; 0 if there is none."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
