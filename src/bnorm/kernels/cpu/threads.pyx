"""The number of threads of a call, and what happens to threads in a fork."""

import operator
import os

from .container import cores

cdef extern from "threads.h" nogil:
    int BN_OPENMP
    int omp_get_max_threads()
    void omp_set_num_threads(int)
    int bn_release_workers()
    int bn_startable(int)
    bint bn_read_environment()
    bint bn_alone(Py_ssize_t)
    void bn_trust()
    void bn_share(part_t, void*, int)
    void bn_judge(double, double, double, bint)
    double bn_alone_until, bn_small_until
    Py_ssize_t bn_asked

cdef enum:
    # A call on fewer values stays on one thread. On 2 cores, an idle second thread makes calls on 65,536 float32 values
    # (256 KiB) 1.15 to 1.6 times as fast, and calls on half as many hardly faster. benchmarks/threshold.py measures it.
    SERIAL = 65536

# The argument of set_num_threads; before its first call the CPU quota, unless the user has set a number. 0: no limit.
cdef int limit = 0 if "OMP_NUM_THREADS" in os.environ else cores() or 0
# Whether no other threads compute: their stacks are too small, or this is a forked child that cannot start any.
cdef bint serial = not bn_read_environment()


cdef int threads_for(Py_ssize_t values, Py_ssize_t tasks) noexcept nogil:
    """Return the number of threads for a call on this many values, in this many tasks."""
    if values < SERIAL or tasks < 2 or bn_alone(values):
        return 1
    cdef int n = allowed()
    if n > tasks:
        n = <int>tasks
    return n if n == 1 else bn_startable(n)


cdef void share(part_t part, void* job, int threads) noexcept nogil:
    """Run part(job, i) for every i below `threads`, each on its own thread; on one alone without a team to judge."""
    if threads == 1:
        part(job, 0)
    else:
        bn_share(part, job, threads)


cdef int allowed() noexcept nogil:
    # Read in every call, so that threadpoolctl and omp_set_num_threads take effect.
    cdef int n = 1 if serial else omp_get_max_threads()
    return limit if 0 < limit < n else n


def set_num_threads(n):
    """Set the number of threads of a large call. Results do not depend on it, to the last bit.

    For the calling thread it also sets the number of the OpenMP runtime, as torch.set_num_threads does, even above
    OMP_NUM_THREADS. Other libraries that share the runtime see it. A later limit of threadpoolctl takes precedence.

    Parameters
    ----------
    n : int
        At least 1.
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
    bn_trust()


def get_num_threads():
    """Return the number of threads that a large call from this thread would use."""
    return allowed()


def resting(Py_ssize_t values=0):
    """Whether this thread works alone for a while on calls on so many values, because others of its team came too late,
    or it has just slept."""
    return bool(bn_alone(values))


def judged(double begun, double took, double alone, Py_ssize_t values=0):
    """Judge a call that began and took so many seconds, where one thread would have needed `alone`, as if this thread
    had made it. Return for how many seconds this thread then works alone on so many values. For tests."""
    global bn_asked
    bn_asked = values
    bn_judge(begun, took, alone, True)
    return max(0.0, max(bn_alone_until, bn_small_until) - begun - took)


def limit_caller(int n):
    """Limit large calls from this thread, and only from this thread, to n threads. Return the old limit."""
    cdef int before = omp_get_max_threads()
    omp_set_num_threads(n)
    return before


def openmp_version():
    """Return the date of the OpenMP standard that bnorm was compiled with (201511 is 4.5), or 0 without OpenMP."""
    return BN_OPENMP


cdef bint kept = False      # whether there were workers before the last fork that the runtime could not end


def _before_fork():
    global kept
    kept = not bn_release_workers()


def _after_fork_in_child():
    """Let the child stay serial if it cannot start threads. In the parent nothing changes: threads may be computing."""
    global serial
    serial = serial or kept


if BN_OPENMP and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
