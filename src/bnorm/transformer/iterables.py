"""Fitting by an iterable of tables: a generator, a reader of record batches, a loader; in the memory of one table."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from bnorm.datasets import unpacked
from bnorm.iterating import results
from bnorm.moments import Moments, Tree
from bnorm.transformer import array_api, parameters
from bnorm.transformer.durations import is_duration
from bnorm.transformer.fitted import at_once
from bnorm.transformer.known import Known
from bnorm.transformer.tables import WHO, Table
from bnorm.transformer.validation import aside, new_table, next_table

NO_ROWS = f"{WHO}: X: expected an iterable of tables, at least one with rows, got none with rows"


def known(estimator: Any, items: Any, sample_weight: Any, times: Any) -> tuple[Known, bool | None, Any]:
    """Return all tables as one, read in one pass; whether there were weights, True or None; and an empty array of
    their library, or None.
    """
    parameters.check(estimator)
    _refuse(estimator, sample_weight, times)
    if estimator.window is not None:
        raise TypeError(
            f"{WHO}: X: expected one table with window={estimator.window}, as fit sums several, got an iterable of "
            "tables: partial_fit takes it"
        )
    found = aside(estimator)
    tree, rows, weighted, first, names, like = Tree(), 0, None, None, None, None

    def moments(i: int, item: Any) -> tuple[Table, Moments, bool] | None:
        nonlocal first, names, like
        X, w = unpacked(f"{WHO}: item {i}", item, estimator.exact)
        if not _rows(X):
            return None
        if first is None:
            like = array_api.like(X)
        elif array_api.is_dispatched(X) or like is not None:
            array_api.check_library(f"{WHO}.fit()", "the first table", np.empty(0) if like is None else like, X)
        if like is not None:
            X, w = array_api.seen(X), array_api.seen(w, "weight")
        if first is None:
            x, names = new_table(estimator, X)
            first = x.kind
            found.n_features_in_ = x.shape[1]
            found.__dict__.pop("feature_names_in_", None)
            if names is not None:
                found.feature_names_in_ = names
        else:
            x = next_table(found, X, first)
        weight = None if w is None else x.weights(w, some=False)
        m = x.exact(weight) if estimator.exact else Moments._from_parts(x.parts(weight).copy())
        return x, m, w is not None

    for part in results(WHO, items, moments, 1, False):
        if part is not None:
            x, m, has_weights = part
            tree.add(m)
            rows += x.rows
            weighted = has_weights or weighted or None
    if first is None:
        raise ValueError(NO_ROWS)
    total = tree.result()
    if weighted and not total.count.any():
        raise ValueError(f"{WHO}: X: expected some weight above 0 in its pairs (table, weight), got none")
    return Known(names, total, rows, first), weighted, like


def learn(estimator: Any, items: Any, sample_weight: Any, times: Any) -> None:
    """`partial_fit` for every table with rows, or for none of them if there is an error."""
    if "_state" in estimator.__dict__:
        estimator._check_parameters()
    else:
        parameters.check(estimator)
    _refuse(estimator, sample_weight, times)
    moved = copy.deepcopy(estimator)

    def fit(i: int, item: Any) -> bool:
        X, w = unpacked(f"{WHO}: item {i}", item, estimator.exact)
        if _rows(X):
            moved.partial_fit(X, sample_weight=w)
        return bool(_rows(X))

    seen: Iterator[bool] = results(WHO, items, fit, 1, False)
    if not sum(seen):
        raise ValueError(NO_ROWS)
    if "_state" in estimator.__dict__:  # layer_ stays the same object
        at_once(estimator._state.becoming(moved._state))
    else:
        estimator.__dict__.update(moved.__dict__)


def _rows(X: Any) -> Any:
    """Return the number of rows; 1 if finding it out would take work."""
    if hasattr(X, "num_rows"):
        return X.num_rows
    if hasattr(X, "shape") and len(X.shape):
        return X.shape[0]
    return len(X) if isinstance(X, list) else 1


def _refuse(estimator: Any, sample_weight: Any, times: Any) -> None:
    """Raise an error for what does not go with an iterable, before its first table is taken: it may not come again."""
    for name in ("halflife", "window"):
        if is_duration(length := getattr(estimator, name)):
            raise TypeError(
                f"{WHO}: X: expected one table, with its times, as {name}={length!r} is a length of time, got an "
                "iterable of tables: partial_fit takes each of its tables by itself"
            )
    for name, value in (("sample_weight", sample_weight), ("times", times)):
        if value is not None:
            also = ": pairs (table, weight) have weights" if name == "sample_weight" else ""
            raise ValueError(f"{WHO}: {name}: expected None with an iterable of tables, got {np.shape(value)}{also}")
