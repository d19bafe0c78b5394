"""`bnorm fit --halflife 10min --time-column ts`: what the transformer computes, from any file."""

import json
from itertools import product

import numpy as np
import pytest

import bnorm
from bnorm import BatchNormTransformer
from bnorm.app import cli
from compare import assert_close

START = np.datetime64("2024-03-01T12:00", "ns")
rng = np.random.default_rng(0)
N = 300
X = rng.normal(5.0, 2.0, (N, 2))
SECONDS = rng.permutation(np.rint(np.cumsum(rng.exponential(900_000.0, N))))  # over years, and late rows
TIMES = START + SECONDS.astype(np.int64) * np.timedelta64(10**9, "ns")


def written(path, form):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    stamps = {
        "stamps": pa.array(TIMES),
        "zone": pa.array(TIMES.astype("M8[us]").astype(np.int64)).cast(pa.timestamp("us", "UTC")),
        "text": pa.array([str(t) for t in TIMES]),
        "seconds": pa.array(SECONDS),
    }["text" if form == "view" else form]
    if form == "view":  # text as polars writes it
        stamps = stamps.cast(pa.string_view())
    table = pa.table({"a": X[:, 0], "ts": stamps, "b": X[:, 1]})
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".arrow":
        pyarrow.feather.write_feather(table, path)
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=70)
    return path


def run(capsys, *args):
    code = cli.main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("form", "suffix"),
    [*product(["stamps", "zone", "text", "seconds"], [".csv", ".parquet"]), ("view", ".arrow")],
)
def test_as_the_transformer(tmp_path, capsys, suffix, form):
    pytest.importorskip("pyarrow", reason="the command reads files with it")
    data, state = written(tmp_path / f"log{suffix}", form), tmp_path / "s.npz"
    code, _, err = run(
        capsys, "fit", data, "-o", state, "--halflife", "30d", "--time-column", "ts", "--batch-rows", "128"
    )
    assert code == 0, err
    t = BatchNormTransformer(halflife="30d").fit(X, times=SECONDS if form == "seconds" else TIMES)
    got = bnorm.load(state)
    assert got.feature_names_in_.tolist() == ["a", "b"]
    assert got.halflife == "30d"
    assert_close(got.mean_, t.mean_, 1e-12 * t.scale_)
    assert_close(got.var_, t.var_, 1e-11 * t.var_)
    assert got.newest_time_ == t.newest_time_
    assert "times" in err
    code, out, _ = run(capsys, "show", state)
    assert "with a half-life of 30d" in out
    code, out, _ = run(capsys, "show", state, "--json")
    assert json.loads(out)["halflife"] == "30d"


@pytest.mark.parametrize("ends", [[3, 10**18 + 1], [-(2**63) + 1, 2**63 - 1]], ids=["decades", "all"])
def test_the_newest_time_to_the_nanosecond(tmp_path, capsys, ends):
    """Decades after the first batch, where float64 does not tell nanoseconds."""
    pytest.importorskip("pyarrow", reason="the command reads files with it")
    import pyarrow as pa
    import pyarrow.parquet

    data, state = tmp_path / "x.parquet", tmp_path / "s.npz"
    pyarrow.parquet.write_table(pa.table({"ts": pa.array(ends, pa.timestamp("ns")), "a": [1.0, 3.0]}), data)
    options = ("--halflife", "9000d", "--time-column", "ts", "--batch-rows", "1", "--history", "9")
    code, _, err = run(capsys, "fit", data, "-o", state, *options)
    assert code == 0, err
    t, expected = bnorm.load(state), BatchNormTransformer(halflife="9000d")
    for i in range(2):
        expected.partial_fit([[1.0 + 2 * i]], times=np.array(ends[i : i + 1], "M8[ns]"))
    assert t.newest_time_ == expected.newest_time_ == np.datetime64(ends[1], "ns")
    assert t.history_.times.tolist() == ends
    np.testing.assert_array_equal(t.mean_, expected.mean_)


def test_bad_commands(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="the command reads files with it")
    data, state = written(tmp_path / "log.csv", "text"), tmp_path / "s.npz"
    for args, words in [
        (["--halflife", "10min"], "--time-column: expected a column, as --halflife 10min is a time"),
        (["--halflife", "10", "--time-column", "ts"], "--time-column: expected none unless --halflife is a time"),
        (["--time-column", "ts"], "--time-column: expected none"),
        (["--halflife", "10min", "--time-column", "when"], "expected a column 'when'"),
        (["--halflife", "10min", "--time-column", "a", "--columns", "a,b"], "either times or a feature"),
        (["--halflife", "10min", "--time-column", "ts", "--by", "ts"], "either times or a key"),
    ]:
        code, _, err = run(capsys, "fit", data, "-o", state, *args)
        assert code == (1 if "when" in args else 2), args
        assert words in err, args
        assert not state.exists()
    other = tmp_path / "seconds.csv"
    other.write_text("a,ts,b\n1,7,1\n")
    for more in ([], ["--by", "a"]):
        code, _, err = run(capsys, "fit", data, other, "-o", state, "--halflife", "1h", "--time-column", "ts", *more)
        assert code
        assert "seconds.csv: " in err
        assert "expected time stamps without a zone, as this stream began, got numbers of seconds" in err


@pytest.mark.parametrize(("more", "step"), [(["--thousands", "."], 1000), ([], None)])
def test_seconds_in_another_dialect(tmp_path, capsys, more, step):
    """1.500 is one and a half thousand if the options say so, and no number if they say only that 1,5 is one."""
    pytest.importorskip("pyarrow", reason="the command reads files with it")
    (tmp_path / "x.csv").write_text("a;ts\n1;500\n2;1.500\n")
    asked = ["--delimiter", ";", "--decimal", ",", *more, "--halflife", "1000s", "--time-column", "ts"]
    code, _, err = run(capsys, "fit", tmp_path / "x.csv", "-o", tmp_path / "s.npz", *asked)
    if step is None:
        assert (code, "row 2 below the header: expected a number of seconds, as above, got '1.500'" in err) == (1, True)
        return
    assert code == 0, err
    t = BatchNormTransformer(halflife="1000s").fit([[1.0], [2.0]], times=[0.0, step])
    np.testing.assert_allclose(bnorm.load(tmp_path / "s.npz").mean_, t.mean_, rtol=1e-12)


@pytest.mark.parametrize(
    ("times", "row", "expected"),
    [
        (["2024-01-01", " 2024-01-02 ", "soon", "2024-01-04"], 3, "a time stamp without a zone, from 1677 to 2262, as"),
        (["2024-01-01", "2024-01-02", "1600-01-01"], 3, "a time stamp without a zone, from 1677 to 2262, as"),
        (["2024-01-01T00:00:00Z", "2024-01-01"], 2, "a time stamp with a zone, from 1677 to 2262, as"),
        (["1", "2.5", "", "3"], 3, "a number of seconds, as"),
        (["soon", "2024-01-02"], 1, "a time stamp as in ISO 8601, from 1677 to 2262, or a number of seconds"),
    ],
)
def test_text_that_is_no_time(tmp_path, capsys, times, row, expected):
    pytest.importorskip("pyarrow", reason="the command reads files with it")
    broken = tmp_path / "broken.csv"
    broken.write_text("a,ts\n" + "".join(f"1,{time}\n" for time in times))
    code, _, err = run(capsys, "fit", broken, "-o", tmp_path / "s.npz", "--halflife", "1h", "--time-column", "ts")
    assert code
    assert f"broken.csv: column 'ts', row {row} below the header: expected {expected}" in err
    assert f"got {times[row - 1]!r}" in err


@pytest.mark.parametrize("by", [[], ["--by", "a"]], ids=["rows", "groups"])
@pytest.mark.parametrize(
    ("times", "got"), [(TIMES, "none"), (SECONDS, "none"), (SECONDS, "nan"), (TIMES.astype(str), "none")]
)
def test_the_row_without_a_time(tmp_path, capsys, times, got, by):
    """It is counted in its file, wherever the batch begins."""
    pa = pytest.importorskip("pyarrow", reason="the command reads files with it")
    from pyarrow import feather

    given = times.tolist() if times.dtype.kind == "U" else list(times)
    given[200] = None if got == "none" else np.nan
    data = tmp_path / "log.arrow"
    feather.write_feather(pa.table({"a": [1.0] * N, "ts": pa.array(given), "b": X[:, 1]}), data, chunksize=64)
    asked = ["--halflife", "1h", "--time-column", "ts", "--batch-rows", "50", *by]
    code, _, err = run(capsys, "fit", data, "-o", tmp_path / "s.npz", *asked)
    assert (code, f"log.arrow: column 'ts', row 201: expected a time, got {got}" in err) == (1, True), err
