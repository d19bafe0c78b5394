"""Lists in arguments: names or marks, separated by commas, and in quotes as in CSV if they have commas themselves."""

import argparse
import re
from collections.abc import Iterable

FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^,]*)),')
HELP = "Names in a list are separated by commas. One that has a comma is quoted as in CSV: --columns '\"x, y\",z'"


def texts(given: str) -> list[str]:
    """The texts of a list. Quotes that do not enclose a whole text are a part of it."""
    return [quoted.replace('""', '"') or plain for quoted, plain in FIELD.findall(f"{given},")]


def names(given: str) -> list[str]:
    """Names of columns, each once. The first may be empty, as a column may have no name."""
    if given and not given.strip(","):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {given!r}")
    return list(dict.fromkeys(name for i, name in enumerate(texts(given)) if name or i == 0))


def joined(found: Iterable[str]) -> str:
    """Return texts as the list that stands for them."""
    return ",".join(
        '"{}"'.format(text.replace('"', '""')) if "," in text or text.startswith('"') else text for text in found
    )
