"""The command line. Each command imports its modules when it runs.

Exit status: 0; 1 for data and files that cannot be used; 2 for wrong arguments; 128 + the number of a signal.
"""

import argparse
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bnorm import __version__
from bnorm.app.dialects import Dialect, add_options
from bnorm.app.errors import ArgumentsError, DataError, NotANumberError, option
from bnorm.app.lists import HELP, names

STATE_HELP = "the state file, .safetensors or .npz"
FILES_HELP = "CSV, Parquet or Arrow files, folders of them, globs"
DATA_HELP = f"{FILES_HELP}; - is standard input"
OUT_HELP = (
    "the table, whose suffix sets the format: .csv, .tsv (also .csv.gz and the like), .parquet, .arrow; "
    "- is CSV to standard output; FOLDER/ is one file for each input, in its format"
)
BATCH_ROWS = 65_536


def number(kind: type, low: float, high: float, text: str) -> Callable[[str], Any]:
    """A parser for an argument above `low` and up to `high`."""

    def parse(given: str) -> Any:
        try:
            value = kind(given)
        except ValueError:
            value = low
        if not low < value <= high:
            raise argparse.ArgumentTypeError(f"expected {text}, got {given!r}")
        return value

    return parse


moments = number(int, 1, 2**31 - 1, "a whole number above one")
count = number(int, 0, float("inf"), "a whole number above zero")
momentum = number(float, 0, 1, "a number above 0 and at most 1")
seconds = number(float, 0, 3600, "seconds above 0")
_rows = number(float, 0, sys.float_info.max, "a number of rows above 0, or a length of time such as 10min")


def halflife(text: str) -> float | str:
    """A number of rows, or a length of time."""
    from bnorm.transformer.durations import nanoseconds

    try:
        nanoseconds(text)
    except ValueError:
        return _rows(text)  # type: ignore[no-any-return]
    return text


def state_name(text: str) -> str:
    """The name of a state file."""
    from bnorm.files.container import suffix_of

    try:
        suffix_of("", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(": path: ")) from None
    return text


def table_name(text: str) -> str:
    """The name of a table that can be written, or of a folder for several."""
    from bnorm.app.several import is_folder
    from bnorm.app.writers import check_suffix

    if is_folder(text):
        return text
    try:
        check_suffix(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; that of a new folder ends in /") from None
    return text


def picture_name(text: str) -> str:
    """The name of a picture."""
    if Path(text).suffix.lower() not in (".svg", ".png", ".pdf"):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .svg, .png or .pdf, got {text!r}")
    return text


def fit(args: argparse.Namespace) -> None:
    from bnorm.app import fitting, grouped
    from bnorm.app.showing import counted

    if not args.by and (wants := "--prior" if args.prior else "--text" if args.text else None):
        raise ArgumentsError(f"{wants}: expected --by with it, the columns of keys, got none")
    said = (grouped if args.by else fitting).fit(args)
    groups = f"{counted(said['groups'], 'group')}, " if args.by else ""
    done = f"{groups}{counted(said['columns'], 'feature')} of {counted(said['rows'], 'row')}"
    tell(args, said, f"{said['output']}: {done}, in {said['seconds']:.1f} s")


def transform(args: argparse.Namespace) -> None:
    from bnorm.app import transforming
    from bnorm.app.showing import counted

    said = transforming.run(args)
    n = said.get("done_before")
    before = f" ({n:,} of them {'was' if n == 1 else 'were'} done before)" if n else ""
    files = f"{counted(said['files'], 'file')}{before}, " if "files" in said else ""
    what = "restored" if args.inverse else "normalized"
    done = f"{files}{counted(said['rows'], 'row')}, {counted(said['columns'], 'column')} {what}"
    tell(args, said, f"{said['output']}: {done}, in {said['seconds']:.1f} s")


def merge(args: argparse.Namespace) -> None:
    from bnorm.app import grouped
    from bnorm.app.showing import counted

    grouped.save(grouped.merge(args.states), args.output)
    n = len(args.states)
    tell(args, {"output": args.output, "states": n}, f"{args.output}: {counted(n, 'state')} merged")


def forget(args: argparse.Namespace) -> None:
    from bnorm.app import forgetting
    from bnorm.app.showing import counted

    said = forgetting.forget(args)
    tell(args, said, f"{said['output']}: {counted(said['rows'], 'row')} forgotten, {said['left']:,} left")


def show(args: argparse.Namespace) -> None:
    from bnorm.app import showing

    showing.show(args.state, args.json)


def plot(args: argparse.Namespace) -> None:
    from bnorm.app import plotting

    plotting.plot(args.data, args.output, args.columns, Dialect.of(args), args.quiet)
    tell(args, {"output": args.output}, args.output)


def info(args: argparse.Namespace) -> None:
    from bnorm.config import show_config

    show_config()


def bench(args: argparse.Namespace) -> None:
    from bnorm.app import bench

    bench.run(args.seconds, args.json)


def tune(args: argparse.Namespace) -> None:
    from bnorm.app import tuning

    tuning.run(args.seconds, args.forget, args.json)


def demo(args: argparse.Namespace) -> None:
    from bnorm.app import demo

    demo.run(args.folder, args.megabytes, args.quiet)


def tell(args: argparse.Namespace, said: dict[str, Any], text: str) -> None:
    """Print the summary of a command on standard output, or on standard error if the table went there."""
    file = sys.stderr if said.get("output") == "-" else sys.stdout
    if args.json:
        from bnorm.app.showing import in_json

        print(json.dumps(in_json(said), allow_nan=False), file=file)
    elif not args.quiet:
        print(text, file=file)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="bnorm",
        description="Learn means and variances from tables of any size, and normalize with them.",
        epilog="Example: bnorm fit in.csv -o state.npz, then bnorm transform in.csv --state state.npz -o out.csv",
    )
    top.add_argument("--version", action="version", version=f"bnorm {__version__}")
    commands = top.add_subparsers(metavar="command", required=True)

    def add(run: Callable[[argparse.Namespace], None], text: str, *parents: argparse.ArgumentParser) -> Any:
        command = commands.add_parser(run.__name__, help=text, description=text, parents=list(parents))
        command.set_defaults(run=run)
        return command

    speech = argparse.ArgumentParser(add_help=False)
    speech.add_argument("--quiet", action="store_true", help="no progress, no summary")
    speech.add_argument("--json", action="store_true", help="print the summary as JSON")
    writing = argparse.ArgumentParser(add_help=False, parents=[speech])
    writing.add_argument("--force", action="store_true", help="overwrite existing files")
    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("data", nargs="+", metavar="DATA", help=DATA_HELP)
    add_options(reading)

    _add_options_of_fit(add(fit, "learn the statistics of tables, and write them to a state file", reading, writing))
    _add_options_of_transform(add(transform, "normalize tables by a state file, or undo that", reading, writing))

    command = add(merge, "merge state files that were learned separately", writing)
    command.add_argument("states", nargs="+", type=state_name, metavar="STATE", help="state files of the same features")
    command.add_argument("-o", "--output", required=True, type=state_name, metavar="STATE", help=STATE_HELP)

    command = add(forget, "take rows out of a state file that bnorm fit --exact wrote", writing)
    command.add_argument("state", type=state_name, metavar="STATE", help=STATE_HELP)
    command.add_argument("data", nargs="+", metavar="ROWS", help=DATA_HELP)
    add_options(command)
    command.add_argument("-o", "--output", required=True, type=state_name, metavar="STATE", help=STATE_HELP)
    command.add_argument("--weight", metavar="COLUMN", help="the column that says how much each row counted")
    command.set_defaults(batch_rows=BATCH_ROWS)

    command = add(show, "print the statistics in a state file")
    command.add_argument("state", type=state_name, metavar="STATE", help=STATE_HELP)
    command.add_argument("--json", action="store_true", help="print JSON")

    command = add(plot, "draw the history of state files, or a table before and after normalization", writing)
    command.add_argument("data", nargs="+", metavar="DATA", help=f"state files; or tables: {FILES_HELP}")
    add_options(command)
    command.add_argument("-o", "--output", required=True, type=picture_name, metavar="PICTURE", help=".svg, .png, .pdf")
    command.add_argument("--columns", type=names, metavar="A,B", help="draw only these")
    command.epilog = HELP

    add(info, "print versions, SIMD level, threads and OpenMP runtime")

    command = add(bench, "measure how fast this machine copies and normalizes")
    command.add_argument("--seconds", type=seconds, default=10.0, help="duration (default: 10)")
    command.add_argument("--json", action="store_true", help="print JSON")

    command = add(tune, "measure the best sizes for the caches of this machine, and use them from now on")
    command.add_argument("--seconds", type=seconds, default=6.0, help="duration (default: 6)")
    command.add_argument("--forget", action="store_true", help="remove these sizes; measure nothing")
    command.add_argument("--json", action="store_true", help="print JSON")

    command = add(demo, "fit and transform a generated table, larger than the memory used")
    command.add_argument("--folder", type=Path, help="a new folder for the results (default: a temporary one)")
    command.add_argument("--megabytes", type=count, default=320, metavar="N", help="size of the table (default: 320)")
    command.add_argument("--quiet", action="store_true", help="no progress")
    return top


def _add_options_of_fit(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", required=True, type=state_name, metavar="STATE", help=STATE_HELP)
    ways = command.add_mutually_exclusive_group()
    ways.add_argument("--pooled", action="store_true", help="every row weighs the same (the default)")
    ways.add_argument("--exact", action="store_true", help="the same, with exact sums: see bnorm forget")
    ways.add_argument("--momentum", type=momentum, metavar="M", help="moving average: the weight of a new batch")
    ways.add_argument(
        "--halflife",
        type=halflife,
        metavar="ROWS|TIME",
        help="rows after which the weight of a row has halved, or a length of time such as 10min, with --time-column",
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument("--columns", type=names, metavar="A,B", help="only these (default: all columns of numbers)")
    which.add_argument("--exclude", type=names, metavar="A,B", help="all columns of numbers except these")
    command.add_argument("--weight", metavar="COLUMN", help="the column that says how much each row counts")
    command.add_argument(
        "--time-column", metavar="COLUMN", help="the column of time stamps, or seconds, for --halflife TIME"
    )
    command.add_argument("--by", type=names, metavar="A,B", help="statistics of each group; these columns are its keys")
    command.add_argument("--text", type=names, default=[], metavar="A,B", help="keys in CSV files to take for text")
    command.add_argument(
        "--prior",
        type=number(float, -1e-300, sys.float_info.max, "a number of at least 0"),
        default=0.0,
        metavar="K",
        help="add K rows with the statistics of all rows to each group (default: 0)",
    )
    command.add_argument(
        "--batch-rows", type=count, default=BATCH_ROWS, metavar="N", help=f"rows of a batch (default: {BATCH_ROWS})"
    )
    command.add_argument("--history", type=moments, metavar="N", help="keep at most N records, for bnorm plot")
    command.add_argument("--checkpoint", type=state_name, metavar="FILE", help="save progress here every minute")
    command.add_argument("--resume", type=state_name, metavar="FILE", help="continue from a checkpoint of this command")
    command.epilog = HELP


def _add_options_of_transform(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state", required=True, type=state_name, help=STATE_HELP)
    command.add_argument("-o", "--output", required=True, type=table_name, metavar="OUT", help=OUT_HELP)
    command.add_argument("--inverse", action="store_true", help="from normalized values back to the originals")
    command.add_argument("--dtype", choices=["float32", "float64"], help="the type of the normalized columns")
    command.add_argument("--columns", type=names, metavar="A,B", help="normalize only these; others stay as they are")
    command.add_argument("--drop", type=names, default=[], metavar="A,B", help="leave these columns out")
    command.add_argument(
        "--text",
        type=names,
        default=[],
        metavar="A,B",
        help="write these columns of CSV files as text to other formats",
    )
    command.add_argument(
        "--resume", action="store_true", help="continue an interrupted command that writes to a folder"
    )
    command.epilog = HELP


def check_outputs(args: argparse.Namespace) -> None:
    """DataError for files that must not be written, before any work is done."""
    from bnorm.app import places, several

    output, checkpoint, resume = (getattr(args, name, None) for name in ("output", "checkpoint", "resume"))
    if output in (None, "-") or (args.run is transform and several.is_folder(output)):
        return
    written = [output, checkpoint] if checkpoint else [output]
    given = [
        *getattr(args, "data", ()),
        *getattr(args, "states", ()),
        *([args.state] if args.run in (transform, forget) else ()),
    ]
    if isinstance(resume, str):
        given.append(resume)
        if not checkpoint or places.same(checkpoint, resume):  # the checkpoint continues in this file
            places.check([resume], force=True)
            written = [output]
    places.keep(given, written)
    places.check(written, args.force)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; argparse exits with 2 if the arguments are wrong."""
    from bnorm.app.progress import Interrupted, Signals

    open_streams()
    args = parser().parse_args(argv)
    args.goes_on = []  # further arguments that continue the command after an interrupt
    try:
        with Signals() as args.signals:
            check_outputs(args)
            args.run(args)
            sys.stdout.flush()
    except Interrupted as stop:
        print("bnorm: interrupted", file=sys.stderr)
        if args.goes_on:
            given = sys.argv[1:] if argv is None else list(argv)
            more = [] if args.resume in (True, args.goes_on[-1]) else args.goes_on  # the last --resume counts
            end = given.index("--") if "--" in given else len(given)  # after it are names, whatever they begin with
            goes_on = shlex.join(["bnorm", *given[:end], *more, *given[end:]])
            print(f"bnorm: to continue: {goes_on}", file=sys.stderr)
        return stop.code
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except NotANumberError as error:
        return failed(DataError(f"{error}; {ways_out(error, args)}"))
    except (DataError, ValueError, ImportError, MemoryError) as error:
        return failed(error)
    except OSError as error:
        named = error.filename or "standard input or output"  # such as a full disk behind it
        return failed(DataError(f"{named}: {error.strerror}") if error.strerror else error)
    return 0


def open_streams() -> None:
    """Make sure that messages can be printed: into nothing if a stream is closed, and with escapes for letters that its
    encoding lacks. Python sets a closed stream to None, and would print what belongs there on the other one.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper) and (
            stream.errors == "strict" or (stream.errors == "surrogateescape" and stream.encoding != "utf-8")
        ):
            stream.reconfigure(errors="backslashreplace")


def ways_out(error: NotANumberError, args: argparse.Namespace) -> str:
    """What can be done about a value that is not a number."""
    if error.value == error.column:
        return "a header stands there again; files that are given by name are read one after the other"
    excludable = hasattr(args, "exclude") and not args.columns
    excluded = f"{option('--exclude', error.column)} leaves the column out, " if excludable else ""
    return f"{excluded}{option('--null-values', error.value)} or --on-error null takes it for missing"


def failed(error: Exception) -> int:
    print(f"bnorm: error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    return 2 if isinstance(error, ArgumentsError) else 1
