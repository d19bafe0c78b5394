"""Columns of Arrow tables, which the kernels read in place, one by one, neither transposed nor, unless they come in
small batches, concatenated.

A missing value is NaN. Integers without missing values may stay as they are (`numbers`); otherwise integers, decimals
and bools are converted to float64. Other types are not numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import cpu
from bnorm.kernels.activation import IDENTITY

NOT_IN_MEMORY = {
    ("polars", "LazyFrame"),
    *(("pyarrow", name) for name in ("RecordBatchReader", "Scanner", "ParquetFile", "ParquetDataset")),
    *(("pyarrow", f"{name}Dataset") for name in ("FileSystem", "InMemory", "Union")),
}


# A table whose batches have fewer rows on average is joined first: the copy takes less time than so many calls. If it
# has fewer altogether, and its columns are floats of one type, it is copied to an array.
SMALL = 4096


def is_number(kind: Any, bools: bool = False) -> bool:
    """Whether columns of an Arrow type contain numbers. The null type, of columns without values, counts as one."""
    from pyarrow import types

    if types.is_floating(kind) or types.is_integer(kind):
        return True
    return types.is_decimal(kind) or types.is_null(kind) or (bools and types.is_boolean(kind))


# pyarrow's own conversions to NumPy and back import pandas if it is installed, which takes longer than most files.


def values(array: Any) -> ndarray:
    """Return an Arrow array of numbers as floats, without a copy unless it must be converted or values are missing.

    The result may be read-only.
    """
    import pyarrow as pa

    if pa.types.is_decimal128(array.type):
        return _decimals(array)
    if not pa.types.is_floating(array.type):
        array = array.cast(pa.float64(), safe=False)
    dtype = np.dtype(f"f{array.type.bit_width // 8}")
    if array.buffers()[1] is None:
        return np.full(len(array), np.nan, dtype)
    x = in_place(array, dtype)
    if array.null_count:
        return np.where(present(array), x, dtype.type(np.nan))
    return x if x.flags.aligned else x.copy()


def numbers(array: Any) -> ndarray:
    """Return an Arrow array of numbers as floats, or as integers if that takes no copy. The result may be read-only."""
    x = None if array.null_count else _integers(array)
    return values(array) if x is None else x


def _integers(array: Any) -> ndarray | None:
    """Return an Arrow array of integers, a missing one of which may be any number there; None for other arrays."""
    import pyarrow as pa

    if not pa.types.is_integer(array.type) or array.buffers()[1] is None:
        return None
    unsigned = pa.types.is_unsigned_integer(array.type)
    x = in_place(array, np.dtype(f"{'u' if unsigned else 'i'}{array.type.bit_width // 8}"))
    return x if x.flags.aligned else x.copy()


def in_place(array: Any, dtype: Any) -> ndarray:
    """Return the memory of an Arrow array; a missing value may be any number there."""
    stop = array.offset + len(array)
    return np.frombuffer(array.buffers()[1], dtype, stop)[array.offset :] if stop else np.empty(0, dtype)


def _decimals(array: Any) -> ndarray:
    """Return decimals of up to 15 digits as the nearest floats: Arrow's own cast can be off by one last place."""
    import pyarrow as pa

    x = np.where(present(array), values(array.cast(pa.float64(), safe=False)), np.nan)
    data, scale = array.buffers()[1], array.type.scale
    if data is None or not 0 <= scale <= 22:  # 10**22 is the largest power of ten that is a float
        return x
    low, high = np.frombuffer(data, "<i8", 2 * (array.offset + len(array))).reshape(-1, 2)[array.offset :].T
    short = (high == low >> 63) & (np.abs(x) < 2.0**53 / 10.0**scale)
    return np.where(short, low / 10.0**scale, x)


def present(array: Any) -> ndarray:
    """Return a bool array: which values of an Arrow array are not missing."""
    bits = array.buffers()[0]
    if bits is None:
        return np.full(len(array), array.null_count == 0)
    stop = array.offset + len(array)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")[array.offset :].astype(bool)


def decoded(array: Any) -> Any:
    """Return the values of a dictionary, row by row. Arrow cannot take text as polars has it, so this becomes text."""
    import pyarrow as pa

    known = array.dictionary
    return (known.cast(pa.string()) if pa.types.is_string_view(known.type) else known).take(array.indices)


def array(x: ndarray, like: Any) -> Any:
    """Return a vector of floats as an Arrow array, with the missing values of `like`."""
    import pyarrow as pa

    kind = {2: pa.float16, 4: pa.float32, 8: pa.float64}[x.itemsize]()
    bits = pa.py_buffer(np.packbits(present(like), bitorder="little")) if like.null_count else None
    return pa.Array.from_buffers(kind, len(x), [bits, pa.py_buffer(x)])


def empty(n: int, dtype: np.dtype[Any]) -> ndarray:
    """Return a vector in memory of Arrow, which reuses freed memory, while NumPy asks the system for new pages."""
    import pyarrow as pa

    return np.frombuffer(pa.allocate_buffer(n * dtype.itemsize), dtype)


class Columns:
    """An Arrow table as record batches, each with a column for every feature.

    It has the attributes of an array that the transformer uses.
    arrays: those of Arrow, for `exactly`. Without them, the integers of a column with missing values are rounded.
    """

    ndim = 2

    def __init__(self, batches: list[list[ndarray]], arrays: Sequence[Sequence[Any]] | None = None) -> None:
        self.batches, self._arrays = batches, arrays
        self.shape = sum(len(batch[0]) for batch in batches), len(batches[0])
        # of results: integers become float64
        self.dtype: np.dtype[Any] = np.result_type(*(x.dtype if x.dtype.kind == "f" else "f8" for x in batches[0]))

    def __len__(self) -> int:
        return self.shape[0]

    def weighted(self, weight: ndarray | None) -> Iterator[tuple[list[ndarray], ndarray | None]]:
        """Return an iterator over the batches, each with the weights of its rows."""
        return ((batch, None if weight is None else weight[rows]) for batch, rows in self._rows())

    def exactly(self, weight: ndarray | None) -> Iterator[list[tuple[ndarray, ndarray | None]]]:
        """Yield the columns of each batch, each with the weights of its values. A missing integer has weight 0."""
        for i, (batch, w) in enumerate(self.weighted(weight)):
            arrays = [None] * len(batch) if self._arrays is None else self._arrays[i]
            yield [_exactly(x, w, array) for x, array in zip(batch, arrays, strict=True)]

    def _rows(self) -> Iterator[tuple[list[ndarray], slice]]:
        """Yield each batch with the slice of its rows."""
        stop = 0
        for batch in self.batches:
            start, stop = stop, stop + len(batch[0])
            yield batch, slice(start, stop)

    def parts(self, weight: ndarray | None) -> list[ndarray]:
        """Return count, mean, m2, low of each batch, (4, C). NaN does not count."""
        return [cpu.column_moments(batch, rows)[0] for batch, rows in self.weighted(weight)]

    def alike(self) -> list[list[ndarray]]:
        """Return the columns of each batch, all of one type."""
        return [[np.ascontiguousarray(column, self.dtype) for column in batch] for batch in self.batches]

    def dense(self) -> ndarray:
        """Return a Fortran-ordered array: Arrow's memory order."""
        out = np.empty(self.shape, self.dtype, order="F")
        for batch, rows in self._rows():
            for j, column in enumerate(batch):
                out[rows, j] = column
        return out

    def mapped(self, stats: ndarray) -> ndarray:
        """Return (x - mean) scale + shift, Fortran-ordered; FloatingPointError if there is an infinite value."""
        out = np.empty(self.shape, self.dtype, order="F")
        for batch, rows in self._rows():
            for j, x in enumerate(batch):
                x = np.ascontiguousarray(x, self.dtype)
                normalize(x, np.ascontiguousarray(stats[:, j : j + 1]), out[rows, j])
        return out


def _exactly(x: ndarray, weight: ndarray | None, array: Any) -> tuple[ndarray, ndarray | None]:
    integers = None if array is None else _integers(array)
    if integers is None or not array.null_count:
        return (x if integers is None else integers), weight
    there = present(array)
    return integers, there if weight is None else there * weight


def _kind_of(value: Any) -> tuple[str, str]:
    """Return the package and the name of a type, of a library that need not be imported."""
    return type(value).__module__.partition(".")[0], type(value).__name__


def table_of(who: str, given: Any) -> Any:
    """Return a pyarrow RecordBatch, Table, or polars DataFrame as a pyarrow Table, or None for other values.

    TypeError for tables that are not in memory, such as a LazyFrame.
    """
    package, name = _kind_of(given)
    if (package, name) in NOT_IN_MEMORY:
        way = "collect() reads all of it" if package == "polars" else "call partial_fit for each of its batches"
        raise TypeError(f"{who}: X: expected a table in memory, got a {package} {name}: {way}")
    if package == "polars" and name == "DataFrame":
        return of_polars(f"{who}: X", given) if find_spec("pyarrow") else None
    if package != "pyarrow" or name not in ("RecordBatch", "Table"):
        return None
    import pyarrow as pa

    return given if name == "Table" else pa.Table.from_batches([given])


def of_polars(who: str, given: Any) -> Any:
    """Return a polars DataFrame or Series in Arrow; TypeError if Arrow does not have a type of it, such as Int128."""
    import pyarrow as pa

    try:
        return given.to_arrow()
    except pa.ArrowInvalid as error:
        for column in given if hasattr(given, "columns") else ():
            of_polars(f"{who}: column {column.name!r}", column)
        raise TypeError(f"{who}: expected a type that Arrow has, got {getattr(given, 'dtype', error)}") from None


def table(x: ndarray, names: Sequence[str]) -> Any:
    """Return an array as a pyarrow Table."""
    import pyarrow as pa

    return pa.table(dict(zip(names, x.T, strict=True)))


def columns_of(who: str, table: Any) -> Columns:
    """Return the columns of a pyarrow Table, which must have rows. All columns must be numbers or bools."""
    if not table.num_rows:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={table.shape}) while a minimum of 1 is required by {who}."
        )
    check_numbers(f"{who}: X", table)
    batches = table.to_batches()
    if len(batches) > 1 and table.num_rows < SMALL * len(batches):
        batches = table.combine_chunks().to_batches()
    return of_arrays(batch.columns for batch in batches if batch.num_rows)


def dense(who: str, given: Any) -> Any:
    """Return a table of pyarrow or polars as an array, and any other value as it is."""
    if (x := short(given)) is not None:
        return x
    found = table_of(who, given)
    return given if found is None else columns_of(who, found).dense()


def short(table: Any) -> ndarray | None:
    """Return a short table of floats of one type as a Fortran-ordered array: to look at each column would take longer.
    None for any other table.

    table: of pyarrow; of polars, whose conversion to Arrow would take longer still; or anything else.
    """
    x: ndarray
    kind = _kind_of(table)
    if kind == ("polars", "DataFrame") and 0 < table.height < SMALL:
        if {*map(str, table.dtypes)} in ({"Float64"}, {"Float32"}):
            x = table.to_numpy(order="fortran", writable=True)
            return x
    if kind != ("pyarrow", "Table"):
        return None
    import pyarrow as pa

    if not 0 < table.num_rows < SMALL or set(table.schema.types) not in ({pa.float64()}, {pa.float32()}):
        return None
    (batch,) = table.combine_chunks().to_batches()
    x = batch.to_tensor(null_to_nan=True, row_major=False).to_numpy()
    return x


def names_of(table: Any) -> list[str]:
    """Return the names of the columns of a pyarrow Table or a polars DataFrame."""
    names: list[str] = table.column_names if hasattr(table, "column_names") else table.columns
    return names


def hollow(table: Any) -> Any:
    """Return a pyarrow Table with the names of the columns of a short table, and no rows, without converting a polars
    DataFrame, which takes long. None without pyarrow.
    """
    if _kind_of(table)[0] == "pyarrow":
        return table.slice(0, 0)
    if not find_spec("pyarrow"):
        return None
    import pyarrow as pa

    return pa.Table.from_arrays([pa.array([], pa.float64())] * len(table.columns), table.columns)


def of_arrays(batches: Iterable[Sequence[Any]]) -> Columns:
    """Return the columns of record batches, which are given as Arrow arrays of numbers."""
    arrays = list(batches)
    return Columns([[numbers(array) for array in batch] for batch in arrays], arrays)


def check_numbers(who: str, table: Any) -> None:
    """Raise ValueError if a column of a pyarrow Table has neither numbers nor bools."""
    for field in table.schema:
        if not is_number(field.type, bools=True):
            raise ValueError(f"{who}: column {field.name!r}: expected numbers, got {field.type}")


def extremes(x: ndarray, weight: ndarray | None = None) -> ndarray:
    """Return the least and the greatest value of positive weight of a column, (2, 1); NaN if there is none."""
    found: ndarray = cpu.extremes(x.reshape(1, 1, -1), weight, skipna=True)
    return found


def normalize(x: ndarray, stats: ndarray, out: ndarray) -> None:
    """Normalize one column, by (5, 1) statistics; FloatingPointError if it has an infinite value."""
    cpu.normalize(x.reshape(1, 1, -1), stats, IDENTITY, out.reshape(1, 1, -1), finite=True)
