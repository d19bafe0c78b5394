"""The example of a convolutional net, and its parts."""

import re

import numpy as np
import pytest

import bnorm
from examples import check_gradients, needs, parts, pictured


@pytest.fixture
def example(monkeypatch):
    return parts(monkeypatch, "conv_net.py")


@needs("conv_net.py")
def test_quick_run(tmp_path, monkeypatch, capsys):
    text = pictured(monkeypatch, capsys, tmp_path / "picture", "conv_net.py")
    found = {
        line[:13].strip(): [float(n) for n in re.findall(r"[\d.]+", line[13:])]
        for line in text.splitlines()
        if line.endswith("%")
    }
    assert found["batch norm"][1] < found["plain"][1] / 1.5  # the last loss
    assert found["batch norm"][2] > 80
    assert "gives the same predictions" in text


@pytest.mark.parametrize("batch_norm", [False, True])
def test_gradients(example, batch_norm):
    rng = np.random.default_rng(0)
    x, labels = rng.random((6, 1, 8, 8)), rng.integers(10, size=6)
    check_gradients(example, example.Net(batch_norm, seed=0), x, labels, 8 if batch_norm else 6, rng)


def test_a_net_is_saved_and_loaded(example, tmp_path):
    rng = np.random.default_rng(0)
    net, other = example.Net(True, seed=0), example.Net(True, seed=1)
    net(rng.random((6, 1, 8, 8)))
    example.save(net, tmp_path / "net.npz")
    example.load(other, tmp_path / "net.npz")
    state, again = (bnorm.state_dict(each.named()) for each in (net, other))
    np.testing.assert_equal(again, state)
    assert {"conv1.weight", "bn2.running_var", "out.bias"} <= set(state)
    assert state["bn1.num_batches_tracked"] == 1


def test_evaluation_keeps_no_images(example):
    net = example.Net(True, seed=0)
    example.predictions(net, np.random.default_rng(0).random((6, 1, 8, 8)))
    with pytest.raises(RuntimeError, match="no_backward"):
        net.layers["bn1"].backward(np.ones((6, 8, 8, 8)))
