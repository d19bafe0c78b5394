"""`bnorm fit`: the statistics of files are those of the table that was cut into them, however it was cut."""

import numpy as np
import pytest

from commands import names, read, table, write
from compare import assert_close

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")

ROWS = 1000
X = table(ROWS)
FORMATS = ["csv", "parquet", "feather", "arrow"]


def shown(command, state):
    """Counts, missing values, means and standard deviations that `bnorm show` prints."""
    features = command("show", state, "--json").json["features"]
    keys = [key for key in ("count", "missing", "mean", "std", "min", "max") if key in features[0]]
    return {key: np.array([f[key] for f in features], float) for key in keys}


def check(got, x, weight=None):
    """Against NumPy, about the mean: its rounding errors are some eps of the standard deviation."""
    w = np.where(np.isnan(x), 0, 1.0 if weight is None else weight[:, None])
    filled = np.nan_to_num(x)
    count = w.sum(0)
    mean = filled[0] + (w * (filled - filled[0])).sum(0) / count
    std = np.sqrt((w * (filled - mean) ** 2).sum(0) / count)
    assert_close(got["count"], count, 1e-12 * count)
    assert_close(got["missing"], np.isnan(x).sum(0), 0)
    assert_close(got["mean"], mean, 1e-12 * std + 2e-16 * np.abs(mean))
    assert_close(got["std"], std, 1e-12 * std)
    if "min" in got:
        used = x if weight is None else x[weight > 0]
        assert_close(got["min"], np.nanmin(used, axis=0), 0)
        assert_close(got["max"], np.nanmax(used, axis=0), 0)


@pytest.mark.parametrize("suffix", FORMATS)
def test_formats(command, tmp_path, suffix):
    data, state = write(tmp_path / f"x.{suffix}", X), tmp_path / "s.npz"
    done = command("fit", data, "-o", state)
    assert done.out.startswith(f"{state}: 3 features of 1,000 rows, in ")
    assert done.err == ""
    check(shown(command, state), X)


@pytest.mark.parametrize("suffix", ["csv.gz", "tsv"])
def test_kinds_of_csv(command, tmp_path, suffix):
    import gzip

    text = write(tmp_path / "x.csv", X).read_bytes()
    packed = gzip.compress(text) if suffix == "csv.gz" else text.replace(b",", b"\t")
    (tmp_path / f"y.{suffix}").write_bytes(packed)
    command("fit", tmp_path / f"y.{suffix}", "-o", tmp_path / "s.npz")
    check(shown(command, tmp_path / "s.npz"), X)


def test_delimiter(command, tmp_path):
    text = write(tmp_path / "x.csv", X).read_bytes()
    (tmp_path / "y.csv").write_bytes(text.replace(b",", b";"))
    command("fit", tmp_path / "y.csv", "-o", tmp_path / "s.npz", "--delimiter", ";")
    check(shown(command, tmp_path / "s.npz"), X)


@pytest.mark.parametrize("way", ["names", "folder", "glob"])
def test_many_files_are_one_stream(command, tmp_path, monkeypatch, way):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "a.parquet", X[:10])
    write(tmp_path / "b.csv", X[10:700])
    write(tmp_path / "deep" / "c.parquet", X[700:])
    write(tmp_path / "_hidden.parquet", X[:5])
    monkeypatch.chdir(tmp_path)
    data = {"names": ["a.parquet", "b.csv", "deep/c.parquet"], "folder": ["."], "glob": ["[ab].*", "*/*.parquet"]}[way]
    command("fit", *data, "-o", "s.npz")
    check(shown(command, "s.npz"), X)


@pytest.mark.parametrize("cuts", [[], [1, 2, 500], [333, 666]])
@pytest.mark.parametrize("way", [["--momentum", "0.3"], ["--halflife", "150"], ["--pooled"]])
def test_a_batch_runs_on_into_the_next_file(command, tmp_path, way, cuts):
    """The same state, whatever files the stream is cut into: that of the transformer on batches of those rows."""
    from bnorm import BatchNormTransformer

    x = X.copy()
    x[::7, 1] = np.nan
    files = [write(tmp_path / f"{i}.csv", part) for i, part in enumerate(np.split(x, cuts))]
    command("fit", *files, "-o", tmp_path / "s.npz", *way, "--batch-rows", "128")
    halflife = 150.0 if way[0] == "--halflife" else None
    momentum = {"--momentum": 0.3, "--halflife": 0.1, "--pooled": None}[way[0]]
    t = BatchNormTransformer(momentum=momentum, halflife=halflife, eps=0)
    for start in range(0, ROWS, 128):
        t.partial_fit(x[start : start + 128])
    got = shown(command, tmp_path / "s.npz")
    assert command("show", tmp_path / "s.npz", "--json").json["batches"] == t.n_batches_seen_ == 8
    assert_close(got["mean"], t.mean_, 1e-12 * t.scale_ + 2e-16 * np.abs(t.mean_))
    assert_close(got["std"], t.scale_, 1e-12 * t.scale_)
    assert_close(got["missing"], np.isnan(x).sum(0), 0)


def test_columns(command, tmp_path):
    data = write(tmp_path / "x.csv", X, id=np.arange(ROWS), name=["a"] * ROWS)
    for asked, want in [
        ([], ["f0", "f1", "f2", "id"]),
        (["--exclude", "id"], ["f0", "f1", "f2"]),
        (["--exclude", "id,name"], ["f0", "f1", "f2"]),
        (["--columns", "f2,f0"], ["f2", "f0"]),
    ]:
        command("fit", data, "-o", tmp_path / "s.npz", "--force", *asked)
        features = command("show", tmp_path / "s.npz", "--json").json["features"]
        assert [f["feature"] for f in features] == want


def test_weights(command, tmp_path):
    weight = np.arange(ROWS) % 5 / 2
    x = X.copy()
    x[3::10, 2] = np.nan
    data = write(tmp_path / "x.parquet", x, w=weight)
    command("fit", data, "-o", tmp_path / "s.npz", "--weight", "w")
    check(shown(command, tmp_path / "s.npz"), x, weight)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_missing_values(command, tmp_path, suffix):
    x = X.copy()
    x[::3, 0] = x[:700, 1] = np.nan
    data = write(tmp_path / f"x.{suffix}", x)
    if suffix == "csv":  # in all the ways in which a table says so
        text = data.read_text().replace("nan,", "NA,", 100).replace("nan,", ",", 100)
        data.write_text(text)
    command("fit", data, "-o", tmp_path / "s.npz")
    check(shown(command, tmp_path / "s.npz"), x)


def test_a_column_without_values(command, tmp_path):
    """It is no error: the column may have values in the next stream. It is told of, and NaN."""
    data = tmp_path / "x.csv"
    data.write_text("a,b\n1,\n3,\n")
    done = command("fit", data, "-o", tmp_path / "s.npz")
    assert done.err == "bnorm: column 'b' has no values: its statistics are NaN\n"
    assert command("fit", data, "-o", tmp_path / "s.npz", "--force", "--quiet").err == ""
    shown = command("show", tmp_path / "s.npz", "--json").json["features"]
    assert (shown[1]["mean"], shown[1]["count"], shown[1]["missing"]) == (None, 0, 2)
    command("transform", data, "--state", tmp_path / "s.npz", "-o", tmp_path / "y.csv")
    assert read(tmp_path / "y.csv")["a"].to_pylist() == [-1.0, 1.0]


def test_other_kinds_of_numbers(command, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    t = pa.table(
        {
            "small": pa.array([1, 2, None], pa.int8()),
            "half": pa.array(np.arange(1, 4, dtype=np.float16)),
            "money": pa.array([1, 2, 6], pa.int64()).cast(pa.decimal128(24, 2)),
            "flag": [True, False, True],
            "when": pa.array([1, 2, 3], pa.timestamp("s")),
        }
    )
    parquet.write_table(t, tmp_path / "x.parquet")
    command("fit", tmp_path / "x.parquet", "-o", tmp_path / "s.npz")
    features = command("show", tmp_path / "s.npz", "--json").json["features"]
    assert {f["feature"]: f["mean"] for f in features} == {"small": 1.5, "half": 2.0, "money": 3.0}
    command("fit", tmp_path / "x.parquet", "-o", tmp_path / "s.npz", "--columns", "flag", "--force")
    assert command("show", tmp_path / "s.npz", "--json").json["features"][0]["mean"] == 2 / 3


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "uint64", "int64"])
def test_integers(command, tmp_path, kind):
    import pyarrow as pa
    from pyarrow import parquet

    ends = np.iinfo(kind)
    x = np.array([ends.max, ends.min, *range(98)], kind)
    parquet.write_table(pa.table({"a": x}), tmp_path / "x.parquet")
    command("fit", tmp_path / "x.parquet", "-o", tmp_path / "s.npz")
    feature = shown(command, tmp_path / "s.npz")
    assert (feature["min"], feature["max"], feature["count"]) == (float(ends.min), float(ends.max), 100)
    assert feature["mean"] == pytest.approx(sum(map(int, x)) / 100, rel=0, abs=1e-15 * ends.max)


def test_integers_that_turn_into_fractions(means):
    """What a column holds is not known from its beginning."""
    rows = 300_000
    assert means("a\n" + "1\n" * rows + "1.5\n" * rows) == {"a": 1.25}


def test_the_batches_of_a_stream_take_no_memory_of_their_own(command, tmp_path):
    """Pieces of a batch are merged: one that is larger than all the data is as good as any."""
    data = write(tmp_path / "x.parquet", X)
    command("fit", data, "-o", tmp_path / "a.npz", "--batch-rows", "1000000000", "--momentum", "0.5")
    check(shown(command, tmp_path / "a.npz"), X)


def test_json(command, tmp_path):
    data = write(tmp_path / "x.csv", X)
    said = command("fit", data, "-o", tmp_path / "s.npz", "--json").json
    assert said == {"rows": ROWS, "columns": 3, "seconds": said["seconds"], "output": str(tmp_path / "s.npz")}
    assert command("fit", data, "-o", tmp_path / "s.npz", "--quiet", "--force").out == ""


def test_a_state_of_the_command_is_one_of_the_transformer(command, tmp_path):
    """It loads, goes on, is saved and shown."""
    import bnorm

    command("fit", write(tmp_path / "x.csv", X[:600]), "-o", tmp_path / "s.safetensors")
    t = bnorm.load(tmp_path / "s.safetensors")
    assert list(t.feature_names_in_) == names(X)
    import pandas as pd

    t.partial_fit(pd.DataFrame(X[600:], columns=names(X)))
    t.save(tmp_path / "t.safetensors")
    check(shown(command, tmp_path / "t.safetensors") | {"missing": np.zeros(3)}, X)


def test_moments_and_extremes_of_all_columns_are_one_call(monkeypatch):
    """In which a column is in the cache for both, and which is not repeated for the extremes."""
    from bnorm.app.fitting import Learner
    from bnorm.app.rows import Rows
    from bnorm.app.sources import Place
    from bnorm.app.states import Learned, piece_of
    from bnorm.kernels import cpu

    asked, found = [], cpu.column_moments
    monkeypatch.setattr(cpu, "column_moments", lambda x, w, minmax: asked.append(len(x)) or found(x, w, minmax))
    learner = Learner(Learned.new(["a", "b"], None, None), 4)
    rows = Rows([np.arange(4.0), np.arange(5.0, 9.0)], ["a", "b"], Place("x", 0, ""))
    learner.add([piece_of(learner.learned.fitted, rows, None, None)])
    assert asked == [2]
    assert learner.learned.extremes.tolist() == [[0, 5], [3, 8]]


def test_columns_of_csv_that_begin_far_down(command, tmp_path, monkeypatch):
    """Numbers are learned, and of text it says why it is none; where all further lines are blank, nothing is found."""
    monkeypatch.setattr("bnorm.app.csv_source.BEGINNING", 200)
    data, into = tmp_path / "x.csv", ("-o", tmp_path / "s.npz", "--force")
    data.write_text("a,late,share,never\n" + "1,,,\n" * 300 + "1,2,5%,\n" * 100)
    told = command("fit", data, *into).told
    assert "learns a, late, never\n" in told
    assert "leaves out share (text such as '5%')\n" in told
    data.write_text("a,never\n" + "1,\n" * 80 + "\n" * 30_000)
    assert "learns a, never\n" in command("fit", data, *into).told
