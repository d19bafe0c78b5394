"""Files that are replaced in one step: a reader sees either the old file or the complete new one.

Until then the new file is a hidden one beside the old, locked while it is written. A hidden file without a lock was
left by a killed process.
"""

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # on Windows: an open file cannot be replaced there, and nothing is swept
    fcntl = None  # type: ignore[assignment]

HIDDEN = re.compile(r"\.(.*)\.[0-9a-f]{16}\.tmp", re.DOTALL)


@contextmanager
def replacing(path: Any, durable: bool = False) -> Iterator[BinaryIO]:
    """A temporary file that replaces `path` when the block ends without an error; otherwise nothing changes.

    Any number of threads and processes, on machines that share a disk too, may do so at once: the last one wins.

    durable: flush it to the disk first, so that it survives a crash of the machine.
    """
    place = Path(path).resolve()  # a link stays, and its target is replaced
    if not place.parent.is_dir():  # otherwise the error would name the temporary file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    beside = place
    try:
        beside, file = _begun(place)
        with file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if place.exists():
                beside.chmod(place.stat().st_mode & 0o7777)
            if fcntl is None:
                file.close()
            beside.replace(place)  # while it is locked
    except BaseException as error:
        if beside != place:
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:  # such as that of a full disk
            if error.filename is None or HIDDEN.fullmatch(Path(error.filename).name):
                error.filename = os.fspath(path)
        raise


def sweep(paths: Iterable[Any]) -> None:
    """Remove the hidden files that killed processes have left beside these files."""
    folders: dict[Path, set[str]] = {}
    for path in paths:
        place = Path(path).resolve()
        folders.setdefault(place.parent, set()).add(_shortened(place.name))
    for folder, names in folders.items() if fcntl else ():
        inside: list[Path] = []
        with suppress(OSError):  # a folder that may not be listed
            inside = list(folder.iterdir())
        for left in inside:
            hidden = HIDDEN.fullmatch(left.name)
            if hidden and hidden[1] in names:
                with suppress(OSError), left.open("rb") as file:  # it is locked, or gone, or another user's
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()


def _begun(place: Path) -> tuple[Path, BinaryIO]:
    """Create a hidden file, locked."""
    while True:
        beside = place.with_name(f".{_shortened(place.name)}.{os.urandom(8).hex()}.tmp")
        file = beside.open("xb")  # never a file that is there already
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if beside.exists():
            return beside, file
        file.close()  # swept by another process before it was locked


def _shortened(name: str) -> str:
    """Cut a name so that more can be added to it: file systems allow 255 bytes."""
    return os.fsencode(name)[:200].decode(sys.getfilesystemencoding(), errors="ignore")
