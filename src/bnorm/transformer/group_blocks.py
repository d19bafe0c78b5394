"""Groups of lazy frames: each partition is a batch of its own, and the batches are united by their keys."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from sklearn import clone

from bnorm import checks
from bnorm.kernels.engines import engine_of, serially
from bnorm.transformer.durations import is_duration
from bnorm.transformer.group_batches import Batch
from bnorm.transformer.group_tables import WHO, Split
from bnorm.transformer.groups import Groups
from bnorm.transformer.keys import Keys
from bnorm.transformer.sklearn_private import in_container
from bnorm.transformer.validation import refuse_container_of
from bnorm.transformer.weights import refuse_no_weight


def sample(X: Any) -> Any:
    """Return a few rows like those of a lazy frame, and any other table unchanged."""
    engine = engine_of(X)
    if engine is None:
        return X
    if not hasattr(type(X), "map_partitions"):  # asks the type, as a Delayed claims to have every attribute
        raise TypeError(
            f"{WHO}: X: expected a table in memory or a {engine.NAME} DataFrame, got a {engine.NAME} "
            f"{checks.type_name(X)}"
        )
    return X._meta_nonempty


def batch_of(t: Any, X: Any, sample_weight: Any, times: Any) -> Batch:
    """Return the batch of a lazy frame. sample_weight, times: None, or a lazy Series with the same partitions; times
    may be the name of a column.
    """
    engine = engine_of(X)
    if t.halflife is not None and not is_duration(t.halflife):
        raise ValueError(
            f"{WHO}: X: expected a table in memory with halflife={t.halflife}, as its rows age in their order, got a "
            f"{engine.NAME} DataFrame; call partial_fit for each partition"
        )
    _check_partitions("sample_weight", sample_weight, X, engine)
    if type(times) is not str:
        _check_partitions("times", times, X, engine)
    parts = engine.partitions(partial(_learned, clone(t)), engine.ordered(WHO, X), sample_weight, times)
    (found,) = engine.computed(engine.tree(parts, partial(_united, t.halflife)))
    if found is None:
        raise ValueError(f"Found array with 0 sample(s) while a minimum of 1 is required by {WHO}.")
    batch: Batch = found[0]
    refuse_no_weight(found[1])
    return batch


def mapped(t: Any, X: Any, table: Split) -> Any:
    """Return the results of `transform` with the present statistics, as a lazy frame. table: the split `sample` of X.

    The sample shows the columns of the result. Its keys are made up, and may be of a kind that fit did not see: they
    are not read.
    """
    refuse_container_of(WHO, t, engine_of(X))
    as_now = deepcopy(t).set_output(transform="pandas")
    unread = Keys((None,) * len(table.keys), np.full(table.features.rows, -1, np.int32), [])
    y = as_now.set_params(unseen="global")._mapped(table, unread, inverse=False)
    if t.keep_keys:
        y = table.with_keys(as_now, y)
    like = in_container("transform", y, table.given, as_now).iloc[:0]
    as_now.set_params(unseen=t.unseen)
    return engine_of(X).ordered(WHO, X).map_partitions(partial(_transformed, as_now, like), meta=like)


def _check_partitions(name: str, given: Any, X: Any, engine: Any) -> None:
    if given is not None and not engine.is_beside(X, given):
        raise TypeError(
            f"{WHO}: {name}: expected a {engine.NAME} Series with the {X.npartitions} partitions of X, got "
            f"{checks.type_name(given)}"
        )


def _learned(t: Any, frame: Any, weight: Any, times: Any) -> tuple[Batch, float] | None:
    """Return the batch of a partition, with the keys of rows without weight, and its weight; None if it is empty."""
    if not len(frame):
        return None
    w = None if weight is None else weight.to_numpy()
    batch = t._read(frame, w, times)
    batch = batch._replace(keys=batch.keys._replace(codes=batch.keys.codes[:0]))  # the rows' codes are not needed
    return batch, float(len(frame) if w is None else w.sum())


def _united(halflife: Any, parts: list[tuple[Batch, float] | None]) -> tuple[Batch, float] | None:
    """Unite several batches to one, and add their weights."""
    some = [part for part in parts if part is not None]
    if len(some) < 2:
        return some[0] if some else None
    keys, every = some[0][0].keys, some[0][0].parts
    groups = Groups(len(keys.kinds), every.shape[2], None, halflife)
    for batch, _ in some:
        try:
            groups.move(WHO, batch, [str(j) for j in range(len(keys.kinds))])
        except FloatingPointError as error:
            raise ValueError(f"{WHO}: X: expected statistics that float64 can hold: {error}") from None
    return groups.batch(), sum(weight for _, weight in some)


def _transformed(t: Any, like: Any, frame: Any) -> Any:
    if not len(frame):
        return like
    features = np.delete(like.columns, t._places) if t.keep_keys else like.columns
    found = serially(frame, function=t.transform)
    return found.astype(like.dtypes[features].to_dict())
