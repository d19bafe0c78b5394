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


def inverse(stats: ndarray, dtype: np.dtype[Any]) -> ndarray:
    """Return the rows of the inverse of a forward map. dtype: the type of y.

    x = (y - beta) std / gamma + mean; where gamma is 0 the result is the mean.
    """
    back: ndarray = BACKENDS[type(stats)].inverse(stats, dtype.itemsize < 8)
    return back
