"""scikit-learn's StandardScaler, computed by the kernels of this package."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from numpy import ndarray
from scipy.sparse import issparse
from sklearn import preprocessing
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from bnorm.arrays import borrowed, given_back, is_foreign, refuse_mixture
from bnorm.checks import LIGHTEST
from bnorm.kernels import BACKENDS, view
from bnorm.kernels.engines import engine_of
from bnorm.kernels.rule import EPSILON
from bnorm.moments import Moments
from bnorm.transformer import sparse_tables
from bnorm.transformer.fitted import restored_after_errors
from bnorm.transformer.sklearn_private import check_sample_weight, fit_context
from bnorm.transformer.tables import Dense
from bnorm.transformer.validation import INTEGERS, READ, Callbacks, aside, float_types, native, of_frame, plain
from bnorm.transformer.weights import as_checked

__all__ = ["StandardScaler"]
__dir__ = __all__.copy  # without what is imported here

FOUND = ("n_features_in_", "feature_names_in_")
FITTED = ("n_samples_seen_", "mean_", "var_", "scale_")
_MEAN, _SCALE, _SHIFT = 0, 3, 4  # rows of the statistics that the kernels take


class StandardScaler(preprocessing.StandardScaler):  # type: ignore[misc]
    """Standardize features by removing the mean and scaling to unit variance: z = (x - mean_) / scale_.

    This is a subclass of scikit-learn's class that uses the kernels of this package. Parameters, attributes, errors and
    tags are those of the installed version of scikit-learn. Each class can continue from statistics that the other has
    learned.

    Differences: results are accurate where scikit-learn's lose digits; a feature that had only NaN gets statistics as
    soon as it has values, and keeps them in later batches that have only NaN; a sparse matrix may have duplicate
    entries; after an error the scaler has not changed. There are no kernels for sample weights that are negative or add
    up to less than 1e-290, for devices other than CPU and CUDA, or for tensors that require a gradient: scikit-learn's
    own code handles these.

    Parameters
    ----------
    copy : bool, default=True
        If False, `transform` and `inverse_transform` overwrite X if it is a float array or a CSR matrix of floats.
    with_mean : bool, default=True
        Whether to center. It must be False for sparse matrices, which would not stay sparse.
    with_std : bool, default=True
        Whether to scale.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,) or None
        The mean of each feature; None with with_mean=False and with_std=False.
    var_ : ndarray of shape (n_features,) or None
        The variance of each feature, divided by the count; None with with_std=False.
    scale_ : ndarray of shape (n_features,) or None
        The square root of the variance, or 1 for a constant feature; None with with_std=False.
    n_samples_seen_ : int, float or ndarray of shape (n_features,)
        The number of values seen, or the sum of their weights; one per feature if NaN made them differ. With
        with_mean=False and with_std=False weights count only for sparse matrices.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if the first table had names.

    Examples
    --------
    >>> from bnorm.sklearn import StandardScaler
    >>> scaler = StandardScaler().fit([[0, 0], [0, 0], [1, 1], [1, 1]])
    >>> scaler.mean_
    array([0.5, 0.5])
    >>> scaler.transform([[2, 2]])
    array([[3., 3.]])
    """

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Compute the mean and variance of X, and forget earlier data.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            NaN is a missing value, and does not count.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts.

        Returns
        -------
        self : StandardScaler
        """
        return self._learn(X, y, sample_weight, True)

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Compute the mean and variance of X together with all earlier data.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            NaN is a missing value, and does not count.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts.

        Returns
        -------
        self : StandardScaler
        """
        return self._learn(X, y, sample_weight, "n_samples_seen_" not in self.__dict__)

    def transform(self, X: Any, copy: bool | None = None) -> ndarray | Any:
        """Compute (X - mean_) / scale_.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            NaN stays NaN.
        copy : bool, default=None
            Overrides the parameter copy.

        Returns
        -------
        X_tr : {ndarray, sparse matrix} of shape (n_samples, n_features)
            CSR if X is sparse.
        """
        y = self._through(X, copy, self._forward, "center")
        return super().transform(X, copy) if y is None else y

    def inverse_transform(self, X: Any, copy: bool | None = None) -> ndarray | Any:
        """Compute X * scale_ + mean_.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            NaN stays NaN.
        copy : bool, default=None
            Overrides the parameter copy.

        Returns
        -------
        X_original : {ndarray, sparse matrix} of shape (n_samples, n_features)
            CSR if X is sparse.
        """
        y = self._through(X, copy, self._inverse, "uncenter")
        return super().inverse_transform(X, copy) if y is None else y

    def _through(self, X: Any, copy: bool | None, stats: Callable[[Any, Any], ndarray], what: str) -> Any:
        """Return the map of X by `stats`; None if only scikit-learn's code can compute it. what: as in `_scaled`."""
        in_place = not (self.copy if copy is None else copy)
        if self._is_plain(X, in_place):
            return Dense(X).mapped(stats(X, X.dtype), in_place)
        check_is_fitted(self)
        if what == "center":
            x = _validated(partial(validate_data, self, reset=False), X, in_place)
        else:
            x = _validated(partial(check_array, estimator=self, input_name="X"), X, in_place)
        if issparse(x):
            return self._scaled(x, what, in_place or x.format != getattr(X, "format", None))
        if (table := _table(x)) is None or not self._readable():
            return None
        in_place = in_place and view.writeable(table)
        y = Dense(table).mapped(stats(x, table.dtype), in_place)
        return x if in_place else given_back(y, x) if is_foreign(x) else y

    def _learn(self, X: Any, y: Any, sample_weight: Any, anew: bool) -> Self:
        if self._is_plain(X, anew=anew) and (sample_weight is None or as_checked(sample_weight, X)):
            by_rows = sample_weight if self.with_mean or self.with_std else None
            batch = _moments(X, None if by_rows is None else view.dense(by_rows, by_rows.dtype))
            if anew:
                self.n_features_in_ = X.shape[1]
                self.__dict__.pop("feature_names_in_", None)
            self._set(batch, X, by_rows is not None, anew)
            return self
        return self._learn_checked(X, y, sample_weight, anew)  # type: ignore[no-any-return]

    @fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def _learn_checked(self, X: Any, y: Any, sample_weight: Any, anew: bool) -> Self:
        """Do `_learn` for anything that scikit-learn accepts."""
        _refuse_lazy("sample_weight", sample_weight)
        found = aside(self) if anew else self
        x = _validated(partial(validate_data, found, reset=anew), X, False, ("csr", "csc"))
        if issparse(x):
            self._refuse_centering("center")
        kind = np.float64 if type(x) is ndarray and x.dtype in INTEGERS else x.dtype
        weight = None if sample_weight is None else check_sample_weight(sample_weight, x, dtype=kind)
        table = x if issparse(x) else _table(x)
        if weight is not None and table is not None:
            weight = _table(weight)
            weight = view.dense(weight, np.float64 if issparse(x) else view.weights_dtype(weight))
        by_rows = weight if issparse(x) or self.with_mean or self.with_std else None  # None: rows are only counted
        if table is None or not (anew or self._readable()) or (weight is not None and not _weighs_well(weight)):
            return self._learn_by_sklearn(X, y, sample_weight, anew)
        callbacks = Callbacks(self, X=x, y=y, metadata={"sample_weight": sample_weight})
        batch = sparse_tables.moments(x, by_rows) if issparse(x) else _moments(table, by_rows)
        self._set(batch, x, by_rows is not None, anew)
        if anew:
            self.__dict__.pop("feature_names_in_", None)
            self.__dict__.update({name: found.__dict__[name] for name in FOUND if name in found.__dict__})
        callbacks.end()
        return self

    def _learn_by_sklearn(self, X: Any, y: Any, sample_weight: Any, anew: bool) -> Self:
        with restored_after_errors(self):
            if anew:
                for name in FITTED:
                    self.__dict__.pop(name, None)
            return super().partial_fit(X, y, sample_weight)  # type: ignore[no-any-return]

    def _is_plain(self, X: Any, in_place: bool = False, anew: bool = False) -> bool:
        """Whether scikit-learn would accept X without a conversion, and nothing else needs a check."""
        own = self.__dict__
        if not plain(X, ndarray, in_place) or Callbacks.has(self):
            return False
        if not type(self.with_mean) is type(self.with_std) is type(self.copy) is bool:
            return False
        alike = X.shape[1] == own.get("n_features_in_") and "feature_names_in_" not in own
        return anew or (alike and type(own.get("mean_", 0)) in (ndarray, type(None)))

    def _set(self, batch: Moments, x: Any, weighted: bool, anew: bool) -> None:
        """Set the fitted attributes by a batch and, unless `anew`, all earlier data, as arrays of the library of x."""
        weighted = weighted or (not anew and _table(self.n_samples_seen_).dtype.kind == "f")
        fitted = batch if anew else self._before(x) + batch
        with np.errstate(all="ignore"):
            n, mean, var = fitted.count.copy(), fitted.mean.copy(), fitted.m2 / fitted.count
            scale = np.sqrt(var)
        np.copyto(scale, 1, where=_is_constant(n, mean, var))
        if not weighted:
            n = n.astype(np.int64)
        values = {
            "n_samples_seen_": n[0] if (n == n[0]).all() else n,
            "mean_": mean if self.with_mean or self.with_std else None,
            "var_": var if self.with_std else None,
            "scale_": scale if self.with_std else None,
        }
        if is_foreign(x):
            values = {name: None if value is None else given_back(value, x) for name, value in values.items()}
        self.__dict__.update(values)

    def _readable(self) -> bool:
        """Whether kernels can read the fitted attributes; they cannot if these are tensors that require a gradient."""
        return all(_table(value) is not None for name in FITTED if (value := self.__dict__.get(name)) is not None)

    def _before(self, x: Any) -> Moments:
        """Return the moments of all earlier data, in arrays of the library of x."""
        if (self.with_std and self.var_ is None) or (self.with_mean and self.mean_ is None):
            raise ValueError(
                f"{type(self).__name__}: with_mean and with_std: expected the values of the first fit, got "
                f"{self.with_mean} and {self.with_std}; fit begins anew"
            )
        size = x.shape[1]
        x = x.data if issparse(x) else x
        n = self._vector("partial_fit", "n_samples_seen_", x, size)
        mean = self._vector("partial_fit", "mean_", x, size) if self.mean_ is not None else np.zeros_like(n)
        var = self._vector("partial_fit", "var_", x, size) if self.var_ is not None else np.zeros_like(n)
        return Moments._from_parts(np.array([n, mean, np.where(n == 0, 0, var * n), np.zeros_like(n)], like=n))

    def _forward(self, x: Any, dtype: np.dtype[Any]) -> ndarray:
        """Return the rows mean, var, rstd, scale, shift for the kernels: y = (x - mean) scale + shift."""
        mean, std = self._vectors("transform", x)
        stats = np.zeros((5, len(mean)), like=mean)
        stats[_MEAN], stats[_SCALE] = mean, 1 / std
        return stats

    def _inverse(self, x: Any, dtype: np.dtype[Any]) -> ndarray:
        """Return the same rows for the inverse.

        The mean is split: its high part, which float32 can represent, is added, and its low part is included in the
        number that is subtracted from x. So the result is accurate even if the mean is far from zero.
        """
        mean, std = self._vectors("inverse_transform", x)
        stats = np.zeros((5, len(mean)), like=mean)
        stats[_SCALE], stats[_SHIFT] = std, mean
        if dtype.itemsize < 8 and dtype not in INTEGERS:
            stats[_SHIFT] = mean.astype(np.float32)
            with np.errstate(all="ignore"):
                low = (stats[_SHIFT] - mean) / std
            stats[_MEAN] = np.where(np.isfinite(low), low, 0)
        return stats

    def _vectors(self, method: str, x: Any) -> tuple[ndarray, ndarray]:
        """Return mean_ and scale_ for a table x, or 0 and 1 if they are not used."""
        size = x.shape[1]
        mean = self._vector(method, "mean_", x, size) if self.with_mean else None
        scale = self._vector(method, "scale_", x, size) if self.with_std else None
        if mean is None:
            mean = np.zeros(size) if scale is None else np.zeros_like(scale)
        return mean, np.ones_like(mean) if scale is None else scale

    def _vector(self, method: str, name: str, x: Any, size: int) -> Any:
        """Return a fitted attribute as float64 (size,) on the device of the table x. A single value is repeated."""
        value = getattr(self, name)
        if type(value) is not ndarray or type(x) is not ndarray:
            value = self._beside(method, name, value, x)
        if value.dtype != np.float64:
            value = value.astype(np.float64)
        if value.shape == (size,):
            return value
        if value.size != 1:
            raise ValueError(
                f"{type(self).__name__}: X: expected {value.size} features, as {name} has, got {size} features"
            )
        return value.reshape(1).repeat(size)

    def _beside(self, method: str, name: str, value: Any, x: Any) -> Any:
        """Return a fitted attribute as a NumPy or CuPy array; an error unless it has the library and device of x."""
        if value is None:
            raise ValueError(
                f"{type(self).__name__}: {name}: expected an array, as with_mean={self.with_mean} and "
                f"with_std={self.with_std}, got None; fit begins anew"
            )
        refuse_mixture(f"{type(self).__name__}.{method}()", name, value, x)
        return _table(value)

    def _scaled(self, x: Any, what: str, in_place: bool) -> Any:
        """Return a CSR matrix with columns divided by scale_, if `what` is "center", or else multiplied by it."""
        self._refuse_centering(what)
        if self.scale_ is None:
            sparse_tables.refuse_infinity(x)
            return x if in_place else x.copy()
        method = "transform" if what == "center" else "inverse_transform"
        scale = self._vector(method, "scale_", x.data, x.shape[1])
        return sparse_tables.scaled(x, 1 / scale if what == "center" else scale, in_place)

    def _refuse_centering(self, what: str) -> None:
        if self.with_mean:
            raise ValueError(
                f"Cannot {what} sparse matrices: pass `with_mean=False` instead. See docstring for motivation and "
                "alternatives."
            )


def _refuse_lazy(name: str, value: Any) -> None:
    """Raise TypeError for a collection that scikit-learn would load into memory."""
    if (engine := engine_of(value)) is not None:
        raise TypeError(
            f"StandardScaler: {name}: expected an array in memory, got a {engine.NAME} {type(value).__name__}, which "
            f"is lazy: BatchNormTransformer takes it as it is, and {engine.in_memory(name)} loads it"
        )


def _validated(check: partial[Any], X: Any, in_place: bool, accept_sparse: Any = "csr") -> Any:
    """Return X after scikit-learn's check, but for infinity, which the kernels find."""
    _refuse_lazy("X", X)
    if not in_place and (x := of_frame(check, X, READ)) is not None:
        return x
    dtype = float_types(X, integers=not in_place and not issparse(X))
    return native(check(X, accept_sparse=accept_sparse, dtype=dtype, force_writeable=in_place, ensure_all_finite=False))


def _weighs_well(weight: ndarray) -> bool:
    """Whether the kernels can take these weights: not negative, with a sum that they can divide by, or 0."""
    return not (weight < 0).any() and not 0 < weight.sum(dtype=np.float64) < LIGHTEST


def _moments(x: ndarray, weight: ndarray | None) -> Moments:
    return Moments._from_parts(Dense(x).parts(weight))


@np.errstate(all="ignore")
def _is_constant(n: ndarray, mean: ndarray, var: ndarray) -> ndarray:
    """Whether features are constant, by scikit-learn's rule: rounding alone may be the cause of all their variance.

    The rule is the bound of Chan, Golub and LeVeque (1983) for n values that are simply summed.
    """
    slack = n * mean * EPSILON
    bound = slack * slack
    constant: ndarray = var <= n * EPSILON * var + bound
    if not (known := np.isfinite(bound)).all():
        constant = np.where(known, constant, np.sqrt(var) <= abs(slack))
    return constant


def _table(x: Any) -> Any:
    """Return a NumPy or CuPy array in the memory of x, or None if that is impossible."""
    if is_foreign(x):
        return borrowed(x)
    return x if type(x) in BACKENDS else np.asarray(x)
