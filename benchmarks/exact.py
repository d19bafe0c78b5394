"""What float64 says the results are, by the formulas and nothing else.

The vectors (statistics, gradients of parameters) are computed once for a case, and then sent to every process. Arrays
are computed a block of samples at a time where they are compared: memory has no space for another of the largest.
"""

from collections.abc import Iterator

import numpy as np

from .shapes import EPS, Data

BLOCK = 1 << 18  # values


class Channels:
    """Batch norm, and the scaler, which is batch norm without eps, gamma and beta."""

    def __init__(self, data: Data) -> None:
        count = data.x.size // data.sizes[1]
        self.mean = self._sum(data, lambda x, dy: x) / count
        self.var = self._sum(data, lambda x, dy: (x - self.mean[:, None]) ** 2) / count
        self.count = count
        if data.dy is not None:
            std = np.sqrt(self.var + EPS)[:, None]
            self.dgamma = self._sum(data, lambda x, dy: (x - self.mean[:, None]) / std * dy)
            self.dbeta = self._sum(data, lambda x, dy: dy)

    @staticmethod
    def _sum(data: Data, term) -> np.ndarray:
        """Sum per channel, along the last axis: NumPy sums it pairwise, but the first axis value after value."""
        total = np.zeros(data.sizes[1])
        for block in blocks(data):
            x, dy = (a if a is None else _by_channel(a[block]) for a in (data.x, data.dy))
            total += term(x, dy).sum(axis=1)
        return total

    def vectors(self, operation: str) -> tuple[np.ndarray, ...]:
        if operation == "backward":
            return self.dgamma, self.dbeta
        return (self.mean, self.var) if operation in ("fit", "partial_fit") else ()

    def block(self, operation: str, data: Data, block: slice) -> np.ndarray:
        """Return the array of the result, for these samples."""
        x = data.x[block].astype("float64")
        if operation == "inverse":
            return x * np.sqrt(self.var) + self.mean
        if operation == "transform":
            return (x - self.mean) / np.sqrt(self.var)
        mean, var = (data.mean, data.var) if operation == "inference" else (self.mean, self.var)
        std = np.sqrt(data.channel(var) + EPS)
        xhat = (x - data.channel(mean)) / std
        gamma = data.channel(data.gamma)
        if operation != "backward":
            return xhat * gamma + data.channel(data.beta)
        common = data.channel(self.dbeta) + xhat * data.channel(self.dgamma)
        return (data.dy[block] - common / self.count) * gamma / std


class Rows:
    """Layer, RMS, group and instance norm: statistics are those of a row, which is a group of channels of a sample."""

    def __init__(self, data: Data) -> None:
        self.gradients: tuple[np.ndarray, ...] = ()
        if data.gamma is None:
            return
        dgamma, dbeta = np.zeros(data.sizes[1]), np.zeros(data.sizes[1])
        for block in blocks(data):
            xhat, dy = self._normalized(data, block)[0], data.dy[block].astype("float64")
            dgamma += _by_channel(dy * xhat).sum(axis=1)
            dbeta += _by_channel(dy).sum(axis=1)
        self.gradients = (dgamma,) if data.beta is None else (dgamma, dbeta)

    def vectors(self, operation: str) -> tuple[np.ndarray, ...]:
        return self.gradients if operation == "backward" else ()

    def block(self, operation: str, data: Data, block: slice) -> np.ndarray:
        xhat, std = self._normalized(data, block)
        gamma = 1 if data.gamma is None else data.channel(data.gamma)
        if operation == "forward":
            return xhat * gamma + (0 if data.beta is None else data.channel(data.beta))
        dxhat, rows = self._rows(data, data.dy[block].astype("float64") * gamma), self._rows(data, xhat)
        along = rows * (dxhat * rows).mean(axis=2, keepdims=True)
        dxhat = self._centered(data, dxhat) - along
        return (dxhat / std).reshape(xhat.shape)

    def _normalized(self, data: Data, block: slice) -> tuple[np.ndarray, np.ndarray]:
        x = data.x[block].astype("float64")
        rows = self._centered(data, self._rows(data, x))
        std = np.sqrt((rows**2).mean(axis=2, keepdims=True) + EPS)
        return (rows / std).reshape(x.shape), std

    @staticmethod
    def _centered(data: Data, rows: np.ndarray) -> np.ndarray:
        return rows if data.case.kind == "rms" else rows - rows.mean(axis=2, keepdims=True)

    @staticmethod
    def _rows(data: Data, x: np.ndarray) -> np.ndarray:
        groups = {"layer": 1, "rms": 1, "group": data.groups, "instance": data.sizes[1]}[data.case.kind]
        return x.reshape(len(x), groups, -1)


Exact = Channels | Rows


def exact(data: Data) -> Exact:
    return (Channels if data.case.kind in ("batch", "scaler") else Rows)(data)


def blocks(data: Data) -> Iterator[slice]:
    """Slices of the first axis."""
    step = max(1, BLOCK * len(data.x) // max(1, data.x.size))
    return (slice(start, start + step) for start in range(0, len(data.x), step))


def _by_channel(a: np.ndarray) -> np.ndarray:
    """Return a as (C, all else), float64, in this order in memory."""
    return np.ascontiguousarray(np.moveaxis(a, 1, 0)).reshape(a.shape[1], -1).astype("float64", copy=False)
