"""`history=N`: a bounded record of the stream."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from bnorm import BatchNormTransformer

MODES = ({"momentum": 0.2}, {"momentum": None}, {"halflife": 7.0})


def batches(n, rows=5, features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, rows, features)) + np.linspace(0, 3, n)[:, None, None]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_moment_until_there_are_too_many(mode):
    t, silent = BatchNormTransformer(history=10, **mode), BatchNormTransformer(**mode)
    seen = []
    for batch in batches(10):
        t.partial_fit(batch)
        silent.partial_fit(batch)
        seen.append((silent.mean_.copy(), silent.var_.copy()))
    rows, mean, var = t.history_
    np.testing.assert_array_equal(rows, np.arange(5, 51, 5))
    np.testing.assert_array_equal(mean, [mean for mean, _ in seen])
    np.testing.assert_array_equal(var, [var for _, var in seen])
    assert silent.history_ is None


@pytest.mark.parametrize("limit", [2, 3, 8, 9])
@pytest.mark.parametrize("n", [1, 9, 100, 1000])
def test_bounded_and_evenly_spread(limit, n):
    t = BatchNormTransformer(momentum=None, history=limit)
    whole = BatchNormTransformer(momentum=None, history=n + 1)
    for batch in batches(n, rows=2):
        t.partial_fit(batch)
        whole.partial_fit(batch)
    rows, mean, var = t.history_
    assert len(rows) <= limit + 1  # and now
    assert len(rows) > min(limit, n) / 2
    assert (rows[0], rows[-1]) == (2, 2 * n)
    steps = np.diff(rows[:-1])
    assert (steps == steps[:1]).all()
    at = rows // 2 - 1  # the same as in the record of everything
    np.testing.assert_array_equal(mean, whole.history_.mean[at])
    np.testing.assert_array_equal(var, whole.history_.var[at])


def test_fit_begins_anew():
    t = BatchNormTransformer(history=5)
    for batch in batches(4):
        t.partial_fit(batch)
    x = batches(1, rows=40)[0]
    t.fit(x)
    assert t.history_.rows.tolist() == [40]
    np.testing.assert_array_equal(t.history_.mean[0], t.mean_)
    t.partial_fit(x)
    assert t.history_.rows.tolist() == [40, 80]


def test_copies_do_not_move_with_the_stream():
    t = BatchNormTransformer(history=5).partial_fit(batches(1)[0])
    before = t.history_
    kept = before.mean.copy()
    t.partial_fit(batches(1, seed=1)[0])
    t.running_mean_ = [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(before.mean, kept)
    np.testing.assert_array_equal(t.history_.mean[0], kept[0])
    np.testing.assert_array_equal(t.history_.mean[-1], [1.0, 2.0, 3.0])  # now


def test_a_pickle_goes_on():
    t = BatchNormTransformer(halflife=9.0, history=4)
    x = batches(30)
    for batch in x[:13]:
        t.partial_fit(batch)
    again = pickle.loads(pickle.dumps(t))
    for batch in x[13:]:
        t.partial_fit(batch)
        again.partial_fit(batch)
    for mine, other in zip(t.history_, again.history_, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_clone_begins_its_own():
    t = BatchNormTransformer(history=4).partial_fit(batches(1)[0])
    other = clone(t)
    assert other.history == 4
    assert not hasattr(other, "history_")


def test_merge_leaves_the_record():
    one, two = (BatchNormTransformer(momentum=None, history=4) for _ in range(2))
    for batch in batches(3):
        one.partial_fit(batch)
        two.partial_fit(batch + 1)
    before = one.history_
    one.merge(two)
    after = one.history_
    np.testing.assert_array_equal(after.mean[:3], before.mean)
    np.testing.assert_array_equal(after.mean[3:], [one.mean_])


def test_a_batch_that_is_refused_leaves_no_trace():
    t = BatchNormTransformer(history=4)
    for batch in batches(3):
        t.partial_fit(batch)
    before = t.history_
    with pytest.raises(ValueError, match="infinity"):
        t.partial_fit(np.full((2, 3), np.inf))
    for was, now in zip(before, t.history_, strict=True):
        np.testing.assert_array_equal(was, now)


def test_changed_along_the_way():
    t = BatchNormTransformer(history=8)
    x = batches(9)
    for batch in x[:8]:
        t.partial_fit(batch)
    t.set_params(history=2).partial_fit(x[8])
    assert t.history_.rows.tolist() == [5, 45]
    t.set_params(history=None).partial_fit(x[8])
    assert t.history_ is None
    t.set_params(history=2).partial_fit(x[8])
    assert t.history_.rows.tolist() == [55]


@pytest.mark.parametrize("history", [1, 0, -3, 2.5, "many"])
def test_wrong_numbers(history):
    with pytest.raises(ValueError, match="'history' parameter"):
        BatchNormTransformer(history=history).partial_fit(batches(1)[0])


def test_features_not_seen_yet_are_nan():
    t = BatchNormTransformer(history=4)
    x = batches(3)
    x[:2, :, 1] = np.nan
    for batch in x:
        t.partial_fit(batch)
    assert np.isnan(t.history_.mean[:, 1]).tolist() == [True, True, False]
