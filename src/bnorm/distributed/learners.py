"""Transformers whose state is more than sums: each partition fits a transformer of its own, and these are merged.

They are the transformers whose rows fade by their times, and those that keep statistics for each key.
"""

import copy
import pickle
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bnorm import arrow
from bnorm.distributed.engine import (
    NONE,
    NUMBER,
    Kinds,
    Map,
    Mapping,
    Partitions,
    Reading,
    each_once,
    filled,
    refuse_none,
    refuse_others,
    refuse_unknown,
    refuse_unnamed,
)
from bnorm.distributed.sums import merged_in_order
from bnorm.distributed.vectors import result_type
from bnorm.kernels.engines import serially
from bnorm.transformer.durations import is_duration
from bnorm.transformer.weights import refuse_no_weight


def reading_of(
    who: str, t: Any, kinds: Kinds, columns: Sequence[str] | None, sample_weight: str | None, times: str | None
) -> "Reading | Learning":
    """Return what an engine reads to fit a transformer."""
    refuse_other(who, t)
    if hasattr(t, "by") or times is not None or is_duration(t.halflife):
        return Learning.of(who, t, kinds, columns, sample_weight, times)
    return Reading.of(who, kinds, columns, sample_weight, t.exact)


def mapping_of(who: str, t: Any, kinds: Kinds, columns: Sequence[str] | None) -> Mapping:
    """Return how an engine normalizes by a fitted transformer."""
    return GroupMap.of(who, t, kinds, columns) if hasattr(t, "by") else Map.of(who, t, kinds, columns)


@dataclass(frozen=True)
class Learning(Partitions):
    """Partitions whose states are fitted transformers.

    t        the transformer, not fitted
    columns  the columns of the keys and of the features
    """

    who: str
    t: Any
    columns: tuple[str, ...]
    weight: str | None
    times: str | None

    @classmethod
    def of(
        cls, who: str, t: Any, kinds: Kinds, columns: Sequence[str] | None, sample_weight: Any, times: Any
    ) -> "Learning":
        """Return a reading of the columns that were asked for, by default of all numbers not needed otherwise."""
        refuse_unnamed(who, sample_weight=sample_weight, times=times)
        keys = keys_of(who, t)
        fades = is_duration(t.halflife)
        if fades != (times is not None):
            expected = "the name of the column of times, as the half-life is a length of time" if fades else "None"
            raise ValueError(f"{who}: times: expected {expected}, got {times!r}")
        if keys and (t.momentum is not None or (t.halflife is not None and not fades)):
            raise ValueError(
                f"{who}: expected groups with momentum=None, or a half-life that is a length of time, as the order of "
                f"rows must not matter, got {t!r}"
            )
        beside_features = each_once(*keys, times)
        refuse_unknown(who, beside_features, kinds)
        if columns is None:
            beside = {*keys, sample_weight, times}
            columns = [name for name, kind in kinds.items() if kind == NUMBER and name not in beside]
            refuse_none(who, columns, kinds, "numbers")
        refuse_beside(who, Reading.given(who, columns).columns, beside_features)
        reading = Reading.of(who, kinds, columns, sample_weight)
        from sklearn import clone

        plain = clone(t) if keys else clone(t).set_params(history=None)
        return cls(who, plain, (*keys, *reading.columns), reading.weight, times)

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return each_once(*self.columns, self.weight, self.times)

    def state(self, batches: Iterable[Any]) -> bytes:
        part = None
        for batch in filled(batches):
            part = serially(part, batch, function=self._learned)
        return self._bytes(part)

    def fit(self, t: Any, states: Iterable[bytes]) -> Any:
        """Fit a transformer to the rows of all states. After an error it is as it was."""
        part = self._some(states)
        refuse_no_weight(part.weight)
        found = part.t
        parameters = t.get_params(deep=False)
        found.set_params(**parameters)
        if hasattr(t, "by"):
            found._groups.batches = 1
        else:
            found._state.statistics.counters[0] = 1
            found._state.follow(t.momentum, t.halflife, t.eps, t.history)
            found._state._count(False)  # adds to the history
        for name in [name for name in t.__dict__ if name not in parameters and not name.startswith("_sklearn")]:
            del t.__dict__[name]
        t.__dict__.update(found.__dict__)
        return t

    @staticmethod
    def _bytes(part: "Part | None") -> bytes:
        return NONE if part is None else pickle.dumps(part)

    def _together(self, states: Iterable[bytes]) -> "Part | None":
        return merged_in_order(_merged, (pickle.loads(state) for state in states if state != NONE))

    def _learned(self, part: "Part | None", batch: Any) -> "Part":
        from sklearn import clone

        weight, own = self._weights(batch)
        table = batch.select(each_once(*self.columns, self.times))
        t, before = (clone(self.t), 0.0) if part is None else part
        t._move(table, weight, self.times, some=False)  # the keys and the times of rows without weight count
        return Part(t, before + own)


class Part(NamedTuple):
    """The transformer of some rows, and their weight."""

    t: Any
    weight: float


@dataclass(frozen=True)
class GroupMap(Mapping):
    """Normalizes by the statistics of the groups. known: the columns of keys and of features, in their order."""

    who: str
    t: Any
    columns: Collection[str]
    known: tuple[str, ...]

    @property
    def names(self) -> Collection[str]:
        """All columns that are read."""
        return self.known

    @classmethod
    def of(cls, who: str, t: Any, kinds: Kinds, columns: Sequence[str] | None) -> "GroupMap":
        """Return the map of a fitted transformer, whose columns have names."""
        t._check_fitted()
        names = t.__dict__.get("feature_names_in_")
        if names is None or columns is not None:
            raise ValueError(f"{who}: columns: expected a transformer whose columns have names, and columns=None")
        refuse_unknown(who, names, kinds)
        as_now = copy.deepcopy(t).set_params(keep_keys=False).set_output(transform="default")
        features = [name for i, name in enumerate(names) if i not in t._places]
        refuse_others(who, features, kinds)
        return cls(who, as_now, tuple(features), tuple(names))

    def replaced(self, batch: Any) -> dict[str, Any]:
        types = {name: result_type(batch.schema.field(name).type) for name in self.columns}
        if not batch.num_rows:
            return {name: batch.column(name).cast(kind) for name, kind in types.items()}
        y = self.t.transform(batch.select(list(self.known)))
        columns = zip(types.items(), y.T, strict=True)
        return {
            name: arrow.array(np.ascontiguousarray(of, f"f{kind.bit_width // 8}"), batch.column(name))
            for (name, kind), of in columns
        }


def _merged(parts: list[Part]) -> Part:
    first, *others = [part.t for part in parts]
    for other in others:
        first.merge(other)
    return Part(first, sum(part.weight for part in parts))


def refuse_other(who: str, t: Any) -> None:
    """Raise TypeError for what is not fitted in parts: another object, or a transformer with a window."""
    if not hasattr(t, "halflife"):
        raise TypeError(f"{who}: t: expected a BatchNormTransformer or a GroupedTransformer, got {t!r:.80}")
    if getattr(t, "window", None) is not None:
        raise TypeError(f"{who}: t: expected window=None, as a window needs a table in memory, got {t!r:.80}")


def refuse_beside(who: str, columns: Collection[Any], others: Iterable[str]) -> None:
    """Raise ValueError for features that are keys or times."""
    for name in others:
        if name in columns:
            raise ValueError(f"{who}: columns: expected features, got {name!r}, which has keys or times")


def keys_of(who: str, t: Any) -> list[str]:
    """The names of the columns of keys; none for a transformer without groups."""
    if not hasattr(t, "by"):
        return []
    keys = list(t.by) if isinstance(t.by, list | tuple) else [t.by]
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ValueError(f"{who}: by: expected names of columns, got {t.by!r}")
    return keys
