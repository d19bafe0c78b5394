"""Examples run inside this process, which has done the imports that take them as long as everything else. With
`-m slow` tests/package/test_examples_alone.py runs each as a person would."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {  # besides NumPy and scikit-learn
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
    """The mark of a test that runs this example: skipped if a package that it needs is not installed."""
    missing = [module for module in NEEDED[name] if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def ends(monkeypatch, name: str, *arguments: object):
    """Run an example with these arguments. Return its exit status, or the message with which it ends."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return caught.value.code


def shown(monkeypatch, capsys, name: str, *arguments: object):
    """Run an example with these arguments, which must come to its end. Return what it prints, as `out` and `err`.
    Warnings are errors."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr()


def pictured(monkeypatch, capsys, picture: Path, name: str) -> str:
    """Run an example quickly. Return what it prints; its picture must be a PNG."""
    text = shown(monkeypatch, capsys, name, "--quick", "--plot", picture).out
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB\x60\x82")
    return text


def parts(monkeypatch, name: str):
    """Return what an example defines. Progress bars and pictures are replaced, so it needs no packages for them."""
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=lambda steps, **_: steps))
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", SimpleNamespace(Figure=None))
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / name)))


def check_gradients(example, net, x, labels, count: int, rng: np.random.Generator):
    """Check the gradients of a net's parameters, `count` of which need one, against the slope of the loss along one
    random direction for each."""

    def loss():
        return example.cross_entropy(net(x), labels)[0]

    net.backward(example.cross_entropy(net(x), labels)[1])
    parameters = [p for p in net.parameters() if p.requires_grad]
    assert len(parameters) == count
    h = 1e-6
    for p in parameters:
        way, start = rng.standard_normal(p.shape), p.data.copy()
        p.data = start + h * way
        above = loss()
        p.data = start - h * way
        slope = (above - loss()) / (2 * h)
        p.data = start
        # Errors: rounding, a few eps / h = 2e-10 for a loss of 3; and some h of a slope, if a ReLU switches within h.
        assert np.sum(p.grad * way) == pytest.approx(slope, rel=1e-4, abs=1e-8)
