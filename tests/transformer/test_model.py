"""Transformers against a plain model: learning, merging, forgetting, saving, copying, errors, queries in any order.

The model is written from the documents: the list of all rows with their weights and ages, in long double, or in
fractions where the result is exact. A long run: pytest --hypothesis-profile=long tests/transformer/test_model.py
"""

import copy
import pickle
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bnorm
from bnorm import BatchNormTransformer, GroupedTransformer

C = 2
ROWS = st.integers(1, 9)
SEEDS = st.integers(0, 40)
FORMATS = st.sampled_from([".npz", ".safetensors"])


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


def close(got, want, unit):
    """To 1e-12 of a unit; NaN where there is no number."""
    assert (np.isnan(got) == np.isnan(want)).all(), (got, want)
    assert not (np.abs(got - want) > 1e-12 * unit).any(), (got, want)


class Rows:
    """All rows of a stream: values, weights, and how many rows came later."""

    def __init__(self):
        self.x, self.w, self.age = np.empty((0, C), np.longdouble), np.empty(0), np.empty(0)
        self.batches = 0

    def add(self, x, w):
        w = np.ones(len(x)) if w is None else w
        self.age = np.r_[self.age + len(x), np.arange(len(x))[::-1]]
        self.x, self.w = np.r_[self.x, x], np.r_[self.w, w]
        self.batches += 1

    def unite(self, other):
        """Of streams that end together."""
        self.x, self.w, self.age = (np.r_[getattr(self, name), getattr(other, name)] for name in ("x", "w", "age"))
        self.batches += other.batches

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


class Stream(RuleBasedStateMachine):
    """What every way to learn has in common. A subclass has `parameters`, and `fade` as a function of age."""

    parameters: ClassVar = {}
    merges = True

    def fade(self, age):
        return np.ones_like(age)

    @initialize(n=ROWS, seed=SEEDS, ddof=st.sampled_from([0, 1]))
    def begin(self, n, seed, ddof):
        self.ddof = ddof
        self.t, self.model = self.made(n, seed)

    def made(self, n, seed):
        t, model = BatchNormTransformer(ddof=self.ddof, **self.parameters), Rows()
        x, w = batch(n, seed), weights(n, seed)
        model.add(x, w)
        return t.partial_fit(x, sample_weight=w), model

    @rule(n=ROWS, seed=SEEDS)
    def learn(self, n, seed):
        x, w = batch(n, seed), weights(n, seed)
        self.t.partial_fit(x, sample_weight=w)
        self.model.add(x, w)

    @rule(n=ROWS, seed=SEEDS)
    def fit(self, n, seed):
        """Learning begins anew."""
        self.t, self.model = self.made(n, seed)

    @precondition(lambda self: self.merges)
    @rule(n=ROWS, seed=SEEDS, more=ROWS)
    def merge(self, n, seed, more):
        other, model = self.made(n, seed)
        other.partial_fit(batch(more, seed + 1))
        model.add(batch(more, seed + 1), None)
        self.t.merge(other)
        self.model.unite(model)

    @rule(suffix=FORMATS)
    def store(self, suffix):
        with TemporaryDirectory() as folder:
            self.t.save(Path(folder) / f"t{suffix}")
            self.t = bnorm.load(Path(folder) / f"t{suffix}")

    @rule(how=st.sampled_from([copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]))
    def copied(self, how):
        """The copy goes on; what the original learns later is its own."""
        original, self.t = self.t, how(self.t)
        original.partial_fit(batch(3, 7))

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
            self.t.partial_fit(x, sample_weight=w)

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
        last = copy.copy(self.model)
        last.x, last.w, last.age = self.model.x[-12:], self.model.w[-12:], self.model.age[-12:]
        return last.described(self.fade, self.ddof)


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
        made, self.model = super().made(n, seed)
        self.averaged(batch(n, seed), weights(n, seed))
        return made, self.model

    def learn(self, n, seed):
        super().learn(n, seed)
        self.averaged(batch(n, seed), weights(n, seed))

    learn = rule(n=ROWS, seed=SEEDS)(learn)

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


class Groups(RuleBasedStateMachine):
    """Each group has the statistics of its rows alone, and the whole those of all."""

    keys = "abcdefgh"

    @initialize(halflife=st.sampled_from([None, 3.0]), n=ROWS, seed=SEEDS)
    def begin(self, halflife, n, seed):
        self.halflife, self.batches = halflife, 0
        self.t, self.rows = self.made(n, seed)

    def fade(self, age):
        return np.ones_like(age) if self.halflife is None else 2.0 ** (-np.asarray(age, np.longdouble) / self.halflife)

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
        keys, x, given = self.table(n, seed)
        t.partial_fit(np.array(given, object))
        for key in dict.fromkeys(keys.tolist()):
            rows.setdefault(key, Rows()).add(x[keys == key], None)
        rows.setdefault(None, Rows()).add(x, None)

    @rule(n=ROWS, seed=SEEDS)
    def learn(self, n, seed):
        self.learned(self.t, self.rows, n, seed)

    @rule(n=ROWS, seed=SEEDS)
    def merge(self, n, seed):
        other, rows = self.made(n, seed)
        self.t.merge(other)
        for key, some in rows.items():
            self.rows.setdefault(key, Rows()).unite(some)

    @rule(suffix=FORMATS)
    def store(self, suffix):
        with TemporaryDirectory() as folder:
            self.t.save(Path(folder) / f"t{suffix}")
            self.t = bnorm.load(Path(folder) / f"t{suffix}")

    @rule()
    def copied(self):
        original, self.t = self.t, copy.deepcopy(self.t)
        original.partial_fit(np.array([["a", 1e5, 1e5], ["z", 0.0, 0.0]], object))

    @rule(n=ROWS, seed=SEEDS)
    def wrong(self, n, seed):
        given = self.table(n, seed)[2]
        given[-1][1] = np.inf
        with pytest.raises(ValueError, match="infinity"):
            self.t.partial_fit(np.array(given, object))

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


TestPooled = of(Pooled, 0.03)
TestFading = of(Fading, 0.04)
TestWindowed = of(Windowed, 0.03)
TestExact = of(Exact, 0.03)
TestAverage = of(Average, 0.03)
TestGroups = of(Groups, 0.03)
