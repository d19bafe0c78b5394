"""Examples run inside of this process, which has imported what takes them as long as all else that they do: with
`-m slow` tests/package/test_examples_alone.py runs each as a person runs it."""

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


def shown(monkeypatch, capsys, path: Path, *arguments: object):
    """What an example that comes to its end shows when it is run with these arguments, in `out` and `err`. Warnings
    are errors."""
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr()
