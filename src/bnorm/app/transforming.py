"""`bnorm transform`: normalizes a table, column by column, with the statistics of a state file."""

import argparse
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app import grouped, places, several, writers
from bnorm.app.choosing import cut, listed, number_columns, refuse_unknown, tell
from bnorm.app.csv_source import CsvSource
from bnorm.app.dialects import Dialect
from bnorm.app.errors import ArgumentsError, DataError, option
from bnorm.app.guessing import Guess, holds_text
from bnorm.app.inputs import Stream, find, size_of
from bnorm.app.progress import Progress
from bnorm.app.rows import infinite
from bnorm.app.sources import Source, pyarrow
from bnorm.app.states import Learned, Map
from bnorm.app.text import FEW
from bnorm.transformer.group_saving import Stored


class Wish(NamedTuple):
    """What to write.

    chosen   the map of the state
    columns  the features to map, None for all; other features pass through unchanged
    drop     columns to leave out
    text     columns of CSV files to write as text, whatever is in them
    dtype    the type of mapped columns; None means as they are
    """

    chosen: Map | grouped.Map
    columns: Sequence[str] | None = None
    drop: Sequence[str] = ()
    text: Sequence[str] = ()
    dtype: str | None = None


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the command. Returns a summary."""
    state = grouped.read(args.state)
    chosen = Map(state, args.inverse) if isinstance(state, Learned) else grouped.Map(state, args.inverse)
    wish = Wish(chosen, args.columns, args.drop, args.text, args.dtype)
    to_folder = several.is_folder(args.output)
    sources = find(args.data, Dialect.of(args), args.output if to_folder else None)
    if args.resume and not to_folder:
        raise ArgumentsError(f"{args.output}: expected a folder to continue, as a single file begins anew")
    told: Any = None
    for together in [[s] for s in sources] if to_folder else [sources]:
        features, stream = _stream(together, wish)
        columns = features, stream.others
        if not args.quiet and columns != told:
            _tell(together[0], list(features), wish, "restores" if args.inverse else "normalizes")
        told = columns
    said: dict[str, Any] = {}
    with Progress("transform", size_of(sources), args.quiet) as progress:
        if to_folder:
            mapped: list[int] = []
            done = several.each(
                *(sources, args.data, args.output, _asked(args, state), args.resume, args.force),
                lambda source, output: mapped.append(transform([source], wish, output, progress)),
                *(args.goes_on, progress),
            )
            said = {"files": len(sources), "done_before": done}
            normalized = max(mapped, default=0)
        else:
            places.keep([s.name for s in sources if s.path], [args.output])
            normalized = transform(sources, wish, args.output, progress)
    said |= {"rows": progress.rows, "columns": normalized}
    return {**said, "seconds": round(progress.seconds, 3), "output": args.output}


def _asked(args: argparse.Namespace, state: Stored | Learned) -> dict[str, Any]:
    """The settings that must be the same in a command and in the one that continues it."""
    asked = {name: getattr(args, name) for name in ("inverse", "columns", "drop", "text", "dtype")}
    return {"state": grouped.digest(state), "dialect": Dialect.of(args).said()} | asked


def _tell(first: Source, features: Sequence[str], wish: Wish, what: str) -> None:
    """Say what becomes of the columns, and why."""
    given = dict.fromkeys(number_columns(first), "no feature of the state")
    given |= dict.fromkeys(wish.chosen.names or (), "not in --columns") | dict.fromkeys(wish.chosen.keys, "keys")
    tell(first, features, given, what, "keeps as they are", wish.drop)


def transform(sources: Sequence[Source], wish: Wish, output: str, progress: Progress) -> int:
    """Write the sources as one table, with the features mapped and all other columns unchanged. Returns the number of
    columns that are mapped.
    """
    pa = pyarrow()
    features, stream = _stream(sources, wish)
    first, others = sources[0], stream.others
    size = {name: _size(first, name, wish.dtype) for name in features}
    before = progress.position
    with closing(stream.read()) as batches:
        guess, given = _guessed(first, others, wish.text, output, batches)
        kinds = {name: size.get(name) or guess.kinds[name] for name in first.columns if name not in wish.drop}
        schema = pa.schema(list(kinds.items()))
        with writers.table(output, schema, first.quotes if isinstance(first, CsvSource) else FEW) as writer:
            for batch in given:
                found = dict(zip([*features, *others], batch.columns, strict=True))
                apply = wish.chosen.of(found, stream)
                for name, i in features.items():
                    found[name] = _mapped(found[name], partial(apply, i), kinds[name], stream, name)
                for name in kinds.keys() - features.keys():
                    found[name] = guess.typed(found[name], name, stream)
                writer.write_batch(pa.record_batch([found[name] for name in kinds], schema=schema))
                progress.add(batch.num_rows, before + stream.progress)
    return len(features)


def _stream(sources: Sequence[Source], wish: Wish) -> tuple[dict[str, int], Stream]:
    """Return the columns to map, with the places of their features, and the stream of these and the other columns."""
    first = sources[0]
    features, keys = _features(first, wish), set(wish.chosen.keys)
    left_out = {*features, *wish.drop} - keys
    others = [*(name for name in first.columns if name not in left_out), *(keys - first.columns.keys())]
    stream = Stream(sources, list(features), others)
    _check_others(sources, others, wish)
    return features, stream


def _features(first: Source, wish: Wish) -> dict[str, int]:
    """Return the columns to map, with the places of their features."""
    chosen, drop = wish.chosen, set(wish.drop)
    names = chosen.names
    if names is None:
        names = [name for name in number_columns(first) if name not in drop]
        if len(names) != chosen.features:
            raise DataError(
                f"{first.name}: expected {chosen.features} columns of numbers, as the state has that many features, "
                f"without names, got {len(names)}"
            )
    for name in wish.columns or ():
        if name not in names:
            got = f"{name!r}{cut(name, wish.columns or (), names)}"
            raise DataError(f"--columns: expected a feature of the state, {listed(names)}, got {got}")
    refuse_unknown(first, [*wish.drop, *wish.text])
    only = names if wish.columns is None else set(wish.columns)
    places = {name: i for i, name in enumerate(names) if name in only and name not in drop}
    if not places:
        raise DataError(f"{first.name}: expected a feature to normalize, got none but those that are dropped")
    return places


def _check_others(sources: Sequence[Source], others: Sequence[str], wish: Wish) -> None:
    first = sources[0]
    as_text = wish.text if isinstance(first, CsvSource) else ()
    for s in sources[1:]:
        if more := [name for name in s.columns if name not in first.columns and name not in wish.drop]:
            raise DataError(
                f"{s.name}: column {more[0]!r}: expected the columns of {first.name}, which does not have it"
            )
        for name in others:
            kind, wanted = s.columns[name], first.columns[name]
            if isinstance(s, CsvSource) or name in as_text or kind == wanted:
                continue
            if not holds_text(kind) or not holds_text(wanted):
                way = f"; {option('--text', name)} writes it as text" if isinstance(first, CsvSource) else ""
                raise DataError(
                    f"{s.name}: column {name!r}: expected {wanted}, as {first.name} has it, got {kind}{way}"
                )


def _size(first: Source, name: str, dtype: str | None) -> Any:
    """The Arrow type of a column that is mapped."""
    pa, kind = pyarrow(), first.columns[name]
    small = pa.types.is_float32(kind) or pa.types.is_float16(kind)
    return {"float32": pa.float32(), "float64": pa.float64(), None: pa.float32() if small else pa.float64()}[dtype]


def _guessed(
    first: Source, others: Sequence[str], text: Sequence[str], output: str, batches: Generator[Any]
) -> tuple[Guess, Iterator[Any]]:
    """Return the types of columns that pass through, and all batches. The types may come from the first batch."""
    if not isinstance(first, CsvSource):
        return Guess({name: first.columns[name] for name in others}), batches
    guess = Guess(dict.fromkeys(others, pyarrow().string()))
    if not writers.has_types(output) or (batch := next(batches, None)) is None:
        return guess, batches
    columns = batch.columns[len(batch.columns) - len(others) :]
    guess.look({name: column for name, column in zip(others, columns, strict=True) if name not in text}, first.dialect)
    return guess, chain([batch], batches)


def _mapped(column: Any, apply: Callable[[ndarray, ndarray], None], kind: Any, stream: Stream, name: str) -> Any:
    """Map one column of a batch to an Arrow array of this type; missing values stay missing."""
    x, dtype = arrow.values(column), np.dtype(f"f{kind.bit_width // 8}")
    if x.dtype != np.float64:
        x = x.astype(dtype)
    out = arrow.empty(len(x), x.dtype)
    try:
        apply(x, out)
    except FloatingPointError:
        raise infinite(x, int(np.isinf(x).argmax()), stream.place, name) from None
    with np.errstate(over="ignore"):
        y = out.astype(dtype, copy=False)
    if (large := np.isinf(y)).any():
        i = int(large.argmax())
        where = stream.place.value(name, i)
        raise DataError(f"{where}: expected a result that {dtype} can hold, got {out[i]:.6g} of {x[i]:.6g}")
    return arrow.array(y, column)
