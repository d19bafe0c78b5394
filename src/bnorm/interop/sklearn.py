"""Conversion between a fitted StandardScaler of scikit-learn and a BatchNormTransformer. Both can continue to learn.

    t = from_standard_scaler(scaler)        with momentum=None: every row weighs the same, as in StandardScaler
    scaler = to_standard_scaler(t)

Both have population variances. A feature that one of them takes for constant has scale 1 in the other too, until it
learns more. `bnorm.sklearn.StandardScaler` is a subclass of scikit-learn's, and can be converted too.
"""

from typing import Any

import numpy as np
from numpy import ndarray
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from bnorm.kernels import moved
from bnorm.running import ROWS
from bnorm.transformer import BatchNormTransformer

__all__ = ["from_standard_scaler", "to_standard_scaler"]


def from_standard_scaler(scaler: Any) -> BatchNormTransformer:
    """Convert a fitted StandardScaler to a transformer, which can continue from its statistics.

    Parameters
    ----------
    scaler : sklearn.preprocessing.StandardScaler
        Fitted, with with_mean=True and with_std=True.

    Returns
    -------
    transformer : BatchNormTransformer
        With momentum=None.

    Raises
    ------
    TypeError, ValueError
        If the scaler cannot be converted.

    Examples
    --------
    >>> from sklearn.preprocessing import StandardScaler
    >>> t = from_standard_scaler(StandardScaler().fit([[1.0], [3.0]]))
    >>> t.partial_fit([[5.0]]).mean_
    array([3.])
    """
    who = "from_standard_scaler"
    if not isinstance(scaler, StandardScaler):
        raise TypeError(f"{who}: scaler: expected a StandardScaler, got {type(scaler).__name__}")
    check_is_fitted(scaler)
    if not (scaler.with_mean and scaler.with_std):
        raise ValueError(
            f"{who}: scaler: expected with_mean=True and with_std=True, as a BatchNormTransformer does both, got "
            f"{scaler.with_mean} and {scaler.with_std}: bnorm.sklearn.StandardScaler does either"
        )
    mean, var = np.asarray(scaler.mean_, np.float64), np.asarray(scaler.var_, np.float64)
    constant = (np.asarray(scaler.scale_) == 1) & (np.sqrt(var) != 1)  # its variance is only rounding errors
    var = np.where(constant, 0.0, var)
    transformer = BatchNormTransformer(momentum=None, eps=0.0, copy=scaler.copy)
    transformer.fit(np.zeros((1, len(mean))))
    seen = np.asarray(scaler.n_samples_seen_)
    state = transformer._state
    statistics = state.statistics
    statistics.mean[...], statistics.var[...], statistics.seen[...] = mean, var, seen
    statistics.counters[ROWS] = int(seen.max(initial=0))
    state.weighted = seen.dtype.kind == "f"
    if hasattr(scaler, "feature_names_in_"):
        transformer.feature_names_in_ = scaler.feature_names_in_
    return transformer


def to_standard_scaler(transformer: BatchNormTransformer) -> StandardScaler:
    """Convert a fitted transformer to a StandardScaler, which weighs all rows the same from then on.

    Parameters
    ----------
    transformer : BatchNormTransformer
        Fitted, with eps=0 and ddof=0, and without a learned gamma_ or beta_.

    Returns
    -------
    scaler : sklearn.preprocessing.StandardScaler

    Raises
    ------
    TypeError, ValueError
        If the transformer cannot be converted.

    Examples
    --------
    >>> from bnorm import BatchNormTransformer
    >>> to_standard_scaler(BatchNormTransformer(momentum=None).fit([[1.0], [3.0]])).transform([[4.0]])
    array([[2.]])
    """
    who = "to_standard_scaler"
    if not isinstance(transformer, BatchNormTransformer):
        raise TypeError(f"{who}: transformer: expected a BatchNormTransformer, got {type(transformer).__name__}")
    check_is_fitted(transformer)
    for name, wanted in (("eps", 0), ("ddof", 0)):
        if (got := getattr(transformer, name)) != wanted:
            raise ValueError(
                f"{who}: transformer: expected {name}={wanted}, which is all a StandardScaler has, got {got}"
            )
    for name, value, neutral in (("gamma_", transformer.gamma_, 1), ("beta_", transformer.beta_, 0)):
        if value is not None and not (value == neutral).all():
            raise ValueError(f"{who}: transformer: expected {name} to be {neutral}, as a StandardScaler has none")
    scaler = StandardScaler(copy=transformer.copy)
    mean, var, scale = (moved(a, ndarray) for a in (transformer.mean_, transformer.var_, transformer.scale_))
    scaler.mean_, scaler.var_, scaler.scale_ = mean.copy(), var.copy(), scale.copy()
    seen = transformer.n_samples_seen_
    scaler.n_samples_seen_ = moved(seen, ndarray) if hasattr(seen, "shape") and seen.ndim else seen
    scaler.n_features_in_ = transformer.n_features_in_
    if hasattr(transformer, "feature_names_in_"):
        scaler.feature_names_in_ = transformer.feature_names_in_
    return scaler
