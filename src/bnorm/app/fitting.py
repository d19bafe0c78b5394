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
from bnorm.app.choosing import check_same_columns, choose, tell
from bnorm.app.dialects import Dialect
from bnorm.app.errors import DataError
from bnorm.app.inputs import Stream, find
from bnorm.app.progress import Interrupted, Progress, Signals
from bnorm.app.sources import Source
from bnorm.app.states import Learned, Step
from bnorm.app.transforming import infinite

EVERY = 60.0  # seconds between checkpoints


def fit(args: argparse.Namespace) -> dict[str, Any]:
    """Run the command. Returns a summary."""
    sources = find(args.data, dialect := Dialect.of(args))
    names = choose(sources[0], args.columns, args.exclude, args.weight)
    stream = Stream(sources, [*names, *([args.weight] if args.weight else [])])
    if not args.columns:
        check_same_columns(sources, [*stream.numbers, *(args.exclude or ())])
    asked = _asked(args, sources, names, dialect)
    if not args.quiet:
        tell(sources[0], names, _wishes(args))
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
        self._steps: list[Step] = []
        self._missing: Any = 0
        self._left, self._weighted = rows, False

    def add(self, columns: Sequence[ndarray], weight: ndarray | None = None) -> None:
        """Add the next rows, given as one column for each feature, and their weights."""
        start, stop, total = 0, 0, len(columns[0])
        while stop < total:
            start, stop = stop, min(total, stop + self._left)
            rows = slice(start, stop)
            piece = columns if stop - start == total else [column[rows] for column in columns]
            step = self.learned.step(piece, None if weight is None else weight[rows])
            if not np.isfinite(step.parts[2]).all() and any(np.isinf(column).any() for column in piece):
                raise FloatingPointError("an infinite value")
            self._steps.append(step)
            if weight is not None:
                self._weighted = True
                self._missing = self._missing + np.array([np.count_nonzero(np.isnan(column)) for column in piece])
            self._left -= stop - start
            if not self._left:
                self.commit()

    def commit(self) -> None:
        """Learn the rows since the last batch as a batch, even if it is shorter than the others."""
        if self._steps:
            with self._signals.held():
                self.learned.take(self._steps, self._missing, self._weighted)
                self._steps, self._missing, self._left = [], 0, self._rows


def learn(
    stream: Stream,
    learner: Learner,
    progress: Progress,
    weight: str | None = None,
    keep: Callable[[], None] | None = None,
) -> None:
    """Learn all rows of a stream except those that are known already. `keep` is called every minute."""
    last = time.monotonic()
    with one_thread(), closing(stream.read(learner.learned.rows)) as batches:
        for batch in batches:
            columns = [arrow.values(column) for column in batch.columns]
            w = _weights(columns.pop(), stream, weight) if weight else None
            try:
                learner.add(columns, w)
            except FloatingPointError:
                found = next(i for i, column in enumerate(columns) if np.isinf(column).any())
                raise infinite(columns[found], stream, stream.numbers[found]) from None
            progress.add(batch.num_rows, stream.progress)
            if keep and time.monotonic() - last > EVERY:
                keep()
                last = time.monotonic()
    learner.commit()


def _weights(column: ndarray, stream: Stream, name: str) -> ndarray:
    """The weights of a batch, float64."""
    weight = column.astype(np.float64, copy=False)
    good = (weight >= 0) & (weight < np.inf)
    if not good.all():
        i = int(good.argmin())
        raise DataError(
            f"{stream.where}: column {name!r}, row {stream.row + i + 1}: expected a finite weight >= 0, got {weight[i]}"
        )
    return weight


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
    """Why columns are no features although they could be: because the user says so."""
    return dict.fromkeys(args.exclude or (), "excluded") | ({args.weight: "weights"} if args.weight else {})


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
        "history": args.history,
        "exact": args.exact,
        "batch_rows": args.batch_rows,
        "dialect": dialect.said(),
    }
