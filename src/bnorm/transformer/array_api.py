"""Arrays of other libraries in the transformer: PyTorch tensors, and arrays that follow the array API standard.

With scikit-learn's array API dispatch, a table of such a library is read as a NumPy or CuPy array without a copy.
Results and fitted attributes are converted to arrays of that library. The state itself always has NumPy or CuPy arrays.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numpy import ndarray
from sklearn import get_config

from bnorm.arrays import borrowed, given_back, is_foreign, refuse_mixture
from bnorm.kernels import BACKENDS
from bnorm.transformer.fitted import restored_after_errors
from bnorm.transformer.validation import is_iterable

METHODS = ("fit", "partial_fit", "transform", "inverse_transform", "backward", "forget")
OF_ITERABLES = ("fit", "partial_fit")  # these take iterables of tables
GRADIENTS = ("gamma_grad_", "beta_grad_")
LIKE = "_like"  # the attribute of an estimator that keeps an empty array of the library it was fitted on


class AnyLibrary:
    """An estimator whose methods take arrays of other libraries. The methods of direct subclasses are wrapped."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if AnyLibrary in cls.__bases__:
            for name in METHODS:
                setattr(cls, name, _any_library(getattr(cls, name)))
        super().__init_subclass__(**kwargs)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> ndarray | Any:
        """`fit`, and `transform` of the same table.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            NaN is a missing value, and stays NaN.
        y : None
            Ignored.
        **fit_params : dict
            The other arguments of `fit`.

        Returns
        -------
        Y : ndarray or DataFrame of shape (n_samples, n_features)
            Lazy if X is a Dask collection; statistics that are learned later do not change it.
        """
        if is_iterable(X):  # `fit` would take it
            raise _only_fitted("fit_transform", X)
        with restored_after_errors(self):  # lazy tables with set_output can be learned, but not transformed
            return super().fit_transform(X, y, **fit_params)  # type: ignore[misc]


def _any_library(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if type(X) is ndarray and LIKE not in self.__dict__:
            return method(self, X, *args, **kwargs)
        return _call(method, self, X, *args, **kwargs)

    return called


def follow(estimator: Any, a: Any) -> Any:
    """Return a fitted attribute as an array of the library that the estimator was fitted on, in the same memory."""
    like = estimator.__dict__.get(LIKE)
    return a if like is None or a is None else given_back(a, like)


def seen(value: Any, name: str = "X") -> Any:
    """Return an array of another library as the kernels see it, and everything else unchanged."""
    if not is_foreign(value):
        return value
    if (a := borrowed(value)) is None:
        raise TypeError(
            f"BatchNormTransformer: {name}: expected numbers of a type that NumPy has, on the CPU or on a CUDA device, "
            f"in an array that requires no gradient (a tensor's detach() gives one), got {type(value).__name__}"
        )
    return a


def is_dispatched(X: Any) -> bool:
    """Whether X is an array of another library that scikit-learn's dispatch lets pass."""
    return is_foreign(X) and bool(get_config()["array_api_dispatch"])


def like(X: Any) -> Any:
    """Return an empty array of the library of X, if it is another one than the kernels'; otherwise None."""
    return given_back(np.empty(0), X) if is_dispatched(X) else None


def remember(estimator: Any, like: Any) -> None:
    """Let the fitted attributes be arrays of this library; those of the kernels if it is None."""
    estimator.__dict__.pop(LIKE, None)
    if like is not None:
        estimator.__dict__[LIKE] = like


def check_library(call: str, name: str, fitted: Any, X: Any) -> None:
    """Raise MixedArraysError unless X is of the library of the fitted attribute `name`, and on its device."""
    # scikit-learn converts everything that is no array to NumPy
    refuse_mixture(call, name, fitted, X if is_dispatched(X) or type(X) in BACKENDS else np.empty(0))


def _only_fitted(method: str, X: Any) -> TypeError:
    """Return the error of a method that was given what only the methods OF_ITERABLES take."""
    return TypeError(
        f"BatchNormTransformer: {method}: X: expected one table, got {type(X).__name__}: only "
        f"{' and '.join(OF_ITERABLES)} take an iterable of tables; the other methods take each of its tables by itself"
    )


def _call(method: Callable[..., Any], estimator: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
    iterable = is_iterable(X)
    if iterable and method.__name__ in OF_ITERABLES:  # each of its tables is looked at when it comes
        return method(estimator, X, *args, **kwargs)
    own, foreign = estimator.__dict__.get(LIKE), is_dispatched(X)
    begins = method.__name__ == "fit" or not estimator.__sklearn_is_fitted__()
    if iterable and not begins and not hasattr(X, "read_all"):  # of such a stream its own error says more
        raise _only_fitted(method.__name__, X)
    if not begins and (foreign or own is not None):
        fitted = estimator.running_mean_ if own is None else own
        check_library(f"{type(estimator).__name__}.{method.__name__}()", "running_mean_", fitted, X)
    if foreign:
        args, kwargs = tuple(map(seen, args)), {name: seen(value, name) for name, value in kwargs.items()}
    x = seen(X) if foreign else X
    result = method(estimator, x, *args, **kwargs)
    if begins:
        remember(estimator, like(X))
    if not foreign or result is estimator:
        return result
    for name in GRADIENTS:
        if type(gradient := estimator.__dict__.get(name)) in BACKENDS:
            setattr(estimator, name, given_back(gradient, X))
    return X if result is x else given_back(result, X)
