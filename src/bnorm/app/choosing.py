"""Which columns of a table are used, and why the others are not."""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from bnorm.app.errors import ArgumentsError, DataError, option
from bnorm.app.lists import joined
from bnorm.app.sources import Source
from bnorm.arrow import is_number

IDENTIFIER = re.compile(  # the last two are what pandas calls an index without a name, in Parquet and in CSV
    r"(?i:(.*[_\s.-])?(id|uuid|key|index|idx|unnamed: \d+))|.*[a-z]I[dD]|__index_level_\d+__|"
)
MOST = 12  # names in a line


def number_columns(first: Source) -> list[str]:
    """The columns of numbers in a source, without columns that only come from delimiters at the ends of lines."""
    return [name for name, kind in first.columns.items() if is_number(kind) and (name.strip() or str(kind) != "null")]


def choose(
    first: Source, only: Sequence[str] | None, exclude: Sequence[str] | None, weight: str | None = None
) -> list[str]:
    """The columns to learn from: those of `only`, or all columns of numbers except `exclude` and the weights."""
    refuse_unknown(first, [*(only or ()), *(exclude or ()), *([weight] if weight else [])])
    if only:
        chosen = list(dict.fromkeys(only))
        if weight in chosen:
            raise ArgumentsError(f"{first.name}: column {weight!r}: expected either a feature or the weights, got both")
    else:
        left_out = {*(exclude or ()), weight}
        chosen = [name for name in number_columns(first) if name not in left_out]
    if not chosen:
        why = reasons(first, (), dict.fromkeys(exclude or (), "excluded") | ({weight: "weights"} if weight else {}))
        found = "; ".join(f"{_name(name)} ({reason})" for name, reason in list(why.items())[:MOST]) or "no column"
        raise DataError(
            f"{first.name}: expected a column of numbers, got {found}{' and more' * (len(why) > MOST)}{doubted(first)}"
        )
    return chosen


def refuse_unknown(source: Source, names: Iterable[str], like: str = "") -> None:
    """Raise DataError for a column that a source does not have. like: says where it is."""
    names = list(names)
    for name in names:
        if name not in source.columns:
            got = f"{listed(source.columns)}{cut(name, names, source.columns)}{doubted(source)}"
            raise DataError(f"{source.name}: expected a column {name!r}{like}, got {got}")


def cut(name: str, names: Sequence[str], columns: Iterable[str]) -> str:
    """What may be wrong with an unknown name: a column whose name has commas was meant, and all its parts are names."""
    for column in columns:
        parts = column.split(",")
        if len(parts) > 1 and name in parts and all(part in names for part in parts if part):
            return f"; a name with a comma is quoted: {shlex.quote(joined([column]))}"
    return ""


def check_same_columns(sources: Sequence[Source], names: Iterable[str]) -> None:
    """Raise DataError if a later file has a column of numbers that the first file does not have."""
    known = set(names) | set(sources[0].columns)
    for s in sources[1:]:
        if more := [name for name in number_columns(s) if name not in known]:
            raise DataError(
                f"{s.name}: column {more[0]!r}: expected the columns of {sources[0].name}, which does not have it; "
                "choose with --columns or --exclude"
            )


def listed(columns: Iterable[str], most: int = 8) -> str:
    names = list(columns)
    text = ", ".join(map(repr, names[:most])) or "no column"
    return text + (f" and {len(names) - most} more" if len(names) > most else "")


def doubted(first: Source) -> str:
    """What may be wrong with the way a source is read, after an error that may be its consequence."""
    return "".join(f"; {doubt}" for doubt in first.doubts)


def reasons(first: Source, chosen: Iterable[str], given: dict[str, str]) -> dict[str, str]:
    """Why each other column is left out. given: reasons that follow from the user's options, by name."""
    used = set(chosen)
    return {
        name: given.get(name) or first.reasons.get(name) or _what(kind)
        for name, kind in first.columns.items()
        if name not in used
    }


def _what(kind: Any) -> str:
    """A word for the values of an Arrow type."""
    from pyarrow import types

    words = {
        types.is_boolean: "true or false",
        types.is_temporal: "times" if types.is_time(kind) or types.is_duration(kind) else "dates",
        types.is_nested: "nested",
        types.is_dictionary: "categories",
        types.is_string: "text",
        types.is_large_string: "text",
        types.is_string_view: "text",
        types.is_null: "empty",
        is_number: "not chosen",
    }
    return next((word for test, word in words.items() if test(kind)), str(kind))


def tell(
    first: Source,
    chosen: Sequence[str],
    given: dict[str, str],
    what: str = "learns",
    others: str = "leaves out",
    dropped: Sequence[str] = (),
) -> None:
    """Say on standard error which columns are used, which are not and why, and what else its user should know.

    what, others: what is done with those that are used, and with those that are not
    """
    print(f"bnorm: {first.name}: {what} {_few(chosen)}", file=sys.stderr)
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons(first, [*chosen, *dropped], given).items():
        by_reason.setdefault(reason, []).append(name)
    if by_reason:
        text = "; ".join(f"{_few(names)} ({reason})" for reason, names in by_reason.items())
        print(f"bnorm: {first.name}: {others} {text}", file=sys.stderr)
    if dropped:
        print(f"bnorm: {first.name}: drops {_few(dropped)}", file=sys.stderr)
    doubts = list(first.doubts)
    if found := [name for name in chosen if IDENTIFIER.fullmatch(name) and what == "learns"]:
        found.sort(key=bool)  # a list of options begins with the column without a name
        what_they_are, them = ("a measurement", "it") if len(found) == 1 else ("measurements", "them")
        left_out = option("--exclude", *found[:MOST])
        doubts.append(f"{_few(found)} may not be {what_they_are}; {left_out} leaves {them} out")
    for doubt in doubts:
        print(f"bnorm: {first.name}: {doubt}", file=sys.stderr)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(map(_name, names[:MOST]))
    return shown + (f" and {len(names) - MOST:,} more" if len(names) > MOST else "")


def _name(name: str) -> str:
    """A name in a list of names; in quotes if it would be hard to see."""
    plain = name and name.isprintable() and name == name.strip() and "," not in name
    return name if plain else repr(name)
