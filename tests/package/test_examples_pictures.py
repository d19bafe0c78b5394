"""Where the examples put their pictures."""

import pytest

from examples import ends, needs

DRAWING = [
    "cartpole_statistics.py",
    "conv_net.py",
    "forecast_revin.py",
    "learned_scale.py",
    "numpy_net.py",
    "per_store.py",
    "sensors_with_nights.py",
    "streaming_drift.py",
]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in DRAWING])
def test_a_wrong_folder_is_found_before_the_work(name, tmp_path, monkeypatch, capsys):
    assert ends(monkeypatch, name, "--plot", tmp_path / "nowhere" / "picture.png") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(f"error: --plot: there is no folder {tmp_path / 'nowhere'}\n")
