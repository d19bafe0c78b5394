"""Groups of frames and Arrow tables, whose columns are read where they lie: the results are those of an array."""

import datetime as dt
import warnings
from decimal import Decimal

import numpy as np
import pytest

from bnorm import GroupedTransformer
from bnorm.transformer import group_tables

NAMES = ("a", "key", "b", "c")
WAYS = [{}, {"halflife": 1.5}]  # so short that no weight is left of old rows


def table(kind="f8"):
    rng = np.random.default_rng(0)
    x = rng.normal(100.0, 3.0, (3000, 4))
    x[rng.random(x.shape) < 0.1] = np.nan
    x[:, 1] = rng.integers(0, 9, len(x))
    x[:, [0, 2, 3]] = x[:, [0, 2, 3]].astype(kind)
    return x


def of_pandas(x, kinds):
    pd = pytest.importorskip("pandas", reason="one of the kinds of tables")
    frame = pd.DataFrame({name: x[:, j].astype(kind) for j, (name, kind) in enumerate(zip(NAMES, kinds, strict=True))})
    return frame.assign(b=frame["b"].copy())


def of_arrow(x, kinds):
    pa = pytest.importorskip("pyarrow", reason="one of the kinds of tables")
    table = pa.table({name: x[:, j].astype(kind) for j, (name, kind) in enumerate(zip(NAMES, kinds, strict=True))})
    return pa.concat_tables([table.slice(0, 7), table.slice(7, 0), table.slice(7, 1200), table.slice(1207)])


def of_polars(x, kinds):
    pl = pytest.importorskip("polars", reason="one of the kinds of tables")
    columns = {name: x[:, j].astype(kind) for j, (name, kind) in enumerate(zip(NAMES, kinds, strict=True))}
    frame = pl.DataFrame(columns)
    return pl.concat([frame[:1000], frame[1000:]], rechunk=False)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("of", [of_pandas, of_arrow, of_polars])
@pytest.mark.parametrize("kinds", ["f8 i8 f8 f8", "f4 i8 f4 f4", "f4 i8 f8 f4"])
def test_the_results_are_those_of_an_array(of, kinds, way, monkeypatch):
    monkeypatch.setattr(group_tables, "LONG", 1)
    kinds = kinds.split()
    x = table("f4" if "f4" in kinds else "f8")
    given, w = of(x, kinds), np.random.default_rng(1).random(len(x))
    for weight in (None, w):
        t = GroupedTransformer("key", **way).partial_fit(given, sample_weight=weight)
        one = GroupedTransformer(1, **way).partial_fit(x, sample_weight=weight)
        for name in ("counts_", "means_", "vars_"):
            assert getattr(t, name).tobytes() == getattr(one, name).tobytes()
        y = t.transform(given)
        assert y.flags.f_contiguous
        assert y.dtype == np.result_type(*kinds[::2], kinds[3])
        np.testing.assert_array_equal(y, one.transform(x).astype(y.dtype))


@pytest.mark.parametrize("of", [of_pandas, of_arrow, of_polars])
def test_infinity(of, monkeypatch):
    monkeypatch.setattr(group_tables, "LONG", 1)
    x = table()
    kinds = ["f8", "i8", "f8", "f8"]
    t = GroupedTransformer("key").fit(of(x, kinds))
    before = t.means_.tobytes()
    x[2000, 3] = np.inf
    for call in (t.fit, t.partial_fit, t.transform):
        with pytest.raises(ValueError, match="infinity"):
            call(of(x, kinds))
    assert t.means_.tobytes() == before


def test_columns_of_a_frame_are_not_copied(monkeypatch):
    monkeypatch.setattr(group_tables, "LONG", 1)
    frame = of_pandas(table(), ["f8", "i8", "f8", "f8"])
    t = GroupedTransformer("key").fit(frame)
    read = group_tables.split(t, frame, reset=False).features.x.batches[0]
    assert all(np.shares_memory(column, frame[name].to_numpy()) for column, name in zip(read, "abc", strict=True))


NANO = np.array([10**18, 10**18 + 1000, 10**18], "M8[ns]")


def kept():
    """Columns of keys with what an array has of them."""
    pd = pytest.importorskip("pandas", reason="one of the kinds of tables")
    pl = pytest.importorskip("polars", reason="one of the kinds of tables")
    large = [2**53 + 1, 2**53, 2**53 + 1]
    yield pd.DataFrame, pd.Series(NANO), list(NANO)
    yield pl.DataFrame, pl.Series(NANO), list(NANO)
    yield pd.DataFrame, np.array([True, False, True]), [True, False, True]
    yield pd.DataFrame, np.array(large), large
    yield pl.DataFrame, pl.Series(large), large
    yield pd.DataFrame, pd.Series([2**53 + 1, pd.NA, 3], dtype="Int64"), [2**53 + 1, pd.NA, 3]
    yield pl.DataFrame, pl.Series([2**53 + 1, None, 3]), [2**53 + 1, None, 3]
    yield pl.DataFrame, pl.Series(["a", None, "b"], dtype=pl.Categorical), ["a", None, "b"]
    yield pl.DataFrame, pl.Series(["a", None, "b"], dtype=pl.Enum(["b", "a"])), ["a", None, "b"]
    yield pd.DataFrame, pd.Series(["a", pd.NA, "b"], dtype="string"), ["a", pd.NA, "b"]


def test_kept_keys_are_unchanged():
    for frame, keys, expected in kept():
        t = GroupedTransformer("key", keep_keys=True).fit(table := frame({"key": keys, "a": [1.0, 2.0, 4.0]}))
        y = t.transform(table)
        assert y[:, 0].tolist() == list(expected)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            np.testing.assert_allclose(t.inverse_transform(y)[:, 1].astype(float), [1.0, 2.0, 4.0])


@pytest.mark.parametrize("kind", ["int64", "uint64", "int8"])
def test_kept_integers_of_arrow_with_gaps_are_integers_in_pandas(kind):
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    keys = [127, None, 125] if kind == "int8" else [2**60 + 1, None, 2**60 + 3]
    table = pa.table({"key": pa.array(keys, kind), "a": [1.0, 2.0, 4.0]})
    t = GroupedTransformer("key", keep_keys=True).set_output(transform="pandas").fit(table)
    y = t.transform(table)
    assert y["key"].dtype.name.lower() == kind
    assert [None if key is pd.NA else key for key in y["key"]] == keys
    assert t.inverse_transform(y)["a"].tolist() == [1.0, 2.0, 4.0]


def test_kept_keys_that_are_numbers_stay_numbers():
    """With a gap too, which is NaN; and large floats, which an array of floats holds unchanged."""
    pd = pytest.importorskip("pandas", reason="one of the kinds of tables")
    for keys in (pd.Series([2**53, pd.NA, 3], dtype="Int64"), pd.Series([1e300, np.nan, 3.0])):
        y = GroupedTransformer("key", keep_keys=True).fit_transform(pd.DataFrame({"key": keys, "a": [1.0, 2.0, 4.0]}))
        assert y.dtype == np.float64
        np.testing.assert_array_equal(y[:, 0], keys.astype(float))


MASKED = {
    "float": (np.array([1.0, 1.0, 2.0, 2.0], "f4"), np.nan),
    "integer": (np.array([1, 2**60, 2, 2]), np.nan),
    "large": (np.array([2**60 + 1, 1, 2**60 + 3, 2**60 + 3]), None),
    "bool": (np.array([True, True, False, False]), None),
    "text": (np.array(["1", "1", "2", "2"]), None),
    "object": (np.array(["a", "a", "b", "b"], object), None),
}


@pytest.mark.parametrize("kind", MASKED)
@pytest.mark.parametrize("container", ["default", "pandas", "polars"])
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_kept_keys_of_a_masked_array_stay_missing(kind, container):
    if container != "default":
        pytest.importorskip(container, reason="one of the containers")
    keys, gap = MASKED[kind]
    x = np.ma.array(
        np.column_stack([keys, np.array([1, 0, 0, 1], keys.dtype)]), mask=[[i == 1, False] for i in range(4)]
    )
    t = GroupedTransformer(0, keep_keys=True).set_output(transform=container).fit(x)
    y = t.transform(x)
    found = y[:, 0].tolist() if container == "default" else list(y["x0"])
    assert [found[0], *found[2:]] == [keys[0], *keys[2:]]
    assert found[1] is None or found[1] != found[1]
    assert container != "default" or str(found[1]) == str(gap)
    back = np.asarray(t.inverse_transform(y))[:, 1]
    np.testing.assert_allclose(back.astype(float), [1, 0, 0, 1], atol=1e-7)


@pytest.mark.parametrize("keep_keys", [False, True], ids=["features", "all"])
def test_an_array_mapped_back_is_an_array(keep_keys):
    """As the result of a BatchNormTransformer is, even if a data frame is asked for."""
    frame = of_pandas(table(), ["f8", "i8", "f8", "f8"])
    t = GroupedTransformer("key", keep_keys=keep_keys).set_output(transform="pandas").fit(frame)
    z = t.transform(frame)
    back = t.inverse_transform(z.to_numpy(), keys=None if keep_keys else frame["key"])
    assert type(back) is np.ndarray
    np.testing.assert_allclose(back, frame[z.columns])


@pytest.mark.parametrize("keep_keys", [False, True], ids=["features", "all"])
def test_keys_of_a_dask_frame_that_its_sample_does_not_show(keep_keys):
    """Dask does not know unknown categories, nor what kind of objects a column has."""
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    x = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0, 5.0], "k": [7, 8, 7, 8, 9], "b": [1, 5, 3, 4, 9]})
    lazy = dd.from_pandas(x, npartitions=2, sort=False)
    lazy = dd.concat([lazy, lazy[lazy["a"] > 9]])  # the last partitions are empty
    keys = [lazy["k"].astype("category"), dd.to_datetime(lazy["k"], unit="D").astype("category")]
    for of in (str, Decimal, lambda k: dt.date(2020, 1, k), lambda k: k > 7):
        keys.append(lazy["k"].map(of, meta=("k", object)))
    for given in [lazy.assign(k=column) for column in keys]:
        t, one = GroupedTransformer("k", keep_keys=keep_keys), GroupedTransformer("k", keep_keys=keep_keys)
        want = one.set_output(transform="pandas").fit_transform(x.assign(k=given["k"].compute()))
        for y in (t.fit(given).transform(given), t.fit_transform(given)):
            pd.testing.assert_frame_equal(y.compute(), want)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_keys_apart_are_taken_by_name(library):
    pd, module = pytest.importorskip("pandas"), pytest.importorskip(library)
    of = module.table if library == "pyarrow" else module.DataFrame
    frame = pd.DataFrame({"a": [1.0, 2, 4, 10], "i": list("uuvv"), "b": [3.0, 1, 1, 2], "j": list("vuvv")})
    t = GroupedTransformer(["i", "j"], prior=0.5).fit(frame)
    z = pd.DataFrame(t.transform(frame), columns=["a", "b"])
    by_position = frame[["i", "j"]].set_axis([0, 1], axis=1)
    for keys in (of(frame[["i", "j"]]), of(frame[["j", "i"]]), by_position):
        np.testing.assert_allclose(t.inverse_transform(of(z), keys=keys), frame[["a", "b"]])
    with pytest.raises(ValueError, match=r"keys: expected columns \['i', 'j'\], as in fit, got \['i', 'a'\]"):
        t.inverse_transform(of(z), keys=of(frame[["i", "a"]]))
    with pytest.raises(ValueError, match=r"X: column 0: expected feature 'a', in the order of fit, got 'b'"):
        t.inverse_transform(of(z[["b", "a"]]), keys=of(frame[["i", "j"]]))
    one, keys = GroupedTransformer("j").fit(frame[["a", "j"]]), of(frame[["j"]])
    for column in (keys, keys["j"]):
        np.testing.assert_allclose(one.inverse_transform(one.transform(frame[["a", "j"]]), keys=column), frame[["a"]])
    nameless = GroupedTransformer([1, 3], prior=0.5).fit(frame.to_numpy())
    for table in (z, z.set_axis(["c", "d"], axis=1)):
        np.testing.assert_allclose(nameless.inverse_transform(of(table), keys=of(frame[["i", "j"]])), frame[["a", "b"]])
