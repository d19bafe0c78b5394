"""The estimator itself: parameters, checks, and the methods that scikit-learn and its users call."""

import warnings
from contextlib import suppress
from functools import partial
from math import isfinite
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy import ndarray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from bnorm import arrow, checks
from bnorm.kernels import moved
from bnorm.running import AVERAGE
from bnorm.transformer import tables
from bnorm.transformer.array_api import AnyLibrary, seen
from bnorm.transformer.attributes import Attributes
from bnorm.transformer.saving import Savable
from bnorm.transformer.sklearn_private import Interval, Options, in_container
from bnorm.transformer.state import KINDS, State, mode
from bnorm.transformer.tables import WHO
from bnorm.transformer.validation import check_mergeable, columns, floats, new_table, plain, refuse_container

MOMENTUM = 0.1
VALID: set[Any] = set()  # parameters that were found valid: scikit-learn's check takes as long as a small fit
MOST_VALID = 1000


class BatchNormTransformer(
    AnyLibrary,
    Attributes,
    Savable,
    OneToOneFeatureMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Scale features by statistics that follow a stream, then by a gamma and beta that can be learned.

    y = (x - mean_) / scale_ * gamma_ + beta_, with scale_ = sqrt(var_ + eps).

    `fit` takes the exact statistics of a table, whatever the momentum. `partial_fit` takes one more batch of a stream,
    and there are three ways to weigh it against what came before:

    - ``momentum=m``: the exponential moving average of the means and variances of batches. In a stream that begins with
      `partial_fit`, the weights of the batches are normalized, so the first one counts fully. After a `fit` the average
      is settled, and the next batch weighs m.
    - ``momentum=None``: every row weighs the same. The result is that of one `fit` on all rows, however they were cut.
    - ``halflife=h``: a row weighs half of what a row h rows later does. The result does not depend on how the stream
      was cut into batches, and batches of one row are as good as any.

    NaN is left out of the statistics and stays NaN, and so does what a masked array masks; infinity is refused. A
    feature never seen is NaN until it is seen.
    float16, float32 and float64 keep their type, whatever else becomes float64; statistics are float64.

    Fitted on a CuPy array it lives on the GPU: it takes and returns CuPy arrays, and its attributes are such. The layer
    moves it, by `layer_.to("cpu")` and `layer_.to("cuda")`. The host waits for the GPU once in every call that reads a
    table, as infinity is refused, once more for sample weights, and once for missing values among rows that fade.

    Parameters
    ----------
    momentum : float or None, default=0.1
        The weight of a new batch, above 0 and at most 1; None: every row weighs the same.
    halflife : float or None, default=None
        Rows after which a row weighs half. With it, momentum has no meaning: it is left at its default, or None.
    eps : float, default=0.0
        Added to the variance, inside the root. With 0, features of any size come out alike, and those that
        StandardScaler takes for constant have scale 1. (Layers have 1e-5, as nets are used to; `layer_` has this one.)
    ddof : {0, 1}, default=0
        The variance is sum (x - mean)^2 / (count - ddof). With sample weights, count is their sum.
    affine : bool, default=True
        Whether there are gamma_ and beta_.
    copy : bool, default=True
        False: `transform` and `inverse_transform` overwrite a float array that they are given.
    history : int or None, default=None
        How many moments of the stream to keep in `history_`, 2 or more, for `bnorm.plot.RunningStatsDisplay`. `fit` and
        `partial_fit` add one each; when there are too many, every second goes, and from then on every second batch is
        recorded. Pickles keep the record, clones begin their own, and `merge` does not change it.

    Attributes
    ----------
    layer_ : BatchNorm1d
        The same state as a layer in inference mode. Its parameters and running statistics are the very arrays of the
        attributes below, so what a net learns there holds here at once, and the other way round.
    running_mean_, running_var_ : ndarray of shape (n_features,)
        Mean and variance. Values assigned to them are copied in.
    gamma_, beta_ : ndarray of shape (n_features,), or None
        Scale and shift after standardization, 1 and 0 until they are learned or assigned. None without affine.
    gamma_grad_, beta_grad_ : ndarray of shape (n_features,), or None
        What the last `backward` left.
    mean_, var_, scale_ : ndarray of shape (n_features,)
        Mean, variance and sqrt(variance + eps), to read, under the names of StandardScaler. On a GPU copies.
    n_samples_seen_ : int, float or ndarray of shape (n_features,)
        Values seen, or the sum of their weights; one per feature where NaN made them differ.
    n_batches_seen_ : int
        Calls of `partial_fit`; a `fit` counts as the first.
    history_ : Moment or None
        Rows seen, mean and variance at each moment that was recorded, and now, by the names of rows, mean and var.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where the first table had names.

    Examples
    --------
    >>> import numpy as np
    >>> from bnorm import BatchNormTransformer
    >>> t = BatchNormTransformer(momentum=None)
    >>> for batch in np.array([[[0.0, 10.0], [2.0, 10.0]], [[4.0, 40.0], [6.0, 40.0]]]):
    ...     t = t.partial_fit(batch)
    >>> t.mean_, t.scale_
    (array([ 3., 25.]), array([ 2.23606798, 15.        ]))
    >>> t.transform([[3.0, 55.0]])
    array([[0., 2.]])
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012
        "momentum": [Interval(Real, 0, 1, closed="right"), None],
        "halflife": [Interval(Real, 0, np.inf, closed="neither"), None],
        "eps": [Interval(Real, 0, np.inf, closed="left")],
        "ddof": [Options(Integral, {0, 1})],
        "affine": ["boolean"],
        "copy": ["boolean"],
        "history": [Interval(Integral, 2, None, closed="left"), None],
    }

    def __init__(
        self,
        *,
        momentum: float | None = MOMENTUM,
        halflife: float | None = None,
        eps: float = 0.0,
        ddof: int = 0,
        affine: bool = True,
        copy: bool = True,
        history: int | None = None,
    ) -> None:
        self.momentum = momentum
        self.halflife = halflife
        self.eps = eps
        self.ddof = ddof
        self.affine = affine
        self.copy = copy
        self.history = history

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Forget everything, gamma_ and beta_ too, and take the exact statistics of X.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            NaN is left out.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts: not negative, not all zero.

        Returns
        -------
        self : BatchNormTransformer
        """
        return self._begin(X, sample_weight, alike=True)

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Take in one more batch of the stream.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            NaN is left out.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts: not negative, not all zero. A row ages those before it whatever its weight.

        Returns
        -------
        self : BatchNormTransformer
        """
        if "layer_" not in self.__dict__:
            return self._begin(X, sample_weight, alike=False)
        self._check_parameters()
        self._check_same_stream()
        state, x = self._state, self._table(X)
        weight = None if sample_weight is None else tables.sample_weights(sample_weight, x)
        if len(x) == 1:
            self._tell_of_single_rows(state, 4)
        state.follow(self.momentum, self.halflife, self.eps, self.history)
        state.move(x, weight)
        return self

    def transform(self, X: Any, copy: bool | None = None) -> Any:
        """(X - mean_) / scale_ * gamma_ + beta_.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            NaN stays NaN.
        copy : bool, default=None
            Instead of the parameter of that name.

        Returns
        -------
        Y : ndarray or DataFrame of shape (n_samples, n_features); of Dask's a lazy one, by what is learned now
        """
        self._check_fitted()
        in_place = not (self.copy if copy is None else copy)
        x = self._table(X, in_place)
        if type(x) is not ndarray:
            refuse_container(self, x)
        return tables.mapped(x, self._state.forward(), in_place)

    def inverse_transform(self, X: Any, copy: bool | None = None) -> Any:
        """What `transform` makes X of: (X - beta_) / gamma_ * scale_ + mean_.

        Where gamma_ is 0 nothing is left to restore, and the feature is its mean.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            NaN stays NaN.
        copy : bool, default=None
            Instead of the parameter of that name.

        Returns
        -------
        X_original : ndarray or DataFrame of shape (n_samples, n_features), lazy if X is
            A DataFrame where `set_output` asks `transform` for one.
        """
        self._check_fitted()
        in_place = not (self.copy if copy is None else copy)
        side, table = self._state.array_type, arrow.table_of(X)
        y = X if table is None else arrow.columns_of(WHO, table).dense()
        if not plain(y, side, in_place, False):
            y = floats(partial(check_array, estimator=self, input_name="X"), y, side, in_place, False)
        if y.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {y.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input."
            )
        if type(y) is not ndarray:
            refuse_container(self, y)
        x = tables.mapped(y, self._state.inverse(y.dtype), in_place)
        return in_container("transform", x, X, self)

    def merge(self, other: "BatchNormTransformer") -> Self:
        """Take in the statistics that another transformer has learned elsewhere; gamma_ and beta_ stay.

        With momentum=None the result is that of all rows together. With a halflife, both streams end now, and the
        weights of their rows add. A moving average depends on the order of its batches, and cannot be merged.

        Parameters
        ----------
        other : BatchNormTransformer
            Fitted on the same features, with the same halflife and ddof. It is not changed.

        Returns
        -------
        self : BatchNormTransformer
        """
        if not isinstance(other, BatchNormTransformer):
            raise TypeError(f"{WHO}: merge: expected a {WHO}, got {type(other).__name__}")
        for transformer in (self, other):
            transformer._check_fitted()
            transformer._check_parameters()
            transformer._check_same_stream()
        check_mergeable(self, other)
        self._state.merge(other._state)
        return self

    def backward(self, X: Any, dY: Any) -> ndarray:
        """The gradient by X, and in gamma_grad_ and beta_grad_ those by gamma_ and beta_; statistics are constants.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            What was transformed. A missing value feeds nothing into gamma_grad_ and beta_grad_.
        dY : array-like of shape (n_samples, n_features)
            The gradient of a loss by what `transform` made of X.

        Returns
        -------
        dX : ndarray of shape (n_samples, n_features)
        """
        self._check_fitted()
        x = checks.floating(tables.dense(self._table(X)))
        dy = checks.gradient(WHO, dY, x.shape, x.dtype, type(x))
        dx, self.gamma_grad_, self.beta_grad_ = self._state.pull_back(x, dy)
        return dx

    def step(self, learning_rate: float) -> Self:
        """Move gamma_ and beta_ against the gradients of the last `backward`.

        Parameters
        ----------
        learning_rate : float
            What gamma_grad_ and beta_grad_ are multiplied by.

        Returns
        -------
        self : BatchNormTransformer
        """
        self._check_fitted()
        rate = checks.number(WHO, "learning_rate", learning_rate)
        if not isfinite(rate):
            raise ValueError(f"{WHO}: learning_rate: expected a finite number, got {learning_rate!r}")
        parameters = self._state.parameters
        if parameters is None:
            raise RuntimeError(f"{WHO}: step: expected gamma_ and beta_ to move, got affine=False")
        if "gamma_grad_" not in self.__dict__:
            raise RuntimeError(f"{WHO}: step: expected a backward before, got none")
        gradients: Any = [seen(grad) for grad in (self.gamma_grad_, self.beta_grad_)]
        if type(gradients[0]) is not type(parameters[0]):  # the layer has moved
            gradients = [moved(grad, type(parameters[0])) for grad in gradients]
        stepped = [p - rate * grad for p, grad in zip(parameters, gradients, strict=True)]
        for p, values in zip(parameters, stepped, strict=True):
            p[...] = values
        return self

    def _begin(self, X: Any, sample_weight: Any, alike: bool) -> Self:
        """A new state from X; nothing is assigned until all is done."""
        self._check_parameters()
        x, names = new_table(self, X)
        weight = None if sample_weight is None else tables.sample_weights(sample_weight, x)
        state = State(x, self.momentum, self.halflife, self.eps, self.ddof, self.affine, self.history)
        if alike:
            state.begin(x, weight)
        else:
            if len(x) == 1:
                self._tell_of_single_rows(state, 5)
            state.move(x, weight)
        for name in ("feature_names_in_", "gamma_grad_", "beta_grad_"):
            self.__dict__.pop(name, None)
        if names is not None:
            self.feature_names_in_ = names
        self._state, self.layer_, self.n_features_in_ = state, state.layer, x.shape[1]
        return self

    def _table(self, X: Any, writeable: bool = False) -> Any:
        """X as an array of floats that fits, on the side of the layer; infinity may still be in it."""
        side = self._state.array_type
        if plain(X, side, writeable) and X.shape[1] == self.n_features_in_ and "feature_names_in_" not in self.__dict__:
            return X
        if (found := columns(self, X, reset=False)) is not None:
            return found if side is ndarray else moved(found.dense(), side)
        return floats(partial(validate_data, self, reset=False), X, side, writeable)

    def _check_fitted(self) -> None:
        if "layer_" not in self.__dict__:
            check_is_fitted(self)  # has the words for it

    def _check_parameters(self) -> None:
        given = (self.momentum, self.halflife, self.eps, self.ddof, self.affine, self.copy, self.history)
        key = (type(self), given, *map(type, given))  # True is 1, but not for scikit-learn
        with suppress(TypeError):  # of what has no hash, and is refused below
            if key in VALID:
                return
        self._validate_params()
        if self.halflife is not None and self.momentum not in (MOMENTUM, None):
            raise ValueError(
                f"{WHO}: momentum: expected its default, {MOMENTUM}, beside halflife={self.halflife}, or None, as they "
                f"are two ways to forget, got {self.momentum}"
            )
        if len(VALID) == MOST_VALID:
            VALID.clear()
        VALID.add(key)

    def _check_same_stream(self) -> None:
        """That statistics which were begun in one way go on in that way."""
        layer, statistics = self.layer_, self._state.statistics
        if (now := mode(self.momentum, self.halflife)) != (before := mode(statistics.momentum, statistics.halflife)):
            raise ValueError(
                f"{WHO}: expected momentum and halflife for {KINDS[before]}, as this stream began, got {KINDS[now]}; "
                "fit begins anew"
            )
        for name, before in (("ddof", layer.ddof), ("affine", layer.affine)):
            if (given := getattr(self, name)) != before:
                raise ValueError(
                    f"{WHO}: {name}: expected {before}, as this stream began, got {given}; fit begins anew"
                )

    def _tell_of_single_rows(self, state: State, depth: int) -> None:
        if state.statistics.mode == AVERAGE and not state.told:
            warnings.warn(
                f"{WHO}: a batch of one row has no variance, and 0 enters the average with momentum={self.momentum}; "
                "for such a stream momentum=None weighs all rows the same, and halflife= by their age",
                stacklevel=depth,
            )
            state.told = True

    def __sklearn_is_fitted__(self) -> bool:
        return "layer_" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.array_api_support = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32", "float16"]
        return tags
