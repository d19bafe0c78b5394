"""Keys of groups: which values are equal, whatever library a column is of."""

import datetime as dt
import re
from decimal import Decimal

import numpy as np
import pytest

from bnorm import GroupedTransformer
from bnorm.transformer.fitted import at_once
from bnorm.transformer.key_index import Index, restored, stored
from bnorm.transformer.keys import read

DAYS = [dt.date(2020, 1, 2), None, dt.date(2020, 1, 1), dt.date(2020, 1, 2)]
NUMPY_DAYS = np.array(["2020-01-02", "NaT", "2020-01-01", "2020-01-02"], "M8[D]")
CASES = {
    "string": (["b", None, "a", "b"], ["b", "a"]),
    "number": ([3, None, -1, 3], [3, -1]),
    "bool": ([True, None, False, True], [True, False]),
    "date": (DAYS, [1577923200000000, 1577836800000000]),
}


def codes_and_keys(column):
    keys = read("t", [("k", column)])
    assert keys.codes.dtype == np.int32
    return keys.kinds[0], keys.codes.tolist(), keys.keys


def columns_of(kind, values):
    yield values
    yield np.array(values, object)
    pd = pytest.importorskip("pandas")
    yield pd.Series(values, dtype=object)
    yield pd.Series(values, dtype=object).astype("category").cat.add_categories(["unused"] if kind == "string" else [])
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    yield pl.Series(values)
    yield pa.array(values)
    yield pa.chunked_array([pa.array(values[:2], pa.array(values).type), pa.array(values[2:], pa.array(values).type)])
    yield pa.array(values).slice(0)
    if kind == "string":
        yield pd.Series(values)
        yield pd.array(values)
        yield pd.Categorical(values)
        yield pl.Series(values, dtype=pl.Categorical)
        yield pa.array(values).dictionary_encode()
        coded = pa.array(values).dictionary_encode()
        yield pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string_view()))  # as polars writes
    if kind == "number":
        yield np.array([3.0, np.nan, -1.0, 3.0], "f4")
        yield pd.Series(values)
        yield pd.Series(values, dtype="Int64")
        yield pd.array(values, dtype="Int64")
        for kind in (pd.CategoricalIndex, pd.Index):
            yield kind(values)
        decimals = [None if value is None else Decimal(f"{value}.00") for value in values]
        yield from (decimals, pd.Series(decimals), pl.Series(decimals), pa.array(decimals))
    if kind == "bool":
        yield pd.Series(values, dtype="boolean")
    if kind == "date":
        yield NUMPY_DAYS
        yield pd.Series(NUMPY_DAYS.astype("M8[ns]"))
        yield pd.Series(NUMPY_DAYS.astype("M8[s]")).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
        yield pl.Series(values).cast(pl.Datetime("ms"))


@pytest.mark.parametrize("kind", CASES)
def test_one_key_whatever_the_library(kind):
    values, keys = CASES[kind]
    for column in columns_of(kind, values):
        assert codes_and_keys(column) == (kind, [0, -1, 1, 0], keys), type(column)


def test_columns_without_any_key():
    assert codes_and_keys([None, np.nan]) == (None, [-1, -1], [])
    pd, pa, pl = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "polars"))
    chunks = [pa.nulls(1), pa.nulls(1)]
    for column in (
        *(pd.Series([None, None], dtype=kind) for kind in ("object", "float", "str", "category", "Int64", "M8[ns]")),
        *(pl.Series([None, None], dtype=kind) for kind in (pl.Null, pl.String, pl.Categorical, pl.Date)),
        *(pa.nulls(2, kind) for kind in (pa.null(), pa.int8(), pa.string(), pa.bool_(), pa.timestamp("ns"))),
        pa.chunked_array(chunks),
        pa.chunked_array([chunk.dictionary_encode() for chunk in chunks]),
    ):
        assert codes_and_keys(column) == (None, [-1, -1], []), column


def test_arrays_of_one_type():
    assert codes_and_keys(np.array(["b", "a", "b"])) == ("string", [0, 1, 0], ["b", "a"])
    assert codes_and_keys(np.array([7, 2**63 - 1, 7], np.uint64)) == ("number", [0, 1, 0], [7, 2**63 - 1])
    assert codes_and_keys(np.array([0.5, -0.0, 0.0])) == ("number", [0, 1, 1], [0.5, 0.0])
    assert codes_and_keys(np.array([True, False])) == ("bool", [0, 1], [True, False])
    assert codes_and_keys([None, float("nan")]) == (None, [-1, -1], [])
    assert codes_and_keys([0.5, 1.5, 0, 0.5]) == ("number", [0, 1, 2, 0], [0.5, 1.5, 0])
    assert str(codes_and_keys([3.0, np.float32(3), 2**53 + 1])) == f"('number', [0, 0, 1], [3, {2**53 + 1}])"
    many = np.array([f"k{i % 7}" for i in range(5000)], object)
    assert codes_and_keys(many)[2] == [f"k{i}" for i in range(7)]


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 does not have the type")
@pytest.mark.parametrize("missing", [None, np.nan], ids=str)
@pytest.mark.parametrize("times", [1, 300], ids=["few", "many"])
def test_missing_texts_of_any_length(missing, times):
    texts = np.array(["b", missing, "a", "b"] * times, np.dtypes.StringDType(na_object=missing))
    assert codes_and_keys(texts) == ("string", [0, -1, 1, 0] * times, ["b", "a"])
    table = np.column_stack([texts, np.full(len(texts), "1", texts.dtype)])
    found = GroupedTransformer(0, keep_keys=True).fit_transform(table)
    assert [text if text == text else missing for text in found[:4, 0]] == ["b", missing, "a", "b"]


def test_many_texts():
    """Of more rows than are looked at one by one, in arrays of every width, with letters that few arrays have."""
    rng = np.random.default_rng(0)
    for width in (1, 2, 3, 6, 7):
        letters = np.array(["", "a", "b", "c", "\u0142", "\U0001f600", "\u0000x"])[rng.integers(0, 7, (3000, width))]
        texts = ["".join(row)[:width] for row in letters]
        array = np.array(texts, f"U{width}")
        expected = list(dict.fromkeys(array.tolist()))
        places = {text: i for i, text in enumerate(expected)}
        for column in (array, array.astype(f">U{width}"), np.repeat(array, 2)[::2], np.array(array, object)):
            assert codes_and_keys(column) == ("string", [places[text] for text in array.tolist()], expected)


def test_many_texts_of_a_frame():
    pd = pytest.importorskip("pandas", reason="one of the kinds of columns")
    rng = np.random.default_rng(1)
    for missing in (0.0, 0.1):
        texts = np.array([f"store {i}" for i in rng.integers(0, 40, 3000)], object)
        texts[rng.random(3000) < missing] = None
        expected = [text for text in dict.fromkeys(texts.tolist()) if text is not None]
        places = {None: -1} | {text: i for i, text in enumerate(expected)}
        for column in (pd.Series(texts, dtype="str"), pd.Series(texts, dtype="string"), pd.Series(texts, dtype=object)):
            assert codes_and_keys(column) == ("string", [places[text] for text in texts], expected)


def test_objects_of_a_frame_that_are_one_key():
    """pandas tells apart what is one key: a date and midnight."""
    pd = pytest.importorskip("pandas", reason="one of the kinds of columns")
    midnight, days = dt.datetime(2020, 1, 2), [dt.date(2020, 1, 2), dt.date(2020, 1, 1)]
    column = pd.Series([days[0], midnight, days[1], pd.NA, pd.Timestamp(midnight)], dtype=object)
    expected = "date", [0, 0, 1, -1, 0], [1577923200000000, 1577836800000000]
    for some in (column, column.to_numpy(), column.tolist()):
        assert codes_and_keys(some) == expected
    with pytest.raises(ValueError, match="expected times that microseconds can hold, got 1970-01-01"):
        codes_and_keys(pd.Series([pd.Timestamp(1), pd.Timestamp(0)], dtype=object))


def test_empty_chunks():
    """Large numbers without a sign beside a chunk without rows stay whole."""
    pa = pytest.importorskip("pyarrow", reason="chunked arrays are its own")
    chunks = [pa.array(values, pa.uint64()) for values in ([], [2**53 + 1, 2**53 + 2], [])]
    assert codes_and_keys(pa.chunked_array(chunks)) == ("number", [0, 1], [2**53 + 1, 2**53 + 2])


def test_keys_of_arrow_with_gaps():
    """They come from a dictionary of Arrow, whatever the type."""
    pa = pytest.importorskip("pyarrow", reason="dictionaries are its own")
    for kind, values, keys in (
        (pa.int8(), [7, None, -7, 7], [7, -7]),
        (pa.int64(), [2**62 + 1, None, -(2**63), 2**62 + 1], [2**62 + 1, -(2**63)]),
        (pa.large_string(), ["\0b", None, "", "\0b"], ["\0b", ""]),
        (pa.timestamp("ms", "Europe/Vienna"), [2, None, -1, 2], [2000, -1000]),
    ):
        column = pa.array([None, *values], kind)[1:]
        name = {"large_string": "string", "int8": "number", "int64": "number"}.get(str(kind), "date")
        for some in (column, column.dictionary_encode()):
            assert codes_and_keys(some) == (name, [0, -1, 1, 0], keys)
        assert codes_and_keys(column[1:2]) == (None, [-1], [])
    with pytest.raises(ValueError, match="column k: expected integers below 2"):
        codes_and_keys(pa.array([None, 2**63], pa.uint64()))


def test_decimals():
    """As databases have them: equal to the numbers that have their digits."""
    column = [Decimal(text) for text in ("0.10", "1", "NaN", "0.1", "1.0", "9007199254740993", "-0", "1e300")]
    assert codes_and_keys(column) == ("number", [0, 1, -1, 0, 1, 2, 3, 4], [0.1, 1, 2**53 + 1, 0, 1e300])
    assert codes_and_keys([Decimal("0.1"), 0.1, 1, Decimal(1)]) == ("number", [0, 0, 1, 1], [0.1, 1])


def test_several_columns():
    keys = read("t", [("a", ["x", "y", None, "x", "y", "x"]), ("b", np.array([1, 1, 1, 2, 1, 1]))])
    assert keys.keys == [("x", 1), ("y", 1), ("x", 2)]
    assert keys.codes.tolist() == [0, 1, -1, 2, 1, 0]
    rng = np.random.default_rng(0)
    columns = [rng.integers(-1, n, 400) for n in (40, 30, 20, 10)]
    keys = read("t", [("k", np.where(c < 0, np.nan, c)) for c in columns])
    expected = list(zip(*(c.tolist() for c in columns), strict=True))
    found = [keys.keys[c] if c >= 0 else None for c in keys.codes]
    assert found == [None if -1 in key else key for key in expected]


def test_keys_that_pandas_cannot_look_up():
    pd = pytest.importorskip("pandas", reason="it looks keys up")
    with pytest.raises(
        TypeError, match=r"^t: by: column k: expected strings, numbers, bools or dates, got list: \['a'"
    ):
        read("t", [("k", pd.Series([["a"], ["b"]]))])


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (["a", 1], TypeError, "expected keys of one kind, got 'a' and 1"),
        (["a", True], TypeError, "expected keys of one kind"),
        ([object()], TypeError, "expected strings, numbers, bools or dates, got object"),
        (np.ones(2, complex), TypeError, "got dtype complex128"),
        (np.ones((2, 2)), ValueError, r"expected a column, got shape \(2, 2\)"),
        (np.array([2**63], np.uint64), ValueError, "expected integers below 2"),
        ([2**64], ValueError, "expected integers of 64 bits"),
        ([Decimal("0.10000000000000000000001")], ValueError, "expected decimals with the digits of a float, got 0.10"),
        ([Decimal(2**63 + 1)], ValueError, "expected decimals with the digits of a float, got 9223372036854775809"),
        (np.array([1], "M8[ns]"), ValueError, "expected times that microseconds can hold"),
        ([dt.datetime(2020, 1, 1, tzinfo=dt.tzinfo())], TypeError, "expected time stamps whose zone has an offset"),
    ],
)
def test_errors(column, error, message):
    with pytest.raises(error, match=f"^t: by: column k: .*{message}"):
        read("t", [("k", column)])


@pytest.mark.parametrize("mixed", [[True, 1], [0, False], [None, True, 1.0], [Decimal(1), np.True_]], ids=str)
def test_a_bool_is_no_number_in_a_column_of_pandas_or_a_long_one(mixed):
    pd = pytest.importorskip("pandas", reason="for it, True and 1 are one key")
    for column in (pd.Series(mixed, dtype=object), np.array(mixed * 1000, object)):
        with pytest.raises(TypeError, match=r"^t: by: column k: expected keys of one kind, got .* and "):
            read("t", [("k", column)])
    for missing in (None, np.nan):
        keys = read("t", [("k", pd.Series([False, missing, True, np.False_], dtype=object))])
        assert (keys.kinds, keys.codes.tolist(), keys.keys) == (("bool",), [0, -1, 1, 0], [False, True])


def test_types_of_arrow_that_are_no_keys():
    pa = pytest.importorskip("pyarrow", reason="their types")
    for column in (pa.array([[1], [2]]), pa.array([{"a": 1}]), pa.RunEndEncodedArray.from_arrays([2], ["a"])):
        with pytest.raises(
            TypeError, match=f"^t: by: column k: expected strings, .* got {re.escape(str(column.type))}$"
        ):
            read("t", [("k", column)])
    lists = pa.DictionaryArray.from_arrays([0, 1], pa.array([[1], [2]]))
    with pytest.raises(TypeError, match=r"^t: by: column k: expected strings, .* got list<item: int64>$"):
        read("t", [("k", lists)])


def test_an_index_grows_and_is_stored():
    index, names = Index(2), ["a", "b"]
    first = read("t", [("a", ["x", "é\ud800"]), ("b", NUMPY_DAYS[[0, 2]])])
    assert index.find("t", first, names).tolist() == [-1, -1]
    at_once(index.added(first.keys, first.kinds))
    more = read("t", [("a", ["é\ud800", "z"]), ("b", NUMPY_DAYS[[2, 2]])])
    assert index.find("t", more, names).tolist() == [1, -1]
    apart = Index(2)  # of rows that each lack a key in one of the columns
    rows = read("t", [("a", ["x", None]), ("b", [None, 1])])
    at_once(apart.added(rows.keys, rows.kinds))
    assert (restored(*stored(apart), 0).kinds, restored(*stored(apart), 0).keys) == (("string", "number"), [])
    kinds, arrays = stored(index)
    again = restored(kinds, arrays, 2)
    assert (again.keys, again.kinds, again.array().tolist()) == (index.keys, index.kinds, index.array().tolist())
    with pytest.raises(TypeError, match="by: column a: expected keys of kind 'string', as in fit, got 'number'"):
        index.find("t", read("t", [("a", [1]), ("b", NUMPY_DAYS[:1])]), names)
    for column in (np.array([1, 2**53 + 1, 2**53]), np.array([0.5, 2.0]), np.array([True, False])):
        index = Index(1)
        keys = read("t", [("k", column)])
        at_once(index.added(keys.keys, keys.kinds))
        assert (index.array().dtype, index.array().tolist()) == (column.dtype, column.tolist())
        assert restored(*stored(index), len(column)).keys == keys.keys
    index = Index(1)
    mixed = [0.5, 2**53 + 1, 2**53, 1e300, -(2**63), 0, -(2**53) - 1]  # float64 has not all of these integers
    for part in (mixed[:1], mixed[1:]):
        keys = read("t", [("k", np.array(part, object))])
        at_once(index.added(keys.keys, keys.kinds))
    assert (index.array().dtype, index.array().tolist()) == (object, mixed)
    kinds, arrays = stored(index)
    assert restored(kinds, arrays, len(mixed)).keys == mixed
    for damage in (arrays["key_0_exact"][1:], arrays["key_0_exact"].astype(float)):
        with pytest.raises(ValueError, match=r"argument|integers of column 0"):
            restored(kinds, arrays | {"key_0_exact": damage}, len(mixed))
    with pytest.raises(ValueError, match="keys of"):
        restored(["number"], {"key_0": np.array([1, 1])}, 2)
    with pytest.raises(ValueError, match="keys of column 0 that end at"):  # before the last letter
        restored(["string"], {"key_0": np.frombuffer(b"abc", np.uint8), "key_0_ends": np.array([1, 2])}, 2)


@pytest.mark.parametrize("values", [["b", "a", "c", "b"], [2, 1, 3, 2], [2.0, 1, 3, 2], NUMPY_DAYS[[0, 2, 2, 0]]])
def test_masked_keys_are_missing(values):
    plain = np.asarray(values)
    kind, _, keys = codes_and_keys(plain)
    masked = np.ma.masked_array(plain, [False, False, True, False])
    assert codes_and_keys(masked) == (kind, [0, 1, -1, 0], keys[:2])
    assert codes_and_keys(np.ma.masked_array(plain)) == codes_and_keys(plain)
    assert codes_and_keys(np.ma.masked_array(plain, True)) == (None, [-1] * 4, [])
