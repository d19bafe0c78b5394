"""Spark: statistics of a DataFrame in one pass, and its normalization. Classic sessions and Spark Connect alike.

Each partition is a stream of record batches in a Python process of a worker, which returns one small state; Spark's
driver merges them in the order of the partitions. A partition that is computed again counts once.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isfinite
from typing import Any, Literal, overload

import numpy as np

from bnorm import arrow
from bnorm.checks import missing, type_name
from bnorm.distributed.documents import FITTED, MOMENTS, OF_TRANSFORM, table
from bnorm.distributed.engine import NUMBER, VECTOR, Map, Mapping, Partitions, Reading, refuse_unknown
from bnorm.distributed.learners import mapping_of, reading_of
from bnorm.documents import described
from bnorm.exact import ExactMoments
from bnorm.moments import Moments

try:
    from pyspark.sql import functions as F
    from pyspark.sql import types
except ImportError as error:
    raise missing(__name__, "pyspark", "spark", error) from error

PACKED = 2  # from this many columns of double on, send them as one array: Spark sends a column value by value
STATES = "partition bigint, state binary, error string"
PARAMETERS = table("pyspark.sql.DataFrame", "`VectorUDT`, or arrays of numbers")


@described(PARAMETERS, FITTED)
def fit(
    t: Any,
    data: Any,
    columns: Sequence[str] | None = None,
    sample_weight: str | None = None,
    times: str | None = None,
) -> Any:
    """Fit a transformer to the rows of a DataFrame, as `t.fit` does to a table in memory. It computes at once."""
    reading = reading_of("spark.fit", t, _kinds("spark.fit", data), columns, sample_weight, times)
    return reading.fit(t, _states(reading, data))


@overload
def moments(
    data: Any, columns: Sequence[str] | None = None, sample_weight: str | None = None, *, exact: Literal[True]
) -> ExactMoments: ...
@overload
def moments(
    data: Any, columns: Sequence[str] | None = None, sample_weight: str | None = None, exact: bool = False
) -> Moments: ...
@described(PARAMETERS, MOMENTS)
def moments(
    data: Any, columns: Sequence[str] | None = None, sample_weight: str | None = None, exact: bool = False
) -> Moments:
    """Return count, mean and m2 of columns of a DataFrame, in one pass. It computes at once."""
    reading = Reading.of("spark.moments", _kinds("spark.moments", data), columns, sample_weight, exact)
    return reading.moments(_states(reading, data))


@described(PARAMETERS, "Returns\n-------\npyspark.sql.DataFrame", **OF_TRANSFORM)
def transform(t: Any, data: Any, columns: Sequence[str] | None = None) -> Any:
    """Normalize the features that a transformer has learned, in a DataFrame, lazily; other columns are untouched.

    The result uses the transformer as it is now. Columns of float and double keep their type, others become double.
    """
    kinds, fields = _kinds("spark.transform", data), data.schema.fields
    mapping = mapping_of("spark.transform", t, kinds, columns)
    refuse_unknown(mapping.who, mapping.names, data.columns)
    if isinstance(mapping, Map) and not any(kinds[name] == VECTOR for name in mapping.columns):
        distinct, found = _distinct(data)
        result = distinct.select(*map(partial(_column, mapping), fields, found))
        return result if distinct is data else result.toDF(*data.columns)
    fields = [_normalized(field) if field.name in mapping.columns else field for field in fields]
    return _in_arrow(data, partial(_mapped, mapping), types.StructType(fields))


def _distinct(data: Any) -> tuple[Any, list[str]]:
    """Return a DataFrame and its columns in SQL. They get other names if Spark cannot tell theirs apart, as a and A."""
    if len({name.lower() for name in data.columns}) < len(data.columns):
        data = _safe(data)
    return data, [_quoted(name) for name in data.columns]


def _column(mapping: Map, field: Any, column: str) -> Any:
    """Return the expression by which Spark itself computes a column: no value passes through Python.

    It is one string of SQL, as the operators of pyspark need 120 calls of Java for a column.
    """
    if field.name not in mapping.columns:
        return F.expr(column)
    place, _ = mapping.columns[field.name]
    mean, _, _, scale, shift = map(_literal, mapping.stats[:, place].tolist())
    x = f"CAST({column} AS DOUBLE)"
    y = f"({x} - {mean}) * {scale} + {shift}"
    if isinstance(field.dataType, types.FractionalType):
        message = f"{mapping.who}: column {field.name!r}: expected finite numbers, got infinity"
        error = f"raise_error(CAST(X'{message.encode().hex()}' AS STRING))"  # hexadecimal, as it may contain quotes
        y = f"IF(abs({x}) = {_literal(float('inf'))}, {error}, {y})"
    y = F.expr(f"CAST({y} AS {_normalized(field).dataType.simpleString()}) AS {_quoted(field.name)}")
    return y.alias(field.name, metadata=field.metadata) if field.metadata else y


def _literal(value: float) -> str:
    """Return a number in SQL, as a double with all its digits."""
    return f"{value!r}D" if isfinite(value) else f"CAST('{value!r}' AS DOUBLE)"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _states(reading: Partitions, data: Any) -> list[bytes]:
    """One state for each partition that has rows, in the order of the partitions."""
    refuse_unknown(reading.who, reading.names, data.columns)
    kinds = {field.name: field.dataType for field in data.schema.fields}
    names, (data, found) = data.columns, _distinct(data)
    places = dict(zip(names, found, strict=True))
    packed = [name for name in reading.names if isinstance(reading, Reading) and kinds[name] == types.DoubleType()]
    if len(packed) < PACKED:
        packed = []
    alone = [name for name in reading.names if name not in packed]
    columns = [places[name] for name in alone]
    if packed:
        columns.append(f"array({', '.join(places[name] for name in packed)})")
    function = partial(_of_partition, reading, alone, packed)
    rows = _in_arrow(data.selectExpr(*columns), function, STATES).collect()
    return Partitions.attempted(sorted(rows, key=lambda row: row["partition"]))


def _in_arrow(data: Any, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Any:
    """Call `mapInArrow` with safe names of columns: it cannot find columns with names such as a.b."""
    return _safe(data).mapInArrow(partial(_renamed, function, data.columns), schema)


def _safe(data: Any) -> Any:
    return data.toDF(*(f"c{i}" for i in range(len(data.columns))))


def _renamed(
    function: Callable[[Iterator[Any]], Iterator[Any]], names: list[str], batches: Iterator[Any]
) -> Iterator[Any]:
    return function(batch.rename_columns(names) for batch in batches)


def _of_partition(reading: Partitions, alone: list[str], packed: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    """Yield a record batch of one row: the state of a partition."""
    import pyarrow as pa
    from pyspark import TaskContext

    row = reading.attempt(_unpacked(alone, packed, batch) for batch in batches)
    context: Any = TaskContext.get()
    schema = pa.schema({"partition": pa.int64(), "state": pa.binary(), "error": pa.string()})
    yield pa.RecordBatch.from_pydict({"partition": [context.partitionId()], **row}, schema)


def _unpacked(alone: list[str], packed: list[str], batch: Any) -> Any:
    """Split the last column of a record batch, which has the values of the packed columns row by row."""
    import pyarrow as pa

    columns = batch.columns
    if packed:
        x = arrow.values(columns.pop().flatten()).reshape(-1, len(packed))
        columns += map(pa.array, np.ascontiguousarray(x.T))
    return pa.RecordBatch.from_arrays(columns, names=alone + packed)


def _mapped(mapping: Mapping, batches: Iterator[Any]) -> Iterator[Any]:
    return map(mapping.batch, batches)


def _kinds(who: str, data: Any) -> dict[str, int | None]:
    if not hasattr(type(data), "mapInArrow"):
        raise TypeError(f"{who}: data: expected a DataFrame of Spark, got {type_name(data)}")
    return {field.name: _kind(field.dataType) for field in data.schema.fields}


def _kind(kind: Any) -> int | None:
    if isinstance(kind, types.NumericType | types.BooleanType | types.NullType):
        return NUMBER
    listed = isinstance(kind, types.ArrayType) and _kind(kind.elementType) == NUMBER
    return VECTOR if listed or type(kind).__name__ == "VectorUDT" else None


def _normalized(field: Any) -> Any:
    kind = field.dataType
    if isinstance(kind, types.ArrayType) and not isinstance(kind.elementType, types.FloatType):
        kind = types.ArrayType(types.DoubleType())
    elif _kind(kind) == NUMBER and not isinstance(kind, types.FloatType):
        kind = types.DoubleType()
    return types.StructField(field.name, kind, field.nullable, field.metadata)
