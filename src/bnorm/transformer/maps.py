"""The maps of a transformer, forward and inverse, as the kernels take them."""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import BACKENDS
from bnorm.running import Statistics

Affine = tuple[ndarray, ndarray] | None  # gamma and beta


def forward(statistics: Statistics, affine: Affine, eps: float) -> ndarray:
    """Return the rows mean, var, rstd, scale, shift of y = (x - mean) scale + shift."""
    gamma, beta = affine or (None, None)
    mean, var = statistics.mean, statistics.var
    stats: ndarray = BACKENDS[type(mean)].known(mean, var, gamma, beta, eps)
    return stats


@np.errstate(all="ignore")
def inverse(stats: ndarray, dtype: np.dtype[Any]) -> ndarray:
    """Turn the rows of a forward map into those of its inverse, in place. dtype: the type of y.

    x = (y - beta) std / gamma + mean; where gamma is 0 the result is the mean.

    The mean is split: its high part, which the type of y can represent, is added, and its low part is included in
    the number that is subtracted from y. So a mean far from zero costs no accuracy.
    """
    center, low, _, scale, high = stats
    beta = high.copy()
    if dtype.itemsize == 8:
        high[...], center[...] = center, beta
    else:
        high[...] = center.astype(np.float32)
        np.subtract(center, high, out=low)
        low *= scale
        np.copyto(low, 0, where=~np.isfinite(low))
        np.subtract(beta, low, out=center)
    lost = scale == 0
    np.divide(1, scale, out=scale)
    np.copyto(scale, 0, where=lost)
    return stats
