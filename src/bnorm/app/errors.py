"""The errors that end a command with a message of one line and an exit status: 1, or 2 for wrong arguments."""

import shlex

from bnorm.app.lists import joined


class DataError(Exception):
    """Data or a file cannot be used; the message names it."""


class ArgumentsError(DataError):
    """Arguments of a command do not go together."""


class NotANumberError(DataError):
    """A value in a column of numbers is not a number; commands say what can be done about it."""

    def __init__(self, source: str, column: str, where: str, value: str) -> None:
        super().__init__(f"{source}: column {column!r}, {where}: expected a number, got {value!r}")
        self.column, self.value = column, value


def option(name: str, *values: str) -> str:
    """Return an option of a command with its list of values, as a user types them."""
    value = joined(values)
    return f"{name}{'=' if value.startswith('-') else ' '}{shlex.quote(value)}"
