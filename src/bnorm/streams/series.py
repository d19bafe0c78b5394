"""The arithmetic of RevIN: the level and spread of each series, the inverse map, and all gradients.

For each sample and channel, with w the weights of the time steps (1 without), m their sum, c what is subtracted (the
mean, or the last value), s = sqrt(var + eps), g gamma and b beta:

    z = (x - c) / s g + b                   y = (out - b) / g s + c

A backward of y leaves the gradients of c and s here, and the backward of z, which comes after it, adds them to its own.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS
from bnorm.kernels.rule import constant
from bnorm.layers.state import Change
from bnorm.passes import Gradients, Saved

Array = Any  # numpy.ndarray or cupy.ndarray


@dataclass(slots=True, eq=False)
class Level:
    """The level and spread of the series of a forward: float64 (N, C)."""

    center: Array  # what is subtracted is center + low, where `low` is what float64 rounds off
    low: Array
    mean: Array
    std: Array
    count: Array  # the sum of the weights
    gamma: Array | None  # (C,), copies
    beta: Array | None
    gain: Array  # gamma, or ones
    has_last: bool
    dcenter: Array  # the gradients of center and std that backwards of the inverse have left
    dstd: Array
    pulled: bool = False  # whether the backward of the forward has been computed

    @property
    def samples(self) -> int:
        return int(self.center.shape[0])

    @np.errstate(all="ignore")
    def stats(self) -> Array:
        """mean, var, rstd, scale and shift of all series, as `normalize` takes them."""
        rstd = 1 / self.std
        scale = rstd * self.gain
        shift = -self.low * scale + (0.0 if self.beta is None else self.beta)
        return np.stack([a.ravel() for a in (self.center, rstd, rstd, scale, shift)])

    @np.errstate(all="ignore")
    def back(self, out: Array, axis: int) -> Array:
        """Return y. It is computed in float64, because a level of 1e7 leaves float32 no digit to lose.

        axis: the axis of the channels, 1 or 2
        """
        y = self._unshifted(out, axis)
        y *= (self.std / self.gain)[..., None]
        y += self.low[..., None]
        y += self.center[..., None]
        return (y if axis == 1 else y.transpose(0, 2, 1)).astype(out.dtype, order="C")

    @np.errstate(all="ignore")
    def pull_back(self, out: Array, dy: Array, axis: int) -> tuple[Array, Array, Array, list[Change]]:
        """Return dout, dgamma, dbeta, and changes that keep gradients of level and spread for `Series.gradients`."""
        dy = self._over_time(dy, axis)
        slope = self.std / self.gain
        u = self._unshifted(out, axis)
        total, dot = dy.sum(axis=2), (dy * u).sum(axis=2)
        kept = {"dcenter": self.dcenter + total, "dstd": self.dstd + dot / self.gain}
        changes: list[Change] = [partial(setattr, self, name, value) for name, value in kept.items()]
        dout = dy * slope[..., None]
        dout = (dout if axis == 1 else dout.transpose(0, 2, 1)).astype(out.dtype, order="C")
        return dout, (-dot * slope / self.gain).sum(axis=0), (-total * slope).sum(axis=0), changes

    def _unshifted(self, out: Array, axis: int) -> Array:
        """Return out - beta, with beta as the forward rounds it: exactly 0 where z is beta, as in a constant series."""
        if self.beta is None:
            return self._over_time(out, axis)
        beta = self.beta if out.dtype.itemsize == 8 else self.beta.astype(np.float32).astype(out.dtype)
        return self._over_time(out, axis) - beta.astype(np.float64)[:, None]

    @staticmethod
    def _over_time(a: Array, axis: int) -> Array:
        wide = a.astype(np.float64)
        return wide if axis == 1 else wide.transpose(0, 2, 1)


class Series(Saved):
    """What a forward saves for its backward."""

    __slots__ = ("level", "order", "weight")

    level: Level
    weight: Array | None  # float64 (N, C or 1, T)

    @np.errstate(all="ignore")
    def gradients(self, dy: ndarray, params: bool, out: ndarray | None, dh: ndarray | None = None) -> Gradients:
        level, w = self.level, self.weight
        x: Any = self.x
        n, channels = level.center.shape
        block, g = x.shape, level.gain / level.std
        away = _wide(x, n, channels) - level.center[..., None] - level.low[..., None]
        dz = _wide(dy, n, channels)
        total, dot = dz.sum(axis=2), (dz * (away if w is None else np.where(dz == 0, 0, away))).sum(axis=2)
        dcenter = level.dcenter - g * total
        dvar = (level.dstd - g / level.std * dot) / (2 * level.std)
        values = np.where(level.count > 0, level.count, 1)
        # The variance is about the mean, whatever is subtracted.
        about = away + (level.center - level.mean)[..., None] if level.has_last else away
        through = (2 * dvar / values)[..., None] * about
        if not level.has_last:
            through = through + (dcenter / values)[..., None]
        if w is not None:
            through = np.where(w == 0, 0, w * through)
        dx = g[..., None] * dz + through
        if level.has_last:
            dx = dx + dcenter[..., None] * last_of(w, x.shape[-1], like=dx)
        level.pulled = True
        result = dx.astype(x.dtype).reshape(block)
        if out is not None:
            out[...] = result.reshape(out.shape)  # as the kernels, which take any array with this memory
            result = out
        return (
            result,
            None if level.gamma is None or not params else (dot / level.std).sum(axis=0),
            None if level.beta is None or not params else total.sum(axis=0),
        )


@np.errstate(all="ignore")
def levels(
    rows: Array, weight: Array | None, gamma: Array | None, beta: Array | None, eps: float, has_last: bool
) -> Level:
    """The level and spread of all series of x (N, C, T)."""
    n, channels, steps = rows.shape
    if weight is None:
        parts = BACKENDS[type(rows)].moments(rows.reshape(1, n * channels, steps))
        count, mean, m2, low = parts.reshape(4, n, channels)
    else:
        count, mean, m2, low = _weighted(rows, weight)
    var = np.where(count > 0, m2 / np.where(count > 0, count, 1), 0)
    # With eps = 0 a series without spread is divided by 1, as elsewhere. With any eps, so is a series of which nothing
    # counts. This divisor needs no gradient, because x - mean is 0 there.
    fixed = (count == 0) | constant(mean, var) if eps == 0 else count == 0
    std = np.where(fixed, 1.0, np.sqrt(var + eps))
    center = mean
    if has_last and steps:
        center, low = _last(rows, weight), low * 0
    gamma, beta = (None if p is None else p.copy() for p in (gamma, beta))
    gain = np.ones_like(mean, shape=(channels,)) if gamma is None else gamma
    return Level(center, low, mean, std, count, gamma, beta, gain, has_last, dcenter=mean * 0, dstd=mean * 0)


def _last(rows: Array, weight: Array | None) -> Array:
    """The last value that counts of each series; 0 where none does."""
    if weight is None:
        return rows[:, :, -1].astype(np.float64)
    return (np.where(weight == 0, 0, rows.astype(np.float64)) * last_of(weight, rows.shape[2], like=weight)).sum(axis=2)


def last_of(weight: Array | None, steps: int, *, like: Array) -> Array:
    """1 at the last time step that counts, and 0 elsewhere: (N or 1, C or 1, T)."""
    if weight is None:
        last = np.zeros((1, 1, steps), like=like)
        last[..., -1:] = 1
        return last
    after = np.cumsum((weight > 0)[..., ::-1], axis=-1)[..., ::-1]
    return ((after == 1) & (weight > 0)).astype(np.float64)


def _weighted(rows: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
    """Return count, mean, m2 and low, in two passes, the first relative to one of the values: a constant is exact."""
    x = np.where(weight == 0, 0, rows.astype(np.float64))
    first = _last(rows, weight)
    count = np.broadcast_to(weight, x.shape).sum(axis=2)
    some = np.where(count > 0, count, 1)
    away = (weight * (x - first[..., None])).sum(axis=2) / some
    rest = x - first[..., None] - away[..., None]
    more = (weight * rest).sum(axis=2) / some
    m2 = (weight * (rest - more[..., None]) ** 2).sum(axis=2)
    step = away + more
    mean = first + step
    return count, mean, m2, (first - mean) + step


def _wide(a: Array, n: int, channels: int) -> Array:
    return a.reshape(n, channels, a.shape[-1]).astype(np.float64)
