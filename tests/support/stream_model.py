"""A plain model of a stream, as documented: all rows with their weights and ages, in long double."""

import copy

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

C = 2
START = np.datetime64("2024-03-01T12:00", "ns")
ROWS = st.integers(1, 9)
SEEDS = st.integers(0, 40)
LEFT = st.integers(0, 40)


def batch(n, seed):
    """Return rows that are far from zero in one feature; for some seeds values are missing, or all rows are equal."""
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
    """Return the seconds of some rows, in no order; some are equal."""
    rng = np.random.default_rng([seed, n, 9])
    return seed % 13 + rng.integers(0, 8, n) / 2


def timed(seconds):
    """Return the argument that gives rows these times."""
    return {} if seconds is None else {"times": START + (seconds * 1e9).astype("m8[ns]")}


def close(got, want, unit):
    """Check numbers to 1e-12 of a unit; NaN must be in the same places."""
    assert (np.isnan(got) == np.isnan(want)).all(), (got, want)
    assert not (np.abs(got - want) > 1e-12 * unit).any(), (got, want)


class Rows:
    """All rows of a stream: values, weights, and ages: how many rows came later, or seconds if rows have times."""

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
        """Unite two streams that end at the same time, or whose rows have times."""
        if self.latest is not None:
            latest = max(self.latest, other.latest)
            for one in (self, other):
                one.age, one.latest = one.age + (latest - one.latest), latest
        self.x, self.w, self.age = (np.r_[getattr(self, name), getattr(other, name)] for name in ("x", "w", "age"))
        self.batches += other.batches

    def within(self, age):
        """Return the rows that are not older."""
        some = copy.copy(self)
        some.x, some.w, some.age = (a[self.age <= age] for a in (self.x, self.w, self.age))
        return some

    def described(self, fade, ddof):
        """Return mean, variance, and the sum of the weights before fading."""
        here = ~np.isnan(self.x)
        w = here * (self.w * fade(self.age))[:, None].astype(np.longdouble)
        total, v = w.sum(0), np.where(here, self.x, 0)
        with np.errstate(all="ignore"):
            mean = (w * v).sum(0) / total
            m2 = (w * (v - mean) ** 2).sum(0)
            left = total - (w * fade(self.age)[:, None]).sum(0) / total  # a weight stands for equal rows
            divisor = np.where(left > 1e-15 * total, left, total) if ddof else total
            return mean, m2 / divisor, (here * self.w[:, None]).sum(0)


def of(machine, share):
    """Return the test of a machine, with this share of the examples that the profile asks for."""
    test = machine.TestCase
    test.settings = settings(max_examples=max(3, int(settings.default.max_examples * share)), deadline=None)
    test.pytestmark = [pytest.mark.filterwarnings("ignore:.*a batch of one row has no variance:UserWarning")]
    return test
