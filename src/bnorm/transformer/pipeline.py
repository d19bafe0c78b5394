"""One more batch for a whole scikit-learn Pipeline, which has no `partial_fit` of its own."""

import copy
import inspect
from collections.abc import Iterator
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
) -> Estimator:
    """Call `partial_fit` on each step in turn, with the batch as the steps before it transform it.

    Steps that are a Pipeline, a FeatureUnion or a ColumnTransformer are entered, however deep they lie in each other,
    and each may be the whole. The first batch decides which columns go where. A step without `partial_fit` is used as
    it is if it has been fitted, or needs no fit.

    Parameters
    ----------
    pipeline : Pipeline, FeatureUnion or ColumnTransformer
        Is changed in place. A ColumnTransformer copies the transformers it is given, as its `fit` does.
    X : array-like or DataFrame of shape (n_samples, n_features)
        The batch; a CuPy array where all steps take such.
    y : array-like of shape (n_samples,), default=None
        Its targets.
    classes : array-like, default=None
        All classes that will ever come, for steps whose `partial_fit` takes them.
    sample_weight : array-like of shape (n_samples,), default=None
        How much each row counts, for every step whose `partial_fit` takes it. All other steps count the rows alike: an
        IncrementalPCA between a scaler and a classifier does. A step that was told
        `set_partial_fit_request(sample_weight=False)` gets none. ValueError where no step takes it.

    Returns
    -------
    pipeline : Pipeline, FeatureUnion or ColumnTransformer

    Raises
    ------
    ValueError
        Names a step without `partial_fit` that is not fitted, or tells that X, y and sample_weight differ in length; no
        step has changed then. After any other error the steps before the one that failed have taken the batch in.

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
    parts = list(_parts(pipeline, ""))
    for path, part in parts:
        _check(part, path)
    if sample_weight is not None and not any(_takes(part, "sample_weight") for _, part in parts):
        names = ", ".join(type(part).__name__ for _, part in parts)
        raise ValueError(
            f"{WHO}: sample_weight: expected None, as no step has a partial_fit that takes it, got weights for {names}"
        )
    check_consistent_length(X, y, sample_weight)
    _advance(pipeline, X, _Beside(y, classes, sample_weight), output=False)
    return pipeline


class _Beside(NamedTuple):
    """What comes with the rows of a batch."""

    y: Any
    classes: Any
    sample_weight: Any

    def taken_by(self, step: Any) -> dict[str, Any]:
        given = {"classes": self.classes, "sample_weight": self.sample_weight}
        return {name: value for name, value in given.items() if value is not None and _takes(step, name)}


def _advance(step: Any, X: Any, beside: _Beside, output: bool) -> Any:
    """Take one batch in. Returns what the step makes of it, if there is anything and `output` asks for it."""
    if isinstance(step, Pipeline):
        last = len(step.steps) - 1
        for i, (_, part) in enumerate(step.steps):
            if part not in PLACEHOLDERS:
                X = _advance(part, X, beside, output or i < last)
        return X
    if isinstance(step, FeatureUnion):
        return _advance_union(step, X, beside)
    if isinstance(step, ColumnTransformer):
        return _advance_columns(step, X, beside)
    if hasattr(step, "partial_fit"):
        step.partial_fit(X, beside.y, **beside.taken_by(step))
    elif not hasattr(step, "n_features_in_") and not get_tags(step).requires_fit:
        step.fit(X, beside.y)  # learns nothing but the features, whose names it hands on
    return step.transform(X) if output else None


def _advance_union(step: Any, X: Any, beside: _Beside) -> Any:
    step.transformer_list = [  # as fit leaves it
        (name, FunctionTransformer(feature_names_out="one-to-one") if part == "passthrough" else part)
        for name, part in step.transformer_list
    ]
    found = _here(step)
    found.transformer_list = [(name, _fed(part, beside)) for name, part in step.transformer_list]
    return found.transform(X)


def _advance_columns(step: Any, X: Any, beside: _Beside) -> Any:
    found = _here(step)
    if hasattr(step, "transformers_"):
        found.transformers_ = [(name, _fed(part, beside), columns) for name, part, columns in step.transformers_]
        return found.transform(X)
    # The first batch. Columns and outputs are for fit to settle.
    parts = copy.deepcopy(step.transformers)
    found.transformers = [(name, _fed(part, beside), columns) for name, part, columns in parts]
    found.remainder = _fed(copy.deepcopy(step.remainder), beside)
    output = found.fit_transform(X, beside.y)
    parameters = step.get_params(deep=False)
    step.__dict__ |= {name: _unwrapped(value) for name, value in found.__dict__.items() if name not in parameters}
    return output


def _here(step: Any) -> Any:
    """A shallow copy that works in this process, as parts in another one would learn in vain."""
    found = copy.copy(step)
    found.n_jobs = None
    return found


class _Fed:
    """In place of a part while scikit-learn has the whole transform a batch: the part takes in what it is shown."""

    def __init__(self, step: Any, beside: _Beside) -> None:
        self.step = step
        self.beside = beside

    def transform(self, X: Any) -> Any:
        return _advance(self.step, X, self.beside, output=True)

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        return self.transform(X)

    def __sklearn_clone__(self) -> "_Fed":
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)  # its tags, names of features and requests


def _fed(part: Any, beside: _Beside) -> Any:
    return part if part in PLACEHOLDERS else _Fed(part, beside)


def _unwrapped(value: Any) -> Any:
    """The parts themselves again, which are in a list of tuples, and in a tuple for the remainder."""
    if isinstance(value, _Fed):
        return value.step
    if type(value) in (list, tuple):
        return type(value)(_unwrapped(item) for item in value)
    return value


def _takes(step: Any, name: str) -> bool:
    """Whether `partial_fit` has an argument of that name, and no request of its estimator keeps it away."""
    if not hasattr(step, "partial_fit") or name not in inspect.signature(step.partial_fit).parameters:
        return False
    requested = getattr(get_routing_for_object(step), "partial_fit", None)
    return requested is None or requested.requests.get(name) in (None, True, name)


def _none(columns: Any) -> bool:
    """Whether this selects no column."""
    if isinstance(columns, slice | str) or not hasattr(columns, "__len__"):
        return False
    flags = isinstance(columns, list) or hasattr(columns, "dtype")  # scikit-learn 1.6 has a list of its own, of numbers
    return len(columns) == 0 or (flags and np.asarray(columns).dtype == bool and not np.any(columns))


def _check(step: Any, path: str) -> None:
    """ValueError where a step can neither take a batch in nor do without."""
    if not hasattr(step, "partial_fit"):
        try:
            check_is_fitted(step)
        except NotFittedError:
            raise ValueError(
                f"{WHO}: step {path!r}: expected an estimator that has partial_fit or is fitted, "
                f"got {type(step).__name__}, which has not and is not"
            ) from None


def _parts(step: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The estimators that will see data, however deep, with their paths."""
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
