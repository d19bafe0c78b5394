"""Groups of lazy frames: each partition is a batch of its own, and the batches are united by their keys."""

from copy import deepcopy
from functools import partial
from typing import Any

from sklearn import clone

from bnorm import checks
from bnorm.kernels.engines import engine_of, serially
from bnorm.transformer.durations import is_duration
from bnorm.transformer.group_batches import Batch
from bnorm.transformer.groups import Groups


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


def batch_of(who: str, t: Any, X: Any, sample_weight: Any, times: Any) -> Batch:
    """The batch of a lazy frame. sample_weight, times: None, or a lazy Series with the same partitions; times may be
    the name of a column.
    """
    engine = engine_of(X)
    if t.halflife is not None and not is_duration(t.halflife):
        raise ValueError(
            f"{who}: X: expected a table in memory with halflife={t.halflife}, as its rows age in their order, got a "
            f"{engine.NAME} DataFrame; call partial_fit for each partition"
        )
    frames = X.to_delayed()
    weights = _pieces(who, "sample_weight", sample_weight, len(frames), engine)
    stamps = [times] * len(frames) if type(times) is str else _pieces(who, "times", times, len(frames), engine)
    plain = clone(t)
    learned = engine.delayed(_learned)
    parts = [learned(plain, *piece) for piece in zip(frames, weights, stamps, strict=True)]
    (found,) = engine.computed(engine.tree(parts, partial(_united, who, t.halflife)))
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


def _pieces(who: str, name: str, given: Any, n: int, engine: Any) -> list[Any]:
    """One for each partition."""
    if given is None:
        return [None] * n
    if not hasattr(type(given), "to_delayed") or len(found := given.to_delayed()) != n:
        raise TypeError(
            f"{who}: {name}: expected a {engine.NAME} Series with the {n} partitions of X, got "
            f"{checks.type_name(given)}"
        )
    return list(found)


def _learned(t: Any, frame: Any, weight: Any, times: Any) -> Batch | None:
    """What a partition says; None of an empty one, or of one whose rows have no weight."""
    if not len(frame) or (weight is not None and not weight.to_numpy().any()):
        return None
    found: Batch = serially(t, frame, weight, times, function=_read)
    return found


def _read(t: Any, frame: Any, weight: Any, times: Any) -> Any:
    batch = t._read(frame, None if weight is None else weight.to_numpy(), times)
    return batch._replace(keys=batch.keys._replace(codes=batch.keys.codes[:0]))  # the rows' codes are done with


def _united(who: str, halflife: Any, batches: list[Batch | None]) -> Batch | None:
    """One batch of the rows of several."""
    some = [batch for batch in batches if batch is not None]
    if len(some) < 2:
        return some[0] if some else None
    columns, channels = len(some[0].keys.kinds), some[0].parts.shape[2]
    groups = Groups(columns, channels, None, halflife)
    for batch in some:
        try:
            groups.move(who, batch, [str(j) for j in range(columns)])
        except FloatingPointError as error:
            raise ValueError(f"{who}: X: expected statistics that float64 can hold: {error}") from None
    return groups.batch()


def _transformed(t: Any, like: Any, frame: Any) -> Any:
    if not len(frame):
        return like
    return serially(t, frame, function=lambda t, frame: t.transform(frame)).astype(like.dtypes.to_dict())
