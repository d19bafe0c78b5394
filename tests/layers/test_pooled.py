"""Passes that leave the running statistics alone, and micro-batches that count as one batch."""

import numpy as np
import pytest

import bnorm
from bnorm.checks import NonFiniteError
from compare import assert_close, assert_same
from layer_oracle import LAYOUTS, held
from ranks import in_threads

C = 4
SIZES = (2, 7, 3)
EMA = {"momentum": 0.3}
OPTIONS = [EMA, {"momentum": None}, {"momentum": 0.3, "ddof": 1}, {"momentum": None, "ddof": 1}]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def batches(seed=0, sizes=SIZES):
    """Micro-batches with different means, so that the spread between them counts."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, C)) * [1, 2, 3, 4] + 5 * i for i, n in enumerate(sizes)]


def assert_same_statistics(bn, other, allowed=1e-12, **case):
    for name in ("running_mean", "running_var"):
        want = getattr(other, name)
        assert_close(getattr(bn, name), want, allowed * (1 + np.abs(want)), what=name, **case)


# Pooled --------------------------------------------------------------------------------------------------------------


def test_micro_batches_of_a_narrow_layer_are_pooled_in_float64():
    x = 1e6 + np.random.default_rng(0).standard_normal((300, C))
    bn = bnorm.BatchNorm1d(C, momentum=1.0, dtype="float32")
    with bn.pooled_stats():
        for part in np.split(x, 100):
            bn(part)
    assert_same(bn.running_mean, x.mean(axis=0).astype(np.float32))
    assert_close(bn.running_var, x.var(axis=0), 1e-6)


@every_option
def test_micro_batches_count_as_one_batch(options):
    bn, whole = bnorm.BatchNorm1d(C, **options), bnorm.BatchNorm1d(C, **options)
    for step in range(3):
        parts = batches(step)
        before = held(bn)
        with bn.pooled_stats():
            for x in parts:
                alone = bnorm.BatchNorm1d(C)
                assert_same(bn(x), alone(x))  # normalized by its own statistics
                assert held(bn) == before
        whole(np.concatenate(parts))
        assert_same_statistics(bn, whole, step=step, **options)
        assert bn.num_batches_tracked == step + 1


@every_option
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_micro_batches_of_every_layout(layout, options):
    rng = np.random.default_rng(0)
    bn, whole = (getattr(bnorm, layout.layer)(C, axis=layout.axis, **options) for _ in range(2))
    for _ in range(2):
        parts = [layout.batch(rng, n)[0] + 10 * n for n in SIZES]
        with bn.pooled_stats():
            for x in parts:
                bn(x)
        whole(np.concatenate(parts, axis=1 if layout.axis == 0 else 0))
        assert_same_statistics(bn, whole, layout=layout)


@every_option
def test_weights_count_in_the_pool(options):
    rng = np.random.default_rng(0)
    bn, whole = bnorm.BatchNorm1d(C, **options), bnorm.BatchNorm1d(C, **options)
    parts = batches()
    weights = [rng.uniform(0.5, 2, len(x)) for x in parts]
    weights[1][2:4] = 0
    parts[1][3] = np.nan
    for _ in range(2):
        with bn.pooled_stats():
            for x, weight in zip(parts, weights, strict=True):
                bn(x, weight)
            bn(parts[0], np.zeros(2))
        whole(np.concatenate(parts), np.concatenate(weights))
        assert_same_statistics(bn, whole, **options)
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (2, 0)


@every_option
def test_replaced_from_scratch(options):
    bn, new = bnorm.BatchNorm1d(C, **options), bnorm.BatchNorm1d(C, momentum=None, ddof=options.get("ddof", 0))
    for x in batches(seed=5, sizes=(40, 30)):  # other counts than those of the pool
        bn(x * 10)
    for again in range(2):  # what a first pooling left counts for nothing in a second
        parts = batches(seed=again)
        with bn.pooled_stats(replace=True):
            for x in parts:
                bn(x)
        new.reset_running_stats()
        new(np.concatenate(parts))
        assert_same_statistics(bn, new, again=again)
    more = batches(seed=7)[0]
    bn(more)
    if options["momentum"] is None:  # and goes on from there
        new(more)
    else:
        new.running_mean += options["momentum"] * (more.mean(0) - new.running_mean)
        new.running_var += options["momentum"] * (more.var(0, ddof=new.ddof) - new.running_var)
    assert_same_statistics(bn, new)


def test_replacing_one_batch_makes_evaluation_equal_to_training():
    bn = bnorm.BatchNorm1d(C)
    x = batches()[1]
    with bn.pooled_stats(replace=True):
        y = bn(x)
    assert_close(bn.eval()(x), y, 1e-13)


@every_option
@pytest.mark.parametrize("replace", [False, True])
def test_an_exception_inside_discards_the_pool(options, replace):
    bn, other = bnorm.BatchNorm1d(C, **options), bnorm.BatchNorm1d(C, **options)
    bn(batches()[0]), other(batches()[0])
    before = held(bn)
    with pytest.raises(KeyError, match="mine"), bn.pooled_stats(replace=replace):
        bn(batches()[1])
        raise KeyError("mine")
    assert held(bn) == before
    for each in (bn, other):  # and it is over
        each(batches()[2])
    assert held(bn) == held(other)
    for each in (bn, other):
        with each.pooled_stats():
            each(batches()[1])
    assert held(bn) == held(other)


@every_option
@pytest.mark.parametrize("replace", [False, True])
def test_an_empty_pool_is_no_batch(options, replace):
    bn = bnorm.BatchNorm1d(C, **options)
    bn(batches()[0])
    before = held(bn)
    with bn.pooled_stats(replace=replace):
        pass
    assert held(bn) == before
    with bn.pooled_stats(replace=replace):
        bn(np.empty((0, C)))
        bn(batches()[1], np.zeros(7))
    assert held(bn) == before


@every_option
def test_evaluation_inside_is_not_pooled(options):
    bn, whole = bnorm.BatchNorm1d(C, **options), bnorm.BatchNorm1d(C, **options)
    a, b, c = batches()
    with bn.pooled_stats():
        bn(a)
        bn.eval()
        want = np.zeros(C), np.ones(C)
        assert_close(bn(b), (b - want[0]) / np.sqrt(want[1] + 1e-5), 1e-13 * np.abs(b))
        bn.train()
        bn(c)
    whole(np.concatenate([a, c]))
    assert_same_statistics(bn, whole)
    before = held(bn.eval())
    with bn.pooled_stats():
        bn(b)
    assert held(bn) == before


def test_a_failed_call_inside_is_not_pooled():
    bn, whole = bnorm.BatchNorm1d(C, nonfinite="raise"), bnorm.BatchNorm1d(C)
    a, b, c = batches()
    b[0, 1] = np.inf
    with bn.pooled_stats():
        bn(a)
        with pytest.raises(NonFiniteError):
            bn(b)
        with pytest.raises(ValueError, match="more than one value"):
            bn(a[:1])
        bn(c)
    whole(np.concatenate([a, c]))
    assert_same_statistics(bn, whole)


@every_option
def test_a_channel_not_finite_is_pooled_where_it_is(options):
    """Of that channel, the other micro-batches count."""
    bn, good, part = (bnorm.BatchNorm1d(C, **options) for _ in range(3))
    a, b, c = batches()
    for each, parts in ((good, [a, b, c]), (part, [a, c])):
        each(np.concatenate(parts))
    b[0, 1] = np.nan
    with pytest.warns(RuntimeWarning, match=r"BatchNorm1d\(4"), bn.pooled_stats():
        for x in (a, b, c):
            bn(x)
    for name in ("running_mean", "running_var"):
        want = getattr(good, name).copy()
        want[1] = getattr(part, name)[1]
        assert_close(getattr(bn, name), want, 1e-12 * (1 + np.abs(want)), what=name, **options)
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (1, 1)


def test_a_warning_at_the_end_of_a_block_names_the_line_of_the_user():
    bn = bnorm.BatchNorm1d(1, ddof=1)
    with pytest.warns(RuntimeWarning, match="keep their running statistics") as said, bn.pooled_stats():
        bn([[1.0], [3.0]], weight=[0.3, 0.3])  # has a variance in the pool, but no unbiased one
    assert said[0].filename == __file__


@every_option
def test_a_channel_never_finite_in_the_pool_stays(options):
    bn = bnorm.BatchNorm1d(C, **options)
    bn(batches()[1])
    before = bn.state_dict()
    with pytest.warns(RuntimeWarning), bn.pooled_stats():
        for x in batches(seed=1):
            x[0, 1] = np.nan
            bn(x)
    for name in ("running_mean", "running_var"):
        moved = getattr(bn, name) != before[name]
        assert_same(moved, [True, False, True, True], what=name, **options)
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (2, 1)


def test_backward_in_a_pool():
    """Micro-batches with gradients that add up: the point of it."""
    bn, other = bnorm.BatchNorm1d(C), bnorm.BatchNorm1d(C)
    with bn.pooled_stats():
        for x in batches():
            bn(x), other(x)
            assert_same(bn.backward(x**2), other.backward(x**2))
    assert_same(bn.gamma.grad, other.gamma.grad)


def test_float32_buffers_take_a_pool():
    bn, whole = bnorm.BatchNorm1d(C, dtype="float32"), bnorm.BatchNorm1d(C, dtype="float32")
    with bn.pooled_stats():
        for x in batches():
            bn(x)
    whole(np.concatenate(batches()))
    assert_same_statistics(bn, whole, 4e-7)
    assert bn.running_mean.dtype == bn.running_var.dtype == np.float32


def test_a_pool_whose_sums_underflow():
    """Where NumPy is set to raise at it, that is no reason to say that x is not finite."""
    bn, x = bnorm.BatchNorm1d(2), np.arange(8.0).reshape(4, 2) * 1e-100
    with np.errstate(all="raise"), bn.pooled_stats():
        bn(x, weight=np.full(4, 1e-120))
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (1, 0)


def test_a_pool_that_float32_buffers_cannot_hold():
    """Every micro-batch is finite, and so is the pool, in float64."""
    parts = [x * [1, 1, 1e30, 1] for x in batches()]
    bn = bnorm.BatchNorm1d(C, dtype="float32")
    with pytest.warns(RuntimeWarning, match=r"BatchNorm1d\(4"), bn.pooled_stats():
        for x in parts:
            bn(x)
    assert (bn.running_mean[2], bn.running_var[2]) == (0, 1) and (np.delete(bn.running_mean, 2) != 0).all()
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (1, 1)
    bn = bnorm.BatchNorm1d(C, dtype="float32", nonfinite="raise")
    before = held(bn)
    with pytest.raises(NonFiniteError, match=r"^BatchNorm1d\(4"), bn.pooled_stats():
        for x in parts:
            bn(x)
    assert held(bn) == before


@pytest.mark.filterwarnings("ignore:.* has no counts")
def test_a_pool_after_a_plain_dictionary():
    """It is one batch, so the batches before it were as large as all of it."""
    state = dict(bnorm.BatchNorm1d(C).state_dict()) | {"num_batches_tracked": 3}
    bn, whole = bnorm.BatchNorm1d(C, momentum=None), bnorm.BatchNorm1d(C, momentum=None)
    bn.load_state_dict(state), whole.load_state_dict(state)
    with bn.pooled_stats():
        for x in batches():
            bn(x)
    whole(np.concatenate(batches()))
    assert_same_statistics(bn, whole)


# Frozen --------------------------------------------------------------------------------------------------------------


@every_option
def test_frozen_statistics_stay(options):
    bn, other = bnorm.BatchNorm1d(C, **options), bnorm.BatchNorm1d(C, **options)
    a, b, c = batches()
    bn(a), other(a)
    before = held(bn)
    with bn.frozen_stats():
        y = bn(b)
        assert bn.training
        assert held(bn)["state"] == before["state"]
    assert held(bn) == before
    want = bnorm.BatchNorm1d(C)
    assert_same(y, want(b))  # by the batch, and its derivative
    assert_same(bn.backward(b**2), want.backward(b**2))
    bn.zero_grad()
    bn(c), other(c)
    assert held(bn) == held(other)


def test_frozen_statistics_after_an_exception():
    bn, other = bnorm.BatchNorm1d(C), bnorm.BatchNorm1d(C)
    with pytest.raises(KeyError), bn.frozen_stats():
        bn(batches()[0])
        raise KeyError
    bn(batches()[1]), other(batches()[1])
    assert held(bn) == held(other)


@pytest.mark.parametrize("kinds", [("frozen", "frozen"), ("pooled", "frozen"), ("frozen", "pooled")], ids=str)
def test_blocks_that_end_in_the_order_in_which_they_began(kinds):
    """As those of two threads, or of two generators, may."""
    bn, twin, x = bnorm.BatchNorm1d(2), bnorm.BatchNorm1d(2), np.arange(8.0).reshape(4, 2)
    first, second = (getattr(bn, f"{kind}_stats")() for kind in kinds)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    bn(x)  # in the second block alone
    second.__exit__(None, None, None)
    bn(x)
    for _ in range(1 + (kinds[1] == "pooled")):
        twin(x)
    assert bn.num_batches_tracked == twin.num_batches_tracked
    np.testing.assert_allclose(bn.running_mean, twin.running_mean, rtol=1e-15)


def test_frozen_in_evaluation_has_no_effect():
    bn = bnorm.BatchNorm1d(C)
    bn(batches()[0])
    bn.eval()
    x = batches()[1]
    y = bn(x)
    before = held(bn)
    with bn.frozen_stats():
        assert_same(bn(x), y)
        assert not bn.training
    assert held(bn) == before


def test_frozen_inside_frozen_inside_a_pool():
    bn, other = bnorm.BatchNorm1d(C), bnorm.BatchNorm1d(C)
    a, b, c = batches()
    with bn.pooled_stats():
        bn(a)
        with bn.frozen_stats():
            bn(b)
            with bn.frozen_stats():
                bn(b)
            bn(b)  # still frozen
        bn(c)
    other(np.concatenate([a, c]))
    assert_same_statistics(bn, other)
    assert bn.num_batches_tracked == 1


def test_recomputation_counts_once():
    """Checkpointing: forward without a backward, later once more; the statistics must move once."""
    bn, once = bnorm.BatchNorm1d(C), bnorm.BatchNorm1d(C)
    x, dy = batches()[1], batches(seed=1)[1]
    bn(x), once(x)
    with bn.frozen_stats():
        bn(x)
    assert_same(bn.backward(dy), once.backward(dy))
    assert held(bn) == held(once)


@pytest.mark.parametrize(
    "ways", [([], [False]), ([False], [True]), ([False], [False, False])], ids=["on one", "replaced on one", "twice"]
)
def test_ranks_that_pool_otherwise(ways):
    """Each way is two batches, and their running statistics would differ."""

    def steps(rank, comm):
        bn = bnorm.BatchNorm1d(3, comm=comm)
        x = np.random.default_rng(rank).standard_normal((8, 3))
        for replace in ways[rank]:
            with bn.pooled_stats(replace):
                for _ in range(3 - len(ways[rank])):
                    bn(x)
        for _ in range(0 if ways[rank] else 2):
            bn(x)

    for error in in_threads(2, steps):
        assert isinstance(error, ValueError)
        assert "expected the same settings on all ranks, got" in str(error)
        assert "'pooled_stats': 'batch" in str(error)
