"""Examples run as a person runs them, in processes of their own: what they need they import themselves."""

import pytest

import child
from examples import EXAMPLES, NEEDED, ends, needs

ELSEWHERE = {"dask_table.py", "image_statistics.py", "mpi_sync.py", "spark_table.py"}  # run so by their own tests


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in NEEDED if name not in ELSEWHERE])
def test_it_comes_to_its_end(name, tmp_path):
    quick = () if name == "climate_statistics.py" else ("--quick", "--plot", tmp_path / "picture.png")
    done = child.run("-W", "error::RuntimeWarning", EXAMPLES / name, *quick)
    assert done.returncode == 0, done.stderr


def test_all_are_known():
    assert {path.name for path in EXAMPLES.glob("*.py")} == NEEDED.keys() | ELSEWHERE


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in NEEDED])
def test_it_says_what_it_does_and_refuses_unknown_arguments(name, monkeypatch, capsys):
    assert ends(monkeypatch, name, "--help") == 0
    assert len(capsys.readouterr().out.partition("options:")[0].split("\n\n", 1)[1].strip()) > 20, "a description"
    assert ends(monkeypatch, name, "--nothing") == 2
    assert "unrecognized arguments: --nothing" in capsys.readouterr().err
