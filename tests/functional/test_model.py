"""Exact moments against fractions: adding, merging, subtracting, saving, copying, errors, in any order.

The model is the bag of all values. A long run: pytest --hypothesis-profile=long tests/functional/test_model.py
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import bnorm.functional as F
from bnorm import Moments
from restoring import Restored

C = 2
ROWS = st.integers(1, 9)
SEEDS = st.integers(0, 60)
TYPES = ["f8", "f4", "f2", "i2"]


def batch(n, seed):
    """Values of many sizes; some equal, some that cancel, some that are not finite."""
    rng = np.random.default_rng([n, seed])
    x = rng.normal(3.0, 2.0, (n, C)) * 2.0 ** rng.integers(-9, 9, (n, C))
    if seed % 4 == 0:
        x[n // 2 :] = -x[: n - n // 2]
    if seed % 5 == 0:
        x[:] = x[0]
    x = x.astype(TYPES[seed % 4]).astype(float)
    if seed % 7 == 0:
        x[seed % n, seed % C] = [np.nan, np.inf, -np.inf][seed % 3]
    return x


def taken(x, seed):
    """Their moments, in their type where it has no NaN."""
    return F.moments(x.astype(TYPES[seed % 4]) if np.isfinite(x).all() else x, exact=True)


class Exact(Restored):
    @initialize(n=ROWS, seed=SEEDS)
    def begin(self, n, seed):
        self.rows = batch(n, seed)
        self.t = taken(self.rows, seed)
        self.parts = [(self.t, self.rows)]  # that can be taken out

    def added(self, moments, rows):
        self.t, self.rows = moments, np.r_[self.rows, rows]

    @rule(n=ROWS, seed=SEEDS, before=st.booleans())
    def add(self, n, seed, before):
        part = taken(batch(n, seed), seed)
        self.added(part + self.t if before else self.t + part, batch(n, seed))
        self.parts.append((part, batch(n, seed)))

    @rule(n=ROWS, seed=SEEDS, weights=st.lists(st.integers(0, 5), min_size=9, max_size=9))
    def add_weighted(self, n, seed, weights):
        """A weight stands for so many equal rows."""
        part = F.moments(batch(n, seed), weight=np.array(weights[:n]), exact=True)
        self.added(self.t + part, np.repeat(batch(n, seed), weights[:n], axis=0))

    @rule(parts=st.lists(st.tuples(ROWS, SEEDS), max_size=4), place=st.integers(0, 4))
    def merge(self, parts, place):
        """Of any number, this one at any place."""
        items = [taken(batch(*part), part[1]) for part in parts]
        rows = [batch(*part) for part in parts]
        items.insert(place, self.t)
        self.added(Moments.merge(items), np.concatenate([np.empty((0, C)), *rows]))

    @precondition(lambda self: len(self.rows) < 100)
    @rule()
    def double(self):
        self.added(self.t + self.t, self.rows)
        self.parts = [*self.parts, *self.parts]

    @precondition(lambda self: len(self.parts) > 1 or len(self.parts[0][1]) < len(self.rows))
    @rule(data=st.data())
    def subtract(self, data):
        """The bits are those of what is left, as if the part had never been there."""
        part, rows = self.parts.pop(data.draw(st.integers(0, len(self.parts) - 1)))
        left = self.rows.tolist()
        for row in rows.tolist():
            left.remove(next(other for other in left if repr(other) == repr(row)))  # NaN is not equal to itself
        self.t, self.rows = self.t - part, np.reshape(left, (-1, C))
        if not self.parts:
            self.parts = [(self.t, self.rows)]

    @rule(n=ROWS)
    def what_was_not_there(self, n):
        with pytest.raises(ValueError, match="expected the moments of a part of these values"):
            _ = self.t - F.moments(np.full((len(self.rows) + n, C), 1e9), exact=True)

    @rule(seed=SEEDS)
    def wrong(self, seed):
        for other in (F.moments(np.ones((2, C + 1)), exact=True), F.moments(np.ones((2, C)))):
            with pytest.raises((ValueError, TypeError), match="Moments"):
                self.t - other
        with pytest.raises(ValueError, match="Moments"):
            self.t + F.moments(np.ones((2, C + 1)), exact=True)

    def disturb(self, original):
        """Moments are not changed; what carries them may be."""
        for a in original._stored().values():
            if a.flags.writeable:
                a[...] = 7

    @invariant()
    def is_rounded_once(self):
        assert self.t.count.tolist() == [len(self.rows)] * C
        for c, column in enumerate(self.rows.T.tolist()):
            if not all(map(math.isfinite, column)):
                assert not np.isfinite(self.t.mean[c]) and np.isnan(self.t.var()[c])
                continue
            if not column:
                assert np.isnan(self.t.var()[c])
                continue
            values = list(map(Fraction, column))
            mean = sum(values) / len(values)
            m2 = sum((v - mean) ** 2 for v in values)
            got = self.t.mean[c], self.t.m2[c], self.t.var()[c]
            assert got == (float(mean), float(m2), float(m2 / len(values)))
            unbiased = float(m2 / (len(values) - 1)) if len(values) > 1 else math.nan
            np.testing.assert_array_equal(self.t.var(1)[c], unbiased)
            np.testing.assert_allclose(self.t.std(1)[c], math.sqrt(unbiased), rtol=2.0**-52)

    @invariant()
    def has_no_history(self):
        """Its bits are those of all values at once, in another order."""
        anew = F.moments(self.rows[::-1].copy(), exact=True)
        assert self.t == anew and self.t.digest() == anew.digest()


TestExact = Exact.TestCase
TestExact.settings = settings(
    max_examples=max(3, settings.default.max_examples // 4), stateful_step_count=20, deadline=None
)
