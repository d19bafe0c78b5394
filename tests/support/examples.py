"""Examples run inside of this process, which has imported what takes them as long as all else that they do: with
`-m slow` tests/package/test_examples_alone.py runs each as a person runs it."""

import runpy
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bnorm

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {  # beside NumPy and scikit-learn
    "cartpole_statistics.py": ("matplotlib", "gymnasium"),
    "climate_statistics.py": ("xarray",),
    "conv_net.py": ("matplotlib", "tqdm"),
    "forecast_revin.py": ("matplotlib",),
    "image_statistics.py": ("PIL", "tqdm"),
    "learned_scale.py": ("matplotlib", "tqdm"),
    "numpy_net.py": ("matplotlib", "tqdm"),
    "per_store.py": ("matplotlib", "pandas"),
    "sensors_with_nights.py": ("matplotlib",),
    "streaming_drift.py": ("matplotlib", "tqdm"),
}


def needs(name: str):
    """The mark of a test that runs this example: skipped where a package that it needs is not installed."""
    missing = [module for module in NEEDED[name] if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def ends(monkeypatch, name: str, *arguments: object):
    """What an example ends with when it is run with these arguments: its exit status, or what it says instead."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return caught.value.code


def shown(monkeypatch, capsys, name: str, *arguments: object):
    """What an example that comes to its end shows when it is run with these arguments, in `out` and `err`. Warnings
    are errors."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr()


def parts(monkeypatch, name: str):
    """What an example defines. Its progress bar shows nothing and it draws no pictures, so it needs neither."""
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=lambda steps, **_: steps))
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", SimpleNamespace(Figure=None))
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / name)))


def check_gradients(parameters: Iterable[bnorm.Parameter], loss: Callable[[], float], rng: np.random.Generator):
    """The gradients of the parameters, against the slope of the loss along one random direction for each."""
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
