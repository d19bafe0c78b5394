"""The command `bnorm` as a person runs it: its words, its exit status, what it prints."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import bnorm
import child
from bnorm.kernels import cpu
from commands import Command, names, table, write
from compare import assert_close

pyarrow = pytest.mark.skipif(not __import__("importlib.util").util.find_spec("pyarrow"), reason="pyarrow reads files")


@pytest.fixture
def command(capsys):
    return Command(capsys)


@pytest.fixture
def apart(tmp_path):
    """Runs `python -m bnorm` with arguments, and environment variables by name."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bnorm", *arguments],
            capture_output=True,
            text=True,
            timeout=child.LIMIT,
            cwd=tmp_path,
            env=os.environ | environment,
        )

    return run


def test_info(apart):
    done = apart("info", BNORM_SIMD="baseline", OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr) == (0, "")
    facts = dict(re.findall(r"^ *([^:\n]+): (.+)$", done.stdout, re.MULTILINE))
    assert facts["bnorm"] == bnorm.__version__
    assert facts["numpy"] == metadata.version("numpy")
    assert facts["scikit-learn"] == metadata.version("scikit-learn")
    assert facts["SIMD level in use"] == "baseline"
    assert facts["SIMD levels here"].split(", ") == cpu.simd_levels()
    assert facts["threads"] == "1"
    assert facts["Built with OpenMP"].startswith(("True", "False"))


def test_show_config_prints(capsys):
    assert bnorm.show_config() is None
    assert "SIMD level in use" in capsys.readouterr().out


FIT = ["fit", "x.csv", "-o", "s.npz"]


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ([], "the following arguments are required: command"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["fit", "x.csv"], "the following arguments are required: -o/--output"),
        (["fit", "-o", "s.npz"], "the following arguments are required: DATA"),
        (["fit", "x.csv", "-o", "s.pkl"], "expected a name that ends in .safetensors or .npz, got 's.pkl'"),
        ([*FIT, "--momentum", "2"], "expected a number above 0 and at most 1, got '2'"),
        ([*FIT, "--momentum", "nan"], "expected a number above 0 and at most 1, got 'nan'"),
        ([*FIT, "--halflife", "0"], "expected a number of rows above 0, or a length of time such as 10min, got '0'"),
        ([*FIT, "--halflife", "inf"], "above 0, or a length of time such as 10min, got 'inf'"),
        ([*FIT, "--halflife", "3", "--pooled"], "not allowed with argument"),
        ([*FIT, "--columns", "a", "--exclude", "b"], "not allowed with argument"),
        ([*FIT, "--columns", ","], "expected names separated by commas, got ','"),
        ([*FIT, "--batch-rows", "0"], "expected a whole number above zero, got '0'"),
        ([*FIT, "--batch-rows", "few"], "expected a whole number above zero, got 'few'"),
        ([*FIT, "--delimiter", "ab"], "expected one character, or tab, got 'ab'"),
        (["transform", "x.csv", "-o", "y.csv"], "the following arguments are required: --state"),
        (["transform", "x.csv", "--state", "s.npz", "-o", "y.xlsx"], "expected a name that ends in .csv, "),
        (["transform", "x.csv", "--state", "s.npz", "-o", "y.csv", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["merge", "a.npz"], "the following arguments are required: -o/--output"),
        (["show", "a.txt"], "expected a name that ends in .safetensors or .npz, got 'a.txt'"),
        (["plot", "a.npz", "-o", "p.txt"], "expected a name that ends in .svg, .png or .pdf, got 'p.txt'"),
        (["demo", "--megabytes", "0"], "expected a whole number above zero, got '0'"),
        (["bench", "--seconds", "0"], "expected seconds above 0, got '0'"),
    ],
)
def test_wrong_arguments(capsys, arguments, want):
    from bnorm.app.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert said.err.startswith("usage: bnorm")
    assert want in said.err


def test_wrong_arguments_of_the_process(apart):
    done = apart("nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_version_and_entry_point(apart):
    assert apart("--version").stdout == f"bnorm {bnorm.__version__}\n"
    (script,) = metadata.entry_points(group="console_scripts", name="bnorm")
    assert script.value == "bnorm.app.cli:main"


def test_help_is_quick():
    """It takes less than twice what importing NumPy does just before it, in the best of five; and few modules."""
    code = """
import contextlib, io, sys
from time import process_time
start = process_time()
import numpy
between, before = process_time(), set(sys.modules)
from bnorm.app.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
print((process_time() - between) / (between - start), *set(sys.modules) - before)
"""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ratios = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        ratio, *modules = done.stdout.split()
        ratios.append(float(ratio))
        if ratios[-1] < 2:
            break
    assert min(ratios) < 2, ratios
    others = {name for name in modules if name.partition(".")[0] not in {"bnorm", "numpy"}}
    assert len(others) < 60, others


@pyarrow
def test_what_a_command_imports(tmp_path):
    """No scikit-learn, pandas, matplotlib or SciPy: each takes longer to import than most files to read."""
    data = write(tmp_path / "x.csv", table(100))
    code = (
        "import sys; from bnorm.app.cli import main\n"
        f"assert main(['fit', {str(data)!r}, '-o', {str(tmp_path / 's.npz')!r}]) == 0\n"
        f"assert main(['transform', {str(data)!r}, '--state', {str(tmp_path / 's.npz')!r}, "
        f"'-o', {str(tmp_path / 'y.csv')!r}]) == 0\n"
        "print(*{'sklearn', 'scipy', 'pandas', 'matplotlib', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "", done.stderr


@pyarrow
def test_show(command, tmp_path):
    x = table(1000, 2)
    x[:4, 1] = np.nan
    command("fit", write(tmp_path / "x.csv", x), "-o", tmp_path / "s.npz", "--batch-rows", "300")
    lines = command("show", tmp_path / "s.npz").out.splitlines()
    assert lines[0] == f"{tmp_path / 's.npz'}: 1,000 rows in 4 batches, all rows weighing the same"
    assert lines[2].split() == ["feature", "count", "missing", "mean", "std", "min", "max", "gamma", "beta"]
    std = np.nanstd(x, axis=0)
    assert lines[3].split()[:3] + lines[3].split()[7:] == ["f0", "1,000", "0", "1", "0"]
    assert_close(float(lines[3].split()[4]), std[0], 1e-5)
    assert lines[4].split()[:3] == ["f1", "996", "4"]
    assert len({len(line) for line in lines[2:]}) == 1  # a table
    said = command("show", tmp_path / "s.npz", "--json").json
    assert (said["rows"], said["batches"], said["momentum"], said["eps"]) == (1000, 4, None, 0.0)
    assert list(said["features"][1]) == lines[2].split()


@pyarrow
@pytest.mark.parametrize(
    ("way", "want"),
    [
        (["--halflife", "100"], "with a half-life of 100 rows"),
        (["--momentum", "0.25"], "averaged with momentum 0.25"),
        (["--weight", "f1"], "rows with sample weights"),
    ],
)
def test_show_says_how_rows_weigh(command, tmp_path, way, want):
    data = write(tmp_path / "x.csv", np.abs(table(100)))
    command("fit", data, "-o", tmp_path / "s.npz", *way)
    assert command("show", tmp_path / "s.npz").out.splitlines()[0].endswith(want)


@pyarrow
def test_states_that_are_damaged(command, tmp_path):
    """In what only the command keeps."""
    from bnorm.files import container

    command("fit", write(tmp_path / "x.csv", table(10)), "-o", tmp_path / "s.npz")
    config, entries = container.read("", tmp_path / "s.npz")
    arrays = {name: entry.array() for name, entry in entries.items()}
    for extra in ({"rows": "x"}, {"missing": [1]}, {"extremes": [[1, 2, 3]]}, {"extremes": "x"}, {"missing": {}}):
        container.write("", tmp_path / "d.npz", config | extra, arrays)
        said = command.fails("show", tmp_path / "d.npz")
        assert "d.npz: expected a state file, got a damaged one: " in said


def test_states_that_are_none(command, tmp_path):
    """One line says so, whichever command reads them."""
    bnorm.BatchNorm1d(3).save(tmp_path / "layer.npz")
    (tmp_path / "text.npz").write_text("no state")
    for call in (("show", "{}"), ("plot", "{}", "-o", tmp_path / "p.png"), ("merge", "{}", "{}", "-o", "m.npz")):
        for name, why in (
            ("layer", ", got 'BatchNorm1d'"),
            ("text", "file, got a damaged one"),
        ):
            path = tmp_path / f"{name}.npz"
            said = command.fails(*(path if word == "{}" else word for word in call))
            assert said.startswith(f"bnorm: error: {path}: expected "), said
            assert why in said


def test_one_of_a_kind(command, tmp_path):
    """Words for numbers of things, in English."""
    from bnorm.app.showing import counted

    assert [counted(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert [counted(n, "batch") for n in (1, 2)] == ["1 batch", "2 batches"]
    command("fit", write(tmp_path / "x.csv", table(10)), "-o", tmp_path / "s.npz")
    assert "s.npz: 10 rows in 1 batch, " in command("show", tmp_path / "s.npz").out


def test_show_a_state_of_the_library(command, tmp_path):
    """Without names and parameters; one with weights does not know what was missing."""
    t = bnorm.BatchNormTransformer(affine=False).fit(table(50), sample_weight=np.ones(50))
    t.save(tmp_path / "t.npz")
    features = command("show", tmp_path / "t.npz", "--json").json["features"]
    assert [f["feature"] for f in features] == ["x0", "x1", "x2"]
    assert features[0]["missing"] is None
    assert "gamma" not in features[0]
    bnorm.BatchNorm1d(3).save(tmp_path / "l.npz")
    said = command.fails("show", tmp_path / "l.npz")
    assert said.endswith("l.npz: expected the state of a BatchNormTransformer or GroupedTransformer, got 'BatchNorm1d'")


@pyarrow
def test_a_state_is_read_once(command, tmp_path, monkeypatch):
    """Whether it is of groups or not."""
    from bnorm.files import container

    data = write(tmp_path / "x.parquet", table(20), store=["a", "b"] * 10)
    plain, grouped, folder = tmp_path / "p.npz", tmp_path / "g.npz", f"{tmp_path}/y/"
    command("fit", data, "-o", plain)
    command("fit", data, "--by", "store", "-o", grouped)
    read, real = [], container._content
    monkeypatch.setattr(container, "_content", lambda path, magic: read.append(str(path)) or real(path, magic))
    for state in (plain, grouped):
        for call in (
            ("show", state),
            ("merge", state, "-o", tmp_path / "m.npz", "--force"),
            ("transform", data, "--state", state, "-o", tmp_path / "y.csv", "--force"),
            ("transform", data, "--state", state, "-o", folder, "--force"),
        ):
            read.clear()
            command(*call)
            assert read == [str(state)], call
    said = command.fails("merge", plain, plain, grouped, "-o", tmp_path / "n.npz")
    assert said.endswith(f"{grouped}: expected states that are all of groups, or none, got some of each")


@pyarrow
@pytest.mark.parametrize("way", [["--pooled"], ["--weight", "f2"]])
def test_merge(command, tmp_path, way):
    x = np.abs(table(900))
    x[::5, 0] = np.nan
    parts = [write(tmp_path / f"{i}.csv", part) for i, part in enumerate(np.split(x, [100, 500]))]
    states = [tmp_path / f"{i}.npz" for i in range(3)]
    for part, state in zip(parts, states, strict=True):
        command("fit", part, "-o", state, *way)
    done = command("merge", *states, "-o", tmp_path / "m.npz")
    assert done.out == f"{tmp_path / 'm.npz'}: 3 states merged\n"
    command("fit", *parts, "-o", tmp_path / "w.npz", *way)
    merged, whole = (command("show", tmp_path / f"{name}.npz", "--json").json for name in "mw")
    assert (merged["rows"], merged["batches"]) == (900, 3)
    for got, want in zip(merged["features"], whole["features"], strict=True):
        assert got["missing"] == want["missing"]
        assert (got["min"], got["max"]) == (want["min"], want["max"])
        for key in ("count", "mean", "std"):
            assert_close(got[key], want[key], 1e-13 * abs(want[key]))


@pyarrow
@pytest.mark.parametrize("way", [["--pooled"], ["--halflife", "40"], ["--weight", "f2"]])
def test_merge_goes_by_names(command, tmp_path, way):
    """As `fit` and `transform` do, which take files with their columns in any order."""
    x = np.abs(table(300))
    x[::7, 1] = np.nan
    first, second = np.split(x, [100])
    command("fit", write(tmp_path / "a.csv", first), "-o", tmp_path / "a.npz", *way)
    command("fit", write(tmp_path / "b.csv", second), "-o", tmp_path / "b.npz", *way)
    chosen = [n for n in ("f2", "f0", "f1") if n not in way]
    ordered = ["--columns", ",".join(chosen)]
    command("fit", tmp_path / "b.csv", "-o", tmp_path / "c.npz", *way, *ordered)
    command("merge", tmp_path / "a.npz", tmp_path / "b.npz", "-o", tmp_path / "ab.npz")
    command("merge", tmp_path / "a.npz", tmp_path / "c.npz", "-o", tmp_path / "ac.npz")
    assert (tmp_path / "ab.npz").read_bytes() == (tmp_path / "ac.npz").read_bytes()
    command("merge", tmp_path / "c.npz", tmp_path / "a.npz", "-o", tmp_path / "ca.npz")
    assert [f["feature"] for f in command("show", tmp_path / "ca.npz", "--json").json["features"]] == chosen


def unlike_any(tmp_path, **values):
    """A state file with other numbers in some of its arrays."""
    from bnorm.files import container

    config, entries = container.read("", tmp_path / "s.npz")
    arrays = {name: entry.array() for name, entry in entries.items()}
    for name, value in values.items():
        arrays[name][0] = value
    container.write("", tmp_path / "t.npz", config, arrays)
    return tmp_path / "t.npz"


@pyarrow
def test_counts_that_no_integer_holds(command, tmp_path):
    data = write(tmp_path / "x.csv", table(10))
    command("fit", data, "-o", tmp_path / "s.npz")
    state = unlike_any(tmp_path, seen=2.0**70)
    done = command("show", state)
    assert done.err == ""
    assert done.out.splitlines()[3].split()[:3] == ["f0", "1.18059e+21", "-"]
    assert command("show", state, "--json").json["features"][0]["count"] == 2.0**70
    assert command("merge", state, state, "-o", tmp_path / "m.npz").err == ""
    assert command("show", tmp_path / "m.npz", "--json").json["features"][0]["count"] == 2.0**71
    assert command("transform", data, "--state", state, "-o", tmp_path / "y.csv").err == ""


@pyarrow
def test_json_is_json(command, tmp_path):
    """It has no Infinity and no NaN."""
    import json

    command("fit", write(tmp_path / "x.csv", table(10)), "-o", tmp_path / "s.npz")
    state = unlike_any(tmp_path, running_var=np.inf)
    out = command("show", state, "--json").out

    def refuse(word):
        raise ValueError(word)

    assert json.loads(out, parse_constant=refuse)["features"][0]["std"] is None
    assert command("show", state).out.splitlines()[3].split()[4] == "inf"


@pyarrow
def test_digits_are_in_proportion_to_the_deviation(command, tmp_path):
    x = np.random.default_rng(0).normal(size=(1000, 1)) * [1.0, 1e-3, 1e3, 0.0, 1e-9] + [1e6 + 0.3, 5.0, 0.0, 1e6, 1e6]
    command("fit", write(tmp_path / "x.parquet", x), "-o", tmp_path / "s.npz")
    rows = [line.split() for line in command("show", tmp_path / "s.npz").out.splitlines()[3:]]
    for row, column in zip(rows, x.T, strict=True):
        mean, _, least, most = map(float, row[3:7])
        std = column.std()
        for shown, exact in ((mean, column.mean()), (least, column.min()), (most, column.max())):
            assert abs(shown - exact) <= max(1e-3 * std, 4e-16 * abs(exact), 1e-5 * abs(exact) if std == 0 else 0)
            assert len(f"{shown:g}") < 14
    assert rows[3][3] == "1e+06"


@pyarrow
def test_merge_what_does_not_fit(command, tmp_path):
    data = write(tmp_path / "x.csv", table(100))
    ways = {"a": [], "b": ["--halflife", "9"], "c": ["--momentum", "0.1"], "d": ["--columns", "f0"]}
    for name, way in ways.items():
        command("fit", data, "-o", tmp_path / f"{name}.npz", *way)
    said = {name: command.fails("merge", tmp_path / "a.npz", tmp_path / f"{name}.npz", "-o", tmp_path / "m.npz")
            for name in "bcd"}  # fmt: skip
    assert f"b.npz: halflife: expected None, as in {tmp_path / 'a.npz'}, got 9.0" in said["b"]
    assert "c.npz: expected momentum=None or a halflife, got momentum=None and 0.1" in said["c"]
    assert f"d.npz: expected the features of {tmp_path / 'a.npz'}, f0, f1, f2, got f0" in said["d"]
    average = command.fails("merge", tmp_path / "c.npz", tmp_path / "c.npz", "-o", tmp_path / "m.npz")
    assert "a moving average depends on the order of its batches" in average
    assert not (tmp_path / "m.npz").exists()


def test_merge_windows(command, tmp_path):
    """By the rules of the library: those of time, and none of rows."""
    x, times = table(40), np.arange(40.0)
    for name, window in (("rows", 10), ("time", "10s")):
        for part in (0, 1):
            t = bnorm.BatchNormTransformer(window=window)
            given = {} if window == 10 else {"times": times[part::2]}
            t.fit(x[part::2], **given).save(tmp_path / f"{name}{part}.npz")
    said = command.fails("merge", tmp_path / "rows0.npz", tmp_path / "rows1.npz", "-o", tmp_path / "m.npz")
    assert "rows1.npz: expected no window of rows, got window=10: " in said
    assert "rows1.npz: window: expected 10s, as in " in command.fails(
        "merge", tmp_path / "time0.npz", tmp_path / "rows1.npz", "-o", tmp_path / "m.npz"
    )
    command("merge", tmp_path / "time0.npz", tmp_path / "time1.npz", "-o", tmp_path / "m.npz")
    whole = bnorm.BatchNormTransformer(window="10s").fit(x, times=times)
    np.testing.assert_allclose(bnorm.load(tmp_path / "m.npz").mean_, whole.mean_, rtol=1e-12)
    assert ", of which those of the last 10s count" in command("show", tmp_path / "m.npz").out
    assert ", of which those of the last 10 rows count" in command("show", tmp_path / "rows0.npz").out


@pyarrow
@pytest.mark.parametrize("way", [["--pooled"], ["--halflife", "90"]])
def test_history(command, tmp_path, way):
    """Moments of the stream, no more than asked for, the same as the transformer's; they survive a resumed fit."""
    x = table(1000)
    data = write(tmp_path / "x.csv", x)
    command("fit", data, "-o", tmp_path / "s.npz", *way, "--history", "5", "--batch-rows", "30")
    got = bnorm.load(tmp_path / "s.npz")
    halflife = {"--pooled": None}.get(way[0], 90.0)
    t = bnorm.BatchNormTransformer(momentum=0.1 if halflife else None, halflife=halflife, history=5)
    for start in range(0, 1000, 30):
        t.partial_fit(x[start : start + 30])
    assert got.history == 5
    assert got.history_.rows.tolist() == t.history_.rows.tolist()
    assert_close(got.history_.mean, t.history_.mean, 1e-12 * t.scale_ + 1e-15 * np.abs(t.mean_))
    assert_close(got.history_.var, t.history_.var, 1e-11 * t.var_)
    for each in (got, t):
        each.__dict__.pop("feature_names_in_", None)
        each.partial_fit(x)
    assert got.history_.rows.tolist() == t.history_.rows.tolist()


@pyarrow
def test_plot(command, tmp_path):
    """States over their streams, tables before and after; what is drawn is the business of `bnorm.plot`."""
    pytest.importorskip("matplotlib", reason="it draws")
    data = write(tmp_path / "x.csv", table(500), text=["a"] * 500)
    for name in "ab":
        command("fit", data, "-o", tmp_path / f"{name}.npz", "--history", "10", "--batch-rows", "50")
    for arguments, name, start in [
        ([tmp_path / "a.npz"], "one.svg", b"<?xml"),
        ([tmp_path / "a.npz", tmp_path / "b.npz"], "two.png", b"\x89PNG"),
        ([data], "table.png", b"\x89PNG"),
        ([data, "--columns", "f1"], "column.pdf", b"%PDF"),
    ]:
        done = command("plot", *arguments, "-o", tmp_path / name)
        assert done.out == f"{tmp_path / name}\n"
        assert (tmp_path / name).read_bytes().startswith(start)
    for name, chosen in (("every.svg", ()), ("chosen.svg", ("--columns", "f1"))):
        command("plot", tmp_path / "a.npz", "-o", tmp_path / name, *chosen)
        drawn = (tmp_path / name).read_text(encoding="utf-8")
        assert [f"<!-- f{i} -->" in drawn for i in range(3)] == [not chosen, True, not chosen]
    said = command.fails("plot", tmp_path / "a.npz", "-o", tmp_path / "no.png", "--columns", "f9")
    assert "a.npz: expected indices or names of 3 features, got 'f9'" in said
    said = command.fails("plot", tmp_path / "a.npz", data, "-o", tmp_path / "no.png")
    assert said.endswith(f"{data}: expected only states or only tables, got a table and the state {tmp_path / 'a.npz'}")


@pyarrow
def test_progress_is_for_terminals(tmp_path):
    """On a terminal a bar, which goes when it is done; elsewhere nothing."""
    pytest.importorskip("tqdm", reason="tqdm draws the bar")
    pty = pytest.importorskip("pty", reason="a terminal that is none needs Unix")
    import termios

    data = write(tmp_path / "x.parquet", table(600_000, 8))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    arguments = [sys.executable, "-m", "bnorm", "fit", str(data), "-o", str(tmp_path / "s.npz")]
    process = subprocess.Popen(arguments, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            drawn += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=child.LIMIT) == 0
    assert re.search(rb"fit: +\d+% .*rows/s, \d+:\d+ left", drawn)
    assert b"fit: 100% " in drawn
    assert "fit:" not in drawn.decode().rsplit("\r", 1)[-1]


@pyarrow
def test_a_reader_that_goes_away(tmp_path):
    data = write(tmp_path / "x.csv", table(100_000))
    bnorm.BatchNormTransformer().fit(table(10)).save(tmp_path / "s.npz")
    command = f"{sys.executable} -m bnorm transform {data} --state {tmp_path / 's.npz'} -o - | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=child.LIMIT)
    assert done.stdout == ",".join(f'"{name}"' for name in names(table(1))) + "\n"  # quotes as in the input
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_behind_standard_output(tmp_path):
    bnorm.BatchNormTransformer().fit(table(10)).save(tmp_path / "s.npz")
    command = f"{sys.executable} -m bnorm show {tmp_path / 's.npz'} >/dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=child.LIMIT)
    assert done.returncode == 1
    assert done.stderr == "bnorm: error: standard input or output: No space left on device\n"


def test_letters_that_the_output_cannot_show(apart, tmp_path):
    pd = pytest.importorskip("pandas")
    bnorm.BatchNormTransformer().fit(pd.DataFrame({"größe": [1.0, 3.0]})).save(tmp_path / "s.npz")
    done = apart("show", "s.npz", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xf6\\xdfe" in done.stdout


@pyarrow
def test_closed_streams(tmp_path):
    """Python has no object for a stream that is closed; what is printed there goes nowhere."""
    write(tmp_path / "x.csv", table(100))
    fit, transform = "fit x.csv -o s.npz --force", "transform x.csv --state s.npz -o -"

    def run(arguments: str) -> subprocess.CompletedProcess[str]:
        line = f"{sys.executable} -m bnorm {arguments}"
        return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=child.LIMIT, cwd=tmp_path)

    for streams in (">&-", "2>&-", ">&- 2>&-"):
        done = run(f"{fit} --quiet {streams}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run("show s.npz >&-").returncode == 0
    assert run(f"{transform} 2>&-").stdout == run(f"{transform} --quiet").stdout  # without the words
    done = run(f"{transform} --quiet >&-")
    assert done.returncode == 1
    assert done.stderr == "bnorm: error: standard output: expected a place for the table, but it is closed\n"


def test_bench(command):
    """All cases in a table, or as JSON; how fast anything is depends on the machine."""
    said = command("bench", "--seconds", "0.01", "--json").json
    assert said["simd"] == cpu.simd_level()
    assert all(seconds > 0 for case in said["seconds"].values() for seconds in case.values())
    assert len(said["seconds"]) == 6


@pyarrow
def test_demo(apart, tmp_path):
    """The main job, with a small table: means and deviations before and after, the comparison, where everything is."""
    before = os.times()
    done = apart("demo", "--folder", "made", "--megabytes", "24", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    after = os.times()  # of the processor: other programs may have it meanwhile
    assert after.children_user + after.children_system - before.children_user - before.children_system < 60
    rows = re.findall(r"^(\w+) +([\d,]+) +(\S+) +(\S+) +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert len(rows) == 8
    for name, _, mean, std, mean_after, std_after in rows:
        assert abs(float(mean_after)) < 1e-6, name
        assert abs(float(std_after) - 1) < 1e-6, name
        assert float(std) > 0
        assert float(mean) > 0
    line = re.search(
        r"StandardScaler on the same file: fit .* as long;\nits values are up to (\S+) off, these (\S+)", done.stdout
    )
    assert float(line[2]) < 2e-6 < float(line[1])
    made = tmp_path / "made"
    assert {"state.npz", "normalized.parquet"} <= {p.name for p in made.iterdir()} <= {
        "state.npz", "normalized.parquet", "drift.png"
    }  # fmt: skip
    t = bnorm.load(made / "state.npz")
    assert t.n_batches_seen_ == -(-t._state.statistics.rows // (1 << 17))
    again = apart("demo", "--folder", "made")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == "bnorm: error: made: already exists; the demo makes a new folder\n"
