"""The transformer of groups: each group is what a transformer of its rows alone is, however the rows come."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn import clone, config_context
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import bnorm
from bnorm import BatchNormTransformer, GroupedTransformer
from bnorm.distributed.learners import reading_of
from grouped_tables import WAYS, features, frame, table

CHECKS = parametrize_with_checks([GroupedTransformer(0, **way) for way in WAYS])


@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)
def test_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", ["check_param_validation", "check_estimators_partial_fit_n_features"])
def test_further_checks(name):
    getattr(estimator_checks, name)("GroupedTransformer", GroupedTransformer(0))


def close(t, each, whole):
    for key, mean, var, count in zip(t.groups_, t.means_, t.vars_, t.counts_, strict=True):
        np.testing.assert_allclose(mean, each[key].mean_, rtol=1e-13)
        np.testing.assert_allclose(var, each[key].var_, rtol=1e-10)
        np.testing.assert_allclose(count, np.broadcast_to(each[key].n_samples_seen_, 3))
    np.testing.assert_allclose(t.whole_.mean, whole.mean_, rtol=1e-13)
    np.testing.assert_allclose(t.whole_.var(), whole.var_, rtol=1e-10)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_each_group_is_a_transformer_of_its_rows(way, weighted):
    x = table()
    w = np.where(np.arange(len(x)) % 7 == 0, 0, np.linspace(0.2, 3, len(x))) if weighted else None
    t, whole, each = GroupedTransformer(1, **way), BatchNormTransformer(**{"momentum": None, **way}), {}
    for start, stop in ((0, 3), (3, 4), (4, 150), (150, 151), (151, 400)):
        rows = np.arange(start, stop)
        if weighted and not w[rows].any():
            continue
        given = {} if w is None else {"sample_weight": w[rows]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of averages of single rows
            t.partial_fit(x[rows], **given)
            whole.partial_fit(features(x[rows]), **given)
            for key in np.unique(x[rows, 1][~np.isnan(x[rows, 1])]):
                mine = rows[x[rows, 1] == key]
                one = each.setdefault(key, clone(whole))
                if w is None or w[mine].any():
                    one.partial_fit(features(x[mine]), sample_weight=None if w is None else w[mine])
    each = {key: one for key, one in each.items() if hasattr(one, "layer_")}
    assert set(each) <= set(t.groups_)
    if not weighted:
        close(t, each, whole)
    y = t.transform(x)
    for key, one in each.items():
        mine = x[:, 1] == key
        known = one.transform(features(x[mine]))
        seen = t.counts_[list(t.groups_).index(key)] > 0
        if not weighted or way == {}:
            np.testing.assert_allclose(y[mine][:, seen], known[:, seen], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(y[5:9], whole.transform(features(x[5:9])), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_fit_and_then_a_stream(way):
    x = table()
    t = GroupedTransformer(1, **way).fit(table(seed=1)).fit(x[:300]).partial_fit(x[300:])
    new = dict(momentum=None) | way
    whole, each = BatchNormTransformer(**new).fit(features(x[:300])).partial_fit(features(x[300:])), {}
    for key in t.groups_:
        mine = features(x[x[:, 1] == key])
        n = (x[:300, 1] == key).sum()
        each[key] = BatchNormTransformer(**new).fit(mine[:n]).partial_fit(mine[n:])
    close(t, each, whole)
    assert t.n_batches_seen_ == 2


def test_any_cut_gives_one_fit():
    x, rng = table(), np.random.default_rng(3)
    one = GroupedTransformer(1).fit(x)
    cuts = np.sort(rng.choice(400, 9, replace=False))
    many = GroupedTransformer(1)
    for batch in np.split(x, cuts):
        many.partial_fit(batch)
    assert (many.groups_ == one.groups_).all()
    np.testing.assert_allclose(many.means_, one.means_, rtol=1e-14)
    np.testing.assert_allclose(many.vars_, one.vars_, rtol=1e-11)


def test_halflife_of_rows_that_have_no_weight_left():
    """Values so old that their weight underflows stay what they are."""
    x = np.zeros((3000, 3))
    x[:, 1], x[:, 2] = np.arange(3000) % 7, np.nan
    x[:3, 1], x[:3, 2] = 1, [1.0, 2.0, 6.0]
    t = GroupedTransformer(0, halflife=0.25).partial_fit(x)
    one = BatchNormTransformer(halflife=0.25).partial_fit(x[:, 1:])
    np.testing.assert_allclose(t.means_[0], one.mean_, rtol=1e-13)
    np.testing.assert_allclose(t.vars_[0], one.var_, rtol=1e-12)


@pytest.mark.parametrize("by_time", [False, True])
def test_count_of_the_whole_is_the_weight_left_now(by_time):
    x = np.array([[0, 1.0, 1.0], [0, 3.0, 2.0], [1, np.nan, 4.0], [1, np.nan, 5.0], [1, np.nan, 6.0]])
    times = np.arange(5.0)
    made = GroupedTransformer(0, halflife="2s" if by_time else 2.0)
    weight = 0.5 ** (np.arange(4, -1, -1) / 2)[:, None] * np.isfinite(x[:, 1:])
    for cut in ([5], [2, 3], [1, 1, 1, 1, 1], [2, 1, 2]):
        t, parts = clone(made), np.split(np.arange(5), np.cumsum(cut)[:-1])
        for rows in parts:
            t.partial_fit(x[rows], times=times[rows] if by_time else None)
        np.testing.assert_allclose(t.whole_.count, weight.sum(0), rtol=1e-14)
        np.testing.assert_allclose(t.whole_.m2 / t.whole_.count, t.whole_.var(), rtol=1e-14)
    t.partial_fit(np.tile(x[-1:], (5000, 1)), times=np.full(5000, 5000.0) if by_time else None)
    np.testing.assert_allclose([t.whole_.mean[0], t.whole_.count[0]], [3 - 2 / (1 + 2**0.5), 0], rtol=1e-12, atol=1e-80)


def test_halflives_so_short_that_ages_are_infinite():
    x = np.array([[1, 2.0], [1, 5.0], [2, 7.0]])
    t = GroupedTransformer(0, halflife=5e-324, prior=1.0).partial_fit(x).partial_fit(x)
    np.testing.assert_array_equal(t.means_[:, 0], [5.0, 7.0])
    assert np.isfinite(t.transform(x)).all()


def test_prior_is_what_merging_gives():
    x = table(missing=0)
    t = GroupedTransformer(1, prior=5).fit(x)
    whole = bnorm.functional.moments(features(x))
    five = bnorm.Moments([5.0] * 3, whole.mean, whole.var() * 5)
    y = t.transform(x)
    for key in t.groups_:
        mine = features(x[x[:, 1] == key])
        m = bnorm.functional.moments(mine) + five
        np.testing.assert_allclose(y[x[:, 1] == key], (mine - m.mean) / m.std(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(t.inverse_transform(np.insert(y, 1, x[:, 1], axis=1)), features(x), rtol=1e-13)


def test_a_group_of_one_row_and_a_constant_one():
    x = np.array([[1, 5.0], [2, 0.1], [2, 0.1], [2, 0.1]])
    t = GroupedTransformer(0).fit(x)
    assert t.transform([[1, 7.0], [2, 0.6]]).tolist() == [[2.0], [0.5]]
    assert t.vars_.tolist() == [[0.0], [0.0]]
    assert GroupedTransformer(0, eps=4.0).fit(x).transform([[1, 7.0]]).tolist() == [[1.0]]


def test_unseen():
    x = np.array([[1, 5.0, 1.0], [1, 7.0, 3.0], [2, 9.0, np.nan], [np.nan, 11.0, 5.0]])
    new = np.array([[3, 8.0, 3.0], [np.nan, 8.0, 3.0], [2, 9.0, 3.0]])
    by = {unseen: GroupedTransformer(0, unseen=unseen).fit(x) for unseen in ("global", "nan", "error")}
    np.testing.assert_allclose(by["global"].transform(new), [[0, 0], [0, 0], [0, 0]], atol=1e-15)
    np.testing.assert_array_equal(by["nan"].transform(new), [[np.nan] * 2, [np.nan] * 2, [0, np.nan]])
    with pytest.raises(ValueError, match="unseen: expected keys seen in fit, as unseen='error', got 3 in row 0"):
        by["error"].transform(new)
    with pytest.raises(ValueError, match="got a missing key in row 0"):
        by["error"].transform(new[1:])
    assert by["error"].transform(new[2:])[0, 0] == 0
    np.testing.assert_array_equal(by["error"].transform(x[:3]), by["global"].transform(x[:3]))


@pytest.mark.parametrize("unseen", ["global", "nan"])
def test_a_feature_without_a_value_in_a_group_has_its_prior(unseen):
    x = np.array([[0.0, 1.0, 5.0], [0.0, 3.0, 7.0], [1.0, np.nan, 6.0]])
    y = GroupedTransformer(0, unseen=unseen, prior=2).fit(x).transform([[1.0, 3.0, 6.0]])
    np.testing.assert_allclose(y, [[1.0, 0.0]], atol=1e-15)


def test_a_prior_of_a_feature_that_never_had_a_value_is_none():
    x = np.column_stack([[0.0, 0, 1, 1], [1.0, 3, 5, 9], np.full(4, np.nan)])
    t = GroupedTransformer(0, prior=2).fit(x)
    assert np.isnan(t.means_[:, 1]).all() and np.isnan(t.vars_[:, 1]).all()
    assert np.isnan(t.transform(x)[:, 1]).all()


@pytest.mark.parametrize("way", [{}, {"halflife": 20.0}], ids=str)
def test_merge(way):
    x = table(n=300, groups=12)
    a, b = x[x[:, 1] < 8][:120], x[x[:, 1] > 3][120:]
    t, other = (GroupedTransformer(1, **way).partial_fit(part) for part in (a, b))
    before = pickle.dumps(other.means_)
    merged = clone(t).partial_fit(a).merge(other)
    assert pickle.dumps(other.means_) == before
    assert merged.n_batches_seen_ == 2
    assert merged.groups_.tolist() == [*t.groups_, *(k for k in other.groups_ if k not in t.groups_)]
    for key, mean, var in zip(merged.groups_, merged.means_, merged.vars_, strict=True):
        parts = [features(part[part[:, 1] == key]) for part in (a, b)]
        some = [BatchNormTransformer(momentum=None, **way).partial_fit(part) for part in parts if len(part)]
        one = some[0] if len(some) == 1 else some[0].merge(some[1])
        np.testing.assert_allclose(mean, one.mean_, rtol=1e-13)
        np.testing.assert_allclose(var, one.var_, rtol=1e-11)
    if not way:
        np.testing.assert_allclose(merged.whole_.mean, GroupedTransformer(1).fit(np.concatenate([a, b])).whole_.mean)
    merged.partial_fit(x)


@pytest.mark.parametrize("way", [{}, {"halflife": 20.0}], ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["keys", "no keys"])
def test_merge_of_a_stream_whose_groups_came_one_at_a_time(way, known, tmp_path):
    """Its arrays have room for more groups than there are; those of a file have not."""
    x = table(n=300, groups=12)
    other = GroupedTransformer(1, **way)
    for batch in [x[x[:, 1] < n] for n in range(1, 13)]:
        other.partial_fit(batch)
    other.save(tmp_path / "other.npz")
    t, want = (GroupedTransformer(1, **way).partial_fit(x if known else x[5:9]) for _ in range(2))
    t.merge(other)
    want.merge(bnorm.load(tmp_path / "other.npz"))
    assert len(t.groups_) == 12 and t.groups_.tolist() == want.groups_.tolist()
    for name in ("means_", "vars_", "counts_"):
        np.testing.assert_array_equal(getattr(t, name), getattr(want, name))


def test_names_and_containers():
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    x = frame(table())
    x["key"] = pd.Series([None if np.isnan(k) else f"k{k:.0f}" for k in x["key"]], index=x.index, dtype=object)
    t = GroupedTransformer("key").fit(x)
    plain = t.transform(x)
    assert type(plain) is np.ndarray
    assert t.get_feature_names_out().tolist() == ["a", "b", "c"]
    assert t.feature_names_in_.tolist() == ["a", "key", "b", "c"]
    z = x.groupby("key").transform(lambda v: (v - v.mean()) / v.std(ddof=0))
    np.testing.assert_allclose(plain[9:], z[9:], rtol=1e-9, atol=1e-9)
    for other in (pl.from_pandas(x), pa.Table.from_pandas(x, preserve_index=False)):
        np.testing.assert_allclose(t.transform(other), plain, rtol=1e-12, atol=1e-12)
        again = GroupedTransformer("key").fit(other)
        np.testing.assert_allclose(again.means_, t.means_)
        assert again.groups_.tolist() == t.groups_.tolist()
    t.set_output(transform="pandas")
    y = t.transform(x)
    assert list(y.columns) == ["a", "b", "c"]
    assert (y.index == x.index).all()
    back = t.inverse_transform(y, keys=x["key"])
    np.testing.assert_allclose(back, x[["a", "b", "c"]], rtol=1e-13)
    with pytest.raises(ValueError, match="keys: expected the keys of the rows"):
        t.inverse_transform(y)
    for keys in (5, iter("abc"), "abc"):
        with pytest.raises(TypeError, match=r"keys: column 'key': expected a key for each row, got (int|str)"):
            t.inverse_transform(y, keys=keys)
    t.keep_keys = True
    y = t.transform(x)
    assert list(y.columns) == list(t.get_feature_names_out()) == ["a", "key", "b", "c"]
    assert y["key"].equals(x["key"])
    pd.testing.assert_frame_equal(t.inverse_transform(y), x, rtol=1e-12)
    t.set_output(transform="polars")
    y = t.transform(pl.from_pandas(x))
    assert (type(y), y.columns) == (pl.DataFrame, ["a", "key", "b", "c"])
    t.set_output(transform="default")
    assert t.transform(x).dtype == object
    assert t.transform(x)[0, 1] == x["key"].iloc[0]


@pytest.mark.parametrize("parameters", [{}, {"keep_keys": True}, {"unseen": "nan"}, {"halflife": 9.0, "prior": 2.0}])
def test_fit_transform(parameters):
    x, w = table(), np.linspace(0, 3, 400)
    for weight in (None, w):
        t, one = GroupedTransformer(1, **parameters), GroupedTransformer(1, **parameters)
        y = t.fit_transform(x, sample_weight=weight)
        np.testing.assert_array_equal(y, one.fit(x, sample_weight=weight).transform(x))
        np.testing.assert_array_equal(t.means_, one.means_)
    assert t.set_output(transform="pandas").fit_transform(frame(x)).index[0] == 7
    with pytest.raises(ValueError, match="unseen: expected keys"):
        GroupedTransformer(1, unseen="error").fit_transform(x)


def test_numbers_keep_their_type():
    x = table(missing=0)
    assert GroupedTransformer(1).fit_transform(x.astype("f4")).dtype == np.float32
    y = GroupedTransformer(1, keep_keys=True).fit_transform(x)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y[:, 1], x[:, 1])
    counts = np.array([[0, 3], [0, 5], [1, 7]], np.int16)
    assert GroupedTransformer(0).fit_transform(counts).tolist() == [[-1.0], [1.0], [0.0]]
    mixed = [["a", 3.0], ["a", 5.0], ["b", 7.0]]
    assert GroupedTransformer(0).fit_transform(mixed).tolist() == [[-1.0], [1.0], [0.0]]
    for rows in (mixed, tuple(mixed)):
        t = GroupedTransformer(0, keep_keys=True).set_output(transform="pandas")
        assert t.fit_transform(rows).to_numpy().tolist() == [["a", -1.0], ["a", 1.0], ["b", 0.0]]
    assert GroupedTransformer(-2).fit(mixed).groups_.tolist() == ["a", "b"]


def test_several_keys():
    x = np.array([[1, 1, 5.0], [1, 2, 7.0], [1, 1, 9.0], [2, 1, 0.0]])
    t = GroupedTransformer([0, 1]).fit(x)
    assert t.groups_.tolist() == [(1, 1), (1, 2), (2, 1)]
    assert t.means_.tolist() == [[7.0], [7.0], [0.0]]
    np.testing.assert_allclose(t.inverse_transform([[1.0], [-1.0]], keys=[[1, 1], [1, 1]]), [[9.0], [5.0]])
    for keys in (t.groups_[:2], t.groups_[:2].tolist()):
        np.testing.assert_allclose(t.inverse_transform([[1.0], [0.0]], keys=keys), [[9.0], [7.0]])
    for keys in ([1, 2], np.array([1, 2]), "ab"):
        with pytest.raises(ValueError, match="expected 2 columns, or a tuple of 2 keys for each row, got"):
            t.inverse_transform([[1.0], [0.0]], keys=keys)


def test_routing_of_weights():
    x = table(missing=0)
    w = np.arange(len(x)) % 3 * 1.0
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(GroupedTransformer(1).set_fit_request(sample_weight=True))
        pipe.fit(x, sample_weight=w)
    rows = w > 0
    assert pipe[0].counts_.sum() == pytest.approx(3 * w[~np.isnan(x[:, 1])].sum())
    other = GroupedTransformer(1).fit(x[rows], sample_weight=w[rows])
    order, its = np.argsort(pipe[0].groups_), np.argsort(other.groups_)
    np.testing.assert_allclose(pipe[0].means_[order], other.means_[its])


def test_many_groups():
    n = 200_000
    x = np.empty((2 * n, 2))
    x[:, 0], x[:, 1] = np.arange(2 * n) % n, np.arange(2 * n) // n
    t = GroupedTransformer(0).fit(x)
    assert len(t.groups_) == n
    assert (t.transform(x)[:, 0] == np.repeat([-1.0, 1.0], n)).all()
    assert t.partial_fit([[5, 3.5], [-1, 2.0]]).counts_[[5, -1]].tolist() == [[3], [1]]


def test_dask_frames():
    """Partitions are united by their keys; some are empty, or have keys that the others do not."""
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    x = frame(table(), ("a", "key", "b", "c"))
    x["key"] = [f"k{k:.0f}" for k in x["key"]]
    x["w"] = np.arange(len(x)) % 3
    data = dd.from_pandas(x, npartitions=5, sort=False)
    data = dd.concat([data, data[data["a"] > 1e9]])
    given, plain = data[["a", "key", "b", "c"]], x[["a", "key", "b", "c"]]
    t, one = GroupedTransformer("key", prior=1).fit(given), GroupedTransformer("key", prior=1).fit(plain)
    assert t.groups_.tolist() == one.groups_.tolist()
    np.testing.assert_array_equal(t.counts_, one.counts_)
    np.testing.assert_allclose(t.vars_, one.vars_, rtol=1e-11)
    np.testing.assert_allclose(t.whole_.var(), one.whole_.var(), rtol=1e-12)
    lazy = t.transform(given)
    assert type(lazy) is type(given)
    expected = one.set_output(transform="pandas").transform(plain)
    pd.testing.assert_frame_equal(lazy.compute(), expected, rtol=1e-8)
    with pytest.raises(ValueError, match=r"set_output: expected transform='default', as the result for a Dask"):
        t.set_output(transform="pandas").transform(given)
    t.set_output(transform="default").partial_fit(given, sample_weight=data["w"])
    one.partial_fit(plain, sample_weight=x["w"])
    np.testing.assert_allclose(t.means_, one.means_, rtol=1e-13)
    average = GroupedTransformer("key", momentum=0.2).partial_fit(given).partial_fit(given)
    both = GroupedTransformer("key", momentum=0.2).partial_fit(plain).partial_fit(plain)
    np.testing.assert_allclose(average.vars_, both.vars_, rtol=1e-11)
    with pytest.raises(ValueError, match=r"expected a table in memory with halflife=3\.0"):
        GroupedTransformer("key", halflife=3.0).partial_fit(given)
    with pytest.raises(TypeError, match="sample_weight: expected a Dask Series with the 10 partitions"):
        t.partial_fit(given, sample_weight=x["w"])
    with pytest.raises(TypeError, match="expected a table in memory or a Dask DataFrame"):
        t.partial_fit(given.to_delayed()[0])


@pytest.mark.parametrize("engine", ["dask", "arrow"])
@pytest.mark.parametrize("halflife", [None, "10s"])
def test_keys_without_weight_or_without_value_in_a_part(engine, halflife):
    """Parts whose rows all weigh nothing, or have no key, say what keys there are all the same."""
    dd, pd, pa = (pytest.importorskip(name) for name in ("dask.dataframe", "pandas", "pyarrow"))
    x = pd.DataFrame(
        {"key": [None, None, "b", "c", "a", None], "x": np.arange(6.0), "w": [1.0, 1, 0, 0, 2, 0], "ts": 5.0}
    )
    times = None if halflife is None else "ts"

    def fitted(t, x, rows):
        if engine == "arrow":
            reading = reading_of("fit", t, {"key": None, **dict.fromkeys(["x", "w", "ts"], 0)}, ["x"], "w", times)
            return reading.fit(t, [reading.state([pa.Table.from_pandas(x.iloc[some])]) for some in rows])
        lazy = dd.concat([dd.from_pandas(x.iloc[some], npartitions=1) for some in rows])
        given = {} if times is None else {"times": lazy["ts"]}
        return t.fit(lazy[["key", "x"]], sample_weight=lazy["w"], **given)

    one = GroupedTransformer("key", halflife=halflife)
    one.fit(x[["key", "x"]], sample_weight=x["w"], **({} if times is None else {"times": x["ts"]}))
    t = fitted(GroupedTransformer("key", halflife=halflife), x, [[0, 1], [2, 3], [4, 5]])
    assert t.groups_.tolist() == one.groups_.tolist() == ["b", "c", "a"]
    np.testing.assert_array_equal(t.counts_, one.counts_)
    np.testing.assert_array_equal(t.means_, one.means_)
    np.testing.assert_allclose(t.whole_.mean, one.whole_.mean)
    t = fitted(GroupedTransformer("key", halflife=halflife), x, [[0], [1]])
    assert len(t.groups_) == 0 and t.whole_.mean == 0.5
    with pytest.raises(ValueError, match="Sample weights must contain at least one non-zero number"):
        fitted(t, x, [[2], [3, 5]])
    assert t.whole_.mean == 0.5


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 129, 4097])
def test_the_whole_has_every_group(n):
    """However many there are on a level of the tree."""
    from bnorm.transformer.group_batches import together

    parts = np.zeros((4, n, 1))
    parts[0], parts[1, :, 0] = 1.0, np.arange(n)
    count, mean, m2, _ = together(parts)
    assert (count[0], mean[0]) == (n, (n - 1) / 2)
    np.testing.assert_allclose(m2[0], n * (n * n - 1) / 12, rtol=1e-12)
