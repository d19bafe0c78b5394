"""The examples of data sets."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import child
from examples import shown

EXAMPLES = Path(__file__).parents[2] / "examples"


def needs(*names):
    missing = [name for name in names if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@needs("PIL", "tqdm")
def test_images():
    """The one pass agrees with all pixels at once; the mean of deviations is another number."""
    done = child.run("-W", "error::RuntimeWarning", EXAMPLES / "image_statistics.py")  # it starts processes
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(mean|deviation) +(\[.*?\])", text := done.stdout, re.M))
    at_once = re.findall(r"at once (\[.*?\])", text)
    assert [found["mean"], found["deviation"]] == at_once
    assert re.search(r"a deviation of \[4", text)


@needs("xarray")
def test_climate(monkeypatch, capsys):
    text = shown(monkeypatch, capsys, EXAMPLES / "climate_statistics.py").out
    assert "{'level': 2, 'lat': 45, 'lon': 90}" in text
    assert re.search(r"attributes: \[.*e-0[89] .*\] \[1\. 1\.\]", text)
