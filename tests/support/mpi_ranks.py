"""Functions that test_mpi.py runs on real ranks: `mpiexec -n N python mpi_ranks.py NAME...` calls them by name.

Rank 0 prints the name of each function that all ranks have completed, and the number of ranks. A number among the names
says how many ranks run the next functions, while the others wait: starting ranks takes longer than all of this.
"""

import sys

import numpy as np
from mpi4py import MPI

import bnorm
import bnorm.functional as F
from bnorm.distributed import merge_all

WORLD = MPI.COMM_WORLD
X, DY = np.random.default_rng(0).standard_normal((2, 60, 4, 3)) * np.arange(1, 5)[:, None] + 3


def among(comm):
    """Let the functions below run on the ranks of this communicator."""
    global COMM, RANK, RANKS, FIRST, LAST, SHARE
    COMM, RANK, RANKS = comm, comm.Get_rank(), comm.Get_size()
    FIRST, LAST = (60 * r * (r + 1) // (RANKS * (RANKS + 1)) for r in (RANK, RANK + 1))  # of this rank's unequal share
    SHARE = slice(FIRST, LAST)


def close(got, want, unit=1e-12):
    np.testing.assert_array_less(np.abs(got - want), unit * max(1, np.abs(want).max(initial=0)))


def training():
    """Ranks with a share each, of which one has no sample in the second step, agree with one rank that has all."""
    bn, whole = bnorm.BatchNorm1d(4, comm=COMM), bnorm.BatchNorm1d(4)
    for begin in (0, 60 * 2 // (RANKS * (RANKS + 1))):  # of the batch of all ranks: the second time rank 0 has nothing
        mine = slice(max(FIRST, begin), max(LAST, begin))
        there = slice(mine.start - begin, mine.stop - begin)
        close(bn(X[mine]), whole(X[begin:])[there])
        close(bn.backward(DY[mine]), whole.backward(DY[begin:])[there])
    for p, q in zip(bn.parameters(), whole.parameters(), strict=True):
        close(COMM.allreduce(p.grad), q.grad)
    close(bn.running_mean, whole.running_mean)
    close(bn.running_var, whole.running_var)
    assert len(set(COMM.allgather(bn.running_mean.tobytes() + bn.running_var.tobytes()))) == 1


def merging():
    """Merge moments and transformers of all ranks; also with a communicator that has the ranks in reverse order."""
    table = X[:, :, 0]
    for comm in (COMM, COMM.Split(0, -RANK), COMM.Dup()):
        merged = merge_all(F.moments(table[SHARE]), comm)
        close(merged.var(), F.moments(table).var())
        exact = merge_all(F.moments(table[SHARE], exact=True), comm)
        assert exact.digest() == F.moments(table, exact=True).digest()
        t = merge_all(bnorm.BatchNormTransformer(momentum=None).fit(table[SHARE]), comm)
        close(t.mean_, table.mean(0))
        assert t.n_samples_seen_ == 60
        assert len(set(comm.allgather(t.var_.tobytes()))) == 1


def failing():
    """An error on the last rank alone is raised on all ranks, and all can go on."""
    bn = bnorm.BatchNorm1d(4, comm=COMM)
    for wrong in (X[:, :3], X[0, 0], "text"):
        try:
            bn(wrong if RANK == RANKS - 1 else X)
        except (ValueError, TypeError, RuntimeError) as error:
            assert isinstance(error, RuntimeError) == (RANK < RANKS - 1)
        else:
            raise AssertionError("no error")
    bn(X)
    try:
        bn.backward(DY[:2] if RANK == RANKS - 1 else DY)
    except (ValueError, RuntimeError) as error:
        assert "dy: expected the shape of x" in str(error)
    else:
        raise AssertionError("no error")
    bn.backward(DY)


def hanging():
    """One rank does not call, so that the others wait forever, until a time limit. Each prints that it has started."""
    print("here", flush=True)
    if RANK:
        bnorm.BatchNorm1d(4, comm=COMM)(X)
    COMM.barrier()


def dying():
    """Under `python -m mpi4py`, a rank that fails outside of the layers ends all ranks."""
    if RANK:
        raise KeyError("of this rank")
    bnorm.BatchNorm1d(4, comm=COMM)(X)


if __name__ == "__main__":
    among(WORLD)
    within = True
    for name in sys.argv[1:]:
        if name.isdigit():
            within = WORLD.Get_rank() < int(name)
            among(WORLD.Split(not within))
            continue
        if within:
            globals()[name]()
            COMM.barrier()
            if RANK == 0:
                print(name, RANKS, flush=True)
