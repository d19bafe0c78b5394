"""RevIN in all its settings, and windows of a series for it."""

import numpy as np
import pytest

from bnorm import RevIN

WAYS = [
    pytest.param({"affine": affine, "subtract_last": last, "axis": axis}, id=f"affine={affine}-last={last}-axis={axis}")
    for affine in (False, True)
    for last in (False, True)
    for axis in (-1, 1)
]


def series(shape=(4, 12, 3), level=50.0, spread=3.0, dtype="float64", axis=-1, seed=0):
    x = np.random.default_rng(seed).normal(level, spread, size=shape).astype(dtype)
    return x if axis == -1 else np.ascontiguousarray(x.transpose(0, 2, 1))


def made(way, seed=1):
    rev = RevIN(3, **way)
    if rev.affine:
        rng = np.random.default_rng(seed)
        rev.gamma, rev.beta = rng.normal(1, 0.2, size=3), rng.normal(size=3)
    return rev


def parameters(rev):
    return (1.0, 0.0) if rev.gamma is None else (rev.gamma.data, rev.beta.data)
