"""The example of times."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from examples import shown

EXAMPLE = Path(__file__).parents[2] / "examples" / "sensors_with_nights.py"


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_sensors_with_nights(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture.png"
    text = shown(monkeypatch, capsys, EXAMPLE, "--quick", "--plot", picture).out
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    whole, halflife, window = (float(error) for error in re.findall(r"error (\d\.\d+)\n", text))
    assert max(halflife, window) < whole
