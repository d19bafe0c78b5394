"""One file per library, all with the same few names. Importing it imports the library, which may not be there."""

from importlib import import_module

from .base import About, Adapter, Library

OURS = "bnorm"
NAMES = ["bnorm", "numpy", "torch", "sklearn", "intelex", "river", "jax", "torch_compiled"]
SLOW = ["torch_compiled"]  # to begin with: not in a quick run

__all__ = ["NAMES", "OURS", "SLOW", "About", "Adapter", "Library", "Missing", "load"]


class Missing(RuntimeError):
    """A library cannot be imported; this says why."""


def load(name: str) -> Library:
    try:
        return import_module(f"{__name__}.{name}").LIBRARY
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        raise Missing("not installed" if absent else str(error)) from error
