"""Keys of groups: columns of names, numbers or dates become codes.

A table's own library says which of its values are equal: pandas, Arrow and polars, if the column is theirs, otherwise
NumPy. A key is a Python object (a str, a number, a bool; of several columns a tuple of them). A date or a time counts
as microseconds since 1970. Integers and floats that are equal are one key, as in Python. A Decimal is the float with
its digits.
"""

import sys
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import arrow, checks
from bnorm.kernels.cpu import groups as kernels
from bnorm.transformer.times import in_utc

TEXT, NUMBER, FLAG, TIME = "string", "number", "bool", "date"
UNIT = "datetime64[us]"
MOST = 2**53  # integers up to it are exact in float64
PIECE = 1 << 16  # this many texts are searched together


class Column(NamedTuple):
    """A column of keys: the code of each row, -1 where the key is missing, and the key of each code, as an array of
    object, int64, float64 or bool. kind: None if all keys are missing.
    """

    kind: str | None
    codes: ndarray
    values: ndarray
    ordered: bool = False  # codes are in order of first appearance, and no key is missing


class Keys(NamedTuple):
    """The keys of a table: the code of each row, -1 where one is missing, and the keys in order of their appearance."""

    kinds: tuple[str | None, ...]
    codes: ndarray  # int32
    keys: list[Any]

    @property
    def gaps(self) -> bool:
        """Whether a key is missing."""
        return bool(self.codes.min(initial=0) < 0)


def read(who: str, columns: Sequence[tuple[str, Any]]) -> Keys:
    """The keys of a table from its key columns, each with its name for messages."""
    every = [_column(f"{who}: by: column {name}", values) for name, values in columns]
    if len(every) == 1:
        kind, codes, values, ordered = every[0]
        if not ordered:
            found, codes = _numbered(codes)
            values = values[found]
        return Keys((kind,), codes, values.tolist())
    codes = every[0].codes
    for column in every[1:]:
        wide = _paired(codes, column.codes, len(column.values))
        wide[(codes < 0) | (column.codes < 0)] = -1
        _, codes = _numbered(wide)
    found, codes = _numbered(codes)
    first = _first_rows(codes, len(found))
    lists = [column.values[column.codes[first]].tolist() for column in every]
    return Keys(tuple(column.kind for column in every), codes, list(zip(*lists, strict=True)))


def _paired(codes: ndarray, others: ndarray, n: int) -> ndarray:
    """A number for each pair of a code and one of n others."""
    pairs: ndarray = codes.astype(np.int64) * max(n, 1) + others
    return pairs


def _numbered(codes: ndarray) -> tuple[ndarray, ndarray]:
    """Return the codes other than -1 in the order in which they appear, and the place of each row's code among them."""
    found, places = kernels.distinct(np.ascontiguousarray(codes, np.int64))
    missing = np.flatnonzero(found == -1)
    if not len(missing):
        return found, places
    at = int(missing[0])
    moved = np.arange(len(found), dtype=np.int32)
    moved[at], moved[at + 1 :] = -1, moved[at + 1 :] - 1
    return np.delete(found, at), moved[places]


def _first_rows(codes: ndarray, n: int) -> ndarray:
    """The first row of each code."""
    rows = np.empty(n, np.int64)
    known = np.flatnonzero(codes >= 0)[::-1]
    rows[codes[known]] = known  # the last value assigned to a place remains: the first row
    return rows


def _column(who: str, values: Any) -> Column:
    """A column of any library."""
    package = type(values).__module__.partition(".")[0]
    if package == "polars":
        values = arrow.of_polars(who, values) if find_spec("pyarrow") else np.array(values.to_list(), object)
        package = "pyarrow" if find_spec("pyarrow") else ""
    if package == "pyarrow":
        return _arrow(who, values)
    if package == "pandas":
        return _pandas(who, values)
    if isinstance(values, np.ma.MaskedArray):
        found = _array(who, values.data)
        codes = np.where(np.ma.getmaskarray(values), np.int32(-1), found.codes)
        return Column(found.kind if (codes >= 0).any() else None, codes, found.values)
    return _array(who, values if isinstance(values, ndarray) else np.array(values, object))


def _pandas(who: str, values: Any) -> Column:
    dtype = values.dtype
    if hasattr(dtype, "categories"):
        return _coded(_pandas(who, dtype.categories), np.asarray(getattr(values, "cat", values).codes))
    if getattr(dtype, "tz", None) is not None:
        values = values.dt.tz_convert(None) if hasattr(values, "dt") else values.tz_convert(None)
    if isinstance(values.dtype, np.dtype) and values.dtype.kind != "O":
        return _array(who, values.to_numpy())
    pandas = sys.modules["pandas"]
    if isinstance(dtype, pandas.StringDtype) and dtype.storage == "pyarrow" and hasattr(values, "array"):
        return _arrow(who, values.array.__arrow_array__())
    return _factorized(who, values)


def _factorized(who: str, values: Any) -> Column:
    """Find equal objects by pandas; not if texts have a character 0, at which pandas below 3.1 stops reading."""
    try:
        codes, found = sys.modules["pandas"].factorize(values)
    except TypeError:  # some have no hash: the error names one
        return _coded(*_objects_apart(who, np.asarray(values, object)))
    if not _reads_whole_texts() and _have_zeros(objects := np.asarray(values, object)):
        return _coded(*_objects_apart(who, objects))
    column, places = _objects_apart(who, np.asarray(found, object))  # keys that differ for pandas may be equal here
    if values.dtype == object and column.kind in (FLAG, NUMBER) and _mix_flags(np.asarray(values)):
        return _coded(*_objects_apart(who, np.asarray(values)))  # the error names one of each
    return _coded(column._replace(codes=places), codes, in_order=True)


@cache
def _reads_whole_texts() -> bool:
    return len(sys.modules["pandas"].factorize(np.array(["", "\0"], object))[1]) == 2


def _mix_flags(values: ndarray) -> bool:
    """Whether some of these are bools and some are numbers: True equals 1, so pandas finds one key."""
    given = values.tolist()
    types = set(map(type, given))
    flags = types & {bool, np.bool_}
    numbers = {kind for kind in types - flags if issubclass(kind, Real | Decimal)}
    return bool(flags and numbers) and any(type(v) in numbers and v == v for v in given)


def _have_zeros(values: ndarray) -> bool:
    try:
        return any("\0" in "".join(values[i : i + PIECE]) for i in range(0, len(values), PIECE))
    except TypeError:  # some are not texts: then pandas compares objects
        return False


def _arrow(who: str, values: Any) -> Column:
    import pyarrow as pa
    from pyarrow import compute

    values = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    kind = values.type
    if pa.types.is_integer(kind) and not values.null_count:
        numbers = [arrow.in_place(chunk, f"{kind}") for chunk in values.chunks]
        return _array(who, np.concatenate([np.empty(0, f"{kind}"), *numbers]))
    try:
        if pa.types.is_dictionary(kind):
            chunks = [arrow.decoded(chunk) for chunk in values.chunks]
            kind = chunks[0].type if chunks else kind.value_type
            values = pa.chunked_array(chunks, kind)
        if pa.types.is_null(kind):
            return Column(None, np.full(len(values), -1, np.int32), np.empty(0, object))
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            values = values.cast(pa.timestamp("us", getattr(kind, "tz", None))).cast(pa.int64())
        coded = compute.dictionary_encode(values).unify_dictionaries()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{who}: expected times that microseconds can hold: {error}") from None
    except pa.ArrowNotImplementedError:
        raise TypeError(f"{who}: expected strings, numbers, bools or dates, got {kind}") from None
    indices = [chunk.indices.fill_null(-1) for chunk in coded.chunks]
    codes = [arrow.in_place(index, f"{index.type}").astype(np.int32, copy=False) for index in indices]
    found = _held(who, coded.chunk(0).dictionary if coded.num_chunks else pa.array([]))
    if pa.types.is_temporal(kind) and found.kind == NUMBER:
        found = found._replace(kind=TIME)
    every = codes[0] if len(codes) == 1 else np.concatenate([np.empty(0, np.int32), *codes])
    return _coded(found, every, in_order=True)


def _held(who: str, values: Any) -> Column:
    """Return a column of the values of a dictionary of Arrow: they differ, and none is missing."""
    from pyarrow import types

    if len(values) and (types.is_string(values.type) or types.is_large_string(values.type)):
        return Column(TEXT, np.arange(len(values)), values.to_numpy(zero_copy_only=False))
    if len(values) and types.is_integer(values.type):
        return _array(who, arrow.in_place(values, f"{values.type}"))
    return _array(who, np.array(values.to_pylist(), object))


def _array(who: str, values: ndarray) -> Column:
    """A NumPy array."""
    if values.ndim != 1:
        raise ValueError(f"{who}: expected a column, got shape {values.shape}")
    kind = values.dtype.kind
    if kind == "M":
        return _times(who, values)
    if kind in "iub":
        if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{who}: expected integers below 2^63, got {values.max()}")
        found, codes = kernels.distinct(np.ascontiguousarray(values, np.int64))
        return Column(FLAG if kind == "b" else NUMBER, codes, found != 0 if kind == "b" else found, ordered=True)
    if kind == "f":
        return _floats(values)
    if kind == "U" and values.nbytes:
        return _texts(values)
    if kind == "U":
        found, codes = np.unique(values, return_inverse=True)
        return Column(TEXT, codes.astype(np.int32), found.astype(object))
    if kind == "T":  # np.unique takes a missing one for another text, or refuses it
        values = values.astype(object)
    elif kind != "O":
        raise TypeError(f"{who}: expected strings, numbers, bools or dates, got dtype {values.dtype}")
    if "pandas" in sys.modules and len(values) > 1000:
        return _factorized(who, values)
    return _coded(*_objects_apart(who, values))


def _texts(values: ndarray) -> Column:
    """Compare texts of one width as numbers: two characters are one number of 64 bits."""
    characters = np.ascontiguousarray(values).view(np.uint32).reshape(len(values), -1)
    codes = np.zeros(len(values), np.int32)
    for i in range(0, characters.shape[1], 2):
        pair = characters[:, i].astype(np.int64)
        for other in characters[:, i + 1 : i + 2].T:
            pair |= other.astype(np.int64) << 32
        found, part = kernels.distinct(pair)
        if len(found) > 1:
            _, codes = kernels.distinct(_paired(codes, part, len(found)))
    return Column(TEXT, codes, values[_first_rows(codes, int(codes.max()) + 1)].astype(object), ordered=True)


def _times(who: str, values: ndarray) -> Column:
    exact = values.astype(UNIT)
    if (exact.astype(values.dtype) != values)[~np.isnat(values)].any():
        raise ValueError(f"{who}: expected times that microseconds can hold, got {values.dtype}")
    found, codes = kernels.distinct(np.ascontiguousarray(exact).view(np.int64))
    return _coded(Column(TIME, np.arange(len(found)), found), codes, found == np.iinfo(np.int64).min)


def _floats(values: ndarray) -> Column:
    plain = values.astype(np.float64) + 0.0  # -0.0 is 0.0
    plain[np.isnan(plain)] = np.nan
    found, codes = kernels.distinct(plain.view(np.int64))
    numbers = found.view(np.float64)
    known = numbers[~np.isnan(numbers)]
    whole = bool((np.abs(known) <= MOST).all() and (known == np.floor(known)).all())
    some = np.where(np.isnan(numbers), 0, numbers).astype(np.int64) if whole else numbers
    return _coded(Column(NUMBER if len(known) else None, np.arange(len(found)), some), codes, np.isnan(numbers))


def _objects_apart(who: str, values: Any) -> tuple[Column, ndarray]:
    """Return a column of the different ones among Python objects of one kind, and codes; None and NaN are missing."""
    if (own := _own_keys(values)) is not None:
        return own
    places: dict[Any, int] = {}
    kinds: dict[str, Any] = {}
    codes = np.empty(len(values), np.int32)
    for i, value in enumerate(values):
        if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
            codes[i] = -1
            continue
        kind, key = _kind_of(who, value)
        kinds.setdefault(kind, value)
        codes[i] = places.setdefault(key, len(places))
    if len(kinds) > 1:
        raise TypeError(f"{who}: expected keys of one kind, got {' and '.join(map(repr, kinds.values()))}")
    only = next(iter(kinds), None)
    return Column(only, np.arange(len(places)), np.fromiter(places, object, len(places))), codes


def _own_keys(values: ndarray) -> tuple[Column, ndarray] | None:
    """What `_objects_apart` returns if all values are Python's own texts, or integers of 64 bits; otherwise None. They
    are their own keys, so no loop of Python is needed.
    """
    given = values.tolist()
    types = set(map(type, given))
    if types not in ({str}, {int}):
        return None
    keys = list(dict.fromkeys(given))
    if types == {int} and not (-(2**63) <= min(keys) and max(keys) < 2**63):
        return None
    places = dict(zip(keys, range(len(keys)), strict=True))
    codes = np.fromiter(map(places.__getitem__, given), np.int32, len(given))
    kind = TEXT if types == {str} else NUMBER
    return Column(kind, np.arange(len(keys)), np.fromiter(keys, object, len(keys))), codes


def _kind_of(who: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        return TEXT, str(value)
    if isinstance(value, bool | np.bool_):
        return FLAG, bool(value)
    if isinstance(value, Decimal):
        value = _of_decimal(who, value)
    if isinstance(value, Integral):
        if not -(2**63) <= int(value) < 2**63:
            raise ValueError(f"{who}: expected integers of 64 bits, got {value}")
        return NUMBER, int(value)
    if isinstance(value, Real):
        number = float(value)
        return NUMBER, int(number) if number == number // 1 and abs(number) <= MOST else number
    if isinstance(value, date | np.datetime64):
        exact = np.datetime64(in_utc(who, value))
        if exact.astype(UNIT) != exact:
            raise ValueError(f"{who}: expected times that microseconds can hold, got {exact}")
        return TIME, int(exact.astype(UNIT).astype(np.int64))
    raise TypeError(f"{who}: expected strings, numbers, bools or dates, got {checks.type_name(value)}: {value!r:.60}")


def _of_decimal(who: str, value: Decimal) -> float:
    """Return a whole number, or the float that has the same digits."""
    if abs(value) < 2**63 and value == value.to_integral_value():
        return int(value)
    if Decimal(repr(float(value))) != value:
        raise ValueError(f"{who}: expected decimals with the digits of a float, got {value}")
    return float(value)


def _coded(found: Column, codes: ndarray, missing: ndarray | None = None, in_order: bool = False) -> Column:
    """Return a column whose rows have these codes, where the key of code i is that of row i of the column `found`.

    missing: codes without a key. in_order: `codes` count up from 0 in the order in which they first appear.
    """
    if in_order and codes.min(initial=0) >= 0 and bool((found.codes == np.arange(len(found.codes))).all()):
        return Column(found.kind, codes.astype(np.int32, copy=False), found.values, ordered=True)
    outer = np.append(found.codes, -1).astype(np.int32)
    if missing is not None:
        outer[:-1][missing] = -1
    return Column(found.kind if (outer >= 0).any() else None, outer[codes], found.values)
