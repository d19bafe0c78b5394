"""What engines share: record batches become bytes on the workers, and the bytes, in their order, statistics.

A new engine gives the record batches of each partition to `Reading.state`, all states to `Reading.fit`, and every batch
to a `Map`. `docs/distributed.md` shows one.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Mapping as Mapped
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.distributed import vectors
from bnorm.distributed.sums import NUMBER as NUMBER
from bnorm.distributed.sums import UNKNOWN, Sums, empty, merged_in_order
from bnorm.kernels.engines import serially
from bnorm.moments import Moments
from bnorm.transformer.known import Known
from bnorm.transformer.tables import Dense, InColumns, infinite
from bnorm.transformer.weights import refuse_no_weight

Kinds = Mapped[str, int | None]  # of columns by their names, as `kind_of` has them
NONE = b""  # the state of no rows
VECTOR = 1


def kind_of(kind: Any) -> int | None:
    """NUMBER, VECTOR, UNKNOWN for the type of columns without values, or None for columns of anything else."""
    from pyarrow import types

    if types.is_null(kind):
        return UNKNOWN
    if arrow.is_number(kind, bools=True):
        return NUMBER
    return VECTOR if vectors.is_vector(kind) else None


class Partitions:
    """What is read of each partition of a table. It is sent to the workers."""

    who: str
    columns: tuple[str, ...]
    weight: str | None
    _bytes: Callable[[Any], bytes]  # the state that holds what was learned of some rows, or None without rows
    _together: Callable[[Iterable[bytes]], Any]  # what the rows of all states have taught, or None without rows

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        raise NotImplementedError

    def state(self, batches: Iterable[Any]) -> bytes:
        """The state of the rows of pyarrow's record batches, or tables; NONE without rows."""
        raise NotImplementedError

    def merged(self, states: Iterable[bytes]) -> bytes:
        """The state of the rows of all states."""
        return self._bytes(self._together(states))

    def attempt(self, batches: Iterable[Any]) -> dict[str, list[Any]]:
        """Return one row of columns "state" and "error". If a worker failed because of wrong data, it would retry."""
        try:
            return {"state": [self.state(batches)], "error": [None]}
        except (TypeError, ValueError) as error:
            return {"state": [NONE], "error": [str(error)]}

    @staticmethod
    def attempted(rows: Iterable[Any]) -> list[bytes]:
        """Return the states of such rows, or raise the first error in them."""
        rows = list(rows)
        for row in rows:
            if row["error"] is not None:
                raise ValueError(row["error"])
        return [bytes(row["state"]) for row in rows]

    def _some(self, states: Iterable[bytes]) -> Any:
        """What the rows of all states have taught; ValueError without rows."""
        found = self._together(states)
        if found is None:
            raise ValueError(f"{self.who}: found 0 sample(s) in columns {list(self.columns)}, expected at least 1")
        return found

    @np.errstate(over="ignore")
    def _weights(self, batch: Any) -> tuple[Any, float]:
        """The weights of the rows of a batch, whose columns are checked, or None; and their sum."""
        refuse_unknown(self.who, self.names, batch.schema.names)
        if self.weight is None:
            return None, float(batch.num_rows)
        column = batch.column(self.weight)
        if kind_of(column.type) != NUMBER:
            raise ValueError(f"{self.who}: column {self.weight!r}: expected numbers, got {column.type}")
        w = arrow.values(column).astype(np.float64)
        w = Dense(np.empty((len(w), 0))).weights(w, some=False)
        return w, float(w.sum())


@dataclass(frozen=True)
class Reading(Partitions):
    """Partitions whose states are the sums of their columns.

    columns  the columns of features: numbers, bools, or vectors, all of one length in a column
    weight   the column of the weights of rows
    """

    who: str
    columns: tuple[str, ...]
    weight: str | None = None
    exact: bool = False

    @classmethod
    def of(
        cls,
        who: str,
        kinds: Kinds,
        columns: Sequence[str] | None,
        sample_weight: str | None,
        exact: bool = False,
    ) -> "Reading":
        """Return a reading of the columns that were asked for, by default of all numbers and vectors of the table."""
        if columns is None:
            columns = [name for name, kind in kinds.items() if kind is not None and name != sample_weight]
            refuse_none(who, columns, kinds, "numbers or vectors of numbers")
        reading = cls.given(who, columns, sample_weight, exact)
        refuse_unknown(who, reading.names, kinds)
        refuse_others(who, reading.names, kinds)
        return reading

    @classmethod
    def given(cls, who: str, columns: Any, sample_weight: Any = None, exact: bool = False) -> "Reading":
        """Return a reading of these columns of a table that is not known yet."""
        refuse_unnamed(who, sample_weight=sample_weight)
        return cls(who, _named(who, columns), sample_weight, bool(exact))

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return each_once(*self.columns, self.weight)

    def state(self, batches: Iterable[Any]) -> bytes:
        """The state of the rows of pyarrow's record batches, or tables; NONE without rows."""
        found = (serially(batch, function=self._sums) for batch in filled(batches))
        return self._bytes(merged_in_order(partial(Sums.merged, self.who), found))

    def moments(self, states: Iterable[bytes]) -> Moments:
        """The moments of all rows, for each feature."""
        return self._some(states).complete().moments  # type: ignore[no-any-return]

    def fit(self, t: Any, states: Iterable[bytes]) -> Any:
        """Fit a transformer to the rows of all states. After an error it is as it was."""
        sums = self._some(states).complete()
        if self.weight is not None:
            refuse_no_weight(sums.weight)
        features = sums.features()
        if twice := next((name for name, n in Counter(features).items() if n > 1), None):
            raise ValueError(f"{self.who}: columns: expected features of different names, got {twice!r} twice")
        return t.fit(Known(features, sums.moments, sums.rows), sample_weight=self.weight)

    @staticmethod
    def _bytes(sums: Sums | None) -> bytes:
        return NONE if sums is None else sums.to_bytes()

    def _together(self, states: Iterable[bytes]) -> Sums | None:
        some = (Sums.from_bytes(self.who, state) for state in states if state != NONE)
        return merged_in_order(partial(Sums.merged, self.who), some)

    def _sums(self, batch: Any) -> Sums:
        weight, total = self._weights(batch)
        widths, found = [], []
        for wide, table in self._tables(batch):
            widths += wide
            if table is not None:
                found.append(table.exact(weight) if self.exact else Moments._from_parts(table.parts(weight)))
        moments = Moments._beside(found) if found else empty(self.exact, 0)
        return Sums(self.columns, tuple(widths), moments, batch.num_rows, total)

    def _tables(self, batch: Any) -> Iterator[tuple[list[int], Any]]:
        """Yield the features as tables, with the widths of their columns. Adjacent columns of numbers are one table."""
        kinds = [_kind(self.who, name, batch.column(name)) for name in self.columns]
        for kind, run in groupby(zip(kinds, self.columns, strict=True), key=lambda pair: pair[0]):
            names = [name for _, name in run]
            if kind == NUMBER:
                yield [NUMBER] * len(names), InColumns(arrow.of_arrays([[batch.column(name) for name in names]]))
                continue
            for name in names:
                column = batch.column(name)
                x = None if kind == UNKNOWN else vectors.rows_of(self.who, name, column)
                if x is None:
                    yield [UNKNOWN], None
                elif self.exact and vectors.has_integers(column.type):
                    yield [x.shape[1]], InColumns(arrow.of_arrays([vectors.items_of(column, x.shape[1])]))
                else:
                    yield [x.shape[1]], Dense(x)


class Mapping:
    """Normalizes some columns of record batches; all others pass untouched. It is sent to the workers."""

    who: str
    columns: Collection[str]

    @property
    def names(self) -> Collection[str]:
        """All columns that are read."""
        return self.columns

    def replaced(self, batch: Any) -> dict[str, Any]:
        """The normalized columns of a record batch, by their names."""
        raise NotImplementedError

    def table(self, table: Any) -> Any:
        """A pyarrow Table, normalized."""
        import pyarrow as pa

        batches = [self.batch(batch) for batch in table.to_batches()]
        fields = [self.field(field) for field in table.schema]
        return pa.Table.from_batches(batches, pa.schema(fields, table.schema.metadata))

    def batch(self, batch: Any) -> Any:
        """A pyarrow RecordBatch, normalized."""
        import pyarrow as pa

        names = batch.schema.names
        refuse_unknown(self.who, self.names, names)
        replaced = serially(batch, function=self.replaced)
        columns = [replaced.get(name, column) for name, column in zip(names, batch.columns, strict=True)]
        schema = pa.schema(map(self.field, batch.schema), batch.schema.metadata)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def field(self, field: Any) -> Any:
        """The field of a column in the result."""
        return field.with_type(vectors.result_type(field.type)) if field.name in self.columns else field


@dataclass(frozen=True)
class Map(Mapping):
    """(x - mean) scale + shift.

    columns  their names, each with the place of its first feature and its width: NUMBER or the length of its vectors
    stats    (5, features), as the kernels take them
    """

    who: str
    columns: dict[str, tuple[int, int]]
    stats: ndarray

    @classmethod
    def of(cls, who: str, t: Any, kinds: Kinds, columns: Sequence[str] | None) -> "Map":
        """Return the map of a fitted transformer. columns: those of its features, if the features have no names."""
        t._check_fitted()
        names = t.__dict__.get("feature_names_in_")
        if names is not None:
            if columns is not None:
                raise ValueError(f"{who}: columns: expected None, as the features have names, got {list(columns)}")
            places, order = _places(who, list(names), kinds)
            refuse_others(who, places, kinds)
            for name, (_, width) in places.items():
                if kinds[name] == NUMBER and width != NUMBER:
                    raise _no_vectors(who, name, width, "numbers")
        else:
            places = _unnamed(who, t.n_features_in_, Reading.of(who, kinds, columns, None).columns, kinds)
            order = list(range(t.n_features_in_))
        return cls(who, places, np.array(t._state.forward())[:, order])

    def replaced(self, batch: Any) -> dict[str, Any]:
        return {name: self._mapped(name, batch.column(name)) for name in self.columns}

    def _mapped(self, name: str, column: Any) -> Any:
        start, width = self.columns[name]
        features = max(width, 1)
        stats = np.ascontiguousarray(self.stats[:, start : start + features])
        kind = _kind(self.who, name, column)
        if kind == VECTOR:
            x = vectors.rows_of(self.who, name, column)
            if x is not None and x.shape[1] != features:
                raise _no_vectors(self.who, name, features, x.shape[1])
            return vectors.array(None if x is None else Dense(x).mapped(stats, False), column)
        if width != NUMBER:
            if kind == UNKNOWN:
                return column
            raise _no_vectors(self.who, name, width, "numbers")
        x = arrow.values(column)
        out = arrow.empty(len(x), x.dtype)
        try:
            arrow.normalize(x, stats, out)
        except FloatingPointError:
            raise infinite(x) from None
        return arrow.array(out, column)

    def field(self, field: Any) -> Any:
        """As for every mapping; but of vectors that are all missing, even the type may be: then it stays so."""
        missing = field.name in self.columns and kind_of(field.type) == UNKNOWN
        return field if missing and self.columns[field.name][1] != NUMBER else super().field(field)


def refuse_unnamed(who: str, **given: Any) -> None:
    """Raise TypeError for an argument that is neither None nor the name of a column."""
    for argument, name in given.items():
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{who}: {argument}: expected the name of a column, got {type(name).__name__}")


def refuse_unknown(who: str, names: Iterable[Any], known: Collection[Any]) -> None:
    """Raise ValueError for a column that a table does not have, or has twice."""
    found = Counter(iter(known))  # of a dict it would take the values for counts
    for name in names:
        if found[name] > 1:
            raise ValueError(f"{who}: expected one column {name!r}, got {found[name]}")
        if not found[name]:
            raise ValueError(f"{who}: expected a column {name!r}, got {', '.join(map(repr, known))}")


def refuse_none(who: str, features: Sequence[str], known: Collection[str], expected: str) -> None:
    """Raise ValueError for a table without features, if its columns were not named."""
    if not features:
        got = f"only {', '.join(map(repr, known))}" if known else "none"
        raise ValueError(f"{who}: data: expected features, in columns of {expected}, got {got}")


def refuse_others(who: str, names: Iterable[str], kinds: Kinds) -> None:
    """Raise ValueError for a column that has neither numbers nor vectors."""
    for name in names:
        if kinds[name] is None:
            raise ValueError(f"{who}: column {name!r}: expected numbers or vectors of numbers, got another type")


def _named(who: str, columns: Any) -> tuple[str, ...]:
    names = [columns] if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"{who}: columns: expected names of columns, each once, at least one, got {names}")
    return tuple(names)


def _no_vectors(who: str, name: str, length: int, got: Any) -> ValueError:
    return ValueError(f"{who}: column {name!r}: expected vectors of length {length}, got {got}")


def _kind(who: str, name: str, column: Any) -> int:
    kind = kind_of(column.type)
    if kind is None:
        raise ValueError(f"{who}: column {name!r}: expected numbers or vectors of numbers, got {column.type}")
    return kind


def each_once(*names: str | None) -> list[str]:
    """The names of columns in this order, without those that are None. A column's name may be empty."""
    return list(dict.fromkeys(name for name in names if name is not None))


def filled(tables: Iterable[Any]) -> Iterator[Any]:
    """Yield the record batches that have rows, from record batches or tables."""
    for table in tables:
        for batch in table.to_batches() if hasattr(table, "to_batches") else [table]:
            if batch.num_rows:
                yield batch


def _places(who: str, names: list[str], known: Collection[str]) -> tuple[dict[str, tuple[int, int]], list[int]]:
    """The columns of features with these names, and the features in the order of these columns.

    x[0], x[1], ... are the items of vectors in a column x. They may come in any order, as in a sorted table.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for i, name in enumerate(names):
        item = None if name in known else re.fullmatch(r"(.*)\[(0|[1-9][0-9]*)\]", name, re.DOTALL)
        column, number = (name, -1) if item is None else (item[1], int(item[2]))
        found.setdefault(column, []).append((number, i))
    refuse_unknown(who, found, known)
    places: dict[str, tuple[int, int]] = {}
    order: list[int] = []
    for column, items in found.items():
        numbers, features = zip(*sorted(items), strict=True)
        width = NUMBER if numbers == (-1,) else len(items)
        if width and numbers != tuple(range(width)):
            got = ", ".join(names[i] for _, i in items)
            raise ValueError(f"{who}: column {column!r}: expected the features {column}[0] to {column}[n], got {got}")
        places[column] = len(order), width
        order += features
    return places, order


def _unnamed(who: str, features: int, columns: Sequence[str], kinds: Kinds) -> dict[str, tuple[int, int]]:
    """The places of features without names, in the order of the columns. At most one column has vectors."""
    wide = [name for name in columns if kinds[name] == VECTOR]
    length = features - (len(columns) - len(wide))
    if len(wide) > 1 or length < 0 or (length == 0) != (not wide):
        raise ValueError(f"{who}: columns: expected columns of {features} features, got {', '.join(columns)}")
    places, start = {}, 0
    for name in columns:
        width = length if name in wide else NUMBER
        places[name] = start, width
        start += max(width, 1)
    return places
