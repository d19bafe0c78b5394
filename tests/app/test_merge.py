"""`bnorm merge`: the statistics of several files as one, by the names of their features."""

import numpy as np
import pytest

import bnorm
from commands import pyarrow, table, write
from compare import assert_close


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
    (tmp_path / "e.npz").write_bytes((tmp_path / "c.npz").read_bytes())
    average = command.fails("merge", tmp_path / "c.npz", tmp_path / "e.npz", "-o", tmp_path / "m.npz")
    assert "a moving average depends on the order of its batches" in average
    assert not (tmp_path / "m.npz").exists()


@pytest.mark.parametrize("by", [False, True])
def test_no_file_is_merged_twice(command, tmp_path, by):
    """Its rows would count twice. Two files with the same content may be two days with the same values."""
    x = np.repeat([[0.0, 1.0], [1.0, 2.0]], 5, axis=0)
    t = bnorm.GroupedTransformer(by=0) if by else bnorm.BatchNormTransformer(momentum=None)
    for name in "ab":
        t.fit(x).save(tmp_path / f"{name}.npz")
    (tmp_path / "link.npz").symlink_to(tmp_path / "a.npz")
    a, b, link, m = (tmp_path / f"{name}.npz" for name in ("a", "b", "link", "m"))
    assert f"a.npz: expected each file once, got it twice, first as {a}" in command.fails("merge", a, b, a, "-o", m)
    assert f"link.npz: expected each file once, got it twice, first as {a}" in command.fails("merge", a, link, "-o", m)
    command("merge", a, b, "-o", m)
    assert command("show", m, "--json").json["rows"] == 20


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
@pytest.mark.parametrize("way", [[], ["--weight", "f2"]])
@pytest.mark.parametrize("turned", [False, True])
def test_merge_with_a_state_of_the_library(command, tmp_path, way, turned):
    """Which does not know the extremes, nor what was missing if there are weights: then they are not known of both."""
    data = write(tmp_path / "x.csv", np.abs(table(100)))
    command("fit", data, "-o", tmp_path / "a.npz", *way)
    bnorm.load(tmp_path / "a.npz").save(tmp_path / "b.npz")
    command("merge", *sorted(tmp_path.glob("*.npz"), reverse=turned), "-o", tmp_path / "m.npz")
    for feature in command("show", tmp_path / "m.npz", "--json").json["features"]:
        assert not feature.keys() & {"min", "max"}
        assert feature["missing"] == (None if way else 0)
