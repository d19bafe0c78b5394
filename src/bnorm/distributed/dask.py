"""Dask collections: their blocks, and tree reductions over them. This module is imported only if there is a collection.

A block is an array or a pandas frame that Dask computes in one piece. Blocks are never concatenated. The results of
neighboring blocks are merged in their order, so the result does not depend on the scheduler.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import isnan, nan, prod
from typing import Any

import numpy as np

from bnorm.checks import FLOATS, missing
from bnorm.distributed.engine import refuse_unknown
from bnorm.distributed.learners import Learning, keys_of, refuse_beside, refuse_other
from bnorm.distributed.sums import NUMBER
from bnorm.kernels.engines import serially
from bnorm.transformer.durations import is_duration

try:
    import dask
    import dask.array as da
except ImportError as error:
    raise missing(__name__, "dask", "dask", error) from error

NAME = "Dask"
computed = dask.compute
FAN_IN = 8  # this many neighbors are merged by one task
# Dask's expressions that shuffle rows.
SHUFFLES = {"DropDuplicates", "GroupByApply", "Merge", "RearrangeByColumn", "SetIndex", "Shuffle", "SortValues"}


def in_memory(name: str) -> str:
    """The expression that gets an array from the collection of this name."""
    return f"{name}.compute()"


class Collection:
    """A Dask array or DataFrame as a table of floats. Making this object computes nothing.

    sample   at most two rows that have its dtype and its features
    rows     their number; NaN if it is not known
    """

    def __init__(self, who: str, X: Any) -> None:
        self._is_frame = _is_frame(X) and X.ndim == 2
        self._who, self._X = who, ordered(who, X) if self._is_frame else X
        self.sample = X._meta_nonempty if self._is_frame else _sample(who, array_of(who, "X", X))
        self.rows = nan if self._is_frame else X.shape[0]

    def floats(self, convert: Callable[[Any], Any], like: Any) -> None:
        """Use convert(block), which gives an array like `like`, for every block."""
        self._convert, self._like = convert, like

    def weights(self, sample_weight: Any) -> Any:
        """Return the weights of rows, in the blocks of this table."""
        if is_beside(self._X, sample_weight):
            return sample_weight
        if self._is_frame and not dask.is_dask_collection(sample_weight):
            raise TypeError(
                f"{self._who}: sample_weight: expected a Dask Series with the {self._X.npartitions} partitions of X, "
                f"such as one of its columns, as their sizes are not known, got {type(sample_weight).__name__}"
            )
        return aligned(self._who, "sample_weight", sample_weight, self._X, self._array(), (1,))

    def reduced(
        self, of_block: Callable[..., Any], merge: Callable[..., Any], weight: Any = None, together: bool = False
    ) -> list[Any]:
        """Return `of_block(x, weight)` of all blocks, merged, for each chunk of features.

        together: put all features into one chunk first.
        """
        if is_beside(self._X, weight):
            return beside(partial(_frame_reduced, of_block, self._convert), merge, self._X, weight)
        array = self._array()
        return reduced(of_block, merge, array.rechunk({1: -1}) if together else array, (1,), weight)

    def mapped(self, of_block: Callable[[Any, Any], Any], statistics: Any) -> Any:
        """Return a lazy collection of the same type, with `of_block(x, statistics)` of every block.

        statistics: (k, features); each block gets the columns of its features.
        """
        if not self._is_frame:
            return mapped(of_block, self._array(), statistics, self._like)
        dtypes = {name: dtype if dtype in FLOATS else self._like.dtype for name, dtype in self._X.dtypes.items()}
        of_frame = partial(_frame_mapped, of_block, self._convert, statistics, list(dtypes.values()))
        return self._X.map_partitions(of_frame, meta=of_frame(self._X._meta))

    def _array(self) -> Any:
        """The table as a Dask array of floats."""
        if self._is_frame:
            return self._X.map_partitions(self._convert, meta=self._like)
        return self._X.map_blocks(self._convert, dtype=self._like.dtype, meta=self._like)


def fit(
    t: Any, data: Any, columns: Sequence[str] | None = None, sample_weight: Any = None, times: str | None = None
) -> Any:
    """Fit a transformer to the rows of a Dask DataFrame or array, as `t.fit` does. It computes at once.

    Parameters
    ----------
    t : BatchNormTransformer or GroupedTransformer
        After an error it is as it was.
    data : dask.dataframe.DataFrame or dask.array.Array
        NaN is a missing value. For times and for groups it must be a DataFrame.
    columns : sequence of str, optional
        The features, columns of a DataFrame. By default all columns of numbers and bools.
    sample_weight : str, Series or array, optional
        The weights of the rows, or the name of their column. For times it must be a name; for a DataFrame, a name or a
        Series with its partitions, as an array may lose the order of its rows.
    times : str, optional
        The column of the times of the rows, for a half-life that is a length of time.

    Returns
    -------
    BatchNormTransformer or GroupedTransformer
        t itself.

    Examples
    --------
    >>> import dask.dataframe as dd, pandas as pd
    >>> from bnorm import BatchNormTransformer
    >>> frame = dd.from_pandas(pd.DataFrame({"id": [1, 2, 3], "age": [20.0, 30.0, 40.0]}), npartitions=2)
    >>> t = fit(BatchNormTransformer(momentum=None), frame, columns=["age"])
    >>> t.mean_
    array([30.])
    >>> transform(t, frame).compute()["id"].tolist()  # untouched
    [1, 2, 3]
    """
    refuse_other("dask.fit", t)
    if times is not None or is_duration(t.halflife):
        reading = Learning.of("dask.fit", t, _kinds("dask.fit", data), columns, sample_weight, times)
        parts = data[reading.names].to_delayed()
        return reading.fit(t, dask.compute(*(dask.delayed(_state)(reading, part) for part in parts)))
    keys, beside = keys_of("dask.fit", t), []
    if isinstance(sample_weight, str):
        refuse_unknown("dask.fit", [sample_weight], _kinds("dask.fit", data))
        beside, sample_weight = [sample_weight], data[sample_weight]
    if keys or beside:
        columns = _numbers("dask.fit", data, *keys, *beside) if columns is None else _listed(columns)
        refuse_beside("dask.fit", columns, keys)
        columns = [*keys, *columns]
    return t.fit(_chosen("dask.fit", data, columns), sample_weight=sample_weight)


def transform(t: Any, data: Any, columns: Sequence[str] | None = None) -> Any:
    """Normalize the features that a transformer has learned, in a Dask collection, lazily; other columns are untouched.

    Parameters
    ----------
    t : BatchNormTransformer or GroupedTransformer
        Fitted.
    data : dask.dataframe.DataFrame or dask.array.Array
        The rows to normalize.
    columns : sequence of str, optional
        The columns of the features of a DataFrame, if they have no names. By default all columns of numbers.

    Returns
    -------
    dask.dataframe.DataFrame or dask.array.Array
    """
    names = getattr(t, "feature_names_in_", None) if _is_frame(data) else None
    if names is not None and columns is not None:
        raise ValueError(f"dask.transform: columns: expected None, as the features have names, got {list(columns)}")
    chosen = _chosen("dask.transform", data, columns if names is None else list(names))
    y = t.transform(chosen)
    if not _is_frame(data) or list(y.columns) == list(data.columns):
        return y
    return ordered("dask.transform", data).map_partitions(_replaced, y, meta=_replaced(data._meta, y._meta))


def _state(reading: Learning, frame: Any) -> bytes:
    import pyarrow as pa

    return reading.state([pa.Table.from_pandas(frame, preserve_index=False)])


def _frame_reduced(of_block: Callable[..., Any], convert: Callable[[Any], Any], frame: Any, weight: Any) -> Any:
    return of_block(convert(frame), weight.values)


def _is_frame(data: Any) -> bool:
    """Whether it is a DataFrame or a Series."""
    return hasattr(type(data), "to_dask_array")  # asks the type, as a Delayed claims to have every attribute


def _kinds(who: str, data: Any) -> dict[str, int | None]:
    if not _is_frame(data) or data.ndim != 2:
        raise TypeError(f"{who}: data: expected a Dask DataFrame, whose columns have names, got {type(data).__name__}")
    return {name: NUMBER if dtype.kind in "biuf" else None for name, dtype in data.dtypes.items()}


def _replaced(frame: Any, columns: Any) -> Any:
    """Return a frame in which these columns replace those of the same names."""
    frame = frame.copy(deep=False)
    for name in columns.columns:
        frame[name] = columns[name]
    return frame


def _chosen(who: str, data: Any, columns: Any) -> Any:
    if not _is_frame(data):
        array = array_of(who, "data", data)
        if columns is not None:
            raise ValueError(f"{who}: columns: expected None for an array, got {columns!r}")
        return array
    numbers = _numbers(who, data)
    columns = numbers if columns is None else _listed(columns)
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"{who}: columns: expected names of columns, each once, at least one, got {columns}")
    refuse_unknown(who, columns, data.columns)
    return data if columns == list(data.columns) else data[columns]


def _listed(columns: Any) -> list[Any]:
    return [columns] if isinstance(columns, str) else list(columns)


def _numbers(who: str, data: Any, *but: str) -> list[Any]:
    return [name for name, kind in _kinds(who, data).items() if kind == NUMBER and name not in but]


def _sample(who: str, x: Any) -> Any:
    if x.ndim == 2 and isnan(x.shape[1]):
        raise ValueError(
            f"{who}: X: expected a known number of features, got shape {x.shape}; X.compute_chunk_sizes() finds it"
        )
    shape = [2 if isnan(n) else n for n in x.shape]
    shape[:1] = [min(n, 2) for n in shape[:1]]
    return np.zeros(shape, x.dtype, like=x._meta)


def _frame_mapped(
    of_block: Callable[..., Any], convert: Callable[[Any], Any], statistics: Any, dtypes: list[Any], frame: Any
) -> Any:
    """A partition with its index and names, and columns of these dtypes."""
    result = type(frame)(of_block(convert(frame), statistics), index=frame.index, columns=frame.columns)
    return result if len(set(dtypes)) < 2 else result.astype(dict(zip(frame.columns, dtypes, strict=True)))


def ordered(who: str, frame: Any) -> Any:
    """The same DataFrame, whose partitions all have its columns in its order. Dask does not see to it."""
    in_order = partial(_in_order, who, frame._meta.columns)
    return frame.map_partitions(in_order, meta=frame._meta, enforce_metadata=False)


def _in_order(who: str, columns: Any, frame: Any) -> Any:
    if frame.columns.equals(columns):
        return frame
    found = list(frame.columns)
    if len(found) != len(columns) or len(set(found)) < len(found) or set(found) != set(columns):
        raise ValueError(f"{who}: expected the columns {list(columns)} in all partitions, got {found}")
    return frame[list(columns)]


def array_of(who: str, name: str, value: Any) -> Any:
    """A Dask array or DataFrame as a Dask array; TypeError for any other value. Nothing is computed."""
    if isinstance(value, da.Array):
        return value
    if _is_frame(value):
        return (ordered(who, value) if value.ndim == 2 else value).to_dask_array()
    raise TypeError(f"{who}: {name}: expected a Dask array or DataFrame, got {type(value).__name__}")


def blocks_of(function: Callable[..., Any], x: Any, axes: tuple[int, ...], weight: Any = None) -> list[list[Any]]:
    """`function(block, weights)` of each block of an array, delayed: one list for each chunk along `axes`, in C order.

    weight: None, or a result of `aligned`, or with all axes of x: of length 1 along those on which it does not depend.
    """
    every = tuple(range(x.ndim))
    others = tuple(axis for axis in every if axis not in axes)
    args = [x, every]
    if weight is not None:
        args += [weight, every if weight.ndim == x.ndim else others[: weight.ndim]]
    results = da.blockwise(
        serially, every, *args, function=function, align_arrays=False, meta=np.empty((0,) * x.ndim, object)
    )
    cuts = results.to_delayed().transpose(axes + others)
    return [list(some) for some in cuts.reshape(prod(cuts.shape[: len(axes)]), -1)]


def reduced(
    function: Callable[..., Any], merge: Callable[[list[Any]], Any], x: Any, axes: tuple[int, ...], weight: Any = None
) -> list[Any]:
    """`function(block, weights)` of all blocks, merged: one result for each chunk along `axes`, in one computation."""
    return list(dask.compute(*(tree(parts, merge) for parts in blocks_of(function, x, axes, weight))))


def is_beside(x: Any, weight: Any) -> bool:
    """Whether x is a DataFrame, and weights are a Series with the same partitions."""
    return (
        _is_frame(x) and x.ndim == 2 and _is_frame(weight) and weight.ndim == 1 and weight.npartitions == x.npartitions
    )


def partitions(function: Callable[..., Any], frame: Any, *others: Any) -> list[Any]:
    """Return `function(partition, *others)` of each partition of a DataFrame, delayed. others: Series with the same
    partitions, or values that are the same for all.

    The results are one expression. If each were computed by itself, rows that Dask shuffles might change their order.
    """
    options = {"align_dataframes": False, "meta": (None, object), "enforce_metadata": False}
    found: list[Any] = frame.map_partitions(serially, *others, function=function, **options).to_delayed()
    return found


def beside(function: Callable[..., Any], merge: Callable[[list[Any]], Any], frame: Any, weight: Any) -> list[Any]:
    """`reduced` for the partitions of a DataFrame and of a Series of weights."""
    return list(dask.compute(tree(partitions(function, frame, weight), merge)))


def mapped(function: Callable[[Any, Any], Any], x: Any, statistics: Any, like: Any) -> Any:
    """`function(block, statistics)` of each block of a table, lazily. like: an array of the type of the results.

    statistics: an array (k, features); each block gets the columns of its features.
    """
    s = da.from_array(statistics, chunks=(-1, x.chunks[1]))
    return da.blockwise(
        serially, "ij", x, "ij", s, "kj", function=function, concatenate=True, align_arrays=False, meta=like
    )


def aligned(who: str, name: str, weight: Any, given: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Return weights as a Dask array with the blocks of x, which is the collection `given` as an array.

    weight: a Dask or other array in the shape of x without `axes`, or (N,), one per index of its first axis.
    """
    if _is_frame(given) and not _is_frame(weight) and _is_shuffled(given):
        raise ValueError(
            f"{who}: {name}: expected a Series with the {given.npartitions} partitions of the DataFrame, such as one "
            f"of its columns: rows that Dask shuffles may be in another order in an array, got {type(weight).__name__}"
        )
    chunks = tuple(some for axis, some in enumerate(x.chunks) if axis not in axes)
    lazy = dask.is_dask_collection(weight)
    w: Any = array_of(who, name, weight) if lazy else np.asarray(weight)
    wanted = chunks if w.ndim == len(chunks) else chunks[:1]
    unknown = any(isnan(size) for sizes in wanted for size in sizes)
    shape = tuple(sum(sizes) for sizes in wanted)
    if w.ndim != len(wanted) or not (unknown or any(map(isnan, w.shape)) or w.shape == shape):
        raise ValueError(f"{who}: {name}: expected shape {shape} for chunks {wanted}, got {w.shape}")
    if not lazy:
        if unknown:
            raise TypeError(
                f"{who}: {name}: expected a Dask array, as the sizes of the blocks of x are not known, "
                f"got {type(weight).__name__}; x.compute_chunk_sizes() computes them"
            )
        return da.from_array(w, chunks=wanted)
    if unknown or any(map(isnan, w.shape)):  # block by block; each block is checked when it is computed
        if w.numblocks != tuple(map(len, wanted)):
            raise ValueError(
                f"{who}: {name}: expected {tuple(map(len, wanted))} blocks, as many as x has, got {w.numblocks}"
            )
        return w
    return w.rechunk(wanted)


def _is_shuffled(frame: Any) -> bool:
    """Whether Dask may compute the rows of a frame in another order each time, as far as names of expressions tell."""
    return not SHUFFLES.isdisjoint(type(expression).__name__ for expression in frame.expr.walk())


def chunked(a: Any, chunks: tuple[Any, ...]) -> Any:
    """An array as a Dask array of these chunks."""
    return a.rechunk(chunks) if dask.is_dask_collection(a) else da.from_array(np.asarray(a), chunks=chunks)


def blockwise(function: Callable[..., Any], dtype: Any, x: Any, *others: Any) -> Any:
    """Return `function` of the blocks of x and of others, which have the axes of x, some of length 1, lazily."""
    every = tuple(range(x.ndim))
    args = [arg for a in (x, *others) for arg in (a, every)]
    return da.blockwise(
        serially, every, *args, function=function, align_arrays=False, dtype=dtype, meta=x._meta.astype(dtype)
    )


def tree(items: Sequence[Any], merge: Callable[[list[Any]], Any]) -> Any:
    """Merge delayed items in groups of neighbors, level by level, until one is left. merge: takes a list in order."""
    merged = dask.delayed(merge, pure=True)
    items = list(items)
    while len(items) > 1:
        items = [merged(items[i : i + FAN_IN]) for i in range(0, len(items), FAN_IN)]
    return items[0]
