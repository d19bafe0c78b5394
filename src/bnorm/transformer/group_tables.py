"""A table with keys, split into its key columns and its features."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from scipy.sparse import issparse
from sklearn.utils.validation import check_array, validate_data

from bnorm import arrow, checks
from bnorm.checks import FLOATS
from bnorm.kernels import kind_of
from bnorm.kernels.engines import engine_of
from bnorm.transformer.keys import MOST
from bnorm.transformer.sklearn_private import output_config
from bnorm.transformer.tables import Dense, InColumns
from bnorm.transformer.times import names_of
from bnorm.transformer.validation import check_names, named, table_of

WHO = "GroupedTransformer"
LONG = 1 << 14  # from this many rows on, looking up each column of a frame is faster than copying them all


class Split(NamedTuple):
    """A table. keys: name and values of each key column; features: the other columns, as the transformers see them."""

    places: list[int]
    keys: list[tuple[str, Any]]
    features: Dense
    names: ndarray | None  # of the features
    given: Any  # the table as it was given

    def with_keys(self, estimator: Any, y: ndarray, framed: bool = True) -> Any:
        """Return the features y and the keys in the column order of the table: in a data frame if it may be framed and
        `set_output` asks for one, otherwise in an array, of objects if the keys are not numbers.
        """
        width = y.shape[1] + len(self.places)
        others = [j for j in range(width) if j not in self.places]
        names = estimator.get_feature_names_out()
        kind = output_config("transform", estimator)["dense"]
        columns: list[Any] = [None] * width
        for place, (_, values) in zip(self.places, self.keys, strict=True):
            columns[place] = values
        if framed and kind != "default":
            for j, place in enumerate(others):
                columns[place] = y[:, j]
            return _frame(kind, names, columns, self.given.index if hasattr(self.given, "iloc") else None)
        found = {place: _plain(columns[place]) for place in self.places}
        plain = all(_is_number(column) for column in found.values())
        out = np.empty((len(y), width), np.result_type(y, *found.values()) if plain else object)
        out[:, others] = y
        for place, column in found.items():  # an array of times would be assigned as integers
            out[:, place] = list(column) if column.dtype.kind == "M" else column
        return out


def _plain(values: Any) -> ndarray:
    """Return a column of keys as an array of its values."""
    if isinstance(values, np.ma.MaskedArray):
        return _unmasked(values)
    chunked = hasattr(values, "num_chunks")
    if chunked and hasattr(values.type, "index_type"):  # pyarrow would replace a missing category by the last one
        values = values.cast(values.type.value_type)
    found = values.to_numpy(zero_copy_only=False) if chunked else np.asarray(values)
    if found.dtype.kind == "f" and (np.abs(found) >= MOST).any():  # they may be integers, some of them missing
        exact = values.to_pylist() if chunked else values.tolist()
        if any(isinstance(value, int) and abs(value) > MOST for value in exact):
            return np.array(exact, object)
    return found


def _unmasked(values: Any) -> ndarray:
    """Return a masked array of keys with NaN, or None, in the place of missing keys."""
    mask = np.ma.getmaskarray(values)
    if not mask.any():
        return np.asarray(values)
    if _is_number(values.filled(0)):
        found: ndarray = values.astype(np.result_type(values, np.float16)).filled(np.nan)
    else:
        found = values.data.astype(object)
        found[mask] = None
    return found


def _is_number(column: ndarray) -> bool:
    """Whether an array of floats can hold these keys unchanged."""
    kind = column.dtype.kind
    return kind == "f" or (kind in "iu" and -MOST <= column.min(initial=0) and column.max(initial=0) <= MOST)


def _frame(kind: str, names: ndarray, columns: list[Any], index: Any) -> Any:
    if kind == "polars":
        import polars

        return polars.DataFrame(
            [
                polars.from_arrow(c).rename(name) if hasattr(c, "num_chunks") else polars.Series(name, c)
                for name, c in zip(names, columns, strict=True)
            ]
        )
    from sys import modules

    pandas = modules["pandas"]  # `set_output` has imported it
    columns = [_in_pandas(c) for c in columns]
    parts = [
        c.rename(name) if hasattr(c, "iloc") else pandas.Series(c, index=index, name=name)
        for name, c in zip(names, columns, strict=True)
    ]
    return pandas.concat(parts, axis=1)


def _in_pandas(column: Any) -> Any:
    """Return a column from which pandas makes no floats that are other numbers, as it does if integers are missing."""
    if isinstance(column, np.ma.MaskedArray):
        return _unmasked(column)
    if not hasattr(column, "to_pandas"):
        return column
    from pyarrow import types

    if not column.null_count or not types.is_integer(column.type):
        return column.to_pandas()
    nullable = str(column.type).replace("i", "I").replace("u", "U")  # pandas says UInt8
    return column.to_pandas(integer_object_nulls=True).astype(nullable)


def split(estimator: Any, X: Any, reset: bool, keys: Any = None) -> Split:
    """Split a table. As scikit-learn does, compare its columns with those of fit, or remember them if `reset` is set.

    keys: the keys, if X has only features.
    """
    if issparse(X):
        raise TypeError(f"{WHO}: X: expected a dense table, got a sparse {type(X).__name__}")
    if (engine := engine_of(X)) is not None:
        raise TypeError(f"{WHO}: X: expected a table in memory, got a {engine.NAME} collection")
    if kind_of(X) not in (None, ndarray):
        raise TypeError(f"{WHO}: X: expected a table in the machine's memory, got a CuPy array: cupy.asnumpy(X) is one")
    if (table := arrow.table_of(WHO, X)) is not None:
        return _of_arrow(estimator, X, table, reset, keys)
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        return _of_pandas(estimator, X, reset, keys)
    return _of_array(estimator, X, reset, keys)


def _places(estimator: Any, names: list[Any] | None, width: int, reset: bool) -> list[int]:
    """The positions of the key columns."""
    by = estimator.by
    given = list(by) if isinstance(by, list | tuple) else [by]
    places = []
    for one in given:
        if isinstance(one, bool | np.bool_) or not isinstance(one, str | int | np.integer):
            raise TypeError(f"{WHO}: by: expected names or positions of columns, got {one!r}")
        if isinstance(one, str):
            if names is None:
                raise ValueError(f"{WHO}: by: expected positions, as X has no names of columns, got {one!r}")
            if names.count(one) != 1:
                few = ", ".join(map(repr, names[:8]))
                raise ValueError(f"{WHO}: by: expected the name of one column of X, which has {few}, got {one!r}")
            places.append(names.index(one))
        else:
            if not -width <= one < width:
                raise ValueError(f"{WHO}: by: expected positions below {width}, the number of columns, got {one}")
            places.append(int(one) % width)
    if not places or len(set(places)) != len(places):
        raise ValueError(f"{WHO}: by: expected at least one column, each once, got {by!r}")
    if not reset and places != estimator._places:
        raise ValueError(f"{WHO}: by: expected columns {estimator._places}, as this stream began, got {places}")
    if len(places) == width:
        raise ValueError(f"{WHO}: X: expected features besides the keys, got {width} feature(s), all of them keys")
    return places


def check_places(estimator: Any) -> None:
    """Raise an error if `by` has changed, and does not name the key columns of the stream any more."""
    _places(estimator, estimator._known_names(), estimator.n_features_in_, reset=False)


def _key_columns(estimator: Any, keys: Any) -> list[tuple[str, Any]]:
    """Return the key columns of keys that are given apart from a table: found by their names if fit knew names."""
    names, n = key_names(estimator), len(estimator._places)
    if hasattr(keys, "columns") and hasattr(keys, "iloc"):
        columns = [keys.iloc[:, j] for j in range(keys.shape[1])]
    elif (table := arrow.table_of(WHO, keys)) is not None:
        columns = list(table.columns)
    elif n > 1:
        array = keys if isinstance(keys, ndarray) else np.array(keys, object)
        if array.ndim == 1:  # tuples, as groups_ has them
            array = np.array(array.tolist(), object)
        if array.ndim != 2:
            got = f"{checks.type_name(keys)} of shape {array.shape}"
            raise ValueError(f"{WHO}: keys: expected {n} columns, or a tuple of {n} keys for each row, got {got}")
        columns = [array[:, j] for j in range(array.shape[1])]
    else:
        one = isinstance(keys, ndarray) and keys.ndim == 2
        columns = [keys[:, j] for j in range(keys.shape[1])] if one else [keys]
    if len(columns) != n:
        raise ValueError(f"{WHO}: keys: expected {n} columns, got {len(columns)}")
    given, known = names_of(keys), estimator._known_names()
    if given and known is not None and all(isinstance(name, str) for name in given):
        wanted = [known[place] for place in estimator._places]
        if sorted(given) != sorted(wanted):
            raise ValueError(f"{WHO}: keys: expected columns {wanted}, as in fit, got {given}")
        columns = [columns[given.index(name)] for name in wanted]
    for name, values in zip(names, columns, strict=True):
        if isinstance(values, str) or not hasattr(values, "__len__") or getattr(values, "shape", None) == ():
            raise TypeError(f"{WHO}: keys: column {name}: expected a key for each row, got {checks.type_name(values)}")
    return list(zip(names, columns, strict=True))


def _apart(
    estimator: Any, X: Any, names: list[Any] | None, width: int, reset: bool, keys: Any
) -> tuple[list[int], list[int]]:
    """Return the positions of keys and features. Scikit-learn checks the number and the names of the columns."""
    if keys is None and (reset or names is None or len(names) != width or not named(estimator, names)):
        validate_data(estimator, X, reset=reset, skip_check_array=True)
    places = estimator._places if keys is not None else _places(estimator, names, width, reset)
    others = [j for j in range(width) if keys is not None or j not in places]
    if not reset and len(others) != estimator._groups.channels:
        raise ValueError(f"{WHO}: X: expected {estimator._groups.channels} features, as in fit, got {len(others)}")
    return places, others


def _check_names(estimator: Any, names: list[Any] | None) -> None:
    """Raise ValueError if a table of features alone names them otherwise than fit. Scikit-learn checks full tables."""
    known = estimator._known_names()
    if names is None or known is None:
        return
    check_names(WHO, "X", names, [name for j, name in enumerate(known) if j not in estimator._places])


def _made(estimator: Any, X: Any, places: list[int], columns: Any, features: Dense, names: Any, keys: Any) -> Split:
    if keys is not None:
        _check_names(estimator, names)
        columns = _key_columns(estimator, keys)
    rows = features.rows
    for name, values in columns:
        if len(values) != rows:
            raise ValueError(f"{WHO}: keys: column {name}: expected {rows} rows, as X has, got {len(values)}")
    return Split(places, columns, features, None if names is None else np.array(names, object), X)


def _of_pandas(estimator: Any, X: Any, reset: bool, keys: Any) -> Split:
    names = list(X.columns)
    places, others = _apart(estimator, X, names, len(names), reset, keys)
    columns = [] if keys is not None else [(repr(names[j]), X.iloc[:, j]) for j in places]
    named = [names[j] for j in others] if all(isinstance(name, str) for name in names) else None
    return _made(estimator, X, places, columns, _features(X, others), named, keys)


def _features(X: Any, others: list[int]) -> Dense:
    """Return columns of a pandas frame as a table: without a copy if they are long."""
    if len(X) >= LONG and all(
        isinstance(kind, np.dtype) and kind in FLOATS and kind.isnative for kind in X.dtypes.iloc[others]
    ):
        columns = [X.iloc[:, j].to_numpy() for j in others]
        if all(column.flags.c_contiguous for column in columns):
            return InColumns(arrow.Columns([columns]))
    return _dense(X.iloc[:, _run(others)])


def _run(places: list[int]) -> slice | list[int]:
    """Return positions as a slice if they are consecutive, because a slice copies nothing."""
    every = range(places[0], places[-1] + 1) if places else range(0)
    return slice(every.start, every.stop) if places == list(every) else places


def _of_arrow(estimator: Any, X: Any, table: Any, reset: bool, keys: Any) -> Split:
    names = list(table.column_names)
    places, others = _apart(estimator, table, names, len(names), reset, keys)
    features = InColumns(arrow.columns_of(WHO, table.select(others)))
    columns = [] if keys is not None else [(repr(names[j]), table.column(j)) for j in places]
    return _made(estimator, X, places, columns, features, [names[j] for j in others], keys)


def _of_array(estimator: Any, X: Any, reset: bool, keys: Any) -> Split:
    x = X if isinstance(X, ndarray) else np.asarray(X, object) if _mixed(X) else np.asarray(X)
    if keys is None and (x.ndim != 2 or x.dtype.kind not in "biufOUTM" or 0 in x.shape):
        check = partial(validate_data, estimator, reset=reset)
        check(x, dtype=None if x.dtype.kind == "O" else "numeric", ensure_all_finite=False)  # scikit-learn's error
    width = x.shape[1] if x.ndim == 2 else 0
    places, others = _apart(estimator, x, None if reset else estimator._known_names(), width, reset, keys)
    columns = [] if keys is not None else [(str(j), x[:, j]) for j in places]
    return _made(estimator, X, places, columns, _dense(x[:, _run(others)]), None, keys)


def _mixed(X: Any) -> bool:
    """Whether X is a list whose first row has anything but numbers."""
    try:
        return any(not isinstance(value, int | float | np.number) for value in X[0])
    except (TypeError, IndexError, KeyError):
        return False


def _dense(features: Any) -> Dense:
    table = table_of(partial(check_array, estimator=WHO, input_name="X"), features, ndarray)
    if not isinstance(table, Dense):
        raise TypeError(f"{WHO}: X: expected a table in memory, got {checks.type_name(features)}")
    return table


def key_names(estimator: Any) -> list[str]:
    """The names of the key columns in messages."""
    names = estimator._known_names()
    return [str(j) if names is None else repr(names[j]) for j in estimator._places]


class Named:
    """What `set_output` needs of an estimator whose result has columns of these names."""

    _sklearn_auto_wrap_output_keys = frozenset({"transform"})

    def __init__(self, estimator: Any, names: ndarray | None) -> None:
        self.__dict__.update({k: v for k, v in estimator.__dict__.items() if k == "_sklearn_output_config"})
        self._names = names

    def get_feature_names_out(self, input_features: Any = None) -> ndarray | None:
        return self._names
