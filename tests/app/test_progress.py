"""What a person sees while a command works: a bar at the right place, also after an interrupt."""

import io
import re
import sys

import numpy as np
import pytest

from commands import Command, table, write

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")
pytest.importorskip("tqdm", reason="tqdm draws the bar")


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def bars(self):
        """Percent and rows of each picture of the bar."""
        found = re.findall(r"(\d+)% \|.*?\|(?:, ([\d,]+) rows)?", self.getvalue())
        return [(int(percent), int(rows.replace(",", "") or 0)) for percent, rows in found]


@pytest.fixture
def terminal(monkeypatch):
    """Where a bar is drawn at every step."""
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "__init__", _eager(tqdm.tqdm.__init__))

    def new():
        found = Terminal()
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return new


def _eager(real):
    return lambda self, *given, **named: real(self, *given, **named, mininterval=0, miniters=0)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_a_fit_that_goes_on(capsys, tmp_path, monkeypatch, terminal, suffix):
    """Three files, interrupted in the second, whose bar is never behind what was known, and ends at 100%."""
    from bnorm.app import csv_source, fitting
    from bnorm.app.progress import Interrupted

    monkeypatch.setattr("bnorm.app.sources.BATCH", 8 * 3 * 500)
    monkeypatch.setattr(csv_source, "BLOCK", 1 << 14)
    monkeypatch.setattr(csv_source, "FEW_ROWS", 1)
    files = [write(tmp_path / f"{i}.{suffix}", part) for i, part in enumerate(np.array_split(table(30_000), 3))]
    arguments = ["fit", *files, "-o", tmp_path / "s.npz", "--checkpoint", tmp_path / "c.npz", "--batch-rows", "1000"]
    take, command = fitting.Learned.take, Command(capsys)

    def interrupted(self, pieces):
        if self.rows == 15_000:
            raise Interrupted(130)
        take(self, pieces)

    monkeypatch.setattr(fitting.Learned, "take", interrupted)
    drawn = terminal()
    assert command.run(*arguments).code == 130
    percents = [percent for percent, _ in drawn.bars()]
    assert percents == sorted(percents)
    assert 40 <= percents[-1] <= 60

    monkeypatch.setattr(fitting.Learned, "take", take)
    drawn = terminal()
    command(*arguments, "--resume", tmp_path / "c.npz")
    (start, _), *later = drawn.bars()
    assert start == 0  # before anything is read
    percents, rows = zip(*later, strict=True)
    assert 40 <= percents[0] <= 60
    assert list(percents) == sorted(percents)
    assert percents[-1] == 100
    assert rows[-1] == 30_000


def test_a_transform_that_goes_on(capsys, tmp_path, monkeypatch, terminal):
    """Files that are done already count."""
    from bnorm.app import transforming
    from bnorm.app.progress import Interrupted

    command, state = Command(capsys), tmp_path / "s.npz"
    (tmp_path / "in").mkdir()
    for i in range(4):
        data = write(tmp_path / "in" / f"{i}.parquet", table(1000))
    command("fit", data, "-o", state)
    arguments = ["transform", tmp_path / "in", "--state", state, "-o", f"{tmp_path}/out/"]
    real = transforming.transform

    def interrupted(sources, *others):
        if sources[0].name.endswith("2.parquet"):
            raise Interrupted(130)
        return real(sources, *others)

    monkeypatch.setattr(transforming, "transform", interrupted)
    assert command.run(*arguments).code == 130
    monkeypatch.setattr(transforming, "transform", real)
    drawn = terminal()
    command(*arguments, "--resume")
    percents = [percent for percent, _ in drawn.bars()]
    assert percents[:2] == [0, 50]
    assert percents == sorted(percents)
    assert percents[-1] == 100


def test_a_pipe_has_no_percentage(terminal):
    """As its size is not known; it has the time so far instead."""
    from bnorm.app.progress import Progress

    drawn = terminal()
    with Progress("fit", 0, False) as progress:
        progress.add(1234, 10.0)
    assert re.search(r"fit: 00:0\d, 1,234 rows, [\d,]+ rows/s", drawn.getvalue())
    assert "%" not in drawn.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_work_that_is_faster_than_the_bar(monkeypatch, quiet):
    """The bar is shown once, unless --quiet; tqdm alone would leave out all but its beginning."""
    from bnorm.app.progress import Progress

    monkeypatch.setattr(sys, "stderr", drawn := Terminal())
    with Progress("fit", 100, quiet) as progress:
        progress.add(7, 100.0)
    assert drawn.bars()[-1:] == ([] if quiet else [(100, 7)])
    assert quiet == (drawn.getvalue() == "")
