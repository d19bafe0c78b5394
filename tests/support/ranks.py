"""Ranks for tests: threads of this process, or real ranks of MPI, for which tests wait no longer than a time limit."""

import shutil
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

import child
from child import LIMIT


class Threads:
    """A communicator whose ranks are threads: every rank has a copy of this object."""

    def __init__(self, rank, board, barrier):
        self.rank, self.board, self.barrier = rank, board, barrier

    def allgather(self, value):
        self.board[self.rank] = value
        self.barrier.wait()
        values = list(self.board)
        self.barrier.wait()
        return values


def in_threads(n, function):
    """Call `function(rank, comm)` on n ranks at once. Return what each returned, or the exception that it raised."""
    board, barrier = [None] * n, threading.Barrier(n, timeout=LIMIT)
    results = [None] * n

    def rank(i):
        try:
            results[i] = function(i, Threads(i, board, barrier))
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=rank, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        if thread.is_alive():
            raise TimeoutError(f"a rank still runs after {LIMIT} s")
    return results


def all_of(n, function):
    """The same if every rank must succeed."""
    results = in_threads(n, function)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def launcher():
    """Return the path of mpiexec: that of this environment, or else of the system."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


MISSING = [name for name, found in (("mpi4py", find_spec("mpi4py")), ("mpiexec", launcher())) if not found]
needs_mpi = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def with_mpi(n, script, *args, timeout=LIMIT, python=()):
    """Run `mpiexec -n N python ... script args...`, and return the finished process. Scripts are in this folder.

    TimeoutExpired after the limit, and then all ranks are killed.
    """
    command = [launcher(), "-n", n, sys.executable, *python, Path(__file__).parent / script, *args]
    return child.started(command, timeout=timeout, OMP_NUM_THREADS=1)
