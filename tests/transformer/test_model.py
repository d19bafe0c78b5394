"""Transformers against a plain model: learning, merging, forgetting, saving, copying, errors, queries in any order.

The model is written from the documents: the list of all rows with their weights and ages, in long double, or in
fractions where the result is exact. A long run: pytest --hypothesis-profile=long tests/transformer/test_model.py
"""

import copy
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bnorm import BatchNormTransformer
from interrupts import interrupted_late
from restoring import Restored
from stream_model import LEFT, ROWS, SEEDS, C, Rows, batch, close, of, timed, weights, when


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
        scale = self.t.scale_.copy()
        self.t.set_params(eps=0.5, history=2)  # from the next batch on, which is not learned
        with pytest.raises(ValueError, match=r"infinity|features|[Nn]egative|sample_weight"):
            self.t.partial_fit(x, sample_weight=w, **timed(self.when(n, seed)))
        np.testing.assert_array_equal(self.t.scale_, scale)
        assert self.t.history_ is None
        self.t.set_params(eps=0.0, history=None)

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
        with pytest.raises(ValueError, match="BatchNormTransformer: forget: X: expected rows that were learned, got"):
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


TestPooled = of(Pooled, 0.12)
TestFading = of(Fading, 0.12)
TestWindowed = of(Windowed, 0.12)
TestExact = of(Exact, 0.12)
TestFadingByTime = of(FadingByTime, 0.12)
TestWindowOfTime = of(WindowOfTime, 0.12)
TestAverage = of(Average, 0.12)
