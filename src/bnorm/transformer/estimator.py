"""The estimator: the methods that scikit-learn and its users call."""

import warnings
from datetime import timedelta
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy import ndarray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array

from bnorm import arrow
from bnorm.checks import user_level
from bnorm.kernels.rule import AVERAGE
from bnorm.transformer import iterables, maps, parameters
from bnorm.transformer.array_api import AnyLibrary, remember
from bnorm.transformer.attributes import Attributes
from bnorm.transformer.blocks import Blocks
from bnorm.transformer.durations import DURATION
from bnorm.transformer.exact import Exact
from bnorm.transformer.fitted import at_once
from bnorm.transformer.gradients import Learned
from bnorm.transformer.parameters import IN_STATE, MOMENTUM
from bnorm.transformer.saving import Savable
from bnorm.transformer.sklearn_private import Interval, Options
from bnorm.transformer.state import State
from bnorm.transformer.tables import WHO, Dense, Table
from bnorm.transformer.times import Times, of_rows, separated, without
from bnorm.transformer.validation import (
    check_mergeable,
    check_order,
    is_iterable,
    like_given,
    new_table,
    next_table,
    plain,
    refuse_container,
    table_of,
)


class BatchNormTransformer(
    AnyLibrary,
    Attributes,
    Exact,
    Learned,
    Savable,
    OneToOneFeatureMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Standardize features by statistics that follow a stream: by default a moving average of its batches.

    y = (x - mean_) / scale_ * gamma_ + beta_, with scale_ = sqrt(var_ + eps); gamma_ and beta_ can be learned. With
    ``momentum=None`` every row counts the same, as in StandardScaler.

    `fit` computes the exact statistics of a table, whatever the momentum. `partial_fit` adds one batch of a stream, and
    weighs it against the past in one of four ways:

    - ``momentum=m``: the exponential moving average of the batches' means and variances. In a stream that begins with
      `partial_fit`, the weights of the batches are normalized, so the first one counts fully. After a `fit` the next
      batch has weight m.
    - ``momentum=None``: every row weighs the same. The result is that of one `fit` on all rows, however they were cut
      into batches.
    - ``halflife=h``: a row weighs half as much as a row that came h rows later. The result does not depend on how the
      stream was cut; batches of one row are fine. With a length of time, such as ``halflife="10min"``, a row weighs
      half as much as one whose time, given as `times`, is that much later, in `fit` too. Then the result does not
      depend on the order of the rows either: rows may come late by any amount.
    - ``window=n``: the last n rows of the stream count, and no others; with ``window="1h"`` the rows of the last hour
      before the newest row, by their `times`, in `fit` too. The statistics are those of a fresh fit of these rows,
      however long the stream is. The rows are kept, so the memory is that of the rows in the window, and about a tenth
      more.

    NaN and masked values are missing values: they do not count in the statistics, and become NaN in the result.
    Infinity is an error. The statistics of a feature without any value are NaN, until a batch has values.
    float16, float32 and float64 keep their type; all other types become float64. Statistics are float64.

    Fitted on a CuPy array it works on the GPU: it takes and returns CuPy arrays, and its attributes are CuPy arrays.
    `layer_.to("cpu")` and `layer_.to("cuda")` move it. Every call that reads a table synchronizes once, to refuse
    infinity; once more for sample weights; and with a half-life once more for missing values.

    Parameters
    ----------
    momentum : float or None, default=0.1
        The weight of a new batch, above 0 and at most 1. With None every row weighs the same.
    halflife : float, str, timedelta or None, default=None
        The number of rows after which the weight of a row has halved, or the time: "10min", "1h 30min", "2 days", a
        timedelta of Python, NumPy or pandas. With it momentum has no meaning, and must be its default or None.
    window : int, str, timedelta or None, default=None
        The number of rows that count, or the time, written as for halflife. With it momentum has no meaning, and must
        be its default or None. `merge` unites windows of time. On the CPU only.
    eps : float, default=0.0
        Added to the variance, inside the root. With 0, features of any scale are standardized alike, and constant ones
        have scale 1: those whose standard deviation is at most four units of the last place of their mean. (Layers have
        1e-5 by default, as usual in nets; `layer_` has the eps of the transformer.)
    ddof : {0, 1}, default=0
        The variance is sum (x - mean)^2 / (count - ddof). With sample weights, count is their sum.
    affine : bool, default=True
        Whether there are gamma_ and beta_.
    copy : bool, default=True
        If False, `transform` and `inverse_transform` overwrite X if it is a float array.
    history : int or None, default=None
        How many records of the stream to keep in `history_`, at least 2, for `bnorm.plot.RunningStatsDisplay`. `fit`
        and `partial_fit` add one each. When there are too many, every second one is dropped, and from then on only
        every second batch is recorded. Pickles keep the record, clones begin a new one, and `merge` does not change it.
    exact : bool, default=False
        Whether to keep sums as integers, with ``momentum=None``. Then the fitted statistics do not depend, to the bit,
        on the order of the rows, on batches, chunks, threads or machines; `forget` takes rows out again, and `digest`
        is the same for the same rows. Sample weights must be integers. It works on the CPU only. Updates of `layer_`
        in training mode are undone by the next batch, and are not saved.

    Attributes
    ----------
    layer_ : BatchNorm1d
        The same state as a layer in inference mode. It shares its parameters and running statistics with the attributes
        below, so what a net learns there is used here at once, and vice versa.
    running_mean_, running_var_ : ndarray of shape (n_features,)
        Mean and variance. Assigned values are copied into them.
    gamma_, beta_ : ndarray of shape (n_features,), or None
        Scale and shift after standardization, 1 and 0 until they are learned or assigned. None without affine.
    gamma_grad_, beta_grad_ : ndarray of shape (n_features,), or None
        The gradients of the last `backward`.
    mean_, var_, scale_ : ndarray of shape (n_features,)
        Mean, variance and sqrt(variance + eps) under the names of StandardScaler, read-only; copies on a GPU.
    n_samples_seen_ : int, float or ndarray of shape (n_features,)
        The number of values seen, or the sum of their weights; one per feature if missing values made them differ. With
        a window, only those in it.
    n_batches_seen_ : int
        The number of calls of `partial_fit`; a `fit` counts as the first.
    history_ : Moment or None
        The number of rows, mean and variance at each recorded moment and now, as attributes rows, mean and var; and
        times, if rows have them.
    newest_time_ : numpy.datetime64, float or None
        The time of the newest row, a time stamp in UTC or seconds. None unless rows have times.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if the first table had names.

    Examples
    --------
    >>> import numpy as np
    >>> from bnorm import BatchNormTransformer
    >>> t = BatchNormTransformer(momentum=None)  # every row weighs the same, as in StandardScaler
    >>> for batch in np.array([[[0.0, 10.0], [2.0, 10.0]], [[4.0, 40.0], [6.0, 40.0]]]):
    ...     t = t.partial_fit(batch)
    >>> t.mean_, t.scale_
    (array([ 3., 25.]), array([ 2.23606798, 15.        ]))
    >>> t.transform([[3.0, 55.0]])
    array([[0., 2.]])
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012
        "momentum": [Interval(Real, 0, 1, closed="right"), None],
        "halflife": [*DURATION, Interval(Real, 0, np.inf, closed="neither"), None],
        "window": [*DURATION, Interval(Integral, 1, None, closed="left"), None],
        "eps": [Interval(Real, 0, np.inf, closed="left")],
        "ddof": [Options(Integral, {0, 1})],
        "affine": ["boolean"],
        "copy": ["boolean"],
        "history": [Interval(Integral, 2, None, closed="left"), None],
        "exact": ["boolean"],
    }

    def __init__(
        self,
        *,
        momentum: float | None = MOMENTUM,
        halflife: float | str | timedelta | np.timedelta64 | None = None,
        window: int | str | timedelta | np.timedelta64 | None = None,
        eps: float = 0.0,
        ddof: int = 0,
        affine: bool = True,
        copy: bool = True,
        history: int | None = None,
        exact: bool = False,
    ) -> None:
        self.momentum = momentum
        self.halflife = halflife
        self.window = window
        self.eps = eps
        self.ddof = ddof
        self.affine = affine
        self.copy = copy
        self.history = history
        self.exact = exact

    def fit(self, X: Any, y: None = None, sample_weight: Any = None, times: Any = None) -> Self:
        """Forget everything, gamma_ and beta_ included, and compute the exact statistics of X.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features), or an iterable of tables
            NaN is a missing value, and does not count. An iterable, such as a generator or a reader of record batches,
            is read once, in the memory of one table; it may have pairs (table, sample_weight).
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts: not negative, not all zero.
        times : array-like of shape (n_samples,), or str, default=None
            The time of each row, if halflife or window is a length of time: time stamps, with a zone or without, or
            numbers of seconds; or the name of the column of X that has them, which then is no feature, here and in all
            later calls.

        Returns
        -------
        self : BatchNormTransformer
        """
        if not is_iterable(X):
            return self._begin(X, sample_weight, times, whole=True)
        found, weighted, like = iterables.known(self, X, sample_weight, times)
        self._begin(found, weighted, times, whole=True)
        remember(self, like)
        return self

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None, times: Any = None) -> Self:
        """Update the statistics by one batch of the stream.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features), or an iterable of tables
            NaN is a missing value, and does not count. Of an iterable every table is a batch; after an error none is.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts: not negative, not all zero. With a half-life, a row makes earlier rows older
            whatever its weight.
        times : array-like of shape (n_samples,), or str, default=None
            As in `fit`; of the same kind in the whole stream. Rows may come in any order.

        Returns
        -------
        self : BatchNormTransformer
        """
        if is_iterable(X):
            iterables.learn(self, X, sample_weight, times)
            return self
        return self._move(X, sample_weight, times)

    def _move(self, X: Any, sample_weight: Any, times: Any, some: bool = True) -> Self:
        """`partial_fit` of one table. some: refuse a batch in which no row has weight; otherwise only time goes on."""
        if "_state" not in self.__dict__:
            return self._begin(X, sample_weight, times, whole=False, some=some)
        changed = parameters.changed(self)
        X, times, column = separated(WHO, X, times)
        state, x = self._state, self._table(X)
        when = self._times(x, times, column)
        weight = None if sample_weight is None else x.weights(sample_weight, some)
        if x.rows == 1:
            self._tell_of_single_rows(state)
        if changed:
            with state.following(self):
                state.move(x, weight, when)
            state.followed = parameters.settings(self)
        else:
            state.move(x, weight, when)
        return self

    def transform(self, X: Any, copy: bool | None = None) -> ndarray | Any:
        """Compute (X - mean_) / scale_ * gamma_ + beta_.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            NaN stays NaN.
        copy : bool, default=None
            Overrides the parameter copy.

        Returns
        -------
        Y : ndarray or DataFrame of shape (n_samples, n_features)
            Lazy if X is a Dask collection; statistics that are learned later do not change it.
        """
        self._check_fitted()
        in_place = not (self.copy if copy is None else copy)
        x = self._table(X, in_place)
        refuse_container(self, x)
        return x.mapped(self._state.forward(), in_place)

    def inverse_transform(self, X: Any, copy: bool | None = None) -> ndarray | Any:
        """Undo `transform`: (X - beta_) / gamma_ * scale_ + mean_.

        Where gamma_ is 0 the original is lost, and the result is the mean.

        Parameters
        ----------
        X : array-like, Dask array or DataFrame of shape (n_samples, n_features)
            NaN stays NaN. Columns are read by position; features in another order than in fit are an error.
        copy : bool, default=None
            Overrides the parameter copy.

        Returns
        -------
        X_original : ndarray or DataFrame of shape (n_samples, n_features)
            A DataFrame if X is a table and `set_output` asks `transform` for one; lazy if X is.
        """
        self._check_fitted()
        in_place = not (self.copy if copy is None else copy)
        side = self._state.array_type
        if plain(X, side, in_place, False):
            rows: Table = Dense(X)
        elif plain(x := arrow.dense(WHO, X := without(X, self._state.column)), side, in_place, False):
            rows = Dense(x)
        else:
            rows = table_of(partial(check_array, estimator=self, input_name="X"), x, side, in_place, False)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input."
            )
        check_order(self, X, "X")
        refuse_container(self, rows)
        y = rows.mapped(maps.inverse(self._state.forward(), rows.dtype), in_place)
        return like_given(y, X, self)

    def merge(self, other: "BatchNormTransformer") -> Self:
        """Merge the statistics that another transformer has learned. gamma_ and beta_ do not change.

        With momentum=None the result is that of all rows together. With a halflife in rows, both streams are taken to
        end now, and the weights of their rows add. If rows have times, both sides age to the later one, and the result
        is that of all rows in one stream, of a window too. A moving average depends on the order of its batches, and a
        window of rows on that of its rows: they cannot be merged.

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
        for t in (self, other):
            t._check_fitted()
            t._check_parameters()
        check_mergeable(self, other)
        with self._state.following(self):
            self._state.merge(other._state.continued(other))
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # scikit-learn's HTML shows it too
        return parameters.shown(self, super().__repr__(N_CHAR_MAX))

    def _begin(self, X: Any, sample_weight: Any, times: Any, whole: bool, some: bool = True) -> Self:
        """A new state from X. Nothing is assigned until all of it has succeeded. some: as in `_move`."""
        parameters.check(self)
        X, times, column = separated(WHO, X, times)
        x, names = new_table(self, X)
        when = self._times(x, times, column)
        weight = None if sample_weight is None else x.weights(sample_weight, some)
        state = State(x, {name: getattr(self, name) for name in IN_STATE})
        if whole:
            state.begin(x, weight, when)
        else:
            if x.rows == 1:
                self._tell_of_single_rows(state)
            state.move(x, weight, when)
        fitted = {"_state": state, "n_features_in_": x.shape[1]}
        fitted |= {} if names is None else {"feature_names_in_": names}
        old = [(self.__dict__.pop, name, None) for name in ("feature_names_in_", "gamma_grad_", "beta_grad_")]
        at_once([*old, (self.__dict__.update, fitted)])
        return self

    def _table(self, X: Any, writeable: bool = False) -> Table:
        """X as a table of floats with the right features, on the device of the layer."""
        return next_table(self, X, self._state.array_type, self._state.column, writeable)

    def _times(self, x: Table, times: Any, column: str | None) -> Times | None:
        """The times of the rows, checked; None if the stream has none."""
        name = "halflife" if self.window is None else "window"
        given = f"{name}={getattr(self, name)!r}"
        if not isinstance(x, Dense) and (self.window is not None or times is not None):
            got = f"a {x.engine.NAME} collection" if isinstance(x, Blocks) else "the sums of one that is not"
            raise TypeError(f"{WHO}: X: expected a table in memory with {given}, got {got}")
        return of_rows(WHO, name, getattr(self, name), times, x.rows, column)

    def _check_parameters(self) -> None:
        parameters.check(self)
        parameters.check_same_stream(self)

    def _tell_of_single_rows(self, state: State) -> None:
        if state.statistics.mode == AVERAGE and not state.told:
            warnings.warn(
                f"{WHO}: a batch of one row has no variance, so 0 enters the average with momentum={self.momentum}; "
                "for such a stream use momentum=None, which weighs all rows the same, or halflife=",
                stacklevel=user_level(),
            )
            state.told = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        return tags
