"""scikit-learn's StandardScaler, as it is by default."""

from sklearn.preprocessing import StandardScaler

from .base import Library, Scaler


class Standard(Scaler):
    tolerance = {"float32": 1e-5, "float64": 1e-11}  # noqa: RUF012

    def new(self):
        return StandardScaler()


LIBRARY = Library("scikit-learn", "scikit-learn", {"scaler": Standard}, target=True)
