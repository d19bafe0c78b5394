"""Rows and times for windows, small chunks of them, and statistics by brute force."""

import numpy as np
import pytest

from bnorm.transformer import window
from rows_in_time import table


@pytest.fixture(name="small_chunks")
def chunks_of_few_rows(monkeypatch):
    """So few rows make many chunks."""
    monkeypatch.setattr(window, "CHUNK", 12)
    monkeypatch.setattr(window, "FEW", 4)


def check(t, x, weight=None, ddof=0):
    """Check statistics against brute force in long double, to 1e-12 of the standard deviation."""
    here = ~np.isnan(x)
    w = here * (np.ones(len(x)) if weight is None else weight)[:, None].astype(np.longdouble)
    total, v = w.sum(axis=0), np.nan_to_num(x).astype(np.longdouble)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (w * v).sum(axis=0) / total
        m2 = (w * (v - mean) ** 2).sum(axis=0)
        var = m2 / np.where(total > ddof, total - ddof, total)
    seen = total > 0
    assert (np.isnan(t.mean_) == ~seen).all()
    assert (np.isnan(t.var_) == ~seen).all()
    last = 4 * np.finfo(float).eps * np.abs(mean[seen])  # no float64 is closer; nor is this oracle, for equal values
    assert (np.abs(t.mean_[seen] - mean[seen]) <= 1e-12 * np.sqrt(var[seen]) + last).all()
    assert (np.abs(t.var_[seen] - var[seen]) <= 2e-12 * var[seen] + last**2).all()
    np.testing.assert_allclose(np.broadcast_to(t.n_samples_seen_, total.shape), total.astype(float), rtol=1e-13)


def rough(n, seed, nan):
    """Return rows whose mean is far from zero and moves. nan: some values are missing, and one feature for a while."""
    x = table(n, seed=seed) + np.linspace(0, 1e6, n)[:, None] ** [0, 1, 0.5]
    if nan:
        x[np.random.default_rng(seed).random(x.shape) < 0.2] = np.nan
        x[n // 3 : 2 * n // 3, 0] = np.nan
    return x
