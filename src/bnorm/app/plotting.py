"""`bnorm plot`: draws the displays of `bnorm.plot` from state files or from a table."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app import grouped
from bnorm.app.choosing import choose
from bnorm.app.dialects import Dialect
from bnorm.app.errors import DataError
from bnorm.app.fitting import Learner, learn
from bnorm.app.inputs import Stream, find
from bnorm.app.progress import Progress
from bnorm.app.states import Learned
from bnorm.checks import missing
from bnorm.files.container import SUFFIXES
from bnorm.files.replacing import replacing
from bnorm.loading import grouped_transformer, transformer

ROWS = 100_000  # about how many rows of a table are drawn, spread evenly over it


def plot(names: Sequence[str], output: str, columns: Sequence[str] | None, dialect: Dialect, quiet: bool) -> None:
    """Draw states over their streams, one below the other, or the values of a table before and after normalization."""
    states = [name for name in names if Path(name).suffix.lower() in SUFFIXES]
    if states and len(states) != len(names):
        other = next(name for name in names if name not in states)
        raise DataError(f"{other}: expected only states or only tables, got a table and the state {states[0]}")
    try:
        import_module("matplotlib")  # first of all: to read a table may take long
    except ImportError as error:
        raise missing("plot", "matplotlib", "app", error) from None
    displays = import_module("bnorm.plot")
    if states:
        figure = _states(displays, states, columns)
    else:
        figure = displays.NormalizationDisplay.from_estimator(*_table(names, columns, dialect, quiet)).figure_
    with replacing(output) as file:
        figure.savefig(file, format=Path(output).suffix[1:].lower())


def _states(displays: Any, paths: Sequence[str], columns: Sequence[str] | None) -> Any:
    if len(paths) == 1:
        return _drawn(displays, paths[0], columns, None).figure_
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5 * len(paths)), layout="constrained")
    for path, part in zip(paths, figure.subfigures(len(paths), squeeze=False)[:, 0], strict=True):
        _drawn(displays, path, columns, part.subplots())
        part.suptitle(Path(path).name)
    return figure


def _drawn(displays: Any, path: str, columns: Sequence[str] | None, ax: Any) -> Any:
    """Draw the display of a state: of groups around the whole, or of what a stream has taught."""
    state = grouped.read(path)
    try:
        if isinstance(state, Learned):
            return displays.RunningStatsDisplay.from_estimator(transformer(state.stored), features=columns, ax=ax)
        return displays.GroupsDisplay.from_estimator(grouped_transformer(state), features=columns, ax=ax)
    except ValueError as error:  # about the features
        raise DataError(f"{path}: {str(error).split(': ', 2)[-1]}") from None


def _table(names: Sequence[str], columns: Sequence[str] | None, dialect: Dialect, quiet: bool) -> tuple[Any, Any]:
    """A transformer fitted on a table, and a sample of its rows."""
    sources = find(names, dialect)
    for s in sources:
        if not s.size:
            raise DataError(f"{s.name}: expected a file, as a table is read twice to draw it, got a pipe")
    stream = Stream(sources, choose(sources[0], columns, None))
    learned = Learned.new(stream.numbers, None, None)
    with Progress("fit", stream.size, quiet) as progress:
        learn(stream, Learner(learned, ROWS), progress)
    if not learned.rows:
        raise DataError(f"{sources[0].name}: expected rows, got none")
    every = -(-learned.rows // ROWS)
    sample: list[list[ndarray]] = []
    row = 0
    for batch in stream.read():
        sample.append([arrow.values(column)[-row % every :: every] for column in batch.columns])
        row += batch.num_rows
    rows = np.stack([np.concatenate(pieces) for pieces in zip(*sample, strict=True)], axis=1)
    return transformer(learned.stored), arrow.table(rows, stream.numbers)
