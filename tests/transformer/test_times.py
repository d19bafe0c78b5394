"""Forgetting by time: rows fade by their own time stamps, in whatever order they come."""

import copy
import datetime as dt
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import SGDRegressor
from sklearn.pipeline import make_pipeline

import bnorm
from bnorm import BatchNormTransformer, partial_fit_pipeline
from bnorm.files import container
from bnorm.transformer import times as of_times
from bnorm.transformer.durations import nanoseconds
from interrupts import interrupted
from rows_in_time import START, S, seconds, state_of, table


def by_age(x, times, halflife, weight=None, ddof=0):
    """Mean, variance and number of values by brute force, in long double; the half-life in nanoseconds.

    A feature's weights count from its own newest value, as they may underflow.
    """
    ns, found = times.astype("M8[ns]").astype(np.int64), []
    weight = np.ones(len(x)) if weight is None else weight
    for column in x.T:
        here = ~np.isnan(column) & (weight > 0)
        v, w = column[here].astype(np.longdouble), weight[here].astype(np.longdouble)
        fade = np.exp2(-(ns[here].max() - ns[here]).astype(np.longdouble) / halflife)
        total = (w * fade).sum()
        mean = (w * fade * v).sum() / total
        left = total - ddof * (w * fade**2).sum() / total
        found.append((mean, (w * fade * (v - mean) ** 2).sum() / left, w.sum()))
    return np.array(found, float).T


def learned(parameters, x, times, parts, weight=None):
    t = BatchNormTransformer(**parameters)
    for part in parts:
        t.partial_fit(x[part], sample_weight=None if weight is None else weight[part], times=times[part])
    return t


def check(t, want, tolerance=1e-12):
    mean, var, seen = want
    np.testing.assert_allclose((t.mean_ - mean) / np.sqrt(var), 0, atol=tolerance)
    np.testing.assert_allclose(t.var_, var, rtol=10 * tolerance)
    np.testing.assert_allclose(np.broadcast_to(t.n_samples_seen_, seen.shape), seen, rtol=1e-13)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    halflife=st.sampled_from(["1s", "20s", "10min", "3h"]),
    order=st.sampled_from(["sorted", "late", "permuted"]),
    nan=st.booleans(),
    weighted=st.booleans(),
    ddof=st.sampled_from([0, 1]),
)
def test_by_brute_force(seed, sizes, halflife, order, nan, weighted, ddof):
    """Irregular gaps, nights without data, equal times, rows that come late, in any cut."""
    rng, n = np.random.default_rng(seed), sum(sizes) + 3
    gaps = rng.exponential(5.0, n) * (rng.random(n) < 0.7) + 40_000 * (rng.random(n) < 0.03)
    times, x = seconds(np.cumsum(gaps)), table(n, seed=seed)
    if nan:
        x[rng.random(x.shape) < 0.3] = np.nan
        x[:3] = 1.0, 2.0, 3.0
    weight = rng.uniform(0.5, 2, n) if weighted else None
    rows = np.arange(n)
    if order == "permuted":
        rng.shuffle(rows)
    elif order == "late":
        rows = np.argsort(rows + (rng.random(n) < 0.2) * rng.integers(0, n, n), kind="stable")
    want = by_age(x, times, nanoseconds(halflife), weight, ddof)
    parts = np.split(rows, np.cumsum(sizes))
    parameters = {"halflife": halflife, "ddof": ddof}
    t = learned(parameters, x, times, parts, weight)
    whole = BatchNormTransformer(**parameters).fit(
        x[rows], sample_weight=None if weight is None else weight[rows], times=times[rows]
    )
    for one in (t, whole):
        mean, var, seen = want
        np.testing.assert_allclose(one.mean_, mean, rtol=1e-12, atol=1e-12)
        if ddof == 0 or order == "sorted":  # beside a far younger row, the oracle's divisor is all cancellation
            good = np.isfinite(var) & (var > 1e-9)
            np.testing.assert_allclose(one.var_[good], var[good], rtol=1e-9 if ddof else 1e-11, atol=1e-12)
        np.testing.assert_allclose(np.broadcast_to(one.n_samples_seen_, seen.shape), seen, rtol=1e-13)
        assert one.newest_time_ == times.max()


def test_mean_as_pandas():
    pd = pytest.importorskip("pandas", reason="pandas' ewm is the oracle")
    rng = np.random.default_rng(3)
    x, times = table(400), seconds(np.rint(np.cumsum(rng.exponential(30.0, 400))))  # pandas rounds stamps to 256 ns
    want = pd.DataFrame(x).ewm(halflife="10min", times=pd.Series(times)).mean()
    t = BatchNormTransformer(halflife=pd.Timedelta("10min"))
    for part in np.array_split(np.arange(400), 23):
        t.partial_fit(x[part], times=times[part])
        np.testing.assert_allclose(t.mean_, want.iloc[part[-1]], rtol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_after_a_gap_of_ten_thousand_half_lives(ddof):
    """Before the gap, after it, one more value, and what comes late from before it."""
    x = table(60)
    times = seconds(np.r_[np.arange(30), 10_000 * 60 + np.arange(30)])
    t = learned({"halflife": "1min", "ddof": ddof}, x, times, [slice(0, 20), slice(30, 60), slice(20, 30)])
    want = by_age(x[30:], times[30:], 60 * S, ddof=ddof)
    np.testing.assert_allclose(t.mean_, want[0], rtol=1e-14)
    np.testing.assert_allclose(t.var_, want[1], rtol=1e-12)
    assert t.n_samples_seen_ == 60
    silent = learned({"halflife": "1min", "ddof": ddof}, x, times, [slice(0, 30)])
    first = silent.var_.copy()
    silent.partial_fit(np.full((1, 3), np.nan), times=seconds(10_000 * 60))
    np.testing.assert_array_equal(silent.var_, first)  # a night without values forgets nothing
    silent.partial_fit(x[30:], times=times[30:])
    np.testing.assert_allclose(silent.mean_, want[0], rtol=1e-14)


@pytest.mark.parametrize("gap", [1, 300, 5000])
def test_one_value_and_many_that_are_older(gap):
    """In either order, with ddof 1: the variance holds however faint the older ones are."""
    x, times = table(20), seconds(60.0 * np.r_[np.arange(19) / 19, 1 + gap])
    first, last = slice(0, 19), slice(19, 20)
    parameters = {"halflife": "1min", "ddof": 1}
    sorted_, late = (learned(parameters, x, times, parts) for parts in ([first, last], [last, first]))
    assert np.isfinite(sorted_.var_).all()
    np.testing.assert_allclose(late.var_, sorted_.var_, rtol=1e-12)
    np.testing.assert_allclose(late.mean_, sorted_.mean_, rtol=1e-14)


@pytest.mark.parametrize("weight", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_one_value_beside_weights_too_light_for_ddof(weight, order):
    """The divisor would be negative, so it is the weight, as for any other values. The last row has no value."""
    x, times, w = np.array([[1.0], [2.0], [4.0], [3.0], [np.nan]]), np.r_[0, 0, 0, -30, 1], np.r_[[weight] * 3, 1, 1]
    t, parts = BatchNormTransformer(halflife="10s", ddof=1), [slice(0, 3), slice(3, 5)]
    for part in (parts[i] for i in order):
        t.partial_fit(x[part], sample_weight=w[part], times=times[part])
    x, times, w = x[:4], times[:4], w[:4]
    fade = w * 2.0 ** (times / 10)
    left = fade.sum() - (fade * 2.0 ** (times / 10)).sum() / fade.sum()
    mean = fade @ x[:, 0] / fade.sum()
    np.testing.assert_allclose(t.mean_, mean, rtol=1e-13)
    np.testing.assert_allclose(t.var_, fade @ (x[:, 0] - mean) ** 2 / (left if left > 0 else fade.sum()), rtol=1e-12)


def test_a_feature_that_was_seen_long_ago_is_remembered():
    x = table(5)
    x[1:, 1] = np.nan
    times = seconds(np.r_[0, 10_000 + np.arange(4)])
    for parts in ([slice(0, 5)], [slice(3, 5), slice(0, 3)], [slice(0, 1), slice(1, 5)]):
        t = learned({"halflife": "1s"}, x, times, parts)
        assert t.mean_[1] == x[0, 1]
        np.testing.assert_allclose(t.mean_[[0, 2]], by_age(x[:, [0, 2]], times, S)[0], rtol=1e-14)


@pytest.mark.parametrize("cut", [1, 3, 8])
def test_every_nanosecond_counts_over_decades(cut):
    """A half-life of a microsecond, in a stream of a hundred years: float64 has no room for these stamps."""
    x, years = table(24), np.arange(3)[:, None] * 50 * 365 * 86_400 * S
    ns = (years + np.array([0, 130, 300, 301, 1999, 2000, 5000, 5001])).ravel() + np.int64(-1_500_000_000 * S)
    times = ns.view("M8[ns]")
    t = learned({"halflife": "1us"}, x, times, np.split(np.arange(24), range(cut, 24, cut)))
    mean, var, _ = by_age(x, times, 1000)
    np.testing.assert_allclose(t.mean_, mean, rtol=1e-13)
    np.testing.assert_allclose(t.var_, var, rtol=1e-12)
    ends = np.array([-(2**63) + 1, 2**63 - 1]).view("M8[ns]")  # their difference is beyond int64
    t = BatchNormTransformer(halflife="1d").fit(x[:2], times=ends)
    np.testing.assert_array_equal(t.mean_, x[1])


@pytest.mark.parametrize("call", ["partial_fit", "merge"])
def test_an_error_far_ahead_in_time_leaves_the_clock_alone(call):
    """The zero of the clock would have moved, which rounds the times of earlier values."""
    t = BatchNormTransformer(halflife="1us", history=5)
    t.partial_fit([[1.0], [2.0]], sample_weight=[1e308, 1], times=START + np.array([0, 100]).astype("m8[ns]"))
    later = (START + np.timedelta64(200 * 365, "D"))[None]
    other = BatchNormTransformer(halflife="1us").fit([[3.0]], sample_weight=[1.5e308], times=later)
    before = state_of(t) | {"newest": t.newest_time_}
    with pytest.raises(ValueError, match="infinity" if call == "partial_fit" else "float64 can hold"):
        t.merge(other) if call == "merge" else t.partial_fit([[np.inf]], times=later)
    assert str(state_of(t) | {"newest": t.newest_time_}) == str(before)


def test_a_row_without_values_is_the_newest_however_the_stream_is_cut(tmp_path):
    x, times = np.array([[1.0], [np.nan]]), np.array([0, 100])

    def of(*parts, **given):
        return learned({"halflife": "10s"} | given, x, times, [list(part) for part in parts])

    of([0], [1]).save(tmp_path / "t.npz")
    streams = [of([0, 1]), of([0], [1]), of([1], [0]), of([0]).merge(of([1])), of([1]).merge(of([0]))]
    for t in [*streams, bnorm.load(tmp_path / "t.npz"), copy.deepcopy(of([0], [1]))]:
        assert t.newest_time_ == 100.0
        t.set_params(halflife="100s").partial_fit([[3.0]], times=[100])  # until 100 s the half-life was 10 s
        np.testing.assert_allclose(t.mean_, (2.0**-10 + 3) / (2.0**-10 + 1), rtol=1e-14)
    np.testing.assert_array_equal(of([0], [1], history=4).history_.times, [0, 100])


def test_the_file_of_a_version_that_did_not_keep_the_newest_time(tmp_path):
    path, t = tmp_path / "t.npz", BatchNormTransformer(halflife="10s").fit([[1.0], [2.0]], times=[0, 100])
    t.save(path)
    config, entries = container.read("test", path)
    del config["times"]["latest"]
    arrays = {name: entry.array() for name, entry in entries.items()}
    container.write("test", path, config, arrays)
    assert bnorm.load(path).newest_time_ == 100.0
    container.write("test", path, config | {"times": config["times"] | {"latest": 100.0}}, arrays)
    with pytest.raises(ValueError, match="damaged"):
        bnorm.load(path)


def test_merge_ages_by_a_half_life_that_has_changed_since():
    x, y, times, later = table(5), table(5, seed=1), seconds(range(5)), seconds(range(3, 8))
    one = BatchNormTransformer(halflife="1s").fit(x, times=times).set_params(halflife="1h")
    other = BatchNormTransformer(halflife="1h").fit(y, times=later)
    expected = copy.deepcopy(one).partial_fit(y, times=later)
    np.testing.assert_allclose(one.merge(other).mean_, expected.mean_, rtol=1e-13)
    np.testing.assert_allclose(one.var_, expected.var_, rtol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_merge_ages_both_sides_to_the_later_time(ddof):
    x, rng = table(300), np.random.default_rng(1)
    x[rng.random(x.shape) < 0.1] = np.nan
    times = seconds(rng.permutation(np.cumsum(rng.exponential(20.0, 300))))
    want = by_age(x, times, 600 * S, ddof=ddof)
    parts = np.split(rng.permutation(300), [50, 51, 200])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        a, b, c, d = (learned({"halflife": "10min", "ddof": ddof}, x, times, [parts[i]]) for i in order)
        merged = a.merge(b).merge(d.merge(c))
        check(merged, want)
        assert merged.newest_time_ == times.max()
        assert merged.n_batches_seen_ == 4
    far = BatchNormTransformer(halflife="1us").fit(x[:2] * 0, times=START + np.array([0, 500]).astype("m8[ns]"))
    near = BatchNormTransformer(halflife="1us").fit([[7.0] * 3], times=(START + np.timedelta64(36_500, "D"))[None])
    for left, right in ((far, near), (near, far)):
        both = copy.deepcopy(left).merge(right)
        np.testing.assert_array_equal(both.mean_, 7.0)
        both.partial_fit([[9.0] * 3], times=(START + np.timedelta64(36_500, "D") + np.timedelta64(1000, "ns"))[None])
        np.testing.assert_allclose(both.mean_, (7 / 2 + 9) / 1.5, rtol=1e-14)


def test_equal_times_need_no_order():
    x = table(40)
    times = np.repeat(seconds([0, 5, 5, 60]), 10)
    a = BatchNormTransformer(halflife="7s").fit(x, times=times)
    b = learned({"halflife": "7s"}, x, times, [slice(25, 40), slice(0, 25)])
    np.testing.assert_allclose(b.mean_, a.mean_, rtol=1e-13)
    same = BatchNormTransformer(halflife="7s").fit(x, times=np.repeat(seconds(3), 40))
    np.testing.assert_allclose([same.mean_, same.var_], [x.mean(axis=0), x.var(axis=0)], rtol=1e-13)


# What a stream keeps, and what carries it -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("kind", ["stamps", "seconds"])
def test_files_pickles_and_copies_go_on(tmp_path, suffix, kind):
    x, rng = table(90), np.random.default_rng(2)
    times = seconds(rng.permutation(90) * 13.0)
    times = times if kind == "stamps" else (times - START).astype(np.int64) / S
    halflife = "2min" if kind == "stamps" else dt.timedelta(minutes=2)
    t = learned({"halflife": halflife, "ddof": 1, "history": 3}, x, times, [slice(0, 30), slice(30, 60)])
    t.save(tmp_path / f"t{suffix}")
    loaded = bnorm.load(tmp_path / f"t{suffix}")
    assert loaded.halflife == "2min"
    for other in (loaded, pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
        again = copy.deepcopy(t).partial_fit(x[60:], times=times[60:])
        other.partial_fit(x[60:], times=times[60:])
        for name in ("mean_", "var_", "n_samples_seen_", "newest_time_"):
            assert np.asarray(getattr(other, name)).tobytes() == np.asarray(getattr(again, name)).tobytes(), name
        for mine, its in zip(other.history_, again.history_, strict=True):
            np.testing.assert_array_equal(mine, its)
    assert clone(t).halflife == halflife
    assert not hasattr(clone(t), "layer_")


def test_history_has_times():
    x, times = table(40), seconds(np.arange(40.0))
    t = learned({"halflife": "9s", "history": 10}, x, times, np.split(np.arange(40), 4))
    np.testing.assert_array_equal(t.history_.times, times[9::10])
    assert t.history_.rows.tolist() == [10, 20, 30, 40]
    assert not hasattr(BatchNormTransformer(halflife=9.0, history=10).fit(x).history_, "times")


def test_a_layer_in_training_has_no_times_and_leaves_the_stream_alone():
    x, times = table(10), seconds(np.arange(10.0))
    t = BatchNormTransformer(halflife="5s").fit(x, times=times)
    for one in (t, pickle.loads(pickle.dumps(t))):
        kept = str(state_of(one))
        one.layer_.train()(x)
        assert str(state_of(one)) == kept


def test_dask_says_that_it_needs_memory():
    da = pytest.importorskip("dask.array", reason="lazy tables are Dask's")
    with pytest.raises(TypeError, match=r"X: expected a table in memory with .*, got a [Dd]ask collection"):
        BatchNormTransformer(halflife="5s").fit(da.from_array(table(10), chunks=5), times=seconds(np.arange(10.0)))
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    dask = pytest.importorskip("bnorm.distributed.dask")
    frame = pd.DataFrame({"a": table(10)[:, 0], "ts": seconds(np.arange(10.0))})
    lazy, t = dd.from_pandas(frame, npartitions=2), BatchNormTransformer(halflife="5s")
    with pytest.raises(TypeError, match=r"bnorm\.distributed\.dask\.fit\(t, X, times='ts'\) takes it"):
        t.fit(lazy, times="ts")
    np.testing.assert_allclose(dask.fit(t, lazy, times="ts").mean_, t.fit(frame, times="ts").mean_, rtol=1e-12)


def test_pipelines_carry_times():
    x, times = table(40), seconds(np.arange(40.0))
    want = learned({"halflife": "9s"}, x, times, np.split(np.arange(40), 4))
    model = make_pipeline(BatchNormTransformer(halflife="9s"), SGDRegressor())
    for part in np.split(np.arange(40), 4):
        partial_fit_pipeline(model, x[part], x[part, 0], times=times[part])
    np.testing.assert_array_equal(model[0].mean_, want.mean_)
    assert model[0].newest_time_ == times[-1]
    with pytest.raises(ValueError, match="times: expected None, as no step"):
        partial_fit_pipeline(make_pipeline(SGDRegressor()), x, x[:, 0], times=times)
    with pytest.raises(ValueError, match="inconsistent"):
        partial_fit_pipeline(model, x, x[:, 0], times=times[1:])
    with config_context(enable_metadata_routing=True):
        step = BatchNormTransformer(halflife="9s").set_fit_request(times=True)
        routed = make_pipeline(step, SGDRegressor()).fit(x, x[:, 0], times=times)
        np.testing.assert_allclose(routed[0].mean_, want.mean_, rtol=1e-12)


@pytest.mark.parametrize("output", ["default", "pandas"])
def test_pipelines_carry_a_column_of_times(output):
    """The first step that takes times leaves their column out, and a later one gets them all the same."""
    pd = pytest.importorskip("pandas", reason="its frames name a column of times")
    x, times = table(40), seconds(np.arange(40.0))
    frame = pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])]).assign(ts=times)
    model, expected = (make_pipeline(*(BatchNormTransformer(halflife=h) for h in ("9s", "3s"))) for _ in range(2))
    model.set_output(transform=output)
    for part in np.split(np.arange(40), 4):
        partial_fit_pipeline(model, frame.iloc[part], times="ts")
        partial_fit_pipeline(expected, x[part], times=times[part])
    for step, other in zip(model, expected, strict=True):
        np.testing.assert_allclose(step.mean_, other.mean_, rtol=1e-13)
        assert step.newest_time_ == times[-1]
    np.testing.assert_allclose(model.transform(frame), expected.transform(x), rtol=1e-12)
    for X in (frame, x):
        with pytest.raises(ValueError, match=r"^partial_fit_pipeline: times: expected the name of one column"):
            partial_fit_pipeline(model, X, times="when")


@pytest.mark.parametrize("t", [BatchNormTransformer(halflife="9s"), bnorm.GroupedTransformer("key", halflife="9s")])
def test_a_column_of_times_is_among_the_names_that_a_column_transformer_gives(t):
    pd = pytest.importorskip("pandas", reason="its frames name a column of times")
    x, keys = table(40), [] if isinstance(t, BatchNormTransformer) else ["key"]
    frame = pd.DataFrame({"key": np.arange(40) % 3, "ts": seconds(np.arange(40.0)), "a": x[:, 0], "b": x[:, 1]})
    columns = ColumnTransformer([("n", t, [*keys, "ts", "a"])], remainder="passthrough").set_output(transform="pandas")
    for part in np.split(np.arange(40), 4):
        partial_fit_pipeline(columns, frame.iloc[part], times="ts")
    out, alone = columns.transform(frame), columns.named_transformers_["n"]
    assert list(out.columns) == ["n__a", *([] if keys else ["remainder__key"]), "remainder__b"]
    np.testing.assert_array_equal(out["n__a"], alone.transform(frame[[*keys, "ts", "a"]])["a"])
    for names in (None, [*keys, "ts", "a"], [*keys, "a"]):
        assert alone.get_feature_names_out(names).tolist() == ["a"]
    with pytest.raises(ValueError, match="input_features is not equal to feature_names_in_"):
        alone.get_feature_names_out([*keys, "ts", "b"])


def test_interrupts_while_the_zero_of_the_clock_moves(monkeypatch):
    """The rows of a stream are far apart, so the clock begins anew: then its times mean the same."""
    monkeypatch.setattr(of_times, "EXACT", 1000)
    x = table(8)
    first = BatchNormTransformer(halflife="5s").fit(x[:4], times=seconds([0, 1, 2, 3]))
    after = copy.deepcopy(first).partial_fit(x[4:], times=seconds([90, 91, 92, 93]))
    found = set()

    def meaning(t):
        s = t.layer_._running
        return s.mean.tobytes(), s.weight.tobytes(), (s.last + t._state.zero.origin).tobytes()

    for n in range(1, 900):
        t = copy.deepcopy(first)
        if not interrupted(partial(t.partial_fit, x[4:], times=seconds([90, 91, 92, 93])), n):
            break
        assert meaning(t) in (meaning(first), meaning(after)), n
        found.add((meaning(t) == meaning(after), t._state.zero == after._state.zero, t.newest_time_))
    assert found == {(False, False, first.newest_time_), (True, True, after.newest_time_)}
