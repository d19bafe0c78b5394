"""merge_all and the exchange below it, on ranks that are threads."""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.distributed import Communicator, merge_all
from bnorm.distributed.communicator import Turn
from ranks import all_of, in_threads

X = np.random.default_rng(0).standard_normal((90, 4)) * [1, 2, 3, 4] + [0, 5, -5, 1e6]
CUTS = {1: [], 2: [31], 3: [10, 10], 5: [1, 40, 41, 80]}  # of three, one is empty


def shares(n):
    return np.split(X, CUTS[n])


def same_statistics(got, want):
    std = np.sqrt(want.var())
    np.testing.assert_array_equal(got.count, want.count)
    np.testing.assert_array_less(np.abs(got.mean - want.mean), 1e-12 * std + np.spacing(np.abs(want.mean)))
    np.testing.assert_allclose(got.var(), want.var(), rtol=1e-12)


@pytest.mark.parametrize("n", CUTS)
def test_moments_of_all_ranks_are_those_of_all_values(n):
    given = [F.moments(part) for part in shares(n)]
    before = [m._parts.copy() for m in given]
    merged = all_of(n, lambda rank, comm: merge_all(given[rank], comm))
    same_statistics(merged[0], F.moments(X))
    assert all(m == merged[0] for m in merged)  # to the bit, on every rank
    assert all(m is not one for m in merged for one in given)
    for m, parts in zip(given, before, strict=True):
        np.testing.assert_array_equal(m._parts, parts)


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("options", [{"momentum": None}, {"halflife": 20.0}], ids=str)
def test_transformers_of_all_ranks(n, options):
    given = [bnorm.BatchNormTransformer(**options).partial_fit(part) for part in shares(n)]
    for rank, t in enumerate(given):
        t.gamma_ = np.full(4, float(rank + 1))
    before = [t.mean_.copy() for t in given]
    merged = all_of(n, lambda rank, comm: merge_all(given[rank], comm))
    want = bnorm.BatchNormTransformer(**options).partial_fit(shares(n)[0])
    for part in shares(n)[1:]:
        want.merge(bnorm.BatchNormTransformer(**options).partial_fit(part))
    for t in merged:
        np.testing.assert_array_less(np.abs(t.mean_ - want.mean_), 1e-12 * want.scale_ + np.spacing(np.abs(want.mean_)))
        np.testing.assert_allclose(t.var_, want.var_, rtol=1e-12)
        assert t.n_batches_seen_ == n
        assert t.var_.tobytes() == merged[0].var_.tobytes()
        np.testing.assert_array_equal(t.gamma_, 1)  # of rank 0
    for t, mean in zip(given, before, strict=True):
        np.testing.assert_array_equal(t.mean_, mean)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_running_norms_of_all_ranks(n):
    given = [bnorm.RunningNorm.tree((np.zeros(4), 0)) for _ in range(n)]
    for tree, part in zip(given, shares(n), strict=True):
        tree.update((part, 0))
    for which in (lambda tree: tree, lambda tree: tree[0]):
        merged = all_of(n, lambda rank, comm, which=which: merge_all(which(given[rank]), comm))
        rn = merged[0][0] if isinstance(merged[0], bnorm.RunningNormTree) else merged[0]
        np.testing.assert_allclose(rn.var, F.moments(X).var(), rtol=1e-12)
        assert rn.count.tolist() == [90] * 4
        assert all(one is not which(tree) for one in merged for tree in given)


def test_the_number_of_a_rank_changes_the_last_digits_only():
    parts = shares(5)
    for order in ([4, 2, 0, 1, 3], [3, 4, 1, 0, 2]):
        merged = all_of(5, lambda rank, comm, order=order: merge_all(F.moments(parts[order[rank]]), comm))
        same_statistics(merged[0], F.moments(X))


def test_an_error_on_one_rank_is_one_on_all():
    results = in_threads(3, lambda rank, comm: merge_all("text" if rank == 1 else F.moments(X), comm))
    expected = "merge_all: obj: expected Moments, a BatchNormTransformer, a RunningNorm or a RunningNormTree, got str"
    assert str(results[1]) == expected
    for rank in (0, 2):
        assert isinstance(results[rank], RuntimeError)
        assert str(results[rank]) == f"merge_all: stopped on all 3 ranks, as rank 1 raised TypeError: {expected}"


def test_what_ranks_refuse_together():
    def kinds(rank, comm):
        return merge_all(F.moments(X) if rank else bnorm.BatchNormTransformer(momentum=None).fit(X), comm)

    for error in in_threads(2, kinds):
        assert str(error) == "merge_all: obj: expected one type on all ranks, got BatchNormTransformer, Moments"
    for error in in_threads(2, lambda rank, comm: merge_all(bnorm.BatchNormTransformer().fit(X), comm)):
        assert isinstance(error, ValueError)
        assert "moving average" in str(error)
    for error in in_threads(2, lambda rank, comm: merge_all(F.moments(X[:, rank:]), comm)):
        assert str(error) == "Moments.merge: items: expected one number of channels, got [3, 4]"


def test_ranks_that_lost_step():
    def step(rank, comm):
        with Turn(comm, "backward" if rank == 2 else "forward") as turn:
            return turn.share(rank)

    for rank, error in enumerate(in_threads(3, step)):
        assert isinstance(error, RuntimeError)
        assert str(error).startswith("backward" if rank == 2 else "forward")
        assert str(error).endswith("the same call on all 3 ranks, got 'forward' on rank 0 and 'backward' on rank 2")


def test_an_error_after_the_exchange_is_sent_to_nobody():
    def fail(rank, comm):
        with Turn(comm, "call") as turn:
            turn.share(rank)
            if rank == 0:
                raise KeyError("mine alone")
        return "done"

    first, second = in_threads(2, fail)
    assert isinstance(first, KeyError)
    assert second == "done"


@pytest.mark.parametrize("comm", [None, 3, object(), Communicator])
def test_what_is_no_communicator(comm):
    with pytest.raises(TypeError, match=r"^merge_all: comm: expected a communicator with a method allgather"):
        merge_all(F.moments(X), comm)
