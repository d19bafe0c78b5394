"""The example of groups."""

import re

from examples import needs, shown


@needs("per_store.py")
def test_per_store(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture.png"
    text = shown(monkeypatch, capsys, "per_store.py", "--quick", "--plot", picture).out
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    together, alone, prior, later = (
        [float(number) for number in re.findall(r"-?\d+\.\d+", line)] for line in text.splitlines()[1:5]
    )
    assert alone[0] > together[0] + 0.3  # old stores
    assert prior[1] > max(alone[1], together[1]) + 0.1  # new ones
    assert later[0] > prior[2] + 0.3  # unseen ones, ten days later
