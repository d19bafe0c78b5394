"""A process that finds a CPU quota of one core: it prints its number of threads, and again after it has set one."""

from pathlib import Path

FILES = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "100000 100000\n"}
read_text = Path.read_text
Path.read_text = lambda path, *args, **how: FILES.get(path.as_posix()) or read_text(path, *args, **how)

import bnorm  # noqa: E402

print(bnorm.get_num_threads())
bnorm.set_num_threads(3)
print(bnorm.get_num_threads())
