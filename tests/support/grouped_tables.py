"""Tables with keys, and the parameters by which groups weigh their rows."""

import numpy as np
import pytest

WAYS = [{}, {"momentum": 0.2}, {"halflife": 20.0}]


def table(n=400, groups=9, seed=0, missing=0.1):
    """Return a table with keys in column 1 and three features, with missing values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(100.0, 3.0, (n, 4))
    x[rng.random(x.shape) < missing] = np.nan
    x[:, 1] = rng.integers(0, groups, n)
    x[5:9, 1] = np.nan
    return x


def features(x):
    return np.delete(x, 1, axis=1)


def frame(x, names=("a", "key", "b", "c")):
    pd = pytest.importorskip("pandas", reason="names come with data frames")
    return pd.DataFrame(x, columns=list(names), index=range(7, 7 + len(x)))
