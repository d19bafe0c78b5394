"""Windows: the statistics are those of a fresh fit of the rows in the window, after any number of steps."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import bnorm
from bnorm import BatchNormTransformer, partial_fit_pipeline
from bnorm.transformer import ropes, window
from bnorm.transformer.window import Rows, Window
from interrupts import interrupted

S = 10**9
START = np.datetime64("2024-03-01T12:00", "ns")


def table(n, features=3, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, (n, features))


def seconds(given):
    return START + (np.asarray(given, float) * S).astype(np.int64).astype("m8[ns]")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of few rows, so that few rows make many."""
    monkeypatch.setattr(window, "CHUNK", 12)
    monkeypatch.setattr(window, "FEW", 4)


def check(t, x, weight=None, ddof=0):
    """Against brute force in long double, to 1e-12 of the standard deviation."""
    here = ~np.isnan(x)
    w = here * (np.ones(len(x)) if weight is None else weight)[:, None].astype(np.longdouble)
    total, v = w.sum(axis=0), np.nan_to_num(x).astype(np.longdouble)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (w * v).sum(axis=0) / total
        m2 = (w * (v - mean) ** 2).sum(axis=0)
        var = m2 / np.where(total > ddof, total - ddof, total)
    seen = total > 0
    assert (np.isnan(t.mean_) == ~seen).all()
    assert (np.isnan(t.var_) == ~seen).all()
    last = 4 * np.finfo(float).eps * np.abs(mean[seen])  # no float64 is closer; nor is the oracle, of equal values
    assert (np.abs(t.mean_[seen] - mean[seen]) <= 1e-12 * np.sqrt(var[seen]) + last).all()
    assert (np.abs(t.var_[seen] - var[seen]) <= 2e-12 * var[seen] + last**2).all()
    np.testing.assert_allclose(np.broadcast_to(t.n_samples_seen_, total.shape), total.astype(float), rtol=1e-13)


def rough(n, seed, nan):
    """Rows whose mean is far from zero, and moves; some missing, and a feature that is silent for a while."""
    x = table(n, seed=seed) + np.linspace(0, 1e6, n)[:, None] ** [0, 1, 0.5]
    if nan:
        x[np.random.default_rng(seed).random(x.shape) < 0.2] = np.nan
        x[n // 3 : 2 * n // 3, 0] = np.nan
    return x


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


def test_streams_that_part_do_not_share_what_comes_later():
    x = table(40)
    t = BatchNormTransformer(window=25).fit(x[:10])
    u = copy.deepcopy(t)
    t.partial_fit(x[10:15])
    u.partial_fit(x[20:26])
    check(t.partial_fit(x[15:16]), x[:16])
    check(u.partial_fit(x[30:31]), np.r_[x[:10], x[20:26], x[30:31]])


def state_of(t):
    found = {name: a.tobytes() for name, a in t.layer_._running.arrays().items()}
    return found | {"counters": t.layer_._running.counters.tobytes(), "zero": t._state.zero, "window": t._state.window}


def assert_as_before(t, kept):
    now = state_of(t)
    assert now.pop("window") is kept["window"]
    assert now == {name: value for name, value in kept.items() if name != "window"}


def test_bad_calls_change_nothing():
    x, at = table(10), np.arange(10.0)
    bad = x.copy()
    bad[0, 1] = np.inf
    rows = BatchNormTransformer(window=5).fit(x)
    timed = BatchNormTransformer(window="5s").fit(x, times=seconds(at))
    calls = [
        (rows, {"X": bad}, "infinity"),  # in a row that the window never keeps, too
        (rows, {"X": bad[:3]}, "infinity"),
        (rows, {"X": bad, "sample_weight": np.r_[0, np.ones(9)]}, "infinity"),
        (rows, {"X": bad[:3], "sample_weight": [0, 1, 1]}, "infinity"),  # which no sum sees
        (rows, {"X": x, "times": seconds(at)}, "times: expected None, as window=5 counts rows"),
        (rows, {"X": x[:, :2]}, "features"),
        (rows, {"X": x, "sample_weight": -at}, "[Nn]egative"),
        (timed, {"X": x}, "times: expected the time of each row, as window='5s'"),
        (timed, {"X": bad, "times": seconds(at - 100)}, "infinity"),
        (timed, {"X": bad, "times": seconds(at)}, "infinity"),
        (timed, {"X": x, "times": at}, "as this stream began"),
        (timed, {"X": x, "times": seconds(at[1:])}, "one for each row"),
    ]
    for one, arguments, words in calls:
        kept = state_of(one)
        with pytest.raises((ValueError, TypeError), match=words):
            one.partial_fit(**arguments)
        assert_as_before(one, kept)
        one.partial_fit(x[:2], **({} if one is rows else {"times": seconds(at[:2])}))
    for value in (0, -3, 2.5, "0s", "soon", np.timedelta64(0, "s"), np.timedelta64("NaT", "s")):
        with pytest.raises(ValueError, match="window"):
            BatchNormTransformer(window=value).fit(x)
    for other in ({"momentum": 0.3}, {"halflife": 4.0}, {"halflife": "4s"}, {"momentum": None, "exact": True}):
        with pytest.raises(ValueError, match="window: expected None with another way"):
            BatchNormTransformer(window=5, **other).fit(x)
    for value in (6, None, "5s"):
        changed = copy.deepcopy(rows).set_params(window=value)
        with pytest.raises(ValueError, match="a window of 5, as this stream began"):
            changed.partial_fit(x, **({"times": seconds(at)} if value == "5s" else {}))
    with pytest.raises(ValueError, match="which of the rows of two streams"):
        rows.merge(copy.deepcopy(rows))
    for other in (rows, BatchNormTransformer(window="6s").fit(x, times=seconds(at)), BatchNormTransformer().fit(x)):
        kept = state_of(timed)
        with pytest.raises(ValueError, match="merge"):
            timed.merge(other)
        assert_as_before(timed, kept)
    da = pytest.importorskip("dask.array", reason="lazy tables are Dask's")
    with pytest.raises(TypeError, match="X: expected a table in memory with window=5"):
        rows.partial_fit(da.from_array(x, chunks=5))


def test_values_that_are_too_large_for_their_variance(small_chunks):
    x = np.r_[table(40), [[1e200, 0, 0]], table(40)]
    t = BatchNormTransformer(window=30).partial_fit(x[:60])
    assert t.var_[0] == np.inf
    for part in np.split(x[60:], 3):
        t.partial_fit(part)
    check(t.partial_fit(table(30)), table(30))


@pytest.mark.usefixtures("small_chunks")
def test_merge_unites_windows_of_time():
    x, rng = table(200), np.random.default_rng(1)
    at = np.cumsum(rng.exponential(2.0, 200))
    parts = np.split(rng.permutation(200), [50, 51, 120])
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        a, b, c, d = (BatchNormTransformer(window="2min").fit(x[parts[i]], times=seconds(at[parts[i]])) for i in order)
        kept = b.mean_.copy()
        merged = a.merge(b).merge(c.merge(d))
        check(merged, x[at >= at.max() - 120])
        assert merged.n_batches_seen_ == 4
        assert merged.newest_time_ == seconds(at.max())
        np.testing.assert_array_equal(b.mean_, kept)
        merged.partial_fit(x[:1], times=seconds([at.max() + 1000]))
        assert merged.n_samples_seen_ == 1


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_files_pickles_and_copies_go_on_with_the_same_bits(tmp_path, suffix, timed, weighted):
    x, rng = rough(400, 0, True), np.random.default_rng(2)
    at = np.arange(400.0) + rng.integers(0, 30, 400)
    w = rng.uniform(0.5, 2, 400)

    def step(t, part):
        given_ = {"sample_weight": w[part]} if weighted else {}
        return t.partial_fit(x[part], **given_, **({"times": seconds(at[part])} if timed else {}))

    t = BatchNormTransformer(window="150s" if timed else 150, history=4)
    for part in np.array_split(np.arange(300), 40):
        step(t, part)
    t.save(tmp_path / f"t{suffix}")
    loaded = bnorm.load(tmp_path / f"t{suffix}")
    others = [loaded, pickle.loads(pickle.dumps(t)), copy.deepcopy(t), copy.deepcopy(t)]
    for part in np.array_split(np.arange(300, 400), 13):
        for one in (t, *others):
            step(one, part)
        for other in others:
            for name in ("mean_", "var_", "n_samples_seen_"):
                assert np.asarray(getattr(other, name)).tobytes() == np.asarray(getattr(t, name)).tobytes(), name
    assert (loaded.history_.rows == t.history_.rows).all()
    loaded.save(tmp_path / f"again{suffix}")
    t.save(tmp_path / f"t{suffix}")
    assert (tmp_path / f"again{suffix}").read_bytes() == (tmp_path / f"t{suffix}").read_bytes()
    assert not hasattr(clone(t), "layer_")
    assert clone(t).window == t.window


def test_files_with_other_rows_are_refused(tmp_path):
    from bnorm.files import container

    x = table(30)
    t = BatchNormTransformer(window="9s").fit(x, times=seconds(np.arange(30.0)))
    t.save(tmp_path / "t.npz")
    config, entries = container.read("test", tmp_path / "t.npz")
    arrays = {name: entry.array() for name, entry in entries.items()}
    good = config["window"]
    wrong = [
        ({"chunks": [[9, "float64"]]}, {}),
        ({"chunks": [[10, "object"]]}, {}),
        ({"chunks": [[10.0, "float64"]]}, {}),
        ({"chunks": []}, {}),
        ({"shape": "0"}, {}),
        ({"shape": "1" * 100_000}, {}),
        ({"latest": 3}, {}),
        ({"oldest": 2}, {}),
        ({}, {"window_x": arrays["window_x"][:, :2]}),
        ({}, {"window_x": arrays["window_x"] * np.inf}),
        ({}, {"window_times": arrays["window_times"][::-1]}),
        ({}, {"window_times": arrays["window_times"] - 20 * S * (np.arange(10) == 0)}),
        ({}, {"window_weights": -np.ones(10)}),
        ({}, {"window_weights": np.full(10, 2.0)}),
    ]
    for changes, others in wrong:
        given_ = {name: np.ascontiguousarray(a) for name, a in (arrays | others).items()}
        container.write("test", tmp_path / "bad.npz", config | {"window": good | changes}, given_)
        with pytest.raises(ValueError, match=r"damaged|expected"):
            bnorm.load(tmp_path / "bad.npz")


def test_columns_pipelines_layers_and_inverses(small_chunks):
    pd = pytest.importorskip("pandas", reason="columns have names in data frames")
    x, at = table(60), np.arange(60.0)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(ts=seconds(at))
    t = BatchNormTransformer(window="20s").fit(frame, times="ts")
    check(t, x[-21:])
    y = t.transform(frame)
    np.testing.assert_allclose(y[-21:].std(axis=0), 1)
    np.testing.assert_allclose(t.inverse_transform(y), x, rtol=1e-12)
    kept = state_of(t)
    t.layer_.train()(x)  # its rows have no times
    t.layer_.eval()
    assert_as_before(t, kept)
    model = make_pipeline(BatchNormTransformer(window=25), MinMaxScaler())
    for part in np.split(np.arange(60), 6):
        partial_fit_pipeline(model, x[part])
    check(model[0], x[-25:])
    assert "momentum" not in repr(t)
    big = BatchNormTransformer(window=1000).fit(table(1000))
    assert copy.deepcopy(big)._state.window is big._state.window  # a pipeline copies its steps for every batch


def test_interrupts_leave_a_state_that_is_before_or_after(small_chunks):
    x = table(20)
    first = BatchNormTransformer(window=30).fit(table(100, seed=1))
    after = copy.deepcopy(first).partial_fit(x)

    def state(t):
        return {name: value for name, value in state_of(t).items() if name != "window"}

    seen = set()
    for n in range(1, 2000):
        t = copy.deepcopy(first)
        if not interrupted(partial(t.partial_fit, x), n):
            break
        done = state(t) == state(after)
        assert done or state(t) == state(first), n
        assert (t._state.window is first._state.window) != done, n
        seen.add(done)
    assert seen == {False, True}
    check(t.partial_fit(table(7)), np.r_[table(100, seed=1), x, table(7)][-30:])
    check(first.partial_fit(table(7)), np.r_[table(100, seed=1), table(7)][-30:])


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
