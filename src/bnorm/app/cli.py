"""The command line: `bnorm demo`, `bnorm info`. Each command imports what it needs when it runs."""

import argparse
from collections.abc import Sequence

from bnorm import __version__


def positive(text: str) -> int:
    """An argument that counts something, at least one."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above zero, got {text!r}")
    return number


def demo(args: argparse.Namespace) -> None:
    from bnorm.app.demo import run

    run(args.batch_size)


def info(args: argparse.Namespace) -> None:
    from bnorm.config import show_config

    show_config()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="bnorm", description="Normalization with streaming statistics.")
    top.add_argument("--version", action="version", version=f"bnorm {__version__}")
    commands = top.add_subparsers(metavar="command", required=True)

    text = "stream a data set through running statistics and print it before and after"
    command = commands.add_parser("demo", help=text, description=text)
    command.add_argument("--batch-size", type=positive, default=64, metavar="ROWS", help="rows per batch (64)")
    command.set_defaults(run=demo)

    text = "print versions, SIMD level, threads and OpenMP runtime"
    command = commands.add_parser("info", help=text, description=text)
    command.set_defaults(run=info)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 2 where the arguments are wrong (argparse exits)."""
    args = parser().parse_args(argv)
    args.run(args)
    return 0
