"""The estimator of groups: one set of statistics for each key, in one pass over a table."""

from numbers import Real
from typing import Any, Self

import numpy as np
from numpy import ndarray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from bnorm.kernels.engines import engine_of
from bnorm.moments import Moments
from bnorm.running import TooLarge
from bnorm.transformer import group_blocks, tables
from bnorm.transformer.group_saving import Savable
from bnorm.transformer.group_tables import WHO, Named, Split, check_mergeable, key_names, split
from bnorm.transformer.groups import Batch, Groups, batch_of, mapped
from bnorm.transformer.keys import Keys, read
from bnorm.transformer.sklearn_private import Interval, Options, check_feature_names_in, in_container


class GroupedTransformer(
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
        The columns that hold the keys: names of a data frame's columns, or positions. Keys are strings, numbers, bools,
        dates or categories. They are no features.
    unseen : {"global", "nan", "error"}, default="global"
        What `transform` does with a row whose key is missing or was never seen: use the statistics of all rows, return
        NaN, or raise ValueError. With "global" this also goes for a feature that had no value yet in a group; otherwise
        it is NaN.
    prior : float, default=0.0
        So many values of all rows count in the statistics of each group beside its own: exactly what merging them
        gives. So a group of three rows is not scaled by three rows. 0 leaves each group to itself; then a group of one
        row, or of equal values, has scale 1.
    keep_keys : bool, default=False
        Whether the result has the columns of keys too, unchanged, where they were.
    momentum : float or None, default=None
        As in `BatchNormTransformer`: the weight of a group's new batch in a moving average. None: all rows weigh the
        same, however they were cut into batches.
    halflife : float or None, default=None
        The number of rows of the same group after which the weight of a row has halved; for the statistics of all rows,
        the number of any rows. momentum must be None.
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
        Count, mean and m2 of all rows, those without a key included. With a half-life, their weights; with a moving
        average, its mean and variance, and the number of values seen.
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
        "halflife": [Interval(Real, 0, np.inf, closed="neither"), None],
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
        halflife: float | None = None,
        eps: float = 0.0,
    ) -> None:
        self.by = by
        self.unseen = unseen
        self.prior = prior
        self.keep_keys = keep_keys
        self.momentum = momentum
        self.halflife = halflife
        self.eps = eps

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Forget everything, and compute the exact statistics of each group of X.

        Parameters
        ----------
        X : array-like, data frame or Dask DataFrame of shape (n_samples, n_features_in)
            Its features and its keys. NaN in a feature is a missing value, and does not count.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts: not negative, not all zero.

        Returns
        -------
        self : GroupedTransformer
        """
        self._begin(X, sample_weight, whole=True)
        return self

    def fit_transform(self, X: Any, y: None = None, sample_weight: Any = None) -> Any:
        """`fit`, and `transform` of the same rows, whose keys are read once.

        Parameters
        ----------
        X : array-like, data frame or Dask DataFrame of shape (n_samples, n_features_in)
            Its features and its keys.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts in the statistics: not negative, not all zero.

        Returns
        -------
        Y : ndarray or data frame of shape (n_samples, n_features)
            The features only; with keep_keys all columns.
        """
        table, keys = self._begin(X, sample_weight, whole=True)
        return self._result(X, table, keys)

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Update the statistics by one batch of the stream: those of the groups that have rows in it, and the whole.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features_in)
            Its features and its keys, some of which may be new.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each row counts: not negative, not all zero.

        Returns
        -------
        self : GroupedTransformer
        """
        if "_groups" not in self.__dict__:
            self._begin(X, sample_weight, whole=False)
            return self
        self._check_parameters()
        table = split(self, group_blocks.sample(WHO, X), reset=False)
        batch = self._batch(X, table, sample_weight, self.halflife)
        self._learned(self._groups.move, batch, table)
        return self

    def transform(self, X: Any) -> ndarray | Any:
        """Standardize each row by the statistics of its group.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features_in)

        Returns
        -------
        Y : ndarray or data frame of shape (n_samples, n_features)
            The features only; with keep_keys all columns.
        """
        self._check_fitted()
        table = split(self, group_blocks.sample(WHO, X), reset=False)
        return self._result(X, table, None if table.given is not X else read(WHO, table.keys))

    def inverse_transform(self, X: Any, keys: Any = None) -> ndarray | Any:
        """Undo `transform`: X sqrt(var + eps) + mean of each row's group.

        Parameters
        ----------
        X : array-like or data frame
            Features as `transform` returns them, with the columns of keys where they were; or without these columns,
            and then the keys are given.
        keys : array-like or data frame of shape (n_samples,) or (n_samples, n_keys), default=None
            The keys of the rows, if X does not have them.

        Returns
        -------
        X_original : ndarray or data frame of shape (n_samples, n_features)
            The features; with keep_keys, and keys in X, all columns. A data frame if `set_output` asks `transform` for
            one.
        """
        self._check_fitted()
        width = getattr(X, "shape", (0, 0))[-1]
        if keys is None and width == self._groups.channels != self.n_features_in_:
            raise ValueError(
                f"{WHO}: inverse_transform: keys: expected the keys of the rows, as X has features only, got None"
            )
        table = split(self, X, reset=False, keys=keys)
        x = self._mapped(table, read(WHO, table.keys), inverse=True)
        if self.keep_keys and keys is None:
            return table.with_keys(self, x)
        return in_container("transform", x, X, Named(self, table.names))

    def merge(self, other: "GroupedTransformer") -> Self:
        """Unite with the groups that another transformer has learned, by their keys.

        With momentum=None the result is that of all rows together. With a halflife, both streams are taken to end now.
        A moving average depends on the order of its batches, and cannot be merged.

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
        check_mergeable(self, other)
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
            The names of all columns; by default those of the first table, or x0, x1, ...

        Returns
        -------
        names : ndarray of str
        """
        self._check_fitted()
        names = check_feature_names_in(self, input_features)
        kept = range(len(names)) if self.keep_keys else [j for j in range(len(names)) if j not in self._places]
        return np.asarray(names, object)[list(kept)]

    @property
    def groups_(self) -> ndarray:
        """The keys in the order of their appearance."""
        return self._groups.index.array()

    @property
    def counts_(self) -> ndarray:
        """The number of values seen in each group, or the sum of their weights."""
        seen = self._groups.row("seen")
        return seen.copy() if self._groups.weighted else seen.astype(np.int64)

    @property
    def means_(self) -> ndarray:
        """The mean of each group."""
        return self._groups.known(np.arange(len(self._groups)), 0.0)[0]

    @property
    def vars_(self) -> ndarray:
        """The variance of each group."""
        return self._groups.known(np.arange(len(self._groups)), 0.0)[1]

    @property
    def whole_(self) -> Moments:
        """Count, mean and m2 of all rows."""
        return self._groups.moments()

    @property
    def key_places_(self) -> list[int]:
        """The positions of the columns that hold the keys."""
        return list(self._places)

    @property
    def n_batches_seen_(self) -> int:
        """The number of batches in the stream; a fit counts as the first."""
        return self._groups.batches

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_") and "_groups" not in self.__dict__:
            raise NotFittedError(f"This {WHO} instance is not fitted yet: {name} exists after fit or partial_fit")
        if name == "_groups":
            raise AttributeError("not fitted")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _begin(self, X: Any, sample_weight: Any, whole: bool) -> tuple[Split, Keys]:
        """New groups from X, whose parts and keys are returned. Nothing is assigned until all of it has succeeded."""
        self._check_parameters(new=True)
        found = object.__new__(type(self))  # scikit-learn sets attributes on this copy, as X may still be refused
        found.__dict__.update(self.__dict__)
        table = split(found, group_blocks.sample(WHO, X), reset=True)
        batch = self._batch(X, table, sample_weight, None if whole else self.halflife)
        groups = Groups(len(table.places), table.features.shape[1], self.momentum, self.halflife)
        self._learned(groups.begin if whole else groups.move, batch, table)
        self.__dict__.pop("feature_names_in_", None)
        for name in ("feature_names_in_", "n_features_in_"):
            if name in found.__dict__:
                setattr(self, name, found.__dict__[name])
        self._groups, self._places = groups, table.places
        return table, batch.keys

    def _batch(self, X: Any, table: Split, sample_weight: Any, halflife: float | None) -> Batch:
        if engine_of(X) is not None:
            return group_blocks.batch_of(WHO, self, X, sample_weight)
        weight = None if sample_weight is None else table.features.weights(sample_weight)
        return batch_of(read(WHO, table.keys), table.features, weight, halflife, count=self.halflife is not None)

    def _read(self, X: Any, sample_weight: Any) -> Batch:
        """What a table says, whose rows all weigh the same; nothing is learned."""
        return self._batch(X, split(clone(self), X, reset=True), sample_weight, None)

    def _learned(self, learn: Any, batch: Batch, table: Split) -> None:
        try:
            learn(WHO, batch, [name for name, _ in table.keys])
        except TooLarge as error:
            of_group = TooLarge(error.channel % table.features.shape[1], error.weights)
            raise tables.too_large(table.features, of_group) from None
        except FloatingPointError:
            raise tables.infinite(table.features) from None

    def _result(self, X: Any, table: Split, keys: Keys | None) -> Any:
        """What `transform` returns of a table with these keys, or of a lazy one."""
        if keys is None or table.given is not X:
            return group_blocks.mapped(self, X)
        y = self._mapped(table, keys, inverse=False)
        return table.with_keys(self, y) if self.keep_keys else y

    def _mapped(self, table: Split, keys: Keys, inverse: bool) -> ndarray:
        """The features of a table, mapped or mapped back."""
        groups, names = self._groups, [name for name, _ in table.keys]
        at, codes = groups.places(WHO, keys, names, self.unseen == "error")
        numbers = groups.numbers(at, float(self.prior), self.unseen == "global", float(self.eps), inverse)
        return mapped(table.features, codes, numbers)

    def _check_parameters(self, new: bool = False) -> None:
        self._validate_params()
        if self.halflife is not None and self.momentum is not None:
            raise ValueError(
                f"{WHO}: momentum: expected None beside halflife={self.halflife}, as each is a way to forget, got "
                f"{self.momentum}"
            )
        if new:
            return
        groups = self._groups
        began = (groups.momentum, groups.halflife)
        if (self.momentum, self.halflife) != began:
            raise ValueError(
                f"{WHO}: expected momentum={began[0]}, halflife={began[1]}, as this stream began, got "
                f"momentum={self.momentum}, halflife={self.halflife}; fit begins anew"
            )

    def _check_fitted(self) -> None:
        if "_groups" not in self.__dict__:
            check_is_fitted(self)  # raises scikit-learn's error

    def __sklearn_is_fitted__(self) -> bool:
        return "_groups" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32", "float16"]
        return tags
