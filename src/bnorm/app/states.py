"""The state that the command learns, reads and writes: that of a transformer, and a few more numbers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app.errors import DataError
from bnorm.exact import ExactMoments
from bnorm.exact import moments as exact_moments
from bnorm.files import container
from bnorm.kernels import cpu
from bnorm.moments import Moments
from bnorm.running import AVERAGE
from bnorm.transformer import parameters, saving, tables
from bnorm.transformer.clock import Rows
from bnorm.transformer.state import State

WHO = "bnorm"
CHECKPOINT = "checkpoint"  # the entry of a file with the settings of the command that it belongs to
COUNTABLE = 2.0**63  # counts from here on are floats


class Step(NamedTuple):
    """Some rows, as `Statistics.move` takes them."""

    parts: ndarray
    seen: Any = None
    pairs: Any = None
    last: Any = None
    rows: int = 0
    extremes: Any = None
    sums: ExactMoments | None = None  # if statistics are exact


class Map(NamedTuple):
    """The map of features with these names, or of this many columns of numbers if they have none."""

    names: list[str] | None
    features: int
    stats: Callable[[Any], ndarray]  # (5, features) as the kernels take them, for a type of the values


class Learned:
    """The state of a transformer, without scikit-learn.

    rows      of all tables; after a merge of streams with a half-life, the statistics count only those of one stream
    extremes  the least and the greatest value of each feature, (2, features); None if unknown
    missing   the number of missing values of each feature; None if unknown
    """

    def __init__(self, stored: saving.Stored) -> None:
        self.stored = stored
        statistics, extra = stored.state.statistics, stored.extra
        self.rows = int(extra.get("rows", statistics.rows))
        self.missing = _array(extra.get("missing"), np.int64, statistics.seen.shape)
        self.extremes = _array(extra.get("extremes"), np.float64, (2, *statistics.seen.shape))
        if not stored.state.weighted:
            whole = statistics.seen.max(initial=0) < COUNTABLE
            self.missing = self.rows - statistics.seen.astype(np.int64) if whole else None

    @classmethod
    def new(
        cls,
        names: Sequence[str],
        momentum: float | None,
        halflife: float | None,
        history: int | None = None,
        exact: bool = False,
    ) -> Self:
        """The state before the first row. history: how many records of the stream to keep, for `bnorm plot`."""
        momentum = parameters.MOMENTUM if halflife else momentum
        given = {"momentum": momentum, "halflife": halflife, "history": history, "exact": exact}
        return cls(saving.empty(given, list(names)))

    @property
    def state(self) -> State:
        return self.stored.state

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the state file of a transformer; DataError for any other file."""
        try:
            config, entries = container.read(WHO, path)
        except ValueError as error:
            raise DataError(str(error).removeprefix(f"{WHO}: ")) from None
        if config.get("class") != saving.CLASS:
            raise DataError(f"{path}: expected the state of a {saving.CLASS}, got {config.get('class')!r}")
        try:
            return cls(saving.unpacked(config, entries))
        except Exception as error:  # a damaged file may lead to any error
            raise DataError(f"{path}: expected a state file, got a damaged one: {error}") from None

    @classmethod
    def resumed(cls, path: str, asked: dict[str, Any]) -> Self:
        """Read a checkpoint of the same command; DataError for any other."""
        learned = cls.read(path)
        began = learned.stored.extra.pop(CHECKPOINT, None)
        if not isinstance(began, dict):
            raise DataError(f"{path}: expected a checkpoint, got a finished state")
        for name, value in asked.items():
            if began.get(name) != value:
                raise DataError(
                    f"{path}: {name}: expected {value!r:.200}, as asked for now, got {began.get(name)!r:.200}"
                )
        return learned

    def save(self, path: str, checkpoint: dict[str, Any] | None = None) -> None:
        """Write the file. checkpoint: the settings of the command, which make the file a checkpoint."""
        if self.rows != self.state.statistics.rows:
            self.stored.extra |= {"rows": self.rows}
        if self.state.weighted and self.missing is not None:
            self.stored.extra |= {"missing": self.missing.tolist()}
        if self.extremes is not None:
            self.stored.extra |= {"extremes": self.extremes.tolist()}
        extra = self.stored.extra | ({CHECKPOINT: checkpoint} if checkpoint else {})
        config, arrays = saving.packed(self.stored)
        container.write(WHO, path, config | extra, arrays)

    def step(self, columns: Sequence[ndarray], weight: ndarray | None) -> Step:
        """The step of the statistics for some rows, given as one column for each feature."""
        halflife, rows, exact = self.stored.parameters["halflife"], len(columns[0]), self.state.sums is not None
        found, extremes, sums = [], [], []
        for column in columns:  # the first call brings it into the cache for the second
            extremes.append(arrow.extremes(column, weight))
            if exact:
                sums.append(exact_moments(WHO, column[:, None], 1, weight, True, "weights"))
            elif halflife is None:
                found.append(arrow.parts([column], weight))
        if exact:
            every: Any = Moments.beside(sums)
            return Step(every.parts, rows=rows, extremes=np.array(extremes).T, sums=every)
        if halflife is None:
            return Step(np.concatenate(found, axis=1), rows=rows, extremes=np.array(extremes).T)
        [(parts, _, seen, pairs, last)] = tables.faded(np.stack(columns).T, weight, Rows(halflife), 0)
        return Step(parts, seen, pairs, last, rows, np.array(extremes).T)

    def take(self, steps: list[Step], missing: Any, weighted: bool) -> None:
        """Update the statistics by a batch, given as the steps of its pieces. missing: used if rows have weights."""
        statistics = self.state.statistics
        rows, before = sum(step.rows for step in steps), statistics.seen.copy()
        if self.state.sums is not None:
            sums = Moments.merge([step.sums for step in steps if step.sums is not None])
            self.state.add(sums, rows, 1, weighted)
        elif self.stored.parameters["halflife"] is None:
            parts = cpu.merge([step.parts for step in steps])
            statistics.move(parts, rows=rows, finite=False)
        else:
            for i, (parts, seen, pairs, last, n, *_) in enumerate(steps):
                end = float(statistics.rows + n)
                whole = i == len(steps) - 1  # the pieces of a batch count as one
                statistics.move(parts, seen, pairs, last + end, rows=n, batches=int(whole), finite=False)
        if self.state.sums is None:
            self.state.record()
        self._stretch([step.extremes for step in steps])
        self.rows += rows
        self.state.weighted |= weighted
        if self.missing is not None:
            self.missing += missing if weighted else rows - (statistics.seen - before).astype(np.int64)

    def _stretch(self, others: list[ndarray]) -> None:
        """Extend the extremes by others."""
        lows, highs = zip(*([] if self.extremes is None else [self.extremes]), *others, strict=True)
        self.extremes = np.stack([np.fmin.reduce(np.stack(lows)), np.fmax.reduce(np.stack(highs))])

    def arrange(self, names: Sequence[str]) -> None:
        """Put the features into the order of these names, for a merge."""
        order = [self.names.index(name) for name in names]
        for a in self.state.statistics.arrays().values():
            a[...] = a[order]
        if self.state.sums is not None:
            self.state.sums = self.state.sums.picked(order)
        self.missing = None if self.missing is None else self.missing[order]
        self.extremes = None if self.extremes is None else self.extremes[:, order]
        self.stored.names = list(names) if self.stored.names else None

    def forget(self, gone: "Learned") -> None:
        """Take rows out of exact statistics. Which were the extremes of the others is not known."""
        self.state.forget(gone.state.sums, gone.rows)
        self.rows -= gone.rows
        counted = self.missing is not None and gone.missing is not None
        self.missing = np.subtract(self.missing, gone.missing) if counted else None  # type: ignore[arg-type]
        self.extremes, self.stored.extra = None, {}

    def unseen(self) -> list[str]:
        """The features without any value."""
        return [name for name, n in zip(self.names, self.state.statistics.seen, strict=True) if not n]

    @property
    def names(self) -> list[str]:
        """The names of the features; x0, x1 and so on if they have none."""
        return self.stored.names or [f"x{i}" for i in range(len(self.state.statistics.seen))]

    def forward(self) -> Map:
        """The map that normalizes."""
        stats = self.state.forward()
        return Map(self.stored.names, len(self.state.mean), lambda dtype: stats)

    def inverse(self) -> Map:
        """The map that undoes it."""
        return Map(self.stored.names, len(self.state.mean), self.state.inverse)


def merge(paths: Sequence[str]) -> Learned:
    """The merged statistics of several files, as if learned from all rows together."""
    first, *others = [Learned.read(path) for path in paths]
    for path, other in zip(paths[1:], others, strict=True):
        for name in ("momentum", "halflife", "ddof", "exact"):
            mine, its = first.stored.parameters[name], other.stored.parameters[name]
            if mine != its:
                raise DataError(f"{path}: {name}: expected {mine}, as in {paths[0]}, got {its}")
        if sorted(first.names) != sorted(other.names):
            raise DataError(f"{path}: expected the features of {paths[0]}, {_named(first)}, got {_named(other)}")
        other.arrange(first.names)
        if first.state.statistics.mode == AVERAGE:
            raise DataError(
                f"{path}: expected statistics of rows that weigh the same or fade, got a moving average, which depends "
                "on the order of its batches and cannot be merged"
            )
        first.state.merge(other.state)
        first.rows += other.rows
        if first.extremes is None or other.extremes is None:
            first.extremes, first.stored.extra = None, {}
        else:
            first._stretch([other.extremes])
        counted = first.missing is not None and other.missing is not None
        first.missing = np.add(first.missing, other.missing) if counted else None  # type: ignore[arg-type]
    return first


def _array(given: Any, dtype: Any, shape: tuple[int, ...]) -> ndarray | None:
    a = None if given is None else np.array(given, dtype)
    if a is not None and a.shape != shape:
        raise ValueError(f"an array of shape {a.shape} instead of {shape}")
    return a


def _named(learned: Learned) -> str:
    names = learned.names
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
