"""`bnorm fit`: tables of any size as one stream, in constant memory."""

import argparse
import sys
import time
from bisect import bisect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import arrow, get_num_threads, set_num_threads
from bnorm.app import places
from bnorm.app.ahead import alone, together
from bnorm.app.choosing import check_same_columns, choose, refuse_unknown, tell
from bnorm.app.dialects import Dialect
from bnorm.app.errors import ArgumentsError, DataError
from bnorm.app.guessing import cast, casts, holds_text
from bnorm.app.inputs import Stream, find, once
from bnorm.app.progress import Interrupted, Progress, Signals
from bnorm.app.rows import Rows
from bnorm.app.sources import Place, Source
from bnorm.app.states import WHO, Learned, Piece, beside, piece_of
from bnorm.exact import HEAVIEST
from bnorm.running import TooLarge
from bnorm.transformer.fitted import Fitted
from bnorm.transformer.times import Times, read

EVERY = 60.0  # seconds between checkpoints
MOST_SHARES = 4  # threads, each of which reads a share of the columns: more would wait for the lock of Python
AHEAD = 2  # batches by which each of these threads may be ahead, so that none waits for another
MOST_PIECES = 64  # pieces in one `Told`: a batch may have as many pieces as rows


def fit(args: argparse.Namespace) -> dict[str, Any]:
    """Run the command. Returns a summary."""
    sources = find(args.data, dialect := Dialect.of(args))
    column = time_column(args, sources[0])
    names, stream = chosen(args, sources, [column] if column else [])
    asked = _asked(args, sources, names, dialect)
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


def chosen(args: argparse.Namespace, sources: Sequence[Source], beside: list[str]) -> tuple[list[str], Stream]:
    """Return the features to learn, and the stream of them and of the weights. Print which they are, unless --quiet.

    beside: further columns of the stream, which are not features.
    """
    once(sources)
    exclude = [] if args.columns else [*(args.exclude or ()), *beside]
    names = choose(sources[0], args.columns, exclude, args.weight)
    stream = Stream(sources, [*names, *([args.weight] if args.weight else [])], beside)
    if not args.columns:
        check_same_columns(sources, [*stream.numbers, *exclude])
    if not args.quiet:
        tell(sources[0], names, _wishes(args))
    return names, stream


class Learner:
    """Collects pieces of any length into batches of `rows` rows. Only full batches are learned, so the statistics are
    always those of the first rows of the stream.
    """

    def __init__(self, learned: Learned, rows: int, signals: Signals | None = None) -> None:
        self.learned, self.rows, self._signals = learned, rows, signals or Signals()
        self._pieces: list[Piece] = []
        self._left = rows

    def add(self, pieces: Sequence[Piece | DataError]) -> None:
        """Add the next rows, which are all of one batch, as a piece for each share of the columns."""
        found = []
        for piece in pieces:
            if isinstance(piece, DataError):
                raise piece
            found.append(piece)
        self._pieces.append(beside(found))
        self._left -= found[0].rows
        if not self._left:
            self.commit()

    def commit(self) -> None:
        """Learn the rows since the last batch as a batch, even if they are fewer than `rows`."""
        if self._pieces:
            with self._signals.held():
                self.learned.take(self._pieces)
                self._pieces, self._left = [], self.rows


def learn(
    stream: Stream,
    learner: Learner,
    progress: Progress,
    weight: str | None = None,
    keep: Callable[[], None] | None = None,
) -> None:
    """Learn all rows of a stream except those that have been learned already. `keep` is called every minute."""
    last, where = time.monotonic(), stream.where
    fitted, skip = learner.learned.fitted, learner.learned.rows
    fades = fitted.statistics.halflife is not None
    shares = [stream] if fades else stream.shares(min(MOST_SHARES, get_num_threads()), [weight] if weight else [])
    told = [_told(share, fitted, skip, learner.rows, weight) for share in shares]
    try:
        with one_thread(), closing(together(told, AHEAD) if len(told) > 1 else alone(told[0])) as batches:
            for parts in batches:
                if len({part and part.rows for part in parts}) > 1:
                    raise DataError(f"{where}: expected columns of one length, got others")
                _, where, position, _ = parts[0]
                if skip and not progress.rows:
                    progress.resume(skip, position)
                for pieces in zip(*[part.pieces for part in parts], strict=True):
                    learner.add(pieces)
                progress.add(parts[0].rows, position)
                if keep and time.monotonic() - last > EVERY:
                    keep()
                    last = time.monotonic()
        learner.commit()
    except TooLarge as error:
        raise too_large(error, where, stream.numbers, weight) from None


def too_large(error: TooLarge, where: str, numbers: Sequence[str], weight: str | None) -> DataError:
    """The error for a column whose statistics float64 cannot hold."""
    name = weight if error.weights else numbers[error.channel]
    what = "weights whose sum" if error.weights else "values whose mean"
    return DataError(f"{where}: column {name!r}: expected {what} float64 can hold, got too large ones")


class Told(NamedTuple):
    """Some rows of a stream, in pieces that end where batches of the statistics end; an error replaces its piece."""

    rows: int
    where: str
    position: float
    pieces: list[Piece | DataError]


def _told(stream: Stream, fitted: Fitted, skip: int, most: int, weight: str | None) -> Generator[Told]:
    """Yield the rows from `skip` on, in pieces. Each batch of the statistics has `most` rows.

    The thread that has read rows also sums them, while they are in the cache of its core. After that only sums remain.
    """
    name, done = stream.others[0] if stream.others else None, 0  # the column of times
    for batch in stream.read(skip):
        columns = [arrow.numbers(column) for column in batch.columns[: len(stream.numbers)]]
        times = times_of(batch.column(name), name, stream) if name else None
        w = weights_of(columns.pop(), stream, weight, fitted.sums is not None) if weight else None
        pieces: list[Piece | DataError] = []
        first = stop = 0
        while stop < batch.num_rows:
            start, stop = stop, min(batch.num_rows, stop + most - done % most)
            done += stop - start
            some = [column[start:stop] for column in columns] if stop - start < batch.num_rows else columns
            place = stream.place._replace(before=stream.row + start)
            given = None
            if fitted.sums is not None:
                given = [column.slice(start, stop - start) for column in batch.columns[: len(some)]]
            rows = Rows(some, stream.numbers[: len(some)], place, given)
            when = None if times is None else Times.of(times.ns[start:stop], times.kind, times.column)
            try:
                pieces.append(piece_of(fitted, rows, None if w is None else w[start:stop], when))
            except DataError as error:
                pieces.append(error)
            except ValueError as error:
                if when is None:  # otherwise these times are of another kind than those before
                    raise
                pieces.append(DataError(f"{stream.where}: column {name!r}: {str(error).partition(': ')[2]}"))
            if len(pieces) == MOST_PIECES or stop == batch.num_rows:
                yield Told(stop - first, stream.where, stream.progress, pieces)
                pieces, first = [], stop


def weights_of(column: ndarray, stream: Stream, name: str, whole: bool) -> ndarray:
    """Return the weights of a batch, float64. whole: whether they must be integers, for exact sums."""
    weight = column.astype(np.float64, copy=False)
    good = (weight >= 0) & (weight < (HEAVIEST if whole else np.inf))
    if whole:
        good &= weight == np.floor(weight)
    if not good.all():
        i = int(good.argmin())
        expected = "a whole weight from 0 to 2^31 - 1, as sums are exact" if whole else "a finite weight >= 0"
        raise DataError(f"{stream.place.value(name, i)}: expected {expected}, got {weight[i]}")
    return weight


def times_of(column: Any, name: str, stream: Stream) -> Times:
    """Return the times of a batch, from a column of time stamps, of text in the form of ISO 8601, or of seconds."""
    import pyarrow as pa

    place = stream.place
    try:
        if pa.types.is_dictionary(column.type):
            column = arrow.decoded(column)
        if holds_text(column.type):
            column = _parsed(column.cast(pa.string()), name, place, stream.here.dialect)
        known = np.isfinite(arrow.values(column)) if pa.types.is_floating(column.type) else arrow.present(column)
        if not known.all():
            i = int(known.argmin())
            raise DataError(f"{place.value(name, i)}: expected a time, got {column[i].as_py() or 'none'}")
        return read(WHO, column, len(column), name)
    except (ValueError, TypeError, pa.ArrowException) as error:
        what = str(error).removeprefix(f"{WHO}: ")
        raise DataError(f"{place.value(name, 0)} and below: {what.splitlines()[0]}") from None


def _parsed(column: Any, name: str, place: Place, dialect: Dialect) -> Any:
    """Return text as time stamps, or as numbers of seconds. name, place: for errors."""
    import pyarrow as pa
    from pyarrow import compute

    kinds = {
        pa.float64(): "a number of seconds",
        pa.timestamp("ns"): "a time stamp without a zone, from 1677 to 2262",
        pa.timestamp("ns", "UTC"): "a time stamp with a zone, from 1677 to 2262",
    }
    column = compute.utf8_trim_whitespace(column)
    old = int(pa.__version__.partition(".")[0]) < 26

    def wraps(kind: Any, text: Any) -> bool:
        """Whether an old version of Arrow would read a year that nanoseconds cannot hold as another one."""
        if not old or not pa.types.is_timestamp(kind):
            return False
        try:
            compute.utf8_slice_codeunits(text, 0, 10).cast(pa.timestamp("s")).cast(pa.timestamp("ns"))
        except pa.ArrowInvalid:
            return True
        return False

    for kind in kinds:
        with suppress(pa.ArrowInvalid):
            if not wraps(kind, column):
                return cast(column, kind, dialect)

    def fails(kind: Any, n: int) -> bool:
        return wraps(kind, column[:n]) or not casts(column[:n], kind, dialect)

    lengths = range(1, len(column) + 1)
    good = {kind: bisect(lengths, False, key=partial(fails, kind)) for kind in kinds}
    kind, n = max(good.items(), key=itemgetter(1))  # the type that fits the longest beginning
    expected = (
        f"{kinds[kind]}, as above" if n else "a time stamp as in ISO 8601, from 1677 to 2262, or a number of seconds"
    )
    raise DataError(f"{place.value(name, n)}: expected {expected}, got {column[n].as_py()!r}")


def time_column(args: argparse.Namespace, first: Source) -> str | None:
    """The column of times; ArgumentsError unless there is one if, and only if, the half-life is a length of time."""
    column: str | None = args.time_column
    if isinstance(args.halflife, str) != (column is not None):
        if column is None:
            raise ArgumentsError(f"--time-column: expected a column, as --halflife {args.halflife} is a time, got none")
        raise ArgumentsError(f"--time-column: expected none unless --halflife is a time such as 10min, got {column!r}")
    if column is None:
        return None
    refuse_unknown(first, [column])
    if column in (args.columns or ()) or column == args.weight:
        raise ArgumentsError(f"{first.name}: column {column!r}: expected either times or a feature or weight, got both")
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


def _wishes(args: argparse.Namespace) -> dict[str, str]:
    """Why columns are not features, as the options of the command say, by name."""
    beside = {args.weight: "weights"} if args.weight else {}
    beside |= {args.time_column: "times"} if args.time_column else {}
    return dict.fromkeys(args.exclude or (), "excluded") | beside | dict.fromkeys(args.by or (), "keys")


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
