"""Moments: however rows are cut and in whatever order the pieces are merged, the result is that of all rows."""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bnorm.functional as F
from bnorm import Moments
from compare import assert_close, assert_same

OFFSETS = st.sampled_from([0.0, 1.0, -1e3, 1e6, -1e9])
SCALES = st.sampled_from([1e-100, 1e-6, 1.0, 1e100])

no_deadline = settings(deadline=None)  # rational arithmetic takes its time


@st.composite
def tables(draw, rows=40):
    """Rows of 1 to 3 channels, far from zero or not, constant or not."""
    shape = draw(st.tuples(st.integers(1, rows), st.integers(1, 3)))
    values = draw(hnp.arrays(np.float64, shape, elements=st.floats(-1, 1, width=32)))
    return (values + draw(OFFSETS)) * draw(SCALES)


@st.composite
def partitions(draw, n):
    """The rows 0 .. n-1 in some order, cut into pieces, of which some may be empty."""
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=n)))
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]


def exact(x, weight=None):
    """Count, mean and m2 per channel in rational arithmetic."""
    weight = [Fraction(1)] * len(x) if weight is None else [Fraction(float(w)) for w in weight]
    count = sum(weight)
    columns = []
    for column in x.T:
        values = [Fraction(float(v)) for v in column]
        mean = sum(w * v for w, v in zip(weight, values, strict=True)) / count
        columns.append((count, mean, sum(w * (v - mean) ** 2 for w, v in zip(weight, values, strict=True))))
    return [[float(v) for v in row] for row in zip(*columns, strict=True)]


def check(m, count, mean, m2, **case):
    """To 1e-12 relative. No float64 mean is nearer to the exact one, and no m2, than the data's own last digits."""
    std = np.sqrt(np.asarray(m2) / count)
    assert_close(m.count, count, 1e-12 * np.abs(count), **case)
    assert_close(m.mean, mean, 1e-12 * np.maximum(np.abs(mean), std), **case)
    assert_close(m.m2, m2, 1e-12 * np.abs(m2), **case)


@no_deadline
@given(st.data(), tables())
def test_any_partition_merged_in_any_order_is_the_whole(data, x):
    pieces = [F.moments(x[rows]) for rows in data.draw(partitions(len(x)))]
    want = exact(x)
    check(F.moments(x), *want, how="whole")
    check(Moments.merge(pieces), *want, how="merge")
    check(sum(pieces), *want, how="sum")
    while len(pieces) > 1:  # any tree
        i = data.draw(st.integers(0, len(pieces) - 2))
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    check(pieces[0], *want, how="tree")


@no_deadline
@given(st.data(), tables(rows=15))
def test_weighted_pieces(data, x):
    weight = data.draw(hnp.arrays(np.float64, len(x), elements=st.sampled_from([0.0, 0.5, 1.0, 3.0])))
    if not weight.any():
        weight[0] = 1.0
    pieces = [F.moments(x[rows], weight=weight[rows]) for rows in data.draw(partitions(len(x)))]
    check(Moments.merge(pieces), *exact(x, weight))


@no_deadline
@given(st.data(), tables(rows=20))
def test_missing_values(data, x):
    missing = data.draw(hnp.arrays(bool, x.shape))
    missing[0] = False
    holes = np.where(missing, np.nan, x)
    pieces = [F.moments(holes[rows], skipna=True) for rows in data.draw(partitions(len(x)))]
    merged = Moments.merge(pieces)
    for c in range(x.shape[1]):
        want = exact(x[~missing[:, c], c : c + 1])
        got = Moments(merged.count[c : c + 1], merged.mean[c : c + 1], merged.m2[c : c + 1])
        check(got, *want, channel=c)


@no_deadline
@given(tables())
@example(np.full((3, 1), 14.62))
@example(np.full((7, 2), 1e10))
def test_a_constant_channel_has_no_variance_however_it_is_merged(x):
    x = np.broadcast_to(x[:1], x.shape)
    merged = sum(F.moments(row[None]) for row in x)
    assert_same(merged.mean, x[0])
    assert_same(merged.m2, np.zeros(x.shape[1]))


def test_many_small_pieces_far_from_zero():
    """A million standard deviations away, one row at a time, one after the other: no digit is lost."""
    x = np.random.default_rng(0).standard_normal((20_000, 2)) + np.array([1e6, -1e6])
    merged = sum(F.moments(row[None]) for row in x)
    count, mean, m2 = exact(x)
    check(merged, count, mean, m2)
    assert_same(merged.mean, mean)


def test_by_hand():
    a = Moments([2], [1], [2])  # of 0 and 2
    b = Moments(
        count=[
            1,
        ],
        mean=[4],
        m2=[0],
    )  # of 4
    assert_same([(a + b).count, (a + b).mean, (a + b).m2], [[3], [2], [8]])
    assert_same([(a + b).var(), (a + b).var(ddof=1), (a + b).std(1)], [[8 / 3], [4], [2]])


def test_nothing_is_neutral_channel_by_channel():
    nothing = F.moments(np.zeros((0, 2)))
    assert_same([nothing.count, nothing.m2], np.zeros((2, 2)))
    assert np.isnan([nothing.mean, nothing.var(), nothing.std()]).all()
    some = Moments([3, 0], [1.5, 7], [2, 9])  # what is said of no values says nothing
    assert_same([some.mean, some.m2], [[1.5, np.nan], [2, 0]])
    other = Moments([0, 4], [0, 2.5], [0, 1])
    both = Moments([3, 4], [1.5, 2.5], [2, 1])
    assert some + other == other + some == both
    assert some + nothing == nothing + some == some
    assert nothing + nothing == nothing
    assert Moments.merge([nothing, some, nothing, other, nothing]) == both


def test_what_is_not_finite_stays():
    inf, nan, one = (F.moments(np.array([[v], [1.0]])) for v in (np.inf, np.nan, 3.0))
    assert np.isnan((nan + one).mean) and np.isnan((nan + one).m2) and (nan + one).count == 4
    assert not np.isfinite((one + inf).mean) and np.isnan((inf + one).m2)


def test_variance_needs_more_than_ddof_values():
    m = Moments([1, 2, 2.5], [0, 0, 0], [0, 3, 3])
    assert_same(m.var(1), [np.nan, 3, 2])
    assert_same(m.var(2), [np.nan, np.nan, 6])
    assert_same(m.var(), [0, 1.5, 1.2])
    for moments in (m, F.moments(np.ones((3, 2)), exact=True)):
        for ddof in (np.nan, np.inf):
            with pytest.raises(ValueError, match=f"Moments: ddof: expected a finite number, got {ddof}"):
                moments.var(ddof)
        with pytest.raises(TypeError, match="Moments: ddof: expected a real number, got '1'"):
            moments.std("1")


def test_sum_and_merge_of_one():
    m = F.moments(np.array([[1e6 + 0.1], [1e6 + 0.7]]))
    assert sum([m]) == Moments.merge([m]) == Moments.merge(iter([m])) == m
    assert 0 + m is m
    assert m.__radd__(0.5) is NotImplemented


def test_equality_is_by_value():
    m = Moments([2], [1], [2])
    assert m == Moments([2.0], [1.0], [2.0]) and m != Moments([2], [1], [3]) and m != Moments([2] * 2, [1] * 2, [2] * 2)
    assert m != 0
    with pytest.raises(TypeError, match="unhashable"):
        hash(m)


def test_arrays_are_its_own_and_read_only():
    count, mean, m2 = np.array([2.0]), np.array([1.0]), np.array([3.0])
    m = Moments(count, mean, m2)
    count[:] = mean[:] = m2[:] = 9
    assert_same([m.count, m.mean, m.m2], [[2], [1], [3]])
    for values in (m.count, m.mean, m.m2):
        assert values.dtype == np.float64 and values.shape == (1,) and not values.flags.writeable


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "deepcopy", "pickle"]
)
def test_copies(duplicate):
    x = np.random.default_rng(1).standard_normal((50, 3)) + 1e6
    first, second = F.moments(x[:20]), F.moments(x[20:])
    again = duplicate(first)
    assert again == first and again + second == first + second  # what the mean rounds off is there too
    assert not again.mean.flags.writeable


def test_repr_is_short():
    assert repr(Moments([2, 0], [1, 0], [2, 0])) == "Moments(count=[2., 0.], mean=[ 1., nan], m2=[2., 0.])"
    assert len(repr(F.moments(np.ones((2, 1000))))) < 120
