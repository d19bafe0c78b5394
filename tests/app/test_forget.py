"""`bnorm fit --exact`, `merge` and `forget`: one digest for the same rows, and rows that are taken out again."""

import numpy as np
import pytest

import bnorm
import bnorm.functional as F
from commands import table, write

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")

X = table(400)
ROWS = {"whole": slice(None), "gone": slice(150), "stays": slice(150, None)}
WANT = F.moments(X, exact=True, skipna=True)


def fit(command, tmp_path, rows, name, *more, x=X):
    data, state = write(tmp_path / f"{name}.parquet", x[rows]), tmp_path / f"{name}.npz"
    command("fit", "--exact", data, "-o", state, *more)
    return state


def shown(command, state):
    return command("show", state, "--json").json


def test_one_digest_however_rows_were_cut_merged_and_forgotten(command, tmp_path):
    order = np.random.default_rng(0).permutation(len(X))
    whole = fit(command, tmp_path, order, "whole", "--batch-rows", "33")
    assert shown(command, whole)["digest"] == WANT.digest() == bnorm.load(whole).digest()
    assert f"digest {WANT.digest()}" in command("show", whole).out
    one, other = (fit(command, tmp_path, rows, f"p{i}") for i, rows in enumerate((order[:150], order[150:])))
    command("merge", other, one, "-o", tmp_path / "m.safetensors")
    assert shown(command, tmp_path / "m.safetensors")["digest"] == WANT.digest()
    done = command("forget", whole, write(tmp_path / "gone.csv", X[order[:150]]), "-o", tmp_path / "left.npz")
    assert done.out == f"{tmp_path / 'left.npz'}: 150 rows forgotten, 250 left\n"
    left, want = shown(command, tmp_path / "left.npz"), shown(command, other)
    assert left["digest"] == want["digest"] and left["rows"] == want["rows"] == 250
    for got, feature in zip(left["features"], want["features"], strict=True):
        assert got == {key: feature[key] for key in got}  # the extremes of what is left are not known
    assert bnorm.load(tmp_path / "left.npz").digest() == left["digest"]


@pytest.mark.parametrize("way", [[], ["--weight", "w"]])
def test_missing_values_and_weights_are_forgotten(command, tmp_path, way):
    x, w = X.copy(), np.arange(len(X)) % 3
    x[::3, 0] = x[::7, 2] = np.nan
    parts = {name: write(tmp_path / f"{name}.parquet", x[rows], w=w[rows]) for name, rows in ROWS.items()}
    for name in ("whole", "stays"):
        command("fit", "--exact", parts[name], "-o", tmp_path / f"{name}.npz", *way)
    command("forget", tmp_path / "whole.npz", parts["gone"], "-o", tmp_path / "left.npz", *way)
    left, want = (shown(command, tmp_path / f"{name}.npz") for name in ("left", "stays"))
    assert (left["digest"], left["rows"]) == (want["digest"], want["rows"])
    for got, feature in zip(left["features"], want["features"], strict=True):
        assert got.keys() >= {"count", "missing", "mean", "std"}
        assert got == {key: feature[key] for key in got}


def test_what_python_has_learned_is_forgotten(command, tmp_path):
    """Its state does not say how many values are missing, if rows have weights."""
    pd = pytest.importorskip("pandas", reason="its frames have names of columns")
    w = np.arange(len(X)) % 3
    t = bnorm.BatchNormTransformer(momentum=None, exact=True)
    t.fit(pd.DataFrame(X, columns=["f0", "f1", "f2"]), sample_weight=w).save(tmp_path / "whole.npz")
    gone = write(tmp_path / "gone.parquet", X[:150], w=w[:150])
    command("forget", tmp_path / "whole.npz", gone, "-o", tmp_path / "left.npz", "--weight", "w")
    left = shown(command, tmp_path / "left.npz")
    assert left["digest"] == F.moments(X[150:], exact=True, weight=w[150:]).digest()
    assert [feature.get("missing") for feature in left["features"]] == [None] * 3


def test_features_in_another_order(command, tmp_path):
    one = fit(command, tmp_path, slice(100), "one")
    reordered = shown(command, one)["features"]
    reordered = [feature["feature"] for feature in reversed(reordered)]
    other = fit(command, tmp_path, slice(100, None), "other", "--columns", ",".join(reordered))
    command("merge", one, other, "-o", tmp_path / "m.npz")
    assert shown(command, tmp_path / "m.npz")["digest"] == WANT.digest()


@pytest.mark.parametrize("more", [[], ["--batch-rows", "2"]], ids=["whole", "cut"])
def test_integers_of_parquet_are_not_rounded(command, tmp_path, more):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, state = [2**53 + 1, 2**60 + 3, None, 5], tmp_path / "s.npz"
    pq.write_table(pa.table({"a": pa.array(rows, pa.int64()), "b": rows[::-1]}), tmp_path / "n.parquet")
    command("fit", "--exact", tmp_path / "n.parquet", "-o", state, *more)
    x = np.array([row for row in rows if row is not None])
    assert bnorm.load(state).digest() == F.moments(np.stack([x, x[::-1]], 1), exact=True).digest()


@pytest.mark.parametrize("exact", [True, False])
def test_what_cannot_be_forgotten(command, tmp_path, exact):
    few, many = write(tmp_path / "few.csv", X[:5]), write(tmp_path / "many.csv", X)
    command("fit", *(["--exact"] if exact else []), few, "-o", tmp_path / "s.npz")
    failed = command.fails("forget", tmp_path / "s.npz", many, "-o", tmp_path / "new.npz")
    assert ("expected rows that were learned" if exact else "expected exact statistics") in failed
    assert not (tmp_path / "new.npz").exists()


def test_exact_and_rounded_states_do_not_merge(command, tmp_path):
    one = fit(command, tmp_path, slice(100), "one")
    command("fit", tmp_path / "one.parquet", "-o", tmp_path / "plain.npz")
    failed = command.fails("merge", one, tmp_path / "plain.npz", "-o", tmp_path / "m.npz")
    assert "exact: expected True" in failed
