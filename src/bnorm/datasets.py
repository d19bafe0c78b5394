"""Statistics of a complete data set in one pass, from any iterable of arrays or tables."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import arrow, checks, reductions
from bnorm.iterating import results
from bnorm.kernels import cpu, view
from bnorm.kernels.engines import engine_of
from bnorm.moments import Moments, Tree

WHO = "dataset_moments"
TABLES = ("pandas", "polars", "pyarrow", "dask")  # packages that have tables
PIECE = 1 << 22  # bytes of differences that are computed at a time


class Options(NamedTuple):
    """How the moments of an item are computed."""

    axis: int | tuple[int, ...] | list[int]
    skipna: bool
    exact: bool
    minmax: bool
    delta: int | None


class Part(NamedTuple):
    """The results for one item."""

    moments: Moments
    differences: Moments | None
    names: tuple[str, ...] | None  # of the columns of a table


def dataset_moments(
    iterable: Iterable[Any],
    *,
    axis: int | tuple[int, ...] | list[int] = 1,
    workers: int = 1,
    minmax: bool = False,
    skipna: bool = False,
    exact: bool = False,
    progress: bool = False,
    delta: int | None = None,
) -> Any:
    """Return count, mean and m2 per channel of all items together, in one pass, with the memory of a few items.

    Parameters
    ----------
    iterable : iterable
        A generator, a list, a PyTorch DataLoader, a reader of record batches. Its items may be

        - arrays (NumPy, CuPy, tensors, nested lists) with the same channels, of any other sizes, also empty;
        - pairs (array, weight), as tuples: weight as in `functional.moments`, bools or floats. Labels are not weights,
          so integers are refused unless `exact`, and so are lists of arrays, as a DataLoader of images and labels
          yields them: write ``(x for x, label in loader)``;
        - pyarrow RecordBatches and Tables, polars and pandas frames, and dictionaries of columns, whose columns are the
          channels and must have the same names in the same order. A missing value is NaN;
        - functions without arguments that return one of these, such as ``functools.partial(decode, path)``: the
          workers call them.
    axis : int or tuple of int, default 1
        The axis, or axes, of the channels in arrays, as in `functional.moments`.
    workers : int, default 1
        The number of threads that call functions and sum arrays. They help if reading and decoding release the GIL.
        The result is the same, to the bit, for any number of threads.
    minmax : bool, default False
        Whether to record the least and the greatest value of each channel too.
    skipna : bool, default False
        Whether to ignore NaN. Otherwise a channel with NaN has mean and m2 NaN.
    exact : bool, default False
        Whether to keep the sums as integers, as in `functional.moments`.
    progress : bool, default False
        Whether to show a progress bar, drawn by tqdm, with an estimate if the iterable has a length.
    delta : int, optional
        Return the moments of differences along the first axis too, x[t + delta] - x[t] of each item, computed in
        float64. A difference weighs as much as the value of less weight.

    Returns
    -------
    Moments, or a tuple of two with `delta`

    Raises
    ------
    TypeError, ValueError
        If there are no items, or one has other channels. Errors of an item or of the iterable are raised, with a note
        that names the item.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> images = (np.full((3, n, n), n, dtype="uint8") for n in (1, 2, 3))
    >>> m = bnorm.dataset_moments(images, axis=0, minmax=True)
    >>> m.count, m.max
    (array([14., 14., 14.]), array([3., 3., 3.]))
    """
    minmax, skipna, exact, progress = checks.flags(WHO, minmax=minmax, skipna=skipna, exact=exact, progress=progress)
    workers = checks.positive(WHO, "workers", workers)
    if delta is not None:
        delta = checks.positive(WHO, "delta", delta)
    if type(iterable).__module__.partition(".")[0] in TABLES and hasattr(iterable, "columns"):
        raise TypeError(
            f"{WHO}: iterable: expected an iterable of arrays or tables, got one {checks.type_name(iterable)}, whose "
            "items are columns or their names: [table] is an iterable of one table"
        )
    if isinstance(iterable, str | bytes | dict) or not hasattr(iterable, "__iter__"):
        raise TypeError(f"{WHO}: iterable: expected an iterable of arrays or tables, got {checks.type_name(iterable)}")
    options = Options(axis, skipna, exact, minmax, delta)
    total, changes, first = Tree(), Tree(), None
    for i, part in enumerate(results(WHO, iterable, partial(part_of, options), workers, progress)):
        if first is None:
            first = part
        _check_alike(i, part, first)
        total.add(part.moments)
        if part.differences is not None:
            changes.add(part.differences)
    if first is None:
        raise ValueError(f"{WHO}: iterable: expected at least one item, got none")
    return total.result() if delta is None else (total.result(), changes.result())


def part_of(options: Options, i: int, item: Any) -> Part:
    """Return the moments of an item."""
    who = f"{WHO}: item {i}"
    item, weight = unpacked(who, item, options.exact)
    if (columns := columns_of(who, item)) is None:
        return Part(*_of_array(who, item, options.axis, weight, options), None)
    if not columns:
        raise ValueError(f"{who}: expected a table with columns, got a {checks.type_name(item)} without any")
    if options.axis not in (1, -1):
        raise ValueError(f"{who}: axis: expected 1, that of the columns, for a table, got {options.axis!r}")
    if weight is None and options.delta is None and not options.exact:
        if (moments := _of_short(who, columns, options)) is not None:
            return Part(moments, None, tuple(columns))
    found = [_of_array(f"{who}: column {name!r}", x, (), weight, options) for name, x in columns.items()]
    moments = Moments._beside(m for m, _ in found)
    differences = [d for _, d in found if d is not None]
    return Part(moments, Moments._beside(differences) if differences else None, tuple(columns))


def unpacked(who: str, item: Any, integers: bool = False) -> tuple[Any, Any]:
    """Return an array or table and its weight, or None. integers: whether weights may be integers, like labels."""
    if not isinstance(item, tuple):
        if isinstance(item, list) and any(hasattr(value, "__array__") and np.ndim(value) for value in item):
            raise TypeError(
                f"{who}: expected an array, a table or a tuple (array, weight), got a list of {len(item)} arrays, as a "
                "DataLoader with labels yields: (x for x, *_ in loader) picks the arrays"
            )
        return item, None
    if len(item) == 1:
        return item[0], None
    if len(item) != 2:
        raise ValueError(f"{who}: expected an array or a pair (array, weight), got a tuple of {len(item)}")
    x, weight = item
    kind = np.asarray(weight).dtype.kind if engine_of(weight) is None else "f"
    if kind not in "bf" and not (kind in "iu" and integers):
        raise TypeError(
            f"{who}: weight: expected bools or floats in a pair (array, weight), got {checks.type_name(weight)} of "
            f"{np.asarray(weight).dtype}: labels are no weights, and (x for x, label in loader) leaves them out; "
            "weight.astype(float) makes weights of integers"
        )
    return x, weight


def columns_of(who: str, item: Any) -> dict[str, ndarray] | None:
    """Return the columns of a table by name, or None for an array."""
    if (table := arrow.table_of(who, item)) is not None:
        _names(who, table.column_names)
        arrow.check_numbers(who, table)
        return {name: _joined(table.column(name)) for name in table.column_names}
    package = type(item).__module__.partition(".")[0]
    if package in ("pandas", "polars") and hasattr(item, "columns"):
        names = _names(who, item.columns)
        given = (column for _, column in item.items()) if package == "pandas" else item.iter_columns()
        return {name: _numbers(who, name, column) for name, column in zip(names, given, strict=True)}
    if isinstance(item, dict):
        named = zip(_names(who, item), item.values(), strict=True)
        columns = {name: checks.real(f"{who}: column {name!r}", "x", values) for name, values in named}
        shapes = {column.shape for column in columns.values()}
        if len(shapes) != 1 or len(shapes.pop()) != 1:
            found = {name: column.shape for name, column in columns.items()}
            raise ValueError(
                f"{who}: expected columns of one length, got a dictionary of shapes {found}: "
                "(item['image'] for item in ...) picks one"
            )
        return columns
    return None


def _names(who: str, given: Iterable[Any]) -> list[str]:
    """Return the names of columns as text; each may occur only once."""
    names = [str(name) for name in given]
    if len(set(names)) < len(names):
        raise ValueError(f"{who}: expected columns of different names, got {names}")
    return names


def _joined(column: Any) -> ndarray:
    """Return a column of an Arrow table; integers stay integers, which may be larger than float64 holds."""
    if not len(column):
        return np.empty(0)
    return arrow.numbers(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


def _numbers(who: str, name: str, column: Any) -> ndarray:
    """Return a column of a pandas or polars frame; missing values of extension types become NaN."""
    x: ndarray = column.to_numpy()
    if x.dtype.kind != "O":
        return x
    try:
        if any(isinstance(value, str | bytes) for value in x):  # which NumPy would read as numbers
            raise TypeError
        return column.to_numpy(dtype=np.float64, na_value=np.nan)  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise ValueError(f"{who}: column {name!r}: expected numbers, got {column.dtype}") from None


def _of_array(who: str, x: Any, axis: Any, weight: Any, options: Options) -> tuple[Moments, Moments | None]:
    _, skipna, exact, minmax, delta = options
    m = reductions.moments(who, x, axis, weight, skipna, exact, minmax)
    return m, None if delta is None else _differences(who, x, axis, weight, options, delta)


def _of_short(who: str, columns: dict[str, ndarray], options: Options) -> Moments | None:
    """Return the moments of short columns by the kernels alone, as everything around them would take most of the time.
    The bits are those of `reductions.moments`. None if a column is long."""
    given = [checks.array(f"{who}: column {name!r}", x, integers=True) for name, x in columns.items()]
    if any(type(x) is not ndarray or x.nbytes > view.PIECE for x in given):
        return None
    blocks = [view.dense(x, x.dtype.newbyteorder("=")).reshape(-1, 1) for x in given]
    moments = Moments._from_parts(np.concatenate([cpu.moments(x, None, options.skipna) for x in blocks], axis=1))
    ends = [cpu.extremes(x, None, options.skipna) for x in blocks] if options.minmax else None
    return moments._of((len(blocks),), None if ends is None else np.concatenate(ends, axis=1))


def _differences(who: str, x: Any, axis: Any, weight: Any, options: Options, delta: int) -> Moments:
    """Return the moments of x[t + delta] - x[t], computed a few rows at a time."""
    x = checks.real(who, "x", x)
    axes = reductions.kept_axes(who, axis, x.shape)
    if 0 in axes or not x.ndim:
        raise ValueError(f"{who}: delta: expected a first axis of time that is not kept, got axis={axis!r}")
    w = None if weight is None else checks.real(who, "weight", weight)
    if w is not None and len(w) == 1:  # the weight does not depend on time
        w = np.broadcast_to(w, (len(x), *w.shape[1:]))
    n = max(0, len(x) - delta)
    step = max(1, PIECE // max(1, 8 * x[:1].size))
    tree = Tree()
    for i in range(0, max(n, 1), step):
        begin, end = i, min(i + step, n)
        change = np.subtract(x[begin + delta : end + delta], x[begin:end], dtype=np.float64)
        own = None if w is None else np.minimum(w[begin + delta : end + delta], w[begin:end])
        tree.add(reductions.moments(who, change, axis, own, options.skipna, options.exact, options.minmax))
    return tree.result()


def _check_alike(i: int, part: Part, first: Part) -> None:
    """Raise ValueError unless an item has the channels of the first item."""
    if part.names != first.names:
        named, wanted = (list(names) if names else "no names" for names in (part.names, first.names))
        raise ValueError(f"{WHO}: item {i}: expected the columns of item 0, {wanted}, got {named}")
    if part.moments.shape != first.moments.shape:
        raise ValueError(
            f"{WHO}: item {i}: expected {first.moments.shape} channels, as item 0 has, got {part.moments.shape}"
        )
