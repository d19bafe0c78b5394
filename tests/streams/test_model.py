"""RunningNorm against a plain model: updates, merging, subtraction, saving, copying, errors, queries in any order.

A long run: pytest --hypothesis-profile=long tests/streams/test_model.py
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

import stream_model
from bnorm import RunningNorm
from restoring import Restored
from stream_model import ROWS, SEEDS, C

WAYS = [{}, {"halflife": 4.0}, {"momentum": 0.3}]


def batch(n, seed):
    """Observations of the model; for some seeds what is missing is infinite."""
    x = stream_model.batch(n, seed)
    x[np.isnan(x)] = [np.nan, np.inf][seed % 2]
    return x


class Stream(Restored):
    @initialize(way=st.sampled_from(WAYS))
    def begin(self, way):
        self.way, self.t, self.seen, self.base = way, RunningNorm(C, **way), [], None

    # The model: a list of values with weights of one, and how many rows and batches came later.

    @staticmethod
    def learned(seen, x):
        older = [(v, rows + len(x), batches + 1, share) for v, rows, batches, share in seen]
        share = 1 / np.maximum(np.isfinite(x).sum(0), 1)
        return older + [(v, len(x) - 1 - i, 0, share) for i, v in enumerate(x)]

    def described(self, seen):
        x = np.array([v for v, *_ in seen], np.longdouble).reshape(-1, C)
        here = np.isfinite(x)
        w = here.astype(np.longdouble)
        if "halflife" in self.way:
            w *= 2.0 ** (-np.array([[rows] for _, rows, *_ in seen], np.longdouble).reshape(-1, 1) / 4)
        if "momentum" in self.way:
            w *= np.array([np.longdouble(0.7) ** batches * share for *_, batches, share in seen]).reshape(-1, C)
        total, v = w.sum(0), np.where(here, x, 0)
        mean = (w * v).sum(0) / np.where(total > 0, total, 1)
        var = (w * (v - mean) ** 2).sum(0) / np.where(total > 0, total, 1)
        return mean, np.where(total > 0, var, 1), here.sum(0), (~here).sum(0)

    @rule(n=ROWS, seed=SEEDS, maps=st.booleans())
    def learn(self, n, seed, maps):
        x = batch(n, seed)
        (self.t if maps else self.t.update)(x)
        self.seen = self.learned(self.seen, x)

    @rule(n=ROWS, seed=SEEDS)
    def learn_by_a_worker(self, n, seed):
        worker = self.t.copy()
        worker.update(batch(n, seed))
        self.t = self.t + (worker - self.t)
        self.seen = self.learned(self.seen, batch(n, seed))

    @rule(n=ROWS, seed=SEEDS)
    def query(self, n, seed):
        x = batch(n, seed)
        back = self.t.denormalize(self.t.normalize(x))
        finite = np.isfinite(x)
        np.testing.assert_allclose(back[finite], x[finite], rtol=1e-9)
        self.t.eval()(x)
        self.t.train()

    @rule(n=ROWS, seed=SEEDS)
    def merge(self, n, seed):
        if "momentum" in self.way:
            return
        other = RunningNorm(C, **self.way)
        other(batch(n, seed))
        self.t, self.base = self.t + other, None
        self.seen = self.seen + self.learned([], batch(n, seed))

    @rule()
    def remember(self):
        self.base = self.t.copy(), len(self.seen)

    @rule()
    def since(self):
        """What came after a moment is what is left when that is taken out."""
        if self.way or self.base is None:
            return
        base, n = self.base
        left = self.t - base
        mean, var, count, skipped = self.described(self.seen[n:])
        np.testing.assert_array_equal(left.count, count)
        np.testing.assert_array_equal(left.skipped, skipped)
        some = count > 1
        _, whole, every, _ = self.described(self.seen)
        unit = np.sqrt(whole) * every + 4e-4 * np.abs(mean)  # the mean itself is rounded
        assert (np.abs(left.mean - mean)[some] <= 1e-12 * unit[some]).all()
        assert (np.abs(left.var - var)[some] <= (1e-11 * (whole + unit**2) * every)[some]).all()

    def disturb(self, original):
        original(batch(3, 7))

    @rule()
    def loaded(self):
        other = RunningNorm(C, **self.way)
        other.load_state_dict(self.t.state_dict())
        self.t = other

    @rule()
    def reset(self):
        self.t.reset()
        self.seen, self.base = [], None

    @rule(n=ROWS)
    def wrong(self, n):
        for bad in (np.zeros((n, C + 1)), np.zeros(C, complex)):
            with pytest.raises((ValueError, TypeError), match="RunningNorm"):
                self.t(bad)

    @invariant()
    def agrees(self):
        mean, var, count, skipped = self.described(self.seen)
        unit = np.sqrt(var) + 4e-4 * np.abs(mean)
        assert (np.abs(self.t.mean - mean) <= 1e-12 * unit).all(), (self.t.mean, mean)
        assert (np.abs(self.t.var - var) <= 2e-11 * var + 1e-6 * mean**2 * 1e-16).all(), (self.t.var, var)
        np.testing.assert_array_equal(self.t.count, count)
        np.testing.assert_array_equal(self.t.skipped, skipped)


TestStream = Stream.TestCase
TestStream.settings = settings(max_examples=max(3, settings.default.max_examples // 16), deadline=None)
