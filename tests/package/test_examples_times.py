"""The example of times."""

import re

from examples import needs, shown


@needs("sensors_with_nights.py")
def test_sensors_with_nights(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture.png"
    text = shown(monkeypatch, capsys, "sensors_with_nights.py", "--quick", "--plot", picture).out
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    whole, halflife, window = (float(error) for error in re.findall(r"error (\d\.\d+)\n", text))
    assert max(halflife, window) < whole
