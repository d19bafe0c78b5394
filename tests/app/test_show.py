"""`bnorm show`: what a state says of itself, as a table and as JSON; and files that are no states."""

from shutil import copy

import numpy as np
import pytest

import bnorm
from commands import pyarrow, table, write
from compare import assert_close


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


@pyarrow
def test_names_that_end_lines(command, tmp_path):
    data, state = tmp_path / "x.csv", tmp_path / "s.npz"
    data.write_text('"a\nb",x\n1,2\n')
    command("fit", data, "-o", state)
    assert command("show", state).out.splitlines()[3].startswith(r"'a\nb'  ")
    command("fit", data, "--by", "a\nb", "-o", state, "--force")
    assert command("show", state).out.startswith(rf"{state}: 1 group by 'a\nb', 1 row")


def test_states_that_are_none(command, tmp_path):
    """One line says so, whichever command reads them."""
    bnorm.BatchNorm1d(3).save(tmp_path / "layer.npz")
    (tmp_path / "text.npz").write_text("no state")
    for call in (("show", "{}"), ("plot", "{}", "-o", tmp_path / "p.png"), ("merge", "{}", "-o", "m.npz")):
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


def test_a_window_does_not_say_what_was_missing_before_it(command, tmp_path):
    x = table(200)
    x[190, 0] = np.nan
    bnorm.BatchNormTransformer(window=50).fit(x).save(tmp_path / "s.npz")
    features = command("show", tmp_path / "s.npz", "--json").json["features"]
    assert [(f["count"], f["missing"]) for f in features] == [(49, None), (50, None), (50, None)]


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
    said = command.fails("merge", plain, copy(plain, tmp_path / "q.npz"), grouped, "-o", tmp_path / "n.npz")
    assert said.endswith(f"{grouped}: expected states that are all of groups, or none, got some of each")


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
    assert command("merge", state, copy(state, tmp_path / "u.npz"), "-o", tmp_path / "m.npz").err == ""
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
