"""What a result file says of the machine and the software, so that its numbers can be judged."""

import os
import platform
import re
import time
from datetime import UTC, datetime
from math import inf
from pathlib import Path


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    info = Path("/proc/cpuinfo")
    return named_in(info.read_text() if info.exists() else "") or platform.processor() or platform.machine()


def named_in(cpuinfo: str) -> str | None:
    """Return the processor's name. If a virtual machine hides AMD's model, the family tells the generation: 25 is
    Zen 4, 26 Zen 5.
    """
    found = dict(re.findall(r"^(model name|cpu family)[ \t]*:[ \t]*(.+?)[ \t]*$", cpuinfo, re.MULTILINE))
    if found.get("model name") == "AMD EPYC" and "cpu family" in found:
        return f"AMD EPYC (family {found['cpu family']})"
    return found.get("model name")


def facts(simd: str) -> dict[str, object]:
    return {
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "simd": simd,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def free_memory() -> float:
    """Return the bytes that can be allocated without swapping; infinity if the system does not say."""
    info = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", info.read_text(), re.MULTILINE) if info.exists() else None
    return 1024.0 * int(found[1]) if found else inf


def file_name() -> str:
    """Return a file name for this machine, such as amd-epyc-family-26-2-cores.json."""
    words = re.sub(r"\((R|TM)\)|[^A-Za-z0-9]+", " ", processor()).lower().split()
    return "-".join([*words, str(cores()), "cores"]) + ".json"


class Others:
    """How many cores other processes have used since this object was made. On Linux; elsewhere None."""

    QUIET = 0.1

    def __init__(self) -> None:
        self.start = self._now()

    def cores(self) -> float | None:
        """Return the cores, without those of this process and of its children that have ended."""
        now = self._now()
        if self.start is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self.start, now, strict=True))
        return round(max(0.0, busy - own) / wall, 2)

    @classmethod
    def said(cls, busy: float | None) -> str:
        """Return what a page says about it after another sentence: nothing, if it is little."""
        if busy is not None and busy <= cls.QUIET:
            return ""
        return f" Other programs took {'some' if busy is None else busy} of the cores meanwhile."

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split("\n")[0].split()[1:9])
        ticks = user + nice + system + irq + softirq + steal
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])
