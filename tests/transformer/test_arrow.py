"""Arrow tables and polars frames: what NumPy arrays of the same numbers give, read where they are."""

import tracemalloc
from decimal import Decimal

import numpy as np
import pytest

from bnorm import BatchNormTransformer, arrow
from compare import assert_close, assert_same

pa = pytest.importorskip("pyarrow", exc_type=ImportError, reason="these are tables of pyarrow")

rng = np.random.default_rng(0)
X = rng.normal(size=(1000, 3)) * [1, 10, 1e-3] + [0, 1e5, 5]
X[::7, 1] = np.nan
NAMES = ["a", "b", "c"]
SMALL = arrow.SMALL


@pytest.fixture(autouse=True, params=[0, SMALL], ids=["in place", "copied"])
def small(monkeypatch, request):
    monkeypatch.setattr(arrow, "SMALL", request.param)


def table(x=X, **kinds):
    """NaN as a missing value."""
    return pa.table({name: pa.array(column, kinds.get(name), from_pandas=True)
                     for name, column in zip(NAMES, x.T, strict=True)})  # fmt: skip


def chunks():
    t = table()
    return pa.concat_tables([t.slice(0, 1), t.slice(1, 0), t.slice(1, 700), t.slice(701)])


def uneven():
    """Columns that are cut in different places."""
    t = table()
    columns = [pa.chunked_array([t[name].slice(0, n).chunk(0), t[name].slice(n).chunk(0)])
               for name, n in zip(NAMES, (10, 500, 999), strict=True)]  # fmt: skip
    return pa.table(columns, names=NAMES)


def polars():
    return pytest.importorskip("polars", reason="it is a frame of polars").from_arrow(table())


TABLES = {
    "table": table,
    "record batch": lambda: table().to_batches()[0],
    "slice of a batch": lambda: pa.concat_batches([table().to_batches()[0]] * 2).slice(1000),
    "chunks": chunks,
    "uneven chunks": uneven,
    "polars": polars,
}
every_table = pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
KINDS = [{"momentum": 0.2}, {"momentum": None}, {"halflife": 30.0}, {"halflife": 30.0, "ddof": 1}]


def check(got, want):
    """The same statistics, to rounding: blocks are cut elsewhere."""
    assert_close(got.mean_, want.mean_, 1e-13 * want.scale_ + 2e-16 * np.abs(want.mean_))
    assert_close(got.var_, want.var_, 1e-12 * want.var_)
    assert_same(got.n_samples_seen_, want.n_samples_seen_)
    assert got.n_batches_seen_ == want.n_batches_seen_


@every_table
@pytest.mark.parametrize("parameters", KINDS)
@pytest.mark.parametrize("weight", [None, np.arange(1000) % 3 / 2], ids=["", "weights"])
def test_fitting(make, parameters, weight):
    t, want = (BatchNormTransformer(**parameters) for _ in range(2))
    t.fit(make(), sample_weight=weight).partial_fit(make(), sample_weight=weight)
    want.fit(X, sample_weight=weight).partial_fit(X, sample_weight=weight)
    check(t, want)
    assert list(t.feature_names_in_) == NAMES
    check(BatchNormTransformer(**parameters).partial_fit(make()), BatchNormTransformer(**parameters).partial_fit(X))


@pytest.mark.parametrize("small", [SMALL], indirect=True)
def test_short_tables_are_copied():
    for t in (table(), chunks(), uneven(), polars(), arrow.table_of("", polars())):
        x = arrow.short(t)
        assert_same(x, X)
        assert x.flags.f_contiguous and x.flags.writeable
    one = polars()[:, :1]
    assert BatchNormTransformer(copy=False).fit(one).transform(one).flags.writeable
    assert_same(one.to_numpy(), X[:, :1])
    assert arrow.short(polars().head(0)) is arrow.short(polars().with_row_index()) is arrow.short(X) is None
    assert arrow.short(table(X[:0])) is arrow.short(table(a=pa.float32())) is arrow.short(table().select([])) is None
    assert arrow.short(pa.table({"a": np.ones(SMALL)})) is None


@pytest.mark.parametrize("small", [SMALL], indirect=True)
@pytest.mark.parametrize("kinds", [{}, {"a": pa.float32()}], ids=["", "mixed"])
def test_small_batches_are_joined(kinds):
    """Otherwise most of the time would go into what each column of each batch costs."""
    whole = table(**kinds)
    many = pa.concat_tables([whole.slice(i, 9) for i in range(0, 1000, 9)])
    assert len(arrow.columns_of("", many).batches) == 1
    t, want = (BatchNormTransformer(momentum=None).fit(x) for x in (many, whole))
    assert_same(t.running_var_, want.running_var_)
    assert_same(t.transform(many), want.transform(whole))


@every_table
def test_weights_of_any_memory(make):
    """Strided, backwards, not aligned."""
    weight = np.arange(1000.0) % 3 + 1
    want = BatchNormTransformer(momentum=None).fit(make(), sample_weight=weight)
    beside = np.zeros(8001, np.uint8)[1:].view(np.float64)
    beside[...] = weight
    for given in (np.repeat(weight, 2)[::2], weight[::-1].copy()[::-1], beside, weight.astype(">f8")):
        t = BatchNormTransformer(momentum=None).fit(make(), sample_weight=given)
        assert_same(t.mean_, want.mean_)
        assert_same(t.var_, want.var_)


@every_table
def test_mapping(make):
    """The same bits; in the memory order of Arrow."""
    t = BatchNormTransformer().fit(make())
    plain = BatchNormTransformer().fit(X)
    y = t.transform(make())
    assert y.flags.f_contiguous
    plain.running_mean_, plain.running_var_ = t.running_mean_, t.running_var_
    assert_close(y, plain.transform(X), 1e-15 * np.abs(np.nan_to_num(plain.transform(X))))
    back = t.inverse_transform(table(y))
    assert_close(back, X, 1e-12 * np.abs(np.nan_to_num(X)) + 1e-15)
    for some in (make(), make().slice(0, 9)):
        assert_same(t.inverse_transform(some, copy=False), t.inverse_transform(X[: len(some)]))
    assert_same(t.backward(make(), np.ones_like(X)), np.broadcast_to(t.gamma_ / t.scale_, X.shape))


@pytest.mark.parametrize("container", ["pandas", "polars"])
@every_table
def test_set_output(make, container):
    pytest.importorskip(container, reason="it is asked for a frame of it")
    t = BatchNormTransformer().fit(make())
    y = t.transform(make())
    frame = t.set_output(transform=container).transform(make())
    assert type(frame).__module__.split(".")[0] == container
    assert list(frame.columns) == NAMES
    assert_same(frame.to_numpy(), y)


def test_types():
    """All float32 stays so, all else is float64; whole numbers, decimals and bools are numbers."""
    small = {name: pa.float32() for name in NAMES}
    t = BatchNormTransformer().fit(table(**small))
    assert t.transform(table(**small)).dtype == np.float32
    assert t.transform(table(a=pa.float32())).dtype == np.float64
    mixed = pa.table(
        {
            "a": pa.array([1, 2, None], pa.int8()),
            "b": [True, False, True],
            "c": pa.array([1, 2, 6], pa.int64()).cast(pa.decimal128(24, 2)),
            "d": pa.nulls(3),
        }
    )
    t = BatchNormTransformer(momentum=None).fit(mixed)
    assert_same(t.mean_, [1.5, 2 / 3, 3.0, np.nan])
    missing = [[False] * 3 + [True], [False] * 3 + [True], [True, False, False, True]]
    assert_same(np.isnan(t.transform(mixed)), missing)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("parameters", [*KINDS, {"momentum": None, "exact": True}])
def test_integers(dtype, parameters):
    """Slices of integers begin anywhere, and one column has a missing value."""
    ends = np.iinfo(dtype)
    x = rng.integers(max(ends.min, -(2**50)), min(ends.max, 2**50), (1000, 3), dtype, endpoint=True)
    whole = pa.table(dict(zip(NAMES, x.T.copy(), strict=True))).set_column(1, "b", pa.array(x[:, 1], mask=x[:, 1] == 5))
    floats = np.where((x == 5) & [False, True, False], np.nan, x.astype(np.float64))[7:]
    t, want = BatchNormTransformer(**parameters).fit(whole.slice(7)), BatchNormTransformer(**parameters).fit(floats)
    check(t, want)
    y = t.transform(whole.slice(7))
    assert y.dtype == np.float64
    assert_same(y, t.transform(table(floats)))


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_numbers_are_read_where_they_are(dtype):
    """No copy of a table without missing values, whatever its size."""
    x = (rng.normal(size=(200_000, 4)) * 100).astype(dtype)
    t, big = BatchNormTransformer(), pa.table(dict(zip("abcd", x.T.copy(), strict=True)))
    t.fit(big)
    tracemalloc.start()
    t.partial_fit(big)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 50


def test_a_table_stays_as_it_is():
    given = table()
    BatchNormTransformer(copy=False).fit(given).transform(given)
    assert given.equals(table())


def test_tables_that_are_not_in_memory(tmp_path):
    """The error says what to do: scikit-learn's would be one of NumPy."""
    from pyarrow import dataset, feather

    table = pa.table({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    feather.write_feather(table, tmp_path / "t.feather")
    streams = [table.to_reader(), dataset.dataset(tmp_path / "t.feather", format="feather")]
    t = BatchNormTransformer().fit(table)
    for stream in (*streams, streams[1].scanner(), dataset.dataset(table)):
        words = f"^BatchNormTransformer: X: expected a table in memory, got a pyarrow {type(stream).__name__}: call"
        fits = () if hasattr(stream, "__iter__") else (BatchNormTransformer().fit, t.partial_fit)
        for method in (*fits, t.transform, t.inverse_transform):
            with pytest.raises(TypeError, match=words):
                method(stream)
    assert BatchNormTransformer().fit(table.to_reader()).mean_.tolist() == [1.5, 4.0]  # an iterable of tables
    polars = pytest.importorskip("polars", reason="its LazyFrame is refused")
    with pytest.raises(TypeError, match=r"got a polars LazyFrame: collect\(\) reads all of it"):
        t.fit(polars.DataFrame({"a": [1.0, 2.0]}).lazy())


def test_what_does_not_fit():
    t = BatchNormTransformer().fit(table())
    before = t.mean_.copy()
    bad = X.copy()
    bad[5, 2] = np.inf
    for given, want in [
        (table().rename_columns(["a", "b", "d"]), "feature names should match"),
        (table().select(["a", "b"]), "feature names should match"),
        (table().slice(0, 0), "0 sample"),
        (table().set_column(1, "b", [["x"] * 1000]), "column 'b': expected numbers, got string"),
        (table(bad), "infinity"),
    ]:
        for call in (t.partial_fit, t.transform):
            with pytest.raises(ValueError, match=want):
                call(given)
    assert_same(t.mean_, before)
    with pytest.raises(ValueError, match=r"0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required"):
        t.inverse_transform(table().slice(0, 0))
    with pytest.raises(ValueError, match="infinity"):
        BatchNormTransformer(momentum=None).fit(table(bad), sample_weight=np.r_[np.ones(5), 0, np.ones(994)])


def test_decimals_are_the_nearest_floats():
    for digits, scale in ((6, 3), (18, 9), (38, 20), (15, 15)):
        numbers = [Decimal(int(n)).scaleb(-scale) for n in rng.integers(-(10**6), 10**6, 200)]
        array = pa.array([None, *numbers, None], pa.decimal128(digits, scale)).slice(1)
        assert arrow.values(array)[:-1].tolist() == [float(n) for n in numbers]
        assert np.isnan(arrow.values(array)[-1])
    wide = [Decimal("12345678901234567890.5"), Decimal(0)]
    np.testing.assert_allclose(arrow.values(pa.array(wide)), [float(n) for n in wide], rtol=1e-15)


@pytest.mark.parametrize("other", [[Decimal("0.1"), None, Decimal("0.3")], [None] * 3, pa.array([1.0, None, 3.0])])
def test_missing_values_of_arrow_in_pandas_are_missing_values(other):
    """Frames for which pandas makes an array of objects, with its own NA."""
    pd = pytest.importorskip("pandas", reason="it can have columns of Arrow")
    other = other.dictionary_encode() if isinstance(other, pa.Array) else pa.array(other)
    table = pa.table({"a": [Decimal("1.5"), Decimal("2.5"), None], "b": other})
    t = BatchNormTransformer(momentum=None).fit(table.to_pandas(types_mapper=pd.ArrowDtype))
    want = np.array([table["a"].to_pylist(), other.to_pylist()], float).T
    np.testing.assert_array_equal(t.mean_, BatchNormTransformer(momentum=None).fit(want).mean_)
    assert t.feature_names_in_.tolist() == ["a", "b"]
