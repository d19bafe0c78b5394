"""Batch norm with running statistics in plain float64 NumPy, and how far a layer may be from it.

Nothing of the library is used here: the axes are moved, the formulas are those of a textbook, and statistics that weigh
all values the same are computed anew from all values seen so far.
"""

from typing import NamedTuple

import numpy as np

from compare import EPS, assert_close, normalized_error

CHANNELS = 4


class Layout(NamedTuple):
    """A layer and the axes of its input: (N, *positions), with the channels inserted as axis `axis`."""

    layer: str
    positions: tuple[int, ...]
    axis: int

    def __str__(self):
        return f"{self.layer}-{'x'.join(map(str, self.shape('N')))}-axis{self.axis}"

    def shape(self, n):
        dims = [n, *self.positions]
        dims.insert(self.axis % (len(dims) + 1), CHANNELS)
        return tuple(dims)

    def batch(self, rng, n, dtype="float64"):
        """Return x, whose channels have different means and spreads, and a dy."""
        x, dy = rng.standard_normal((2, *self.shape(n)))
        x = np.moveaxis(np.moveaxis(x, self.axis, -1) * [0.5, 1, 2, 3] + [0, 3, -6, 9], -1, self.axis)
        return x.astype(dtype), dy.astype(dtype)


LAYOUTS = [
    Layout("BatchNorm1d", (), 1),
    Layout("BatchNorm1d", (), 0),
    Layout("BatchNorm1d", (5,), 1),
    Layout("BatchNorm1d", (5,), -1),
    Layout("BatchNorm2d", (3, 2), 1),
    Layout("BatchNorm2d", (3, 2), -1),
    Layout("BatchNorm2d", (3, 2), 2),
    Layout("BatchNorm3d", (2, 3, 2), 1),
    Layout("BatchNorm3d", (2, 3, 2), -1),
]


def mean_and_var(rows, w, ddof=0):
    """Return weighted mean and variance of each column; rows of weight 0 do not count, even NaN."""
    used = np.where(w > 0, rows, 0.0)
    mean = (w * used).sum(0) / w.sum()
    return mean, (w * (used - mean) ** 2).sum(0) / (w.sum() - ddof)


class PlainBatchNorm:
    """A layer by definition: forward, backward, and statistics averaged, or with momentum None of all values."""

    def __init__(self, *, axis=1, eps=1e-5, momentum=0.1, ddof=0, activation=None, channels=CHANNELS):
        self.axis, self.eps, self.momentum, self.ddof, self.relu = axis, eps, momentum, ddof, activation == "relu"
        self.gamma, self.beta = np.ones(channels), np.zeros(channels)
        self.mean, self.var = np.zeros(channels), np.ones(channels)
        self.seen = []

    def forward(self, x, weight=None, training=True):
        rows = self.rows(x)
        w = self.weights(x, weight)
        self.training = training
        if training:
            mean, var = mean_and_var(rows, w)
            self.move(rows, w)
        else:
            mean, var = self.statistics()
        self.shape, self.w, self.center = x.shape, w, mean
        self.rstd = 1 / np.sqrt(var + self.eps)
        self.xhat = (rows - mean) * self.rstd
        self.z = self.xhat * self.gamma + self.beta
        return self.back(np.maximum(self.z, 0) if self.relu else self.z)

    def backward(self, dy):
        """Return dx, dgamma, dbeta: the derivative also goes through mean and variance, unless they were constants."""
        dy = self.rows(dy)
        if self.relu:
            dy = np.where(self.z > 0, dy, 0)
        dbeta, dgamma = dy.sum(0), np.where(dy == 0, 0, dy * self.xhat).sum(0)
        through = 0.0
        if self.training:
            through = np.where(self.w > 0, self.w / self.w.sum() * (dbeta + self.xhat * dgamma), 0)
        return self.back(self.gamma * self.rstd * (dy - through)), dgamma, dbeta

    def move(self, rows, w):
        if self.momentum is None:
            self.seen.append((rows, w))
        elif w.sum() > 0:
            mean, var = mean_and_var(rows, w, self.ddof)
            self.mean = (1 - self.momentum) * self.mean + self.momentum * mean
            self.var = (1 - self.momentum) * self.var + self.momentum * var

    def statistics(self):
        """Return running mean and variance."""
        if self.seen:
            rows, w = (np.concatenate(parts) for parts in zip(*self.seen, strict=True))
            self.mean, self.var = mean_and_var(rows, w, self.ddof)
        return self.mean, self.var

    def rows(self, a):
        """Return a as (values, C)."""
        return np.moveaxis(np.asarray(a, np.float64), self.axis, -1).reshape(-1, a.shape[self.axis])

    def back(self, rows):
        shape = [n for i, n in enumerate(self.shape) if i != self.axis % len(self.shape)]
        return np.moveaxis(rows.reshape(*shape, -1), -1, self.axis)

    def weights(self, x, weight):
        """Return weights as (values, 1), from weights of values or of samples."""
        shape = np.delete(x.shape, self.axis)
        weight = np.ones(shape) if weight is None else np.asarray(weight, np.float64)
        return np.broadcast_to(weight.reshape(*weight.shape, *[1] * (len(shape) - weight.ndim)), shape).reshape(-1, 1)

    # How far a layer may be off -------------------------------------------------------------------------------------

    def away_from_zero(self, dy):
        """Return dy, with 0 where rounding decides on which side of the ReLU a value is."""
        return np.where(np.abs(self.back(self.z)) < 1e-4, 0, dy).astype(dy.dtype)

    def allowed(self, dtype, dy):
        """Return allowed errors of y, dx, dgamma and dbeta: those of xhat, here and in the layer, carried through."""
        ratio = np.abs(self.center) * self.rstd
        of_xhat = 2 * normalized_error(dtype, self.xhat, ratio)
        unit = 8 * EPS[np.dtype(dtype)]
        size = np.abs(self.rows(dy))
        of_dbeta = unit * size.sum(0)
        of_dgamma = np.where(size == 0, 0, size * (of_xhat + unit * np.abs(self.xhat))).sum(0)
        through = 0.0
        if self.training:
            of_product = np.abs(self.xhat) * of_dgamma + of_xhat * np.abs(size * self.xhat).sum(0)
            through = np.where(self.w > 0, self.w / self.w.sum() * (of_dbeta + of_product), 0)
        scale = np.abs(self.gamma * self.rstd)
        return {
            "y": self.back(np.abs(self.gamma) * of_xhat + unit * (np.abs(self.z) + np.abs(self.beta))),
            "dx": self.back(scale * (2 * unit * np.maximum(ratio, 1) * size + through)),
            "dgamma": of_dgamma,
            "dbeta": of_dbeta,
        }


def check_step(bn, plain, x, dy, weight=None, **case):
    """Check that a forward and a backward of a layer and of the oracle agree, with the layer's parameters."""
    plain.gamma, plain.beta = np.array(bn.gamma, np.float64), np.array(bn.beta, np.float64)
    y, want_y = bn(x, weight), plain.forward(x, weight, bn.training)
    dy = plain.away_from_zero(dy)
    bn.zero_grad()
    got = {"y": y, "dx": bn.backward(dy), "dgamma": bn.gamma.grad, "dbeta": bn.beta.grad}
    want = dict(zip(got, (want_y, *plain.backward(dy)), strict=True))
    allowed = plain.allowed(x.dtype, dy)
    for name in ("dgamma", "dbeta"):
        allowed[name] = allowed[name] + EPS[bn.gamma.dtype] * np.abs(want[name])
    assert y.dtype == got["dx"].dtype == x.dtype
    for name in got:
        assert_close(got[name], want[name], allowed[name], what=name, **case)


def check_running(bn, plain, *, dtype, **case):
    """Check running statistics, to the rounding of sums of data of that dtype and of the buffers."""
    case |= {"dtype": dtype}
    mean, var = plain.statistics()
    unit = EPS[np.dtype(dtype)] + EPS[bn.running_mean.dtype]
    assert_close(bn.running_mean, mean, 16 * unit * (np.abs(mean) + np.sqrt(var)), what="running mean", **case)
    assert_close(bn.running_var, var, 32 * unit * var, what="running var", **case)


def held(layer):
    """Return everything that a layer holds, as bits, to see that a call has changed nothing."""
    arrays = {name: getattr(layer, name, None) for name in ("running_mean", "running_var")}
    for name in ("gamma", "beta"):
        parameter = getattr(layer, name)
        if parameter is not None:
            arrays |= {name: parameter.data, f"{name}.grad": parameter.grad}
    names = ("num_batches_tracked", "num_batches_skipped", "training", "eps", "momentum", "nonfinite", "on_single")
    bits = {name: None if a is None else (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()}
    state = {key: (a.dtype, a.shape, a.tobytes()) for key, a in layer.state_dict().items()}
    return bits | {name: getattr(layer, name, None) for name in names} | {"state": state, "repr": repr(layer)}
