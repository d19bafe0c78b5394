"""Batch norm's running statistics against a plain model: any order of momentum, pooling, loading, errors and restoring.

The model is written from the documents: lists of numbers for each channel, no array and nothing of the library.
"""

import math
import warnings

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

import bnorm
from restoring import Restored

C = 3
ROWS = st.integers(2, 6)
BAD = st.sampled_from([None, None, None, 0, 2])  # a channel with NaN, or none
SEEDS = st.integers(0, 50)


def batch(n, seed, bad):
    x = np.random.default_rng([n, seed]).normal(3.0, 2.0, (n, C)) * [1.0, 10.0, 0.1]
    if bad is not None:
        x[seed % n, bad] = np.nan
    return x


def described(column):
    """Count, mean and sum of squares about it."""
    n, mean = len(column), math.fsum(column) / len(column)
    return n, mean, math.fsum((v - mean) ** 2 for v in column)


class Model:
    """What the documents say of one channel."""

    def __init__(self, ddof):
        self.ddof, self.mean, self.var, self.seen = ddof, 0.0, 1.0, 0.0

    def pool(self, n, mean, m2):
        """Every value weighs the same; the first batch replaces what stood there."""
        if self.seen == 0:
            self.mean, total = mean, m2
        else:
            d = mean - self.mean
            before = self.var * (self.seen - self.ddof) if self.seen > self.ddof else 0.0
            total = before + m2 + d * d * self.seen * n / (self.seen + n)
            self.mean += d * n / (self.seen + n)
        self.seen += n
        if self.seen > self.ddof:
            self.var = total / (self.seen - self.ddof)

    def average(self, n, mean, m2, momentum):
        self.mean += momentum * (mean - self.mean)
        self.var += momentum * (m2 / (n - self.ddof) - self.var)


class Statistics(Restored):
    def __init__(self):
        super().__init__()
        self.t = bnorm.BatchNorm1d(C, momentum=None)
        self.channels = [Model(0) for _ in range(C)]
        self.momentum, self.nonfinite = None, "skip"
        self.batches = self.skipped = self.uncounted = 0
        self.saved = None

    # What the model does with a batch: a list of (n, mean, m2) for each channel, None where it is not finite.

    def take(self, found, size, replace=False):
        if self.nonfinite == "raise" and None in found:
            return False
        if (self.momentum is None or replace) and self.uncounted:
            for channel in self.channels:
                channel.seen += self.uncounted * size
        if self.momentum is None or replace:
            self.uncounted = 0
        else:
            self.uncounted += 1
        for i, values in enumerate(found):
            if values is None or values[0] == 0:
                continue
            if replace:
                self.channels[i].seen = 0.0
            if self.momentum is None or replace:
                self.channels[i].pool(*values)
            else:
                self.channels[i].average(*values, self.momentum)
        self.batches += 1
        self.skipped += None in found
        return True

    def found(self, x):
        return [None if np.isnan(column).any() else described(column.tolist()) for column in x.T]

    # Steps -----------------------------------------------------------------------------------------------------------

    @rule(n=ROWS, seed=SEEDS, bad=BAD)
    def train(self, n, seed, bad):
        x = batch(n, seed, bad)
        if self.take(self.found(x), n):
            self.t(x)
        else:
            with pytest.raises(bnorm.NonFiniteError):
                self.t(x)

    @rule(n=ROWS, seed=SEEDS)
    def evaluate(self, n, seed):
        self.t.eval()
        self.t(batch(n, seed, None))
        self.t.train()

    @rule(n=ROWS, seed=SEEDS)
    def frozen(self, n, seed):
        with self.t.frozen_stats():
            self.t(batch(n, seed, None))

    @rule()
    def nothing(self):
        self.t(np.zeros((0, C)))

    @rule(n=ROWS, seed=SEEDS)
    def wrong(self, n, seed):
        with pytest.raises(ValueError, match="shape"):
            self.t(batch(n, seed, None)[:, 1:])
        with pytest.raises(ValueError, match="more than one value"):
            self.t(batch(n, seed, None)[:1])

    @rule(momentum=st.sampled_from([None, 0.1, 0.5, 1.0, 0.0]))
    def set_momentum(self, momentum):
        self.t.momentum = self.momentum = momentum

    @rule(n=ROWS, seed=SEEDS, after=st.sampled_from([None, None, 0.1]))
    def average_for_a_while(self, n, seed, after):
        """An average does not count values, which pooling asks for later."""
        self.set_momentum(0.5)
        self.train(n, seed, None)
        self.set_momentum(after)

    @rule(nonfinite=st.sampled_from(["skip", "raise"]))
    def set_nonfinite(self, nonfinite):
        self.t.nonfinite = self.nonfinite = nonfinite

    @rule(
        parts=st.lists(st.tuples(ROWS, SEEDS, BAD), max_size=3),
        replace=st.booleans(),
        fails=st.sampled_from([False, False, False, True]),
    )
    def pooled(self, parts, replace, fails):
        if self.nonfinite == "raise" and any(bad is not None for *_, bad in parts):
            parts = [(n, seed, None) for n, seed, _ in parts]
        pool, broken = [Model(0) for _ in range(C)], False
        for n, seed, bad in parts:
            for channel, values in zip(pool, self.found(batch(n, seed, bad)), strict=True):
                broken |= values is None
                if values is not None:
                    channel.pool(*values)
        try:
            with self.t.pooled_stats(replace=replace):
                for part in parts:
                    self.t(batch(*part))
                if fails:
                    raise KeyError
        except KeyError:
            return
        if parts:
            found = [(c.seen, c.mean, c.var * c.seen) for c in pool]
            self.take(found, max(c.seen for c in pool), replace)
            self.skipped += broken

    @rule()
    def save(self):
        self.saved = self.t.state_dict().copy(), self.model_state()

    @precondition(lambda self: self.saved is not None)
    @rule(plain=st.booleans())
    def load(self, plain):
        state, (channels, momentum, batches, uncounted) = self.saved
        counted = not plain and momentum is None and not uncounted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that counts are lost: test_state.py has it
            self.t.load_state_dict(dict(state) if plain else state)
        for mine, (mean, var, seen) in zip(self.channels, channels, strict=True):
            mine.mean, mine.var, mine.seen = mean, var, seen if counted else 0.0
        self.batches, self.uncounted = batches, 0 if counted else batches

    @precondition(lambda self: self.saved is not None)
    @rule(name=st.sampled_from(["running_mean", "running_var", "num_batches_tracked", "seen"]))
    def load_what_does_not_fit(self, name):
        """All of it, or none."""
        state = self.saved[0].copy()
        if name == "seen":
            state.seen = np.ones(C + 1)
        else:
            state[name] = np.full(C + 2, -1.5)
        with pytest.raises(ValueError, match=r"state_dict|seen|shape"):
            self.t.load_state_dict(state)

    def disturb(self, original):
        original.nonfinite = "skip"
        original(batch(3, 7, None))

    @rule()
    def reset(self):
        self.t.reset_running_stats()
        self.channels = [Model(0) for _ in range(C)]
        self.batches = self.skipped = self.uncounted = 0

    def model_state(self):
        return [(c.mean, c.var, c.seen) for c in self.channels], self.momentum, self.batches, self.uncounted

    @invariant()
    def agrees(self):
        np.testing.assert_allclose(self.t.running_mean, [c.mean for c in self.channels], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(self.t.running_var, [c.var for c in self.channels], rtol=1e-9, atol=1e-12)
        assert (self.t.num_batches_tracked, self.t.num_batches_skipped) == (self.batches, self.skipped)


with warnings.catch_warnings():
    TestStatistics = Statistics.TestCase
TestStatistics.settings = settings(
    max_examples=int(0.7 * settings.default.max_examples), stateful_step_count=25, deadline=None
)
TestStatistics.pytestmark = [pytest.mark.filterwarnings("ignore:.*channels had a batch mean:RuntimeWarning")]
