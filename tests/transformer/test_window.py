"""Windows: the statistics are those of a fresh fit of the rows in the window, after any number of steps."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnorm import BatchNormTransformer
from bnorm.transformer import ropes, window
from bnorm.transformer.window import Rows, Window
from rows_in_time import START, S, seconds, table
from window_checks import check, chunks_of_few_rows, rough  # noqa: F401


@pytest.mark.usefixtures("small_chunks")
@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 9, 40]), min_size=1, max_size=25),
    size=st.sampled_from([1, 2, 7, 30, 64, 1000]),
    nan=st.booleans(),
    weighted=st.booleans(),
    ddof=st.sampled_from([0, 1]),
)
def test_the_last_rows(seed, sizes, size, nan, weighted, ddof):
    n = sum(sizes)
    x = rough(n, seed, nan)
    weight = np.random.default_rng(seed).uniform(0.5, 2, n) if weighted else None
    t, end = BatchNormTransformer(window=size, ddof=ddof), 0
    for rows in sizes:
        part = slice(end, end + rows)
        end += rows
        t.partial_fit(x[part], sample_weight=None if weight is None else weight[part])
        kept = slice(max(0, end - size), end)
        check(t, x[kept], None if weight is None else weight[kept], ddof)
    assert t.n_batches_seen_ == len(sizes)
    check(BatchNormTransformer(window=size, ddof=ddof).fit(x), x[max(0, n - size) :], None, ddof)


@pytest.mark.usefixtures("small_chunks")
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 9, 40]), min_size=1, max_size=25),
    span=st.sampled_from([1, 20, 300, 100_000]),
    order=st.sampled_from(["sorted", "late", "permuted", "backward"]),
    nan=st.booleans(),
    weighted=st.booleans(),
)
def test_the_last_seconds(seed, sizes, span, order, nan, weighted):
    """Irregular gaps, nights, equal times; rows in order, some late by any amount, in any order, the newest first."""
    rng, n = np.random.default_rng(seed), sum(sizes)
    gaps = np.rint(rng.exponential(3.0, n)) * (rng.random(n) < 0.7) + 400 * (rng.random(n) < 0.03)
    at, x, rows = np.cumsum(gaps), rough(n, seed, nan), np.arange(n)
    weight = rng.uniform(0.5, 2, n) if weighted else None
    if order == "late":
        rows = np.argsort(rows + (rng.random(n) < 0.3) * rng.integers(0, n, n), kind="stable")
    elif order != "sorted":
        rows = rng.permutation(n) if order == "permuted" else rows[::-1]
    t, end = BatchNormTransformer(window=f"{span}s"), 0
    for k in sizes:
        part = rows[end : end + k]
        end += k
        t.partial_fit(x[part], sample_weight=None if weight is None else weight[part], times=seconds(at[part]))
        seen = rows[:end]
        kept = seen[at[seen] >= at[seen].max() - span]
        check(t, x[kept], None if weight is None else weight[kept])
        assert t.newest_time_ == seconds(at[seen].max())


def test_as_pandas():
    pd = pytest.importorskip("pandas", reason="pandas' rolling windows are the oracle")
    x, at = table(300), np.cumsum(np.random.default_rng(0).exponential(30.0, 300))
    frame = pd.DataFrame(x, index=pd.DatetimeIndex(seconds(at)))
    for given_, rolling in ((50, 50), ("10min", "10min")):
        t = BatchNormTransformer(window=given_, ddof=1)
        closed = {"closed": "both"} if given_ == "10min" else {}  # exactly as old as the window is in it
        wanted = frame.rolling(rolling, min_periods=1, **closed)
        mean, var = wanted.mean().to_numpy(), wanted.var().to_numpy()
        for part in np.array_split(np.arange(300), 23):
            t.partial_fit(x[part], **({} if given_ == 50 else {"times": seconds(at[part])}))
            np.testing.assert_allclose(t.mean_, mean[part[-1]], rtol=1e-10)
            np.testing.assert_allclose(t.var_, var[part[-1]], rtol=1e-10)


def test_where_running_sums_drift():
    """After large values have passed, those that remain are as if they had never been."""
    pd = pytest.importorskip("pandas", reason="it is pandas' rolling variance that drifts")
    x = np.r_[1e6 * table(200, 1)[:, 0], table(3000, 1)[:, 0]]
    t = BatchNormTransformer(window=100)
    for part in np.array_split(x[:, None], 100):
        t.partial_fit(part)
    check(t, x[-100:, None])
    theirs = pd.Series(x).rolling(100).var(ddof=0).iloc[-1]
    assert abs(theirs / x[-100:].var() - 1) > 1e-9


def depth(node):
    return 0 if node.left is None else 1 + max(depth(node.left), depth(node.right))


@pytest.mark.parametrize("late", [False, True])
def test_ten_million_rows(late):
    """In big batches, and then in small ones; the tree stays flat, and the memory that of the window."""
    rng, size = np.random.default_rng(0), 50_000
    block = rng.normal(1e3, 1.0, (500_000, 1))
    t = BatchNormTransformer(window=f"{size}s" if late else size)
    order = np.argsort(np.arange(500_000) + rng.integers(0, 2000, 500_000)) if late else np.arange(500_000)
    for i in range(20):
        x, at = block + i, (i * 500_000 + order).astype(float)
        t.partial_fit(x, **({"times": at} if late else {}))
        assert sum(map(len, t._state.window.rows())) == size + late
    at = 20 * 500_000 + np.arange(40_000.0)
    more = rng.normal(2e3, 1.0, (40_000, 1))
    for part in np.split(np.arange(40_000), 400):
        t.partial_fit(more[part], **({"times": at[part]} if late else {}))
    latest = np.argsort(order)[-(size - 40_000) - late :]
    check(t, np.r_[block[latest] + 19, more])
    tree = t._state.window.chunks
    assert depth(tree) <= 2 * np.log2(tree.sets) + 1
    memory = {id(rows.x.base): rows.x.base for rows in t._state.window.rows() if rows.x.base is not None}
    memory |= {id(rows.x): rows.x for rows in t._state.window.rows() if rows.x.base is None}
    assert sum(a.nbytes for a in memory.values()) <= 8 * (size + 8 * window.MANY)


@pytest.mark.usefixtures("small_chunks")
def test_a_batch_costs_in_proportion_to_its_rows(monkeypatch):
    """However large the window is: counted in kernel calls for each batch of four rows."""
    calls = []
    for name in ("moments", "merge"):
        kernel = getattr(window.cpu, name)
        monkeypatch.setattr(window.cpu, name, lambda *a, kernel=kernel: (calls.append(1), kernel(*a))[1])
    most = []
    for size in (100, 10_000):
        w = Window(size, None).moved(Rows(table(size)))
        calls.clear()
        for _ in range(100):
            w = w.moved(Rows(table(4)))
        most.append(len(calls) / 100)
    assert most[1] <= most[0] + 4 * np.log2(100)
    assert most[0] > 2


@pytest.mark.parametrize(
    "types", [("float32", "float64"), ("float64", "float16"), ("int16", "uint16"), ("uint8", "bool")]
)
def test_rows_of_several_types(types, small_chunks):
    a, b = ((table(30) * 5).clip(0, 250).round().astype(t) for t in types)
    t = BatchNormTransformer(window=45)
    for i in range(4):
        t.partial_fit(a[i * 4 :]).partial_fit(b[i * 3 :])
    check(
        t,
        np.r_[a[12:], b[9:]][-45:].astype(float)
        if len(a[12:]) + len(b[9:]) >= 45
        else np.r_[a[8:], b[6:], a[12:], b[9:]][-45:].astype(float),
    )


def test_the_edge_of_a_window_of_time():
    """A row that is as old as the window is long counts; one that is a nanosecond older does not."""
    x, span = table(4), np.timedelta64(S, "ns")
    t = BatchNormTransformer(window=span).fit(x[:3], times=START + np.array([0, 1, 5], "m8[ns]"))
    check(t.partial_fit(x[3:], times=START + np.array([S + 1], "m8[ns]")), x[1:])


def test_rows_that_come_later_go_where_there_is_room_for_them():
    """Not into new memory for each batch: what a window has would be copied again and again."""
    w, found = Window(1000, None), []
    for batch in np.split(table(3000), 300):
        w = w.moved(Rows(batch))
        if w.newest is not None and not any(w.newest.memory is memory for memory in found):
            found.append(w.newest.memory)
    assert len(found) <= 1 + 3000 / 1000


def test_streams_that_part_do_not_share_what_comes_later():
    x = table(40)
    t = BatchNormTransformer(window=25).fit(x[:10])
    u = copy.deepcopy(t)
    t.partial_fit(x[10:15])
    u.partial_fit(x[20:26])
    check(t.partial_fit(x[15:16]), x[:16])
    check(u.partial_fit(x[30:31]), np.r_[x[:10], x[20:26], x[30:31]])


def test_ropes():
    parts = window.cpu.moments(table(4).reshape(4, 3, 1), None, True)
    rng, keys, node = np.random.default_rng(0), [], None
    for _ in range(600):
        key = int(rng.integers(0, 400))
        new = ropes.leaf(parts, key, key)
        if node is None or key >= max(keys):
            node = ropes.joined(node, new)
        else:

            def both(item, key=key):
                return ropes.of([ropes.leaf(parts, k, k) for k in sorted((item, key))])

            node = ropes.replaced(node, key, both)
        keys = sorted([*keys, key])
        if rng.random() < 0.4:
            node, keys = ropes.rest(node), keys[1:]
        assert list(ropes.items(node)) == keys
        if node is None:
            continue
        assert (ropes.first(node), ropes.last(node), node.sets) == (keys[0], keys[-1], len(keys))
        above = [k for k in keys if k > key]
        assert ropes.after(node, key) == (above[0] if above else None)
        assert depth(node) <= 2 * np.log2(node.sets) + 1
    leaves = [ropes.leaf(parts, k, k) for k in keys]
    again = ropes.built(ropes.shape(node), leaves)
    assert again.parts.tobytes() == node.parts.tobytes()
    for shape, of in (("", leaves), (ropes.shape(node) + "0", leaves), (ropes.shape(node), leaves[1:])):
        with pytest.raises((ValueError, StopIteration)):
            ropes.built(shape, of)
