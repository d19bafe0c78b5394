"""The command lines of the programs here: each says for --help what it does, and refuses what it does not know."""

import argparse


def parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser of `python -m benchmarks.NAME` that has no options yet; --help prints this text as it is."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
