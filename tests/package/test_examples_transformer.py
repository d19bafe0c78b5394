"""The examples of the transformer, and what they compute on the way."""

import re

import numpy as np
import pytest

from examples import needs, parts, pictured


@pytest.fixture
def example(monkeypatch, request):
    return parts(monkeypatch, request.param)


def numbers(line):
    return [float(number) for number in re.findall(r"[+-]?[\d.]+(?=%)", line)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("learned_scale.py", marks=[pytest.mark.slow, needs("learned_scale.py")]),
        pytest.param("streaming_drift.py", marks=needs("streaming_drift.py")),
    ],
)
def test_quick_run(name, tmp_path, monkeypatch, capsys):
    lines = pictured(monkeypatch, capsys, tmp_path / "picture", name).splitlines()
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


@pytest.mark.parametrize("example", ["learned_scale.py"], indirect=True)
def test_gradient_of_the_neighbor_loss(example):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(20, 3)), rng.integers(3, size=20)
    _, dz = example.neighbor_loss(z, y)
    way, h = rng.normal(size=z.shape), 1e-6
    slope = (example.neighbor_loss(z + h * way, y)[0] - example.neighbor_loss(z - h * way, y)[0]) / (2 * h)
    assert np.sum(dz * way) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("example", ["learned_scale.py"], indirect=True)
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


@pytest.mark.parametrize("example", ["streaming_drift.py"], indirect=True)
def test_stream_drifts_or_stands_still(example):
    for drift in (True, False):
        x, labels, limit = example.stream(4000, drift, 0)
        means = np.array([part.mean(axis=0) for part in np.split(x, 8)])
        assert (np.ptp(means, axis=0) > 3).all() == drift
        assert 0.8 < limit < 1
        assert 0.3 < labels.mean() < 0.7


@pytest.mark.parametrize("example", ["streaming_drift.py"], indirect=True)
def test_batches_are_predicted_before_they_are_learned_from(example):
    """Labels that nothing foretells are guessed right half of the time, not more."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(4000, 200)), rng.integers(2, size=4000)
    right = example.progressive(example.StandardScaler(), x, labels, 0, "")
    assert len(right) == 3950
    assert abs(right.mean() - 0.5) < 4 * 0.5 / np.sqrt(3950)
