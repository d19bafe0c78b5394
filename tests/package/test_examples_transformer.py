"""The examples of the transformer, and what they compute on the way."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from examples import ends, shown

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["learned_scale.py", "streaming_drift.py"]
MISSING = [name for name in ("matplotlib", "tqdm") if find_spec(name) is None]
draws = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture
def example(monkeypatch, request):
    """The names of an example; its progress bar and pictures are not needed here."""
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=lambda steps, **_: steps))
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", SimpleNamespace(Figure=None))
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / request.param)))


def numbers(line):
    return [float(number) for number in re.findall(r"[+-]?[\d.]+(?=%)", line)]


@draws
@pytest.mark.parametrize("name", [pytest.param(NAMES[0], marks=pytest.mark.slow), NAMES[1]])
def test_quick_run(name, tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture"
    text = shown(monkeypatch, capsys, EXAMPLES / name, "--quick", "--plot", picture).out
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    lines = text.splitlines()
    if name == "learned_scale.py":
        (line,) = [line for line in lines if line.startswith("breast cancer + noise")]
        raw, standardized, learned, gain, error = numbers(line)
        assert gain == pytest.approx(learned - standardized, abs=0.11)  # of rounded numbers
        assert gain > max(2 * error, 2)
        assert learned > raw
    else:
        found = {line.split("  ")[0]: numbers(line)[0] for line in lines if line.endswith("%")}
        assert found["BatchNormTransformer(halflife=100)"] > found["StandardScaler()"] + 3
        assert found["BatchNormTransformer(momentum=0.1)"] > found["StandardScaler()"]
        assert found["whoever knows the rule"] > max(found.values()) - 0.01


@draws
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_folder_is_found_before_the_work(name, tmp_path, monkeypatch, capsys):
    assert ends(monkeypatch, EXAMPLES / name, "--plot", tmp_path / "nowhere" / "picture.png") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(f"error: --plot: there is no folder {tmp_path / 'nowhere'}\n")


@pytest.mark.parametrize("example", NAMES[:1], indirect=True)
def test_gradient_of_the_neighbour_loss(example):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(20, 3)), rng.integers(3, size=20)
    _, dz = example.neighbour_loss(z, y)
    way, h = rng.normal(size=z.shape), 1e-6
    slope = (example.neighbour_loss(z + h * way, y)[0] - example.neighbour_loss(z - h * way, y)[0]) / (2 * h)
    assert np.sum(dz * way) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("example", NAMES[:1], indirect=True)
def test_only_training_rows_are_learned_from(example):
    x, y = example.load("wine + noise", 0)
    assert x.shape == (178, 26)
    rows = np.random.default_rng(0).permutation(178)
    train, test = rows[:120], rows[120:]
    _, gamma = example.accuracies(x, y, train, test, 0)
    x[test], y[test] = 7.0, 0
    _, again = example.accuracies(x, y, train, test, 0)
    np.testing.assert_array_equal(gamma, again)
    assert np.abs(gamma[:13]).mean() > 1.5 * np.abs(gamma[13:]).mean()  # noise is turned down


@pytest.mark.parametrize("example", NAMES[1:], indirect=True)
def test_stream_drifts_or_stands_still(example):
    for drift in (True, False):
        x, labels, limit = example.stream(4000, drift, 0)
        means = np.array([part.mean(axis=0) for part in np.split(x, 8)])
        assert (np.ptp(means, axis=0) > 3).all() == drift
        assert 0.8 < limit < 1
        assert 0.3 < labels.mean() < 0.7


@pytest.mark.parametrize("example", NAMES[1:], indirect=True)
def test_batches_are_predicted_before_they_are_learned_from(example):
    """Labels that nothing foretells are guessed right half of the time, not more."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(4000, 200)), rng.integers(2, size=4000)
    right = example.progressive(example.StandardScaler(), x, labels, 0, "")
    assert len(right) == 3950
    assert abs(right.mean() - 0.5) < 4 * 0.5 / np.sqrt(3950)
