"""The examples of data sets."""

import re

import child
from examples import EXAMPLES, needs, shown


@needs("image_statistics.py")
def test_images(tmp_path):
    """The one pass agrees with all pixels at once; the mean of deviations is another number."""
    from PIL import Image

    done = child.run("-W", "error::RuntimeWarning", EXAMPLES / "image_statistics.py")  # it starts processes
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(mean|deviation) +(\[.*?\])", text := done.stdout, re.M))
    at_once = re.findall(r"at once (\[.*?\])", text)
    assert [found["mean"], found["deviation"]] == at_once
    assert re.search(r"a deviation of \[4", text)
    (tmp_path / "below").mkdir()
    for value in (0, 255):
        Image.new("RGB", (20, 30), (value, value, value)).save(tmp_path / "below" / f"{value}.png")
    done = child.run(EXAMPLES / "image_statistics.py", tmp_path)
    assert done.stdout.startswith("2 images, 1,200 pixels\nmean                [0.5 0.5 0.5]"), done.stderr
    assert "at once" not in done.stdout  # a folder may be larger than the memory


@needs("climate_statistics.py")
def test_climate(monkeypatch, capsys):
    text = shown(monkeypatch, capsys, "climate_statistics.py").out
    assert "{'level': 2, 'lat': 45, 'lon': 90}" in text
    assert re.search(r"attributes: \[.*e-0[89] .*\] \[1\. 1\.\]", text)
