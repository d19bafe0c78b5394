"""The estimator of groups: one set of statistics for each key, in one pass over a table."""

from datetime import timedelta
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy import ndarray
from sklearn.base import BaseEstimator, TransformerMixin, clone

from bnorm.kernels.engines import engine_of
from bnorm.running import TooLarge
from bnorm.transformer import group_blocks, group_parameters, tables
from bnorm.transformer.durations import DURATION, is_duration
from bnorm.transformer.fitted import at_once, restored_after_errors, ticks
from bnorm.transformer.group_attributes import Attributes
from bnorm.transformer.group_batches import Batch, batch_of, mapped
from bnorm.transformer.group_saving import Savable
from bnorm.transformer.group_tables import WHO, Named, Split, check_places, key_names, split
from bnorm.transformer.groups import Groups
from bnorm.transformer.keys import Keys, read
from bnorm.transformer.sklearn_private import Interval, Options, check_feature_names_in
from bnorm.transformer.times import features_of, of_rows, separated, without
from bnorm.transformer.validation import aside, has_columns, like_given


class GroupedTransformer(
    Attributes,
    Savable,
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Standardize features by the statistics of each row's group: its store, patient, device or ticker.

    y = (x - mean) / sqrt(var + eps) with mean and variance of the rows that have the same key, as if each group had a
    `BatchNormTransformer` of its own. All groups are computed in one compiled pass. New groups may appear at any time
    of a stream, and streams are merged by their keys.

    Parameters
    ----------
    by : str, int, or list of them
        The columns that hold the keys: names of a data frame's columns, or positions, in which a column of times does
        not count. Keys are strings, numbers, bools, dates or categories. They are not features.
    unseen : {"global", "nan", "error"}, default="global"
        What `transform` does with a row whose key is missing or was never seen: use the statistics of all rows, return
        NaN, or raise ValueError. "global" also applies to a feature that has no value yet in a group; otherwise it is
        NaN, unless there is a prior.
    prior : float, default=0.0
        How many values with the mean and variance of all rows are merged into the statistics of each group, so that a
        group of three rows is not scaled by these alone. With 0 each group has only its own values; then a group of one
        row, or of equal values, has scale 1.
    keep_keys : bool, default=False
        Whether the result has the columns of keys too, unchanged and in their place.
    momentum : float or None, default=None
        As in `BatchNormTransformer`: the weight of a group's new batch in a moving average. None: all rows weigh the
        same, however they were cut into batches.
    halflife : float, str, timedelta or None, default=None
        The number of rows of the same group after which the weight of a row has halved; for the statistics of all rows,
        the number of any rows. Or the time, as in `BatchNormTransformer`, such as "10min": then rows fade by their
        `times`, in `fit` too, and all ages count from the newest row of any group. momentum must be None.
    eps : float, default=0.0
        Added to the variance, inside the root.

    Attributes
    ----------
    groups_ : ndarray of shape (n_groups,)
        The keys in the order of their appearance. With several columns each is a tuple. Times are in microseconds, UTC.
    counts_ : ndarray of shape (n_groups, n_features)
        The number of values seen in each group, or the sum of their weights.
    means_, vars_ : ndarray of shape (n_groups, n_features)
        Mean and variance of each group, without prior; NaN where there was no value.
    whole_ : Moments
        Count, mean and m2 of all rows, those without a key included. With a half-life, the count is what is left of
        their weights now; with a moving average, the number of values seen, beside its mean and variance.
    newest_time_ : numpy.datetime64, float or None
        The time of the newest row, a time stamp in UTC or seconds. None unless rows have times.
    key_places_ : list of int
        The positions of the columns that hold the keys.
    n_batches_seen_ : int
        The number of calls of `partial_fit`; a `fit` counts as the first.
    n_features_in_ : int
        The number of columns, those of keys included.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if the first table had names.

    Notes
    -----
    A group takes 32 bytes for each feature (56 with a half-life, 40 in a moving average) and its key, about 100 bytes.
    `fit` of G groups and C features takes 56 G C bytes more while it runs. NaN is a missing value: it does not count,
    and stays NaN. Infinity is an error. Statistics are float64; results have the type of the features, float64 if they
    are integers. It works on the CPU.

    Examples
    --------
    >>> from bnorm import GroupedTransformer
    >>> t = GroupedTransformer(by=0).fit([[1, 10.0], [1, 30.0], [2, 500.0], [2, 700.0]])
    >>> t.groups_, t.means_
    (array([1, 2]), array([[ 20.],
           [600.]]))
    >>> t.transform([[2, 600.0], [1, 30.0], [3, 310.0]])  # nobody has seen group 3
    array([[0.],
           [1.],
           [0.]])
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012
        "by": [str, int, np.integer, list, tuple],
        "unseen": [Options(str, {"global", "nan", "error"})],
        "prior": [Interval(Real, 0, np.inf, closed="left")],
        "keep_keys": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="right"), None],
        "halflife": [*DURATION, Interval(Real, 0, np.inf, closed="neither"), None],
        "eps": [Interval(Real, 0, np.inf, closed="left")],
    }

    _groups: Groups

    def __init__(
        self,
        by: Any,
        *,
        unseen: str = "global",
        prior: float = 0.0,
        keep_keys: bool = False,
        momentum: float | None = None,
        halflife: float | str | timedelta | np.timedelta64 | None = None,
        eps: float = 0.0,
    ) -> None:
        self.by = by
        self.unseen = unseen
        self.prior = prior
        self.keep_keys = keep_keys
        self.momentum = momentum
        self.halflife = halflife
        self.eps = eps

    def fit(self, X: Any, y: None = None, sample_weight: Any = None, times: Any = None) -> Self:
        """Forget everything, and compute the exact statistics of each group of X.

        Parameters
        ----------
        X : array-like, data frame or Dask DataFrame of shape (n_samples, n_features_in)
            Its features and its keys. NaN in a feature is a missing value, and does not count.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts: not negative, not all zero.
        times : array-like of shape (n_samples,), or str, default=None
            The time of each row, if halflife is a length of time: time stamps, with a zone or without, or numbers of
            seconds; or the name of the column of X that has them, which is no feature, here and in all later calls.

        Returns
        -------
        self : GroupedTransformer
        """
        self._begin(X, sample_weight, times, whole=True)
        return self

    def fit_transform(self, X: Any, y: None = None, sample_weight: Any = None, times: Any = None) -> ndarray | Any:
        """`fit`, and `transform` of the same rows, whose keys are read once.

        Parameters
        ----------
        X : array-like, data frame or Dask DataFrame of shape (n_samples, n_features_in)
            Its features and its keys.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts in the statistics: not negative, not all zero.
        times : array-like of shape (n_samples,), or str, default=None
            As in `fit`.

        Returns
        -------
        Y : ndarray or data frame of shape (n_samples, n_features)
            The features only; with keep_keys all columns.
        """
        with restored_after_errors(self):  # with unseen="error", rows without a key can be learned, but not transformed
            table, keys = self._begin(X, sample_weight, times, whole=True)
            return self._result(X, table, keys)

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None, times: Any = None) -> Self:
        """Update the statistics by one batch of the stream: those of the groups that have rows in it, and the whole.

        Parameters
        ----------
        X : array-like, data frame or Dask DataFrame of shape (n_samples, n_features_in)
            Its features and its keys, some of which may be new.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts: not negative, not all zero.
        times : array-like of shape (n_samples,), or str, default=None
            As in `fit`; of the same kind in the whole stream. Rows may come in any order.

        Returns
        -------
        self : GroupedTransformer
        """
        return self._move(X, sample_weight, times)

    def _move(self, X: Any, sample_weight: Any, times: Any, some: bool = True) -> Self:
        """`partial_fit`. some: refuse a batch in which no row has weight; otherwise only its keys are learned."""
        if "_groups" not in self.__dict__:
            self._begin(X, sample_weight, times, whole=False, some=some)
            return self
        self._check_parameters()
        rest, when, column = separated(WHO, group_blocks.sample(X), times)
        table = split(self, without(rest, self._column), reset=False)
        batch = self._batch(X, table, sample_weight, times, (when, column), self._groups.halflife, some)
        self._learned(self._groups.move, batch, table)
        return self

    def transform(self, X: Any) -> ndarray | Any:
        """Standardize each row by the statistics of its group.

        Parameters
        ----------
        X : array-like, data frame or Dask DataFrame of shape (n_samples, n_features_in)
            Its features and its keys.

        Returns
        -------
        Y : ndarray or data frame of shape (n_samples, n_features)
            The features only; with keep_keys all columns. Lazy if X is.
        """
        self._check_fitted()
        table = split(self, without(group_blocks.sample(X), self._column), reset=False)
        return self._result(X, table, None if engine_of(X) is not None else read(WHO, table.keys))

    def inverse_transform(self, X: Any, keys: Any = None) -> ndarray | Any:
        """Undo `transform`: X sqrt(var + eps) + mean of each row's group.

        Parameters
        ----------
        X : array-like or data frame
            Features as `transform` returns them, with the columns of keys where they were; or without these columns,
            and then the keys are given.
        keys : array-like or data frame of shape (n_samples,) or (n_samples, n_keys), default=None
            The keys of the rows, if X does not have them. Columns of a data frame are taken by name, if fit knew names.

        Returns
        -------
        X_original : ndarray or data frame of shape (n_samples, n_features)
            The features; with keep_keys, and keys in X, all columns. A data frame if X is a table and `set_output` asks
            `transform` for one.
        """
        self._check_fitted()
        X = without(X, self._column)
        width = (getattr(X, "shape", None) or (0,))[-1]
        if keys is None and width == self._groups.channels != self.n_features_in_:
            raise ValueError(
                f"{WHO}: inverse_transform: keys: expected the keys of the rows, as X has features only, got None"
            )
        table = split(self, X, reset=False, keys=keys)
        x = self._mapped(table, read(WHO, table.keys), inverse=True)
        if self.keep_keys and keys is None:
            return table.with_keys(self, x, has_columns(X))
        known = self.__dict__.get("feature_names_in_")
        names = table.names if known is None or table.names is not None else np.delete(known, self._places)
        return like_given(x, X, Named(self, names))

    def merge(self, other: "GroupedTransformer") -> Self:
        """Unite with the groups that another transformer has learned, by their keys.

        With momentum=None the result is that of all rows together. With a halflife in rows, both streams are taken to
        end now; if rows have times, both age to the later one. A moving average depends on the order of its batches,
        and cannot be merged.

        Parameters
        ----------
        other : GroupedTransformer
            Fitted on the same columns, with the same `by` and halflife. It is not changed.

        Returns
        -------
        self : GroupedTransformer
        """
        if not isinstance(other, GroupedTransformer):
            raise TypeError(f"{WHO}: merge: expected a {WHO}, got {type(other).__name__}")
        for t in (self, other):
            t._check_fitted()
            t._check_parameters()
        if reason := group_parameters.apart(self._stored(), other._stored(), "here"):
            raise ValueError(f"{WHO}: merge: {reason}")
        try:
            self._groups.merge(f"{WHO}: merge", other._groups, key_names(self))
        except FloatingPointError as error:
            raise ValueError(f"{WHO}: merge: expected statistics that float64 can hold together: {error}") from None
        return self

    def get_feature_names_out(self, input_features: Any = None) -> ndarray:
        """The names of the columns of a result: those of the features, and with keep_keys those of the keys.

        Parameters
        ----------
        input_features : array-like of str, default=None
            The names of all columns, with that of the times or without; by default those of the first table, or x0,
            x1, ...

        Returns
        -------
        names : ndarray of str
        """
        self._check_fitted()
        names = check_feature_names_in(self, features_of(input_features, self._column))
        kept = range(len(names)) if self.keep_keys else [j for j in range(len(names)) if j not in self._places]
        return np.asarray(names, object)[list(kept)]

    def _begin(self, X: Any, sample_weight: Any, times: Any, whole: bool, some: bool = True) -> tuple[Split, Keys]:
        """Start new groups from X. Return its parts and keys. Nothing is assigned until everything has succeeded."""
        group_parameters.check(self)
        found = aside(self)
        rest, when, column = separated(WHO, group_blocks.sample(X), times)
        table = split(found, rest, reset=True)
        groups = Groups(len(table.places), table.features.shape[1], self.momentum, self.halflife)
        fades = not whole or is_duration(self.halflife)
        batch = self._batch(X, table, sample_weight, times, (when, column), groups.halflife if fades else None, some)
        self._learned(groups.begin if whole else groups.move, batch, table)
        names = [name for name in ("feature_names_in_", "n_features_in_") if name in found.__dict__]
        fitted = {name: found.__dict__[name] for name in names} | {"_groups": groups, "_places": table.places}
        at_once([(self.__dict__.pop, "feature_names_in_", None), (self.__dict__.update, fitted)])
        return table, batch.keys

    def _batch(
        self,
        X: Any,
        table: Split,
        sample_weight: Any,
        times: Any,
        when: tuple[Any, str | None],
        halflife: float | None,
        some: bool = True,
    ) -> Batch:
        """Return the batch of X. when: the times of its rows, and the name of their column. some: as in `_move`."""
        if engine_of(X) is not None:
            return group_blocks.batch_of(self, X, sample_weight, times)
        read_times = of_rows(WHO, "halflife", self.halflife, when[0], table.features.rows, when[1])
        weight = None if sample_weight is None else table.features.weights(sample_weight, some)
        count = self.halflife is not None and read_times is None
        return batch_of(read(WHO, table.keys), table.features, weight, halflife, read_times, count)

    def _read(self, X: Any, sample_weight: Any, times: Any) -> Batch:
        """Return the batch of a part of a table, whose rows weigh the same unless they have times. Learn nothing."""
        rest, when, column = separated(WHO, X, times)
        table = split(clone(self), rest, reset=True)
        halflife = ticks(self.halflife) if is_duration(self.halflife) else None
        return self._batch(X, table, sample_weight, times, (when, column), halflife, some=False)

    def _learned(self, learn: Any, batch: Batch, table: Split) -> None:
        try:
            learn(WHO, batch, [name for name, _ in table.keys])
        except TooLarge as error:
            of_group = TooLarge(error.channel % table.features.shape[1], error.weights)
            raise tables.too_large(table.features, of_group) from None
        except FloatingPointError:
            raise tables.infinite(table.features) from None

    @property
    def _column(self) -> str | None:
        """The name of the column of times, which is not a feature."""
        return None if self._groups.zero is None else self._groups.zero.column

    def _result(self, X: Any, table: Split, keys: Keys | None) -> Any:
        """What `transform` returns for a table with these keys, or for a lazy one."""
        if keys is None or engine_of(X) is not None:
            return group_blocks.mapped(self, X, table)
        y = self._mapped(table, keys, inverse=False)
        return table.with_keys(self, y) if self.keep_keys else y

    def _mapped(self, table: Split, keys: Keys, inverse: bool) -> ndarray:
        """Return the features of a table, transformed or, with `inverse`, transformed back."""
        groups, names = self._groups, [name for name, _ in table.keys]
        at, codes = groups.places(WHO, keys, names, self.unseen == "error")
        numbers = groups.numbers(at, float(self.prior), self.unseen == "global", float(self.eps), inverse)
        return mapped(table.features, codes, numbers)

    def _check_parameters(self) -> None:
        group_parameters.check(self)
        group_parameters.check_same_stream(self)
        check_places(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags
