"""Statistics of a data set: those of all its items, whatever they are and whichever threads read them."""

import itertools
import os
import signal
import threading
import time
import tracemalloc
from importlib.util import find_spec

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from bnorm import Moments, dataset_moments

rng = np.random.default_rng(0)
IMAGES = [rng.integers(0, 255, (3, *rng.integers(0, 9, 2)), dtype=np.uint8) for _ in range(1000)]
ROWS = [rng.standard_normal((n, 4)) * 3 + 1e3 for n in (5, 0, 1, 40, 7)]


def flat(images):
    return np.concatenate([image.reshape(3, -1) for image in images], axis=1)


def test_a_thousand_items_of_random_sizes():
    """One of them is slow, and some are empty; the result has the same bits for any number of workers."""
    want = F.moments(flat(IMAGES), axis=0, minmax=True)
    found = [dataset_moments(iter(IMAGES), axis=0, minmax=True)]

    def read(i):
        return lambda: (time.sleep(0.02 if i == 3 else 0), IMAGES[i])[1]

    for workers in (1, 2, 5):
        found.append(dataset_moments((read(i) for i in range(1000)), axis=0, minmax=True, workers=workers))
    for m in found:
        assert np.array_equal(m.count, want.count) and np.array_equal(m.max, want.max)
        np.testing.assert_allclose(m.mean, want.mean, rtol=1e-14)
        np.testing.assert_allclose(m.var(), want.var(), rtol=1e-12)
        assert m == found[0]
    exact = dataset_moments(reversed(IMAGES), axis=0, exact=True, workers=3)
    assert exact == F.moments(flat(IMAGES), axis=0, exact=True)


def test_pairs_axes_and_differences():
    x = rng.standard_normal((3, 20, 2, 5)).astype(np.float32)
    w = (rng.random((20, 2)) < 0.7).astype(float)
    pairs = [(one, w) for one in x]
    m, d = dataset_moments(pairs, axis=(2,), delta=3)
    want = Moments.merge([F.moments(one, axis=2, weight=w) for one in x])
    np.testing.assert_allclose(m.mean, want.mean, rtol=1e-13)
    change = x[:, 3:].astype(float) - x[:, :-3]
    both = w[3:] * w[:-3]
    wanted = Moments.merge([F.moments(one, axis=2, weight=both) for one in change])
    np.testing.assert_allclose(d.count, wanted.count)
    np.testing.assert_allclose(d.mean, wanted.mean, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(d.var(), wanted.var(), rtol=1e-12)
    for own in (w[:1], w[:, :1]):  # of length 1 along an axis on which it does not depend
        got = dataset_moments([(one, own) for one in x], axis=(2,), delta=3)[1]
        assert got == dataset_moments([(one, np.broadcast_to(own, w.shape)) for one in x], axis=(2,), delta=3)[1]
    m, d = dataset_moments(ROWS, delta=2, minmax=True)  # items of two rows or less have no differences
    steps = np.concatenate([rows[2:] - rows[:-2] for rows in ROWS])
    np.testing.assert_allclose(d.mean, steps.mean(axis=0), rtol=1e-12, atol=1e-13)
    assert np.array_equal(d.max, steps.max(axis=0)) and d.count[0] == len(steps)
    unsigned = [np.array([[5], [2], [9]], np.uint8)]
    assert dataset_moments(unsigned, delta=1, minmax=True)[1].min == -3


def tables():
    pa, pd, pl = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
    names = ["a", "b", "c", "d"]
    frames = [pd.DataFrame(rows, columns=names) for rows in ROWS]
    arrow = [pa.table({name: frame[name].to_numpy() for name in names}) for frame in frames]
    reader = pa.RecordBatchReader.from_batches(arrow[0].schema, [b for t in arrow for b in t.to_batches()])
    return {
        "pandas": frames,
        "arrow": arrow,
        "reader": reader,
        "batches": [batch for table in arrow for batch in table.to_batches()],
        "polars": [pl.from_arrow(table) for table in arrow],
        "dictionaries": [{name: frame[name].to_numpy() for name in names} for frame in frames],
        "arrays": ROWS,
        "lists": [rows.tolist() for rows in ROWS if len(rows)],
        "functions": [lambda rows=rows: rows for rows in ROWS],
    }


def test_tables_of_every_kind():
    want = F.moments(np.concatenate(ROWS), minmax=True, exact=True)
    for name, items in tables().items():
        got = dataset_moments(items, minmax=True, exact=True, workers=2)
        assert got == want, name


@pytest.mark.parametrize("options", [{}, {"skipna": True}, {"minmax": True}, {"minmax": True, "skipna": True}])
def test_short_columns_have_the_bits_of_arrays(options):
    x = np.random.default_rng(1).standard_normal((1000, 3)) + 1e3
    x[7, 1] = np.nan
    for columns in (x.T, x.T.astype(np.float32), x.T[:, :0], x.T.astype(">f8"), (np.nan_to_num(x.T) * 9).astype(int)):
        m = dataset_moments([dict(zip("abc", columns, strict=True))], **options)
        assert m == Moments._beside(F.moments(column, axis=(), **options) for column in columns)


@pytest.mark.parametrize("package", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.table"])
def test_a_table_is_no_iterable_of_tables(package):
    library, _, kind = package.partition(".")
    table = getattr(pytest.importorskip(library), kind)({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    for axis in (0, 1):
        with pytest.raises(TypeError, match=rf"got one {library}.* \[table\] is an iterable of one"):
            bnorm.dataset_moments(table, axis=axis)


def test_missing_values_and_other_types_from_table_to_table():
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    items = [
        pa.table({"a": [1, None, 3], "b": [True, False, None]}),
        pd.DataFrame({"a": pd.array([5, None], dtype="Int64"), "b": [0.5, np.nan]}),
        pd.DataFrame({"a": np.array([7], np.uint8), "b": np.array([2], np.float32)}),
    ]
    m = dataset_moments(items, skipna=True)
    assert m.count.tolist() == [4, 4] and m.mean.tolist() == [4, 0.875]
    assert np.isnan(dataset_moments(items).mean).all()


@pytest.mark.parametrize("split", [[], [1], [0, 1, 1]])
def test_integers_of_tables_that_float64_does_not_hold(split):
    pa, pl = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    parts = np.split(np.array([2**53 + 1, -(2**53)]), split)
    table = pa.table({"a": pa.chunked_array(parts, pa.int64())})
    for items in ([table], [pl.from_arrow(table)], [part[:, None] for part in parts]):
        assert dataset_moments(items, exact=True).mean.tolist() == [0.5]


def test_pytorch_loaders():
    torch = pytest.importorskip("torch")
    x = torch.arange(60.0).reshape(10, 2, 3)
    data = torch.utils.data.TensorDataset(x, torch.arange(10))
    m = dataset_moments(torch.utils.data.DataLoader(x, batch_size=4))
    assert m == dataset_moments([x[:4].numpy(), x[4:8].numpy(), x[8:].numpy()])
    with pytest.raises(TypeError, match=r"item 0: expected .* got a list of 2 arrays, as a DataLoader with labels"):
        dataset_moments(torch.utils.data.DataLoader(data, batch_size=4))
    with pytest.raises(TypeError, match=r"item 0: weight: expected bools or floats .* labels are no weights"):
        dataset_moments((x, y) for x, y in torch.utils.data.DataLoader(data, batch_size=4))


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_names_the_item(workers):
    def bad():
        raise OSError("cannot read it")

    items = [*ROWS, bad, ROWS[0]]
    with pytest.raises(OSError, match="cannot read it") as caught:
        dataset_moments(items, workers=workers)
    assert caught.value.__notes__ == ["dataset_moments: this was item 5"]
    with pytest.raises(
        ValueError, match=r"dataset_moments: item 1: expected \(4,\) channels, as item 0 has, got \(3,\)"
    ):
        dataset_moments([ROWS[0], ROWS[0][:, :3]], workers=workers)

    def broken():
        yield ROWS[0]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more") as caught:
        dataset_moments(broken(), workers=workers)
    assert caught.value.__notes__ == ["dataset_moments: the iterable raised it instead of item 1"]


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ([], {}, "expected at least one item"),
        (3, {}, "expected an iterable of arrays or tables, got int"),
        ("abc", {}, "expected an iterable of arrays or tables, got str"),
        (ROWS, {"workers": 0}, "workers: expected a positive integer"),
        (ROWS, {"delta": 0}, "delta: expected a positive integer"),
        (ROWS, {"progress": 1}, "progress: expected True or False"),
        (ROWS, {"axis": 0, "delta": 1}, "item 0: delta: expected a first axis of time that is not kept"),
        (ROWS, {"axis": 2}, "item 0: axis: expected an axis of x"),
        ([(ROWS[0], None, 1)], {}, r"item 0: expected an array or a pair \(array, weight\), got a tuple of 3"),
        ([{"a": [1.0], "b": [1.0, 2.0]}], {}, "item 0: expected columns of one length"),
        ([{"a": [1.0]}, {"b": [1.0]}], {}, r"item 1: expected the columns of item 0, \['a'\], got \['b'\]"),
        ([ROWS[0], {"a": [1.0]}], {}, r"item 1: expected the columns of item 0, no names, got \['a'\]"),
        ([{"a": [1.0]}], {"axis": 0}, "item 0: axis: expected 1, that of the columns"),
        ([["a"]], {}, "item 0: x: expected real numbers"),
        ([{"a": np.ma.array([1.0, 2.0], mask=[0, 1])}], {}, "item 0: column 'a': x: expected an array without a mask"),
    ],
)
def test_bad_calls(items, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        dataset_moments(items, **options)


def test_columns_of_one_name_are_refused():
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    x = np.eye(2)
    for table in (
        pa.Table.from_arrays(list(x), names=["1", "1"]),
        pd.DataFrame(x, columns=["1", "1"]),
        pd.DataFrame(x, columns=[1, "1"]),
        {1: x[0], "1": x[1]},
    ):
        with pytest.raises(ValueError, match=r"item 0: expected columns of different names, got \['1', '1'\]"):
            dataset_moments([table])


def test_tables_without_columns_are_refused():
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    for table in (pd.DataFrame(), pd.DataFrame(index=range(3)), pa.table({})):
        with pytest.raises(ValueError, match=r"item 0: expected a table with columns, got a \S+ without any"):
            dataset_moments([table])


def test_tables_without_numbers_are_refused():
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    given = ["x"], ["1", "2"], [b"1", None], [0.5, "2"]  # text of numbers is text too
    for table in (pa.table({"a": ["1"]}), *(pd.DataFrame({"a": a}) for a in given)):
        with pytest.raises(ValueError, match="item 0: column 'a': expected numbers"):
            dataset_moments([table])


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_is_that_of_a_few_items(workers):
    def items(n):
        for _ in range(n):
            yield np.ones((100, 500))

    peaks = []
    for n in (20, 200):
        tracemalloc.start()
        dataset_moments(items(n), workers=workers)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < (2 * workers + 3) * 400_000 + 200_000


def test_an_interrupt_ends_it_at_once():
    """Though a worker still sits in a read that never ends."""
    stuck, read = threading.Event(), []

    def items():
        yield ROWS[0]
        yield lambda: (stuck.wait(60), read.append(1), ROWS[0])[2]
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
        yield ROWS[0]

    # Python has no handler if it was started with SIGINT ignored, as shells start what they run in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            dataset_moments(items(), workers=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not read
    stuck.set()


@pytest.mark.skipif(find_spec("tqdm") is None, reason="tqdm is not installed")
def test_the_bar_estimates_where_the_length_is_known(capsys):
    dataset_moments(ROWS, progress=True)
    assert "5" in capsys.readouterr().err
    dataset_moments(iter(ROWS), progress=True)
    assert "items" in capsys.readouterr().err


def test_the_look_ahead_is_bounded():
    taken = itertools.count()
    free = threading.Event()

    def items():
        for i in range(100):
            next(taken)
            yield (lambda: (free.wait(60), ROWS[0])[1]) if i == 0 else ROWS[0]

    thread = threading.Thread(target=lambda: dataset_moments(items(), workers=2))
    thread.start()
    time.sleep(0.1)
    ahead = next(taken)
    free.set()
    thread.join()
    assert ahead <= 4
    assert bnorm.dataset_moments is dataset_moments
