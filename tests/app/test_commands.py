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
from bnorm.app import sources
from bnorm.kernels import cpu
from commands import names, pyarrow, table, write
from compare import assert_close


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
        ([*FIT, "--delimiter", "ab"], "expected one character of ASCII, or tab, got 'ab'"),
        ([*FIT, "--delimiter", "é"], "expected one character of ASCII, or tab, got 'é'"),
        ([*FIT, "--skip-rows", "9" * 20], f"expected a whole number of up to nine digits, got '{'9' * 20}'"),
        (["transform", "x.csv", "-o", "y.csv"], "the following arguments are required: --state"),
        (["transform", "x.csv", "--state", "s.npz", "-o", "y.xlsx"], "expected a name that ends in .csv, "),
        (["transform", "x.csv", "--state", "s.npz", "-o", ""], "expected a name that ends in .csv, "),
        (["transform", "x.csv", "--state", "s.npz", "-o", "new"], "got 'new'; that of a new folder ends in /"),
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
    """It makes fewer calls than importing NumPy just before it, two fifths of them, and needs few modules."""
    calls, modules = child.beside_numpy("""
import contextlib, io
from bnorm.app.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
""")
    assert 0 < calls < 1
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
    assert child.printed(code).splitlines()[-1] == ""


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


@pytest.mark.parametrize("data", [["a.npz"], ["a.npz", "b.npz"], ["x.csv"]], ids="-".join)
def test_plot_without_matplotlib(command, tmp_path, monkeypatch, data):
    """What to install is said before a file is read."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = command.fails("plot", *data, "-o", tmp_path / "p.svg")
    assert re.search(r"plot: expected matplotlib to be installed, got .*: pip install 'bnorm\[app\]'$", said)


@pyarrow
def test_plot_reads_a_table_twice(command, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="it draws")
    with write(tmp_path / "x.csv", table(9)).open("rb") as file:
        monkeypatch.setattr(sys, "stdin", file)
        said = command.fails("plot", "-", "-o", tmp_path / "no.png")
    assert said.endswith("standard input: expected a file, as a table is read twice to draw it, got a pipe")


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
    in_ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for environment in ({"PYTHONIOENCODING": "ascii"}, in_ascii):
        done = apart("show", "s.npz", **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "gr\\xf6\\xdfe" in done.stdout
    assert apart("merge", "s.npz", "-o", "größe.npz", **in_ascii).stderr == ""
    assert (tmp_path / "größe.npz").exists()


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
    done = apart("demo", "--folder", "made", "--megabytes", "12", "--quiet")
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
    assert float(line[2]) < 2e-6
    assert float(line[1]) > 1e-7  # above 2e-6 where scikit-learn rounds the mean to the type of the table
    made = tmp_path / "made"
    assert {"state.npz", "normalized.parquet"} <= {p.name for p in made.iterdir()} <= {
        "state.npz", "normalized.parquet", "drift.png"
    }  # fmt: skip
    t = bnorm.load(made / "state.npz")
    assert t.n_batches_seen_ == -(-t._state.statistics.rows // (1 << 17))
    again = apart("demo", "--folder", "made")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == "bnorm: error: made: already exists; the demo makes a new folder\n"


def test_a_demo_without_pyarrow_makes_no_folder(command, tmp_path, monkeypatch):
    sources.pyarrow.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = command.fails("demo", "--folder", tmp_path / "made")
    assert said.endswith("needs pyarrow: pip install 'bnorm[app]'")
    assert not (tmp_path / "made").exists()
