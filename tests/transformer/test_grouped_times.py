"""Groups whose rows fade by their times: brute force over every row, in whatever order and cut they come."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import bnorm
from bnorm import BatchNormTransformer, GroupedTransformer, partial_fit_pipeline
from bnorm.transformer import durations, group_batches

S = 10**9
START = np.datetime64("2024-03-01T12:00", "ns")
LONG = np.longdouble


def log(n=240, seed=0, missing=0.2):
    """Keys of column 1, some of them missing, beside two features with gaps; times with nights, ties and jumps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(100.0, 3.0, (n, 3))
    x[rng.random(x.shape) < missing] = np.nan
    x[:, 1] = rng.integers(0, 6, n)
    x[rng.random(n) < 0.05, 1] = np.nan
    gaps = rng.exponential(5.0, n) * (rng.random(n) < 0.7) + 40_000 * (rng.random(n) < 0.03)
    return x, START + (np.cumsum(gaps) * S).astype("m8[ns]")


def faded(v, ns, halflife, weight, newest=None):
    """Weight, mean and variance in long double; the ages count from the newest value, or from a time that is given."""
    here = ~np.isnan(v) & (weight > 0)
    v, w, ns = v[here].astype(LONG), weight[here].astype(LONG), ns[here]
    age = ((ns.max(initial=0) if newest is None else newest) - ns).astype(LONG)
    w = w * np.exp2(-age / halflife)
    if not w.any():
        return LONG(0), LONG(np.nan), LONG(np.nan)
    mean = (w * v).sum() / w.sum()
    return w.sum(), mean, (w * (v - mean) ** 2).sum() / w.sum()


def check(t, x, times, halflife, weight=None, tolerance=1e-12):
    """Groups and whole, and with a prior of both, by brute force."""
    weight = np.ones(len(x)) if weight is None else weight
    ns, features = times.astype(np.int64), np.delete(x, 1, axis=1)
    newest = ns.max()
    assert t.newest_time_ == newest.astype("M8[ns]")
    whole = [faded(features[:, c], ns, halflife, weight) for c in (0, 1)]
    for c in (0, 1):
        np.testing.assert_allclose(float(t.whole_.mean[c]), float(whole[c][1]), rtol=tolerance)
        np.testing.assert_allclose(float(t.whole_.var()[c]), float(whole[c][2]), rtol=1e3 * tolerance, atol=tolerance)
    numbers = t._groups.numbers(np.arange(len(t.groups_)), 2.0, True, 0.0, True)
    for g, key in enumerate(t.groups_):
        mine = x[:, 1] == key
        for c in (0, 1):
            v, when, w = features[mine, c], ns[mine], weight[mine]
            assert t.counts_[g, c] == pytest.approx(float(w[~np.isnan(v)].sum()), rel=1e-13)
            _, mean, var = faded(v, when, halflife, w)
            np.testing.assert_allclose(t.means_[g, c], float(mean), rtol=tolerance)
            np.testing.assert_allclose(t.vars_[g, c], float(var), rtol=1e3 * tolerance, atol=tolerance)
            n = faded(v, when, halflife, w, newest)[0]
            mean = mean if n else LONG(0)
            both = (n * mean + 2 * whole[c][1]) / (n + 2)
            spread = n * ((var if n else 0) + (mean - both) ** 2) + 2 * (whole[c][2] + (whole[c][1] - both) ** 2)
            np.testing.assert_allclose(numbers[g, 2, c], float(both), rtol=tolerance)
            np.testing.assert_allclose(numbers[g, 1, c] ** 2, float(spread / (n + 2)), rtol=1e3 * tolerance)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(1, 239), max_size=5),
    halflife=st.sampled_from(["1s", "20s", "10min", "3h"]),
    order=st.sampled_from(["sorted", "late", "permuted"]),
    weighted=st.booleans(),
)
def test_by_brute_force(seed, cuts, halflife, order, weighted):
    """Irregular gaps, silent groups, equal times, rows that come late, missing values and keys, in any cut."""
    rng = np.random.default_rng(seed)
    x, times = log(seed=seed)
    rows = np.arange(len(x))
    if order == "permuted":
        rng.shuffle(rows)
    elif order == "late":
        rows = np.argsort(rows + (rng.random(len(x)) < 0.2) * rng.integers(0, len(x), len(x)), kind="stable")
    x, times, weight = x[rows], times[rows], rng.uniform(0.5, 2, len(x)) if weighted else None

    ns = durations.nanoseconds(halflife)
    whole = GroupedTransformer(1, halflife=halflife).fit(x, sample_weight=weight, times=times)
    check(whole, x, times, ns, weight)
    t = GroupedTransformer(1, halflife=halflife)
    for part in np.split(np.arange(len(x)), sorted(set(cuts))):
        t.partial_fit(x[part], sample_weight=None if weight is None else weight[part], times=times[part])
    check(t, x, times, ns, weight)


def test_a_row_without_values_ages_all_others_however_the_stream_is_cut(tmp_path):
    """With a prior, which does not age."""
    rows, times = np.array([[1, 1.0], [2, 5.0], [1, np.nan]]), np.array([0, 0, 100])

    def of(*parts):
        t = GroupedTransformer(by=0, halflife="20s", prior=1.0)
        for part in map(list, parts):
            t.partial_fit(rows[part], times=times[part])
        return t

    of([0, 1], [2]).save(tmp_path / "t.npz")
    merged = of([0, 1]).merge(of([2])), of([2]).merge(of([0, 1])), bnorm.load(tmp_path / "t.npz")
    for t in (of([0, 1, 2]), of([0, 1], [2]), of([2], [0, 1]), *merged):
        assert t.newest_time_ == 100.0
        n, (mean, var) = 2.0**-5, (3.0, 4.0)  # what is left of a value, and the whole
        both = (n * np.array([1, 5]) + mean) / (n + 1)
        std = np.sqrt((var + (mean - both) ** 2 + n * ([1, 5] - both) ** 2) / (n + 1))
        np.testing.assert_allclose(t.transform([[1, 7.0], [2, 7.0]])[:, 0], (7 - both) / std, rtol=1e-13)


def test_each_group_is_a_transformer_of_its_rows():
    x, times = log(missing=0.0)
    t = GroupedTransformer(1, halflife="1min").fit(x, times=times)
    one = BatchNormTransformer(halflife="1min")
    for g, key in enumerate(t.groups_):
        mine = x[:, 1] == key
        one.fit(x[mine][:, [0, 2]], times=times[mine])
        np.testing.assert_allclose(t.means_[g], one.mean_, rtol=1e-13)
        np.testing.assert_allclose(t.transform(x[mine]), one.transform(x[mine][:, [0, 2]]), rtol=1e-9, atol=1e-11)


def test_what_is_too_old_to_weigh_is_kept_for_all_groups_at_once(monkeypatch):
    """A feature whose last values are thousands of half-lives older than the last rows, in every group."""
    n, groups = 4000, 1000
    x = np.full((n, 3), np.nan)
    x[:, 1] = np.arange(n) % groups
    x[: 2 * groups, 2] = np.random.default_rng(1).normal(5, 1, 2 * groups)
    x[:, 0] = np.random.default_rng(2).normal(5, 1, n)
    times = START + (np.arange(n) // groups * np.array(S) + (np.arange(n) >= 2 * groups) * 10**13).astype("m8[ns]")
    calls, moments = [], group_batches.moments
    monkeypatch.setattr(group_batches, "moments", lambda *args: calls.append(1) or moments(*args))
    t = GroupedTransformer(1, halflife="1s").fit(x, times=times)
    assert len(calls) == 3  # none for each group
    first, second = x[:groups, 2], x[groups : 2 * groups, 2]
    np.testing.assert_allclose(t.means_[:, 1], (first / 2 + second) / 1.5, rtol=1e-13)
    for scale in (1e-200, 1e200):  # weights that are far from 1 are no reason to lose them
        w = np.where(np.arange(n) < 2 * groups, scale, 1.0)
        other = GroupedTransformer(1, halflife="1s").fit(x, sample_weight=w, times=times)
        np.testing.assert_allclose(other.means_, t.means_, rtol=1e-12)
        np.testing.assert_allclose(other.vars_[:, 1], t.vars_[:, 1], rtol=1e-9)
        late = np.c_[np.full(groups, np.nan), np.arange(groups), np.full(groups, 9.0)]
        other.partial_fit(late, sample_weight=w[:groups], times=times[groups : 2 * groups])
        np.testing.assert_allclose(other.means_[:, 1], (first / 2 + second + 9) / 2.5, rtol=1e-12)


def test_a_group_that_is_silent_for_ages():
    """It keeps what it had; beside a prior it comes to be scaled as the whole."""
    x = np.array([[1.0, 0, 0], [3.0, 0, 0], [50.0, 1, 0], [70.0, 1, 0]])
    times = START + np.array([0, 0, 10**6, 10**6]).astype("m8[s]")
    t = GroupedTransformer(1, halflife="1s").partial_fit(x[:2], times=times[:2]).partial_fit(x[2:], times=times[2:])
    assert t.means_[:, 0].tolist() == [2.0, 60.0]
    assert t.transform(x)[:, 0].tolist() == [-1, 1, -1, 1]
    t.prior = 1e-9
    np.testing.assert_allclose(t.transform(x)[:, 0], [-5.9, -5.7, -1, 1])
    t.partial_fit([[7.0, 0, 0]], times=times[3:])  # and then it comes again
    assert t.means_[0, 0] == 7.0


def test_merge_ages_both_sides_to_the_later_time():
    x, times = log(300)
    rng = np.random.default_rng(1)
    rows = rng.permutation(300)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        parts = np.split(rows, [50, 51, 200])
        a, b, c, d = (GroupedTransformer(1, halflife="10min").fit(x[parts[i]], times=times[parts[i]]) for i in order)
        before = pickle.dumps(b._groups.__dict__)
        merged = a.merge(b).merge(d.merge(c))
        assert pickle.dumps(b._groups.__dict__) == before
        check(merged, x, times, 600 * S)
        assert merged.n_batches_seen_ == 4
    other = GroupedTransformer(1, halflife="10min").fit(x, times=np.arange(300.0))
    for wrong, message in (
        (other, "times: expected time stamps without a zone, as here, got numbers of seconds"),
        (GroupedTransformer(1, halflife="11min").fit(x, times=times), "halflife: expected 10min, as here, got 11min"),
        (GroupedTransformer(1, halflife=3.0).fit(x), "halflife: expected 10min, as here, got 3.0"),
    ):
        before = pickle.dumps(merged._groups.__dict__)
        with pytest.raises(ValueError, match=message):
            merged.merge(wrong)
        assert pickle.dumps(merged._groups.__dict__) == before
    assert merged.merge(clone(merged).set_params(halflife=np.timedelta64(10, "m")).fit(x, times=times)) is merged


def test_every_nanosecond_counts_over_decades():
    """A half-life of a microsecond, in a stream of a hundred years: the zero of the clock moves, for all groups."""
    years = np.arange(3)[:, None] * 50 * 365 * 86_400 * S
    ns = (years + np.array([0, 130, 300, 301, 1999, 2000, 5000, 5001])).ravel() + np.int64(-1_500_000_000 * S)
    x = np.random.default_rng(0).normal(3.0, 2.0, (24, 3))
    x[:, 1] = np.arange(24) % 3
    for cut in (1, 3, 8):
        t = GroupedTransformer(1, halflife="1us")
        for rows in np.split(np.arange(24), range(cut, 24, cut)):
            t.partial_fit(x[rows], times=ns[rows].view("M8[ns]"))
        check(t, x, ns.view("M8[ns]"), 1000)
    far, near = (GroupedTransformer(1, halflife="1us") for _ in "ab")
    far.fit(x[:3] * [1, 0, 1], times=ns[:3].view("M8[ns]"))
    near.fit([[7.0, 0, 7.0]], times=ns[-1:].view("M8[ns]"))
    for left, right in ((far, near), (near, far)):
        both = copy.deepcopy(left).merge(right)
        np.testing.assert_array_equal(both.means_, 7.0)
        both.partial_fit([[9.0, 0, 9.0]], times=(ns[-1:] + 1000).view("M8[ns]"))
        np.testing.assert_allclose([both.means_[0], both.whole_.mean], (7 / 2 + 9) / 1.5, rtol=1e-14)
    ends = np.array([-(2**63) + 1, 2**63 - 1]).view("M8[ns]")  # their difference is beyond int64
    t = GroupedTransformer(1, halflife="1d").fit(x[[0, 3]], times=ends)
    np.testing.assert_array_equal(t.means_[0], x[3, [0, 2]])


def frames(x, times):
    pd = pytest.importorskip("pandas", reason="columns have names in data frames")
    frame = pd.DataFrame({"ts": times, "a": x[:, 0], "key": x[:, 1], "b": x[:, 2]})
    made = {"pandas": frame}
    for name, make in (("pyarrow", "table"), ("polars", "DataFrame")):
        try:
            module = __import__(name)
        except ImportError:
            continue
        made[name] = getattr(module, make)({name: frame[name].to_numpy() for name in frame})
    return made


def test_a_column_of_times_is_no_feature():
    x, times = log()
    want = GroupedTransformer(1, halflife="20s").fit(x, times=times)
    for name, frame in frames(x, times).items():
        t = GroupedTransformer("key", halflife="20s")
        y = t.fit_transform(frame, times="ts")
        np.testing.assert_allclose(y, want.transform(x), rtol=1e-11, err_msg=name)
        np.testing.assert_array_equal(t.transform(frame), y, err_msg=name)
        assert t.feature_names_in_.tolist() == ["a", "key", "b"]
        assert t.get_feature_names_out().tolist() == ["a", "b"]
        assert t.key_places_ == [1]
        t.partial_fit(frame, times="ts")
        t.partial_fit(frame, times=times)  # the column is known
        assert t.counts_.sum() == 3 * want.counts_.sum()
        assert pickle.loads(pickle.dumps(t)).transform(frame).shape == (240, 2)
    frame = frames(x, times)["pandas"]
    t = GroupedTransformer("key", halflife="20s", keep_keys=True).set_output(transform="pandas")
    out = t.fit_transform(frame, times="ts")
    assert list(out.columns) == ["a", "key", "b"]
    np.testing.assert_allclose(t.inverse_transform(out.assign(ts=times))["a"], x[:, 0], rtol=1e-12)
    t = GroupedTransformer(1, halflife="20s").fit(frame, times="ts")  # a position without the column of times
    np.testing.assert_array_equal(t.means_, want.means_)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("kind", ["stamps", "seconds", "zone"])
def test_files_pickles_and_copies_go_on(tmp_path, suffix, kind):
    x, times = log()
    if kind == "seconds":
        times = (times - START).astype(np.int64) / S
    elif kind == "zone":
        pd = pytest.importorskip("pandas", reason="its time stamps have zones")
        times = pd.Series(times).dt.tz_localize("Europe/Berlin")
    t = GroupedTransformer(1, halflife=np.timedelta64(90, "s"), prior=2.0).fit(x[:100], times=times[:100])
    t.save(tmp_path / f"t.{suffix}")
    loaded = bnorm.load(tmp_path / f"t.{suffix}")
    assert loaded.halflife == "90s"
    for other in (loaded, pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
        assert other.newest_time_ == t.newest_time_
        again = copy.deepcopy(t).partial_fit(x[100:], times=times[100:])
        other.partial_fit(x[100:], times=times[100:])
        for name in ("means_", "vars_", "counts_", "newest_time_"):
            assert np.asarray(getattr(other, name)).tobytes() == np.asarray(getattr(again, name)).tobytes(), name
        np.testing.assert_array_equal(other.transform(x), again.transform(x))
    assert not hasattr(clone(t), "groups_")


def test_bad_calls_change_nothing():
    x, times = log(40)
    t = GroupedTransformer(1, halflife="5s").fit(x, times=times)
    rows, plain = GroupedTransformer(1, halflife=5.0).fit(x), GroupedTransformer(1).fit(x)
    nat, bad = times.copy(), x.copy()
    nat[4], bad[3, 0] = "NaT", np.inf
    old = times.copy()
    old[3] -= np.timedelta64(9000, "D")  # infinity in a row that has no weight left
    for one, bad_call, message in (
        (t, {"X": x}, "GroupedTransformer: times: expected the time of each row, as halflife='5s'"),
        (t, {"X": x, "times": nat}, "GroupedTransformer: times: expected the time of each row, got NaT in row 4"),
        (t, {"X": x, "times": times[1:]}, "GroupedTransformer: times: expected one for each row"),
        (t, {"X": x, "times": np.arange(40.0)}, "GroupedTransformer: times: expected time stamps without a zone, as"),
        (t, {"X": x, "times": "ts"}, "GroupedTransformer: times: expected the name of one column of X"),
        (t, {"X": bad, "times": times}, "infinity"),
        (t, {"X": bad, "times": old}, "infinity"),
        (t, {"X": x, "times": times, "sample_weight": -np.ones(40)}, "Negative values"),
        (rows, {"X": x, "times": times}, "None, as halflife=5.0 counts rows, got .* such as halflife='10min', rows"),
        (plain, {"X": x, "times": times}, "times: expected None, as halflife=None counts rows"),
    ):
        before = pickle.dumps(one._groups.__dict__)
        for call in (one.partial_fit, *([] if "without a zone, as" in message else [one.fit])):
            with pytest.raises((ValueError, TypeError), match=message):
                call(**bad_call)
            assert pickle.dumps(one._groups.__dict__) == before
    for halflife in ("5", "0s", "1M"):
        with pytest.raises(ValueError, match="GroupedTransformer: halflife: expected a length of time above 0"):
            clone(t).set_params(halflife=halflife).fit(x, times=times)
    t.halflife = "6s"
    with pytest.raises(ValueError, match="halflife=5s, as this stream began, got momentum=None, halflife=6s"):
        t.partial_fit(x, times=times)


def test_routing():
    x, times = log(missing=0.0)
    want = GroupedTransformer(1, halflife="20s").fit(x, times=times)
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(GroupedTransformer(1, halflife="20s").set_fit_request(times=True))
        pipe.fit(x, times=times)
    np.testing.assert_array_equal(pipe[0].means_, want.means_)
    pipe = make_pipeline(GroupedTransformer(1, halflife="20s"), BatchNormTransformer(halflife="20s"))
    partial_fit_pipeline(pipe, x[:100], times=times[:100])
    partial_fit_pipeline(pipe, x[100:], times=times[100:])
    np.testing.assert_allclose(pipe[0].means_, want.means_, rtol=1e-12)


def test_dask_frames():
    dd = pytest.importorskip("dask.dataframe", reason="its frames are lazy")
    x, times = log(missing=0.0)
    frame = frames(x, times)["pandas"]
    one = GroupedTransformer("key", halflife="10min", prior=1.0).fit(frame, times="ts")
    lazy = dd.from_pandas(frame.sample(frac=1, random_state=0).reset_index(drop=True), npartitions=7, sort=False)
    lazy = dd.concat([lazy, lazy[lazy["a"] > 1e9]])
    without = lazy[["a", "key", "b"]]
    for t in (
        GroupedTransformer("key", halflife="10min", prior=1.0).fit(lazy, times="ts"),
        GroupedTransformer("key", halflife="10min", prior=1.0).partial_fit(without, times=lazy["ts"]),
    ):
        order = [t.groups_.tolist().index(key) for key in one.groups_]
        np.testing.assert_allclose(t.means_[order], one.means_, rtol=1e-12)
        np.testing.assert_allclose(t.vars_[order], one.vars_, rtol=1e-10)
        np.testing.assert_allclose(t.whole_.var(), one.whole_.var(), rtol=1e-10)
        assert t.newest_time_ == one.newest_time_
        y = t.transform(lazy).compute() if t.newest_time_ is None else t.transform(without).compute()
        np.testing.assert_allclose(np.sort(y["a"]), np.sort(one.transform(frame)[:, 0]), rtol=1e-9, atol=1e-10)
    assert list(GroupedTransformer("key", halflife="1h").fit(lazy, times="ts").transform(lazy).columns) == ["a", "b"]
    with pytest.raises(TypeError, match="times: expected a Dask Series with the 14 partitions of X"):
        t.partial_fit(without, times=times)
    with pytest.raises(ValueError, match="NaT"):
        t.partial_fit(without, times=lazy["ts"].where(lazy["a"] < 100))


def test_a_million_groups():
    n = 300_000
    x = np.stack([np.arange(2 * n) % n, np.arange(2 * n) // n], 1).astype(float)
    times = START + np.repeat([0, 10], n).astype("m8[s]")
    t = GroupedTransformer(0, halflife="10s").fit(x, times=times)
    np.testing.assert_allclose(t.means_[[0, 17, -1]], 2 / 3, rtol=1e-14)
    np.testing.assert_allclose([t.whole_.mean[0], t.whole_.var()[0]], [2 / 3, 2 / 9], rtol=1e-12)
