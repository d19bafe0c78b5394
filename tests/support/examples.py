"""Examples run inside of this process, where no more is asked than a process of its own would show in two seconds."""

import runpy
import sys
from pathlib import Path

import pytest


def ends(monkeypatch, path: Path, *arguments: object):
    """What an example ends with when it is run with these arguments: its exit status, or what it says instead."""
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(path), run_name="__main__")
    return caught.value.code
