"""The fixtures of the tests of the command."""

from pathlib import Path

import pytest

from commands import Command, table_with_gaps, write


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def state(command: Command, tmp_path: Path) -> Path:
    """What it has learned of a table with missing values."""
    command("fit", write(tmp_path / "learn.parquet", table_with_gaps()), "-o", tmp_path / "s.npz")
    return tmp_path / "s.npz"


@pytest.fixture
def means(command, tmp_path):
    """The mean of each feature of a CSV file with this text, by name."""

    def run(text, *asked):
        data = tmp_path / "x.csv"
        data.write_bytes(text if isinstance(text, bytes) else text.encode())
        command("fit", data, "-o", tmp_path / "s.npz", "--force", *asked)
        return {f["feature"]: f["mean"] for f in command("show", tmp_path / "s.npz", "--json").json["features"]}

    return run
