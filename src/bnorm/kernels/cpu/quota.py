"""How many cores a container or a service may keep busy, where the system limits that: Linux's control groups.

OpenMP sees all cores of the machine. If it uses them, the process has used up its share of each period of 100 ms after
a few of them, and then stands still.
"""

from collections.abc import Iterator
from math import ceil
from pathlib import Path

LIST, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cores(groups: Path = LIST, mount: Path = MOUNT) -> int | None:
    """Return the CPU quota of this process in cores, rounded up; None if there is none.

    groups: lists the control groups of the process, in lines such as "0::/path" (version 2) and "4:cpu,cpuacct:/path"
    (version 1). A quota of a group holds for all groups inside it.
    """
    found = [limit for folder in _folders(groups, mount) if (limit := _limit(folder)) is not None]
    return max(1, ceil(min(found))) if found else None


def _folders(groups: Path, mount: Path) -> Iterator[Path]:
    for line in _words(groups, "\n"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # A container may see the path that its group has outside, but its own group as the root.
        inside = [name for name in path.split("/") if name not in ("", "..")]
        top = mount / "cpu" if controllers else mount
        yield from (top.joinpath(*inside[:n]) for n in range(len(inside) + 1))


def _limit(folder: Path) -> float | None:
    """Return the quota of one group, in cores."""
    quota = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    if len(quota) != 2 or not quota[0].isdecimal():  # "max", or -1
        return None
    return int(quota[0]) / int(quota[1])


def _words(path: Path, separator: str | None = None) -> list[str]:
    """Return the words, or lines, of a small file; none if it cannot be read."""
    try:
        return [word for word in path.read_text(encoding="utf-8").split(separator) if word]
    except OSError:
        return []
