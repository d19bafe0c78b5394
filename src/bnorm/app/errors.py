"""What ends a command with one line and exit status 1."""


class DataError(Exception):
    """Data or a file that cannot be used; the message names it."""
