"""Sizes that `bnorm tune` has found for this processor: a file in the user's cache folder, read when bnorm is imported.

Arrays of at least these sizes are fetched ahead or stored past the caches. No bit of a result depends on them.
"""

import os
import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from . import entries

MOST = 1 << 60  # bytes; more than any array has
LEAST = {"looked": 1 << 19}  # a look needs 64 KB, and an input of integers may have an eighth of the output's bytes
_in_use: Path | None = None


def in_use() -> Path | None:
    """Return the file that the sizes in use come from, or None if they are those that bnorm was built with."""
    return _in_use


def folder() -> Path | None:
    """Return bnorm's folder in the user's cache (XDG Base Directory Specification), or None without a home folder."""
    named = [os.environ.get(name) for name in ("XDG_CACHE_HOME", "LOCALAPPDATA")]
    places = [Path(place) for place in named if place]
    with suppress(RuntimeError):
        places.append(Path.home() / ".cache")
    return next((place / "bnorm" for place in places if place.is_absolute()), None)


def file_of(within: Path) -> Path:
    """Return the path of the file for this processor and this number of cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = re.sub(r"\((R|TM)\)|[^A-Za-z0-9]+", " ", _processor()).lower().split()
    return within / ("-".join([*words, str(cores), "cores"]) + ".sizes")


def named_in(cpuinfo: Iterable[str]) -> str | None:
    """Return the first core's name and family. In a virtual machine that hides the model, Zen 4 and 5 have one name."""
    fields = (line.partition(":") for line in cpuinfo)
    first = {name.strip(): value.strip() for name, _, value in takewhile(lambda field: field[1], fields)}
    return f"{first['model name']} family {first.get('cpu family', '')}" if "model name" in first else None


def _processor() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as info:
        if name := named_in(info):
            return name
    import platform

    return platform.processor() or platform.machine()


def text_of(sizes: dict[str, int]) -> str:
    return "".join(f"{name} = {size}\n" for name, size in sizes.items())


def sizes_in(text: str) -> dict[str, int]:
    """Return the sizes in a text from text_of. ValueError unless each size is there once, and within its bounds."""
    lines = [line.split(" = ") for line in text.splitlines()]
    names = list(entries.use_sizes())
    if sorted(line[0] for line in lines) != sorted(names):
        raise ValueError(f"expected a line for each of {', '.join(names)}")
    for line in lines:
        least = LEAST.get(line[0], 1)
        if len(line) != 2 or not re.fullmatch("[0-9]{1,19}", line[1]) or not least <= int(line[1]) <= MOST:
            raise ValueError(f"{line[0]}: expected a number of bytes from {least} to {MOST}")
    return {name: int(size) for name, size in lines}


def load() -> None:
    """Use the sizes of the file, if there is one. One that cannot be used is ignored with a warning."""
    global _in_use
    _in_use = None
    within = folder()
    if os.environ.get("BNORM_TUNED") == "0" or within is None:
        return
    path = within
    try:
        if not within.is_dir():  # on most machines loading ends here, after one system call
            return
        path = file_of(within)
        sizes = sizes_in(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        warnings.warn(f"bnorm: {path} is ignored: {error}; bnorm tune writes it again", RuntimeWarning, stacklevel=2)
        return
    entries.use_sizes(**sizes)
    _in_use = path
