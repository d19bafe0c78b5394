"""Moments of Dask arrays: those of the array in memory, whatever the chunks and the scheduler."""

import threading

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm.sklearn import StandardScaler
from compare import EPS, assert_close

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
from bnorm.distributed.dask import tree  # noqa: E402

rng = np.random.default_rng(0)
TABLE = rng.standard_normal((1000, 6)) * 3 + [0, 1, -5, 1e3, 1e6, 7]
IMAGES = rng.standard_normal((20, 6, 8, 9)) + np.arange(6)[:, None, None]


def same_moments(got, want, unit=1e-12, **case):
    std = np.sqrt(want.var())
    assert_close(got.count, want.count, 1e-12 * want.count, what="count", **case)
    assert_close(got.mean, want.mean, unit * std + np.spacing(np.abs(want.mean)), what="mean", **case)
    assert_close(got.var(), want.var(), unit * want.var(), what="variance", **case)


@pytest.fixture(autouse=True, params=["synchronous", "threads"])
def scheduler(request):
    with dask.config.set(scheduler=request.param):
        yield request.param


@pytest.mark.parametrize("chunks", [(1000, 6), (100, 6), (137, 4), (1000, 1), ((1, 900, 99), 3)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
def test_any_chunks(chunks, dtype):
    x = TABLE.astype(dtype)
    got = F.moments(da.from_array(x, chunks=chunks))
    assert type(got) is bnorm.Moments
    unit = 8 * EPS[x.dtype] if dtype == "float32" else 1e-12  # float32 is summed in float32 within a block
    same_moments(got, F.moments(x), unit, chunks=chunks, dtype=dtype)


@pytest.mark.parametrize("axis", [1, -1, 0, 2])
def test_any_axis(axis):
    x = da.from_array(IMAGES, chunks=(7, 4, 5, 9))
    same_moments(F.moments(x, axis=axis), F.moments(IMAGES, axis=axis), axis=axis)


@pytest.mark.parametrize("of", ["Dask", "NumPy"])
@pytest.mark.parametrize("whole", [True, False], ids=["values", "samples"])
def test_weights(whole, of):
    w = rng.random((20, 8, 9)) * (rng.random((20, 8, 9)) > 0.3)
    w[:7] = 0  # a block without any weight
    w = w if whole else w[:, 0, 0]
    given = da.from_array(w, chunks=6) if of == "Dask" else w
    x = da.from_array(IMAGES, chunks=(7, 4, 5, 9))
    same_moments(F.moments(x, weight=given), F.moments(IMAGES, weight=w))


def test_chunks_of_unknown_size():
    x = da.from_array(TABLE, chunks=(100, 6))
    few, w = x[x[:, 0] > 3.5], x[:, 0] ** 2
    assert np.isnan(few.shape[0])
    kept = TABLE[:, 0] > 3.5
    same_moments(F.moments(few), F.moments(TABLE[kept]))
    same_moments(F.moments(few, weight=w[x[:, 0] > 3.5]), F.moments(TABLE[kept], weight=TABLE[kept, 0] ** 2))
    with pytest.raises(TypeError, match=r"^moments: weight: expected a Dask array.*compute_chunk_sizes"):
        F.moments(few, weight=np.ones(kept.sum()))
    with pytest.raises(ValueError, match=r"^moments: weight: expected \(10,\) blocks"):
        F.moments(few, weight=da.ones(kept.sum(), chunks=-1))


def test_missing_and_infinite_values():
    x = TABLE.copy()
    x[::7, 1], x[:, 2], x[5, 3] = np.nan, np.nan, np.inf
    for skipna in (True, False):
        got, want = (F.moments(a, skipna=skipna) for a in (da.from_array(x, chunks=(90, 5)), x))
        np.testing.assert_array_equal(got.count, want.count)
        np.testing.assert_allclose(got.mean, want.mean, rtol=1e-12)
        np.testing.assert_allclose(got.m2, want.m2, rtol=1e-11)


def test_the_same_bits_again():
    x = da.from_array(TABLE, chunks=(37, 4))
    with dask.config.set(scheduler="synchronous"):
        first = F.moments(x)
    assert all(F.moments(x) == first for _ in range(3))


def test_every_block_is_read_once():
    reads, lock = [], threading.Lock()

    def load(i):
        with lock:
            reads.append(i)
        return TABLE[100 * i : 100 * i + 100]

    x = da.concatenate([da.from_delayed(dask.delayed(load)(i), (100, 6), float) for i in range(10)])
    got = F.moments(x, weight=x[:, 0] ** 2)  # the weights come out of the same blocks
    same_moments(got, F.moments(TABLE, weight=TABLE[:, 0] ** 2))
    assert sorted(reads) == list(range(10))


def test_a_kernel_has_one_thread_for_each_of_dask(set_threads):
    seen = []

    def look(block):
        seen.append(bnorm.get_num_threads())
        return block

    set_threads(3)
    from bnorm.distributed import dask as blocks

    dask.compute(*blocks.blocks_of(look, da.ones((40, 2), chunks=10), (1,))[0])
    assert seen == [1] * 4
    assert bnorm.get_num_threads() == 3


def test_an_empty_array():
    for x in (da.zeros((0, 3), chunks=5), da.from_array(TABLE[:, :3], chunks=100)[:0]):
        got = F.moments(x)
        np.testing.assert_array_equal(got.count, np.zeros(3))
        assert np.isnan(got.mean).all()


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (da.ones((4, 3), dtype=complex), {}, "moments: x: expected real numbers, got dtype complex128"),
        (dask.delayed(np.ones)((4, 3)), {}, "moments: x: expected a Dask array or DataFrame, got Delayed"),
        (da.ones((4, 3)), {"axis": 2}, r"moments: axis: expected an axis of x, which has shape \(4, 3\), got 2"),
        (da.ones((4, 3)), {"weight": np.ones(3)}, r"moments: weight: expected shape \(4,\).* got \(3,\)"),
        (da.ones((4, 3)), {"weight": da.ones(5)}, r"moments: weight: expected shape \(4,\).* got \(5,\)"),
        (da.ones((4, 3)), {"weight": -da.ones(4)}, "moments: weight: expected finite values >= 0"),
        (np.ones((4, 3)), {"weight": da.ones(4)}, "moments: weight: expected an array in memory, got a Dask Array"),
    ],
)
def test_errors(x, options, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        F.moments(x, **options)


LAZY = da.ones((4, 3))


def displayed(t, x):
    pytest.importorskip("matplotlib", reason="draws")
    from bnorm.plot import NormalizationDisplay

    return NormalizationDisplay.from_estimator(t, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.batch_norm(LAZY),
        lambda: F.batch_norm(np.ones((4, 3)), LAZY[0]),
        lambda: F.layer_norm(LAZY, normalized_shape=3),
        lambda: F.backward(LAZY, F.batch_norm(np.ones((4, 3)))[1]),
        lambda: bnorm.BatchNorm1d(3)(LAZY),
        lambda: bnorm.LayerNorm(3)(LAZY),
        lambda: bnorm.BatchNormTransformer().fit(np.ones((4, 3)), sample_weight=LAZY[:, 0]),
        lambda: StandardScaler().fit(LAZY),
        lambda: StandardScaler().fit(np.ones((4, 3)), sample_weight=LAZY[:, 0]),
        lambda: StandardScaler().fit(np.ones((4, 3))).transform(LAZY),
        lambda: StandardScaler().fit(np.ones((4, 3))).inverse_transform(LAZY),
        lambda: displayed(bnorm.BatchNormTransformer().fit(np.ones((4, 3))), LAZY),
    ],
)
def test_nothing_is_brought_into_memory_without_a_word(call, monkeypatch):
    def computed(*_, **__):
        raise AssertionError("a lazy array was computed")

    monkeypatch.setattr(da.Array, "compute", computed)
    monkeypatch.setattr(da.Array, "__array__", computed)
    with pytest.raises(TypeError, match=r"expected an array in memory, got a Dask Array, .*compute\(\)"):
        call()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 17, 64, 65])
def test_every_block_is_merged_in_its_order(n):
    """However many there are on a level."""
    items = [dask.delayed([i]) for i in range(n)]
    assert tree(items, lambda some: [i for item in some for i in item]).compute() == list(range(n))
