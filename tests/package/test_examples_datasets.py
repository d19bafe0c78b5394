"""The examples of data sets, run as a person runs them."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import child

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *needed):
    if missing := [module for module in needed if find_spec(module) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = child.run("-W", "error::RuntimeWarning", EXAMPLES / name)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_images():
    """The one pass agrees with all pixels at once; the mean of deviations is another number."""
    found = dict(re.findall(r"^(mean|deviation) +(\[.*?\])", text := run("image_statistics.py", "PIL", "tqdm"), re.M))
    at_once = re.findall(r"at once (\[.*?\])", text)
    assert [found["mean"], found["deviation"]] == at_once
    assert re.search(r"a deviation of \[4", text)


def test_climate():
    text = run("climate_statistics.py", "xarray")
    assert "{'level': 2, 'lat': 45, 'lon': 90}" in text
    assert re.search(r"attributes: \[.*e-0[89] .*\] \[1\. 1\.\]", text)
