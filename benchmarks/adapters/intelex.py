"""Extension for scikit-learn: means and variances by oneDAL, of one table or of a stream. It has no map."""

from collections.abc import Iterator
from contextlib import contextmanager

import daal4py
import numpy as np
from sklearnex.basic_statistics import BasicStatistics, IncrementalBasicStatistics

from ..shapes import Data
from .base import Adapter, Library

WANTED = ["mean", "variance"]


class Scaler(Adapter):
    tolerance = {"float32": 1e-3, "float64": 1e-9}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        self.x = data.x
        self.population = (len(data.x) - 1) / len(data.x)  # its variance is divided by one less
        self.reset()

    def reset(self) -> None:
        self.whole = BasicStatistics(result_options=WANTED)
        self.stream = IncrementalBasicStatistics(result_options=WANTED)

    def fit(self):
        return self.whole.fit(self.x)

    def partial_fit(self):
        return self.stream.partial_fit(self.x)

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        return np.asarray(result.mean_), np.asarray(result.variance_) * self.population


@contextmanager
def session(threads: int, dtype: str) -> Iterator[None]:
    before = daal4py.num_threads()
    daal4py.daalinit(threads)
    try:
        yield
    finally:
        daal4py.daalinit(before)


LIBRARY = Library("sklearnex", "scikit-learn-intelex", {"scaler": Scaler}, session)
