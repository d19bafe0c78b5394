"""Columns of Arrow tables as the kernels read them: where they are, one after the other, not transposed and not joined.

A missing value is NaN. Whole numbers, decimals and bools are converted to float64, nothing else is taken for a number.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.kernels import cpu


def is_number(kind: Any, bools: bool = False) -> bool:
    """Whether columns of an Arrow type hold numbers; one without any value may."""
    from pyarrow import types

    test = [types.is_floating, types.is_integer, types.is_decimal, types.is_null]
    return any(t(kind) for t in test) or (bools and types.is_boolean(kind))


# pyarrow's own ways to NumPy and back import pandas where that is installed, which takes longer than most files.


def values(array: Any) -> ndarray:
    """An Arrow array of numbers as floats: the memory that it has, unless it has to be converted or values are missing.

    What is returned may be read only.
    """
    import pyarrow as pa

    if not pa.types.is_floating(array.type):
        array = array.cast(pa.float64(), safe=False)
    dtype, stop = np.dtype(f"f{array.type.bit_width // 8}"), array.offset + len(array)
    data = array.buffers()[1]
    if data is None:
        return np.full(len(array), np.nan, dtype)
    x = np.frombuffer(data, dtype, stop)[array.offset :]
    if array.null_count:
        return np.where(present(array), x, dtype.type(np.nan))
    return x if x.flags.aligned else x.copy()


def present(array: Any) -> ndarray:
    """Which values of an Arrow array are not missing."""
    bits = array.buffers()[0]
    if bits is None:
        return np.full(len(array), array.null_count == 0)
    stop = array.offset + len(array)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")[array.offset :].astype(bool)


def array(x: ndarray, like: Any) -> Any:
    """A vector of floats as an Arrow array, in which is missing what is missing in another one."""
    import pyarrow as pa

    kind = {2: pa.float16, 4: pa.float32, 8: pa.float64}[x.itemsize]()
    bits = pa.py_buffer(np.packbits(present(like), bitorder="little")) if like.null_count else None
    return pa.Array.from_buffers(kind, len(x), [bits, pa.py_buffer(x)])


class Columns:
    """A table as Arrow has it: record batches, and of each of them a column for every feature.

    It has those properties of an array that the transformer uses.
    """

    ndim = 2

    def __init__(self, batches: list[list[ndarray]]) -> None:
        self.batches = batches
        self.shape = sum(len(batch[0]) for batch in batches), len(batches[0])
        self.dtype: np.dtype[Any] = np.result_type(*(column.dtype for column in batches[0]))

    def __len__(self) -> int:
        return self.shape[0]

    def parts(self, weight: ndarray | None = None) -> list[ndarray]:
        """Count, mean, m2, low of each batch."""
        found, start = [], 0
        for batch in self.batches:
            stop = start + len(batch[0])
            found.append(parts(batch, None if weight is None else weight[start:stop]))
            start = stop
        return found

    def dense(self) -> ndarray:
        """One array, in the memory order of Arrow."""
        out = np.empty(self.shape, self.dtype, order="F")
        start = 0
        for batch in self.batches:
            for j, column in enumerate(batch):
                out[start : start + len(column), j] = column
            start += len(batch[0])
        return out

    def mapped(self, stats: ndarray) -> ndarray:
        """(x - mean) scale + shift, in that order too; FloatingPointError where there is an infinite value."""
        out = np.empty(self.shape, self.dtype, order="F")
        start = 0
        for batch in self.batches:
            for j, column in enumerate(batch):
                x = np.ascontiguousarray(column, self.dtype)
                normalize(x, np.ascontiguousarray(stats[:, j : j + 1]), out[start : start + len(x), j])
            start += len(batch[0])
        return out


def table_of(given: Any) -> Any:
    """A pyarrow RecordBatch, a Table, or a polars DataFrame, as a pyarrow Table; None for anything else."""
    package, name = type(given).__module__.partition(".")[0], type(given).__name__
    if package == "polars" and name == "DataFrame":
        return given.to_arrow() if find_spec("pyarrow") else None
    if package != "pyarrow" or name not in ("RecordBatch", "Table"):
        return None
    import pyarrow as pa

    return given if name == "Table" else pa.Table.from_batches([given])


def table(x: ndarray, names: Sequence[str]) -> Any:
    """An array as a pyarrow Table."""
    import pyarrow as pa

    return pa.table(dict(zip(names, x.T, strict=True)))


def columns_of(who: str, table: Any) -> Columns:
    """The columns of a pyarrow Table with rows, all of which have to be numbers or bools."""
    for field in table.schema:
        if not is_number(field.type, bools=True):
            raise ValueError(f"{who}: X: column {field.name!r}: expected numbers, got {field.type}")
    batches = [[values(column) for column in batch.columns] for batch in table.to_batches() if batch.num_rows]
    return Columns(batches)


def parts(columns: Sequence[ndarray], weight: ndarray | None = None) -> ndarray:
    """(4, C): count, mean, m2, low of features that are given as a column each. What is NaN is left out."""
    w = None if weight is None else weight.reshape(1, -1)
    return np.concatenate([cpu.moments(x.reshape(1, 1, -1), w, True) for x in columns], axis=1)


def extremes(x: ndarray, weight: ndarray | None = None) -> tuple[float, float]:
    """The least and the greatest value of a column among those that count; NaN where there is none."""
    if weight is not None and not weight.all():
        x = x[weight > 0]
    return (float(np.fmin.reduce(x)), float(np.fmax.reduce(x))) if len(x) else (np.nan, np.nan)


def normalize(x: ndarray, stats: ndarray, out: ndarray) -> None:
    """One column, by the (5, 1) numbers that the kernels take; FloatingPointError where it has an infinite value."""
    cpu.normalize(x.reshape(1, 1, -1), stats, 1.0, out.reshape(1, 1, -1), finite=True)
