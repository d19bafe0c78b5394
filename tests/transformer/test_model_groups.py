"""Transformers of groups against a plain model: each group learns from its rows alone, in any order of calls."""

import copy

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from bnorm import GroupedTransformer
from interrupts import interrupted_late
from restoring import Restored
from stream_model import LEFT, ROWS, SEEDS, Rows, batch, close, of, timed, when


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


TestGroups = of(Groups, 0.12)
