"""Libraries that take seconds to import: by the first test that uses them, not by every process that collects tests."""

from importlib import import_module
from importlib.util import find_spec

import pytest


class Later:
    """A module, imported when it is first asked for a name; but not for one that begins with an underscore, as pytest
    asks whatever a test file has, so as to find fixtures."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def later(name: str, reason: str) -> Later:
    """In the place of `pytest.importorskip`."""
    if find_spec(name) is None:
        pytest.skip(reason, allow_module_level=True)
    return Later(name)
