"""Outputs are complete or not there, nothing is overwritten unasked, and an interrupted fit goes on where it was."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import child
from bnorm.app.fitting import Learner
from bnorm.app.progress import Interrupted
from commands import names, run_apart, table, write

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads and writes files by pyarrow")


def test_nothing_is_overwritten(command, tmp_path):
    data, state, out = write(tmp_path / "x.csv", table(10)), tmp_path / "s.npz", tmp_path / "y.csv"
    state.write_text("precious")
    said = command.fails("fit", data, "-o", state)
    assert said == f"bnorm: error: {state}: already exists; --force overwrites it"
    assert state.read_text() == "precious"
    command("fit", data, "-o", state, "--force")
    command("transform", data, "--state", state, "-o", out)
    out.with_suffix(".npz").touch()
    assert "already exists" in command.fails("transform", data, "--state", state, "-o", out)
    assert "already exists" in command.fails("merge", state, "-o", out.with_suffix(".npz"))
    assert "already exists" in command.fails("fit", data, "-o", tmp_path / "t.npz", "--checkpoint", state)
    assert "an existing folder" in command.fails("fit", data, "-o", tmp_path / "no" / "s.npz")


def test_a_file_keeps_its_mode_and_a_link_its_target(command, tmp_path):
    data, real, link = write(tmp_path / "x.csv", table(10)), tmp_path / "real.npz", tmp_path / "link.npz"
    command("fit", data, "-o", real)
    assert real.stat().st_mode & 0o777 == 0o666 & ~_umask()
    real.chmod(0o640)
    link.symlink_to(real)
    before = real.read_bytes()
    command("fit", write(tmp_path / "y.csv", table(20)), "-o", link, "--force")
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.read_bytes() != before


def test_two_outputs_are_two_files(command, tmp_path):
    """Else the checkpoint, which ends with the command, would take the result with it."""
    data, state = write(tmp_path / "x.csv", table(10)), tmp_path / "s.npz"
    for other in (state, tmp_path / "." / "s.npz", f"{tmp_path}/../{tmp_path.name}/s.npz"):
        said = command.fails("fit", data, "-o", state, "--checkpoint", other)
        assert said.endswith("s.npz: expected two files, got one for two outputs")
    assert not state.exists()
    (tmp_path / "link.npz").symlink_to(state)
    assert "one for two outputs" in command.fails("fit", data, "-o", state, "--checkpoint", tmp_path / "link.npz")
    state.write_bytes(b"a")
    (tmp_path / "hard.npz").hardlink_to(state)
    arguments = ["fit", data, "-o", state, "--force"]
    assert "one for two outputs" in command.fails(*arguments, "--checkpoint", tmp_path / "hard.npz")
    for other in (state, tmp_path / "hard.npz", tmp_path / "link.npz"):
        assert "is read by this command" in command.fails(*arguments, "--resume", other)
    assert state.read_bytes() == b"a"


def test_no_input_is_written_over(command, tmp_path):
    data, state = write(tmp_path / "x.csv", table(10)), tmp_path / "s.npz"
    command("fit", data, "-o", state)
    before = data.read_bytes(), state.read_bytes()
    (tmp_path / "link.csv").symlink_to(data)
    for output in (data, tmp_path / "link.csv", f"{tmp_path}/", tmp_path):
        for given in (data, tmp_path / "*.csv", tmp_path):
            said = command.fails("transform", given, "--state", state, "-o", output, "--force")
            assert said.endswith("is read by this command, which does not write over it")
    said = command.fails("merge", state, "-o", state, "--force")
    assert said == f"bnorm: error: {state}: is read by this command, which does not write over it"
    assert (data.read_bytes(), state.read_bytes()) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such pipes")
def test_what_is_no_file_is_not_replaced(command, tmp_path):
    data, state = write(tmp_path / "x.csv", table(10)), tmp_path / "s.npz"
    command("fit", data, "-o", state)
    pipe, loop = tmp_path / "p.csv", tmp_path / "loop.csv"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    said = command.fails("transform", data, "--state", state, "-o", pipe, "--force")
    assert said == f"bnorm: error: {pipe}: expected a file, got a pipe or device: -o - writes CSV to standard output"
    assert pipe.is_fifo()
    said = command.fails("transform", data, "--state", state, "-o", loop, "--force")
    assert said == f"bnorm: error: {loop}: Too many levels of symbolic links"


def test_names_as_long_as_the_system_takes(command, tmp_path):
    name = "é" * 120 + "abcde"  # 245 bytes
    data, state = write(tmp_path / "x.csv", table(10)), tmp_path / f"{name}.npz"
    command("fit", data, "-o", state)
    command("transform", data, "--state", state, "-o", tmp_path / f"{name}.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", f"{name}.csv", f"{name}.npz"]


@contextmanager
def rights(folder, mode):
    """A folder with this mode, to a user who is not root."""
    folder.mkdir()
    folder.chmod(mode)
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has other rights")
@pytest.mark.parametrize(("mode", "writable"), [(0o555, False), (0o444, False), (0o333, True), (0o000, False)])
def test_folders_without_rights(command, mode, writable):
    """It is said before the work begins, not after hours of it."""
    with TemporaryDirectory() as name:  # others may not look into tmp_path
        folder, inside = Path(name), Path(name) / "inside"
        folder.chmod(0o755)
        data, state = write(folder / "x.csv", table(10)), folder / "s.npz"
        command("fit", data, "-o", state)
        command("transform", data, "--state", state, "-o", folder / "y.csv")  # all is imported
        calls = {
            "t.npz": ("merge", state, "-o"),
            "y.csv": ("transform", data, "--state", state, "-o"),
            "c.npz": ("fit", data, "-o", inside / "s.npz", "--checkpoint"),
        }
        with rights(inside, mode):
            for output, given in calls.items():
                if writable:
                    command(*given, inside / output)
                else:
                    said = command.fails(*given, inside / output)
                    assert said.startswith(f"bnorm: error: {inside}")
                    assert said.endswith((": expected a folder that may be written to", ": Permission denied"))


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_failure_leaves_the_old_output(command, tmp_path):
    data, state, out = write(tmp_path / "x.csv", table(10)), tmp_path / "s.npz", tmp_path / "y.csv"
    command("fit", data, "-o", state)
    out.write_text("old")
    before = state.read_bytes()
    with data.open("a") as file:
        file.write("oops,1,2\n")
    command.fails("fit", data, "-o", state, "--force")
    command.fails("transform", data, "--state", state, "-o", out, "--force")
    assert (state.read_bytes(), out.read_text()) == (before, "old")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.npz", "x.csv", "y.csv"]


def kill(data, out, arguments, moments, number):
    """Start the command again and again, and end it after each of these times; the exit codes."""
    codes = []
    for seconds in moments:
        process = run_apart(*arguments, "--quiet", "--force", stderr=-3)
        try:
            process.wait(timeout=seconds)
        except TimeoutError:
            pass
        except Exception as error:  # subprocess.TimeoutExpired
            assert type(error).__name__ == "TimeoutExpired"
            process.send_signal(number)
        codes.append(process.wait(timeout=child.LIMIT))
        yield codes[-1]


@pytest.mark.parametrize(
    ("what", "number"), [("fit", signal.SIGKILL), ("transform", signal.SIGKILL), ("transform", signal.SIGTERM)]
)
@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_any_moment(command, tmp_path, what, number, times):
    """The old output or the complete new one; and, unless it was killed outright, no other file."""
    data, state, out = write(tmp_path / "x.parquet", table(200_000, 8)), tmp_path / "s.npz", tmp_path / "y.parquet"
    command("fit", data, "-o", state)
    arguments = ["fit", data, "-o", state] if what == "fit" else ["transform", data, "--state", state, "-o", out]
    target = state if what == "fit" else out
    start = time.monotonic()
    command(*arguments, "--force")
    seconds = time.monotonic() - start
    new = target.read_bytes()
    target.write_bytes(b"old")
    rng = random.Random(0)
    start_up = 0.5
    for code in kill(data, out, arguments, [rng.uniform(0.2, start_up + 3 * seconds) for _ in range(times)], number):
        assert code in (0, -number, 128 + number)
        found = target.read_bytes()
        assert found in (b"old", new)
        assert code != 0 or found == new
        target.write_bytes(b"old")
        assert number == signal.SIGKILL or not list(tmp_path.glob(".*.tmp"))
    command(*arguments, "--force")
    assert not list(tmp_path.glob(".*.tmp"))  # what was left of killed commands


def test_what_is_being_written_is_not_swept(tmp_path):
    from bnorm.files.replacing import replacing, sweep

    path = tmp_path / "y.csv"
    left = [tmp_path / f".{name}.{'a' * 16}.tmp" for name in ("y.csv", "z.csv")]
    for file in left:
        file.touch()
    with replacing(path) as file:
        file.write(b"a")
        sweep([path, tmp_path / "x.csv"])
        assert not left[0].exists()
        assert left[1].exists()  # of another file
    assert path.read_bytes() == b"a"


@pytest.mark.parametrize("way", [["--pooled"], ["--halflife", "5000"], ["--momentum", "0.2"]])
@pytest.mark.parametrize("stop", [1, 3, 7])
def test_resume(command, tmp_path, monkeypatch, way, stop):
    """Interrupted in the middle of a batch, a file, a row group: the end is the same to the last bit."""
    x = table(30_000)
    x[::11, 1] = np.nan
    parts = zip(["0.csv", "1.parquet", "2.arrow"], np.array_split(x, 3), strict=True)
    files = [write(tmp_path / name, part) for name, part in parts]
    arguments = ["fit", *files, *way, "--batch-rows", "3100", "-o", tmp_path / "s.npz"]
    monkeypatch.setattr("bnorm.app.sources.BATCH", 8 * 3 * 2500)
    command(*arguments)
    want = (tmp_path / "s.npz").read_bytes()

    calls, checkpoint = [], tmp_path / "c.npz"
    add = Learner.add

    def interrupted(self, pieces):
        calls.append(pieces[0].rows)
        if len(calls) > stop:
            raise Interrupted(130)
        add(self, pieces)

    monkeypatch.setattr(Learner, "add", interrupted)
    done = command.run(*arguments, "--force", "--checkpoint", checkpoint)
    assert done.code == 130
    first, second = done.err.splitlines()
    assert first == "bnorm: interrupted"
    assert second.startswith("bnorm: to continue: bnorm fit ")
    monkeypatch.setattr(Learner, "add", add)
    seen = command("show", checkpoint, "--json").json["rows"]
    assert seen == sum(calls[:stop]) // 3100 * 3100  # whole batches only

    (tmp_path / "s.npz").unlink()
    command(*shlex.split(second.removeprefix("bnorm: to continue: bnorm ")))
    assert (tmp_path / "s.npz").read_bytes() == want
    assert not checkpoint.exists()


def interrupted(*_):
    raise Interrupted(130)


@pytest.mark.parametrize("first", ["c.npz", "d.npz"])
def test_an_interrupt_after_an_interrupt(command, tmp_path, monkeypatch, first):
    """It goes on from the checkpoint that the second command wrote, whatever the first one's was."""
    monkeypatch.setattr(Learner, "add", interrupted)
    fit = ["fit", write(tmp_path / "x.csv", table(100)), "-o", tmp_path / "s.npz"]
    command.run(*fit, "--checkpoint", tmp_path / first)
    done = command.run(*fit, "--resume", tmp_path / first, "--checkpoint", tmp_path / "c.npz")
    again = shlex.split(done.err.splitlines()[1].removeprefix("bnorm: to continue: bnorm "))
    last = len(again) - 1 - again[::-1].index("--resume")
    assert (again[last + 1], again.count("--resume")) == (str(tmp_path / "c.npz"), 1 + (first != "c.npz"))


def test_an_interrupt_of_a_command_whose_files_begin_with_a_dash(command, tmp_path, monkeypatch):
    """What continues it stands before the mark behind which all arguments are files."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "-x.csv", table(100))
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "add", interrupted)
        done = command.run("fit", "-o", "s.npz", "--checkpoint", "c.npz", "--", "-x.csv")
    again = done.err.splitlines()[1].removeprefix("bnorm: to continue: ")
    assert again == "bnorm fit -o s.npz --checkpoint c.npz --resume c.npz -- -x.csv"
    command(*shlex.split(again)[1:])


def test_resume_of_another_command(command, tmp_path):
    data = write(tmp_path / "x.csv", table(100))
    checkpoint = tmp_path / "c.npz"
    bad = tmp_path / "y.csv"
    bad.write_text("f0,f1,f2\n1,2,3\n4,5,6\n7,8,oops\n")
    command.fails("fit", data, bad, "-o", tmp_path / "s.npz", "--checkpoint", checkpoint, "--batch-rows", "10")
    assert command("show", checkpoint, "--json").json["rows"] == 100  # what there was before the error is kept
    for other, name in [
        (["fit", data, "-o", tmp_path / "s.npz"], "files"),
        (["fit", data, bad, "-o", tmp_path / "s.npz", "--momentum", "0.5"], "momentum"),
        (["fit", data, bad, "-o", tmp_path / "s.npz", "--columns", "f0"], "columns"),
        (["fit", data, bad, "-o", tmp_path / "s.npz"], "batch_rows"),
    ]:
        said = command.fails(*other, "--resume", checkpoint)
        assert said.startswith(f"bnorm: error: {checkpoint}: {name}: expected ")
    merged, other = tmp_path / "m.npz", tmp_path / "o.npz"
    command("fit", data, "-o", other)
    command("merge", checkpoint, other, "-o", merged)  # it has rows of both
    said = command.fails("fit", data, bad, "-o", tmp_path / "s.npz", "--batch-rows", "10", "--resume", merged)
    assert said == f"bnorm: error: {merged}: expected a checkpoint, got a finished state"
    bad.write_text("f0,f1,f2\n1,2,3\n")
    said = command.fails("fit", data, bad, "-o", tmp_path / "s.npz", "--batch-rows", "10", "--resume", checkpoint)
    assert f"{checkpoint}: files: expected " in said  # it is another file now
    command("fit", data, "-o", tmp_path / "s.npz")
    said = command.fails("fit", data, "-o", tmp_path / "t.npz", "--resume", tmp_path / "s.npz")
    assert said == f"bnorm: error: {tmp_path / 's.npz'}: expected a checkpoint, got a finished state"


def test_checkpoints_come_by_the_minute(command, tmp_path, monkeypatch):
    from bnorm.app import fitting, states

    kept = []
    save = states.Learned.save
    monkeypatch.setattr(fitting, "EVERY", 0.0)
    monkeypatch.setattr("bnorm.app.sources.BATCH", 8 * 3 * 1000)
    monkeypatch.setattr(states.Learned, "save", lambda self, *a: (kept.append(self.rows), save(self, *a)))
    data = write(tmp_path / "x.parquet", table(5000))
    command("fit", data, "-o", tmp_path / "s.npz", "--checkpoint", tmp_path / "c.npz", "--batch-rows", "1000")
    assert kept[-1] == 5000
    assert kept[:4] == [1000, 2000, 3000, 4000]
    assert not (tmp_path / "c.npz").exists()


SAYS_WHEN_IT_HAS_LEARNED = """
import sys
from bnorm.app import cli, fitting, sources
sources.BATCH = 8 * 3 * 2500  # so few that some come to be learned
add = fitting.Learner.add
def adding(self, rows, *others):
    add(self, rows, *others)
    if self.learned.rows:
        sys.stdout.write("learned\\n")
        sys.stdout.flush()
fitting.Learner.add = adding
raise SystemExit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("way", [[], ["--by", "k"]], ids=["all rows", "groups"])
def test_no_table_that_a_pattern_finds_is_written_over(command, tmp_path, way):
    """With --delimiter, any name is that of a table."""
    data = tmp_path / "x.npz"
    data.write_text(before := "k,a\n1,2\n1,3\n")
    arguments = ["fit", tmp_path / "*.npz", "--delimiter", ",", "--force", *way]
    for outputs in [["-o", data]] + [["-o", tmp_path / "s.npz", "--checkpoint", data]] * (not way):
        said = command.fails(*arguments, *outputs)
        assert said.endswith("x.npz: is read by this command, which does not write over it")
    assert data.read_text() == before


@pytest.mark.skipif(os.name == "nt", reason="signals are sent to a process here")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(tmp_path, number):
    """A pipe that dries up: the signal ends the command at once, and what it has learned is in the checkpoint."""
    import bnorm
    from bnorm.app.csv_blocks import BLOCK

    text = write(tmp_path / "x.csv", table(200_000)).read_bytes()
    assert len(text) > 3 * BLOCK
    arguments = ["fit", "-", "-o", tmp_path / "s.npz", "--checkpoint", tmp_path / "c.npz", "--batch-rows", "1000"]
    arguments.append("--quiet")
    command = [sys.executable, "-c", SAYS_WHEN_IT_HAS_LEARNED, *map(str, arguments)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1) as process:
        process.stdin.write(text)
        process.stdin.flush()
        assert process.stdout.readline() == b"learned\n"
        time.sleep(0.5)  # most often it waits for more by then; where it does not yet, the outcome is the same
        process.send_signal(number)
        _, said = process.communicate(timeout=child.LIMIT)
    goes_on = shlex.join(["bnorm", *map(str, arguments), "--resume", str(tmp_path / "c.npz")])
    assert (process.returncode, said.decode()) == (128 + number, f"bnorm: interrupted\nbnorm: to continue: {goes_on}\n")
    assert not (tmp_path / "s.npz").exists()
    t = bnorm.load(tmp_path / "c.npz")
    assert list(t.feature_names_in_) == names(table(1))
    assert t.n_samples_seen_.min() >= 1000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stays_so(number):
    """As SIGINT in a job that a shell has started in the background."""
    from bnorm.app.progress import Signals

    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
