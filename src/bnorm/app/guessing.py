"""The types of columns of a CSV file that pass through into a file with types.

A column has a type if every value in the first rows is written as values of that type are, numbers in the way that the
dialect says. So 007 stays text. A later value that is written differently is an error, as the type in the output cannot
change any more.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bnorm.app.dialects import NULLS, PLAIN, Dialect
from bnorm.app.errors import DataError, option
from bnorm.app.inputs import Stream
from bnorm.app.sources import pyarrow, said
from bnorm.arrow import is_number


@cache
def _rules(dialect: Dialect) -> dict[Any, str]:
    """Return types, each with a regular expression for its values."""
    pa = pyarrow()
    three = rf"(({dialect.between})\d{{3}})"
    fraction = rf"({re.escape(dialect.decimal)}\d*)?" if dialect.decimal != dialect.thousands else ""
    rules = [
        (pa.int64(), rf"0|-?([1-9]\d{{0,17}}|[1-9]\d{{0,2}}{three}{{1,5}})"),
        (pa.float64(), rf"-?(0|[1-9]\d{{0,14}}|[1-9]\d{{0,2}}{three}{{1,4}}){fraction}([eE][-+]?\d+)?"),
        (pa.bool_(), "true|false|True|False|TRUE|FALSE"),
        (pa.date32(), r"\d{4}-\d\d-\d\d"),
        (pa.timestamp("ms"), r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?"),
        (pa.timestamp("us"), r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?"),
    ]
    return {kind: f"^({pattern})$" for kind, pattern in rules}


class Guess:
    """The types of columns that pass through, or of keys, by name. as_text: what --text does, if errors advise it."""

    def __init__(self, kinds: Mapping[str, Any], as_text: str = "writes the column as text") -> None:
        self.kinds, self._as_text, self._looked_at = dict(kinds), as_text, set[str]()

    def look(self, columns: Mapping[str, Any], dialect: Dialect) -> None:
        """Find types in the first values of text columns."""
        self._looked_at.update(columns)
        self.kinds |= {name: _kind(column, dialect) for name, column in columns.items()}

    def typed(self, column: Any, name: str, stream: Stream) -> Any:
        """Return a column of a batch with its type. Unless this is text, marks of missing values become missing."""
        from pyarrow import compute, types

        pa, kind, dialect = pyarrow(), self.kinds[name], stream.here.dialect
        if column.type == kind:
            return column
        found = column if holds_text(kind) else filled(column, (*NULLS, *dialect.nulls))
        if types.is_null(kind) and found.null_count == len(found):
            return pa.nulls(len(found))
        i = -1
        if name in self._looked_at and types.is_string(column.type) and (pattern := _rules(dialect).get(kind)):
            i = compute.index(compute.match_substring_regex(found, pattern), False).as_py()
        if i < 0:
            try:
                return cast(found, kind, dialect)
            except pa.ArrowNotImplementedError:
                raise DataError(f"{stream.where}: column {name!r}: expected {kind}, got {column.type}") from None
            except pa.ArrowInvalid as error:  # such as 2024-02-31, or more texts than a dictionary has indices for
                i = next((i for i in range(len(found)) if not casts(found[i], kind, dialect)), -1)
                if i < 0:
                    raise DataError(f"{stream.where}: column {name!r}: expected {kind}: {said(error)}") from None
        optional = self._as_text and name in self._looked_at
        way = f": {option('--text', name)} {self._as_text}" if optional else ""
        raise DataError(
            f"{stream.place.value(name, i)}: expected {kind}, as in the first rows, got {column[i].as_py()!r}{way}"
        )


def holds_text(kind: Any) -> bool:
    """Whether every text is a value of a type."""
    from pyarrow import types

    of = kind.value_type if types.is_dictionary(kind) else kind
    return any(test(of) for test in (types.is_string, types.is_large_string, types.is_string_view))


def _kind(column: Any, dialect: Dialect) -> Any:
    from pyarrow import compute

    values = column.filter(_is_filled(column, (*NULLS, *dialect.nulls)))
    for kind, pattern in _rules(dialect).items():
        alike = len(values) and compute.all(compute.match_substring_regex(values, pattern)).as_py()
        if alike and casts(values, kind, dialect):
            return kind
    return column.type


def _is_filled(column: Any, marks: Sequence[str]) -> Any:
    """Whether texts are values, rather than marks of missing values, as an empty text is."""
    from pyarrow import compute

    return compute.invert(compute.is_in(column, pyarrow().array(["", *marks], column.type)))


def filled(column: Any, marks: Sequence[str]) -> Any:
    """Return a text column in which these marks, and empty texts, are missing; any other as it is."""
    from pyarrow import compute, types

    if not types.is_string(column.type):
        return column
    return compute.if_else(_is_filled(column, marks), column, pyarrow().nulls(1, column.type)[0])


def cast(values: Any, kind: Any, dialect: Dialect = PLAIN) -> Any:
    """Return values with another type; ArrowInvalid if they have none. dialect: how numbers are written in text."""
    from pyarrow import compute, types

    if dialect.is_plain or not (types.is_string(values.type) and is_number(kind)):
        return values.cast(kind)
    if compute.all(compute.match_substring_regex(values, dialect.number)).as_py() is False:
        raise pyarrow().ArrowInvalid("expected numbers in the dialect, got other text")
    return dialect.in_plain(values).cast(kind)


def casts(values: Any, kind: Any, dialect: Dialect) -> bool:
    """Whether texts are values of a type."""
    try:
        cast(values, kind, dialect)
    except pyarrow().ArrowInvalid:
        return False
    return True
