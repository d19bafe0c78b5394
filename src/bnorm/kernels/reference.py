"""Every kernel in plain NumPy: the specification of the compiled modules, and the oracle of their tests.

The library never calls it, not even as a fallback.

    x, dy, y, dx        (outer, C, inner), or (outer, C) for (outer, C, 1); rows_*: (N, G, K, L)
    weight              None or float64 (outer, inner), finite, not negative; on the CPU float32, bool or uint8 too
    act                 the activation of y; activation.py
    out                 None or an array like x to write to, possibly x or dy
    rule                a row is divided by the root of its VARIANCE or its MEAN_SQUARE
    all other arrays    float64 (C,), or one such row for each number:
                            parts           count, mean, m2, low        the mean is mean + low
                            stats           mean, var, rstd, scale, shift
                            sums            sum dy, sum dy (x - mean)
                            coefficients    a, b, c                     dx = a (dy + w (b (x - mean) + c))
                        rows_*: mean and rstd (N*G,), gamma, beta, dgamma, dbeta (G*K,)

`forward` is moments, finish and normalize in one call, `backward` grad_moments, finish_gradients and grad_input.

An oracle must be more exact than the code it tests: float16 and float32 are computed in float64, and float64 in long
double, which has at least 64 bits of precision, except on Windows and on macOS on ARM, where it is float64. This takes
about ten times as long, which tests can afford. Only the results are rounded. NaN and infinity are legal, so NumPy's
warnings are turned off.
"""

from math import prod
from typing import Any

import numpy as np

from bnorm.kernels import MEAN_SQUARE, VARIANCE

from .activation import GELU, IDENTITY, SMOOTH, Activation
from .reference_statistics import _narrow, assign, inverse, merge, move, settle
from .rule import Rule

__all__ = ["assign", "inverse", "merge", "move", "settle"]

Array = np.ndarray[Any, Any]

FAR = 1024  # from here on a smooth activation is a straight line


@np.errstate(all="ignore")
def moments(x: Array, weight: Array | None = None, skipna: bool = False) -> Array:
    """Return parts, (4, C): count (the sum of the weights), mean, m2 = sum w (x - mean)^2, low = mean - float64(mean).

    A value of weight 0, even NaN, does not count; with skipna NaN never counts. Without any value all four are 0.
    """
    x = _block(x)
    w = np.ones_like(x) if weight is None else np.broadcast_to(_positions(weight).astype(x.dtype), x.shape)
    if skipna:
        w = np.where(np.isnan(x), 0, w)
    x = np.where(w == 0, 0, x)
    count = _sum(w)
    values = np.where(count == 0, 1, count)
    mean = _sum(w * x) / values
    rest = _sum(w * (x - _channel(mean))) / values  # the rounding error of a long sum
    m2 = _sum(w * (x - _channel(mean + rest)) ** 2)
    high = _narrow(mean + rest)
    return np.stack([_narrow(count), high, _narrow(m2), _narrow((mean - high) + rest)])


@np.errstate(all="ignore")
def finish(parts: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array:
    """Return stats, (5, C), from the result of `moments`. In a channel without any value, y will be beta."""
    count, mean, m2, low = parts
    return _stats(mean + low, m2 / np.where(count == 0, 1, count), count, gamma, beta, eps)


@np.errstate(all="ignore")
def normalize(
    x: Array, stats: Array, act: Activation = IDENTITY, out: Array | None = None, finite: bool = False
) -> Array:
    """Return the activation of (x - mean) scale + shift. NaN stays NaN.

    With finite=True, an infinity in x is a FloatingPointError; out is undefined then.
    """
    if finite and np.isinf(x).any():
        raise FloatingPointError("x holds an infinity")
    mean, _, _, scale, shift = stats
    y = (_block(x) - _channel(mean)) * _channel(scale) + _channel(shift)
    return _result(_activation(y, act), x, out)


@np.errstate(all="ignore")
def grad_moments(dy: Array, x: Array, stats: Array, weight: Array | None = None, act: Activation = IDENTITY) -> Array:
    """Return sums, (2, C): sum dy and sum dy (x - mean). First, dy is multiplied by the derivative of the activation.

    With weight, a dy of 0 adds nothing, whatever its x: padding may be NaN.
    """
    dy, away = _before_activation(dy, x, stats, act), _block(x) - _channel(stats[0])
    if weight is not None:
        away = np.where(dy == 0, 0, away)
    return np.stack([_narrow(_sum(dy)), _narrow(_sum(dy * away))])


@np.errstate(all="ignore")
def finish_gradients(sums: Array, stats: Array, count: float | Array) -> Array:
    """Return coefficients, (3, C), from the result of `grad_moments`. count: of values, or the sum of their weights."""
    total, dot = sums
    _, _, rstd, scale, _ = stats
    values = np.where(count == 0, 1, count)  # without values scale is 0, and b and c are 0 too
    some = np.where(count == 0, 0.0, 1.0)
    return np.stack([scale, -some * rstd**2 * dot / values, -some * total / values])


@np.errstate(all="ignore")
def grad_input(
    dy: Array,
    x: Array,
    stats: Array,
    coefficients: Array,
    weight: Array | None = None,
    act: Activation = IDENTITY,
    out: Array | None = None,
) -> Array:
    """Return dx = a (dy + w (b (x - mean) + c)), with dy as in `grad_moments`, and w = 1 without weight.

    As a is outside the brackets, b is about 1 / std, which float32 can represent whenever it can represent x.
    """
    a, b, c = coefficients
    through_statistics = _channel(b) * (_block(x) - _channel(stats[0])) + _channel(c)
    if weight is not None:
        w = _positions(weight)
        through_statistics = np.where(w == 0, 0, w * through_statistics)
    return _result(_channel(a) * (_before_activation(dy, x, stats, act) + through_statistics), x, out)


@np.errstate(all="ignore")
def add(total: Array | None, part: Array | None, other: Array | None = None, other_part: Array | None = None) -> None:
    """Add part to total, and other_part to other: gradients of parameters.

    Parts are float64; total and other may be float32. A pair whose total or other is None is skipped.
    """
    if total is not None:
        total += part
    if other is not None:
        other += other_part


def extremes(x: Array, weight: Array | None = None, skipna: bool = False) -> Array:
    """Return the least and the greatest value of each channel, (2, C).

    A value of weight 0, even NaN, does not count. With skipna NaN never counts; else it makes both NaN. Without any
    value both are NaN.
    """
    x = _block(x)
    counts = np.ones(x.shape, bool) if weight is None else np.broadcast_to(_positions(weight) != 0, x.shape)
    counts = counts & ~np.isnan(x) if skipna else counts
    least = np.where(counts, x, np.inf).min(axis=(0, 2), initial=np.inf)
    greatest = np.where(counts, x, -np.inf).max(axis=(0, 2), initial=-np.inf)
    return np.where(counts.any(axis=(0, 2)), _narrow(np.stack([least, greatest])), np.nan) + 0.0


def known(mean: Array, var: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array:
    """Return stats from a given mean and variance."""
    return _stats(mean, var, np.ones_like(mean), gamma, beta, eps)


@np.errstate(all="ignore")
def forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    mean: Array | None = None,
    var: Array | None = None,
    weight: Array | None = None,
    act: Activation = IDENTITY,
    running: Rule | None = None,
    out: Array | None = None,
) -> tuple[Array, Array, float, int]:
    """Batch normalization: return y, stats, count, left. stats is float64 (5, C): mean, var, rstd, scale, shift.

    If mean and var are given, this is inference: there is no reduction, and weight has no effect. Otherwise mean and
    var are those of the batch. running: the rule of the statistics that `settle` will update by this batch; with
    "raise" they are tested here. left: for the argument of `settle` of this name, the number of channels it will skip.
    """
    count, left = float(x.shape[0] * prod(x.shape[2:])), 0
    if mean is not None and var is not None:
        stats = known(mean, var, gamma, beta, eps)
    else:
        count = count if weight is None else float(weight.sum())
        parts = moments(x, weight)
        stats = finish(parts, gamma, beta, eps)
        if running is not None:
            left = settle(running.copy(), stats, count, x.size)
    return normalize(x, stats, act, out), stats, count, left


@np.errstate(all="ignore")
def backward(
    dy: Array,
    x: Array,
    stats: Array,
    count: float,
    weight: Array | None = None,
    act: Activation = IDENTITY,
    frozen: bool = False,
    params: bool = True,
    out: Array | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """Return dx, dgamma, dbeta for the `forward` that returned stats and count. frozen: its statistics were constants.

    With weight, a dy of 0 adds nothing to the sums, whatever its x.
    """
    _, _, rstd, scale, _ = stats
    sums = grad_moments(dy, x, stats, weight, act)
    if frozen:
        dx = _result(_channel(scale) * _before_activation(dy, x, stats, act), x, out)
    else:
        dx = grad_input(dy, x, stats, finish_gradients(sums, stats, count), weight, act, out)
    return (dx, rstd * sums[1], sums[0]) if params else (dx, None, None)


@np.errstate(all="ignore")
def rows_forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    rule: int = VARIANCE,
    act: Activation = IDENTITY,
    out: Array | None = None,
    residual: Array | None = None,
    weight: Array | None = None,
    copies: bool = False,
) -> tuple[Any, ...]:
    """Return y, mean, rstd: each of the N*G rows is normalized by its own statistics.

    gamma and beta belong to the channel g*K + k of x[n, g, k, l]. Layer norm: x is (N, 1, D, 1); group norm:
    (N, G, K, L); instance norm: (N, C, 1, L). With the rule MEAN_SQUARE mean is 0, and the mean of the squares replaces
    the variance. With a residual, the sum h = x + residual is normalized, and (y, h) takes the place of y. weight:
    (N, L), of each position; a value of weight 0, even NaN, does not count. With copies, gamma and beta, flattened,
    follow the results, for a backward.
    """
    if residual is not None:
        h = x + residual
        y, *more = rows_forward(h, gamma, beta, eps, rule, act, out, None, weight, copies)
        return (y, h), *more
    n, g = x.shape[:2]
    wide, w = _wide(x), _of_positions(weight, x)
    values, count = np.where(w == 0, 0, wide), _counts(w, x)
    many = np.where(count == 0, 1, count)
    mean = np.zeros((n, g)) if rule == MEAN_SQUARE else _narrow(_center(values, w, many))
    var = (w * (values - _row(mean)) ** 2).sum((2, 3)) / many
    rstd = _narrow(_rstd(mean, var, eps, count + np.zeros_like(var)))
    y = (wide - _row(mean)) * _row(rstd)
    y = y * _parameter(gamma, x, 1.0) + _parameter(beta, x, 0.0)
    found = _result(_activation(y, act), x, out), mean.ravel(), rstd.ravel()
    return (*found, *(a if a is None else a.flatten() for a in (gamma, beta))) if copies else found


@np.errstate(all="ignore")
def rows_backward(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    beta: Array | None,
    rule: int = VARIANCE,
    act: Activation = IDENTITY,
    params: bool = True,
    out: Array | None = None,
    dh: Array | None = None,
    weight: Array | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """Return dx, dgamma, dbeta for the `rows_forward` that returned mean and rstd. beta is for the activation only.

    dh is added to dx. With weight, a dy of 0 adds nothing to the sums, whatever its x.
    """
    n, g = x.shape[:2]
    r, w = _row(rstd.reshape(n, g)), _of_positions(weight, x)
    count = _counts(w, x)
    share = _row(np.where(count == 0, 0, 1 / np.where(count == 0, 1, count)))
    xhat = (_wide(x) - _row(mean.reshape(n, g))) * r
    gamma_of_x = _parameter(gamma, x, 1.0)
    dy = _pulled(_wide(dy), xhat * gamma_of_x + _parameter(beta, x, 0.0), act)
    dxhat = dy * gamma_of_x
    summed = xhat if weight is None else np.where(dy == 0, 0, xhat)
    through_rstd = xhat * (_row((dxhat * summed).sum((2, 3))) * share)
    through_mean = 0 if rule == MEAN_SQUARE else _row(dxhat.sum((2, 3))) * share
    through = np.where(w == 0, 0, w * (through_rstd + through_mean))
    dx = _result(r * (dxhat - through) + (0 if dh is None else _wide(dh)), x, out)
    if not params:
        return dx, None, None
    return dx, _narrow((dy * summed).sum((0, 3)).ravel()), _narrow(dy.sum((0, 3)).ravel())


def _stats(mean: Array, var: Array, count: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array:
    rstd = _rstd(mean, var, eps, count)
    shift = np.zeros_like(rstd) if beta is None else beta
    return np.stack([mean, var, rstd, rstd if gamma is None else gamma * rstd, shift])


def _rstd(mean: Array, var: Array, eps: float, count: Array) -> Array:
    """Return 1 / sqrt(var + eps); 0 for a channel without values, 1 for a constant one with eps = 0: see formulas.h."""
    last_places = 4 * np.finfo(np.float64).eps * np.abs(mean)
    constant = (eps == 0) & np.isfinite(var) & (np.sqrt(var) <= last_places)
    rstd: Array = np.where(constant, 1, 1 / np.sqrt(var + eps))
    return np.where(count == 0, 0, rstd)


def _activation(v: Array, act: Activation) -> Array:
    """Return the activation of v. The smooth ones are v s(u), where s is the logistic function."""
    return v * _gate(v, act)[0] if act.kind in SMOOTH else _pulled(v, v, act)


def _pulled(g: Array, v: Array, act: Activation) -> Array:
    """Return g times the derivative of the activation at v. ReLU selects, without multiplying: infinity becomes 0."""
    if act.kind in SMOOTH:  # NaN counts as above 0
        v = np.where(np.isnan(v), FAR, np.clip(v, -FAR, FAR))
        s, du, _ = _gate(v, act)
        pulled: Array = g * (s + v * s * (1 - s) * du)
        return pulled
    return g if act == IDENTITY else np.where(v <= 0, act.slope * g if act.slope else 0.0, g)


def _gate(v: Array, act: Activation) -> tuple[Array, Array, Array]:
    """Return s(u), and the first and second derivative of u, as in formulas.h."""
    a = np.longdouble(2) * np.sqrt(2 / np.longdouble(np.pi)) if act == GELU else 1
    b = np.longdouble("0.044715") * a if act == GELU else 0
    return 1 / (1 + np.exp(-v * (a + b * v * v))), a + 3 * b * v * v, 6 * b * v


def _before_activation(dy: Array, x: Array, stats: Array, act: Activation) -> Array:
    mean, _, _, scale, shift = stats
    return _pulled(_block(dy), (_block(x) - _channel(mean)) * _channel(scale) + _channel(shift), act)


def _of_positions(weight: Array | None, x: Array) -> Array:
    """Return weights (N, L), or ones, in a shape that broadcasts with (N, G, K, L)."""
    return np.ones((1, 1, 1, 1)) if weight is None else _wide(weight.reshape(len(x), 1, 1, x.shape[3]))


def _counts(w: Array, x: Array) -> Array:
    """Return the sum of the weights of each row, in a shape that broadcasts with (N, G)."""
    counts: Array = np.broadcast_to(w, (len(x), 1, *x.shape[2:])).sum((2, 3))
    return counts


def _center(x: Array, w: Array, count: Array) -> Array:
    """Return the mean of each row. The second pass adds the rounding error of the first."""
    mean: Array = (w * x).sum((2, 3)) / count
    mean += (w * (x - _row(mean))).sum((2, 3)) / count
    return mean


def _block(x: Array) -> Array:
    """Return (outer, C, ...) as (outer, C, inner), in the precision of the oracle."""
    return _wide(x).reshape(*x.shape[:2], prod(x.shape[2:]))


def _wide(x: Array) -> Array:
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def _sum(values: Array) -> Array:
    """Return the sum of each channel, made contiguous first, because only then does NumPy add pairwise."""
    outer, channels, inner = values.shape
    runs = np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(channels, outer * inner)
    total: Array = runs.sum(1)
    return total


def _channel(values: Array) -> Array:
    return values[:, None]  # (C,) broadcasts with (outer, C, inner)


def _positions(weight: Array) -> Array:
    return weight[:, None, :]  # (outer, inner) broadcasts with (outer, C, inner)


def _row(values: Array) -> Array:
    return values[:, :, None, None]  # (N, G) broadcasts with (N, G, K, L)


def _parameter(values: Array | None, x: Array, absent: float) -> Array:
    """Return values (G*K,) in a shape that broadcasts with (N, G, K, L)."""
    return np.full((*x.shape[1:3], 1), absent) if values is None else values.reshape(x.shape[1:3])[:, :, None]


def _result(values: Array, x: Array, out: Array | None) -> Array:
    """Return the values rounded to the dtype of x, in `out` if it is given."""
    out = np.empty_like(x) if out is None else out
    out[...] = values.reshape(x.shape)
    return out
