"""States of groups: what the commands do if columns hold the keys of groups, as in `bnorm fit --by store`."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app import places, states
from bnorm.app.choosing import refuse_unknown
from bnorm.app.csv_source import CsvSource
from bnorm.app.dialects import NULLS, Dialect
from bnorm.app.errors import ArgumentsError, DataError
from bnorm.app.fitting import chosen, one_thread, time_column, times_of, too_large, weights_of
from bnorm.app.guessing import Guess, casts, filled, holds_text
from bnorm.app.inputs import Stream, find
from bnorm.app.progress import Progress
from bnorm.app.rows import Rows
from bnorm.app.sources import pyarrow
from bnorm.app.states import WHO, Learned
from bnorm.files import container
from bnorm.kernels.cpu import groups as kernels
from bnorm.running import TooLarge
from bnorm.transformer import group_parameters, group_saving, keys, saving
from bnorm.transformer.group_batches import batch_of
from bnorm.transformer.group_saving import Stored
from bnorm.transformer.groups import Groups
from bnorm.transformer.key_index import Index
from bnorm.transformer.times import stamps

LARGEST = 20  # groups that are shown
WITHOUT = {  # the options that --by does not go with, and why
    "momentum": "groups are learned in batches of any size, as they are read; "
    "in Python, GroupedTransformer(momentum=...) learns yours",
    "exact": "groups have no exact sums",
    "history": "groups keep no records",
    "checkpoint": "groups are only saved at the end",
    "resume": "groups are only saved at the end",
}


def read(path: str) -> Stored | Learned:
    """The state in a file, of groups or of all rows."""
    found: Stored | Learned = states.read(
        path,
        {
            saving.CLASS: lambda config, entries: Learned(saving.unpacked(config, entries)),
            group_saving.CLASS: group_saving.restored,
        },
    )
    return found


def save(state: Stored | Learned, path: str) -> None:
    """Write the file."""
    if isinstance(state, Learned):
        state.save(path)
    else:
        container.write(WHO, path, *group_saving.packed(state))


def digest(state: Stored | Learned) -> str:
    """Return a text that is the same for states with the same statistics and settings."""
    from hashlib import sha256

    content = saving.packed(state.stored) if isinstance(state, Learned) else group_saving.packed(state)
    return sha256(container.dumped(*content)).hexdigest()


def fit(args: argparse.Namespace) -> dict[str, Any]:
    """Run `bnorm fit --by`. Returns a summary."""
    for name, reason in WITHOUT.items():
        if getattr(args, name):
            raise ArgumentsError(f"--{name}: expected none with --by, as {reason}")
    sources = find(args.data, Dialect.of(args))
    first = sources[0]
    column = time_column(args, first)
    refuse_unknown(first, args.by)
    for name in args.text:
        if name not in args.by:
            raise ArgumentsError(f"--text: expected a column of --by, got {name!r}")
    for name in args.by:
        if args.columns and name in args.columns:
            raise ArgumentsError(f"{first.name}: column {name!r}: expected either a feature or a key, got both")
        for other, what in ((column, "times"), (args.weight, "weights")):
            if name == other:
                raise ArgumentsError(f"{first.name}: column {name!r}: expected either {what} or a key, got both")
    names, stream = chosen(args, sources, [*args.by, *([column] if column else [])])
    places.keep([s.name for s in sources if s.path], [args.output])
    groups = Groups(len(args.by), len(names), None, args.halflife)
    with Progress("fit", stream.size, args.quiet) as progress:
        _learn(stream, groups, names, args, progress)
    if not groups.batches:
        raise DataError(f"{first.name}: expected rows, got none")
    columns = [name for name in first.columns if name in names or name in args.by]
    parameters = dict(
        zip(group_saving.PARAMETERS, (None, "global", args.prior, False, None, args.halflife, 0.0), strict=True)
    )
    parameters["by"] = args.by if len(args.by) > 1 else args.by[0]
    order = [names.index(name) for name in columns if name in names]
    groups.arrange(order)
    stored = Stored(parameters, groups, [columns.index(name) for name in args.by], len(columns), columns)
    with args.signals.held():
        save(stored, args.output)
    return {
        "rows": groups.whole.rows,
        "columns": len(names),
        "groups": len(groups),
        "seconds": round(progress.seconds, 3),
        "output": args.output,
    }


def _learn(stream: Stream, groups: Groups, names: Sequence[str], args: argparse.Namespace, progress: Progress) -> None:
    typed = Typed(stream, args.by, groups.index, args.text)
    quoted = [repr(name) for name in args.by]
    with one_thread():
        for batch in stream:
            columns = [arrow.values(batch.column(j)) for j in range(len(stream.numbers))]
            weight = weights_of(columns.pop(), stream, args.weight, False) if args.weight else None
            name = args.time_column
            times = times_of(batch.column(name), name, stream) if name else None
            rows = Rows(columns, names, stream.place)
            try:
                found = keys.read(WHO, typed({name: batch.column(name) for name in args.by}))
                groups.move(WHO, batch_of(found, rows, weight, groups.halflife, times), quoted)
            except TooLarge as error:
                raise too_large(error, stream.where, names, args.weight) from None
            except (TypeError, ValueError, FloatingPointError) as error:
                raise _at(stream.where, error) from None
            progress.add(batch.num_rows, stream.progress)


class Typed:
    """Gives columns of keys their types: a column of a CSV file, which is text, gets the type of its first values,
    unless the known keys are text. If they are times, it may have any time stamps that the command writes. Keys of text
    are missing if they are empty or among --null-values: NA is a country.

    text: the columns that are text whatever is in them; None if users cannot ask for that
    """

    def __init__(self, stream: Stream, names: Sequence[str], index: Index, text: Sequence[str] | None = None) -> None:
        self.stream, self._names, self._index, self._text = stream, names, index, text
        self._guess: Guess | None = None

    def __call__(self, columns: Mapping[str, Any]) -> list[tuple[str, Any]]:
        source = self.stream.here
        if not isinstance(source, CsvSource):
            return [(repr(name), column) for name, column in columns.items()]
        if self._guess is None:
            text = [name for name, kind in zip(self._names, self._index.kinds, strict=True) if kind == keys.TEXT]
            text += self._text or ()
            way = "" if self._text is None else "takes these keys for text"
            self._guess = Guess({name: column.type for name, column in columns.items()}, way)
            self._guess.look({name: column for name, column in columns.items() if name not in text}, source.dialect)
            for name, kind in zip(self._names, self._index.kinds, strict=True):
                if kind == keys.TIME and holds_text(self._guess.kinds[name]):
                    self._guess.kinds[name] = _stamps(columns[name], source.dialect)
        typed = {name: self._guess.typed(column, name, self.stream) for name, column in columns.items()}
        return [(repr(name), filled(column, source.dialect.nulls)) for name, column in typed.items()]


def _stamps(column: Any, dialect: Dialect) -> Any:
    """Return the type of text that is time stamps of nanoseconds, or with a zone; that of the text if it is none."""
    pa, values = pyarrow(), filled(column, (*NULLS, *dialect.nulls))
    kinds = pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")
    return next((kind for kind in kinds if casts(values, kind, dialect)), column.type)


class Map:
    """The map of a state of groups, for the columns of a batch."""

    def __init__(self, stored: Stored, inverse: bool) -> None:
        if stored.names is None:
            raise DataError("expected a state of columns with names, as the keys are found by name, got one without")
        self.names: list[str] | None = stored.features
        self.features = stored.groups.channels
        self.keys = stored.by
        self._stored, self._inverse = stored, inverse
        self._typed: Typed | None = None

    def of(self, found: Mapping[str, Any], stream: Stream) -> Callable[[int, ndarray, ndarray], None]:
        """Return a function that maps one feature of these columns, by its number, from x to out."""
        groups, p = self._stored.groups, self._stored.parameters
        if self._typed is None or self._typed.stream is not stream:  # each file of a folder has its own types
            self._typed = Typed(stream, self.keys, groups.index)
        try:
            read = keys.read(WHO, self._typed({name: found[name] for name in self.keys}))
            quoted, refuse = [repr(name) for name in self.keys], p["unseen"] == "error"
            at, codes = groups.places(WHO, read, quoted, refuse, stream.row + 1)
        except (TypeError, ValueError) as error:
            raise _at(stream.where, error) from None
        numbers = groups.numbers(at, p["prior"], p["unseen"] == "global", p["eps"], self._inverse)

        def apply(feature: int, x: ndarray, out: ndarray) -> None:
            of_feature = np.ascontiguousarray(numbers[:, :, feature : feature + 1])
            kernels.normalize(x.reshape(1, 1, -1), codes, of_feature, out.reshape(1, 1, -1), True)

        return apply


def facts(stored: Stored) -> dict[str, Any]:
    """What `bnorm show` says: the largest groups by the number of their values."""
    groups = stored.groups
    counts = groups.row("seen")
    order = np.argsort(-counts.max(axis=1, initial=0), kind="stable")[:LARGEST]
    mean, var = groups.known(order, 0.0)
    whole = groups.moments()
    found = groups.index.array()
    rows = []
    for i, g in enumerate(order.tolist()):
        row: dict[str, Any] = {"group": _said(found[g]), "count": _whole(counts[g].max(initial=0))}
        for j, name in enumerate(stored.features):
            row |= {f"{name} mean": float(mean[i, j]), f"{name} std": float(np.sqrt(var[i, j]))}
        rows.append(row)
    every: dict[str, Any] = {"group": "(all rows)", "count": _whole(whole.count.max(initial=0))}
    for j, name in enumerate(stored.features):
        every |= {f"{name} mean": float(whole.mean[j]), f"{name} std": float(whole.std()[j])}
    return {
        "rows": groups.whole.rows,
        "batches": groups.batches,
        "groups": len(groups),
        **stored.parameters,
        "by": stored.by,
        **({} if groups.zero is None else {"newest": str(stamps(groups.newest, groups.zero.kind))}),
        "whole": every,
        "largest": rows,
    }


def merge(paths: Sequence[str]) -> Stored | Learned:
    """Merge the states of several files, which are all of groups, or none of them."""
    places.once(paths)
    found = [read(path) for path in paths]
    of_groups, plain = [s for s in found if isinstance(s, Stored)], [s for s in found if isinstance(s, Learned)]
    if of_groups and plain:
        other = next(path for path, s in zip(paths, found, strict=True) if type(s) is not type(found[0]))
        raise DataError(f"{other}: expected states that are all of groups, or none, got some of each")
    return states.merge(paths, plain) if plain else _united(paths, of_groups)


def _united(paths: Sequence[str], found: Sequence[Stored]) -> Stored:
    """Unite the groups of several files by their keys."""
    first, *others = found
    for path, other in zip(paths[1:], others, strict=True):
        _arrange(other, first)
        if reason := group_parameters.apart(first, other, f"in {paths[0]}"):
            raise DataError(f"{path}: {reason}")
        try:
            first.groups.merge(WHO, other.groups, [repr(name) for name in first.by])
        except (TypeError, FloatingPointError) as error:
            raise _at(path, error) from None
    return first


def _at(where: str, error: Exception) -> DataError:
    """An error of the library, which names the command, as one that names a place."""
    return DataError(f"{where}: {str(error).removeprefix(f'{WHO}: ')}")


def _arrange(stored: Stored, like: Stored) -> None:
    """Put the columns of a state into the order of another state, if both have the same."""
    if stored.names and like.names and stored.by == like.by and sorted(stored.names) == sorted(like.names):
        stored.groups.arrange([stored.features.index(name) for name in like.features])
        stored.names, stored.places = like.names, like.places


def _said(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _whole(count: Any) -> Any:
    return int(count) if float(count).is_integer() else float(count)
