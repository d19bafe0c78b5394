"""States of groups: `bnorm fit --by`, and what the other commands do with them."""

import json

import numpy as np
import pytest

import bnorm
from commands import write

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads and writes files by pyarrow")
pd = pytest.importorskip("pandas", reason="it is the reference")


def sales():
    n, rng = 300, np.random.default_rng(0)
    return pd.DataFrame(
        {
            "day": pd.date_range("2024-01-01", periods=n),
            "size": rng.normal(50, 2, n),
            "store": rng.choice(["a", "b", "007", None], n),
            "till": rng.integers(1, 4, n),
        }
    )


def assert_same_groups(t, expected):
    assert t.groups_.tolist() == expected.groups_.tolist()
    np.testing.assert_allclose(t.means_, expected.means_, rtol=1e-13)
    np.testing.assert_allclose(t.vars_, expected.vars_, rtol=1e-11)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_fit_transform_and_back(command, tmp_path, suffix):
    x = sales()
    for name, part in (("x", x[:200]), ("more", x[200:])):
        path = tmp_path / f"{name}.{suffix}"
        part.to_parquet(path) if suffix == "parquet" else part.to_csv(path, index=False)
    state, out, back = (tmp_path / name for name in ("s.safetensors", f"y.{suffix}", "back.parquet"))
    files = [tmp_path / f"x.{suffix}", tmp_path / f"more.{suffix}"]
    said = command("fit", *files, "--by", "store,till", "-o", state, "--prior", 2, "--json")
    assert (json.loads(said.out)["groups"], json.loads(said.out)["rows"]) == (9, 300)
    t = bnorm.load(state)
    expected = bnorm.GroupedTransformer(["store", "till"], prior=2).fit(x[["size", "store", "till"]])
    assert t.feature_names_in_.tolist() == ["size", "store", "till"]
    assert_same_groups(t, expected)
    command("transform", files[0], "--state", state, "-o", out)
    y = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out, dtype={"store": str})
    assert list(y.columns) == list(x.columns)
    np.testing.assert_allclose(y[["size"]], expected.transform(x[["size", "store", "till"]])[:200], rtol=1e-9)
    assert y["store"].fillna("").tolist() == x["store"][:200].fillna("").tolist()
    command("transform", out, "--state", state, "-o", back, "--inverse", "--drop", "store")
    np.testing.assert_allclose(pd.read_parquet(back)["size"], x["size"][:200], rtol=1e-12)


def test_show_and_merge(command, tmp_path):
    x, paths = sales(), []
    for i, part in enumerate((x[:100], x[100:])):
        part.to_parquet(tmp_path / f"{i}.parquet")
        paths.append(tmp_path / f"{i}.npz")
        command("fit", tmp_path / f"{i}.parquet", "--by", "store", "-o", paths[-1], "--exclude", "till")
    command("merge", *paths, "-o", tmp_path / "m.npz")
    said = json.loads(command("show", tmp_path / "m.npz", "--json").out)
    assert (said["groups"], said["rows"], said["by"]) == (3, 300, ["store"])
    largest = x["store"].value_counts()
    assert [row["count"] for row in said["largest"]] == largest.tolist()
    assert said["largest"][0]["size mean"] == pytest.approx(x["size"][x["store"] == largest.index[0]].mean())
    text = command("show", tmp_path / "m.npz").out
    assert "3 groups by store, 300 rows" in text
    assert "(all rows)    300" in text
    many = x.assign(store=np.arange(300))
    many.to_parquet(tmp_path / "many.parquet")
    command("fit", tmp_path / "many.parquet", "--by", "store", "-o", tmp_path / "n.npz", "--halflife", "10")
    text = command("show", tmp_path / "n.npz").out
    assert "the largest 20" in text
    assert "half-life of 10 rows" in text
    assert "half" in command.fails("merge", paths[0], tmp_path / "n.npz", "-o", tmp_path / "q.npz")


@pytest.mark.parametrize("way", [[], ["--halflife", "40"]])
def test_merge_goes_by_names(command, tmp_path, way):
    x = sales().assign(other=np.arange(300.0))[["size", "store", "till", "other"]]
    parts = {"a": x[:100], "b": x[100:], "c": x[100:][["other", "till", "size", "store"]]}
    for name, part in parts.items():
        part.to_parquet(tmp_path / f"{name}.parquet")
        command("fit", tmp_path / f"{name}.parquet", "--by", "store", "-o", tmp_path / f"{name}.npz", *way)
    for other in "bc":
        command("merge", tmp_path / "a.npz", tmp_path / f"{other}.npz", "-o", tmp_path / f"a{other}.npz")
    assert (tmp_path / "ab.npz").read_bytes() == (tmp_path / "ac.npz").read_bytes()
    x.rename(columns={"other": "else"}).to_parquet(tmp_path / "d.parquet")
    command("fit", tmp_path / "d.parquet", "--by", "store", "-o", tmp_path / "d.npz", *way)
    said = command.fails("merge", tmp_path / "a.npz", tmp_path / "d.npz", "-o", tmp_path / "m.npz")
    assert "d.npz: features: expected ['size', 'till', 'other'], as in" in said


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_groups_that_fade_by_their_times(command, tmp_path, suffix):
    x = sales().sample(frac=1, random_state=0).reset_index(drop=True)
    data, states = tmp_path / f"x.{suffix}", [tmp_path / f"{name}.npz" for name in "abm"]
    for path, part in zip(states, (x[:100], x[100:]), strict=False):
        part.to_parquet(data) if suffix == "parquet" else part.to_csv(data, index=False)
        fit = ("fit", data, "--by", "store", "-o", path, "--exclude", "till", "--prior", 1)
        said = command(*fit, "--halflife", "30d", "--time-column", "day")
        assert "day (times)" in said.told
    command("merge", *states[:2], "-o", states[2])
    t = bnorm.load(states[2])
    expected = bnorm.GroupedTransformer("store", halflife="30d", prior=1)
    expected.fit(x[["day", "size", "store"]], times="day")
    order = [t.groups_.tolist().index(key) for key in expected.groups_]
    np.testing.assert_allclose(t.means_[order], expected.means_, rtol=1e-13)
    np.testing.assert_allclose(t.whole_.var(), expected.whole_.var(), rtol=1e-12)
    np.testing.assert_allclose(t.transform(x[["size", "store"]]), expected.transform(x[["day", "size", "store"]]))
    assert t.newest_time_ == np.datetime64("2024-10-26")
    assert (
        "3 groups by store, 300 rows, with a half-life of 30d, the newest row at 2024-10-26"
        in command("show", states[2]).out
    )
    assert json.loads(command("show", states[2], "--json").out)["newest"] == "2024-10-26T00:00:00.000000000"
    command("fit", data, "--by", "store", "-o", states[1], "--exclude", "till", "--halflife", "9", "--force")
    assert "half-life" in command("show", states[1]).out
    assert "halflife: expected 30d" in command.fails("merge", *states[:2], "-o", states[2], "--force")
    assert "--time-column: expected a column, as" in command.fails(*fit, "--halflife", "30d", "--force", code=2)
    twice = ("--by", "day", "--halflife", "30d", "--time-column", "day")
    said = command.fails(*fit[:2], *fit[4:], *twice, "--force", code=2)
    assert "column 'day': expected either times or a key" in said


def test_weights(command, tmp_path):
    x = sales().assign(weight=np.arange(300) % 4 / 2)
    x.to_parquet(tmp_path / "x.parquet")
    fit = ("fit", tmp_path / "x.parquet", "--by", "store", "--exclude", "till", "--weight", "weight")
    command(*fit, "-o", tmp_path / "s.npz")
    t = bnorm.load(tmp_path / "s.npz")
    expected = bnorm.GroupedTransformer("store").fit(x[["size", "store"]], sample_weight=x["weight"])
    assert_same_groups(t, expected)
    said = json.loads(command("show", tmp_path / "s.npz", "--json").out)
    weights = x.groupby("store")["weight"].sum().sort_values(ascending=False)
    assert [row["count"] for row in said["largest"]] == weights.tolist()
    assert said["whole"]["count"] == x["weight"].sum()


@pytest.mark.parametrize("unseen", ["global", "nan", "error"])
def test_a_state_of_the_library(command, tmp_path, unseen, monkeypatch):
    """With a setting for groups that it has not seen, and with others that the command does not have."""
    monkeypatch.setattr("bnorm.app.sources.BATCH", 8 * 50)
    x = sales()[["size", "store"]].dropna().sort_values("store")  # "b" is in none of the first batches
    x.to_parquet(tmp_path / "x.parquet")
    t = bnorm.GroupedTransformer("store", unseen=unseen, prior=3.0, eps=0.5).fit(x[x["store"] != "b"])
    t.save(tmp_path / "s.npz")
    transform = ("transform", tmp_path / "x.parquet", "--state", tmp_path / "s.npz", "-o", tmp_path / "y.parquet")
    if unseen == "error":
        row = x["store"].tolist().index("b") + 1
        assert command.fails(*transform).endswith(f"as unseen='error', got 'b' in row {row}")
        return
    command(*transform)
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "y.parquet")[["size"]], t.transform(x), rtol=1e-13)


def test_plot(command, tmp_path):
    """Groups around the whole; beside a state of all rows too."""
    pytest.importorskip("matplotlib", reason="it draws")
    sales().to_parquet(tmp_path / "x.parquet")
    command("fit", tmp_path / "x.parquet", "--by", "store", "-o", tmp_path / "g.npz")
    command("fit", tmp_path / "x.parquet", "-o", tmp_path / "s.npz")
    for states in (["g.npz"], ["g.npz", "s.npz"]):
        command("plot", *(tmp_path / name for name in states), "-o", tmp_path / "p.svg", "--force")
        text = (tmp_path / "p.svg").read_text()
        assert "mean of a group" in text


@pytest.mark.parametrize("files", [["a.csv", "b.parquet"], ["a.parquet", "b.csv"]])
def test_files_of_several_formats(command, tmp_path, files):
    """Keys have the types of their files, of which each is an output of its own or none is; 7 is text in both."""
    x = sales().assign(store="7")
    for file in files:
        path = tmp_path / file
        x.to_parquet(path) if path.suffix == ".parquet" else x.to_csv(path, index=False)
    paths = [tmp_path / file for file in files]
    command("fit", *paths[:: 1 if files[0] == "a.parquet" else -1], "--by", "till,store", "-o", tmp_path / "s.npz")
    command("transform", *paths, "--state", tmp_path / "s.npz", "-o", f"{tmp_path / 'out'}/")
    one, other = (
        pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        for path in (tmp_path / "out" / file for file in files)
    )
    np.testing.assert_allclose(one["size"], other["size"], rtol=1e-9)


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_times_as_the_command_writes_them(command, tmp_path, unit, zone):
    """It finds the groups of a Parquet file in the CSV file that it makes of it, and learns more of them from there."""
    x = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=3).repeat(2).as_unit(unit), "v": np.arange(6.0) ** 2})
    x["day"] = x["day"].dt.tz_localize(zone)
    x.to_parquet(tmp_path / "x.parquet")
    data, state, out = tmp_path / "x.parquet", tmp_path / "s.npz", tmp_path / "y.csv"
    command("fit", data, "--by", "day", "-o", state)
    command("transform", data, "--state", state, "-o", out)
    command("transform", out, "--state", state, "-o", tmp_path / "back.csv", "--inverse")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "back.csv")["v"], x["v"], atol=1e-12)
    command("fit", data, out, "--by", "day", "-o", tmp_path / "both.npz")
    assert bnorm.load(tmp_path / "both.npz").counts_.tolist() == [[4], [4], [4]]
    out.write_text(out.read_text().replace("2024-01-03 ", "Wednesday "))
    said = command.fails("transform", out, "--state", state, "-o", tmp_path / "z.csv")
    assert "y.csv: by: column 'day': expected keys of kind 'date', as in fit, got 'string'" in said


def test_keys_in_another_dialect(command, tmp_path):
    """A key is the number that the options say, as a feature is."""
    (tmp_path / "x.csv").write_text("k;x\n1.234;1,5\n2;1,5\n2;2,5\n")
    german = ["--delimiter", ";", "--decimal", ",", "--thousands", "."]
    command("fit", tmp_path / "x.csv", "--by", "k", "-o", tmp_path / "s.npz", *german)
    assert bnorm.load(tmp_path / "s.npz").groups_.tolist() == [1234, 2]
    command("transform", tmp_path / "x.csv", "--state", tmp_path / "s.npz", "-o", tmp_path / "y.parquet", *german)
    y = pd.read_parquet(tmp_path / "y.parquet")
    assert (y["k"].tolist(), y["x"].tolist()) == ([1234, 2, 2], [0.0, -1.0, 1.0])


def test_a_key_that_is_no_number_below_those_that_are(command, tmp_path, monkeypatch):
    """They are numbers then, unless users say that they are text."""
    monkeypatch.setattr("bnorm.app.csv_source.FEW_ROWS", 1)
    monkeypatch.setattr("bnorm.app.csv_source.BLOCK", 64)
    data = tmp_path / "x.csv"
    data.write_text("k,x\n" + "1,2\n" * 100 + "A7,2\n")
    fit = ("fit", data, "--by", "k", "-o", tmp_path / "s.npz")
    says = "x.csv: column 'k', row 101 below the header: expected int64, as in the first rows, got 'A7'"
    assert command.fails(*fit).endswith(f"{says}: --text k takes these keys for text")
    command(*fit, "--text", "k")
    assert bnorm.load(tmp_path / "s.npz").groups_.tolist() == ["1", "A7"]
    transform = ("transform", data, "-o", tmp_path / "y.csv", "--state", tmp_path / "s.npz")
    command(*transform)
    data.write_text("k,x\n" + "1,2\n" * 100)
    command(*fit, "--force")
    data.write_text("k,x\n" + "1,2\n" * 100 + "A7,2\n")
    assert command.fails(*transform, "--force").endswith(says)  # its --text is for what it writes


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_keys_that_look_like_marks_of_missing_values(command, tmp_path, suffix):
    """Namibia. Only an empty key is missing, and one that users name."""
    x, path = pd.DataFrame({"cc": ["NA", "DE", "NA", None, "-"], "v": np.arange(5.0)}), tmp_path / f"x.{suffix}"
    x.to_parquet(path) if suffix == "parquet" else x.to_csv(path, index=False)
    command("fit", path, "--by", "cc", "-o", tmp_path / "s.npz", "--null-values", "-")
    found = ["NA", "DE"] if suffix == "csv" else ["NA", "DE", "-"]
    assert bnorm.load(tmp_path / "s.npz").groups_.tolist() == found
    command("transform", path, "--state", tmp_path / "s.npz", "-o", tmp_path / "y.parquet")
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "y.parquet")["v"][:3], [-1, 0, 1], atol=1e-12)


def test_errors(command, tmp_path):
    x = sales()
    data, state = tmp_path / "x.parquet", tmp_path / "s.npz"
    x.to_parquet(data)
    fit = ("fit", data, "-o", state)
    assert "expected a column 'shop'" in command.fails(*fit, "--by", "shop")
    assert "either a feature or a key" in command.fails(*fit, "--by", "till", "--columns", "size,till", code=2)
    assert "either weights or a key, got both" in command.fails(*fit, "--by", "till", "--weight", "till", code=2)
    heavy = write(tmp_path / "heavy.parquet", np.ones((3, 1)), w=[1e308] * 3, k=[1, 2, 1])
    said = command.fails("fit", heavy, "-o", state, "--by", "k", "--weight", "w")
    assert "heavy.parquet: column 'w': expected weights whose sum float64 can hold" in said
    assert "--text: expected a column of --by, got 'size'" in command.fails(
        *fit, "--by", "till", "--text", "size", code=2
    )
    assert "--text: expected --by with it" in command.fails(*fit, "--text", "till", code=2)
    for *option, reason in (
        ("--exact", "groups have no exact sums"),
        ("--momentum", "0.1", "GroupedTransformer(momentum=...) learns yours"),
        ("--history", "9", "groups keep no records"),
        ("--checkpoint", "c.npz", "groups are only saved at the end"),
    ):
        said = command.fails(*fit, "--by", "store", *option, code=2)
        assert said.startswith(f"bnorm: error: {option[0]}: expected none with --by, as ") and said.endswith(reason)
    assert "--prior: expected --by with it" in command.fails(*fit, "--prior", "3", code=2)
    x.assign(size=np.inf).to_parquet(tmp_path / "inf.parquet")
    said = command.fails("fit", tmp_path / "inf.parquet", "-o", state, "--by", "store")
    assert "column 'size', row 1: expected a finite number, got inf" in said
    assert not state.exists()
    command(*fit, "--by", "store,store")
    command("fit", data, "-o", tmp_path / "plain.npz")
    assert "some of each" in command.fails("merge", state, tmp_path / "plain.npz", "-o", tmp_path / "m.npz")
    x.assign(store=np.arange(300)).to_parquet(tmp_path / "numbers.parquet")
    said = command.fails("transform", tmp_path / "numbers.parquet", "--state", state, "-o", tmp_path / "y.csv")
    assert "column 'store': expected keys of kind 'string', as in fit, got 'number'" in said
    x.drop(columns="store").to_parquet(tmp_path / "none.parquet")
    said = command.fails("transform", tmp_path / "none.parquet", "--state", state, "-o", tmp_path / "y.csv")
    assert "expected a column 'store'" in said
    bnorm.GroupedTransformer(0).fit(np.eye(3)).save(tmp_path / "unnamed.npz")
    said = command.fails("transform", data, "--state", tmp_path / "unnamed.npz", "-o", tmp_path / "y.csv")
    assert "expected a state of columns with names, as the keys are found by name, got one without" in said
