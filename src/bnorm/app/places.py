"""The paths that a command may write, checked before any work is done."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from bnorm.app.errors import DataError
from bnorm.files.replacing import sweep


def check(outputs: Iterable[str | Path], force: bool) -> None:
    """DataError for paths that cannot be written, or that there are already, unless `force` overwrites them.

    What a killed command has left there is removed.
    """
    seen: list[Path] = []
    for path in map(Path, outputs):
        kind = _kind(path)
        if kind == stat.S_IFDIR or not Path(os.path.realpath(path)).parent.is_dir():
            raise DataError(f"{path}: expected the name of a file in an existing folder")
        if kind not in (0, stat.S_IFREG):
            raise DataError(f"{path}: expected a file, got a pipe or device: -o - writes CSV to standard output")
        if any(same(path, other) for other in seen):
            raise DataError(f"{path}: expected two files, got one for two outputs")
        if kind and not force:
            raise DataError(f"{path}: already exists; --force overwrites it")
        seen.append(path)
    sweep(seen)


def keep(inputs: Iterable[str | Path], outputs: Iterable[str | Path]) -> None:
    """DataError for an output that is an input. There is no force for it: the input would be gone."""
    for path in outputs:
        if any(same(path, read) for read in inputs):
            raise DataError(f"{path}: is read by this command, which does not write over it")


def same(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to the same file, by links too."""
    one, other = Path(one), Path(other)
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    return one.exists() and other.exists() and one.samefile(other)


def _kind(path: Path) -> int:
    """The kind of a file, as in `stat`; 0 if there is none."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
