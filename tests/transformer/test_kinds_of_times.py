"""What counts as a length of time and as the time of a row, in every library; and calls with other times."""

import copy
import datetime as dt
import pickle
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from bnorm import BatchNormTransformer
from bnorm.transformer.durations import nanoseconds, text
from bnorm.transformer.times import read
from rows_in_time import START, seconds, state_of, table

# Spellings of lengths of time and of times ---------------------------------------------------------------------------

LENGTHS = [
    *("10min", "1h", "30s", "1h30m", "1h 30min", "2 days", "1 days 02:00:00", "1.5h", "00:10:00", "10:00:01.5"),
    *("P1DT2H3M4.5S", "PT10M", "1D", "2W", "5us", "5µs", "7ns", "250ms", "1 day, 2 hours", "0.5 s", "2days 3:04:05"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lengths_as_pandas():
    pd = pytest.importorskip("pandas", reason="pandas' Timedelta is the oracle")
    for length in LENGTHS:
        assert nanoseconds(length) == pd.Timedelta(length).as_unit("ns").value, length
    for length in (dt.timedelta(minutes=10), np.timedelta64(10, "m"), pd.Timedelta("10min7ns"), np.timedelta64(3, "D")):
        assert nanoseconds(length) == nanoseconds(text(length)) == pd.Timedelta(length).as_unit("ns").value


WITHOUT_UNIT = np.array(5).view("m8")[()]  # NumPy 2.5 warns of np.timedelta64(5)
NO_LENGTHS = [
    *("", "10", "min", "-1h", "0s", "1M", "10 parsecs", "NaT", "PT", "1:2", "1h 2", "300 years", "0.1ns", "200000d"),
    *(np.timedelta64("NaT", "s"), np.timedelta64(1, "Y"), WITHOUT_UNIT, dt.timedelta(0), dt.timedelta(days=-1)),
]


@pytest.mark.parametrize("length", NO_LENGTHS, ids=str)
def test_what_is_no_length(length):
    with pytest.raises(ValueError, match=r"^BatchNormTransformer: halflife: expected a length of time above 0"):
        BatchNormTransformer(halflife=length).fit(table(3), times=seconds([1, 2, 3]))


def kinds_of_times():
    """The same moments in every form, by name."""
    base = np.array([0, 1, 3, 7, 20, 20.5])
    times = seconds(base)
    found = {
        "stamps": times,
        "coarse stamps": times.astype("M8[us]"),
        "big-endian": times.astype(">M8[ms]"),
        "strided": np.repeat(times, 2)[::2],
        "datetimes": times.astype("M8[us]").tolist(),
        "objects of NumPy": np.array([*times[:3], *times[3:].astype("M8[ms]")], object),
        "seconds": base + 1e9,
        "float32 seconds": base.astype("float32"),
        "list of seconds": base.tolist(),
        "datetimes with a zone": [t.replace(tzinfo=dt.UTC) for t in times.astype("M8[us]").tolist()],
    }
    try:
        import pandas as pd

        series = pd.Series(times)
        found |= {
            "pandas": series,
            "pandas in ms": series.dt.as_unit("ms"),
            "index": pd.DatetimeIndex(times),
            "pandas zone": series.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"),
            "pandas objects": list(series),
        }
    except ImportError:
        pass
    try:
        import pyarrow as pa

        found |= {
            "arrow": pa.array(times),
            "arrow slices": pa.chunked_array([pa.array(times)[:2], pa.array(times)[2:]]),
            "arrow zone": pa.array(times.astype("M8[ms]").astype(np.int64)).cast(pa.timestamp("ms", "Asia/Tokyo")),
            "arrow numbers": pa.array(base),
        }
    except ImportError:
        pass
    try:
        import polars as pl

        found |= {
            "polars": pl.Series(times),
            "polars zone": pl.Series(times).dt.replace_time_zone("UTC"),
            "polars numbers": pl.Series(base),
        }
    except ImportError:
        pass
    return found


def kinds_of_days():
    days = np.array(["2024-01-01", "2024-01-03"], "M8[D]")
    yield days
    yield days.tolist()  # of datetime.date
    pa = pytest.importorskip("pyarrow", reason="it has dates too")
    yield pa.array(days)
    pl = pytest.importorskip("polars", reason="it has dates too")
    yield pl.Series(days)
    yield np.array([days.tolist()[0], dt.datetime(2024, 1, 3)])
    pd = pytest.importorskip("pandas", reason="its columns may be of Arrow's types")
    yield pd.Series(days.tolist())
    for kind in (pa.date32(), pa.date64()):
        yield pd.Series(pd.array(days.tolist(), dtype=pd.ArrowDtype(kind)))


def test_times_of_every_library():
    x = table(6)
    want = BatchNormTransformer(halflife="5s").fit(x, times=seconds([0, 1, 3, 7, 20, 20.5]))
    for name, times in kinds_of_times().items():
        t = BatchNormTransformer(halflife="5s").fit(x, times=times)
        np.testing.assert_array_equal(t.mean_, want.mean_, err_msg=name)
        np.testing.assert_array_equal(t.var_, want.var_, err_msg=name)
        newest = t.newest_time_
        numbers = isinstance(newest, float)
        assert numbers == ("seconds" in name or "numbers" in name), name
        assert newest in (20.5, 1e9 + 20.5) if numbers else newest == seconds(20.5)[0]
        if not numbers:
            zone = "with a zone" if "zone" in name else "without a zone"
            with pytest.raises(ValueError, match=f"expected time stamps {zone}, as this stream began, got numbers"):
                t.partial_fit(x, times=np.arange(6.0))
    for days in kinds_of_days():
        by_days = BatchNormTransformer(halflife="1d").fit(x[:2], times=days)
        np.testing.assert_allclose(by_days.mean_, (x[0] / 4 + x[1]) / 1.25, rtol=1e-15)
    months = BatchNormTransformer(halflife="31d").fit(x[:2], times=np.array(["2024-01", "2024-02"], "M8[M]"))
    np.testing.assert_allclose(months.mean_, (x[0] / 2 + x[1]) / 1.5, rtol=1e-15)


def test_objects_of_one_type_and_of_several():
    """The first are read at once, the others one by one. Half past two comes twice when summer time ends."""
    pd = pytest.importorskip("pandas", reason="its Timestamp, which is a datetime too")
    zone = ZoneInfo("Europe/Vienna")
    twice = [dt.datetime(2023, 10, 29, 2, 30, 0, 7, zone, fold=fold) for fold in (0, 1)]
    utc = [dt.datetime(2023, 10, 29, hour, 30, 0, 7, dt.UTC) for hour in (0, 1)]
    before = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(1677, 9, 22)]
    days = [dt.date(1969, 12, 31), dt.date(2262, 4, 11)]
    for given in (twice, utc, before, days, [pd.Timestamp(v) for v in twice], [pd.Timestamp(v) for v in before]):
        want = [pd.Timestamp(v).as_unit("ns").value for v in given]
        mixed = [*given, pd.Timestamp(given[0]) if type(given[0]) is not pd.Timestamp else given[0].to_pydatetime()]
        assert read("t", given, 2).ns.tolist() == read("t", mixed, 3).ns[:2].tolist() == want
        assert read("t", given, 2).kind == read("t", mixed, 3).kind


def test_years_that_nanoseconds_do_not_reach():
    """In a list too, whose stamps pandas has in microseconds."""
    pd = pytest.importorskip("pandas", reason="its Timestamp")
    x, near = table(3), [pd.Timestamp("2024-03-01"), pd.Timestamp("2262-04-11 23:47:16.854775807")]
    BatchNormTransformer(halflife="1d").fit(x[:2], times=near)
    for far in (pd.Timestamp("3000-01-01"), pd.Timestamp("1600-01-01", tz="UTC"), dt.datetime(2262, 4, 11, 23, 47, 17)):
        for stamps in ([far] * 3, [*[v.replace(tzinfo=far.tzinfo) for v in near], far]):
            with pytest.raises(ValueError, match="that 64 bits of nanoseconds hold"):
                BatchNormTransformer(halflife="1d").fit(x, times=stamps)


def test_no_nanosecond_is_lost_beside_a_datetime():
    pd = pytest.importorskip("pandas", reason="its Timestamp")
    mixed = [dt.datetime(2024, 3, 1), pd.Timestamp("2024-03-01 00:00:00.000000007")]
    t = BatchNormTransformer(halflife="7ns").fit(np.array([[1.0], [4.0]]), times=mixed)
    np.testing.assert_allclose(t.mean_, [3.0], rtol=1e-15)


def frames():
    x, times = table(30), seconds(np.arange(30) % 7)
    pd = pytest.importorskip("pandas", reason="columns have names in data frames")
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame.insert(1, "ts", times)
    made = {"pandas": frame}
    try:
        import pyarrow as pa

        made |= {"arrow": pa.table({name: frame[name].to_numpy() for name in frame})}
        made["batch"] = made["arrow"].to_batches()[0]
    except ImportError:
        pass
    try:
        import polars as pl

        made["polars"] = pl.DataFrame({name: frame[name].to_numpy() for name in frame})
    except ImportError:
        pass
    return x, times, made


def test_a_column_of_times_is_no_feature():
    x, times, made = frames()
    want = BatchNormTransformer(halflife="5s").fit(x, times=times)
    for name, frame in made.items():
        t = BatchNormTransformer(halflife="5s").fit(frame, times="ts")
        np.testing.assert_array_equal(t.mean_, want.mean_, err_msg=name)
        assert t.feature_names_in_.tolist() == ["a", "b", "c"]
        assert t.get_feature_names_out().tolist() == ["a", "b", "c"]
        y = t.transform(frame)
        np.testing.assert_allclose(y, want.transform(x), rtol=1e-14)
        back = t.inverse_transform(made["pandas"].drop(columns="ts").assign(**dict(zip("abc", y.T, strict=True))))
        np.testing.assert_allclose(back, x, rtol=1e-13)
        t.partial_fit(frame, times="ts")
        assert t.n_samples_seen_ == 60
        assert pickle.loads(pickle.dumps(t)).transform(frame).shape == (30, 3)
    t = BatchNormTransformer(halflife="5s").set_output(transform="pandas")
    out = t.fit_transform(made["pandas"], times="ts")
    assert list(out.columns) == ["a", "b", "c"]
    np.testing.assert_allclose(out, want.transform(x), rtol=1e-14)


class WithoutOffset(dt.tzinfo):
    def utcoffset(self, _):
        return None


def test_bad_calls_change_nothing():
    x, times = table(10), seconds(np.arange(10.0))
    _, _, made = frames()
    bad = x.copy()
    bad[3, 1] = np.inf
    nat = times.copy()
    nat[4] = "NaT"
    t = BatchNormTransformer(halflife="5s").fit(x, times=times)
    rows, pooled = BatchNormTransformer(halflife=5.0).fit(x), BatchNormTransformer(momentum=None).fit(x)
    secs = BatchNormTransformer(halflife="5s").fit(x, times=np.arange(10.0))
    zoned = [v.replace(tzinfo=dt.UTC) for v in times.astype("M8[us]").tolist()]
    mixed = [zoned[0], *times[1:].astype("M8[us]").tolist()]
    lost = [[v.replace(tzinfo=zone()) for v in zoned] for zone in (WithoutOffset, dt.tzinfo)]
    lost.append([zoned[0].replace(fold=1), *lost[0][1:]])
    calls = [
        (t, {"X": x}, "times: expected the time of each row"),
        (t, {"X": x, "times": nat}, "NaT in row 4"),
        (t, {"X": x, "times": times[1:]}, "one for each row"),
        (t, {"X": x, "times": times[:, None]}, "one for each row"),
        (t, {"X": x, "times": times[0]}, "one for each row"),
        (t, {"X": x, "times": np.arange(10.0)}, "expected time stamps without a zone, as this stream began, got numb"),
        (t, {"X": x, "times": zoned}, "expected time stamps without a zone, as this stream began, got time stamps wi"),
        (t, {"X": x, "times": mixed}, "some of each"),
        (t, {"X": x, "times": [zoned[0].date(), *zoned[1:]]}, "some of each"),
        *((t, {"X": x, "times": stamps}, r"^BatchNormTransformer: times: .* an offset from UTC") for stamps in lost),
        (t, {"X": x, "times": "ts"}, "name of one column"),
        (t, {"X": made["pandas"][:10], "times": "when"}, "name of one column"),
        (t, {"X": x, "times": ["a"] * 10}, "expected time stamps"),
        (t, {"X": x, "times": [*times[:9].tolist(), None]}, "expected"),
        (t, {"X": x, "times": times - START}, "expected time stamps"),
        (t, {"X": x, "times": times.astype("M8[s]") + np.timedelta64(400 * 365, "D")}, "64 bits"),
        (t, {"X": bad, "times": times}, "infinity"),
        (t, {"X": x[:, :2], "times": times}, "features"),
        (t, {"X": x, "times": times, "sample_weight": -np.ones(10)}, "[Nn]egative"),
        (secs, {"X": x, "times": times}, "expected numbers of seconds, as this stream began"),
        (secs, {"X": x, "times": np.r_[np.arange(9.0), np.nan]}, "row 9"),
        (secs, {"X": x, "times": np.full(10, 1e10)}, "292 years"),
        (secs, {"X": x, "times": np.full(10, 10**10)}, "292 years"),
        (secs, {"X": x, "times": np.ones(10, bool)}, "expected time stamps"),
        (rows, {"X": x, "times": times}, "times: expected None, as halflife=5.0 counts rows"),
        (pooled, {"X": x, "times": times}, "times: expected None"),
    ]
    for one, arguments, words in calls:
        kept = str(state_of(one))
        with pytest.raises((ValueError, TypeError), match=words):
            one.partial_fit(**arguments)
        if "began" not in words and words != "features":
            with pytest.raises((ValueError, TypeError)):
                one.fit(**arguments)
        assert str(state_of(one)) == kept, words
    for one, halflife in ((t, 5.0), (rows, "5s"), (t, None)):
        changed = copy.deepcopy(one).set_params(halflife=halflife)
        with pytest.raises(ValueError, match="as this stream began"):
            changed.partial_fit(x, times=times)
    for left, right in ((t, secs), (t, rows), (rows, t), (t, BatchNormTransformer(halflife="6s").fit(x, times=times))):
        kept = str(state_of(left))
        with pytest.raises(ValueError, match="merge"):
            left.merge(right)
        assert str(state_of(left)) == kept
    same = BatchNormTransformer(halflife=dt.timedelta(seconds=5)).fit(x, times=times)
    assert copy.deepcopy(t).merge(same).n_samples_seen_ == 20
    with pytest.raises(ValueError, match="momentum: expected its default"):
        BatchNormTransformer(halflife="5s", momentum=0.3).fit(x, times=times)
