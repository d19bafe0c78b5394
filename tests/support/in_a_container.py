"""A process in a container with one core and 160 MB: it prints its number of threads, this number after it has set one,
and how much freed memory it keeps."""

from pathlib import Path

FILES = {
    "/proc/self/cgroup": "0::/\n",
    "/sys/fs/cgroup/cpu.max": "100000 100000\n",
    "/sys/fs/cgroup/memory.max": "160000000\n",
}
read_text = Path.read_text
Path.read_text = lambda path, *args, **how: FILES.get(path.as_posix()) or read_text(path, *args, **how)

import bnorm  # noqa: E402

print(bnorm.get_num_threads())
bnorm.set_num_threads(3)
print(bnorm.get_num_threads())
print(bnorm.get_buffer_limit())
