"""`bnorm transform`: the numbers of the transformer, everything else as it was."""

import numpy as np
import pytest

import child
from commands import names, read, table, table_with_gaps, write
from compare import assert_close, assert_same

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads and writes files by pyarrow")

ROWS = 500
X = table_with_gaps(ROWS)


def features(path):
    """As a NumPy array, missing values as NaN."""
    t = read(path)
    return np.array([t[name].to_numpy(zero_copy_only=False) for name in names(X)]).T


@pytest.mark.parametrize("out", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather", "arrow"])
def test_formats(command, tmp_path, state, suffix, out):
    """The same bits as the transformer's, out of every format and into every format."""
    import bnorm

    data = write(tmp_path / f"x.{suffix}", X)
    done = command("transform", data, "--state", state, "-o", tmp_path / f"y.{out}")
    assert done.out.startswith(f"{tmp_path / 'y'}.{out}: 500 rows, 3 columns normalized, in ")
    t = bnorm.load(state)
    del t.feature_names_in_
    assert_same(features(tmp_path / f"y.{out}"), t.transform(X))
    assert read(tmp_path / f"y.{out}").column_names == names(X)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_there_and_back(command, tmp_path, state, suffix):
    data = write(tmp_path / f"x.{suffix}", X)
    command("transform", data, "--state", state, "-o", tmp_path / "y.parquet")
    command("transform", tmp_path / "y.parquet", "--state", state, "-o", tmp_path / "z.csv", "--inverse")
    std = np.nanstd(X, axis=0)
    assert_close(features(tmp_path / "z.csv"), X, 8 * 2.3e-16 * (np.abs(np.nan_to_num(X)) + 8 * std))


def test_everything_else_stays(command, tmp_path, state):
    """Order of rows and columns, text with all that is special in CSV, dates, whole numbers, missing ones."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = ["word", "with, comma", 'with "quotes"', "two\nlines", "", None, "héllo"]
    t = pa.table(
        {
            "id": pa.array([2**60 + 1, 2, None, 4, 5, 6, 7]),
            "f2": X[:7, 2],
            "text": rows,
            "f0": X[:7, 0],
            "when": pa.array([0, 1, 2, 3, 4, 5, None], pa.timestamp("ms")),
            "f1": pa.array(X[:7, 1], from_pandas=True),
            "list": [[1], [], None, [2], [], [], []],
        }
    )
    parquet.write_table(t, tmp_path / "x.parquet")
    command("transform", tmp_path / "x.parquet", "--state", state, "-o", tmp_path / "y.parquet")
    y = read(tmp_path / "y.parquet")
    assert y.column_names == t.column_names
    for name in ("id", "text", "when", "list"):
        assert y[name].equals(t[name]), name
    assert y["f1"].is_null().to_pylist() == t["f1"].is_null().to_pylist()
    said = command.fails("transform", tmp_path / "x.parquet", "--state", state, "-o", tmp_path / "y.csv")
    assert "column 'list': expected what a CSV file can hold, got list" in said

    parquet.write_table(t.drop_columns("list"), tmp_path / "x.parquet")
    command("transform", tmp_path / "x.parquet", "--state", state, "-o", tmp_path / "y.csv")
    import csv

    with (tmp_path / "y.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["text"] for line in lines] == [text or "" for text in rows]
    assert [line["id"] for line in lines] == [str(2**60 + 1), "2", "", "4", "5", "6", "7"]


@pytest.mark.parametrize("asked", [None, "float32", "float64"])
@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
def test_types(command, tmp_path, state, given, asked):
    """As the column is, or as asked; half precision becomes single."""
    small = np.linspace(-2, 2, 3 * 50).reshape(50, 3)
    command("fit", write(tmp_path / "l.parquet", small), "-o", tmp_path / "t.npz")
    data = write(tmp_path / "x.parquet", small.astype(given))
    command("transform", data, "--state", tmp_path / "t.npz", "-o", tmp_path / "y.parquet",
            *(["--dtype", asked] if asked else []))  # fmt: skip
    want = asked or {"float16": "float32"}.get(given, given)
    y = read(tmp_path / "y.parquet")
    assert {str(kind) for kind in y.schema.types} == {{"float32": "float", "float64": "double"}[want]}
    x = small.astype(given).astype(np.float64)
    exact = (x - small.mean(0)) / small.std(0)
    assert_close(features(tmp_path / "y.parquet"), exact, 2e-6 if "float32" in (want, given) else 1e-14)


def test_many_files_become_one(command, tmp_path, state):
    data = [write(tmp_path / f"{i}.csv", X[i * 100 : i * 100 + 100]) for i in range(5)]
    command("transform", *data, "--state", state, "-o", tmp_path / "y.parquet")
    command("transform", write(tmp_path / "x.parquet", X), "--state", state, "-o", tmp_path / "z.parquet")
    assert_same(features(tmp_path / "y.parquet"), features(tmp_path / "z.parquet"))


def test_it_tells_what_becomes_of_the_columns(command, tmp_path, state, parts):
    import pyarrow as pa

    more = {"id": np.arange(9), "city": ["a"] * 9, "day": pa.array([0] * 9, pa.date32())}
    data = write(tmp_path / "x.parquet", X[:9], **more)
    into = ("--state", state, "-o", tmp_path / "y.csv", "--force")
    assert command("transform", data, *into).told.splitlines() == [
        f"bnorm: {data}: normalizes f0, f1, f2",
        f"bnorm: {data}: keeps as they are id (no feature of the state); city (text); day (dates)",
    ]
    done = command("transform", data, *into, "--inverse", "--columns", "f1", "--drop", "city,f2")
    assert "9 rows, 1 column restored, in " in done.out
    assert done.told.splitlines() == [
        f"bnorm: {data}: restores f1",
        f"bnorm: {data}: keeps as they are f0 (not in --columns); id (no feature of the state); day (dates)",
        f"bnorm: {data}: drops city, f2",
    ]
    assert not command("transform", data, *into, "--quiet").told
    write(parts / "z.csv", X[:5], note=["b"] * 5)
    told = command("transform", parts, "--state", state, "-o", f"{tmp_path}/out/").told
    assert told.splitlines() == [  # of files with the same columns only the first
        f"bnorm: {parts / 'a.csv'}: normalizes f0, f1, f2",
        f"bnorm: {parts / 'z.csv'}: normalizes f0, f1, f2",
        f"bnorm: {parts / 'z.csv'}: keeps as they are note (text)",
    ]


def test_columns_are_checked_before_anything_is_written(command, tmp_path, state, parts):
    """Those of all files, when each gets an output of its own."""
    (parts / "z.csv").write_text("f0,f1\n1,2\n")
    said = command.fails("transform", parts, "--state", state, "-o", f"{tmp_path}/out/")
    assert "z.csv: expected a column 'f2', got 'f0', 'f1'" in said
    assert not (tmp_path / "out").exists()


def test_pipes(tmp_path, state):
    """CSV from standard input, CSV to standard output, and what is said to standard error."""
    from commands import run_apart

    text = write(tmp_path / "x.csv", X).read_bytes()
    with run_apart("transform", "-", "--state", state, "-o", "-", stdin=-1, stdout=-1, stderr=-1) as process:
        out, err = process.communicate(text, timeout=child.LIMIT)
    (tmp_path / "y.csv").write_bytes(out)
    assert process.returncode == 0
    assert err.splitlines()[1].startswith(b"-: 500 rows, 3 columns normalized")
    std = np.nanstd(X, axis=0)
    assert_close(features(tmp_path / "y.csv"), (X - np.nanmean(X, axis=0)) / std, 1e-9)


def test_a_state_without_names(command, tmp_path):
    """Columns of numbers in their order; as many as the state has."""
    import bnorm

    bnorm.BatchNormTransformer(eps=0).fit(X).save(tmp_path / "t.npz")
    data = write(tmp_path / "x.parquet", X, text=["a"] * ROWS)
    command("transform", data, "--state", tmp_path / "t.npz", "-o", tmp_path / "y.parquet")
    assert_same(features(tmp_path / "y.parquet"), bnorm.load(tmp_path / "t.npz").transform(X))
    more = write(tmp_path / "m.parquet", np.hstack([X, X[:, :1]]))
    said = command.fails("transform", more, "--state", tmp_path / "t.npz", "-o", tmp_path / "z.csv")
    assert "expected 3 columns of numbers, as the state has that many features, without names, got 4" in said


def test_gamma_and_beta_are_used(command, tmp_path):
    import bnorm

    t = bnorm.BatchNormTransformer(eps=0).fit(X)
    t.gamma_, t.beta_ = [1.0, 2.0, 0.5], [0.0, 1.0, -1.0]
    t.save(tmp_path / "t.npz")
    command("transform", write(tmp_path / "x.parquet", X), "--state", tmp_path / "t.npz", "-o", tmp_path / "y.parquet")
    assert_same(features(tmp_path / "y.parquet"), t.transform(X))


def test_what_does_not_fit(command, tmp_path, state):
    out = tmp_path / "y.csv"
    data = write(tmp_path / "x.csv", X[:, :2])
    said = command.fails("transform", data, "--state", state, "-o", out)
    assert said == f"bnorm: error: {data}: expected a column 'f2', got 'f0', 'f1'"
    x = X.copy()
    x[321, 2] = np.inf
    said = command.fails("transform", write(tmp_path / "i.parquet", x), "--state", state, "-o", out)
    assert said.endswith("i.parquet: column 'f2', row 322: expected a finite number, got inf")
    first = write(tmp_path / "1.parquet", X, more=np.arange(ROWS))
    second = write(tmp_path / "2.parquet", X, more=["a"] * ROWS)
    said = command.fails("transform", first, second, "--state", state, "-o", out)
    assert said.endswith(f"2.parquet: column 'more': expected int64, as {first} has it, got string")
    said = command.fails("transform", data, "--state", data.with_suffix(".npz"), "-o", out)
    assert said == f"bnorm: error: {tmp_path / 'x.npz'}: No such file or directory"
    assert not list(tmp_path.glob("*y*"))


def test_columns_and_drop(command, tmp_path, state):
    """Only some features, which must be there; and columns that are left out, features too."""
    t = table(20)
    data = write(tmp_path / "x.parquet", t[:, :2], word=["a"] * 20, day=[1] * 20)
    out = tmp_path / "y.parquet"
    done = command("transform", data, "--state", state, "-o", out, "--columns", "f1", "--drop", "word")
    assert "20 rows, 1 column normalized" in done.out
    y = read(out)
    assert y.column_names == ["f0", "f1", "day"]
    assert_same(y["f0"].to_numpy(), t[:, 0])
    whole = write(tmp_path / "w.parquet", t)
    command("transform", whole, "--state", state, "-o", tmp_path / "z.parquet")
    assert_same(y["f1"].to_numpy(), read(tmp_path / "z.parquet")["f1"].to_numpy())
    command("transform", whole, "--state", state, "-o", out, "--drop", "f0,f2", "--force")
    assert read(out).column_names == ["f1"]
    for more, wanted in (
        (["--columns", "f7"], "--columns: expected a feature of the state, 'f0', 'f1', 'f2', got 'f7'"),
        (["--drop", "no"], "w.parquet: expected a column 'no', got 'f0', 'f1', 'f2'"),
        (["--drop", "f0,f1,f2"], "w.parquet: expected a feature to normalize, got none but those that are dropped"),
    ):
        assert wanted in command.fails("transform", whole, "--state", state, "-o", out, "--force", *more)


def test_columns_of_a_state_without_names(command, tmp_path):
    import bnorm

    bnorm.BatchNormTransformer(eps=0).fit(X).save(tmp_path / "t.npz")
    data = write(tmp_path / "x.parquet", X, more=X[:, 0])
    arguments = ["--state", tmp_path / "t.npz", "-o", tmp_path / "y.parquet"]
    command("transform", data, *arguments, "--drop", "more", "--columns", "f2")
    found, wanted = features(tmp_path / "y.parquet"), bnorm.load(tmp_path / "t.npz").transform(X)
    assert_same(found[:, 2], wanted[:, 2])
    assert_same(found[:, :2], X[:, :2])


@pytest.mark.parametrize(
    ("value", "asked", "got"),
    [("-1e300", ["--dtype", "float32"], "-1e+300 of -1e+300"), ("1e308", ["--inverse"], "inf of 1e+308")],
)
def test_results_that_overflow(command, tmp_path, value, asked, got):
    """They would be infinite, which no command reads."""
    data, out = tmp_path / "x.csv", tmp_path / "y.parquet"
    data.write_text("a\n-99\n99\n" if "--inverse" in asked else "a\n-1\n1\n")
    command("fit", data, "-o", tmp_path / "s.npz")
    data.write_text(f"a\n5\n{value}\n")
    said = command.fails("transform", data, "--state", tmp_path / "s.npz", "-o", out, *asked)
    kind = asked[1] if len(asked) > 1 else "float64"
    where = "column 'a', row 2 below the header"
    assert said == f"bnorm: error: {data}: {where}: expected a result that {kind} can hold, got {got}"
    assert not out.exists()


# A folder as the output ------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    """A folder of files of several formats, one of them further down."""
    folder = tmp_path / "in"
    (folder / "more").mkdir(parents=True)
    for name, rows in zip(["a.csv", "b.parquet", "more/a.csv"], np.array_split(X, 3), strict=True):
        write(folder / name, rows)
    return folder


def test_one_output_for_each_input(command, tmp_path, state, parts):
    out = tmp_path / "out"
    done = command("transform", parts, "--state", state, "-o", f"{out}/")
    assert done.out.startswith(f"{out}/: 3 files, 500 rows, 3 columns normalized, in ")
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()) == [
        "a.csv",
        "b.parquet",
        "more/a.csv",
    ]
    command("transform", parts, "--state", state, "-o", tmp_path / "y.parquet")
    found = [features(out / name) for name in ("a.csv", "b.parquet", "more/a.csv")]
    assert_same(np.concatenate(found), features(tmp_path / "y.parquet"))
    said = command.fails("transform", parts, "--state", state, "-o", out)
    assert said == f"bnorm: error: {out / 'a.csv'}: already exists; --force overwrites it"
    command("transform", parts, "--state", state, "-o", out, "--force")
    twice = [parts / "a.csv", parts / "a.csv"]
    assert "one for two outputs" in command.fails("transform", *twice, "--state", state, "-o", f"{tmp_path}/o/")
    said = command.fails("transform", parts, "--state", state, "-o", f"{tmp_path}/o/", "--resume")
    assert "expected an interrupted command to continue" in said


@pytest.mark.parametrize(
    ("named", "made"),
    [
        (["in"], ["2024/a.csv"]),
        (["in/2024"], ["a.csv"]),
        (["in/2024/a.csv"], ["a.csv"]),
        (["in/*/a.csv"], ["a.csv"]),
        (["in/../in", "other.csv"], ["in/2024/a.csv", "other.csv"]),
    ],
)
def test_a_folder_keeps_its_subfolders(command, tmp_path, state, named, made):
    """Of a single subfolder too: where an output goes does not depend on what else the folder has."""
    (tmp_path / "in" / "2024").mkdir(parents=True)
    for name in ("in/2024/a.csv", "other.csv"):
        write(tmp_path / name, X[:9])
    out = tmp_path / "out"
    command("transform", *(tmp_path / name for name in named), "--state", state, "-o", f"{out}/")
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()) == made


def test_a_transform_goes_on(command, tmp_path, state, parts, monkeypatch):
    """What is done is not done again; what has changed since is."""
    from bnorm.app import transforming
    from bnorm.app.progress import Interrupted

    out, made = tmp_path / "out", []
    real = transforming.transform

    def interrupted(sources, wish, output, progress):
        if len(made) == 2:
            raise Interrupted(130)
        made.append(output)
        return real(sources, wish, output, progress)

    monkeypatch.setattr(transforming, "transform", interrupted)
    arguments = ["transform", parts, "--state", state, "-o", f"{out}/"]
    done = command.run(*arguments)
    assert done.code == 130
    assert done.err.splitlines()[1] == f"bnorm: to continue: bnorm {' '.join(map(str, arguments))} --resume"
    assert sorted(p.name for p in out.iterdir()) == [".bnorm-transform.jsonl", "a.csv", "b.parquet", "more"]
    assert "inverse: expected True" in command.fails(*arguments, "--resume", "--inverse")
    said = command.fails(*arguments)
    assert said.endswith(
        "a.csv: already exists; --force overwrites it, and --resume goes on with an interrupted command"
    )

    write(parts / "a.csv", X[:7])
    with (out / ".bnorm-transform.jsonl").open("a") as file:
        file.write('["cut off, as by a ki')
    made.clear()
    done = command(*arguments, "--resume")
    assert made == [str(out / "a.csv"), str(out / "more" / "a.csv")]
    assert len(features(out / "a.csv")) == 7
    assert sorted(p.name for p in out.iterdir()) == ["a.csv", "b.parquet", "more"]
    assert done.out.startswith(f"{out}/: 3 files (1 of them was done before), ")
    said = command.fails("transform", parts / "a.csv", "--state", state, "-o", tmp_path / "y.csv", "--resume", code=2)
    assert said.endswith("y.csv: expected a folder to continue, as a single file begins anew")


def test_a_transform_goes_on_beside_other_files(command, tmp_path, state, monkeypatch):
    """A file that it has not made is written over only if that is asked for."""
    from bnorm.app import transforming
    from bnorm.app.progress import Interrupted

    real, out = transforming.transform, tmp_path / "out"
    files = [write(tmp_path / name, X[:9]) for name in ("a.csv", "b.csv")]

    def interrupted(sources, wish, output, progress):
        real(sources, wish, output, progress)
        raise Interrupted(130)  # when the file is there, and before that is noted

    monkeypatch.setattr(transforming, "transform", interrupted)
    arguments = ["transform", *files, "--state", state, "-o", f"{out}/"]
    assert command.run(*arguments).code == 130
    monkeypatch.setattr(transforming, "transform", real)
    (out / "b.csv").write_text("of somebody else")
    said = command.fails(*arguments, "--resume")
    assert said == f"bnorm: error: {out / 'b.csv'}: already exists; --force overwrites it"
    assert (out / "b.csv").read_text() == "of somebody else"
    assert "2 files (1 of them was done before)" in command(*arguments, "--resume", "--force").out


@pytest.mark.parametrize("given", [".", "**/*.csv"])
def test_a_transform_goes_on_in_a_folder_that_it_reads(command, tmp_path, state, given):
    """What it has made is no input."""
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.csv", X[:7])
    bad = write(folder / "b.csv", X[:9])
    bad.write_text(bad.read_text() + "1\n")
    arguments = ["transform", folder / given, "--state", state, "-o", f"{folder / 'out'}/"]
    command.fails(*arguments)
    write(bad, X[:9])
    assert "2 files (1 of them was done before)" in command(*arguments, "--resume").out
    assert "2 files, " in command(*arguments, "--force").out
    assert sorted(p.name for p in (folder / "out").iterdir()) == ["a.csv", "b.csv"]
    said = command.fails("transform", folder / "out", "--state", state, "-o", f"{folder / 'out'}/", "--force")
    assert said.endswith("a.csv: is read by this command, which does not write over it")


@pytest.mark.parametrize("text", ["1\n", "[1]\n", '{"state": 1}\n5\n', '{}\n["a", 1, 2]\n', "[" * 5000 + "\n"])
def test_a_damaged_journal(command, tmp_path, state, parts, text):
    (tmp_path / ".bnorm-transform.jsonl").write_text(text)
    said = command.fails("transform", parts, "--state", state, "-o", f"{tmp_path}/", "--resume")
    assert "expected the journal of a command, got a damaged one" in said


def test_a_journal_that_begins_again(tmp_path, monkeypatch):
    """The one of the command before stays as it is until the new one is complete."""
    from bnorm.app.several import Journal

    path = tmp_path / ".bnorm-transform.jsonl"
    path.write_text(before := '{"inverse": true}\n')
    path.with_name(f".{path.name}.{'a' * 16}.tmp").touch()  # as a killed command leaves it
    monkeypatch.setattr(type(path), "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Journal(str(tmp_path), {"inverse": True}, resume=True).begin()
    assert (path.read_text(), list(tmp_path.iterdir())) == (before, [path])
