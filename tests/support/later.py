"""Libraries that take seconds to import are imported by the first test that uses them, not when tests are collected."""

from importlib import import_module
from importlib.util import find_spec

import pytest


class Later:
    """A module that is imported when it is first asked for a name. Names that begin with an underscore do not import
    it: pytest asks everything in a test file for them, to find fixtures."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def later(name: str, reason: str) -> Later:
    """Use it instead of `pytest.importorskip`."""
    if find_spec(name) is None:
        pytest.skip(reason, allow_module_level=True)
    return Later(name)
