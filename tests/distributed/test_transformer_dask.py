"""The transformer on Dask collections: what it makes of the same table in memory, lazily, block by block."""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from compare import assert_close
from drawing import every_pair

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
from bnorm.distributed import dask as blocks  # noqa: E402

rng = np.random.default_rng(0)
X = rng.standard_normal((1000, 6)) * [1, 2, 3, 4, 5, 0] + [0, 1, -5, 1e3, 1e6, 7]
X[::7, 1], X[300:, 2] = np.nan, np.nan
W = rng.random(1000) * (rng.random(1000) > 0.2)
W[400:600] = 0  # whole blocks weigh nothing
MODES = [{"momentum": 0.3}, {"momentum": None}, {"halflife": 70.0}, {"halflife": 70.0, "ddof": 1}]
NAMED = {str(mode): mode for mode in MODES}
CHUNKS = [(100, 6), (37, 4), (1000, 1), ((0, 500, 0, 500), 6), (1, 6)]

every_mode = pytest.mark.parametrize("mode", MODES, ids=str)


def same_statistics(t, want, **case):
    std = np.sqrt(want.var_)
    assert_close(t.mean_, want.mean_, 1e-12 * std + np.spacing(np.abs(want.mean_)), what="mean", **case)
    assert_close(t.var_, want.var_, 1e-12 * want.var_, what="variance", **case)
    assert_close(t.n_samples_seen_, want.n_samples_seen_, 1e-12 * np.abs(want.n_samples_seen_), what="seen", **case)
    assert t.n_batches_seen_ == want.n_batches_seen_
    assert t.n_features_in_ == want.n_features_in_


@pytest.fixture(autouse=True)
def synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@every_pair("mode", NAMED, chunks=CHUNKS, weighted=[False, True])
def test_the_same_as_in_memory(mode, chunks, weighted):
    mode = NAMED[mode]
    rows = slice(590, 630) if chunks[0] == 1 else slice(None)
    x, w = X[rows], W[rows] if weighted else None
    lazy = da.from_array(x, chunks=chunks)
    for method in ("fit", "partial_fit"):
        t, want = (getattr(bnorm.BatchNormTransformer(**mode), method)(a, sample_weight=w) for a in (lazy, x))
        for _ in range(2):  # and what follows in the stream
            same_statistics(t, want, mode=mode, method=method, chunks=chunks)
            some = slice(-30, None)
            t.partial_fit(lazy[some], sample_weight=w if w is None else w[some])
            want.partial_fit(x[some], sample_weight=w if w is None else w[some])


@every_mode
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_the_same_bits_of_the_same_chunks(mode, scheduler):
    lazy = da.from_array(X, chunks=(37, 4))
    want = bnorm.BatchNormTransformer(**mode).partial_fit(lazy)
    with dask.config.set(scheduler=scheduler):
        t = bnorm.BatchNormTransformer(**mode).partial_fit(lazy)
    for name in ("mean_", "var_", "scale_"):
        assert getattr(t, name).tobytes() == getattr(want, name).tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("chunks", CHUNKS[:3], ids=str)
def test_transform_is_lazy_and_the_same(dtype, chunks):
    x = np.clip(np.nan_to_num(X), -100, 100).astype(dtype)
    lazy = da.from_array(x, chunks=chunks)
    t = bnorm.BatchNormTransformer(momentum=None).fit(lazy)
    t.gamma_, t.beta_ = np.arange(6.0), np.arange(6.0)[::-1]
    for method in (t.transform, t.inverse_transform):
        y, want = method(lazy), method(x)
        assert isinstance(y, da.Array)
        assert (y.shape, y.dtype, y.chunks) == (want.shape, want.dtype, lazy.chunks)
        got = y.compute()
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)  # the same bits
    np.testing.assert_array_equal(t.fit_transform(lazy).compute(), t.transform(x))


def test_a_lazy_result_is_that_of_the_state_it_was_asked_of():
    lazy = da.from_array(X, chunks=100)
    t = bnorm.BatchNormTransformer(momentum=None).fit(X)
    want, back = t.transform(X), t.inverse_transform(X)
    y, x = t.transform(lazy), t.inverse_transform(lazy)
    t.gamma_ = np.full(6, 9.0)
    t.partial_fit(X * 3 + 1)
    t.running_mean_ = np.zeros(6)
    np.testing.assert_array_equal(y.compute(), want)
    np.testing.assert_array_equal(x.compute(), back)


@pytest.mark.parametrize("copy", [True, False])
def test_blocks_are_never_written_to(copy):
    held = X.copy()
    lazy = da.from_array(held, chunks=100)
    t = bnorm.BatchNormTransformer(momentum=None, copy=copy).fit(lazy)
    t.transform(lazy).compute()
    t.inverse_transform(lazy, copy=copy).compute()
    np.testing.assert_array_equal(held, X)


@pytest.mark.parametrize("chunks", [(400, 3), (400, 1), (130, 2)], ids=str)
@pytest.mark.parametrize("ddof", [0, 1])
def test_values_after_a_gap_of_thousands_of_half_lives(chunks, ddof):
    x = np.random.default_rng(0).standard_normal((3000, 3)) + 5
    x[300:2999, 0], x[300:, 1] = np.nan, np.nan
    lazy = da.from_array(x, chunks=chunks)
    for table in (x, x[:2500]):
        want = bnorm.BatchNormTransformer(halflife=1.0, ddof=ddof).partial_fit(table)
        t = bnorm.BatchNormTransformer(halflife=1.0, ddof=ddof).partial_fit(lazy[: len(table)])
        same_statistics(t, want, chunks=chunks)
        t.partial_fit(lazy[:90])
        same_statistics(t, want.partial_fit(x[:90]), chunks=chunks)


def test_blocks_of_unknown_size():
    lazy = da.from_array(X, chunks=(100, 6))
    few = lazy[lazy[:, 0] > 0.5]
    kept = X[:, 0] > 0.5
    for mode in MODES:
        t = bnorm.BatchNormTransformer(**mode).partial_fit(few, sample_weight=few[:, 0])
        want = bnorm.BatchNormTransformer(**mode).partial_fit(X[kept], sample_weight=X[kept, 0])
        same_statistics(t, want, mode=mode)
    y = t.transform(few)
    assert np.isnan(y.shape[0])
    np.testing.assert_array_equal(y.compute(), t.transform(X[kept]))


# Frames ---------------------------------------------------------------------------------------------------------------


def frame():
    table = pd.DataFrame(np.nan_to_num(X[:, :5]), columns=list("abcde"), index=np.arange(5000, 6000))
    return table.assign(
        single=table.a.astype("float32"),
        whole=np.arange(1000),
        yes=table.a > 0,
        nullable=pd.array([1, None] * 500, "Int64"),
    )


@every_mode
def test_frames(mode):
    table = frame()
    lazy = dd.from_pandas(table, npartitions=7)
    t = bnorm.BatchNormTransformer(**mode).partial_fit(lazy, sample_weight=lazy["whole"])
    want = bnorm.BatchNormTransformer(**mode).partial_fit(table, sample_weight=table["whole"])
    same_statistics(t, want, mode=mode)
    assert list(t.feature_names_in_) == list(table.columns)
    y = t.transform(lazy)
    assert isinstance(y, dd.DataFrame)
    got = y.compute()
    assert list(got.columns) == list(y.columns) == list(table.columns)
    np.testing.assert_array_equal(got.index, table.index)
    assert (got.dtypes == y.dtypes).all()
    assert got.dtypes.map(str).to_dict() == dict.fromkeys(table.columns, "float64") | {"single": "float32"}
    wanted = t.transform(table)
    assert_close(got.drop(columns="single"), np.delete(wanted, 5, axis=1), 0.0)
    assert_close(got["single"], wanted[:, 5].astype("f4"), 0.0)
    back = t.inverse_transform(y).compute()
    assert_close(back["c"], table["c"], 1e-12 * np.abs(table["c"]).max())


def test_a_frame_of_one_type_keeps_it():
    table = frame()[["a", "b", "c"]].astype("float32")
    t = bnorm.BatchNormTransformer()
    y = t.fit_transform(dd.from_pandas(table, npartitions=3)).compute()
    assert (y.dtypes == "float32").all()
    np.testing.assert_array_equal(y, t.transform(table))


def test_a_frame_of_times_is_refused_as_in_memory():
    table = pd.DataFrame({"at": pd.to_datetime("2024-03-01") + pd.to_timedelta(np.arange(50), unit="h")})
    for times in (table, dd.from_pandas(table, npartitions=3)):
        with pytest.raises(ValueError, match="X: column 'at': expected numbers, got datetime64"):
            bnorm.BatchNormTransformer(momentum=None).fit(times)


def test_a_frame_with_an_empty_partition():
    table = frame()
    lazy = dd.from_pandas(table, npartitions=5)
    few = lazy[lazy.whole > 700]
    t = bnorm.BatchNormTransformer(momentum=None).fit(few)
    same_statistics(t, bnorm.BatchNormTransformer(momentum=None).fit(table[table.whole > 700]))
    assert len(t.transform(few).compute()) == 299


@pytest.mark.parametrize("by", [None, "k"])
@pytest.mark.parametrize("way", ["fit", "fit weighted", "dask.fit"])
def test_partitions_whose_columns_are_in_another_order(by, way):
    whole = pd.DataFrame({"k": [1, 2] * 5, "a": np.arange(10.0), "b": 100 - np.arange(10.0)})
    parts = [whole[:4], whole[4:][["b", "k", "a"]]]
    frame = dd.from_map(lambda part: part, parts, meta=whole[:0])
    own, w = (frame, frame["a"]) if way == "fit weighted" else (frame, None)
    new = bnorm.GroupedTransformer(by) if by else bnorm.BatchNormTransformer(momentum=None)
    want = type(new)(**new.get_params()).fit(whole, sample_weight=None if w is None else whole["a"])
    t = blocks.fit(new, own) if way == "dask.fit" else new.fit(own, sample_weight=w)
    y = want.set_output(transform="pandas").transform(whole)
    np.testing.assert_allclose(t.transform(frame).compute(), y, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(blocks.transform(t, frame.assign(c=1)).compute()[list(y)], y, rtol=1e-12, atol=1e-14)
    m = F.moments(frame, weight=w)
    same = F.moments(whole.to_numpy(), weight=None if w is None else whole["a"].to_numpy())
    np.testing.assert_allclose(m.mean, same.mean, rtol=1e-14)


@pytest.mark.parametrize("by", [None, "k"])
@pytest.mark.parametrize("change", [{"a": "k"}, {"a": "b"}, {"b": "c"}], ids=str)
def test_partitions_without_some_columns(by, change):
    whole = pd.DataFrame({"k": [1, 2], "a": [1.0, 2.0], "b": [3.0, 4.0]})
    parts = [whole, whole.rename(columns=change)]
    frame = dd.from_map(lambda part: part, parts, meta=whole[:0])
    t = bnorm.GroupedTransformer(by) if by else bnorm.BatchNormTransformer(momentum=None)
    with pytest.raises(ValueError, match=r"Transformer: expected the columns \['k', 'a', 'b'\] in all partitions, got"):
        t.fit(frame)
    with pytest.raises(ValueError, match="expected the columns"):
        t.fit(whole).transform(frame).compute()


@pytest.fixture
def shuffled():
    """A frame whose rows Dask has shuffled: into another order, if it is asked for other columns."""
    table = frame()[["a", "b", "c"]].assign(key=np.arange(1000) % 40, w=W, ts=rng.permutation(1000) / 10)
    return table, dd.from_pandas(table, npartitions=8).shuffle("key", npartitions=6)


@pytest.mark.parametrize("way", ["series", "name"])
def test_weights_stay_with_their_rows(shuffled, way):
    table, lazy = shuffled
    want = bnorm.BatchNormTransformer(momentum=None).fit(table[["a", "b", "c"]], sample_weight=table["w"])
    t = bnorm.BatchNormTransformer(momentum=None)
    if way == "series":
        t.fit(lazy[["a", "b", "c"]], sample_weight=lazy["w"])
    else:
        blocks.fit(t, lazy, ["a", "b", "c"], sample_weight="w")
    same_statistics(t, want)
    same_statistics(t.partial_fit(lazy[["a", "b", "c"]]), want.partial_fit(table[["a", "b", "c"]]))
    moments, wanted = (F.moments(some[["a", "b"]], weight=some["w"]) for some in (lazy, table))
    np.testing.assert_allclose(moments.mean, wanted.mean, rtol=1e-12)
    np.testing.assert_allclose(moments.var(), wanted.var(), rtol=1e-11)


@pytest.mark.parametrize("halflife", [None, "100s"])
def test_weights_and_times_stay_with_the_rows_of_groups(shuffled, halflife):
    table, lazy = shuffled
    t, want = bnorm.GroupedTransformer("key", halflife=halflife), bnorm.GroupedTransformer("key", halflife=halflife)
    for some, one in ((lazy, t), (table, want)):
        given = {} if halflife is None else {"times": some["ts"]}
        one.fit(some[["key", "a", "b"]], sample_weight=some["w"], **given)
    of, wanted = (one.groups_.argsort() for one in (t, want))
    np.testing.assert_allclose(t.means_[of], want.means_[wanted], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(t.vars_[of], want.vars_[wanted], rtol=1e-10)


def test_weights_in_other_partitions_than_the_rows(shuffled):
    _, lazy = shuffled
    for x, w in ((lazy[["a"]], lazy["w"].repartition(npartitions=2)), (lazy[["a"]], lazy[["w"]])):
        with pytest.raises(ValueError, match=r"BatchNormTransformer: sample_weight: expected (\(6,\) blocks|shape)"):
            bnorm.BatchNormTransformer().fit(x, sample_weight=w)
    with pytest.raises(TypeError, match=r"sample_weight: expected a Dask Series with the 6 partitions .* got ndarray$"):
        bnorm.BatchNormTransformer().fit(lazy[["a"]], sample_weight=W)


@pytest.mark.parametrize("way", ["shuffle", "set_index", "sort_values", "merge"])
def test_arrays_of_weights_of_shuffled_frames(way):
    """Dask would compute them apart from the rows, which then may be in another order."""
    plain = dd.from_pandas(frame()[["a", "b"]].assign(key=np.arange(1000) % 40, w=W), npartitions=5)
    lazy = plain.merge(plain, on="key") if way == "merge" else getattr(plain, way)("key")
    a, w = ("a_x", "w_x") if way == "merge" else ("a", "w")
    words = r"expected a Series with the \d+ partitions of the DataFrame, .* got Array$"
    with pytest.raises(ValueError, match=f"^BatchNormTransformer: sample_weight: {words}"):
        bnorm.BatchNormTransformer().fit(lazy[[a]], sample_weight=lazy[w].to_dask_array())
    with pytest.raises(ValueError, match=f"^moments: weight: {words}"):
        F.moments(lazy[[a]], weight=lazy[w].to_dask_array())
    t = bnorm.BatchNormTransformer(momentum=None).fit(plain[["a"]], sample_weight=plain["w"].to_dask_array())
    np.testing.assert_allclose(t.mean_, F.moments(frame()[["a"]], weight=W).mean, rtol=1e-12)


def test_names_are_checked_before_anything_is_computed():
    lazy = dd.from_pandas(frame(), npartitions=5)
    t = bnorm.BatchNormTransformer().fit(lazy)
    with pytest.raises(ValueError, match="feature names"):
        t.transform(lazy[["a", "b"]])
    with pytest.raises(ValueError, match="feature names"):
        t.partial_fit(lazy[list(lazy.columns[::-1])])


# Blocks that are not what was declared --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "object", "uint8", ">f8", "float16", "masked"])
@pytest.mark.parametrize("declared", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["array", "frame"])
def test_blocks_of_another_dtype_than_declared(dtype, declared, kind):
    x = np.arange(12).reshape(4, 3)
    values = np.ma.masked_equal(x.astype(float), 5) if dtype == "masked" else x.astype(dtype)
    same = np.ma.filled(values, np.nan).astype(declared) if dtype == "masked" else x.astype(declared)
    delayed = [dask.delayed(values[i : i + 2]) for i in (0, 2)]
    if kind == "array":
        lazy = da.concatenate([da.from_delayed(block, (2, 3), dtype=declared) for block in delayed])
    else:
        if dtype == "masked":
            pytest.skip("a frame holds no masked array")
        like = pd.DataFrame({name: np.zeros(0, declared) for name in "abc"})
        blocks = [pd.DataFrame(values[i : i + 2], columns=list("abc")) for i in (0, 2)]
        lazy = dd.from_map(lambda block: block, blocks, meta=like, enforce_metadata=False)
    for mode in MODES:
        t, want = (bnorm.BatchNormTransformer(**mode).fit(table) for table in (lazy, same))
        same_statistics(t, want, mode=mode)
        same_statistics(t.partial_fit(lazy), want.partial_fit(same), mode=mode)
    y = t.transform(lazy).compute()
    np.testing.assert_array_equal(y, t.transform(same if kind == "array" else pd.DataFrame(same, columns=list("abc"))))
    back = t.inverse_transform(lazy).compute()
    assert set(np.asarray(y.dtypes if kind == "frame" else [y.dtype, back.dtype])) == {np.dtype(declared)}


def test_masked_arrays():
    masked = np.ma.masked_invalid(X)
    lazy = da.ma.masked_invalid(da.from_array(X, chunks=(100, 6)))
    t, want = (bnorm.BatchNormTransformer(momentum=None).fit(table) for table in (lazy, masked))
    same_statistics(t, want)
    np.testing.assert_array_equal(t.transform(lazy).compute(), t.transform(masked))


def test_columns_in_the_other_byte_order():
    table = pd.DataFrame(np.nan_to_num(X).astype(">f8"), columns=list("abcdef"))
    lazy = dd.from_pandas(table, npartitions=3)
    t = bnorm.BatchNormTransformer(momentum=None).fit(lazy)
    same_statistics(t, bnorm.BatchNormTransformer(momentum=None).fit(table))
    for method in (t.transform, t.inverse_transform):
        np.testing.assert_array_equal(method(lazy).compute(), method(table))


# Errors ---------------------------------------------------------------------------------------------------------------

ONES = da.ones((10, 3), chunks=5)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (da.ones(5), {}, "Expected 2D array, got 1D array"),
        (da.ones((5, 0)), {}, "Found array with 0 feature"),
        (da.zeros((0, 3)), {}, r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\)"),
        (ONES[ONES[:, 0] > 5], {}, r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\)"),
        (ONES.astype(complex), {}, "Complex data not supported"),
        (ONES / 0, {}, "Input X contains infinity"),
        (ONES.T[ONES[0] > 5].T, {}, "BatchNormTransformer: X: expected a known number of features"),
        (
            dask.delayed(np.ones)((10, 3)),
            {},
            "BatchNormTransformer: X: expected a Dask array or DataFrame, got Delayed",
        ),
        (ONES, {"sample_weight": da.zeros(10)}, "Sample weights must contain at least one non-zero number"),
        (ONES, {"sample_weight": -da.ones(10)}, "Negative values in data passed to `sample_weight`"),
        (ONES, {"sample_weight": da.ones(10) * np.nan}, "Input sample_weight contains NaN"),
        (ONES, {"sample_weight": da.ones(9)}, r"BatchNormTransformer: sample_weight: expected shape \(10,\)"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_errors_change_nothing(x, options, message, method):
    t = bnorm.BatchNormTransformer(momentum=None).fit(np.arange(12.0).reshape(4, 3))
    before = t.mean_.tobytes(), t.var_.tobytes(), t.n_samples_seen_, t.n_batches_seen_
    with np.errstate(divide="ignore"), pytest.raises((TypeError, ValueError), match=message):
        getattr(t, method)(x, **options)
    assert (t.mean_.tobytes(), t.var_.tobytes(), t.n_samples_seen_, t.n_batches_seen_) == before


def test_weights_whose_blocks_do_not_fit():
    few = ONES[ONES[:, 0] > 0]
    with pytest.raises(ValueError, match=r"sample_weight.shape == \(\d,\), expected \(5,\)"):
        bnorm.BatchNormTransformer().fit(few, sample_weight=da.ones(10, chunks=((6, 4),)))


def test_infinity_is_found_when_a_result_is_computed():
    t = bnorm.BatchNormTransformer().fit(ONES)
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="Input X contains infinity"):
        t.transform(ONES / 0).compute()


def test_what_cannot_be_lazy_is_refused():
    t = bnorm.BatchNormTransformer().fit(ONES)
    with pytest.raises(TypeError, match=r"^BatchNormTransformer: backward: X: expected an array in memory, got a Dask"):
        t.backward(ONES, np.ones((10, 3)))
    with pytest.raises(TypeError, match=r"^BatchNormTransformer: dY: expected an array in memory, got a Dask Array"):
        t.backward(np.ones((10, 3)), ONES)
    t.set_output(transform="pandas")
    before = vars(t).copy()
    for method in (t.transform, t.inverse_transform, t.fit_transform):
        with pytest.raises(ValueError, match=r"set_output: expected transform='default', as the result for a Dask"):
            method(ONES)
    assert vars(t) == before  # fit_transform, which has learned by then, too
