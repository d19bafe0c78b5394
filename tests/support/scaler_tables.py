"""Tables in every container that a StandardScaler accepts, and scalers of both libraries."""

import numpy as np
import pytest
from scipy import sparse
from sklearn import preprocessing

from bnorm.sklearn import StandardScaler

KINDS = [
    "ndarray",
    "float32",
    "fortran",
    "strided",
    "list",
    "pandas",
    "csr_array",
    "csc_matrix",
    "csr_float32",
    "coo_array",
]


def values(n=60, seed=0, columns=5):
    x = np.random.default_rng(seed).normal(3.0, 2.0, (n, columns))
    x[:, 1:2] = -0.7
    return x


def container(x, kind):
    if kind == "pandas":
        pd = pytest.importorskip("pandas", reason="a data frame is given")
        return pd.DataFrame(x, columns=list("abcdefgh"[: x.shape[1]]))
    if kind.startswith(("csr", "csc", "coo")):
        thin = np.where(np.arange(x.size).reshape(x.shape) % 3 == 0, 0, x)
        return sparse.csr_array(thin.astype("f")) if kind == "csr_float32" else getattr(sparse, kind)(thin)
    if kind == "strided":
        wide = np.zeros((2 * len(x), x.shape[1] + 1))
        wide[::2, 1:] = x
        return wide[::2, 1:]
    makers = {"ndarray": np.copy, "float32": np.float32, "fortran": np.asfortranarray, "list": np.ndarray.tolist}
    return makers[kind](x)


def both(*arguments, **settings):
    return StandardScaler(*arguments, **settings), preprocessing.StandardScaler(*arguments, **settings)
