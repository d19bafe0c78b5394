"""`partial_fit` for scikit-learn's Pipeline, which has none.

Copies of the steps learn from the batch. When all copies have learned, the steps take over what they have learned, in
one compiled call. So an error or an interrupt changes nothing, wherever it comes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import check_consistent_length, get_tags
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.validation import check_is_fitted

from bnorm import checks
from bnorm.transformer.estimator import BatchNormTransformer
from bnorm.transformer.fitted import at_once
from bnorm.transformer.times import names_of, separated

WHO = "partial_fit_pipeline"
PLACEHOLDERS = ("passthrough", "drop", None)
WHOLES = (Pipeline, FeatureUnion, ColumnTransformer)

Estimator = TypeVar("Estimator")


def partial_fit_pipeline(
    pipeline: Estimator,
    X: Any,
    y: ArrayLike | None = None,
    *,
    classes: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    times: Any = None,
    fit_first: bool = False,
) -> Estimator:
    """Call `partial_fit` on each step in turn, with the batch as transformed by the steps before it.

    Nested Pipelines, FeatureUnions and ColumnTransformers are handled at any depth. The first batch decides which
    columns go to which transformer. A step without `partial_fit` must already be fitted, or need no fit, and is used as
    it is; with `fit_first` it is fitted on the first batch, and does not change after that.

    All steps learn from a batch, or none: after an error or an interrupt, all of them are as they were. To ensure this,
    each step that learns is copied for every batch.

    Parameters
    ----------
    pipeline : Pipeline, FeatureUnion or ColumnTransformer
        It is changed in place. A ColumnTransformer copies its transformers, as its `fit` does.
    X : array-like or DataFrame of shape (n_samples, n_features)
        The batch; it may be a CuPy array if all steps accept CuPy arrays.
    y : array-like of shape (n_samples,), default=None
        The targets of the batch.
    classes : array-like, default=None
        All classes of the stream, for steps whose `partial_fit` takes them.
    sample_weight : array-like of shape (n_samples,), default=None
        How much each row counts, for all steps whose `partial_fit` takes it, except those with
        `set_partial_fit_request(sample_weight=False)`. Other steps, such as an IncrementalPCA, weigh all rows the same.
    times : array-like of shape (n_samples,), or str, default=None
        The time of each row, or the name of the column with it, for all steps whose `partial_fit` takes them, with the
        same exception.
    fit_first : bool, default=False
        Whether to fit steps without `partial_fit` that are not fitted, such as a OneHotEncoder, on this batch.

    Returns
    -------
    pipeline : Pipeline, FeatureUnion or ColumnTransformer

    Raises
    ------
    ValueError
        If a step without `partial_fit` is not fitted, if X, y, sample_weight and times differ in length, or if no step
        takes sample_weight or times.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import SGDRegressor
    >>> from sklearn.pipeline import make_pipeline
    >>> from bnorm import BatchNormTransformer, partial_fit_pipeline
    >>> model = make_pipeline(BatchNormTransformer(momentum=None), SGDRegressor())
    >>> for batch in np.arange(40.0).reshape(4, 10, 1):
    ...     model = partial_fit_pipeline(model, batch, batch[:, 0])
    >>> model[0].mean_, model[0].n_batches_seen_
    (array([19.5]), 4)
    """
    if not isinstance(pipeline, WHOLES):
        raise TypeError(
            f"{WHO}: pipeline: expected a Pipeline, FeatureUnion or ColumnTransformer, got {type(pipeline).__name__}"
        )
    fit_first = checks.flag(WHO, "fit_first", fit_first)
    parts = list(_parts(pipeline, ""))
    for path, part in parts:
        _check(part, path, fit_first)
    for name, given in (("sample_weight", sample_weight), ("times", times)):
        if given is not None and not any(_takes(part, name) for _, part in parts):
            names = ", ".join(type(part).__name__ for _, part in parts)
            raise ValueError(
                f"{WHO}: {name}: expected None, as no step has a partial_fit that takes it, got some for {names}"
            )
    check_consistent_length(X, y, sample_weight, None if isinstance(times, str) else times)
    changes = _Changes()
    given = {"classes": classes, "sample_weight": sample_weight, "times": times}
    _advance(pipeline, X, _Beside(y, given, separated(WHO, X, times)[1], changes), False)
    changes.make()
    return pipeline


class _Changes:
    """The changes that a batch makes to the steps: collected first, then made all at once."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}  # by the id of the original, which deepcopy keeps alive
        self._copied: list[tuple[Any, Any]] = []
        self._calls: list[tuple[Callable[..., Any], *tuple[Any, ...]]] = []

    def copy_of(self, step: Any) -> Any:
        """Return a copy of a step, which learns in its place."""
        new = copy.deepcopy(step, self._copies)
        self._copied.append((step, new))
        return new

    def set(self, step: Any, **attributes: Any) -> None:
        """Note attributes that the step itself will get."""
        self._calls.append((step.__dict__.update, attributes))

    def make(self) -> None:
        """Make all changes, or none."""
        for step, new in self._copied:
            if isinstance(step, BatchNormTransformer) and "_state" in step.__dict__:  # layer_ stays the same object
                self._calls += step._state.becoming(new._state)
            else:
                self._calls.append((object.__setattr__, step, "__dict__", new.__dict__))
        before = [step.__dict__ for step, _ in self._copied]  # kept until then, as freeing them may run code
        at_once(self._calls)
        del before


class _Beside(NamedTuple):
    """What comes with the rows of a batch, and the changes that the batch makes."""

    y: Any
    given: dict[str, Any]  # by the names of arguments
    times: Any  # the times themselves, if `given` has the name of their column
    changes: _Changes

    def taken_by(self, step: Any, X: Any) -> dict[str, Any]:
        """Return the arguments for a step that gets X. Times are given by name only if X still has their column."""
        taken = {name: value for name, value in self.given.items() if value is not None and _takes(step, name)}
        if type(column := taken.get("times")) is str and column not in names_of(X):
            taken["times"] = self.times
        return taken


def _advance(step: Any, X: Any, beside: _Beside, output: bool) -> tuple[Any, Any]:
    """Return a copy of a step that has learned a batch, and what it makes of the batch, or None unless `output`."""
    if isinstance(step, Pipeline):
        new, last = copy.copy(step), len(step.steps) - 1
        new.steps = []
        for i, (name, part) in enumerate(step.steps):
            if part not in PLACEHOLDERS:
                part, X = _advance(part, X, beside, output or i < last)
            new.steps.append((name, part))
        return new, X
    if isinstance(step, FeatureUnion):
        return _advance_union(step, X, beside)
    if isinstance(step, ColumnTransformer):
        return _advance_columns(step, X, beside)
    if hasattr(step, "partial_fit"):
        step = beside.changes.copy_of(step)
        step.partial_fit(X, beside.y, **beside.taken_by(step, X))
    elif not _is_fitted(step) or not (hasattr(step, "n_features_in_") or get_tags(step).requires_fit):
        step = beside.changes.copy_of(step)
        step.fit(X, beside.y)  # a step that needs no fit only learns the names of features, which it passes on
    return step, step.transform(X) if output else None


def _advance_union(step: Any, X: Any, beside: _Beside) -> tuple[Any, Any]:
    parts = [  # as fit leaves it
        (name, FunctionTransformer(feature_names_out="one-to-one") if part == "passthrough" else part)
        for name, part in step.transformer_list
    ]
    beside.changes.set(step, transformer_list=parts)
    found = _here(step)
    found.transformer_list = [(name, _fed(part, beside)) for name, part in parts]
    output = found.transform(X)
    found.transformer_list = _unwrapped(found.transformer_list, "learned")
    return found, output


def _advance_columns(step: Any, X: Any, beside: _Beside) -> tuple[Any, Any]:
    found = _here(step)
    if hasattr(step, "transformers_"):
        found.transformers_ = [(name, _fed(part, beside), columns) for name, part, columns in step.transformers_]
        output = found.transform(X)
    else:  # The first batch: fit determines columns and outputs.
        parts = copy.deepcopy(step.transformers)
        found.transformers = [(name, _fed(part, beside), columns) for name, part, columns in parts]
        found.remainder = _fed(copy.deepcopy(step.remainder), beside)
        output = found.fit_transform(X, beside.y)
        parameters = step.get_params(deep=False)
        learned = {name: value for name, value in found.__dict__.items() if name not in parameters}
        beside.changes.set(step, **{name: _unwrapped(value, "step") for name, value in learned.items()})
    found.transformers_ = _unwrapped(found.transformers_, "learned")
    return found, output


def _here(step: Any) -> Any:
    """A shallow copy that works in this process; updates of parts in another process would be lost."""
    found = copy.copy(step)
    found.n_jobs = None
    return found


class _Fed:
    """Replaces a part of a step while scikit-learn transforms a batch with it, and lets the part learn its input."""

    def __init__(self, step: Any, beside: _Beside) -> None:
        self.step = self.learned = step  # learned: later the copy that has learned
        self.beside = beside

    def transform(self, X: Any) -> Any:
        self.learned, output = _advance(self.step, X, self.beside, output=True)
        return output

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        return self.transform(X)

    def __sklearn_clone__(self) -> _Fed:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learned, name)  # its tags, feature names and metadata requests


def _fed(part: Any, beside: _Beside) -> Any:
    return part if part in PLACEHOLDERS else _Fed(part, beside)


def _unwrapped(value: Any, which: str) -> Any:
    """A value with each _Fed replaced by its step, or by its copy that has learned.

    They are in a list of tuples, or in a tuple for the remainder.
    """
    if isinstance(value, _Fed):
        return getattr(value, which)
    if type(value) in (list, tuple):
        return type(value)(_unwrapped(item, which) for item in value)
    return value


def _takes(step: Any, name: str) -> bool:
    """Whether `partial_fit` has an argument of that name, and the estimator's metadata request allows it."""
    if not hasattr(step, "partial_fit") or name not in inspect.signature(step.partial_fit).parameters:
        return False
    requested = getattr(get_routing_for_object(step), "partial_fit", None)
    return requested is None or requested.requests.get(name) in (None, True, name)


def _none(columns: Any) -> bool:
    """Whether this selection of columns is empty."""
    if isinstance(columns, slice | str) or not hasattr(columns, "__len__"):
        return False
    flags = isinstance(columns, list) or hasattr(columns, "dtype")  # scikit-learn 1.6 has its own list type
    return len(columns) == 0 or (flags and np.asarray(columns).dtype == bool and not np.any(columns))


def _check(step: Any, path: str, fit_first: bool) -> None:
    """ValueError if a step has no partial_fit and is not fitted."""
    if not (fit_first or hasattr(step, "partial_fit") or _is_fitted(step)):
        raise ValueError(
            f"{WHO}: step {path!r}: expected an estimator that has partial_fit or is fitted, "
            f"got {type(step).__name__}, which is neither; fit_first=True fits such steps on the first batch"
        )


def _is_fitted(step: Any) -> bool:
    try:
        check_is_fitted(step)
    except NotFittedError:
        return False
    return True


def _parts(step: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The estimators that get data, at any depth, with their paths."""
    if not isinstance(step, WHOLES):
        yield path, step
        return
    for name, part, columns in _children(step):
        if part not in PLACEHOLDERS and not _none(columns):
            yield from _parts(part, f"{path}__{name}" if path else name)


def _children(step: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(step, ColumnTransformer):
        return getattr(step, "transformers_", [*step.transformers, ("remainder", step.remainder, None)])
    return [(name, part, None) for name, part in (step.steps if isinstance(step, Pipeline) else step.transformer_list)]
