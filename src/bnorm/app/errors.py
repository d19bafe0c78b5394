"""The error that ends a command with a message of one line and exit status 1."""


class DataError(Exception):
    """Data or a file cannot be used; the message names it."""
