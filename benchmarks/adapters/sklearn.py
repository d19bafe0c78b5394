"""scikit-learn's StandardScaler, as it is by default."""

import numpy as np
from sklearn.preprocessing import StandardScaler

from ..shapes import Data
from .base import Adapter, Library


class Scaler(Adapter):
    tolerance = {"float32": 1e-5, "float64": 1e-11}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        self.x = data.x
        self.fitted = StandardScaler().fit(self.x)
        self.reset()

    def reset(self) -> None:
        self.stream = StandardScaler()

    def fit(self):
        return self.stream.fit(self.x)

    def partial_fit(self):
        return self.stream.partial_fit(self.x)

    def transform(self):
        return self.fitted.transform(self.x)

    def inverse(self):
        return self.fitted.inverse_transform(self.x)

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        return (result.mean_, result.var_) if operation in ("fit", "partial_fit") else (result,)


LIBRARY = Library("scikit-learn", "scikit-learn", {"scaler": Scaler}, target=True)
