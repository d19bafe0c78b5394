"""Arrays of other libraries in the transformer: PyTorch tensors, and arrays that follow the array API standard.

With scikit-learn's array API dispatch, a table of such a library is read as a NumPy or CuPy array without a copy.
Results and fitted attributes are converted to arrays of that library. The state itself always has NumPy or CuPy arrays.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray
from sklearn import get_config

from bnorm.arrays import borrowed, given_back, is_foreign, refuse_mixture
from bnorm.kernels import BACKENDS

METHODS = ("fit", "partial_fit", "transform", "inverse_transform", "backward", "forget")
GRADIENTS = ("gamma_grad_", "beta_grad_")
LIKE = "_like"  # the attribute of an estimator that keeps an empty array of the library it was fitted on


class AnyLibrary:
    """An estimator whose methods take arrays of other libraries. The methods of direct subclasses are wrapped."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if AnyLibrary in cls.__bases__:
            for name in METHODS:
                setattr(cls, name, _any_library(getattr(cls, name)))
        super().__init_subclass__(**kwargs)

    if TYPE_CHECKING:  # scikit-learn has it, without types

        def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> ndarray | Any: ...


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


def _call(method: Callable[..., Any], estimator: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
    like = estimator.__dict__.get(LIKE)
    foreign = is_foreign(X) and bool(get_config()["array_api_dispatch"])
    begins = method.__name__ == "fit" or not estimator.__sklearn_is_fitted__()
    if not begins and (foreign or like is not None):
        fitted = estimator.running_mean_ if like is None else like
        x = X if foreign or type(X) in BACKENDS else np.empty(0)  # scikit-learn converts everything else to NumPy
        refuse_mixture(f"{type(estimator).__name__}.{method.__name__}()", "running_mean_", fitted, x)
    if foreign:
        args, kwargs = tuple(map(seen, args)), {name: seen(value, name) for name, value in kwargs.items()}
    x = seen(X) if foreign else X
    result = method(estimator, x, *args, **kwargs)
    if begins:
        estimator.__dict__.pop(LIKE, None)
        if foreign:
            estimator.__dict__[LIKE] = given_back(np.empty(0), X)
    if not foreign or result is estimator:
        return result
    for name in GRADIENTS:
        if type(gradient := estimator.__dict__.get(name)) in BACKENDS:
            setattr(estimator, name, given_back(gradient, X))
    return X if result is x else given_back(result, X)
