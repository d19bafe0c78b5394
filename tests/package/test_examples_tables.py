"""The examples of tables: groups, and times."""

import re

from examples import needs, pictured


@needs("per_store.py")
def test_per_store(tmp_path, monkeypatch, capsys):
    text = pictured(monkeypatch, capsys, tmp_path / "x.png", "per_store.py")
    together, alone, prior, later = (
        [float(number) for number in re.findall(r"-?\d+\.\d+", line)] for line in text.splitlines()[1:5]
    )
    assert alone[0] > together[0] + 0.3  # old stores
    assert prior[1] > max(alone[1], together[1]) + 0.1  # new ones
    assert later[0] > prior[2] + 0.3  # unseen ones, ten days later


@needs("sensors_with_nights.py")
def test_sensors_with_nights(tmp_path, monkeypatch, capsys):
    text = pictured(monkeypatch, capsys, tmp_path / "x.png", "sensors_with_nights.py")
    whole, halflife, window = (float(error) for error in re.findall(r"error (\d\.\d+)\n", text))
    assert max(halflife, window) < whole
