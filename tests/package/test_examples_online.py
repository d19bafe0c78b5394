"""The examples of online loops and forecasts."""

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
NAMES = {"forecast_revin.py": ("matplotlib",), "cartpole_statistics.py": ("matplotlib", "gymnasium")}


def needs(name):
    missing = [module for module in NAMES[name] if find_spec(module) is None]
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"))


@pytest.fixture
def forecast(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", SimpleNamespace(Figure=None))
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "forecast_revin.py")))


@pytest.mark.parametrize("name", [needs(name) for name in NAMES])
def test_quick_run(name, tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture"
    text = shown(monkeypatch, capsys, EXAMPLES / name, "--quick", "--plot", picture).out
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    lines = {line[:24].strip(): re.findall(r"\S+", line[20:]) for line in text.splitlines()}
    if name == "forecast_revin.py":
        test = {way: float(lines[way][-1]) for way in ("without RevIN", "RevIN", "RevIN, subtract_last")}
        assert test["RevIN"] < test["without RevIN"] / 2
        assert test["RevIN, subtract_last"] < test["without RevIN"] / 2
    else:
        for component in ("position", "velocity", "angle", "angular velocity"):
            assert float(lines[component][-1]) < 1e-12


@pytest.mark.parametrize("name", [needs(name) for name in NAMES])
def test_a_wrong_folder_is_found_before_the_work(name, tmp_path, monkeypatch, capsys):
    assert ends(monkeypatch, EXAMPLES / name, "--plot", tmp_path / "nowhere" / "picture.png") == 2
    assert capsys.readouterr().err.endswith(f"error: --plot: there is no folder {tmp_path / 'nowhere'}\n")


def test_gradients_of_the_forecaster(forecast):
    x = forecast.series(400, 0)
    past, future = (a.astype("f8") for a in forecast.windows(x, [0, 50, 100]))
    model = forecast.Forecaster(forecast.bnorm.RevIN(forecast.CHANNELS), 0)
    model.optimizer.step = lambda: None
    model.learn(past, future)
    weight, h = model.linear.weight, 1e-5
    way = np.random.default_rng(0).normal(size=weight.shape)

    def loss(step):
        weight.data += step * way
        value = ((model(past) - future) ** 2).mean()
        weight.data -= step * way
        return value

    assert (weight.grad * way).sum() == pytest.approx((loss(h) - loss(-h)) / (2 * h), rel=1e-6)
