"""Derivatives of the backward passes in plain NumPy: the reference for kernels/cpu/second.pyx.

float16 and float32 are computed in float64, float64 in long double. Names as there: u = (x - mean) / std, g is dy
before the activation, v = ddx, k = ddgamma, q = ddbeta.
"""

import numpy as np

from bnorm.kernels import reference


def channels(ddx, dy, x, stats, count, weight, act, frozen, ddgamma, ddbeta):
    """Return d_dy, dx, dgamma for arrays (outer, C, inner), and weight (outer, inner)."""
    wide = np.longdouble if x.dtype == np.float64 else np.float64
    (mean, _, r, a, shift), n = (row.astype(wide)[:, None] for row in stats), count or 1.0
    k, q = (np.zeros_like(r) if p is None else p.astype(wide)[:, None] for p in (ddgamma, ddbeta))
    v, dy, x = (values.astype(wide) for values in (ddx, dy, x))
    w = np.zeros_like(x) if frozen else np.ones_like(x) if weight is None else weight[:, None].astype(wide) + 0 * v
    passed = reference._pulled(np.ones_like(x), (x - mean) * a + shift, act)
    g, u = np.where(passed == 0, 0, passed * dy), (x - mean) * r

    def total(values):
        return values.sum((0, 2))[:, None]

    h0, h1, t = total(g), total(_product(g, u)), total(v * g)
    v0, v1 = total(w * v), total(_product(w * v, u))
    d_dy = passed * (a * v + (k - a * v1 / n) * u + q - a * v0 / n)
    tilt = -(a * (t - (h0 * v0 + 3 * h1 * v1) / n) + k * h1) / n
    level = (a * h1 * v0 / n - (k - a * v1 / n) * h0) / n
    dx = r * ((k - a * v1 / n) * g + _product(w, -a * h1 * v / n + tilt * u + level))
    return d_dy, dx, (r * (t - (h0 * v0 + h1 * v1) / n))[:, 0]


def rows(ddx, dy, x, mean, rstd, gamma, beta, rule, act, ddgamma, ddbeta):
    """Return d_dy, dx, dgamma for arrays (N, G, K, L). rule 1: divide by the root of the mean square, not centered."""
    wide = np.longdouble if x.dtype == np.float64 else np.float64
    groups, channels = x.shape[1:3]

    def parameter(values, absent):
        values = np.full(groups * channels, absent) if values is None else values
        return values.astype(wide).reshape(groups, channels, 1)

    def total(values):
        return values.sum((2, 3), keepdims=True)

    gamma, beta = parameter(gamma, 1.0), parameter(beta, 0.0)
    k, q = parameter(ddgamma, 0.0), parameter(ddbeta, 0.0)
    mean, r = (values.astype(wide).reshape(-1, groups, 1, 1) for values in (mean, rstd))
    v, dy, x = (values.astype(wide) for values in (ddx, dy, x))
    n, centered = max(channels * x.shape[3], 1), 1 - rule
    u = (x - mean) * r
    passed = reference._pulled(np.ones_like(x), u * gamma + beta, act)
    g = np.where(passed == 0, 0, passed * dy)
    h = gamma * g
    h0, h1, v0, v1, t = centered * total(h), total(h * u), centered * total(v), total(v * u), total(v * h)
    through = v - v0 / n - u * v1 / n
    d_dy = passed * (r * gamma * through + k * u + q)
    tilt = r * (t - h0 * v0 / n - 3 * h1 * v1 / n) + total(k * g * u)
    direct = k * g - (h1 * v + v1 * h) * r / n
    dx = r * (direct - centered * total(direct) / n - tilt * u / n)
    return d_dy, dx, (r * g * through).sum((0, 3)).ravel()


def _product(w, values):
    """Return w times values; 0 where w is 0, whatever the value: padding may be NaN."""
    return np.where(w == 0, 0, w * values)
