"""Transformers against a plain model: learning, merging, forgetting, saving, copying, errors, queries in any order.

The model is written from the documents: the list of all rows with their weights and ages, in long double, or in
fractions where the result is exact. A long run: pytest --hypothesis-profile=long tests/transformer/test_model.py
"""

import copy
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bnorm import BatchNormTransformer, GroupedTransformer
from interrupts import interrupted_late
from restoring import Restored

C = 2
START = np.datetime64("2024-03-01T12:00", "ns")
ROWS = st.integers(1, 9)
SEEDS = st.integers(0, 40)
LEFT = st.integers(0, 40)


def batch(n, seed):
    """Rows far from zero in one feature; some values missing, some rows equal."""
    rng = np.random.default_rng([n, seed])
    x = rng.normal(3.0, 2.0, (n, C)) * [1.0, 1e-3] + [0.0, 1e4]
    if seed % 3 == 0:
        x[rng.random((n, C)) < 0.4] = np.nan
    if seed % 5 == 0:
        x[:] = x[0]
    return x


def weights(n, seed):
    return None if seed % 2 else np.random.default_rng([seed, n]).integers(0, 4, n) + (np.arange(n) == 0)


def when(n, seed):
    """Seconds of some rows, in no order; some are equal."""
    rng = np.random.default_rng([seed, n, 9])
    return seed % 13 + rng.integers(0, 8, n) / 2


def timed(seconds):
    """What gives rows these times."""
    return {} if seconds is None else {"times": START + (seconds * 1e9).astype("m8[ns]")}


def close(got, want, unit):
    """To 1e-12 of a unit; NaN where there is no number."""
    assert (np.isnan(got) == np.isnan(want)).all(), (got, want)
    assert not (np.abs(got - want) > 1e-12 * unit).any(), (got, want)


class Rows:
    """All rows of a stream: values, weights, and how many rows came later, or seconds, if rows have times."""

    def __init__(self):
        self.x, self.w, self.age = np.empty((0, C), np.longdouble), np.empty(0), np.empty(0)
        self.latest, self.batches = None, 0

    def add(self, x, w, when=None):
        w = np.ones(len(x)) if w is None else w
        if when is None:
            self.age = np.r_[self.age + len(x), np.arange(len(x))[::-1]]
        else:
            age, self.latest = self.age - (self.latest or 0), max([when.max()] + [self.latest] * bool(len(self.age)))
            self.age = np.r_[age, -when] + self.latest
        self.x, self.w = np.r_[self.x, x], np.r_[self.w, w]
        self.batches += 1

    def unite(self, other):
        """Of streams that end together, or have times."""
        if self.latest is not None:
            latest = max(self.latest, other.latest)
            for one in (self, other):
                one.age, one.latest = one.age + (latest - one.latest), latest
        self.x, self.w, self.age = (np.r_[getattr(self, name), getattr(other, name)] for name in ("x", "w", "age"))
        self.batches += other.batches

    def within(self, age):
        """Those that are not older."""
        some = copy.copy(self)
        some.x, some.w, some.age = (a[self.age <= age] for a in (self.x, self.w, self.age))
        return some

    def described(self, fade, ddof):
        """Mean, variance, and the weight that has been seen."""
        here = ~np.isnan(self.x)
        w = here * (self.w * fade(self.age))[:, None].astype(np.longdouble)
        total, v = w.sum(0), np.where(here, self.x, 0)
        with np.errstate(all="ignore"):
            mean = (w * v).sum(0) / total
            m2 = (w * (v - mean) ** 2).sum(0)
            left = total - (w * fade(self.age)[:, None]).sum(0) / total  # a weight stands for equal rows
            divisor = np.where(left > 1e-15 * total, left, total) if ddof else total
            return mean, m2 / divisor, (here * self.w[:, None]).sum(0)


class Stream(Restored):
    """What every way to learn has in common. A subclass has `parameters`, and `fade` as a function of age."""

    parameters: ClassVar = {}
    merges = True

    def fade(self, age):
        return np.ones_like(age)

    @initialize(n=ROWS, seed=SEEDS, ddof=st.sampled_from([0, 1]))
    def begin(self, n, seed, ddof):
        self.ddof = ddof
        self.t, self.model = self.made(n, seed)

    def when(self, n, seed):
        """Seconds of the rows, if they have times."""

    def learned(self, t, model, n, seed):
        t.partial_fit(batch(n, seed), sample_weight=weights(n, seed), **timed(self.when(n, seed)))
        model.add(batch(n, seed), weights(n, seed), self.when(n, seed))
        return t, model

    def made(self, n, seed):
        return self.learned(BatchNormTransformer(ddof=self.ddof, **self.parameters), Rows(), n, seed)

    @rule(n=ROWS, seed=SEEDS)
    def learn(self, n, seed):
        self.learned(self.t, self.model, n, seed)

    @rule(n=ROWS, seed=SEEDS, left=LEFT)
    def learn_until_an_interrupt(self, n, seed, left):
        """All of it, or nothing."""
        before, x, w, when = self.t.n_batches_seen_, batch(n, seed), weights(n, seed), self.when(n, seed)
        interrupted_late(self.t, lambda t: t.partial_fit(x, sample_weight=w, **timed(when)), left)
        if self.t.n_batches_seen_ > before:
            self.learned(copy.deepcopy(self.t), self.model, n, seed)

    @rule(n=ROWS, seed=SEEDS)
    def fit(self, n, seed):
        """Learning begins anew."""
        self.t, self.model = self.made(n, seed)

    @precondition(lambda self: self.merges)
    @rule(n=ROWS, seed=SEEDS, more=ROWS)
    def merge(self, n, seed, more):
        other, model = self.learned(*self.made(n, seed), more, seed + 1)
        self.t.merge(other)
        self.model.unite(model)

    def disturb(self, original):
        original.partial_fit(batch(3, 7), **timed(self.when(3, 7)))

    @rule(n=ROWS, seed=SEEDS, kind=st.sampled_from(["infinity", "features", "weights", "lengths"]))
    def wrong(self, n, seed, kind):
        x, w = batch(n, seed), np.ones(n)
        if kind == "infinity":
            x[seed % n, seed % C] = [np.inf, -np.inf][seed % 2]
        elif kind == "features":
            x = x[:, 1:]
        elif kind == "weights":
            w[0] = -1
        else:
            w = np.ones(n + 1)
        with pytest.raises(ValueError, match=r"infinity|features|[Nn]egative|sample_weight"):
            self.t.partial_fit(x, sample_weight=w, **timed(self.when(n, seed)))

    @rule(n=ROWS, seed=SEEDS)
    def query(self, n, seed):
        x = batch(n, seed)
        back = self.t.inverse_transform(self.t.transform(x))
        seen = ~np.isnan(self.t.mean_)
        np.testing.assert_allclose(back[:, seen], x[:, seen], rtol=1e-9)

    def expected(self):
        return self.model.described(self.fade, self.ddof)

    @invariant()
    def agrees(self):
        mean, var, seen = self.expected()
        close(self.t.mean_, mean, np.sqrt(var) + 4e-4 * np.abs(mean))
        close(self.t.var_, var, 20 * var + 1e-6 * np.abs(mean) ** 2 * np.finfo(float).eps)
        np.testing.assert_allclose(np.broadcast_to(self.t.n_samples_seen_, C), seen, rtol=1e-13)
        assert self.t.n_batches_seen_ == self.model.batches


class Pooled(Stream):
    parameters: ClassVar = {"momentum": None}


class Fading(Stream):
    parameters: ClassVar = {"halflife": 4.0}

    def fade(self, age):
        return 2.0 ** (-np.asarray(age, np.longdouble) / 4)


class Windowed(Stream):
    parameters: ClassVar = {"window": 12}
    merges = False

    def expected(self):
        return self.model.within(11).described(self.fade, self.ddof)


class FadingByTime(Fading):
    """Rows come late by any amount."""

    parameters: ClassVar = {"halflife": "4s"}

    def when(self, n, seed):
        return when(n, seed)


class WindowOfTime(FadingByTime):
    parameters: ClassVar = {"window": "12s"}

    def fade(self, age):
        return np.ones_like(age)

    def expected(self):
        return self.model.within(12).described(self.fade, self.ddof)


class Exact(Stream):
    parameters: ClassVar = {"momentum": None, "exact": True}

    @precondition(lambda self: len(self.model.x) > 3)
    @rule(data=st.data())
    def forget(self, data):
        """Some rows, in any order."""
        some = data.draw(st.lists(st.integers(0, len(self.model.x) - 1), min_size=1, max_size=6, unique=True))
        if not self.model.w[some].any():
            return  # rows of no weight at all are refused, as everywhere
        self.t.forget(self.model.x[some].astype(float), sample_weight=self.model.w[some])
        left = np.setdiff1d(np.arange(len(self.model.x)), some)
        for name in ("x", "w", "age"):
            setattr(self.model, name, getattr(self.model, name)[left])

    @rule()
    def forget_what_was_not_there(self):
        with pytest.raises(ValueError, match="expected the moments of a part of these values"):
            self.t.forget(np.full((1, C), 1e9))

    @invariant()
    def is_rounded_once(self):
        for c in range(C):
            rows = [
                (int(w), Fraction(float(v))) for w, v in zip(self.model.w, self.model.x[:, c], strict=True) if v == v
            ]
            n = sum(w for w, _ in rows)
            if n == 0:
                assert np.isnan(self.t.mean_[c])
                continue
            mean = sum(w * v for w, v in rows) / n
            m2 = sum(w * (v - mean) ** 2 for w, v in rows)
            assert self.t.mean_[c] == float(mean)
            assert self.t.var_[c] == float(m2 / (n - self.ddof if n > self.ddof else n))


class Average(Stream):
    """A moving average of the statistics of batches."""

    parameters: ClassVar = {"momentum": 0.3}
    merges = False

    def made(self, n, seed):
        self.mean, self.var, self.weight = np.full(C, np.nan), np.full(C, np.nan), np.zeros(C)
        return super().made(n, seed)

    def learned(self, t, model, n, seed):
        self.averaged(batch(n, seed), weights(n, seed))
        return super().learned(t, model, n, seed)

    def averaged(self, x, w):
        alone = Rows()
        alone.add(x, w)
        mean, var, seen = (a.astype(float) for a in alone.described(self.fade, self.ddof))
        faded = self.weight * 0.7
        self.weight = faded + (seen > 0)
        share = np.where(seen > 0, 1 / np.where(self.weight > 0, self.weight, 1), 0)
        first = np.isnan(self.mean) & (seen > 0)
        for old, new in ((self.mean, mean), (self.var, var)):
            old += np.where(share > 0, share * (np.where(seen > 0, new, 0) - old), 0)
            old[first] = new[first]

    def expected(self):
        return self.mean, self.var, self.model.described(self.fade, self.ddof)[2]


class Groups(Restored):
    """Each group has the statistics of its rows alone, and the whole those of all."""

    keys = "abcdefgh"

    @initialize(halflife=st.sampled_from([None, 3.0, "3s"]), n=ROWS, seed=SEEDS)
    def begin(self, halflife, n, seed):
        self.halflife = halflife
        self.t, self.rows = self.made(n, seed)

    def fade(self, age):
        return np.ones_like(age) if self.halflife is None else 2.0 ** (-np.asarray(age, np.longdouble) / 3)

    def when(self, n, seed):
        return when(n, seed) if self.halflife == "3s" else None

    def table(self, n, seed):
        rng = np.random.default_rng([seed, n, 5])
        keys = rng.choice(list(self.keys[: 1 + seed % 8]), n)
        x = batch(n, seed)
        return keys, x, [[key, *row] for key, row in zip(keys.tolist(), x.tolist(), strict=True)]

    def made(self, n, seed):
        t, rows = GroupedTransformer(0, halflife=self.halflife), {}
        self.learned(t, rows, n, seed)
        return t, rows

    def learned(self, t, rows, n, seed):
        (keys, x, given), seconds = self.table(n, seed), self.when(n, seed)
        t.partial_fit(np.array(given, object), **timed(seconds))
        for key in [None, *dict.fromkeys(keys.tolist())]:
            some = keys == key if key else np.full(n, True)
            rows.setdefault(key, Rows()).add(x[some], None, None if seconds is None else seconds[some])

    @rule(n=ROWS, seed=SEEDS)
    def learn(self, n, seed):
        self.learned(self.t, self.rows, n, seed)

    @rule(n=ROWS, seed=SEEDS, left=LEFT)
    def learn_until_an_interrupt(self, n, seed, left):
        """All groups have learned, or none."""
        before, seconds, given = self.t.counts_.sum(), self.when(n, seed), np.array(self.table(n, seed)[2], object)
        interrupted_late(self.t, lambda t: t.partial_fit(given, **timed(seconds)), left)
        if self.t.counts_.sum() > before:
            self.learned(copy.deepcopy(self.t), self.rows, n, seed)

    @rule(n=ROWS, seed=SEEDS)
    def merge(self, n, seed):
        other, rows = self.made(n, seed)
        self.t.merge(other)
        for key, some in rows.items():
            if key in self.rows:
                self.rows[key].unite(some)
            else:
                self.rows[key] = some

    def disturb(self, original):
        original.partial_fit(np.array([["a", 1e5, 1e5], ["z", 0.0, 0.0]], object), **timed(self.when(2, 7)))

    @rule(n=ROWS, seed=SEEDS, kind=st.sampled_from(["infinity", "features", "weights", "times"]))
    def wrong(self, n, seed, kind):
        """In the last of the rows, when those before have been read."""
        given, w, seconds = self.table(n, seed)[2], np.ones(n), self.when(n, seed)
        if kind == "infinity":
            given[-1][1] = np.inf
        elif kind == "features":
            given = [row[:-1] for row in given]
        elif kind == "weights":
            w[-1] = -1
        else:
            seconds = np.zeros(n + 1) if seconds is None else None
        with pytest.raises(ValueError, match=r"infinity|features|[Nn]egative|times"):
            self.t.partial_fit(np.array(given, object), sample_weight=w, **timed(seconds))

    @rule(n=ROWS, seed=SEEDS)
    def query(self, n, seed):
        """A row is mapped by its group, and one of no group by the whole."""
        keys, x, given = self.table(n, seed)
        y = self.t.transform(np.array(given, object))
        for key, row, got in zip(keys.tolist(), x, y, strict=True):
            mean, var, _ = self.rows[key if key in self.rows else None].described(self.fade, 0)
            with np.errstate(all="ignore"):
                varies = var > 1e-9 * np.asarray(mean) ** 2  # of others, how they count as constant is for other tests
                want = (row - mean) / np.sqrt(var)
            np.testing.assert_allclose(got[varies], want[varies].astype(float), rtol=1e-6, atol=1e-6)

    @invariant()
    def agrees(self):
        assert set(self.t.groups_) == self.rows.keys() - {None}
        for i, key in enumerate(self.t.groups_):
            mean, var, seen = self.rows[key].described(self.fade, 0)
            close(self.t.means_[i], mean, np.sqrt(var) + 4e-4 * np.abs(mean))
            close(self.t.vars_[i], var, 20 * var + 1e-6 * np.abs(mean) ** 2 * np.finfo(float).eps)
            np.testing.assert_array_equal(self.t.counts_[i], seen)
        mean, var, _ = self.rows[None].described(self.fade, 0)
        close(self.t.whole_.mean, mean, np.sqrt(var) + 4e-4 * np.abs(mean))
        close(self.t.whole_.var(), var, 20 * var + 1e-6 * np.abs(mean) ** 2 * np.finfo(float).eps)


def of(machine, share):
    """The test of a machine: of this part of the examples that the profile asks for."""
    test = machine.TestCase
    test.settings = settings(max_examples=max(3, int(settings.default.max_examples * share)), deadline=None)
    test.pytestmark = [pytest.mark.filterwarnings("ignore:.*a batch of one row has no variance:UserWarning")]
    return test


TestPooled = of(Pooled, 0.12)
TestFading = of(Fading, 0.12)
TestWindowed = of(Windowed, 0.12)
TestExact = of(Exact, 0.12)
TestFadingByTime = of(FadingByTime, 0.12)
TestWindowOfTime = of(WindowOfTime, 0.12)
TestAverage = of(Average, 0.12)
TestGroups = of(Groups, 0.12)
