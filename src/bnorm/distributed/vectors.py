"""Columns whose values are vectors of one length, as arrays (rows, length): lists, Spark's vectors, Arrow's and
Ray's tensors.

A missing vector is a row of NaN. Spark's sparse vectors become dense.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import arrow

DENSE = 1  # `type` of a dense vector of Spark; a sparse one has 0
SPARK = {"type", "size", "indices", "values"}  # the fields of its vectors


def is_vector(kind: Any) -> bool:
    """Whether columns of an Arrow type contain vectors of numbers."""
    return (item := _item(kind)) is not None and arrow.is_number(item, bools=True)


def _item(kind: Any) -> Any:
    """Return the type of the items of vectors; None if `kind` is not a type of vectors."""
    import pyarrow as pa

    kind = getattr(kind, "storage_type", kind)  # of a tensor
    if pa.types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} == SPARK:
        kind = kind.field("values").type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if lists else None


def has_integers(kind: Any) -> bool:
    """Whether columns of an Arrow type contain vectors of integers."""
    import pyarrow as pa

    return (item := _item(kind)) is not None and pa.types.is_integer(item)


def items_of(column: Any, length: int) -> list[Any]:
    """Return an Arrow array of lists of one length as that many Arrow arrays. They are missing where the list is."""
    import pyarrow.compute as pc

    column = getattr(column, "storage", column)
    return [pc.list_element(column, i) for i in range(length)]


def rows_of(who: str, name: str, column: Any) -> ndarray | None:
    """Return an Arrow array of vectors as floats (rows, length); None if all of them are missing."""
    import pyarrow as pa

    column = getattr(column, "storage", column)
    there = arrow.present(column)
    if not there.any():
        return None
    found = (
        _spark(who, name, column.filter(pa.array(there)))
        if pa.types.is_struct(column.type)
        else _lists(who, name, column)
    )
    if there.all():
        return found
    x = np.full((len(column), found.shape[1]), np.nan, found.dtype)
    x[there] = found
    return x


def _lists(who: str, name: str, lists: Any) -> ndarray:
    """Return the lists that are not missing as an array."""
    import pyarrow.compute as pc

    lengths = pc.min_max(pc.list_value_length(lists)).as_py()
    return arrow.values(lists.flatten()).reshape(-1, _length(who, name, lengths["min"], lengths["max"]))


def _spark(who: str, name: str, vectors: Any) -> ndarray:
    import pyarrow as pa

    dense = arrow.values(vectors.field("type")) == DENSE
    values, sparse = vectors.field("values"), ~dense
    if not sparse.any():
        return _lists(who, name, values)
    sizes = np.where(dense, _lengths(values), arrow.values(vectors.field("size"))).astype(np.int64)
    x = np.zeros((len(vectors), _length(who, name, sizes.min(), sizes.max())))
    if dense.any():
        x[dense] = _lists(who, name, values.filter(pa.array(dense)))
    values, indices = (column.filter(pa.array(sparse)) for column in (values, vectors.field("indices")))
    rows = np.repeat(np.flatnonzero(sparse), _lengths(indices).astype(np.int64))
    x[rows, arrow.values(indices.flatten()).astype(np.int64)] = arrow.values(values.flatten())
    return x


def _lengths(lists: Any) -> ndarray:
    import pyarrow.compute as pc

    return arrow.values(pc.list_value_length(lists))


def _length(who: str, name: str, least: int, most: int) -> int:
    if least != most or not most:
        raise ValueError(f"{who}: column {name!r}: expected vectors of one length, at least 1, got {least} to {most}")
    return int(most)


def result_type(kind: Any) -> Any:
    """Return the type of the normalized column: floats keep their type, others become float64."""
    import pyarrow as pa

    if hasattr(kind, "storage_type"):
        if pa.types.is_floating(_item(kind)):
            return kind
        if isinstance(kind, pa.FixedShapeTensorType):
            names, order = kind.dim_names, kind.permutation
            return pa.fixed_shape_tensor(pa.float64(), kind.shape, dim_names=names, permutation=order)
        return type(kind)(kind.shape, pa.float64())  # as Ray's
    if pa.types.is_struct(kind):
        return kind
    item = _item(kind)
    if item is None:
        return kind if pa.types.is_floating(kind) else pa.float64()
    item = result_type(item)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)


def array(x: ndarray | None, like: Any) -> Any:
    """Return rows of floats as an Arrow array of vectors, missing where `like` is. x is None if all are missing."""
    import pyarrow as pa

    kind = result_type(like.type)
    if x is None:
        return pa.nulls(len(like), kind)
    if hasattr(kind, "storage_type"):
        return pa.ExtensionArray.from_storage(kind, _as_lists(x, kind.storage_type, like.storage))
    if not pa.types.is_struct(kind):
        return _as_lists(x, kind, like)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    made = {"type": pa.array(np.full(len(x), DENSE, np.int8)), "values": _as_lists(x, kind.field("values").type, None)}
    columns = [made[f.name] if f.name in made else pa.nulls(len(x), f.type) for f in fields]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=_missing(like))


def _as_lists(x: ndarray, kind: Any, like: Any) -> Any:
    import pyarrow as pa

    flat, mask = pa.array(np.ascontiguousarray(x).reshape(-1)), None if like is None else _missing(like)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=mask)
    wide = pa.types.is_large_list(kind)
    ends = np.arange(0, x.size + 1, x.shape[1]).astype(np.int64 if wide else np.int32)
    return (pa.LargeListArray if wide else pa.ListArray).from_arrays(pa.array(ends), flat, type=kind, mask=mask)


def _missing(like: Any) -> Any:
    import pyarrow as pa

    return pa.array(~arrow.present(like)) if like.null_count else None
