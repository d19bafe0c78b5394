"""`bnorm fit` of Parquet, whose columns several threads read and sum: not one bit of the state depends on it."""

import numpy as np
import pytest

from bnorm.app import fitting
from bnorm.app.ahead import together
from bnorm.app.inputs import Stream, find
from bnorm.app.progress import Interrupted
from commands import names, table, write

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")

ROWS, COLUMNS = 5000, 7
OPTIONS = {
    "plain": [],
    "momentum": ["--momentum", "0.3"],
    "pooled": ["--pooled"],
    "halflife": ["--halflife", "700"],
    "weight": ["--weight", "f3"],
    "weight and momentum": ["--weight", "f3", "--momentum", "0.3"],
    "weight and half-life": ["--weight", "f3", "--halflife", "700"],
    "exact": ["--exact"],
    "exact and weight": ["--exact", "--weight", "i"],
    "history": ["--history", "5"],
    "short batches": ["--batch-rows", "37"],
    "batches": ["--batch-rows", "1100"],
    "columns": ["--columns", "i,f5,f0,s"],
    "two columns": ["--columns", "f1,n"],
    "exclude": ["--exclude", "f1,s,n"],
    "times": ["--halflife", "10min", "--time-column", "t"],
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("bnorm.app.sources.BATCH", 8 * 10 * 600)
    monkeypatch.setattr(fitting, "MOST_PIECES", 5)


@pytest.fixture
def shared(monkeypatch):
    """How many streams each `fit` has read, if it could have been several."""
    seen, shares = [], Stream.shares

    def counted(self, *arguments):
        found = shares(self, *arguments)
        seen.append(len(found))
        return found

    monkeypatch.setattr(Stream, "shares", counted)
    return seen


def files(folder):
    """Two tables with doubles, floats, integers and nulls. A row group ends within a batch, and a batch within both."""
    import pyarrow as pa

    found, x = [], table(ROWS, COLUMNS)
    x[::11, 1] = np.nan
    x[:, 3] = np.random.default_rng(3).integers(0, 4, ROWS)
    for i, part in enumerate(np.array_split(x, [2900])):
        n, rng = len(part), np.random.default_rng(i)
        missing = rng.random(n) < 0.2
        more = {
            "i": pa.array(rng.integers(0, 1000, n), pa.int32()),
            "s": pa.array(rng.standard_normal(n), pa.float32()),
            "n": pa.array(rng.standard_normal(n), pa.float64(), mask=missing),
            "t": pa.array(1_700_000_000_000 + np.arange(n) * 1000 + i * 10**7, pa.timestamp("ms")),
        }
        found.append(write(folder / f"{i}.parquet", part, **more))
    return found


@pytest.mark.parametrize("way", OPTIONS)
def test_state_files(command, tmp_path, set_threads, shared, way):
    data, states = files(tmp_path), []
    for n in (1, 2, 3):
        set_threads(n)
        command("fit", *data, *OPTIONS[way], "-o", tmp_path / f"{n}.npz")
        states.append((tmp_path / f"{n}.npz").read_bytes())
    assert states[1:] == states[:1] * 2
    fades = {"halflife", "weight and half-life", "times"}  # which takes whole rows
    assert shared == ([] if way in fades else [1, 2, 2 if way in ("columns", "two columns") else 3])


@pytest.mark.parametrize("columns", [1, 2, 5, 9])
def test_every_column_is_in_one_share(tmp_path, columns):
    data = write(tmp_path / "x.parquet", table(10, columns))
    sources, features = find([str(data)]), names(table(1, columns))
    for most in range(1, 6):
        shares = Stream(sources, [*features, "f0"][:columns]).shares(most)
        assert [name for share in shares for name in share.numbers] == features
        assert len(shares) <= most


def test_who_reads_all_columns_together(tmp_path, monkeypatch):
    """What is no Parquet file, one that comes through a pipe, one whose columns need much memory; and other columns."""
    x = table(10)
    for suffix in ("csv", "arrow"):
        assert len(Stream(find([str(write(tmp_path / f"x.{suffix}", x))]), names(x)).shares(2)) == 1
    sources = find([str(write(tmp_path / "x.parquet", x))])
    assert len(Stream(sources, names(x)).shares(2)) == 2
    assert len(Stream(sources, ["f0", "f1"], ["f2"]).shares(2)) == 1
    assert len(Stream([*sources, *find([str(tmp_path / "x.csv")])], names(x)).shares(2)) == 1
    with monkeypatch.context() as patch:
        patch.setattr("bnorm.app.columnar.MOST_STATE", 1)
        assert len(Stream(sources, names(x)).shares(2)) == 1
    with (tmp_path / "x.parquet").open("rb") as file:
        monkeypatch.setattr(sources[0], "_path", file)
        assert len(Stream(sources, names(x)).shares(2)) == 1


def failing(command, tmp_path, set_threads, data, *options):
    """What `fit` says, and the checkpoint that it leaves, which are the same on one thread and on two."""
    found = []
    for n in (1, 2):
        set_threads(n)
        checkpoint = tmp_path / f"{n}.npz"
        done = command.run("fit", *data, *options, "-o", tmp_path / "s.npz", "--checkpoint", checkpoint)
        assert done.code == 1
        assert not (tmp_path / "s.npz").exists()
        found.append((done.err.splitlines()[0], checkpoint.read_bytes()))
    assert found[0] == found[1]
    return found[0][0]


@pytest.mark.parametrize(("feature", "row"), [(0, 0), (0, 1250), (6, 1250), (3, 4999)])
def test_infinity(command, tmp_path, set_threads, feature, row):
    """It is found in the batch where it is, in the first of its columns, whichever thread has read that."""
    x = table(ROWS, COLUMNS)
    x[row, feature] = np.inf
    x[row // 250 * 250 + 250 :] = -np.inf  # in later batches
    said = failing(command, tmp_path, set_threads, [write(tmp_path / "x.parquet", x)], "--batch-rows", "250")
    assert f"x.parquet: column 'f{feature}', row {row + 1}: expected a finite number, got inf" in said


def test_weights(command, tmp_path, set_threads):
    x = table(ROWS, COLUMNS)
    x[:, 2] = 1
    x[3210, 2] = -1
    data = [write(tmp_path / "x.parquet", x)]
    said = failing(command, tmp_path, set_threads, data, "--weight", "f2", "--batch-rows", "250")
    assert "x.parquet: column 'f2', row 3211: expected a finite weight >= 0, got -1.0" in said


def test_values_whose_mean_is_too_large(command, tmp_path, set_threads):
    x = table(ROWS, COLUMNS)
    x[2000:, 5] = np.where(np.arange(3000) % 2, 1.7e308, -1.7e308)
    said = failing(command, tmp_path, set_threads, [write(tmp_path / "x.parquet", x)], "--momentum", "0.5")
    assert "x.parquet: column 'f5': expected values whose mean float64 can hold, got too large ones" in said


def test_a_damaged_page(command, tmp_path, set_threads):
    """Of the last column, which the last thread reads, in the second row group."""
    from pyarrow import parquet

    data = write(tmp_path / "x.parquet", table(ROWS, COLUMNS))
    chunk = parquet.ParquetFile(data).metadata.row_group(1).column(COLUMNS - 1)
    content = bytearray(data.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + 16] = b"\xff" * 16
    data.write_bytes(content)
    said = failing(command, tmp_path, set_threads, [data], "--batch-rows", "250")
    assert "x.parquet: after row 857: " in said


def test_columns_of_other_lengths(command, tmp_path, monkeypatch, set_threads):
    """A damaged file may say so of one of them: then nothing of the rest is lost in silence."""
    x = table(ROWS, 2)
    whole, cut = (find([str(write(tmp_path / f"{len(part)}.parquet", part))]) for part in (x, x[:4000]))
    shares = [Stream(whole, ["f0"]), Stream(cut, ["f1"])]
    set_threads(2)
    for order in (shares, shares[::-1]):
        monkeypatch.setattr(Stream, "shares", lambda self, most, beside, found=order: found)
        said = command.fails("fit", tmp_path / "5000.parquet", "-o", tmp_path / "s.npz", "--batch-rows", "1000")
        assert said.endswith("00.parquet: expected columns of one length, got others")


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_resume(command, tmp_path, monkeypatch, set_threads, stop):
    """Interrupted on two threads, gone on with on one, or the other way round: the end is the same."""
    data = files(tmp_path)
    arguments = ["fit", *data, "--momentum", "0.3", "--batch-rows", "700", "-o", tmp_path / "s.npz", "--force"]
    command(*arguments)
    want, add, checkpoint = (tmp_path / "s.npz").read_bytes(), fitting.Learner.add, tmp_path / "c.npz"
    for first, second in ((1, 2), (2, 1), (2, 2)):
        calls = []

        def interrupted(self, *given, calls=calls):
            calls.append(given)
            if len(calls) > stop:
                raise Interrupted(130)
            add(self, *given)

        set_threads(first)
        with monkeypatch.context() as patch:
            patch.setattr(fitting.Learner, "add", interrupted)
            assert command.run(*arguments, "--checkpoint", checkpoint).code == 130
        set_threads(second)
        command(*arguments, "--resume", checkpoint)
        assert (tmp_path / "s.npz").read_bytes() == want


class Items:
    """A generator of some numbers, which keeps what was asked for, and whether it was closed."""

    def __init__(self, n, error=None):
        self.made, self.closed = [], False
        self.items = self._items(n, error)

    def _items(self, n, error):
        try:
            for i in range(n):
                self.made.append(i)
                yield i
            if error:
                raise error
        finally:
            self.closed = True


def test_items_are_made_while_those_before_are_in_use():
    import time

    a, b = Items(3), Items(2)
    both = together([a.items, b.items])
    assert next(both) == [0, 0]
    end = time.monotonic() + 60
    while not (a.made == b.made == [0, 1]) and time.monotonic() < end:
        time.sleep(0.001)
    assert (a.made, b.made) == ([0, 1], [0, 1])
    assert list(both) == [[1, 1], [2, None]]
    assert a.closed
    assert b.closed


def test_an_error_comes_after_what_was_before_it():
    a, b = Items(3), Items(1, OSError("the end is damaged"))
    both = together([a.items, b.items])
    assert next(both) == [0, 0]
    with pytest.raises(OSError, match="damaged"):
        next(both)
    assert a.closed
    assert b.closed


def test_they_are_closed_with_it():
    a, b = Items(9), Items(9)
    both = together([a.items, b.items])
    next(both)
    both.close()
    assert a.closed
    assert b.closed
    assert max(a.made + b.made) <= 1
