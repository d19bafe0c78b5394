"""What a window keeps through errors, merging, files, copies and interrupts."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import bnorm
from bnorm import BatchNormTransformer, partial_fit_pipeline
from interrupts import interrupted
from rows_in_time import S, seconds, state_of, table
from window_checks import check, chunks_of_few_rows, rough  # noqa: F401


def held(t):
    return state_of(t), t._state.window


def assert_as_before(t, kept):
    assert state_of(t) == kept[0]
    assert t._state.window is kept[1]


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
        (rows, {"X": x, "times": seconds(at)}, "None, as window=5 counts rows, got .* such as window='10min'"),
        (rows, {"X": x[:, :2]}, "features"),
        (rows, {"X": x, "sample_weight": -at}, "[Nn]egative"),
        (timed, {"X": x}, "times: expected the time of each row, as window='5s'"),
        (timed, {"X": bad, "times": seconds(at - 100)}, "infinity"),
        (timed, {"X": bad, "times": seconds(at)}, "infinity"),
        (timed, {"X": x, "times": at}, "as this stream began"),
        (timed, {"X": x, "times": seconds(at[1:])}, "one for each row"),
    ]
    for one, arguments, words in calls:
        kept = held(one)
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
    timed.set_params(window="5000ms").partial_fit(x, times=seconds(at))  # as long as before
    with pytest.raises(ValueError, match="which of the rows of two streams"):
        rows.merge(copy.deepcopy(rows))
    for other in (rows, BatchNormTransformer(window="6s").fit(x, times=seconds(at)), BatchNormTransformer().fit(x)):
        kept = held(timed)
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
    kept = held(t)
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

    seen = set()
    for n in range(1, 2000):
        t = copy.deepcopy(first)
        if not interrupted(partial(t.partial_fit, x), n):
            break
        done = state_of(t) == state_of(after)
        assert done or state_of(t) == state_of(first), n
        assert (t._state.window is first._state.window) != done, n
        seen.add(done)
    assert seen == {False, True}
    check(t.partial_fit(table(7)), np.r_[table(100, seed=1), x, table(7)][-30:])
    check(first.partial_fit(table(7)), np.r_[table(100, seed=1), table(7)][-30:])
