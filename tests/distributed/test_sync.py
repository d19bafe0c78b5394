"""Synchronized batch norm on ranks that are threads: together they are one rank with the whole batch."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import bnorm
from compare import assert_close, normalized_error
from layer_oracle import held
from ranks import all_of, in_threads

C = 4
CUTS = {"halves": [20], "three, one of them empty": [5, 5], "five, one of one sample": [1, 9, 30, 31]}
every_cut = pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)


def batch(shape, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *shape))
    x = x * np.arange(1, C + 1).reshape(1, C, *[1] * (len(shape) - 2)) + 3
    return x.astype(dtype), dy.astype(dtype)


def layer(comm, kind="BatchNorm1d", **options):
    bn = getattr(bnorm, kind)(C, comm=comm, **options)
    bn.gamma, bn.beta = np.arange(1.0, C + 1), np.arange(C) - 1.5
    return bn


def steps(bn, batches, weights=None):
    """y and dx of the last of several steps."""
    for i, (x, dy) in enumerate(batches):
        y = bn(x, None if weights is None else weights[i])
        dx = bn.backward(dy, np.empty_like(dy) if i else None)
    return y, dx, bn


def compare(results, whole, unit=1e-12, **case):
    """Ranks against one layer: values to `unit` of their size, running statistics the same on all ranks."""
    y, dx, bn = whole
    ys, dxs, ranks = zip(*results, strict=True)
    for name, got, want in (("y", np.concatenate(ys), y), ("dx", np.concatenate(dxs), dx)):
        assert_close(got, want, unit * max(1, np.abs(want).max()), what=name, **case)
    for name in ("gamma", "beta"):
        got = np.sum([getattr(rank, name).grad for rank in ranks], axis=0)
        want = getattr(bn, name).grad
        assert_close(got, want, unit * len(y) * max(1, np.abs(want).max()), what=f"{name}.grad", **case)
    for name in ("running_mean", "running_var"):
        got = getattr(ranks[0], name)
        assert_close(got, getattr(bn, name), unit * np.abs(getattr(bn, name)).max(), what=name, **case)
        assert all(getattr(rank, name).tobytes() == got.tobytes() for rank in ranks)
    for name in ("batches", "rows"):
        assert {getattr(rank._running, name) for rank in ranks} == {getattr(bn._running, name)}


def cut(arrays, cuts):
    return list(zip(*(np.split(a, cuts) for a in arrays), strict=True))


@every_cut
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"activation": "relu"}, {"ddof": 1, "nonfinite": "raise"}, {"nonfinite": "propagate"}],
    ids=str,
)
def test_ranks_are_one_rank_with_the_whole_batch(cuts, options):
    batches = [batch((40, C, 3), seed) for seed in range(2)]
    shares = [cut(each, cuts) for each in batches]
    results = all_of(len(cuts) + 1, lambda r, comm: steps(layer(comm, **options), [share[r] for share in shares]))
    compare(results, steps(layer(None, **options), batches), options=options)


@pytest.mark.parametrize(
    ("kind", "shape"), [("BatchNorm1d", (40, C)), ("BatchNorm2d", (40, C, 3, 2)), ("BatchNorm3d", (40, C, 2, 1, 3))]
)
def test_every_rank_of_array(kind, shape):
    batches = [batch(shape)]
    shares = cut(batches[0], [13, 30])
    results = all_of(3, lambda r, comm: steps(layer(comm, kind), [shares[r]]))
    compare(results, steps(layer(None, kind), batches), kind=kind)


@pytest.mark.parametrize("rows", [40, 4000])
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 2e-6), ("float16", 2e-3)])
def test_every_precision_to_the_bound_that_the_documentation_states(dtype, bound, rows):
    x, dy = batch((rows, C, 3), dtype=dtype)
    shares = cut((x, dy), [13, 30])
    results = all_of(3, lambda r, comm: steps(layer(comm), [shares[r]]))
    whole = steps(layer(None), [(x, dy)])
    assert results[0][0].dtype == results[0][1].dtype == dtype
    compare(results, whole, bound, dtype=dtype)


@every_cut
def test_weights_and_masks(cuts):
    (x, dy), rng = batch((40, C, 3)), np.random.default_rng(5)
    w = rng.random((40, 3)) * (rng.random((40, 3)) > 0.4)
    w[:5] = 0  # one rank has nothing that counts
    x[:5] = np.nan  # and padding may be anything
    dy[:5] = 0
    shares = cut((x, dy, w), cuts)
    results = all_of(len(cuts) + 1, lambda r, comm: steps(layer(comm), [shares[r][:2]], [shares[r][2]]))
    compare(results, steps(layer(None), [(x, dy)], [w]))


def test_weights_on_one_rank_only():
    x, dy = batch((40, C))
    w = np.random.default_rng(0).random(40)
    w[20:] = 1
    results = all_of(2, lambda r, comm: steps(layer(comm), [cut((x, dy), [20])[r]], [w[:20] if r == 0 else None]))
    compare(results, steps(layer(None), [(x, dy)], [w]))


def test_the_number_of_a_rank_changes_the_last_digits_only():
    x, dy = batch((40, C))
    shares = cut((x, dy), [3, 17, 31])
    first, other = (
        all_of(4, lambda r, comm, order=order: (order[r], *steps(layer(comm), [shares[order[r]]])))
        for order in ([0, 1, 2, 3], [2, 0, 3, 1])
    )
    for rank in range(4):
        mine = next(each for each in other if each[0] == rank)
        assert_close(mine[1], first[rank][1], 1e-14 * np.abs(mine[1]).max())
        assert_close(mine[2], first[rank][2], 1e-14)


def test_the_gradient_of_the_whole():
    """By differences: moving a value on one rank moves y on the others."""
    x, dy = batch((6, C))
    shares = cut((x, dy), [2])
    dx = np.concatenate([result[1] for result in all_of(2, lambda r, comm: steps(layer(comm), [shares[r]]))])

    def loss(x):
        parts = np.split(x, [2])
        return np.sum(np.concatenate(all_of(2, lambda r, comm: layer(comm)(parts[r]))) * dy)

    for i in ((0, 0), (1, 3), (5, 2)):
        moved = [x.copy(), x.copy()]
        moved[0][i] += 1e-5
        moved[1][i] -= 1e-5
        assert dx[i] == pytest.approx((loss(moved[0]) - loss(moved[1])) / 2e-5, rel=1e-6, abs=1e-8)


def test_a_gradient_that_is_not_finite():
    """It is data, as without other ranks, also where NumPy is set to raise."""
    x, dy = batch((8, C))
    dy[0, 0], dy[7, 0], dy[3, 1], dy[4, 2] = np.inf, -np.inf, np.nan, 1e308
    shares = cut((x, dy), [4])

    def of(comm, share):
        with np.errstate(all="raise"):
            return steps(layer(comm), [share])

    first, second = all_of(2, lambda r, comm: of(comm, shares[r]))
    whole = of(None, (x, dy))
    np.testing.assert_allclose(np.concatenate([first[1], second[1]]), whole[1], rtol=1e-9)
    assert np.isnan(whole[1][:, :2]).all()
    assert np.isfinite(whole[1][:, 3]).all()


def test_far_from_zero():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((60, C)) + 1e6).astype("float32")
    y = np.concatenate(all_of(3, lambda r, comm: bnorm.BatchNorm1d(C, eps=0, comm=comm)(x[20 * r : 20 * r + 20])))
    wide = x.astype(np.longdouble)
    want = (wide - wide.mean(0)) / wide.std(0)
    assert_close(y, want, normalized_error("float32", want, 1e6))


# Modes ----------------------------------------------------------------------------------------------------------------


def test_inference_needs_no_other_rank():
    def alone(rank, comm):
        bn = layer(comm).eval()
        if rank == 0:
            x, dy = batch((5, C))
            bn(x)
            bn.backward(dy)
            bn(x)
        return bn.num_batches_tracked

    assert all_of(2, alone) == [0, 0]


def test_no_rank_has_anything():
    def nothing(rank, comm):
        bn = layer(comm)
        before = held(bn)
        y = bn(np.empty((0, C, 3)))
        dx = bn.backward(np.empty((0, C, 3)))
        assert held(bn) == before
        return y.shape == dx.shape == (0, C, 3)

    assert all_of(2, nothing) == [True, True]


def test_all_weights_zero():
    x, dy = batch((6, C))

    def weightless(rank, comm):
        bn = layer(comm)
        y = bn(x, np.zeros(6))
        np.testing.assert_array_equal(y, np.broadcast_to(bn.beta.data, y.shape))
        np.testing.assert_array_equal(bn.backward(dy), 0)
        return bn.num_batches_tracked

    assert all_of(2, weightless) == [0, 0]


def test_one_value_is_judged_over_all_ranks():
    x, dy = batch((2, C))
    results = all_of(2, lambda r, comm: steps(layer(comm), [(x[r : r + 1], dy[r : r + 1])]))
    compare(results, steps(layer(None), [(x, dy)]))

    images = batch((1, C, 3, 3))
    results = all_of(2, lambda r, comm: steps(layer(comm, "BatchNorm2d"), [[a[: 1 - r] for a in images]]))
    compare(results, steps(layer(None, "BatchNorm2d"), [images]))

    def single(rank, comm, **options):
        return layer(comm, **options)(x[:1] if rank else x[:0])

    def weighted(rank, comm):
        return layer(comm)(x[rank : rank + 1], [1.0 - rank])

    for error in [*in_threads(2, single), *in_threads(2, weighted)]:
        assert isinstance(error, bnorm.checks.SingleValueError)
        assert "of all ranks" in str(error)
    for y in all_of(2, lambda r, comm: single(r, comm, on_single="running")):
        np.testing.assert_allclose(y, layer(None).eval()(x[: len(y)]))


def test_pooled_and_frozen():
    x, _ = batch((40, C))

    def pooled(bn, parts):
        with bn.pooled_stats():
            for part in parts:
                bn(part)
        with bn.frozen_stats():
            bn(parts[0])
        return bn

    ranks = all_of(2, lambda r, comm: pooled(layer(comm), [x[10 * r : 10 * r + 10], x[20 + 10 * r : 30 + 10 * r]]))
    whole = pooled(layer(None), [x[:20], x[20:]])
    for bn in ranks:
        assert_close(bn.running_var, whole.running_var, 1e-14 * whole.running_var.max())
        assert bn.running_var.tobytes() == ranks[0].running_var.tobytes()
        assert bn.num_batches_tracked == 1


@pytest.mark.filterwarnings("ignore:.*the state has no counts of values")
def test_batches_that_were_not_counted():
    """Batches behind averaged statistics are taken to have been as large as the next one of all ranks."""
    x, dy = batch((40, C))
    state = steps(layer(None), [(x, dy)])[2].state_dict()

    def go_on(bn, x, dy, w):
        bn.load_state_dict(dict(state))
        return steps(bn, [(x, dy)], [w])

    for w in (np.ones(40), np.arange(40) % 3.0):
        whole = x * 2, dy, w
        shares = cut(whole, [7])
        results = all_of(2, lambda r, comm, shares=shares: go_on(layer(comm, momentum=None), *shares[r]))
        compare(results, go_on(layer(None, momentum=None), *whole))


def test_a_channel_that_is_not_finite():
    x, dy = batch((20, C))
    x[3, 1] = np.inf

    with warnings.catch_warnings(record=True) as caught:  # around all ranks, as threads have it in common
        warnings.simplefilter("always")
        ranks = all_of(2, lambda r, comm: steps(layer(comm), [cut((x, dy), [10])[r]])[2])
    assert sum("1 of 4 channels" in str(warning.message) for warning in caught) == 2
    assert [bn.num_batches_skipped for bn in ranks] == [1, 1]
    assert [bn.running_mean[1] for bn in ranks] == [0, 0]

    def raising(rank, comm):
        bn = layer(comm, nonfinite="raise")
        before, mine = held(bn), x[10 * rank : 10 * rank + 10].copy()
        with pytest.raises(bnorm.checks.NonFiniteError):
            bn(mine, out=mine)
        np.testing.assert_array_equal(mine, x[10 * rank : 10 * rank + 10])
        return held(bn) == before

    assert all_of(2, raising) == [True, True]

    def warned(rank, comm):
        bn = layer(comm)
        before = held(bn)
        with pytest.raises(RuntimeWarning, match="1 of 4 channels"):
            bn(x[10 * rank : 10 * rank + 10])
        return held(bn) == before

    with warnings.catch_warnings():  # as above
        warnings.simplefilter("error")
        assert all_of(2, warned) == [True, True]


# Errors ---------------------------------------------------------------------------------------------------------------

X, DY = batch((10, C))
FORWARD = {
    "another number of channels": (lambda: (X[:, :3],), "expected 4 channels"),
    "another number of axes": (lambda: (X[None, None],), "expected 2 or 3 dimensions"),
    "a wrong weight": (lambda: (X, -np.ones(10)), "weight: expected finite values >= 0"),
    "a wrong out": (lambda: (X, None, np.empty(3)), "out: expected shape"),
    "no array": (lambda: (object(),), "x: expected real numbers"),
}


@pytest.mark.parametrize("wrong", FORWARD)
@pytest.mark.parametrize("n", [2, 3])
def test_an_error_in_the_forward_of_one_rank_is_one_on_all(wrong, n):
    arguments, message = FORWARD[wrong]

    def one_fails(rank, comm):
        bn = layer(comm)
        before = held(bn)
        with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
            bn(*(arguments() if rank == n - 1 else (X,)))
        assert held(bn) == before
        y = bn(X)  # and all go on together
        return str(caught.value), y

    results = all_of(n, one_fails)
    for rank, (said, y) in enumerate(results):
        assert message in said
        assert said.startswith("BatchNorm1d(4): ")
        assert (f"forward: stopped on all {n} ranks, as rank {n - 1} raised" in said) == (rank < n - 1)
        np.testing.assert_array_equal(y, results[0][1])


def test_an_error_in_the_backward_of_one_rank_leaves_the_forward():
    def one_fails(rank, comm):
        bn = layer(comm)
        bn(X)
        with pytest.raises((ValueError, RuntimeError), match="dy: expected the shape of x"):
            bn.backward(DY[:3] if rank else DY)
        np.testing.assert_array_equal(bn.gamma.grad, 0)
        return bn.backward(DY)

    first, second = all_of(2, one_fails)
    np.testing.assert_array_equal(first, second)


def test_an_x_that_one_rank_has_changed():
    def changes(rank, comm):
        bn, x = layer(comm), X.copy()
        bn(x)
        x += rank
        with pytest.raises(RuntimeError, match="expected x as it was in the forward, got it changed in place"):
            bn.backward(DY)
        x[...] = X
        return bn.backward(DY)

    bnorm.set_debug(True)
    try:
        all_of(2, changes)
    finally:
        bnorm.set_debug(False)


def test_a_backward_without_a_forward_on_one_rank():
    def one_fails(rank, comm):
        bn = layer(comm)
        bn(X)
        if rank:
            bn._saved = None
        with pytest.raises(RuntimeError, match="expected a forward before each backward"):
            bn.backward(DY)

    all_of(2, one_fails)


@pytest.mark.parametrize("options", [{"momentum": 0.2}, {"dtype": "float32"}], ids=str)
def test_ranks_that_differ_in_settings(options):
    for error in in_threads(2, lambda r, comm: layer(comm, **options if r else {})(X)):
        assert isinstance(error, ValueError)
        assert "expected the same settings on all ranks" in str(error)


def test_ranks_that_lost_step():
    def lost(rank, comm):
        first, second = layer(comm), layer(comm, "BatchNorm2d")
        return first(X) if rank else second(X[:, :, None, None])

    for error in in_threads(2, lost):
        assert isinstance(error, RuntimeError)
        assert "got 'BatchNorm2d(4): forward' on rank 0 and 'BatchNorm1d(4): forward' on rank 1" in str(error)


@pytest.mark.parametrize("comm", [3, "MPI", object()])
def test_what_is_no_communicator(comm):
    with pytest.raises(TypeError, match=r"^BatchNorm1d\(4\): comm: expected a communicator with a method allgather"):
        bnorm.BatchNorm1d(4, comm=comm)


class Picky:
    """A communicator that is no part of a copy, as those of mpi4py are not."""

    def allgather(self, value):
        return [value]

    def __reduce__(self):
        raise ValueError("cannot serialize")


def test_copies_share_the_communicator():
    comm = Picky()
    bn = layer(comm)
    assert copy.deepcopy(bn).comm is copy.copy(bn).comm is bn.comm is comm
    assert bnorm.BatchNorm1d(4).comm is None
    with pytest.raises(ValueError, match="cannot serialize"):
        pickle.dumps(bn)
    one, alone = steps(bn, [(X, DY)]), steps(layer(None), [(X, DY)])
    compare([one], alone)
