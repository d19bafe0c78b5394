"""Tables as text."""

from collections.abc import Iterable, Sequence
from math import exp, log


def aligned(table: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return a table as lines of plain text. The first `left` columns are words, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    rows = [f"| {' | '.join(row)} |" for row in table]
    return [rows[0], f"| --- {'| ---: ' * (len(table[0]) - 1)}|", *rows[1:]]


def between(text: str, name: str, middle: str) -> str:
    """Return the text of a page with `middle` between the markers of that name."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected {begin} and {end} once each")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{middle}\n{end}{rest.split(end)[1]}"


def geometric_mean(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))
