"""A small table with columns of every type that engines read, and the same numbers as an array."""

from decimal import Decimal

import numpy as np
import pyarrow as pa

import bnorm

ROWS = 200
FEATURES = ["a", "i", "b", "d", "f", "l[0]", "l[1]"]
COLUMNS = ["a", "i", "b", "d", "f", "l"]


def table():
    """Return the table, in which a, d, l have missing values and s is text; and its features as an array with NaN."""
    rng = np.random.default_rng(0)
    x = rng.normal(5, 2, (ROWS, 7)).round(3)
    x[:, 0] += 1e6
    x[:, 1] = rng.integers(-5, 5, ROWS)
    x[:, 2] = rng.integers(0, 2, ROWS)
    x[:, 4] = x[:, 4].astype(np.float32)
    x[::7, [0, 3]] = np.nan
    x[::9, 5:] = np.nan
    columns = {
        "a": pa.array(x[:, 0], from_pandas=True),
        "i": pa.array(x[:, 1].astype(np.int32)),
        "b": pa.array(x[:, 2].astype(bool)),
        "d": pa.array([None if np.isnan(v) else Decimal(f"{v:.3f}") for v in x[:, 3]], pa.decimal128(12, 3)),
        "f": pa.array(x[:, 4].astype(np.float32)),
        "l": pa.array([None if np.isnan(row).any() else list(row) for row in x[:, 5:]]),
        "s": pa.array([f"text {i}" for i in range(ROWS)]),
        "w": pa.array(rng.integers(0, 4, ROWS).astype(float)),
        "at": np.datetime64("2026-01-01", "us") + rng.permutation(ROWS).astype("m8[m]"),
    }
    return pa.table(columns), x


def learners_agree(fit, transform, data):
    """Check that an engine agrees with one machine on rows that fade by their times, and on statistics of groups."""
    here, _ = table()
    by_time = {"halflife": "30min"}
    t = fit(bnorm.BatchNormTransformer(**by_time), data, ["a", "f"], times="at")
    close(t, bnorm.BatchNormTransformer(**by_time).fit(here.select(["a", "f", "at"]), times="at"))
    t = fit(bnorm.GroupedTransformer("i"), data, ["a", "f"], sample_weight="w")
    want = bnorm.GroupedTransformer("i").fit(here.select(["i", "a", "f"]), sample_weight=here["w"].to_numpy())
    order = [list(t.groups_).index(key) for key in want.groups_]
    np.testing.assert_array_equal(t.counts_[order], want.counts_)
    np.testing.assert_allclose(t.means_[order], want.means_, rtol=1e-12)
    np.testing.assert_allclose(t.vars_[order], want.vars_, rtol=1e-9)  # the mean of a is a million
    got = transform(t, data).sort_by("s")
    order = np.argsort(here["s"].to_pylist())
    y = want.transform(here.select(["i", "a", "f"]))[order]
    assert got["i"].to_pylist() == here["i"].take(order).to_pylist()
    np.testing.assert_allclose(np.array(got["a"].to_pylist(), float), y[:, 0], atol=1e-8)
    np.testing.assert_allclose(np.array(got["f"].to_pylist(), float), y[:, 1], atol=1e-6)


def close(t, want):
    """Check that statistics are those of one machine."""
    assert (np.abs(t.mean_ - want.mean_) <= 1e-12 * want.scale_ + np.spacing(np.abs(want.mean_))).all()
    np.testing.assert_allclose(t.var_, want.var_, rtol=1e-12)
    np.testing.assert_array_equal(t.n_samples_seen_, want.n_samples_seen_)
    assert t.n_batches_seen_ == 1
