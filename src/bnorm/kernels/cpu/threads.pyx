"""How many threads a call uses, decided in one place, and what happens to them at a fork."""

import operator
import os

cdef extern from "threads.h" nogil:
    int BN_OPENMP
    int omp_get_max_threads()
    void omp_set_num_threads(int)
    int bn_release_workers()
    int bn_startable(int)

cdef enum:
    # Below this many values a call stays on one thread: at 2 cores a second thread begins to pay near 65,536 float32
    # values (256 KiB) when it is idle, and costs milliseconds when its core is taken, since the OpenMP runtime spins at
    # its barrier. benchmarks/threshold.py measures it.
    SERIAL = 131072

cdef int limit = 0          # what set_num_threads asked for; 0: not asked
cdef bint serial = False    # in a forked child whose runtime cannot start threads


cdef int threads_for(Py_ssize_t values, Py_ssize_t tasks) noexcept nogil:
    """Threads for a call on so many values, cut into so many tasks."""
    if values < SERIAL or tasks < 2:
        return 1
    cdef int n = allowed()
    if n > tasks:
        n = <int>tasks
    return n if n == 1 else bn_startable(n)


cdef int allowed() noexcept nogil:
    # Asked anew at every call, so that threadpoolctl and omp_set_num_threads are obeyed.
    cdef int n = 1 if serial else omp_get_max_threads()
    return limit if 0 < limit < n else n


def set_num_threads(n):
    """Use at most n threads from now on (n >= 1); in the calling thread n, even where OMP_NUM_THREADS is less.

    It is also the OpenMP runtime's setting for the calling thread, as torch.set_num_threads is, and libraries that
    share the runtime see it. A limit set later by threadpoolctl holds. Results do not depend on it, to the last bit.
    """
    global limit
    if isinstance(n, bool):
        raise TypeError("set_num_threads: n: expected an integer, got a bool")
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"set_num_threads: n: expected an integer, got {type(n).__name__}") from None
    if not 1 <= n <= 65535:
        raise ValueError(f"set_num_threads: n: expected 1 to 65535, got {n}")
    limit = n
    omp_set_num_threads(n)


def get_num_threads():
    """The number of threads that a large call from this thread would use now."""
    return allowed()


def limit_caller(int n):
    """Let large calls from this thread, and from no other, use at most n threads; returns what held before."""
    cdef int before = omp_get_max_threads()
    omp_set_num_threads(n)
    return before


def openmp_version():
    """The date of the OpenMP standard compiled in (201511 is 4.5), 0 without OpenMP."""
    return BN_OPENMP


cdef bint was_serial = False


def _before_fork():
    global serial, was_serial
    was_serial = serial
    serial = serial or not bn_release_workers()


def _after_fork_in_parent():
    global serial
    serial = was_serial


if BN_OPENMP and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)
