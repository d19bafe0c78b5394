"""What the transformer refuses, and that a failed call leaves no trace."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from bnorm import BatchNormTransformer
from bnorm.transformer import tables

MODES = [{}, {"momentum": None}, {"halflife": 7.0}, {"halflife": 7.0, "ddof": 1}]


def table(n):
    return np.random.default_rng(0).normal(3.0, 2.0, (n, 3))


def as_bytes(value):
    return [*map(as_bytes, value)] if isinstance(value, tuple) else np.asarray(value).tobytes()


def state_of(t):
    """All that a call could change, as bytes."""
    names = [name for name in dir(t) if name.endswith("_") and not name.startswith("_") and name != "layer_"]
    found = {name: as_bytes(getattr(t, name)) for name in names if hasattr(t, name)}
    if hasattr(t, "layer_"):
        found |= {name: a.tobytes() for name, a in t.layer_.state_dict().items()}
        statistics = t.layer_._running
        found |= {name: a.tobytes() for name, a in statistics.arrays().items()}
        found["counters"] = statistics.counters.tobytes()
        found["layer"] = id(t.layer_)
    return found


def test_merge_refuses():
    x = table(10)
    pooled, fading = BatchNormTransformer(momentum=None).fit(x), BatchNormTransformer(halflife=3.0).fit(x)
    averaged = BatchNormTransformer().fit(x)
    for left, right, words in [
        (averaged, averaged, "order of its batches"),
        (pooled, averaged, "order of its batches"),
        (pooled, fading, "merge: halflife: expected None, as here, got 3.0"),
        (fading, BatchNormTransformer(halflife=4.0).fit(x), "merge: halflife: expected 3.0, as here, got 4.0"),
        (pooled, BatchNormTransformer(momentum=None, ddof=1).fit(x), "merge: ddof: expected 0, as here, got 1"),
        (pooled, BatchNormTransformer(momentum=None).fit(x[:, :2]), "merge: n_features_in_: expected 3"),
    ]:
        kept = state_of(left)
        with pytest.raises(ValueError, match=words):
            left.merge(right)
        assert state_of(left) == kept
    with pytest.raises(TypeError, match="expected a BatchNormTransformer, got ndarray"):
        pooled.merge(x)
    for left, right in [(pooled, BatchNormTransformer(momentum=None)), (BatchNormTransformer(momentum=None), pooled)]:
        with pytest.raises(NotFittedError):
            left.merge(right)


def test_merge_compares_the_names_of_features():
    """If both have some."""
    pd = pytest.importorskip("pandas", reason="feature names come with data frames")
    array = table(10)
    frame = pd.DataFrame(array, columns=["a", "b", "c"])
    mine, its = (BatchNormTransformer(momentum=None).fit(x) for x in (frame, frame[["c", "b", "a"]]))
    with pytest.raises(ValueError, match=r"merge: expected features \['a', 'b', 'c'\], as here, got \['c', 'b', 'a'\]"):
        mine.merge(its)
    for left, right in ((array, frame), (frame, array), (frame, frame)):
        t = BatchNormTransformer(momentum=None).fit(left)
        assert t.merge(BatchNormTransformer(momentum=None).fit(right)).n_samples_seen_ == 20


@pytest.mark.parametrize("parameters", MODES, ids=str)
def test_failed_calls_leave_no_trace(parameters):
    pd = pytest.importorskip("pandas", reason="feature names come with data frames")
    x = pd.DataFrame(table(40), columns=["a", "b", "c"])
    bad = x.copy()
    bad.iloc[7, 2] = np.inf
    renamed = x.rename(columns={"a": "z"})
    one = np.ones(40)
    t = BatchNormTransformer(**parameters).fit(x).partial_fit(x * 2)
    t.backward(x, x)
    kept = state_of(t)
    assert len(kept) > 12
    calls = [
        lambda: t.fit(bad),
        lambda: t.partial_fit(bad),
        lambda: t.fit(bad.rename(columns={"a": "z"})),
        lambda: t.fit(bad[["a", "c"]]),
        lambda: t.partial_fit(renamed),
        lambda: t.partial_fit(x[["a", "b"]]),
        lambda: t.transform(renamed),
        lambda: t.inverse_transform(x[["a", "b"]]),
        lambda: t.fit(x[:0]),
        lambda: t.fit(x["a"]),
        lambda: t.fit([["a"], ["b"]]),
        lambda: t.fit(x, sample_weight=-one),
        lambda: t.partial_fit(x, sample_weight=one[1:]),
        lambda: t.partial_fit(x, sample_weight=0 * one),
        lambda: t.partial_fit(x, sample_weight=np.nan * one),
        lambda: t.partial_fit(x, sample_weight=np.where(x.index == 3, -1e-9, 1)),
        lambda: t.fit(x, sample_weight=1e-300 * one),
        lambda: t.backward(x, x[:1]),
        lambda: t.backward(bad, x),
        lambda: t.step(np.nan),
        lambda: setattr(t, "gamma_", np.ones(2)),
        lambda: setattr(t, "running_var_", -np.ones(3)),
        lambda: setattr(t, "running_mean_", np.ones(4)),
    ]
    for call in calls:
        with pytest.raises(ValueError):
            call()
        assert state_of(t) == kept
    with np.errstate(all="raise"):
        t.partial_fit(x * 1e-200)  # underflow is no failure


def test_failed_pieces_leave_no_trace(monkeypatch):
    """Of a batch that is taken in step by step, too."""
    x = table(80)[::2]  # rows apart are copied, a piece at a time
    monkeypatch.setattr(tables, "PIECE", 8 * x.shape[1] * x.itemsize)
    t = BatchNormTransformer(halflife=3.0).fit(x)
    kept = state_of(t)
    x[39, 1] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        t.partial_fit(x)
    assert state_of(t) == kept
    new = BatchNormTransformer(halflife=3.0)
    with pytest.raises(ValueError, match="infinity"):
        new.partial_fit(x)
    assert state_of(new) == {}


def test_failed_steps_leave_no_trace():
    """Rows a thousand half-lives old are a step of their own, which is not taken if the next one cannot be."""
    x = np.full((40, 2), np.nan)
    x[:6], x[-1] = table(6)[:, :2], 0.5
    t = BatchNormTransformer(halflife=0.01, ddof=1).fit(table(8)[:, :2])
    assert len(t._state.steps(tables.Dense(x), None)) == 2
    kept = state_of(t)
    x[-2:, 1] = 1.7e308, -1.7e308
    with pytest.raises(ValueError, match="infinity or a value too large"):
        t.partial_fit(x)
    assert state_of(t) == kept


def test_interrupted_pieces_leave_no_trace(monkeypatch):
    x = table(80)[::2]  # rows apart are copied, a piece at a time
    monkeypatch.setattr(tables, "PIECE", 8 * x.shape[1] * x.itemsize)
    t = BatchNormTransformer(halflife=3.0).fit(x)
    kept, moments, calls = state_of(t), tables._moments, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return moments(*args)

    monkeypatch.setattr(tables, "_moments", interrupted)
    with pytest.raises(KeyboardInterrupt):
        t.partial_fit(x)
    assert state_of(t) == kept


def test_negative_weights_are_refused_in_every_mode():
    x = table(3)
    for parameters in MODES:
        for method in ("fit", "partial_fit"):
            with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
                getattr(BatchNormTransformer(**parameters), method)(x, sample_weight=[1, -1, 1])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"momentum": 0}, "'momentum' parameter"),
        ({"momentum": 1.5}, "'momentum' parameter"),
        ({"momentum": "0.1"}, "'momentum' parameter"),
        ({"halflife": 0}, "'halflife' parameter"),
        ({"halflife": np.inf}, "'halflife' parameter"),
        ({"eps": -1e-9}, "'eps' parameter"),
        ({"eps": np.nan}, "'eps' parameter"),
        ({"ddof": 2}, "'ddof' parameter"),
        ({"affine": "yes"}, "'affine' parameter"),
        *(({name: True}, f"{name}: expected a number, got True") for name in ("momentum", "halflife", "window", "eps")),
        ({"halflife": 5, "momentum": 0.2}, r"momentum: expected its default, 0.1, or None with halflife=5.*got 0.2"),
    ],
)
def test_parameters_are_checked_when_fitted(parameters, words):
    x = table(4)
    for method in ("fit", "partial_fit"):
        t = BatchNormTransformer(**parameters)
        with pytest.raises((ValueError, TypeError), match=words):
            getattr(t, method)(x)
        assert state_of(t) == {}
    t = BatchNormTransformer().fit(x).set_params(**parameters)
    kept = state_of(t)
    with pytest.raises((ValueError, TypeError), match=words):
        t.partial_fit(x)
    assert state_of(t) == kept
    BatchNormTransformer(halflife=5, momentum=0.1).fit(x)


def test_a_stream_goes_on_as_it_began():
    x = table(10)
    for before, after, words in [
        ({}, {"momentum": None}, "window: expected a moving average of batches"),
        ({"momentum": None}, {"momentum": 0.1}, "momentum, halflife, window: expected rows that weigh the same, as"),
        ({}, {"window": 3}, "expected a moving average of batches, as this stream began, got a window of 3; fit"),
        ({"momentum": None}, {"momentum": 0.1, "halflife": 3.0}, "rows that weigh the same, .* got rows that fade"),
        ({}, {"ddof": 1}, "ddof: expected 0, as this stream began, got 1"),
        ({}, {"affine": False}, "affine: expected True, as this stream began, got False"),
    ]:
        t = BatchNormTransformer(**before).fit(x).set_params(**after)
        kept = state_of(t)
        with pytest.raises(ValueError, match=words):
            t.partial_fit(x)
        assert state_of(t) == kept
        t.fit(x)
    t = BatchNormTransformer(momentum=0.5).fit(x).set_params(momentum=1.0, eps=1.0).partial_fit(2 * x)
    np.testing.assert_allclose(t.mean_, 2 * x.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(t.scale_, np.sqrt(4 * x.var(axis=0) + 1), rtol=1e-14)
    assert (t.layer_.momentum, t.layer_.eps) == (1.0, 1.0)


@pytest.mark.parametrize("history", [None, 2])
def test_parameters_of_a_batch_that_is_refused_have_no_effect(history):
    x = table(10)
    t = BatchNormTransformer(momentum=0.5, history=8)
    for rows in np.split(x, 5):
        t.partial_fit(rows)
    kept, y = state_of(t), t.transform(x)
    t.set_params(momentum=1.0, eps=1.0, history=history)
    with pytest.raises(ValueError, match="infinity"):
        t.partial_fit(np.full_like(x, np.inf))
    assert state_of(t) == kept
    assert (t.layer_.momentum, t.layer_.eps) == (0.5, 0.0)
    np.testing.assert_array_equal(t.transform(x), y)
    t.partial_fit(2 * x)
    assert (t.layer_.momentum, t.layer_.eps, t.history_ is None) == (1.0, 1.0, history is None)


def test_columns_of_a_frame_that_are_no_numbers_are_named():
    pd = pytest.importorskip("pandas", reason="columns of data frames have names")
    from bnorm import GroupedTransformer

    frame = pd.DataFrame({"age": [1.0, 2.0], "digits": ["3", "4"], "city": ["a", "b"]})
    with pytest.raises(ValueError, match="BatchNormTransformer: X: column 'city': expected numbers, got "):
        BatchNormTransformer().fit(frame)
    assert list(BatchNormTransformer().fit(frame[["age", "digits"]]).mean_) == [1.5, 3.5]
    with pytest.raises(ValueError, match="The feature names should match"):
        BatchNormTransformer().fit(frame[["age"]]).transform(frame[["city"]])
    odd = pd.DataFrame({"age": [1.0, 2.0], "kids": np.array([1, pd.NA], object), "z": [1j, 2.0]})
    with pytest.raises(ValueError, match="column 'kids': expected numbers, got object such as <NA>"):
        BatchNormTransformer().fit(odd)
    with pytest.raises(ValueError, match="column 'z': expected numbers, got complex128"):
        BatchNormTransformer().fit(odd[["age", "z"]])
    frame["when"] = pd.to_datetime(["2024-01-01", "2024-01-02"])
    with pytest.raises(ValueError, match="GroupedTransformer: X: column 'when': expected numbers, got datetime64"):
        GroupedTransformer("city").fit(frame)


def test_masked_weights_are_refused():
    """What they mean is open: scikit-learn would use the values under the mask."""
    from bnorm import GroupedTransformer

    x = table(4)
    for t in (BatchNormTransformer(), GroupedTransformer(0)):
        with pytest.raises(TypeError, match="sample_weight: expected an array without a mask, got"):
            t.fit(x, sample_weight=np.ma.masked_array(np.ones(4), [0, 1, 0, 0]))
        assert not hasattr(t, "n_features_in_")


def test_times_are_no_features():
    """scikit-learn takes a table that has only times as integers, and NaT as the least of them."""
    pd = pytest.importorskip("pandas", reason="columns of data frames have names")
    times = np.array([["2024-01-01", "NaT"], ["2024-01-02", "2024-01-03"]], "M8[ns]")
    frame = pd.DataFrame(times, columns=["born", "died"])
    t = BatchNormTransformer().fit(np.ones((2, 2)))
    for table, words in [
        (times, r"BatchNormTransformer: X: expected numbers, got datetime64\[ns\]"),
        (np.ma.masked_array(times, [[0, 1], [0, 0]]), r"X: expected numbers, got datetime64\[ns\]"),
        (times - times[0, 0], r"X: expected numbers, got timedelta64\[ns\]"),
        (frame, r"BatchNormTransformer: X: column 'born': expected numbers, got datetime64\[ns\]"),
        (
            frame.apply(lambda c: c.dt.tz_localize("UTC")),
            r"X: column 'born': expected numbers, got datetime64\[ns, UTC\]",
        ),
        (
            pd.DataFrame({"a": [1, 2], "age": frame["died"] - frame["born"]}),
            "X: column 'age': expected numbers, got time",
        ),
    ]:
        for call in (BatchNormTransformer().fit, BatchNormTransformer().partial_fit, t.transform, t.inverse_transform):
            with pytest.raises(ValueError, match=words):
                call(table)


@pytest.mark.parametrize("kind", ["array", "list", "pipeline"])
def test_a_warning_names_the_line_of_the_user(kind):
    """Whatever lies between it and the transformer in this package."""
    from sklearn.pipeline import make_pipeline

    from bnorm import partial_fit_pipeline

    x = np.ones((1, 2))
    with pytest.warns(UserWarning, match="a batch of one row") as found:
        if kind == "pipeline":
            partial_fit_pipeline(make_pipeline(BatchNormTransformer()), x)
        else:
            BatchNormTransformer().partial_fit(x.tolist() if kind == "list" else x)
    assert found[0].filename == __file__
