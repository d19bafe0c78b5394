"""The formulas as one writes them in NumPy. A backward finds (x - mean) / std saved by its forward."""

from math import prod

import numpy as np

from ..shapes import EPS, Data
from .base import Adapter, Library


class Batch(Adapter):
    # Along the first axis NumPy adds a million float32 one after the other, and a million roundings with them.
    tolerance = {"float32": 1e-3, "float64": 1e-11}  # noqa: RUF012
    with_out = ("forward", "inference", "backward")

    def __init__(self, data: Data) -> None:
        self.x, self.dy = data.x, data.dy
        self.axes, self.count = (0, *range(2, data.x.ndim)), data.x.size // data.sizes[1]
        vectors = (data.gamma, data.beta, data.mean, data.var)
        self.gamma, self.beta, self.mean, self.var = (data.channel(v).astype(data.x.dtype) for v in vectors)
        mean, var = self.running_mean, self.running_var = self._statistics()
        self.rstd = 1 / np.sqrt(var + EPS)
        self.xhat = (self.x - mean) * self.rstd

    def _statistics(self):
        return self.x.mean(axis=self.axes, keepdims=True), self.x.var(axis=self.axes, keepdims=True)

    def forward(self, out=None):
        mean, var = self._statistics()
        self.running_mean = self.running_mean + 0.1 * (mean - self.running_mean)
        self.running_var = self.running_var + 0.1 * (var - self.running_var)
        return self._map(mean, var, out)

    def inference(self, out=None):
        return self._map(self.mean, self.var, out)

    def _map(self, mean, var, out):
        if out is None:
            return (self.x - mean) / np.sqrt(var + EPS) * self.gamma + self.beta
        np.subtract(self.x, mean, out=out)
        out /= np.sqrt(var + EPS)
        out *= self.gamma
        out += self.beta
        return out

    def backward(self, out=None):
        dgamma = (self.dy * self.xhat).sum(axis=self.axes, keepdims=True)
        dbeta = self.dy.sum(axis=self.axes, keepdims=True)
        if out is None:
            dx = self.gamma * self.rstd * (self.dy - dbeta / self.count - self.xhat * (dgamma / self.count))
        else:
            dx = np.multiply(self.xhat, -dgamma / self.count, out=out)
            dx += self.dy
            dx -= dbeta / self.count
            dx *= self.gamma * self.rstd
        return dx, dgamma.ravel(), dbeta.ravel()


class Rows(Adapter):
    """Of (N, groups, values); gamma and beta belong to the axes behind N."""

    tolerance = {"float32": 1e-4, "float64": 1e-12}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        groups = {"layer": 1, "group": data.groups, "instance": data.sizes[1]}[data.case.kind]
        channels, space = data.sizes[1], prod(data.sizes[2:])
        self.sizes, self.apart = data.sizes, (len(data.x), channels, space)
        rows = (len(data.x), groups, channels // groups * space)
        self.x, self.dy = data.x.reshape(rows), data.dy.reshape(rows)
        self.gamma = self.beta = None
        if data.gamma is not None:
            vectors = (np.repeat(v, space).reshape(rows[1:]) for v in (data.gamma, data.beta))
            self.gamma, self.beta = (v.astype(data.x.dtype) for v in vectors)
        self.xhat, self.rstd = self._normalized()

    def _normalized(self):
        rstd = 1 / np.sqrt(self.x.var(axis=2, keepdims=True) + EPS)
        return (self.x - self.x.mean(axis=2, keepdims=True)) * rstd, rstd

    def forward(self):
        xhat, _ = self._normalized()
        return (xhat if self.gamma is None else xhat * self.gamma + self.beta).reshape(self.sizes)

    def backward(self):
        dxhat = self.dy if self.gamma is None else self.dy * self.gamma
        means = dxhat.mean(axis=2, keepdims=True), (dxhat * self.xhat).mean(axis=2, keepdims=True)
        dx = ((dxhat - means[0] - self.xhat * means[1]) * self.rstd).reshape(self.sizes)
        if self.gamma is None:
            return dx
        return dx, *(g.reshape(self.apart).sum(axis=(0, 2)) for g in (self.dy * self.xhat, self.dy))


class Scaler(Adapter):
    tolerance = {"float32": 1e-3, "float64": 1e-11}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        self.x = data.x
        self.mean, self.var = self.fit()

    def fit(self):
        return self.x.mean(axis=0), self.x.var(axis=0)

    def transform(self):
        return (self.x - self.mean) / np.sqrt(self.var)

    def inverse(self):
        return self.x * np.sqrt(self.var) + self.mean


LIBRARY = Library("NumPy", "numpy", {"batch": Batch, "layer": Rows, "group": Rows, "instance": Rows, "scaler": Scaler})
