"""`bnorm fit`: tables of any size as one stream, in constant memory."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import arrow, get_num_threads, set_num_threads
from bnorm.app import places
from bnorm.app.choosing import check_same_columns, choose, listed, tell
from bnorm.app.dialects import Dialect
from bnorm.app.errors import DataError
from bnorm.app.inputs import Stream, find
from bnorm.app.progress import Interrupted, Progress, Signals
from bnorm.app.rows import Rows
from bnorm.app.sources import Source
from bnorm.app.states import WHO, Learned, Piece
from bnorm.exact import HEAVIEST
from bnorm.running import TooLarge
from bnorm.transformer.times import Times, read

EVERY = 60.0  # seconds between checkpoints


def fit(args: argparse.Namespace) -> dict[str, Any]:
    """Run the command. Returns a summary."""
    sources = find(args.data, dialect := Dialect.of(args))
    column, exclude = time_column(args, sources[0]), args.exclude
    if column and not args.columns:
        exclude = [*(exclude or ()), column]
    names = choose(sources[0], args.columns, exclude, args.weight)
    stream = Stream(sources, [*names, *([args.weight] if args.weight else [])], [column] if column else [])
    if not args.columns:
        check_same_columns(sources, [*stream.numbers, *(exclude or ())])
    asked = _asked(args, sources, names, dialect)
    if not args.quiet:
        tell(sources[0], names, wishes(args))
    learned = (
        Learned.resumed(args.resume, asked)
        if args.resume
        else Learned.new(names, args.momentum, args.halflife, args.history, args.exact)
    )
    learner = Learner(learned, args.batch_rows, args.signals)
    checkpoint = args.checkpoint or args.resume
    places.keep([s.name for s in sources if s.path], [args.output, *([checkpoint] if checkpoint else [])])
    with Progress("fit", stream.size, args.quiet) as progress:
        try:
            learn(stream, learner, progress, args.weight, checkpoint and (lambda: learned.save(checkpoint, asked)))
        except (Interrupted, DataError):
            if checkpoint:
                with args.signals.held():
                    learned.save(checkpoint, asked)
                    args.goes_on = ["--resume", checkpoint]
            raise
    if not learned.rows:
        raise DataError(f"{sources[0].name}: expected rows, got none")
    with args.signals.held():
        learned.save(args.output)
        if checkpoint:
            Path(checkpoint).unlink(missing_ok=True)
    if not args.quiet:
        for name in learned.unseen():
            print(f"bnorm: column {name!r} has no values: its statistics are NaN", file=sys.stderr)
    return {
        "rows": learned.rows,
        "columns": len(names),
        "seconds": round(progress.seconds, 3),
        "output": args.output,
    }


class Learner:
    """Collects pieces of any length into batches of `rows` rows. Only whole batches are learned, so the statistics are
    always those of the first rows of the stream.
    """

    def __init__(self, learned: Learned, rows: int, signals: Signals | None = None) -> None:
        self.learned, self._rows, self._signals = learned, rows, signals or Signals()
        self._pieces: list[Piece] = []
        self._left = rows

    def add(self, table: Rows, weight: ndarray | None = None, times: Times | None = None) -> None:
        """Add the next rows, their weights and their times."""
        fitted, stop = self.learned.fitted, 0
        while stop < table.rows:
            start, stop = stop, min(table.rows, stop + self._left)
            rows, w = table.cut(start, stop), None if weight is None else weight[start:stop]
            when = None if times is None else Times.of(times.ns[start:stop], times.kind, times.column)
            exact = fitted.sums is not None
            steps, sums = ([], rows.exact(w)) if exact else (fitted.steps(rows, w, when), None)
            missing = None if w is None else np.array([np.count_nonzero(np.isnan(column)) for column in rows.columns])
            self._pieces.append(Piece(rows.rows, steps, sums, rows.extremes(w), missing))
            self._left -= rows.rows
            if not self._left:
                self.commit()

    def commit(self) -> None:
        """Learn the rows since the last batch as a batch, even if it is shorter than the others."""
        if self._pieces:
            with self._signals.held():
                self.learned.take(self._pieces)
                self._pieces, self._left = [], self._rows


def learn(
    stream: Stream,
    learner: Learner,
    progress: Progress,
    weight: str | None = None,
    keep: Callable[[], None] | None = None,
) -> None:
    """Learn all rows of a stream except those that are known already. `keep` is called every minute."""
    last = time.monotonic()
    name = stream.others[0] if stream.others else None  # the column of times
    try:
        with one_thread(), closing(stream.read(learner.learned.rows)) as batches:
            for batch in batches:
                if known := progress.rows == 0 and learner.learned.rows:
                    progress.resume(known, stream.progress)
                columns = [arrow.values(column) for column in batch.columns[: len(stream.numbers)]]
                times = moments_of(batch.column(name), name, stream) if name else None
                w = (
                    weights_of(columns.pop(), stream, weight, learner.learned.fitted.sums is not None)
                    if weight
                    else None
                )
                learner.add(Rows(columns, stream.numbers[: len(columns)], stream.where, stream.row), w, times)
                progress.add(batch.num_rows, stream.progress)
                if keep and time.monotonic() - last > EVERY:
                    keep()
                    last = time.monotonic()
        learner.commit()
    except TooLarge as error:
        raise _too_large(error, stream, weight) from None


def _too_large(error: TooLarge, stream: Stream, weight: str | None) -> DataError:
    name = weight if error.weights else stream.numbers[error.channel]
    what = "weights whose sum" if error.weights else "values whose mean"
    return DataError(f"{stream.where}: column {name!r}: expected {what} float64 can hold, got too large ones")


def weights_of(column: ndarray, stream: Stream, name: str, whole: bool) -> ndarray:
    """The weights of a batch, float64. whole: whether sums are exact, which those of fractions are not."""
    weight = column.astype(np.float64, copy=False)
    good = (weight >= 0) & (weight < (HEAVIEST if whole else np.inf))
    if whole:
        good &= weight == np.floor(weight)
    if not good.all():
        i = int(good.argmin())
        expected = "a whole weight from 0 to 2^31 - 1, as sums are exact" if whole else "a finite weight >= 0"
        raise DataError(
            f"{stream.where}: column {name!r}, row {stream.row + i + 1}: expected {expected}, got {weight[i]}"
        )
    return weight


def moments_of(column: Any, name: str, stream: Stream) -> Times:
    """The times of a batch, from a column of time stamps, of text in the form of ISO 8601, or of seconds."""
    import pyarrow as pa

    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = _parsed(column)
        return read(WHO, column, len(column), name)
    except (ValueError, TypeError, pa.ArrowException) as error:
        what = str(error).removeprefix(f"{WHO}: ")
        raise DataError(
            f"{stream.where}: column {name!r}, rows from {stream.row + 1} on: {what.splitlines()[0]}"
        ) from None


def _parsed(column: Any) -> Any:
    """Text as time stamps, or as numbers of seconds."""
    import pyarrow as pa

    for kind in (pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid as error:
            failed = error
    raise failed


def time_column(args: argparse.Namespace, first: Source) -> str | None:
    """The column of times; DataError unless there is one if, and only if, the half-life is a length of time."""
    column: str | None = args.time_column
    if isinstance(args.halflife, str) != (column is not None):
        wanted = "one beside a half-life that is a length of time" if column is None else "none beside rows that count"
        raise DataError(f"--time-column: expected {wanted}, got {column!r} beside --halflife {args.halflife}")
    if column is None:
        return None
    if column not in first.columns:
        raise DataError(f"{first.name}: expected a column {column!r}, got {listed(first.columns)}")
    if column in (args.columns or ()) or column == args.weight:
        raise DataError(f"{first.name}: column {column!r}: expected either times or a feature or weight, got both")
    return column


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit kernels to one thread: the reader uses the others, and two threads on one core are slower than one."""
    before = get_num_threads()
    set_num_threads(1)
    try:
        yield
    finally:
        set_num_threads(before)


def wishes(args: argparse.Namespace) -> dict[str, str]:
    """Why columns are no features although they could be: because the user says so."""
    beside = {args.weight: "weights"} if args.weight else {}
    beside |= {args.time_column: "times"} if args.time_column else {}
    return dict.fromkeys(args.exclude or (), "excluded") | beside


def _asked(
    args: argparse.Namespace, sources: Sequence[Source], names: Sequence[str], dialect: Dialect
) -> dict[str, Any]:
    """The settings that must be the same in a checkpoint and in the command that resumes from it."""
    return {
        "files": [[s.name, s.size] for s in sources],
        "columns": list(names),
        "momentum": args.momentum,
        "halflife": args.halflife,
        "weight": args.weight,
        **({"time_column": args.time_column} if args.time_column else {}),
        "history": args.history,
        "exact": args.exact,
        "batch_rows": args.batch_rows,
        "dialect": dialect.said(),
    }
