"""One more batch for a whole scikit-learn Pipeline, which has no `partial_fit` of its own."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

WHO = "partial_fit_pipeline"
PLACEHOLDERS = ("passthrough", "drop", None)

Estimator = TypeVar("Estimator")


def partial_fit_pipeline(
    pipeline: Estimator, X: Any, y: ArrayLike | None = None, *, classes: ArrayLike | None = None
) -> Estimator:
    """Call `partial_fit` on each step in turn, with the batch as the steps before it transform it.

    Steps that are a Pipeline or a ColumnTransformer are entered, and may be the whole; the first batch decides which
    columns go where. A step without `partial_fit` is used as it is if it has been fitted, or needs no fit.

    Parameters
    ----------
    pipeline : Pipeline or ColumnTransformer
        Is changed in place. A ColumnTransformer copies the transformers it is given, as its `fit` does.
    X : array-like or DataFrame of shape (n_samples, n_features)
        The batch; a CuPy array where all steps take such.
    y : array-like of shape (n_samples,), default=None
        Its targets.
    classes : array-like, default=None
        All classes that will ever come, for steps whose `partial_fit` takes them.

    Returns
    -------
    pipeline : Pipeline or ColumnTransformer

    Raises
    ------
    ValueError
        Names a step without `partial_fit` that is not fitted; no step has changed then. After any other error the
        steps before the one that failed have taken the batch in.

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
    if not isinstance(pipeline, Pipeline | ColumnTransformer):
        raise TypeError(f"{WHO}: pipeline: expected a Pipeline or ColumnTransformer, got {type(pipeline).__name__}")
    _check(pipeline, "")
    _advance(pipeline, X, y, classes)
    return pipeline


def _advance(step: Any, X: Any, y: Any, classes: Any) -> None:
    """Take one batch in."""
    if isinstance(step, Pipeline):
        last = len(step.steps) - 1
        for i, (_, part) in enumerate(step.steps):
            if part not in PLACEHOLDERS:
                _advance(part, X, y, classes)
                X = X if i == last else part.transform(X)
    elif isinstance(step, ColumnTransformer):
        _advance_columns(step, X, y, classes)
    elif hasattr(step, "partial_fit"):
        takes_classes = classes is not None and "classes" in inspect.signature(step.partial_fit).parameters
        step.partial_fit(X, y, **({"classes": classes} if takes_classes else {}))


def _advance_columns(step: Any, X: Any, y: Any, classes: Any) -> None:
    if hasattr(step, "transformers_"):
        for _, part, columns in step.transformers_:
            if part not in PLACEHOLDERS and not _none(columns):
                _advance(part, _safe_indexing(X, columns, axis=1), y, classes)
        return
    # The first batch. Columns and outputs are for fit to settle; stand-ins make it partial_fit the parts.
    found = copy.copy(step)
    found.transformers = [(name, _stand_in(part, classes), columns) for name, part, columns in step.transformers]
    found.remainder = _stand_in(step.remainder, classes)
    found.fit(X, y)
    parameters = step.get_params(deep=False)
    step.__dict__ |= {name: _unwrapped(value) for name, value in found.__dict__.items() if name not in parameters}


class _StandIn(BaseEstimator):  # type: ignore[misc]
    """In place of a transformer while a ColumnTransformer is fitted: its fit is one batch more."""

    def __init__(self, step: Any, classes: Any) -> None:
        self.step = step
        self.classes = classes

    def fit(self, X: Any, y: Any = None) -> "_StandIn":
        _advance(self.step, X, y, self.classes)
        return self

    def transform(self, X: Any) -> Any:
        return self.step.transform(X)

    def __sklearn_clone__(self) -> "_StandIn":
        return self


def _stand_in(part: Any, classes: Any) -> Any:
    return part if part in PLACEHOLDERS else _StandIn(copy.deepcopy(part), classes)


def _unwrapped(value: Any) -> Any:
    """The same without stand-ins, which are in a list of tuples, and in a tuple for the remainder."""
    if isinstance(value, _StandIn):
        return value.step
    if type(value) in (list, tuple):
        return type(value)(_unwrapped(item) for item in value)
    return value


def _none(columns: Any) -> bool:
    """Whether this selects no column."""
    if isinstance(columns, slice | str) or not hasattr(columns, "__len__"):
        return False
    return len(columns) == 0 or (np.asarray(columns).dtype == bool and not np.any(columns))


def _check(step: Any, path: str) -> None:
    """ValueError for the first step that can neither take a batch in nor do without."""
    if isinstance(step, Pipeline | ColumnTransformer):
        for name, part in _parts(step):
            _check(part, f"{path}__{name}" if path else name)
    elif not hasattr(step, "partial_fit"):
        try:
            check_is_fitted(step)
        except NotFittedError:
            raise ValueError(
                f"{WHO}: step {path!r}: expected an estimator that has partial_fit or is fitted, "
                f"got {type(step).__name__}, which has not and is not"
            ) from None


def _parts(step: Any) -> Iterator[tuple[str, Any]]:
    """Steps that will see data, by name."""
    if isinstance(step, Pipeline):
        parts = [(name, part, None) for name, part in step.steps]
    else:
        parts = getattr(step, "transformers_", [*step.transformers, ("remainder", step.remainder, None)])
    for name, part, columns in parts:
        if part not in PLACEHOLDERS and not _none(columns):
            yield name, part
