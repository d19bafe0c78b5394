"""Transformers with exact statistics: the same bits for any order and cut, and rows that can be taken out again."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone

import bnorm
import bnorm.functional as F
from bnorm import BatchNormTransformer
from bnorm.distributed import merge_all
from compare import assert_same
from ranks import all_of

RNG = np.random.default_rng(5)
X = np.concatenate([RNG.standard_normal((300, 4)), 1e9 + RNG.standard_normal((100, 4))])
X[RNG.random(X.shape) < 0.1] = np.nan
WANT = F.moments(X, exact=True, skipna=True)


def exact(**options):
    return BatchNormTransformer(momentum=None, exact=True, **options)


def check(t, want=WANT, ddof=0):
    assert t.digest() == want.digest()
    assert_same(t.mean_, want.mean)
    assert_same(t.var_, want.var(ddof))
    np.testing.assert_array_equal(t.n_samples_seen_, want.count)


LARGE = np.array([[2**53 + 1], [2**60 + 3], [5], [2**53 + 1]])  # float64 cannot hold them


def _dask(x):
    return pytest.importorskip("dask.array").from_array(x, chunks=2)


def _dask_frame(x):
    frame = pytest.importorskip("pandas").DataFrame({"a": x[:, 0]})
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=2)


def _nullable(x):
    pd = pytest.importorskip("pandas")
    return pd.DataFrame({"a": pd.array(x[:, 0], {"i": "Int64", "u": "UInt64"}[x.dtype.kind])})


def _nullable_in_dask(x):
    return pytest.importorskip("dask.dataframe").from_pandas(_nullable(x), npartitions=2)


def _in_arrow_in_pandas(x):
    pytest.importorskip("pyarrow", exc_type=ImportError, reason="columns of pandas in its memory")
    return pytest.importorskip("pandas").DataFrame({"a": x[:, 0]}).astype(f"{x.dtype.name}[pyarrow]")


def _arrow(x):
    pa = pytest.importorskip("pyarrow", exc_type=ImportError, reason="a table of pyarrow")
    column = pa.array(np.insert(x[:, 0], 2, 7), mask=np.arange(len(x) + 1) == 2)
    return pa.concat_tables([pa.table({"a": column.slice(a, n)}) for a, n in ((0, 2), (2, 3))])


@pytest.mark.parametrize(
    "of", [np.asfortranarray, _dask, _dask_frame, _nullable, _nullable_in_dask, _in_arrow_in_pandas, _arrow]
)
@pytest.mark.parametrize("kind", [np.int64, np.uint64], ids=lambda kind: kind.__name__)
def test_integers_are_not_rounded(of, kind):
    """Arrow's have a missing value too, alone in its batch or not."""
    table, want = of(LARGE.astype(kind)), F.moments(LARGE, exact=True)
    t = exact().fit(table)
    check(t, want)
    check(t.partial_fit(table).forget(table), want)
    if of is _arrow:
        check(exact().partial_fit(table[:3]).partial_fit(table[3:]), want)
        check(exact().fit(table, sample_weight=[3, 1, 9, 0, 2]), F.moments(LARGE, exact=True, weight=[3, 1, 0, 2]))


def test_integers_of_several_types_of_pandas():
    """One with a missing value makes floats of all."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": pd.array(LARGE[:, 0], "Int64"), "b": pd.array([1, 2, 3, 4], "UInt8"), "c": LARGE[:, 0]})
    check(exact().fit(frame), F.moments(np.concatenate([LARGE, [[1], [2], [3], [4]], LARGE], 1), exact=True))
    frame.loc[1, "b"] = pd.NA
    x = np.concatenate([LARGE, [[1], [np.nan], [3], [4]], LARGE], 1)
    check(exact().fit(frame), F.moments(x, exact=True, skipna=True))


@pytest.mark.parametrize("ddof", [0, 1])
def test_any_order_and_any_cut(ddof):
    check(exact(ddof=ddof).fit(X), ddof=ddof)
    order = RNG.permutation(len(X))
    t = exact(ddof=ddof)
    for part in np.array_split(X[order], 7):
        t.partial_fit(part)
    check(t, ddof=ddof)
    assert t.n_batches_seen_ == 7
    one, other = exact(ddof=ddof).fit(X[250:]), exact(ddof=ddof).fit(X[:250])
    check(one.merge(other), ddof=ddof)


def test_forget():
    t, order = exact().fit(X), RNG.permutation(len(X))
    gone, kept = X[order[:150]], X[order[150:]]
    before = t.gamma_.copy()
    for part in np.array_split(gone, 3):
        assert t.forget(part) is t
    check(t, F.moments(kept, exact=True, skipna=True))
    assert_same(t.transform(X), exact().fit(kept).transform(X))
    assert_same(t.gamma_, before)
    t.forget(kept)
    assert np.isnan(t.mean_).all() and np.isnan(t.var_).all() and (t.n_samples_seen_ == 0).all()
    check(t.partial_fit(X))


def test_forgetting_more_rows_than_were_learned():
    """Which no sum shows, if they have no values."""
    t = exact().fit([[np.nan], [1.0]])
    with pytest.raises(ValueError, match="forget: expected at most 2 rows, got 3"):
        t.forget([[np.nan]] * 3)
    assert t.forget([[np.nan]]).n_samples_seen_ == 1
    with pytest.raises(ValueError, match="forget: expected at most 1 rows, got 2"):
        t.forget([[np.nan]] * 2)


@pytest.mark.parametrize(
    "change", [lambda layer: layer.train()(np.ones((50, 4))), lambda layer: layer.reset_running_stats()]
)
def test_rows_that_a_layer_has_counted_are_undone_too(change):
    t = exact(history=9).fit(X[:300])
    change(t.layer_)
    with pytest.raises(ValueError, match="expected at most 300 rows, got 301"):
        t.forget(np.full((301, 4), np.nan))
    t.partial_fit(X[300:])
    check(t)
    assert t.n_batches_seen_ == 2 and t.history_.rows.tolist() == [300, 400]
    assert (t.forget(X[:350]).n_samples_seen_ == F.moments(X[350:], exact=True, skipna=True).count).all()


def test_forgetting_what_was_never_learned_changes_nothing():
    t = exact().fit(X)
    before = pickle.dumps(t._state.statistics.arrays())
    for other in (np.full((2, 4), 1e10), np.concatenate([X, X])):
        with pytest.raises(ValueError, match="BatchNormTransformer: forget: X: expected rows that were learned, got"):
            t.forget(other)
    with pytest.raises(ValueError, match="contains infinity"):
        t.forget(np.full((1, 4), np.inf))
    check(t)
    assert pickle.dumps(t._state.statistics.arrays()) == before


def test_it_needs_exact_statistics():
    t = BatchNormTransformer(momentum=None).fit(X)
    for call in (lambda: t.forget(X), t.digest):
        with pytest.raises(ValueError, match=r"expected a transformer with exact=True and momentum=None"):
            call()
    for options in ({}, {"momentum": 0.5}, {"momentum": None, "halflife": 3.0}):
        with pytest.raises(ValueError, match="exact: expected momentum=None with exact=True"):
            BatchNormTransformer(exact=True, **options).fit(X)
    with pytest.raises(ValueError, match="exact: expected False, as here, got True"):
        t.merge(exact().fit(X))
    t.exact = True
    with pytest.raises(ValueError, match="exact: expected False, as this stream began, got True"):
        t.partial_fit(X)


def test_weights():
    w = RNG.integers(0, 4, len(X))
    t = exact().fit(X, sample_weight=w)
    check(t, F.moments(X, exact=True, skipna=True, weight=w))
    check(t.forget(X, sample_weight=w).partial_fit(X))
    before = t.digest()
    with pytest.raises(ValueError, match=r"sample_weight: expected a mask or integers from 0 to 2\^31 - 1"):
        t.partial_fit(X, sample_weight=w + 0.5)
    with pytest.raises(ValueError, match="contains infinity"):
        t.partial_fit(np.full((2, 4), np.inf), sample_weight=[0, 1])
    assert t.digest() == before


def test_what_carries_them(tmp_path):
    t = exact(history=4).fit(X[:200])
    for suffix in ("safetensors", "npz"):
        t.save(tmp_path / f"t.{suffix}")
    others = [pickle.loads(pickle.dumps(t)), copy.deepcopy(t)]
    others += [bnorm.load(tmp_path / f"t.{suffix}") for suffix in ("safetensors", "npz")]
    for other in others:
        check(other.partial_fit(X[200:]))
    assert clone(t).exact
    wide = exact().fit(np.array([[5e-324] * 100, [1.7e154] * 100]))
    wide.save(tmp_path / "wide.safetensors")
    assert (tmp_path / "wide.safetensors").stat().st_size < 100_000


def test_files_that_are_not_sound(tmp_path):
    from bnorm.files import container

    exact().fit(X).save(tmp_path / "t.safetensors")
    config, entries = container.read("test", tmp_path / "t.safetensors")
    arrays = {name: entry.array() for name, entry in entries.items()}
    for name in ("exact_counts", "exact_first", "exact_values", "exact_squares"):
        for bad in (arrays[name][:0], arrays[name] + 1 - 2 * arrays[name]):
            container.write("test", tmp_path / "bad.safetensors", config, arrays | {name: bad})
            with pytest.raises(ValueError, match="expected a BatchNormTransformer, got a damaged file"):
                bnorm.load(tmp_path / "bad.safetensors")


@pytest.mark.parametrize("n", [1, 3])
def test_merged_over_ranks(n):
    parts = np.array_split(X, n)
    for t in all_of(n, lambda rank, comm: merge_all(exact().fit(parts[rank]), comm)):
        check(t)
    for m in all_of(n, lambda rank, comm: merge_all(F.moments(parts[rank], exact=True, skipna=True), comm)):
        assert m == WANT


def test_frames_and_columns():
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    table = pyarrow.Table.from_pandas(frame)
    check(exact().fit(frame))
    check(exact().fit(table).forget(table.slice(0, 9)).partial_fit(table.slice(0, 9)))
    check(exact().fit(np.asfortranarray(X)))
    check(exact().fit(np.repeat(X, 2, axis=0)[::2]))


def test_dask():
    da = pytest.importorskip("dask.array")
    import dask

    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            for chunks in ((57, 4), (400, 1), (100, 3)):
                x = da.from_array(X, chunks=chunks)
                check(exact().fit(x))
                assert F.moments(x, exact=True, skipna=True) == WANT
                check(exact().fit(x).forget(x).partial_fit(x))
