"""River's StandardScaler, `learn_many` and `transform_many`, on a DataFrame that is a view of the array."""

import numpy as np
import pandas as pd
from river.preprocessing import StandardScaler

from ..shapes import Data
from .base import Adapter, Library


class Scaler(Adapter):
    # The variance is E[x²] - E[x]², summed in the type of the data.
    tolerance = {"float32": 1e-3, "float64": 1e-11}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        self.x = pd.DataFrame(data.x, columns=[str(i) for i in range(data.sizes[1])], copy=False)
        self.fitted = StandardScaler()
        self.fitted.learn_many(self.x)
        self.reset()

    def reset(self) -> None:
        self.stream = StandardScaler()

    def fit(self):
        scaler = StandardScaler()
        scaler.learn_many(self.x)
        return scaler

    def partial_fit(self):
        self.stream.learn_many(self.x)
        return self.stream

    def transform(self):
        return self.fitted.transform_many(self.x)

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        if operation == "transform":
            return (result.to_numpy(),)
        return tuple(np.array([values[name] for name in self.x.columns]) for values in (result.means, result.vars))


LIBRARY = Library("River", "river", {"scaler": Scaler})
