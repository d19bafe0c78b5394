"""`bnorm transform`: normalizes a table, column by column, with the statistics of a state file."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app import writers
from bnorm.app.errors import DataError
from bnorm.app.inputs import Stream, number_columns
from bnorm.app.progress import Progress
from bnorm.app.sources import CsvSource, Source, pyarrow


class Map(NamedTuple):
    """The map of features with these names, or of this many columns of numbers if they have none."""

    names: list[str] | None
    features: int
    stats: Callable[[Any], ndarray]  # (5, features) as the kernels take them, for a type of the values


def transform(
    sources: Sequence[Source], chosen: Map, output: str, dtype: str | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Write the sources as one table, with the features mapped and all other columns unchanged."""
    pa = pyarrow()
    first = sources[0]
    names = _features(first, chosen)
    others = [name for name in first.columns if name not in set(names)]
    stream = Stream(sources, names, others)
    _check_others(sources, others)
    kinds = {name: _kind(first, name, name in set(names), dtype) for name in first.columns}
    schema = pa.schema(list(kinds.items()))
    stats = {size: chosen.stats(np.dtype(size)) for size in ("float32", "float64")}
    maps = {
        name: {size: np.ascontiguousarray(a[:, i : i + 1]) for size, a in stats.items()} for i, name in enumerate(names)
    }
    with Progress("transform", stream.size, quiet) as progress:
        with writers.table(output, schema) as writer, closing(stream.read()) as batches:
            for batch in batches:
                found = dict(zip(names + others, batch.columns, strict=True))
                for name in names:
                    found[name] = _mapped(found[name], maps[name], kinds[name], stream, name)
                writer.write_batch(pa.record_batch([found[name] for name in kinds], schema=schema))
                progress.add(batch.num_rows, stream.progress)
        return {"rows": progress.rows, "columns": len(names), "seconds": round(progress.seconds, 3), "output": output}


def _features(first: Source, chosen: Map) -> list[str]:
    """The columns that are mapped, in the order of the features."""
    if chosen.names is not None:
        return list(chosen.names)
    names = number_columns(first)
    if len(names) != chosen.features:
        raise DataError(
            f"{first.name}: expected {chosen.features} columns of numbers, as the state has that many features, "
            f"without names, got {len(names)}"
        )
    return names


def _check_others(sources: Sequence[Source], others: Sequence[str]) -> None:
    first = sources[0]
    for s in sources[1:]:
        if more := [name for name in s.columns if name not in first.columns]:
            raise DataError(
                f"{s.name}: column {more[0]!r}: expected the columns of {first.name}, which does not have it"
            )
        for name in others:
            if not isinstance(s, CsvSource) and s.columns[name] != first.columns[name]:
                raise DataError(
                    f"{s.name}: column {name!r}: expected {first.columns[name]}, as {first.name} has it, "
                    f"got {s.columns[name]}"
                )


def _kind(first: Source, name: str, is_feature: bool, dtype: str | None) -> Any:
    """The Arrow type of a column that is written."""
    pa = pyarrow()
    kind = first.columns[name]
    if not is_feature:
        return pa.string() if isinstance(first, CsvSource) else kind
    small = pa.types.is_float32(kind) or pa.types.is_float16(kind)
    return {"float32": pa.float32(), "float64": pa.float64(), None: pa.float32() if small else pa.float64()}[dtype]


def _mapped(column: Any, stats: Mapping[str, ndarray], kind: Any, stream: Stream, name: str) -> Any:
    """One column of a batch, mapped, as an Arrow array of that type; missing values stay missing."""
    x, dtype = arrow.values(column), np.dtype(f"f{kind.bit_width // 8}")
    if x.dtype != np.float64:
        x = x.astype(dtype)
    out = np.frombuffer(pyarrow().allocate_buffer(x.nbytes), x.dtype)  # from a pool: new memory costs page faults
    try:
        arrow.normalize(x, stats[x.dtype.name], out)
    except FloatingPointError:
        raise infinite(x, stream, name) from None
    return arrow.array(out.astype(dtype, copy=False), column)


def infinite(x: ndarray, stream: Stream, name: str) -> DataError:
    """The error for a column of a batch that has an infinite value."""
    row = stream.row + int(np.isinf(x).argmax()) + 1
    return DataError(
        f"{stream.where}: column {name!r}, row {row}: expected a finite number, got {x[row - stream.row - 1]}"
    )
