"""The examples of layers, and the parts that a person would copy."""

import re
import sys

import numpy as np
import pytest

from examples import check_gradients, ends, needs, parts, shown

NUMPY_NET = "numpy_net.py"
draws = needs(NUMPY_NET)


@pytest.fixture
def example(monkeypatch):
    return parts(monkeypatch, NUMPY_NET)


@pytest.fixture
def curves(tmp_path):
    """Where the picture goes: a PNG whatever its name."""
    return tmp_path / "curves"


@pytest.fixture
def quick(curves, monkeypatch, capsys):
    """The shortest run."""
    return lambda: shown(monkeypatch, capsys, NUMPY_NET, "--quick", "--plot", curves)


@draws
def test_batch_norm_learns_where_the_plain_net_fails(quick, curves):
    once = quick()
    accuracies = re.search(r"^3 +\S+ +([\d.]+)% +\S+ +([\d.]+)%$", once.out, re.MULTILINE)
    plain, batch_norm = map(float, accuracies.groups())
    assert batch_norm >= 97
    assert plain < 90
    assert re.search(r"batch norm: .*/15 .*loss=", once.err)  # the progress bar
    picture = curves.read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB\x60\x82")


@draws
@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(quick):
    assert quick().out == quick().out


@pytest.mark.parametrize("name", ["matplotlib", pytest.param("tqdm", marks=draws)])
def test_what_is_missing_is_named(name, monkeypatch, capsys):
    class Absent:
        def find_spec(self, path=None, target=None):
            if self == name:
                raise ModuleNotFoundError(name=name)

    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    assert ends(monkeypatch, NUMPY_NET) == f"numpy_net.py needs {name}: pip install matplotlib tqdm"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("batch_norm", [False, True])
def test_gradients(example, batch_norm):
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((20, 64)), rng.integers(10, size=20)
    check_gradients(example, example.Net(batch_norm, seed=0), x, labels, 8 if batch_norm else 6, rng)


def test_both_nets_start_from_the_same_weights(example):
    plain, batch_norm = (example.Net(normalized, seed=3) for normalized in (False, True))
    other = example.Net(False, seed=4)
    for linear in (0, 2, 4):
        weight = plain.layers[linear].weight.data
        np.testing.assert_array_equal(weight, batch_norm.layers[linear].weight.data)
        assert (weight != other.layers[linear].weight.data).all()


def test_evaluation_takes_each_image_by_itself_and_changes_nothing(example):
    x, labels = np.random.default_rng(0).standard_normal((6, 64)), np.arange(6)
    net = example.Net(True, seed=0)
    net(x)
    norms = net.layers[1::2]
    before = [norm.state_dict() for norm in norms]
    whole, _ = example.evaluate(net, x, labels)
    alone = [example.evaluate(net, x[i : i + 1], labels[i : i + 1])[0] for i in range(6)]
    assert np.mean(alone) == pytest.approx(whole, rel=1e-12)
    for norm, state in zip(norms, before, strict=True):
        np.testing.assert_equal(norm.state_dict(), state)


def test_the_scale_of_the_pixels_comes_from_the_training_images(example):
    x, _, x_test, _ = example.digits(seed=0)
    assert (x.shape, x_test.shape) == ((1347, 64), (450, 64))
    assert abs(x.mean(axis=0)).max() < 1e-12 < abs(x_test.mean(axis=0)).max()
