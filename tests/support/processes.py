"""Functions that test_threads.py runs in processes of their own: `python processes.py NAME` calls one."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import sys
import threading
import time
import traceback
from itertools import permutations

import numpy as np

import bnorm
import bnorm.functional as F
from bnorm.kernels import cpu
from bnorm.kernels.cpu import threads

X = np.random.default_rng(0).standard_normal((4000, 64)).astype("f4")  # enough for all threads
SMALL = X[:640].reshape(64, 640)  # enough for two tasks, not for two threads


def answer(_=None):
    """Return the bytes of forwards and backwards of batch and layer norm; every pass of them uses all threads."""
    results = []
    for y, saved in (F.batch_norm(X), F.layer_norm(X, np.ones(64), normalized_shape=64)):
        results += [y, *F.backward(X, saved)[:2]]
    return b"".join(a.tobytes() for a in results if a is not None)


# Threads --------------------------------------------------------------------------------------------------------------


def started():
    """Return the number of threads that the system knows in this process."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def starts(wanted, call):
    """Check that a call starts this many threads and no more; on a busy machine it may use fewer for a while."""
    before, most = started(), 0
    for _ in range(50):
        while threads.resting():
            time.sleep(0.01)
        call()
        most = max(most, started() - before)
        if most >= wanted:
            break
    assert most == wanted, (most, wanted)


def threads_from_the_environment():
    """OMP_NUM_THREADS=3: the caller and two more threads, but none for little work."""
    assert bnorm.get_num_threads() == 3
    starts(0, lambda: F.batch_norm(SMALL))
    starts(2, answer)


def threads_of_tables(*shapes):
    """OMP_NUM_THREADS=2: both of them sum the columns of each, in a child that has not started a thread before."""
    for shape in shapes:
        x = np.zeros(tuple(map(int, shape.split("x"))), "f4")
        print(shape, flush=True)
        fork(lambda x=x: starts(1, lambda: F.moments(x)))


def threads_of_maps(*shapes):
    """OMP_NUM_THREADS=2: both of them normalize each by known statistics."""
    for shape in shapes:
        x = np.zeros(tuple(map(int, shape.split("x"))), "f4")
        print(shape, flush=True)
        fork(lambda x=x: starts(1, lambda: F.batch_norm(x, mean=np.zeros(x.shape[1]), var=np.ones(x.shape[1]))))


def threads_of_gradients(*shapes):
    """OMP_NUM_THREADS=2: one thread normalizes each in float32, both in float64, and both compute its gradient."""
    for shape in shapes:
        x = np.zeros(tuple(map(int, shape.split("x"))), "f4")
        print(shape, flush=True)
        fork(lambda x=x: starts(0, lambda: F.batch_norm(x)))
        fork(lambda x=x: starts(1, lambda: F.batch_norm(x.astype("f8"))))
        fork(lambda x=x: starts(0, lambda: F.layer_norm(x, normalized_shape=x.shape[1:])))
        fork(lambda x=x: starts(1, lambda: F.layer_norm(x.astype("f8"), normalized_shape=x.shape[1:])))
        _, saved = F.batch_norm(x)
        fork(lambda x=x, saved=saved: starts(1, lambda: F.backward(x, saved)))


def threads_that_were_set():
    """OMP_NUM_THREADS=3, and then the number that the program sets, larger or smaller."""
    for n in (1, 2, 5, 3):
        bnorm.set_num_threads(n)
        assert bnorm.get_num_threads() == n
    bnorm.set_num_threads(1)
    starts(0, answer)
    bnorm.set_num_threads(5)
    starts(4, answer)


def threads_that_the_system_refuses():
    """OMP_NUM_THREADS=3, and no new processes for this user: one thread computes everything, and more when allowed."""
    import resource

    _, most = limits = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() == 0:
        os.setuid(54321)  # the limit does not apply to root
    threads.limit_caller(1)
    want, got = answer(), []
    threads.limit_caller(3)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, most))
    starts(0, lambda: got.append(answer()))
    resource.setrlimit(resource.RLIMIT_NPROC, limits)
    starts(2, lambda: got.append(answer()))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, most))
    starts(0, lambda: got.append(answer()))  # threads that exist can be used
    assert set(got) == {want}  # on a busy machine there are more than three calls


def threads_without_memory(refused):
    """OMP_NUM_THREADS=3 in an address space with 1 GB left: if stacks need more, only one thread remains."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
    starts(0 if refused == "True" else 2, answer)


def rows_without_scratch():
    """A row of 2^26 values without gamma and beta, in place: there is no memory for a gamma and beta of that length."""
    import resource

    cpu.set_num_threads(1)
    x = np.ones((1, 1, 1 << 26, 1), "f4")
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
    y, mean, rstd = cpu.rows_forward(x, None, None, 1e-5, out=x)
    cpu.rows_backward(y, y, mean, rstd, None, None, params=False, out=y)
    assert mean == 1 and not y.any()


def threads_of_threadpoolctl():
    from threadpoolctl import threadpool_limits

    assert bnorm.get_num_threads() == 3
    with threadpool_limits(1):
        assert bnorm.get_num_threads() == 1
        starts(0, answer)
        with threadpool_limits(2, user_api="openmp"):
            assert bnorm.get_num_threads() == 2
            starts(1, answer)
        assert bnorm.get_num_threads() == 1
    assert bnorm.get_num_threads() == 3
    bnorm.set_num_threads(4)
    with threadpool_limits(2):
        assert bnorm.get_num_threads() == 2
    assert bnorm.get_num_threads() == 4


def show():
    bnorm.show_config()


def runtimes():
    """Print which OpenMP runtimes bnorm has loaded, as threadpoolctl sees it."""
    from threadpoolctl import threadpool_info

    print(*(pool["prefix"] for pool in threadpool_info() if pool["user_api"] == "openmp"))


def without_the_lock():
    """The kernels let other Python threads run. A thread that waits for the interpreter's lock demands it only after a
    hundred seconds, so that the counter moves during a call if, and only if, the call has released the lock."""
    bnorm.set_num_threads(1)
    x, weight, out = np.ones((1 << 21, 4), "f4"), np.ones((1 << 21, 1)), np.empty((1 << 21, 4), "f4")
    rows, row_out = x.reshape(-1, 1, 1024, 1), out.reshape(-1, 1, 1024, 1)
    one, coefficients = np.ones(4), np.ones((3, 4))
    (_, stats, n, _), (_, mean, rstd) = cpu.forward(x, None, None, 1), cpu.rows_forward(rows, None, None, 1)
    calls = {
        "moments": lambda: cpu.moments(x, weight),
        "normalize": lambda: cpu.normalize(x, stats, out=out),
        "grad_moments": lambda: cpu.grad_moments(x, x, stats),
        "grad_input": lambda: cpu.grad_input(x, x, stats, coefficients, out=out),
        "forward": lambda: cpu.forward(x, None, None, 1, out=out),
        "inference": lambda: cpu.forward(x, None, None, 1, one, one, out=out),
        "backward": lambda: cpu.backward(x, x, stats, n, out=out),
        "rows_forward": lambda: cpu.rows_forward(rows, None, None, 1, out=row_out),
        "rows_backward": lambda: cpu.rows_backward(rows, rows, mean, rstd, None, None, out=row_out),
    }
    count, stop = 0, threading.Event()

    def counter():
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0)

    sys.setswitchinterval(100)
    thread = threading.Thread(target=counter)
    thread.start()
    try:
        for name, call in calls.items():
            for _ in range(1000):  # another process may have had the processor for all of a call
                before = count
                call()
                if count > before:
                    break
            else:
                raise AssertionError(f"{name}: no other Python thread ran during any of 1000 calls")
    finally:
        stop.set()
        sys.setswitchinterval(0.005)
        thread.join()


# Forks ----------------------------------------------------------------------------------------------------------------


def fork(child):
    """Run `child` in a child process; an error there is raised here."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0


def right(want):
    """Return a function that computes the answer again, and checks that it is the same."""

    def check():
        assert answer() == want

    return check


def fork_once():
    check = right(answer())
    fork(check)
    check()


def fork_before_the_first_call():
    fork(answer)
    check = right(answer())
    fork(check)


def fork_again_and_again():
    check = right(answer())
    for _ in range(10):
        fork(check)
        check()


def fork_of_a_fork():
    check = right(answer())
    fork(lambda: [check(), fork(check), check()])
    check()


def fork_in_another_thread():
    """The thread has workers of its own, or none; those of the first thread are lost in the child in either case."""
    check = right(answer())

    def second(used):
        if used:
            check()
        fork(check)
        fork(lambda: [check(), fork(check)])
        check()

    for used in (False, True):
        in_threads(lambda used=used: second(used))
        check()


def fork_while_another_thread_computes():
    check = right(answer())
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            check()

    def forking():
        try:
            for _ in range(10):
                fork(check)
                check()
        finally:
            stop.set()

    in_threads(busy, forking)
    check()


def fork_keeps_the_number_of_threads():
    bnorm.set_num_threads(2)
    answer()
    before = bnorm.get_num_threads()

    def child():
        assert bnorm.get_num_threads() in (1, before)  # 1 where the runtime cannot start threads in a child

    fork(child)
    assert bnorm.get_num_threads() == before


def fork_by_multiprocessing():
    want = answer()
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        with context.Pool(2) as pool:
            assert pool.map(answer, range(4)) == [want] * 4
        assert answer() == want


def pool_of(kind):
    """Return a pool of two worker processes, started in this way."""
    if kind == "loky":
        from joblib.externals.loky import ProcessPoolExecutor

        return ProcessPoolExecutor(2)
    return concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind))


def pools(*kinds):
    """Use pools of these kinds, one after the other, while those before still exist."""
    want = answer()
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            pool = stack.enter_context(pool_of(kind))
            assert list(pool.map(answer, range(3))) == [want] * 3
            assert answer() == want


def runtimes_of_three():
    """Use the OpenMP runtimes of PyTorch, scikit-learn and bnorm in turns, each with threads, and fork after each."""
    import torch
    from sklearn.ensemble import HistGradientBoostingRegressor

    check, x = right(answer()), np.random.default_rng(0).normal(size=(3000, 8))
    others = [
        lambda: torch.ones(400, 400).matmul(torch.ones(400, 400)).exp().sum(),
        lambda: HistGradientBoostingRegressor(max_iter=2).fit(x, x[:, 0]),
        check,
    ]
    for order in permutations(others):
        for call in order:
            call()
            fork(check)
    in_threads(*others)


def in_threads(*functions):
    """Run the functions at the same time, each in a thread; an error there is raised here."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def two_threads_at_once():
    check = right(answer())
    start = threading.Barrier(2)
    in_threads(*[lambda: [start.wait(), *(check() for _ in range(10))]] * 2)


FORKS = sorted((name for name in dir() if name.startswith("fork_")), key="fork_before_the_first_call".__ne__)


def forks():
    """All of them, that before the first call first."""
    for name in FORKS:
        print(name, flush=True)
        globals()[name]()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
