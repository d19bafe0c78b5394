"""Rows, time stamps given in seconds after a start, and what a stream of such rows has taught."""

import numpy as np

S = 10**9
START = np.datetime64("2024-03-01T12:00", "ns")


def table(n, features=3, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, (n, features))


def seconds(*given):
    """Return time stamps this many seconds after the start."""
    return START + (np.asarray(given, float).ravel() * S).astype(np.int64).astype("m8[ns]")


def state_of(t):
    """Return all that a transformer has learned, to compare."""
    found = {name: a.tobytes() for name, a in t.layer_._running.arrays().items()}
    return found | {"counters": t.layer_._running.counters.tobytes(), "zero": t._state.zero, "history": t.history_}
