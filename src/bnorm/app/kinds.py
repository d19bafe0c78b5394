"""The types of columns that a format can hold, and the conversion of columns to them.

A type that a format lacks is written as the nearest one: text of a category as text, run ends as their values. If there
is none, an error names the column before anything is written.
"""

import io
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from uuid import UUID

from bnorm.app.errors import DataError, option
from bnorm.app.sources import pyarrow, said


def written(schema: Any, kind: str) -> Any:
    """Return the schema of a "csv", "parquet" or "arrow" file for these columns; DataError if there is none."""
    pa = pyarrow()
    rule = {"csv": _in_csv, "parquet": _in_parquet, "arrow": _in_arrow}[kind]
    fields = []
    for field in schema:
        found = rule(field.type)
        if found is None:
            raise DataError(
                f"column {field.name!r}: expected what a {NAMES[kind]} file can hold, got {field.type}: "
                f"{option('--drop', field.name)} leaves it out"
            )
        fields.append(pa.field(field.name, found, field.nullable, field.metadata))
    return pa.schema(fields, schema.metadata)


NAMES = {"csv": "CSV", "parquet": "Parquet", "arrow": "Arrow"}


def converted(batch: Any, schema: Any) -> Any:
    """Return a record batch with these types, which `written` has found."""
    pa = pyarrow()
    if batch.schema.equals(schema):
        return batch
    columns = []
    for array, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(_converted(array, field.type))
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"column {field.name!r}: expected {field.type}, got {array.type}: {said(error)}") from None
    return pa.record_batch(columns, schema=schema)


def _converted(array: Any, kind: Any) -> Any:
    from pyarrow import compute, types

    pa = pyarrow()
    if array.type == kind:
        return array
    if _is_uuid(array.type) and types.is_string(kind):
        ids = array.storage.to_pylist()
        return pa.array([None if value is None else str(UUID(bytes=value)) for value in ids], kind)
    if isinstance(array, pa.ExtensionArray):
        return _converted(array.storage, kind)
    if types.is_run_end_encoded(array.type):
        return _converted(compute.run_end_decode(array), kind)
    if types.is_dictionary(array.type):
        values = kind.value_type if types.is_dictionary(kind) else kind
        dictionary = _converted(array.dictionary, values)
        if types.is_dictionary(kind):
            indices = array.indices.cast(kind.index_type)
            return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered)
        return dictionary.take(array.indices)
    return array.cast(kind, safe=False)


def _in_csv(kind: Any) -> Any:
    """Return the type in a CSV file, whose values can be written as text; None if there is none."""
    from pyarrow import types

    pa = pyarrow()
    if _is_uuid(kind):
        return pa.string()
    if (values := _values(kind)) is not None:
        return _in_csv(values)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return _without_view(kind)
    cannot = (types.is_nested, types.is_union, lambda t: t == pa.month_day_nano_interval())
    return None if any(test(kind) for test in cannot) else kind


def _in_parquet(kind: Any) -> Any:
    from pyarrow import parquet, types

    pa = pyarrow()
    if types.is_run_end_encoded(kind):
        return _in_parquet(kind.value_type)
    if types.is_dictionary(kind):
        kind = pa.dictionary(kind.index_type, _without_view(kind.value_type), kind.ordered)
    kind = kind if _views_in_parquet() else _without_view(kind)
    try:
        parquet.ParquetWriter(io.BytesIO(), pa.schema([("x", kind)])).close()
    except (pa.ArrowException, OSError):  # such as that of decimals with a negative scale
        return None
    return kind


@cache
def _views_in_parquet() -> bool:
    """Whether this version of pyarrow writes text as polars has it to Parquet: 22 and older do not."""
    from pyarrow import parquet

    pa = pyarrow()
    try:
        parquet.write_table(pa.table({"x": pa.array(["x"]).cast(pa.string_view())}), io.BytesIO())
    except (pa.ArrowException, OSError):
        return False
    return True


def _in_arrow(kind: Any) -> Any:
    """Return the type in an Arrow file. Dictionaries inside other types cannot be united, and become their values."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return pyarrow().dictionary(kind.index_type, _without_view(kind.value_type), kind.ordered)
    return _inside(kind, lambda t: t.value_type if types.is_dictionary(t) else t)


def _values(kind: Any) -> Any:
    """The type of the values of a dictionary, of run ends or of an extension; None for other types."""
    from pyarrow import types

    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pyarrow().BaseExtensionType) else None


def _is_uuid(kind: Any) -> bool:
    """Whether a type is that of UUIDs, which some versions of pyarrow do not have."""
    return getattr(kind, "extension_name", None) == "arrow.uuid"


def _without_view(kind: Any) -> Any:
    pa = pyarrow()
    views: Mapping[Any, Any] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return views.get(kind, kind)


def _inside(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type with its inner types changed."""
    from pyarrow import types

    pa = pyarrow()

    def field(of: Any) -> Any:
        return of.with_type(_inside(change(of.type), change))

    if types.is_struct(kind):
        return pa.struct([field(of) for of in kind])
    if types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(field(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(field(kind.value_field))
    return kind
