"""The fixture of what runs on every backend."""

from backends import backend  # noqa: F401
