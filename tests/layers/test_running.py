"""Running statistics of a batch norm layer: how they move, what keeps them, what they survive."""

import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.checks import NonFiniteError, SingleValueError
from compare import assert_close, assert_same
from layer_oracle import LAYOUTS, held

C = 4
rng = np.random.default_rng(0)


def batch(n=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, C)) * [0.5, 1, 2, 3] + [0, 3, -6, 9]


def with_bad_channel(value=np.nan):
    x = batch(6, 0)
    x[1, 2] = value
    return x


GOOD = np.array([True, True, False, True])


# How they move -------------------------------------------------------------------------------------------------------


def test_the_momentum_is_the_weight_of_the_new_batch():
    bn = bnorm.BatchNorm1d(C, momentum=0.25)
    a, b = batch(seed=1), batch(seed=2)
    bn(a)
    assert_close(bn.running_mean, 0.25 * a.mean(0), 1e-14)
    assert_close(bn.running_var, 0.75 + 0.25 * a.var(0), 1e-14)
    bn(b)
    assert_close(bn.running_mean, 0.75 * 0.25 * a.mean(0) + 0.25 * b.mean(0), 1e-14)
    assert_close(bn.running_var, 0.75 * (0.75 + 0.25 * a.var(0)) + 0.25 * b.var(0), 1e-14)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_without_momentum_all_batches_are_one(layout, ddof):
    """However they were cut, and with what lies between them."""
    many, one = (
        getattr(bnorm, layout.layer)(C, axis=layout.axis, momentum=None, ddof=ddof, on_single="running")
        for _ in range(2)
    )
    batches = [layout.batch(rng, n)[0] + shift for n, shift in ((2, 0), (9, 100), (3, -50), (4, 7))]
    for x in batches:
        many(x)
    samples = 1 if layout.axis == 0 else 0
    one(np.concatenate(batches, samples))
    assert_close(many.running_mean, one.running_mean, 1e-12 * np.abs(one.running_mean), layout=layout)
    assert_close(many.running_var, one.running_var, 1e-12 * one.running_var, layout=layout)
    assert one.running_var.min() > 1000  # the spread between them counts


def test_the_average_of_batch_variances_is_not_the_variance():
    bn = bnorm.BatchNorm1d(1, momentum=None)
    for x in ([[1.0], [3.0]], [[11.0], [13.0]]):
        bn(np.array(x))
    assert_close(bn.running_mean, [7.0], 1e-14)
    assert_close(bn.running_var, [26.0], 1e-13)


def test_the_first_batch_replaces_what_stood_there_without_momentum():
    bn = bnorm.BatchNorm1d(C, momentum=None)
    bn.running_mean, bn.running_var = np.full(C, 100.0), np.full(C, 100.0)
    bn(batch())
    assert_close(bn.running_mean, batch().mean(0), 1e-14)
    assert_close(bn.running_var, batch().var(0), 1e-14)


def test_ddof_is_for_the_running_variance_only():
    one, other = bnorm.BatchNorm1d(C, ddof=0, momentum=1.0), bnorm.BatchNorm1d(C, ddof=1, momentum=1.0)
    assert_same(one(batch()), other(batch()))
    assert_close(one.running_var, batch().var(0), 1e-14)
    assert_close(other.running_var, batch().var(0, ddof=1), 1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_buffers_stay_the_arrays_they_are(dtype):
    bn = bnorm.BatchNorm1d(C, dtype=dtype)
    mean, var = bn.running_mean, bn.running_var

    def pooled(replace):
        with bn.pooled_stats(replace=replace):
            bn(batch())

    def assign():
        bn.running_mean, bn.running_var = np.arange(C), np.arange(C) + 1

    changes = [
        lambda: bn(batch()),
        lambda: bn(batch().astype("f4")),
        bn.reset_running_stats,
        lambda: pooled(False),
        bn.reset_parameters,
        lambda: pooled(True),
        lambda: bn.load_state_dict(bnorm.BatchNorm1d(C).state_dict()),
        assign,
    ]
    for change in changes:
        before = mean.tobytes()
        change()
        assert mean.tobytes() != before
        assert bn.running_mean is mean and bn.running_var is var
        assert mean.dtype == var.dtype == np.dtype(dtype)
    assert_same(mean, np.arange(C))
    assert_same(var, np.arange(C) + 1)


def test_a_whole_number_of_batches_in_any_dtype():
    """float32 data in float64 buffers: the statistics are those of the float64 values, to the sums' rounding."""
    bn = bnorm.BatchNorm1d(C, momentum=1.0)
    x = batch(500).astype("f4")
    bn(x)
    assert_close(bn.running_mean, x.mean(0, dtype="f8"), 1e-6)
    assert_close(bn.running_var, x.var(0, dtype="f8"), 1e-5)


# Not tracked ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_without_running_statistics_the_batch_counts_in_both_modes(training):
    bn = bnorm.BatchNorm1d(C, track_running_stats=False)
    bn.training = training
    assert bn.running_mean is None and bn.running_var is None
    x, dy = batch(), batch(seed=1)
    y, saved = F.batch_norm(x, np.ones(C), np.zeros(C))
    assert_same(bn(x), y)
    assert_same(bn.backward(dy), F.backward(dy, saved)[0])
    assert bn.running_mean is None and bn.running_var is None
    with pytest.raises(SingleValueError, match=r"^BatchNorm1d\(4"):
        bn(x[:1])
    with bn.frozen_stats():
        assert_same(bn(x), y)
    bn.reset_running_stats()


# One value, no value -------------------------------------------------------------------------------------------------

SINGLES = [
    ("BatchNorm1d", (1, C), None),
    ("BatchNorm1d", (1, C, 1), None),
    ("BatchNorm2d", (1, C, 1, 1), None),
    ("BatchNorm1d", (3, C), [0, 1, 0]),
    ("BatchNorm1d", (3, C, 2), [[0, 0], [0, 0.5], [0, 0]]),
]


@pytest.mark.parametrize(("layer", "shape", "weight"), SINGLES)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_value_per_channel_is_refused(layer, shape, weight, momentum):
    bn = getattr(bnorm, layer)(C, momentum=momentum)
    x = rng.standard_normal(shape)
    before = held(bn)
    with pytest.raises(SingleValueError, match=rf"^{layer}\(4"):
        bn(x, weight)
    assert held(bn) == before
    bn.eval()
    assert_close(bn(x, weight), x, 1e-5 * np.abs(x))


@pytest.mark.parametrize(("layer", "shape", "weight"), SINGLES)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_value_per_channel_by_the_running_statistics(layer, shape, weight, momentum):
    bn, other = (getattr(bnorm, layer)(C, momentum=momentum, on_single="running") for _ in range(2))
    for each in (bn, other):
        each.gamma, each.beta = np.arange(1.0, 5), np.arange(4.0)
        each(np.random.default_rng(1).standard_normal((3, *shape[1:])) + 1)
    other.eval()
    x, dy = rng.standard_normal((2, *shape))
    before = held(bn)
    assert_same(bn(x, weight), other(x))
    assert held(bn) == before
    dx = bn.backward(dy)
    assert_same(dx, other.backward(dy))
    factor = (np.array(bn.gamma) / np.sqrt(bn.running_var + 1e-5)).reshape(C, *[1] * (len(shape) - 2))
    assert_close(dx, factor * dy, 1e-14 * np.abs(factor * dy))
    assert_same(bn.gamma.grad, other.gamma.grad)


@pytest.mark.parametrize(
    ("layer", "shape"), [("BatchNorm1d", (0, C)), ("BatchNorm1d", (2, C, 0)), ("BatchNorm2d", (0, C, 3, 2))]
)
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"nonfinite": "raise"}, {"on_single": "running"}])
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_changes_nothing(layer, shape, options, training):
    bn = getattr(bnorm, layer)(C, **options)
    bn(rng.standard_normal((3, C, *[2] * (len(shape) - 2))))
    bn.training = training
    for dtype in ("float32", "float64"):
        x = np.empty(shape, dtype)
        before = held(bn)
        y = bn(x)
        assert y.shape == shape and y.dtype == x.dtype
        dx = bn.backward(x)
        assert dx.shape == shape and dx.dtype == x.dtype
        assert held(bn) == before  # zero gradients too


# Not finite ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_channel_that_is_not_finite_is_left_alone(bad, momentum):
    bn, other = bnorm.BatchNorm1d(C, momentum=momentum), bnorm.BatchNorm1d(C, momentum=momentum)
    bn(batch(seed=1)), other(batch(seed=1))
    before = bn.state_dict()
    with pytest.warns(RuntimeWarning, match=r"BatchNorm1d\(4") as said:
        y = bn(with_bad_channel(bad))
    assert said[0].filename == __file__  # it points at the call
    other(batch())
    assert np.isnan(y[:, 2]).all() and np.isfinite(y[:, GOOD]).all()
    for name in ("running_mean", "running_var"):
        now = getattr(bn, name)
        assert_same(now, np.where(GOOD, getattr(other, name), before[name]), name=name, bad=bad)
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bn(np.full((6, C), bad))  # said already; a batch counts once, whatever the number of channels
        bn(batch())
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (4, 2)
    assert np.isfinite(bn.running_mean).all()
    with pytest.warns(RuntimeWarning):
        bnorm.BatchNorm1d(C)(with_bad_channel(bad))  # another layer says so itself


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e25])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (bnorm.BatchNorm1d, (6, C)),
        (partial(bnorm.BatchNorm1d, momentum=None), (6, C)),
        (partial(bnorm.BatchNorm1d, ddof=1), (2, C)),
        (partial(bnorm.InstanceNorm1d, track_running_stats=True), (6, C, 5)),
    ],
)
def test_a_warning_that_is_an_error_changes_nothing(layer, shape, bad):
    """The square of 1e25 is no float32, but the statistics of a pool hold it until its end."""
    bn, x = layer(C, dtype="float32"), rng.standard_normal(shape)
    bn(x)
    before, saved = held(bn), bn._saved
    x[(0, 2, *[0] * (len(shape) - 2))] = bad
    pooled = getattr(bn, "pooled_stats", nullcontext)
    for block in (nullcontext, nullcontext, pooled):
        with warnings.catch_warnings(), pytest.raises(RuntimeWarning, match="1 of 4 channels"), block():
            warnings.simplefilter("error")
            bn(x)
        assert held(bn) == before
        assert bn._saved is saved or block is pooled
    with pytest.warns(RuntimeWarning, match="1 of 4 channels"):
        bn(x)
    assert bn.num_batches_skipped == 1


def test_a_skipped_channel_has_not_been_seen():
    """Without momentum its next batch is its first."""
    bn = bnorm.BatchNorm1d(C, momentum=None)
    with pytest.warns(RuntimeWarning):
        bn(with_bad_channel())
    x = batch(9, seed=5)
    bn(x)
    both = np.concatenate([batch(), x])
    assert_close(bn.running_mean, np.where(GOOD, both.mean(0), x.mean(0)), 1e-13)
    assert_close(bn.running_var, np.where(GOOD, both.var(0), x.var(0)), 1e-13)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_not_finite_raises_and_changes_nothing(momentum):
    bn, other = (bnorm.BatchNorm1d(C, momentum=momentum, nonfinite="raise") for _ in range(2))
    for each in (bn, other):
        each(batch(seed=1))
    before = held(bn)
    out = np.full((6, C), 7.0)
    for options in ({}, {"out": out}):
        with pytest.raises(NonFiniteError, match=r"^BatchNorm1d\(4") as caught:
            bn(with_bad_channel(), **options)
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, FloatingPointError)
        assert held(bn) == before
    assert_same(out, np.full((6, C), 7.0))
    assert_same(bn.backward(batch(seed=2)), other.backward(batch(seed=2)))  # of the forward before
    for each in (bn, other):
        each(batch(seed=3))
    assert held(bn) == held(other)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_not_finite_flows_in_if_asked(momentum):
    bn = bnorm.BatchNorm1d(C, momentum=momentum, nonfinite="propagate")
    bn(with_bad_channel())
    assert_same(np.isnan(bn.running_mean), ~GOOD)
    assert_same(np.isnan(bn.running_var), ~GOOD)
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (1, 0)


@pytest.mark.parametrize(
    ("before", "x", "options", "after"),
    [
        (np.nan, batch(), {"momentum": 1.0, "nonfinite": "propagate"}, batch().mean(0)),
        (1e10, batch(), {"momentum": 1.0}, batch().mean(0)),
        (1.5e308, np.full((2, C), -1.5e308), {"momentum": 0.5}, np.zeros(C)),
    ],
    ids=["it replaces NaN", "it replaces a large one", "the way overflows"],
)
def test_an_average_moves_by_one_rule(before, x, options, after):
    """In the loop for the usual case as where a batch is several micro-batches, or spread over ranks."""
    bn, pooled = (bnorm.BatchNorm1d(C, **options) for _ in range(2))
    for each in (bn, pooled):
        each.running_mean[1:] = before
    bn(x)
    with pooled.pooled_stats():
        pooled(x)
    assert_close(bn.running_mean[1:], after[1:], 1e-14 * 10)
    assert bn.num_batches_skipped == 0
    assert held(bn) == held(pooled)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_momentum_of_one_keeps_the_digits_of_a_small_variance(dtype):
    x = batch() * 1e-10
    bn = bnorm.BatchNorm1d(C, momentum=1.0, dtype=dtype)
    bn(x)
    assert_close(bn.running_var, x.var(0), 4 * np.finfo(dtype).eps * x.var(0))


@pytest.mark.parametrize("nonfinite", ["skip", "raise", "propagate"])
def test_inference_takes_what_comes(nonfinite):
    bn = bnorm.BatchNorm1d(C, nonfinite=nonfinite).eval()
    before = held(bn)
    x = with_bad_channel()
    y = bn(x)
    assert_same(np.isnan(y), np.isnan(x))
    assert held(bn) == before


def test_a_batch_that_float32_buffers_cannot_hold():
    bn = bnorm.BatchNorm1d(C, dtype="float32")
    with pytest.warns(RuntimeWarning):
        bn(batch() * [1, 1, 1e200, 1])
    assert np.isfinite(bn.running_mean).all() and np.isfinite(bn.running_var).all()
    assert_same(bn.running_var != 1, GOOD)
    assert bn.num_batches_skipped == 1
