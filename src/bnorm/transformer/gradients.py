"""Scale and shift of a transformer, learned by gradient descent."""

from collections.abc import Callable
from math import isfinite
from typing import Any, Self

from numpy import ndarray

from bnorm import checks
from bnorm.kernels import moved
from bnorm.transformer.array_api import seen
from bnorm.transformer.state import State
from bnorm.transformer.tables import WHO
from bnorm.transformer.validation import check_order


class Learned:
    """The part of a transformer that learns gamma_ and beta_."""

    _state: State
    _table: Callable[[Any], Any]
    _check_fitted: Callable[[], None]

    def backward(self, X: Any, dY: Any) -> ndarray:
        """The gradient with respect to X; sets gamma_grad_ and beta_grad_. Statistics are treated as constants.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The table that was transformed. Missing values do not count in gamma_grad_ and beta_grad_.
        dY : array-like of shape (n_samples, n_features)
            The gradient of a loss with respect to `transform(X)`, with its columns in the same order.

        Returns
        -------
        dX : ndarray of shape (n_samples, n_features)
        """
        self._check_fitted()
        x = checks.floating(self._table(X).dense())
        check_order(self, dY, "dY")
        dy = checks.gradient(WHO, dY, x.shape, x.dtype, type(x), "dY")
        dx, self.gamma_grad_, self.beta_grad_ = self._state.pull_back(x, dy)
        return dx

    def step(self, learning_rate: float) -> Self:
        """Update gamma_ and beta_ by a step of gradient descent, with the gradients of the last `backward`.

        Parameters
        ----------
        learning_rate : float
            The factor of gamma_grad_ and beta_grad_.

        Returns
        -------
        self : BatchNormTransformer
        """
        self._check_fitted()
        rate = checks.number(WHO, "learning_rate", learning_rate)
        if not isfinite(rate):
            raise ValueError(f"{WHO}: learning_rate: expected a finite number, got {learning_rate!r}")
        learned = self._state.parameters
        if learned is None:
            raise RuntimeError(f"{WHO}: step: expected gamma_ and beta_ to update, got affine=False")
        if "gamma_grad_" not in self.__dict__:
            raise RuntimeError(f"{WHO}: step: expected a call of backward before, got none")
        gradients: Any = [seen(grad) for grad in (self.gamma_grad_, self.beta_grad_)]
        if type(gradients[0]) is not type(learned[0]):  # layer_.to(device) was called after the backward
            gradients = [moved(grad, type(learned[0])) for grad in gradients]
        stepped = [p - rate * grad for p, grad in zip(learned, gradients, strict=True)]
        for p, values in zip(learned, stepped, strict=True):
            p[...] = values
        return self
