"""Groups of lazy frames: each partition is a batch of its own, and the batches are united by their keys."""

from copy import deepcopy
from functools import partial
from typing import Any

from sklearn import clone

from bnorm import checks
from bnorm.kernels.engines import engine_of, serially
from bnorm.transformer.groups import Batch, united


def sample(who: str, X: Any) -> Any:
    """A few rows like those of a lazy frame; any other table itself."""
    engine = engine_of(X)
    if engine is None:
        return X
    if not hasattr(type(X), "map_partitions"):  # of the type, as Delayed has everything
        raise TypeError(
            f"{who}: X: expected a table in memory or a {engine.NAME} DataFrame, got a {engine.NAME} "
            f"{checks.type_name(X)}"
        )
    return X._meta_nonempty


def batch_of(who: str, t: Any, X: Any, sample_weight: Any) -> Batch:
    """The batch of a lazy frame. sample_weight: None, or a lazy Series with the same partitions."""
    engine = engine_of(X)
    if t.halflife is not None:
        raise ValueError(
            f"{who}: X: expected a table in memory beside halflife={t.halflife}, as its rows age in their order, got a "
            f"{engine.NAME} DataFrame; call partial_fit for each partition"
        )
    frames = X.to_delayed()
    if sample_weight is None:
        weights = [None] * len(frames)
    elif not hasattr(type(sample_weight), "to_delayed") or len(weights := sample_weight.to_delayed()) != len(frames):
        raise TypeError(
            f"{who}: sample_weight: expected a {engine.NAME} Series with the {len(frames)} partitions of X, got "
            f"{checks.type_name(sample_weight)}"
        )
    plain = clone(t)
    parts = [engine.delayed(_learned)(plain, frame, w) for frame, w in zip(frames, weights, strict=True)]
    (found,) = engine.computed(engine.tree(parts, partial(_united, who)))
    if found is None:
        raise ValueError(f"Found array with 0 sample(s) while a minimum of 1 is required by {who}.")
    batch: Batch = found
    return batch


def mapped(t: Any, X: Any) -> Any:
    """A lazy frame of the results of `transform`, with the statistics that it has now."""
    as_now = deepcopy(t).set_output(transform="pandas")
    like = as_now.set_params(unseen="global").transform(X._meta_nonempty).iloc[:0]
    as_now.set_params(unseen=t.unseen)
    return X.map_partitions(partial(_transformed, as_now, like), meta=like)


def _learned(t: Any, frame: Any, weight: Any) -> Batch | None:
    """What a partition says; None of an empty one, or of one whose rows have no weight."""
    if not len(frame) or (weight is not None and not weight.to_numpy().any()):
        return None
    found: Batch = serially(t, frame, weight, function=_read)
    return found


def _read(t: Any, frame: Any, weight: Any) -> Any:
    batch = t._read(frame, None if weight is None else weight.to_numpy())
    return batch._replace(keys=batch.keys._replace(codes=batch.keys.codes[:0]))  # the rows' codes are done with


def _united(who: str, batches: list[Batch | None]) -> Batch | None:
    some = [batch for batch in batches if batch is not None]
    return united(who, some) if some else None


def _transformed(t: Any, like: Any, frame: Any) -> Any:
    if not len(frame):
        return like
    return serially(t, frame, function=lambda t, frame: t.transform(frame)).astype(like.dtypes.to_dict())
