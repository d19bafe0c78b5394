"""The examples of online loops and forecasts."""

import re

import numpy as np
import pytest

from examples import needs, parts, pictured

NAMES = ["forecast_revin.py", "cartpole_statistics.py"]


@pytest.fixture
def forecast(monkeypatch):
    return parts(monkeypatch, "forecast_revin.py")


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in NAMES])
def test_quick_run(name, tmp_path, monkeypatch, capsys):
    text = pictured(monkeypatch, capsys, tmp_path / "picture", name)
    lines = {line[:24].strip(): re.findall(r"\S+", line[20:]) for line in text.splitlines()}
    if name == "forecast_revin.py":
        test = {way: float(lines[way][-1]) for way in ("without RevIN", "RevIN", "RevIN, subtract_last")}
        assert test["RevIN"] < test["without RevIN"] / 2
        assert test["RevIN, subtract_last"] < test["without RevIN"] / 2
    else:
        for component in ("position", "velocity", "angle", "angular velocity"):
            assert float(lines[component][-1]) < 1e-12


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
