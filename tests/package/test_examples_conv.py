"""The example of a convolutional net, and its parts."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bnorm
from examples import ends, shown

CONV_NET = Path(__file__).parents[2] / "examples" / "conv_net.py"
MISSING = [name for name in ("matplotlib", "tqdm") if find_spec(name) is None]
draws = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture
def example(monkeypatch):
    """The names of the example; its progress bar and picture are not needed here."""
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=None))
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", SimpleNamespace(Figure=None))
    return SimpleNamespace(**runpy.run_path(str(CONV_NET)))


@draws
def test_quick_run(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture"
    text = shown(monkeypatch, capsys, CONV_NET, "--quick", "--plot", picture).out
    found = {
        line[:13].strip(): [float(n) for n in re.findall(r"[\d.]+", line[13:])]
        for line in text.splitlines()
        if line.endswith("%")
    }
    assert found["batch norm"][1] < found["plain"][1] / 1.5  # the last loss
    assert found["batch norm"][2] > 80
    assert "gives the same predictions" in text
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@draws
def test_a_wrong_folder_is_found_before_the_work(tmp_path, monkeypatch, capsys):
    assert ends(monkeypatch, CONV_NET, "--plot", tmp_path / "nowhere" / "curves.png") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(f"error: --plot: there is no folder {tmp_path / 'nowhere'}\n")


@pytest.mark.parametrize("batch_norm", [False, True])
def test_gradients(example, batch_norm):
    """Against the slope of the loss along one random direction for each parameter."""
    rng = np.random.default_rng(0)
    x, labels = rng.random((6, 1, 8, 8)), rng.integers(10, size=6)
    net = example.Net(batch_norm, seed=0)

    def loss():
        return example.cross_entropy(net(x), labels)[0]

    net.backward(example.cross_entropy(net(x), labels)[1])
    parameters = list(net.parameters())
    assert len(parameters) == (8 if batch_norm else 6)
    h = 1e-6
    for p in parameters:
        way, start = rng.standard_normal(p.shape), p.data.copy()
        p.data = start + h * way
        above = loss()
        p.data = start - h * way
        slope = (above - loss()) / (2 * h)
        p.data = start
        # Rounding leaves a few eps / h = 2e-10 of a loss of 3; a ReLU that turns within h, some h of a slope.
        assert np.sum(p.grad * way) == pytest.approx(slope, rel=1e-4, abs=1e-8)


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
