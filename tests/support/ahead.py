"""Compiles CUDA for later tests while earlier ones leave a processor idle.

Most of what some files of tests/gpu take is compiling, whose results building.py keeps. A second pytest runs these
files from the beginning, at a lower priority and heard by nobody; the first runs them last, when most is there. Only
the results of the first count.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# In this order: tests/kernels, which comes before the end, needs what the first two compile.
NAMES = "fake_cupy rows functional kernels layers"
FILES = [Path(__file__).parents[1] / "gpu" / f"test_{name}.py" for name in NAMES.split()]
second = pytest.StashKey[subprocess.Popen]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    config, there = session.config, {item.path for item in session.items}
    files = [path for path in FILES if path in there]
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or hasattr(config, "workerinput"):
        return  # workers of pytest-xdist leave no processor idle
    if not files or session.items[0].path in FILES or config.option.collectonly:
        return  # there is nothing to run before these files; or this is the second
    pytest_again = ["nice", "-n", "10", sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    config.stash[second] = subprocess.Popen(
        [*pytest_again, "-m", config.option.markexpr, "-k", config.option.keyword, *map(str, files)],
        cwd=config.rootpath,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    session.items.sort(key=lambda item: item.path in FILES)


def pytest_unconfigure(config: pytest.Config) -> None:
    process = config.stash.get(second, None)
    if process is None:
        return
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)  # which lets it clear up
    process.wait()
