"""The same rows in other orders and other batches: how many answers do libraries give?

    python -m benchmarks.orders

Each library computes the variance of one float32 column, whose rows come in ORDERS orders, cut into batches if it
learns from batches. The table counts the answers that differ in any bit, and says how far the furthest two are apart,
in units of the last place of float64.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy import ndarray

from .options import parser

ROWS, ORDERS, BATCHES = 20_000, 20, 7


def orders() -> Iterator[list[ndarray]]:
    """Yield the column as batches: its rows in a random order, cut at random places."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(ROWS) * np.exp(rng.standard_normal(ROWS)) + 100).astype(np.float32)
    for _ in range(ORDERS):
        cuts = np.sort(rng.integers(1, ROWS, BATCHES - 1))
        yield [part for part in np.split(rng.permutation(x), cuts) if len(part)]


def _whole(variance: Callable[[ndarray], Any]) -> Callable[[list[ndarray]], float]:
    return lambda batches: float(variance(np.concatenate(batches)))


def numpy() -> Callable[[list[ndarray]], float]:
    return _whole(lambda x: x.astype(np.float64).var())


def pandas() -> Callable[[list[ndarray]], float]:
    import pandas

    return _whole(lambda x: pandas.Series(x.astype(np.float64)).var(ddof=0))


def pandas_rolling() -> Callable[[list[ndarray]], float]:
    import pandas

    return _whole(lambda x: pandas.Series(x.astype(np.float64)).rolling(ROWS).var(ddof=0).iloc[-1])


def polars() -> Callable[[list[ndarray]], float]:
    import polars

    return _whole(lambda x: polars.Series(x.astype(np.float64)).var(ddof=0))


def pyarrow() -> Callable[[list[ndarray]], float]:
    import pyarrow
    import pyarrow.compute

    return lambda parts: pyarrow.compute.variance(pyarrow.chunked_array([p.astype(np.float64) for p in parts])).as_py()


def torch() -> Callable[[list[ndarray]], float]:
    import torch

    return _whole(lambda x: torch.from_numpy(x.astype(np.float64)).var(correction=0))


def dask() -> Callable[[list[ndarray]], float]:
    import dask.array

    return lambda batches: float(
        dask.array.concatenate([dask.array.from_array(b.astype(np.float64)) for b in batches]).var().compute()
    )


def scikit_learn() -> Callable[[list[ndarray]], float]:
    from sklearn.preprocessing import StandardScaler

    def learn(batches: list[ndarray]) -> float:
        scaler = StandardScaler()
        for batch in batches:
            scaler.partial_fit(batch.astype(np.float64)[:, None])
        return float(scaler.var_[0])

    return learn


def bnorm() -> Callable[[list[ndarray]], float]:
    from bnorm import Moments
    from bnorm import functional as F

    return lambda batches: float(Moments.merge([F.moments(b[:, None]) for b in batches]).var()[0])


def bnorm_exact() -> Callable[[list[ndarray]], float]:
    from bnorm import BatchNormTransformer

    def learn(batches: list[ndarray]) -> float:
        t = BatchNormTransformer(momentum=None, exact=True)
        for batch in batches:
            t.partial_fit(batch[:, None])
        return float(t.var_[0])

    return learn


LIBRARIES = {
    "NumPy, var": ("numpy", numpy),
    "pandas, var": ("pandas", pandas),
    "pandas, rolling var": ("pandas", pandas_rolling),
    "polars, var": ("polars", polars),
    "Arrow, variance": ("pyarrow", pyarrow),
    "PyTorch, var": ("torch", torch),
    "Dask, var": ("dask", dask),
    "scikit-learn, StandardScaler": ("scikit-learn", scikit_learn),
    "bnorm, moments": ("bnorm", bnorm),
    "bnorm, exact=True": ("bnorm", bnorm_exact),
}


def exact(batches: list[ndarray]) -> float:
    """Return the exact variance, rounded once."""
    values = [Fraction(v) for v in np.concatenate(batches).tolist()]
    mean = sum(values) / len(values)
    return float(sum((v - mean) ** 2 for v in values) / len(values))


def main() -> None:
    every = list(orders())
    right = exact(every[0])
    print(f"the variance is {right!r}\n")
    print(f"{'':34}answers  apart  off    (of {ORDERS} orders; in units of the last place)")
    for name, (package, make) in LIBRARIES.items():
        try:
            got = np.array([make()(batches) for batches in every])
        except ImportError as error:
            print(f"{name:34}not here: {error}")
            continue
        ulps = (got - right) / np.spacing(right)
        label = f"{name}, {version(package)}"
        print(f"{label:34}{len(set(got.tolist())):7}{np.ptp(ulps):7.0f}{np.abs(ulps).max():5.0f}")


if __name__ == "__main__":
    parser("orders", __doc__).parse_args()
    main()
