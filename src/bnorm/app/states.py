"""The state that the command learns, reads and writes: that of a transformer, and a few more numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app.errors import DataError
from bnorm.app.rows import Rows
from bnorm.files import container
from bnorm.moments import Moments
from bnorm.running import Step
from bnorm.transformer import maps, parameters, saving
from bnorm.transformer.fitted import Fitted
from bnorm.transformer.times import Times, Zero

WHO = "bnorm"
CHECKPOINT = "checkpoint"  # the entry of a file that has the settings of the command whose checkpoint it is
COUNTABLE = 2.0**63  # counts from here on are floats


class Piece(NamedTuple):
    """The sums of some rows: steps, or exact sums; and the number of missing values, if the rows have weights.

    newest   the time of the newest row, if rows have times
    """

    rows: int
    steps: list[Step]
    sums: Any
    extremes: ndarray
    missing: ndarray | None
    newest: int | None = None

    def since(self, zero: Zero | None) -> list[Step]:
        """Return the steps, on a clock whose zero may have moved since. With times there is one step, as ddof is 0."""
        if self.newest is None or zero is None:
            return self.steps
        return [step._replace(end=float(self.newest - zero.origin)) for step in self.steps]


def piece_of(fitted: Fitted, rows: Rows, weight: ndarray | None, times: Times | None) -> Piece:
    """Return what rows contribute to statistics."""
    steps, sums = ([], rows.exact(weight)) if fitted.sums is not None else (fitted.steps(rows, weight, times), None)
    missing = None if weight is None else np.array([np.count_nonzero(np.isnan(column)) for column in rows.columns])
    return Piece(rows.rows, steps, sums, rows.extremes(weight), missing, None if times is None else times.newest)


def beside(pieces: Sequence[Piece]) -> Piece:
    """Unite the pieces of several sets of columns of the same rows, which must not fade."""
    rows, steps, sums, _, missing, _ = first = pieces[0]
    if len(pieces) == 1:
        return first
    if steps:
        steps = [Step(np.concatenate([piece.steps[0].parts for piece in pieces], axis=1), rows)]
    if sums is not None:
        sums = Moments._beside([piece.sums for piece in pieces])
    if missing is not None:
        missing = np.concatenate([piece.missing for piece in pieces])
    return Piece(rows, steps, sums, np.concatenate([piece.extremes for piece in pieces], axis=1), missing)


class Learned:
    """The state of a transformer, without scikit-learn.

    rows      of all tables; after a merge of streams with a half-life, the statistics count only those of one stream
    extremes  the least and the greatest value of each feature, (2, features); None if unknown
    missing   the number of missing values of each feature; None if unknown
    """

    def __init__(self, stored: saving.Stored) -> None:
        self.stored = stored
        statistics, extra = stored.fitted.statistics, stored.extra
        self.rows = int(extra.get("rows", statistics.rows))
        self.missing = _array(extra.get("missing"), np.int64, statistics.seen.shape)
        self.extremes = _array(extra.get("extremes"), np.float64, (2, *statistics.seen.shape))
        if stored.fitted.window is not None:  # which counts its own values only
            self.missing = None
        elif not stored.fitted.weighted:
            whole = statistics.seen.max(initial=0) < COUNTABLE
            self.missing = self.rows - statistics.seen.astype(np.int64) if whole else None

    @classmethod
    def new(
        cls,
        names: Sequence[str],
        momentum: float | None,
        halflife: float | str | None,
        history: int | None = None,
        exact: bool = False,
    ) -> Self:
        """Return the state before the first row. history: how many records of the stream to keep, for `bnorm plot`."""
        momentum = parameters.MOMENTUM if halflife else momentum
        given = {"momentum": momentum, "halflife": halflife, "history": history, "exact": exact}
        return cls(saving.empty(given, list(names)))

    @property
    def fitted(self) -> Fitted:
        return self.stored.fitted

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the state file of a transformer; DataError for any other file."""
        found: Self = read(path, {saving.CLASS: lambda config, entries: cls(saving.unpacked(config, entries))})
        return found

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
        if self.rows != self.fitted.statistics.rows:
            self.stored.extra |= {"rows": self.rows}
        if self.fitted.weighted and self.missing is not None:
            self.stored.extra |= {"missing": self.missing.tolist()}
        if self.extremes is not None:
            self.stored.extra |= {"extremes": self.extremes.tolist()}
        extra = self.stored.extra | ({CHECKPOINT: checkpoint} if checkpoint else {})
        config, arrays = saving.packed(self.stored)
        container.write(WHO, path, config | extra, arrays)

    def take(self, pieces: Sequence[Piece]) -> None:
        """Update the statistics by a batch, given in pieces."""
        fitted, seen = self.fitted, self.fitted.statistics.seen
        rows, before, weighted = sum(piece.rows for piece in pieces), seen.copy(), pieces[0].missing is not None
        if fitted.sums is not None:
            fitted.add(Moments.merge([piece.sums for piece in pieces]), rows, 1, weighted)
        else:
            newest = max((piece.newest for piece in pieces if piece.newest is not None), default=None)
            with fitted.counting_until(newest):
                fitted.learn([step for piece in pieces for step in piece.since(fitted.zero)], weighted)
        self._stretch([piece.extremes for piece in pieces])
        self.rows += rows
        if self.missing is not None:
            counted = [piece.missing for piece in pieces if piece.missing is not None]
            self.missing += np.sum(counted, axis=0) if weighted else rows - (seen - before).astype(np.int64)

    def _stretch(self, others: list[ndarray]) -> None:
        """Extend the extremes by others."""
        lows, highs = zip(*([] if self.extremes is None else [self.extremes]), *others, strict=True)
        self.extremes = np.stack([np.fmin.reduce(np.stack(lows)), np.fmax.reduce(np.stack(highs))])

    def arrange(self, names: Sequence[str]) -> None:
        """Put the features into the order of these names, for a merge."""
        order = [self.names.index(name) for name in names]
        self.fitted.arrange(order)
        self.missing = None if self.missing is None else self.missing[order]
        self.extremes = None if self.extremes is None else self.extremes[:, order]
        self.stored.names = list(names) if self.stored.names else None

    def forget(self, gone: "Learned") -> None:
        """Take rows out of exact statistics. The extremes of the remaining rows are unknown."""
        self.fitted.forget(gone.fitted.sums, gone.rows)
        self.rows -= gone.rows
        counted = self.missing is not None and gone.missing is not None
        self.missing = np.subtract(self.missing, gone.missing) if counted else None  # type: ignore[arg-type]
        self.extremes, self.stored.extra = None, {}

    def unseen(self) -> list[str]:
        """The features without any value."""
        return [name for name, n in zip(self.names, self.fitted.statistics.seen, strict=True) if not n]

    @property
    def names(self) -> list[str]:
        """The names of the features; x0, x1 and so on if they have none."""
        return self.stored.names or [f"x{i}" for i in range(len(self.fitted.statistics.seen))]

    def stats(self) -> ndarray:
        """Return the map that normalizes, (5, features), as the kernels take it."""
        return maps.forward(self.fitted.statistics, self.stored.affine, self.stored.parameters["eps"])


class Map:
    """The map of a state, as `grouped.Map` is one: for columns of these names, or for this many columns of numbers."""

    keys: Sequence[str] = ()  # the columns with the keys of groups

    def __init__(self, learned: Learned, inverse: bool) -> None:
        self.names, self.features = learned.stored.names, len(learned.fitted.mean)
        self._stats = {name: learned.stats() for name in ("float32", "float64")}  # by the type of the values
        if inverse:
            self._stats = {name: maps.inverse(stats, np.dtype(name)) for name, stats in self._stats.items()}

    def of(self, found: Any, stream: Any) -> Callable[[int, ndarray, ndarray], None]:
        """Return a function that maps one feature, by its number, from x to out. It is the same for all batches."""
        return self._apply

    def _apply(self, feature: int, x: ndarray, out: ndarray) -> None:
        arrow.normalize(x, np.ascontiguousarray(self._stats[x.dtype.name][:, feature : feature + 1]), out)


def read(path: str, kinds: Mapping[str, Callable[[container.Config, Mapping[str, container.Entry]], Any]]) -> Any:
    """Read a state file by the function for its class; DataError for a file of any other class."""
    try:
        config, entries = container.read(WHO, path)
    except ValueError as error:
        raise DataError(str(error).removeprefix(f"{WHO}: ")) from None
    kind = str(config.get("class"))
    if kind not in kinds:
        raise DataError(f"{path}: expected the state of a {' or '.join(kinds)}, got {kind!r}")
    try:
        return kinds[kind](config, entries)
    except Exception as error:  # a damaged file may lead to any error
        raise DataError(f"{path}: expected a state file, got a damaged one: {error}") from None


def merge(paths: Sequence[str], states: Sequence[Learned]) -> Learned:
    """Merge the statistics of several files, as if they were learned from all rows together."""
    first, *others = states
    first.stored.extra.pop(CHECKPOINT, None)  # no command continues from the rows of several
    for path, other in zip(paths[1:], others, strict=True):
        given = first.stored.parameters, other.stored.parameters
        if reason := parameters.apart(*given, first.fitted, other.fitted, f"in {paths[0]}"):
            raise DataError(f"{path}: {reason}")
        if sorted(first.names) != sorted(other.names):
            raise DataError(f"{path}: expected the features of {paths[0]}, {_named(first)}, got {_named(other)}")
        other.arrange(first.names)
        first.fitted.merge(other.fitted)
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
