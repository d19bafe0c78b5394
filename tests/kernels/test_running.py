"""Running statistics, moved inside the forward of every backend: averaged or pooled, finite or not."""

import numpy as np
import pytest

from backends import SWITCH, Backend, each_backend
from bnorm.kernels import cpu, reference
from cases import DTYPES
from compare import EPS, assert_close, assert_same
from kernel_checks import on_off
from rules import forward, move, rule

REFERENCE = Backend("reference", reference)
RULES = ["skip", "propagate", "raise"]


@each_backend(dtype=DTYPES, buffers=["float32", "float64"], ddof=[0, 1], pooled=SWITCH, weighted=SWITCH)
def test_running_statistics(backend, dtype, buffers, ddof, pooled, weighted):
    def run(kernels):
        rng = np.random.default_rng(8)
        mean, var = (kernels.up(np.full(5, value, buffers)) for value in (0.5, 2.0))
        seen = kernels.up(np.array([0.0, 0, 4, 100, 7])) if pooled else None
        for n in (40, 3, 1, 700):
            x = (rng.standard_normal((n, 5, 2)) + 4).astype(dtype)
            weight = rng.random((n, 2)) if weighted else None
            forward(kernels, x, None, None, 1e-5, weight=weight, running=rule(mean, var, 0.3, seen, ddof))
        return kernels.down((mean, var, seen))

    got, want = run(backend), run(REFERENCE)
    unit = 32 * max(EPS[np.dtype(dtype)], EPS[np.dtype(buffers)])
    for g, w, what in zip(got, want, ("mean", "var", "seen"), strict=True):
        if w is not None:
            tags = {"what": what, "dtype": dtype, "buffers": buffers, "ddof": ddof, "pooled": pooled}
            assert_close(g, w, (1e-13 if what == "seen" else unit) * np.abs(w), **tags)
            assert g.dtype == w.dtype


# Rows: both passes in one task or launch, and apart
@each_backend(dtype=DTYPES, rows=[6, 2000], bad=[np.nan, np.inf, -np.inf], nonfinite=RULES, pooled=SWITCH)
def test_channels_that_are_not_finite(backend, dtype, rows, bad, nonfinite, pooled):
    x = np.random.default_rng(1).standard_normal((rows, 260)).astype(dtype)
    x[rows // 2, 1] = x[0, 203] = bad

    def run(kernels):
        seen = kernels.up(np.full(260, 3.0)) if pooled else None
        mean, var = kernels.up(np.zeros(260)), kernels.up(np.ones(260))
        running = rule(mean, var, 0.1, seen, 0, nonfinite)
        out = np.full_like(x, 7)
        try:
            skipped = forward(kernels, x, None, None, 1e-5, running=running, out=out)[3]
        except FloatingPointError as error:
            assert "2 of 260 channels" in str(error)
            assert_same(out, np.full_like(x, 7))
            skipped = None
        mean, var, seen = kernels.down((mean, var, seen))
        finite = np.isfinite(mean) & np.isfinite(var)
        return skipped, finite, mean[finite], var[finite], seen

    got, want = run(backend), run(REFERENCE)
    assert got[0] == want[0] == {"skip": 2, "propagate": 0, "raise": None}[nonfinite]
    assert_same(got[1], want[1])
    for g, w in zip(got[2:4], want[2:4], strict=True):
        assert_close(g, w, 16 * EPS[np.dtype(dtype)], dtype=dtype, bad=bad, nonfinite=nonfinite)
    if pooled:
        assert_same(got[4], want[4], nonfinite=nonfinite)


@on_off("pooled")
def test_a_single_value_has_no_unbiased_variance(pooled):
    """With ddof=1 it is not finite, so an average leaves the channel alone; pooling needs only the value."""
    for kernels in (cpu, reference):
        running = np.zeros(2), np.ones(2)
        moving = rule(*running, 0.5, np.full(2, 2.0) if pooled else None, 1)
        skipped = forward(kernels, np.array([[3.0, 6.0]]), None, None, 1e-5, running=moving)[3]
        assert skipped == (0 if pooled else 2), kernels.__name__
        assert_close(running[0], [1, 2] if pooled else [0, 0], 1e-15, kernels=kernels.__name__)
        assert_close(running[1], [3.5, 12.5] if pooled else [1, 1], 1e-14, kernels=kernels.__name__)


@pytest.mark.parametrize("before", [np.nan, np.inf, 1e10])
def test_the_first_pooled_batch_replaces_what_stood_there(before):
    for kernels in (cpu, reference):
        mean, var, seen = np.full(1, before), np.full(1, before), np.zeros(1)
        forward(kernels, np.array([[1e-10], [3e-10]]), None, None, 1e-5, running=rule(mean, var, 0.1, seen))
        assert_close(mean, [2e-10], 1e-25, kernels=kernels.__name__)
        assert_close(var, [1e-20], 1e-35, kernels=kernels.__name__)
        assert seen == 2


def test_values_that_only_the_batch_can_hold_do_not_poison_float32_buffers():
    """A variance of 1e60 is finite in float64; in float32 buffers it is not, so the channel is left alone."""
    x = np.random.default_rng(0).standard_normal((8, 2)).astype("float32")
    x[:, 1] *= 1e30
    for kernels in (cpu, reference):
        mean, var = np.zeros(2, "float32"), np.ones(2, "float32")
        with np.errstate(over="raise" if kernels is cpu else "ignore"):
            skipped = forward(kernels, x, None, None, 1e-5, running=rule(mean, var, 0.5))[3]
        assert skipped == 1
        assert (mean[1], var[1]) == (0, 1) and mean[0] != 0 and np.isfinite(var).all()


def test_weights_too_light_for_ddof_leave_the_pooled_variance():
    x, weight = np.array([[1.0], [2.0]]), np.array([[0.3], [0.4]])
    for kernels in (cpu, reference):
        mean, var, seen = np.zeros(1), np.ones(1), np.zeros(1)
        forward(kernels, x, None, None, 1e-5, weight=weight, running=rule(mean, var, 0.1, seen, 1))
        assert_close(mean, [1.1 / 0.7], 1e-15, kernels=kernels.__name__)
        assert var == 1


def test_an_overflow_in_half_precision_is_silent_and_late_errors_are_none():
    x = np.array([[0.0], [1.0], [3.0]], "float16")
    mean, var = np.zeros(1), np.ones(1)
    with np.errstate(all="raise"):
        y = forward(cpu, x, np.full(1, 1e6), None, 1e-5, running=rule(mean, var, 1.0), out=x)[0]
    assert y is x and np.isinf(y).all() and mean == 4 / 3


def test_the_count_of_many_weights_keeps_its_digits():
    weight = np.full((2_000_000, 1), 0.1)
    count = cpu.forward(np.zeros((2_000_000, 1), "float32"), None, None, 1e-5, weight=weight)[2]
    assert abs(count / 200_000 - 1) < 1e-15 * 4


# move: the same without an array ------------------------------------------------------------------------------------

VALUES = [1e300, 1e20, np.nan, np.inf, -np.inf, 0.0, 2.5, -3.0]  # 1e300 does not fit float32 buffers


@each_backend(buffers=["float32", "float64"], ddof=[0, 1], nonfinite=RULES, pooled=SWITCH)
def test_move(backend, buffers, ddof, nonfinite, pooled):
    """Against the reference: batches of 0 values, of 1, of many and of fractional weights, finite or not."""
    count, mean, var = (a.ravel() for a in np.meshgrid([0.0, 0.5, 1.0, 3.0, 1e6], VALUES, [0.0, 2.0, np.nan, np.inf]))
    empty = count == 0
    if nonfinite == "raise":  # then all must be well, but what is empty is not looked at
        fit = empty | ((np.abs(mean) < 1e10) & np.isfinite(var) & ((count > ddof) | pooled))
        count, mean, var, empty = count[fit], mean[fit], var[fit], empty[fit]

    def run(kernels):
        rng = np.random.default_rng(3)
        running = [kernels.up(a(count.size).astype(buffers)) for a in (rng.standard_normal, rng.random)]
        seen = kernels.up(rng.integers(0, 3, count.size) * 4.0) if pooled else None
        before = [running[0].copy(), running[1].copy(), None if seen is None else seen.copy()]
        arguments = count.copy(), mean.copy(), var.copy()
        skipped = move(kernels, rule(*running, 0.3, seen, ddof, nonfinite), *arguments)
        for a, b in zip(arguments, (count, mean, var), strict=True):
            assert_same(a, b, kernels=kernels.name)
        for a, b in zip((*running, seen), before, strict=True):
            if a is not None:
                a, b = kernels.down((a, b))
                assert_same(a[empty], b[empty], kernels=kernels.name)
        return kernels.down((skipped, *running, seen))

    got, want = run(backend), run(REFERENCE)
    assert got[0] == want[0] == (0 if nonfinite != "skip" else want[0])
    assert nonfinite != "skip" or got[0] > 0
    for g, w, what in zip(got[1:], want[1:], ("mean", "var", "seen"), strict=True):
        if w is not None:
            g, w = (np.where(np.isfinite(a), a, a.dtype.type(np.nan)) for a in (g, w))  # lost, either way
            tags = {"what": what, "buffers": buffers, "ddof": ddof, "nonfinite": nonfinite, "pooled": pooled}
            size = np.abs(w) + (1 if what == "mean" else 0) * np.abs(np.random.default_rng(3).standard_normal(w.size))
            assert_close(
                g, w, 4 * EPS[np.dtype(buffers)] * size, **tags
            )  # a mean near 0 is a difference of larger ones
            assert g.dtype == w.dtype == (buffers if what != "seen" else "float64")


@on_off("pooled")
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_move_raises_before_it_moves(bad, pooled):
    count, var = np.array([2.0, 2.0, 0.0]), np.ones(3)
    for kernels in (cpu, reference):
        running, seen = (np.zeros(3, "float32"), np.ones(3, "float32")), np.full(3, 2.0)
        moving = rule(*running, 0.5, seen if pooled else None, 0, "raise")
        with pytest.raises(FloatingPointError, match="1 of 3 channels"):
            move(kernels, moving, count, np.array([1.0, bad, bad]), var)
        assert_same(running, [np.zeros(3), np.ones(3)], kernels=kernels.__name__)
        assert_same(seen, np.full(3, 2.0), kernels=kernels.__name__)


@on_off("pooled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_move_is_what_forward_does(pooled, dtype):
    """The same bits, from the statistics that forward returns; also beside channels that are left alone."""
    channels = 200
    x = np.random.default_rng(4).standard_normal((50, channels)) + 3
    x[7, 70] = np.nan
    x[:, 130] *= 1e30  # float32 has no room for the variance
    before = np.full(channels, 0.5, dtype), np.full(channels, 2.0, dtype)

    def fresh():
        return rule(before[0].copy(), before[1].copy(), 0.3, np.full(channels, 7.0) if pooled else None, 1)

    by_forward, by_move = fresh(), fresh()
    _, stats, count, skipped = forward(cpu, x, None, None, 1e-5, running=by_forward)
    assert skipped == move(cpu, by_move, np.full(channels, count), stats[0].copy(), stats[1].copy())
    assert skipped == (2 if dtype == "float32" else 1)
    for a, b in zip(by_forward[1:8], by_move[1:8], strict=True):
        if isinstance(a, np.ndarray):
            assert a.tobytes() == b.tobytes()
    left = np.flatnonzero(by_forward[1] == before[0])
    assert left.tolist() == ([70, 130] if dtype == "float32" else [70])
