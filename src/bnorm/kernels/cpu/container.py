"""What a container or a service may use of its machine, where Linux limits that: its control groups.

OpenMP sees all cores of the machine. If it uses them, the process has used up its share of each period of 100 ms after
a few of them, and then stands still. A process that uses more memory than its groups may have is killed.
"""

from collections.abc import Iterator
from math import ceil
from pathlib import Path

LIST, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cores(groups: Path = LIST, mount: Path = MOUNT) -> int | None:
    """Return how many cores this process may keep busy, its CPU quota, rounded up; None if there is none.

    groups: lists the control groups of the process, in lines such as "0::/path" (version 2) and "4:cpu,cpuacct:/path"
    (version 1). What limits a group also limits those inside it.
    """
    limits = []
    for folder in _folders("cpu", groups, mount):
        quota = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0].isdecimal():  # not "max", nor -1
            limits.append(int(quota[0]) / int(quota[1]))
    return max(1, ceil(min(limits))) if limits else None


def memory(groups: Path = LIST, mount: Path = MOUNT) -> int | None:
    """Return how many bytes of memory the groups of this process may have; None if there is no limit."""
    limits = []
    for folder in _folders("memory", groups, mount):
        limit = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        if len(limit) == 1 and limit[0].isdecimal():
            limits.append(int(limit[0]))
    return min(limits) if limits else None


def _folders(controller: str, groups: Path, mount: Path) -> Iterator[Path]:
    """Yield the folders of the groups that limit the process."""
    for line in _words(groups, "\n"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # A container may see the path that its group has outside, but its own group as the root.
        inside = [name for name in path.split("/") if name not in ("", "..")]
        top = mount / controller if controllers else mount
        yield from (top.joinpath(*inside[:n]) for n in range(len(inside) + 1))


def _words(path: Path, separator: str | None = None) -> list[str]:
    """Return the words, or lines, of a small file; none if it cannot be read."""
    try:
        return [word for word in path.read_text(encoding="utf-8").split(separator) if word]
    except OSError:
        return []
