"""The fitted attributes of the transformer: views of its state."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

import numpy as np
from numpy import ndarray
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from bnorm.files import container
from bnorm.kernels import BACKENDS
from bnorm.layers import BatchNorm1d
from bnorm.transformer.array_api import LIKE, follow
from bnorm.transformer.history import AnyMoment, TimedMoment, moment
from bnorm.transformer.state import State
from bnorm.transformer.times import features_of, stamps


class Fitting:
    """The base of both transformers. Before fit, fitted attributes raise NotFittedError, which is an AttributeError.

    A shallow copy has statistics of its own, like a copy of a layer: two streams that update one state would be a trap.
    """

    _WHO: ClassVar[str]  # in messages
    _LEARNED: ClassVar[str]  # the attribute that has what was learned
    _check_parameters: Callable[[], None]
    _packed: Callable[[], tuple[container.Config, dict[str, ndarray]]]  # the content of the file; ValueError if invalid

    def save(self, path: Any) -> None:
        """Write the parameters and the fitted state to a file, which `bnorm.load` and the command `bnorm` read.

        A loaded transformer continues its stream exactly as this one would. Gradients and the device are not saved: a
        loaded transformer is on the CPU.

        Parameters
        ----------
        path : str or path-like
            A name that ends in .safetensors or .npz. An existing file is replaced.
        """
        self._check_fitted()
        self._check_parameters()
        with self._following():
            try:
                content = self._packed()
            except ValueError as error:
                raise ValueError(f"{self._WHO}: save: {error}") from None
            container.write(f"{self._WHO}: save", path, *content)

    def _following(self) -> AbstractContextManager[object]:
        """Return a block in which parameters that were set meanwhile apply; after it too, unless it raises an error."""
        return nullcontext()

    @property
    def newest_time_(self) -> Any:
        """The time of the newest row, a time stamp (in UTC) or seconds. None unless rows have times."""
        learned = getattr(self, self._LEARNED)
        return None if learned.zero is None else stamps(learned.newest, learned.zero.kind)[()]

    def _known_names(self) -> list[Any] | None:
        """Return the names of the columns of the first table, or None."""
        names = self.__dict__.get("feature_names_in_")
        return None if names is None else list(names)

    def _check_fitted(self) -> None:
        if self._LEARNED not in self.__dict__:
            check_is_fitted(self)  # raises scikit-learn's error

    def __sklearn_is_fitted__(self) -> bool:
        return self._LEARNED in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32", "float16"]
        return tags

    def __getattr__(self, name: str) -> Any:
        who = type(self).__name__
        if name.endswith("_") and not name.startswith("_") and not self.__sklearn_is_fitted__():
            raise NotFittedError(f"This {who} instance is not fitted yet: {name} exists after fit or partial_fit")
        raise AttributeError(f"{who!r} object has no attribute {name!r}")

    def __copy__(self) -> Self:
        return copy.deepcopy(self)


class Attributes(Fitting):
    """The fitted attributes of `BatchNormTransformer`. Most can be assigned to."""

    _WHO, _LEARNED = "BatchNormTransformer", "_state"

    _state: State

    def _following(self) -> AbstractContextManager[object]:
        return self._state.following(self)

    def get_feature_names_out(self, input_features: Any = None) -> ndarray:
        """The names of the columns of a result: those of the features.

        Parameters
        ----------
        input_features : array-like of str, default=None
            The names of the features, with that of the column of times or without; by default those of the first table,
            or x0, x1, ...

        Returns
        -------
        names : ndarray of str
        """
        self._check_fitted()
        names: ndarray = super().get_feature_names_out(features_of(input_features, self._state.column))  # type: ignore[misc]
        return names

    @property
    def layer_(self) -> BatchNorm1d:
        """The same state as a layer in inference mode."""
        return self._state.layer

    @property
    def running_mean_(self) -> ndarray:
        """The mean of each feature. Assigned values are copied into it."""
        return follow(self, self._state.mean)  # type: ignore[no-any-return]

    @running_mean_.setter
    def running_mean_(self, value: Any) -> None:
        self.layer_.running_mean = value

    @property
    def running_var_(self) -> ndarray:
        """The variance of each feature. Assigned values are copied into it."""
        return follow(self, self._state.var)  # type: ignore[no-any-return]

    @running_var_.setter
    def running_var_(self, value: Any) -> None:
        self.layer_.running_var = value

    @property
    def gamma_(self) -> ndarray | None:
        """The scale after standardization. Assigned values are copied into it. None without affine."""
        gamma = self.layer_.gamma
        return None if gamma is None else follow(self, gamma.data)

    @gamma_.setter
    def gamma_(self, value: Any) -> None:
        self.layer_.gamma = value

    @property
    def beta_(self) -> ndarray | None:
        """The shift after standardization. Assigned values are copied into it. None without affine."""
        beta = self.layer_.beta
        return None if beta is None else follow(self, beta.data)

    @beta_.setter
    def beta_(self, value: Any) -> None:
        self.layer_.beta = value

    @property
    def mean_(self) -> ndarray:
        """The mean of each feature, read-only."""
        return self._read_only(self._state.mean)

    @property
    def var_(self) -> ndarray:
        """The variance of each feature, read-only."""
        return self._read_only(self._state.var)

    @property
    def scale_(self) -> ndarray:
        """sqrt(variance + eps) of each feature, or 1 if it is constant and eps is 0, read-only."""
        return self._read_only(self._state.std())

    @property
    def n_samples_seen_(self) -> np.int64 | np.float64 | ndarray:
        """The number of values seen, or the sum of their weights; a scalar if it is the same for all features."""
        state = self._state
        values = state.statistics.seen if state.weighted else state.statistics.seen.astype(np.int64)
        least, most = BACKENDS[type(values)].numbers(values.min(), values.max())
        return follow(self, values.dtype.type(least) if least == most else values.copy())  # type: ignore[no-any-return]

    @property
    def n_batches_seen_(self) -> int:
        """The number of batches in the stream; a fit counts as the first."""
        return self._state.statistics.batches

    @property
    def history_(self) -> AnyMoment | None:
        """The record of the stream and its present state: rows, mean and var, NumPy arrays. None without `history`.

        If rows have times, `times` are those of the newest row at each moment.
        """
        state = self._state
        if state.history is None:
            return None
        record = state.history.until(moment(state.statistics, state.newest))
        if isinstance(record, TimedMoment) and state.zero is not None:
            record = record._replace(times=stamps(record.times, state.zero.kind))
        return record

    def _read_only(self, a: ndarray) -> ndarray:
        return _locked(a) if LIKE not in self.__dict__ else follow(self, a.copy())


def _locked(a: ndarray) -> ndarray:
    """A read-only view; a copy on a device, where arrays are always writeable."""
    if type(a) is not ndarray:
        return a.copy()
    a = a.view()
    a.flags.writeable = False
    return a
