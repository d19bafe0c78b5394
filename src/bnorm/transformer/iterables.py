"""Fitting by an iterable of tables: a generator, a reader of record batches, a loader; in the memory of one table."""

import copy
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.datasets import unpacked
from bnorm.iterating import results
from bnorm.kernels.engines import engine_of
from bnorm.moments import Moments, Tree
from bnorm.transformer.fitted import at_once
from bnorm.transformer.known import Known
from bnorm.transformer.tables import WHO, Table
from bnorm.transformer.validation import aside, new_table, next_table

_OF_TABLES = ("__array__", "__array_interface__", "__dlpack__", "__dataframe__", "shape", "columns", "num_rows")


def is_iterable(X: Any) -> bool:
    """Whether X is neither a table nor a sequence of rows, but gives tables one by one."""
    if type(X) is list or type(X) is tuple:
        return bool(X) and (_is_table(X[0]) or (type(X[0]) is tuple and len(X[0]) == 2 and _is_table(X[0][0])))
    if type(X) is ndarray or not hasattr(X, "__iter__") or isinstance(X, Sequence | Set | Mapping):
        return False
    return not any(hasattr(X, name) for name in _OF_TABLES) and engine_of(X) is None


def _is_table(item: Any) -> bool:
    """Whether an item of a list is a table, and not a row."""
    return hasattr(item, "num_rows") or len(getattr(item, "shape", ())) == 2


def known(estimator: Any, items: Any, sample_weight: Any, times: Any) -> tuple[Known, bool | None]:
    """Return all tables as one, read in one pass, and whether there were weights: True or None."""
    _refuse(sample_weight, times)
    found = aside(estimator)
    tree, rows, weighted, first, names = Tree(), 0, None, None, None

    def moments(i: int, item: Any) -> tuple[Table, Moments, bool] | None:
        nonlocal first, names
        X, w = unpacked(f"{WHO}: item {i}", item, estimator.exact)
        if not _rows(X):
            return None
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
        raise ValueError(f"{WHO}: X: expected an iterable of tables, at least one with rows, got none with rows")
    total = tree.result()
    if weighted and not total.count.any():
        raise ValueError(f"{WHO}: X: expected some weight above 0 in its pairs (table, weight), got none")
    return Known(names, total, rows, first), weighted


def learn(estimator: Any, items: Any, sample_weight: Any, times: Any) -> None:
    """`partial_fit` for every table with rows, or for none of them if there is an error."""
    _refuse(sample_weight, times)
    moved = copy.deepcopy(estimator)

    def fit(i: int, item: Any) -> bool:
        X, w = unpacked(f"{WHO}: item {i}", item, estimator.exact)
        if _rows(X):
            moved.partial_fit(X, sample_weight=w)
        return bool(_rows(X))

    seen: Iterator[bool] = results(WHO, items, fit, 1, False)
    if not sum(seen):
        raise ValueError(f"{WHO}: X: expected an iterable of tables, at least one with rows, got none with rows")
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


def _refuse(sample_weight: Any, times: Any) -> None:
    for name, value in (("sample_weight", sample_weight), ("times", times)):
        if value is not None:
            also = ": pairs (table, weight) have weights" if name == "sample_weight" else ""
            raise ValueError(f"{WHO}: {name}: expected None with an iterable of tables, got {np.shape(value)}{also}")
