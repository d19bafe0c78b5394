"""The fixture of all tests of the command."""

import pytest

from commands import Command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
