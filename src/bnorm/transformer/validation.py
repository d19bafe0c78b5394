"""Validation of tables by scikit-learn's rules and with its error messages."""

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, cast

import numpy as np
from numpy import ndarray
from scipy.sparse import issparse
from sklearn.utils.validation import check_array, validate_data

from bnorm import arrow
from bnorm.checks import FLOATS
from bnorm.kernels import BACKENDS, cpu, kernels_for, kind_of, moved
from bnorm.kernels.engines import engine_of
from bnorm.transformer import parameters
from bnorm.transformer.blocks import Blocks
from bnorm.transformer.known import Known
from bnorm.transformer.sklearn_private import get_namespace, in_container, output_config
from bnorm.transformer.tables import WHO, Dense, InColumns, Table
from bnorm.transformer.times import names_of, without

DTYPES = [np.float64, np.float32, np.float16]
INTEGERS = [np.dtype(name) for name in cpu.INTEGERS]  # read without a conversion; results are float64
READ = FLOATS.union(INTEGERS)
_OF_TABLES = ("__array__", "__array_interface__", "__dlpack__", "__dataframe__", "shape", "columns", "num_rows")


def is_iterable(X: Any) -> bool:
    """Whether X is neither a table nor a sequence of rows, but gives tables one by one."""
    if type(X) is list or type(X) is tuple:
        return bool(X) and (_is_table(X[0]) or (type(X[0]) is tuple and len(X[0]) == 2 and _is_table(X[0][0])))
    if type(X) is ndarray or not hasattr(X, "__iter__") or isinstance(X, Sequence | Set | Mapping):
        return False
    return not any(hasattr(X, name) for name in _OF_TABLES) and engine_of(X) is None


def _is_table(item: Any) -> bool:
    """Whether an item of a list is a table, and not a row."""
    return hasattr(item, "num_rows") or len(getattr(item, "shape", ())) == 2


def has_columns(X: Any) -> bool:
    """Whether X is a data frame or an Arrow table, and no array."""
    return hasattr(X, "columns")


def like_given(x: Any, X: Any, estimator: Any) -> Any:
    """The result x of an inverse, in the container that `set_output` asks for if X is a table.

    An array gives an array: a frame of it would have a new index, by which its rows would not meet those of the caller.
    """
    return in_container("transform", x, X, estimator) if has_columns(X) else x


def plain(X: Any, kind: Any, writeable: bool = False, integers: bool = True) -> bool:
    """Whether validation would return X itself, if its features are right. kind: the required array type."""
    return (
        type(X) is kind
        and X.ndim == 2
        and X.dtype in (READ if integers and kind is ndarray and not writeable else FLOATS)
        and X.size > 0
        and (not writeable or kind is not ndarray or X.flags.writeable)
    )


def new_table(estimator: Any, X: Any) -> tuple[Table, ndarray | None]:
    """X as a table of any array type, and the names of its features. It may contain infinity."""
    if isinstance(X, Known):
        return cast(Table, X), X.names  # it has what `fit` needs
    engine = engine_of(X)
    kind = kind_of(X if engine is None else engine.Collection(WHO, X).sample) or ndarray
    if plain(X, kind):
        return Dense(X), None
    found = aside(estimator)
    x = columns(found, X, reset=True) or table_of(partial(validate_data, found, reset=True), X, kind)
    return x, found.__dict__.get("feature_names_in_")


def next_table(estimator: Any, X: Any, kind: type, column: str | None = None, writeable: bool = False) -> Table:
    """X, without a column that is no feature, as a table of the features of an estimator. It may contain infinity."""
    own = estimator.__dict__
    if plain(X, kind, writeable) and X.shape[1] == own["n_features_in_"] and "feature_names_in_" not in own:
        return Dense(X)
    X = without(X, column)
    if (found := columns(estimator, X, reset=False)) is not None:
        return found if kind is ndarray else Dense(moved(found.dense(), kind))
    return table_of(partial(validate_data, estimator, reset=False), X, kind, writeable)


def aside(estimator: Any) -> Any:
    """Return a copy for scikit-learn to set attributes on while it checks a table, which may still be refused."""
    found = object.__new__(type(estimator))
    found.__dict__.update(estimator.__dict__)
    return found


def columns(estimator: Any, X: Any, reset: bool) -> Dense | None:
    """A pyarrow RecordBatch or Table, or a polars DataFrame, as a table; None for any other X."""
    x = arrow.short(X)
    if x is not None and not reset and named(estimator, arrow.names_of(X)):
        return Dense(x)
    # Older versions of scikit-learn find no names in polars.
    table = arrow.table_of(WHO, X) if x is None else arrow.hollow(X)
    if table is None:
        return None
    if reset or not named(estimator, table.column_names):
        validate_data(estimator, table, reset=reset, skip_check_array=True)
    x = arrow.short(table) if x is None else x
    return InColumns(arrow.columns_of(WHO, table)) if x is None else Dense(x)


def table_of(validate: partial[Any], X: Any, kind: type, writeable: bool = False, integers: bool = True) -> Table:
    """X as a table of floats of the type `kind`, in memory or of an engine. Arguments are those of `floats`."""
    if (engine := engine_of(X)) is None:
        return Dense(floats(validate, X, kind, writeable, integers))
    return Blocks(engine, X, lambda table: floats(validate, table, kind, integers=False), partial(_block_floats, kind))


def floats(validate: partial[Any], X: Any, kind: type, writeable: bool = False, integers: bool = True) -> Any:
    """X as an array of floats of the type `kind`. It may contain infinity.

    integers: keep INTEGERS, except on a device, or if they would be written to.
    validate: scikit-learn's `validate_data` or `check_array`. It cannot take an array on a device, and gets an empty
    array of that shape and dtype instead.
    """
    if kind is ndarray and not writeable and (x := of_frame(validate, X, READ if integers else FLOATS)) is not None:
        return x
    if issparse(X) or _is_sparse(X):
        raise TypeError(
            f"{_who(validate)}: X: expected a dense table, as the transformer always centers, got a sparse "
            f"{type(X).__name__}: bnorm.sklearn.StandardScaler(with_mean=False) takes sparse tables, and "
            f"{'toarray()' if issparse(X) else 'sparse.to_dense()'} makes this one dense"
        )
    kernels_for(X, WHO, "X", kind, "the layer_")
    _refuse_times(validate, X)
    if isinstance(X, np.ma.MaskedArray):  # masked values are missing values
        X = np.ma.filled(X.astype(X.dtype if X.dtype.kind == "f" else np.float64), np.nan)
    if kind is ndarray or kind_of(X) is None:
        X = native(X)  # scikit-learn would convert float16 and float32 of the other byte order to float64
        types = [*DTYPES, *INTEGERS] if integers and kind is ndarray and not writeable else DTYPES
        checked = partial(validate, dtype=types, ensure_all_finite=False, force_writeable=writeable)
        try:
            x = checked(X)
        except (TypeError, ValueError) as error:
            if str(error).startswith("The feature names"):
                raise
            if (found := no_numbers(X)) is not None:
                name, got = found
                raise ValueError(f"{_who(validate)}: X: column {name!r}: expected numbers, got {got}") from error
            if not has_columns(X) or "NAType" not in str(error):
                raise
            x = checked(X.astype(np.float64))  # of decimals of Arrow pandas makes objects, and scikit-learn takes no NA
        return moved(native(np.asarray(x)), kind)
    x = BACKENDS[kind].asarray(X)
    validate(_hollow(x), dtype=None, ensure_all_finite=False)
    return x if x.dtype in FLOATS else x.astype(np.float64)


def of_frame(validate: partial[Any], X: Any, types: Set[np.dtype[Any]]) -> ndarray | None:
    """The values of a pandas frame of floats and integers, as validation would return them; else None.

    scikit-learn takes half a millisecond for any frame. Of such a frame only the names of the columns need a look. It
    would also make floats of pandas' own integers, and those above 2^53 would lose digits.
    types: those that validation does not convert.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or type(X) is not pandas.DataFrame or not X.size:
        return None
    kinds = X.dtypes.to_numpy()
    if all(isinstance(kind, np.dtype) and kind.isnative and kind.kind in "fiu" for kind in kinds):
        x: ndarray = X.to_numpy()
    elif (whole := _integers(kinds)) is None or whole not in types or X.isna().to_numpy().any():
        return None
    else:
        x = X.to_numpy(whole)
    if x.dtype not in types:
        return None
    if validate.func is validate_data:
        reset = validate.keywords["reset"]
        if reset or not named(validate.args[0], X.columns.tolist()):
            validate(X, skip_check_array=True)
    return x


def _integers(kinds: Iterable[Any]) -> np.dtype[Any] | None:
    """The dtype of an array of columns of these types, if all are integers, of NumPy or pandas; else None."""
    found = [kind if isinstance(kind, np.dtype) else getattr(kind, "numpy_dtype", None) for kind in kinds]
    return np.result_type(*found) if all(kind is not None and kind.kind in "iu" for kind in found) else None


def _is_sparse(X: Any) -> bool:
    """Whether scikit-learn takes X for a sparse matrix: it is a pandas frame that has sparse columns only."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame) or not X.shape[1]:
        return False
    return all(isinstance(kind, pandas.SparseDtype) for kind in X.dtypes.to_numpy())


def named(estimator: Any, names: list[Any]) -> bool:
    """Whether an estimator was fitted to features of these names: scikit-learn's check, which is slow, passes then."""
    known = estimator.__dict__.get("feature_names_in_")
    return known is not None and bool(known.tolist() == names)


def check_names(who: str, name: str, names: list[Any], wanted: list[Any], strangers: bool = False) -> None:
    """Raise ValueError if a column is not named as the feature in its place. strangers: names of no feature may be."""
    if names == wanted:
        return
    features = set(wanted)
    for j, (mine, its) in enumerate(zip(wanted, names, strict=False)):
        if its != mine and not (strangers and its not in features):
            raise ValueError(f"{who}: {name}: column {j}: expected feature {mine!r}, in the order of fit, got {its!r}")


def check_order(estimator: Any, X: Any, name: str) -> None:
    """Raise ValueError if a column of X has the name of a feature in another place. Names of no feature are allowed.

    For tables that are read by position, and that scikit-learn does not check: those that `transform` returns.
    """
    known = estimator.__dict__.get("feature_names_in_")
    if known is not None and has_columns(X):
        check_names(WHO, name, names_of(X) or list(X.columns), known.tolist(), strangers=True)


def _who(validate: partial[Any]) -> str:
    """The estimator that `validate` names in its messages."""
    of = validate.args[0] if validate.args else validate.keywords["estimator"]
    return of if isinstance(of, str) else type(of).__name__


def _refuse_times(validate: partial[Any], X: Any) -> None:
    """Raise ValueError if X, or a column of it, is times: scikit-learn may make integers of them, even of NaT."""
    if isinstance(X, ndarray) and X.dtype.kind in "mM":
        raise ValueError(f"{_who(validate)}: X: expected numbers, got {X.dtype}")
    if hasattr(X, "columns") and hasattr(X, "items"):
        kinds = [dtype.kind for dtype in X.dtypes.to_numpy()]
        if found := {"m", "M"}.intersection(kinds):
            i = next(i for i, kind in enumerate(kinds) if kind in found)
            raise ValueError(f"{_who(validate)}: X: column {X.columns[i]!r}: expected numbers, got {X.dtypes.iloc[i]}")


def no_numbers(X: Any) -> tuple[Any, Any] | None:
    """Return name and type of the first column of a pandas frame whose values are not numbers, not even as text."""
    if not hasattr(X, "columns") or not hasattr(X, "items"):
        return None
    for name, column in X.items():
        if column.dtype.kind == "c":
            return name, column.dtype
        try:
            np.asarray(column, np.float64)
        except (TypeError, ValueError):
            return name, f"{column.dtype} such as {_odd(column)!r}" if column.dtype == object else column.dtype
    return None


def _odd(values: Any) -> Any:
    """The first of some values that is no number; None if each of them is one."""
    for value in values:
        try:
            float(value)
        except (TypeError, ValueError):
            return value
    return None


def native(x: Any) -> Any:
    """Return a table in the byte order of the machine: scikit-learn keeps the byte order of a data frame's columns."""
    return x if not isinstance(x, ndarray) or x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _block_floats(kind: type, block: Any, integers: bool = False) -> Any:
    """A block as an array of floats; it may be empty. integers: as for `floats`."""
    return floats(
        partial(check_array, estimator=WHO, input_name="X", ensure_min_samples=0), block, kind, False, integers
    )


def _hollow(x: Any) -> ndarray:
    """Return a NumPy array of the shape and dtype of x that takes no memory; a copy of x if an error will print it."""
    if x.ndim < 2 or x.dtype.kind == "c":
        return x.get()  # type: ignore[no-any-return]
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


def check_mergeable(mine: Any, other: Any) -> None:
    """Raise an error if the statistics of two fitted transformers cannot be merged."""
    here, there = mine.layer_.device, other.layer_.device
    if here != there:
        raise TypeError(
            f"{WHO}: merge: expected layer_ on one device, got {here!r} here and {there!r} there: NumPy and CuPy "
            f"arrays do not mix; other.layer_.to({here!r}) moves the other"
        )
    given, its = ({name: getattr(t, name) for name in parameters.OF_STREAM} for t in (mine, other))
    if reason := parameters.apart(given, its, mine._state, other._state, "here"):
        raise ValueError(f"{WHO}: merge: {reason}")
    if mine.n_features_in_ != other.n_features_in_:
        raise ValueError(
            f"{WHO}: merge: n_features_in_: expected {mine.n_features_in_}, as here, got {other.n_features_in_}"
        )
    names, others = mine._known_names(), other._known_names()
    if names is not None and others is not None and names != others:
        raise ValueError(f"{WHO}: merge: expected features {names}, as here, got {others}")


def refuse_container(estimator: Any, x: Table) -> None:
    """Raise ValueError if `set_output` asks for a data frame and x is a lazy collection or on a device."""
    if isinstance(x, Blocks):
        refuse_container_of(WHO, estimator, x.engine)
    elif x.kind is not ndarray:
        _refuse(WHO, estimator, "layer_ is on the GPU and pandas and polars cannot hold CuPy arrays")


def refuse_container_of(who: str, estimator: Any, engine: Any) -> None:
    """Raise ValueError if `set_output` asks for a data frame in the place of a lazy collection of this engine."""
    _refuse(who, estimator, f"the result for a {engine.NAME} collection is a {engine.NAME} collection")


def _refuse(who: str, estimator: Any, reason: str) -> None:
    if (container := output_config("transform", estimator)["dense"]) != "default":
        raise ValueError(f"{who}: set_output: expected transform='default', as {reason}, got {container!r}")


def float_types(X: Any, integers: bool) -> Any:
    """Return the dtypes that X may have: those of its library under scikit-learn's dispatch, otherwise NumPy's.

    integers: with INTEGERS, if they are NumPy's.
    """
    xp, dispatched = get_namespace(X)
    if not dispatched:
        return [*DTYPES, *INTEGERS] if integers else DTYPES
    return [xp.float64, xp.float32, *([xp.float16] if hasattr(xp, "float16") else [])]


class Callbacks:
    """The callbacks of a fit, in scikit-learn 1.9 and later. Making this object tells them that the fit begins."""

    def __init__(self, estimator: Any, **what: Any) -> None:
        self.what = {"estimator": estimator, **what}
        self.context = None
        if hasattr(estimator, "_init_callback_context"):
            self.context = estimator._init_callback_context()
            self.context.call_on_fit_task_begin(**self.what)

    def end(self) -> None:
        """Tell them that the fit is done."""
        if self.context is not None:
            self.context.call_on_fit_task_end(**self.what, reconstruction_attributes={})

    @staticmethod
    def has(estimator: Any) -> bool:
        """Whether there are callbacks."""
        return "_skl_callbacks" in estimator.__dict__ or "_parent_callback_ctx" in estimator.__dict__
