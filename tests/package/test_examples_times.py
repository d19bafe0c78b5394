"""The example of times, run as a person runs it."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import child

EXAMPLE = Path(__file__).parents[2] / "examples" / "sensors_with_nights.py"


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_sensors_with_nights(tmp_path):
    picture = tmp_path / "picture.png"
    done = child.run("-W", "error::RuntimeWarning", EXAMPLE, "--quick", "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    whole, halflife, window = (float(error) for error in re.findall(r"error (\d\.\d+)\n", done.stdout))
    assert max(halflife, window) < whole
