"""`bnorm show`: prints a state file as a table or as JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bnorm.app import grouped
from bnorm.app.states import COUNTABLE, Learned

STEP = 1e-3  # of a standard deviation: values that differ by such a step are shown with different digits


def show(path: str, as_json: bool) -> None:
    """Print a state file."""
    state = grouped.read(path)
    said = facts(state) if isinstance(state, Learned) else grouped.facts(state)
    if as_json:
        print(json.dumps(in_json(said), allow_nan=False))
    elif isinstance(state, Learned):
        _features(path, said, way(state))
    else:
        _groups(path, said)


def _features(path: str, said: dict[str, Any], weighed: str) -> None:
    print(f"{path}: {counted(said['rows'], 'row')} in {counted(said['batches'], 'batch')}, {weighed}\n")
    if "digest" in said:
        print(f"exact sums, digest {said['digest']}\n")
    print(*table(said["features"], dict.fromkeys(("mean", "min", "max"), "std")), sep="\n")


def _groups(path: str, said: dict[str, Any]) -> None:
    by = ", ".join(map(_cell, said["by"]))
    halflife = said["halflife"]
    length = halflife if isinstance(halflife, str) or halflife is None else f"{halflife:g} rows of each"
    fades = "" if length is None else f", with a half-life of {length}"
    fades += f", the newest row at {said['newest'].removesuffix('.000000000')}" if "newest" in said else ""
    print(f"{path}: {counted(said['groups'], 'group')} by {by}, {counted(said['rows'], 'row')}{fades}")
    shown = len(said["largest"])
    print(f"the largest {shown}:\n" if shown < said["groups"] else "")
    rows = [said["whole"], *said["largest"]]
    units = {name: name.removesuffix("mean") + "std" for name in rows[0] if name.endswith(" mean")}
    print(*table(rows, units), sep="\n")


def in_json(value: Any) -> Any:
    """Return a value as JSON can hold it: null for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: in_json(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [in_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def counted(n: int, noun: str) -> str:
    """A number of things, such as "1 row" or "1,000 batches"."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def way(learned: Learned) -> str:
    """Say in words how much rows weigh relative to each other."""
    parameters = learned.stored.parameters
    if (window := parameters["window"]) is not None:
        return f"of which those of the last {window if isinstance(window, str) else counted(window, 'row')} count"
    if parameters["halflife"] is not None:
        halflife = parameters["halflife"]
        return f"with a half-life of {halflife if isinstance(halflife, str) else f'{halflife:g} rows'}"
    if parameters["momentum"] is None:
        return "all rows weighing the same" if not learned.fitted.weighted else "rows with sample weights"
    return f"averaged with momentum {parameters['momentum']:g}"


def facts(learned: Learned) -> dict[str, Any]:
    """The content of a state; None means unknown."""
    fitted, seen = learned.fitted, learned.fitted.statistics.seen
    whole = not fitted.weighted and seen.max(initial=0) < COUNTABLE
    values = seen.astype(np.int64).tolist() if whole else seen.tolist()
    columns: dict[str, list[Any]] = {
        "feature": learned.names,
        "count": values,
        "missing": [None] * len(seen) if learned.missing is None else learned.missing.tolist(),
        "mean": fitted.mean.tolist(),
        "std": np.sqrt(fitted.var).tolist(),
    }
    if learned.extremes is not None:
        columns |= dict(zip(("min", "max"), learned.extremes.tolist(), strict=True))
    if learned.stored.affine is not None:
        columns |= {name: p.tolist() for name, p in zip(("gamma", "beta"), learned.stored.affine, strict=True)}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {
        "rows": learned.rows,
        "batches": fitted.statistics.batches,
        **learned.stored.parameters,
        **({} if fitted.sums is None else {"digest": fitted.sums.digest()}),
        "features": rows,
    }


def table(rows: list[dict[str, Any]], units: Mapping[str, str]) -> list[str]:
    """The lines of a text table, with the first column left-aligned and all others right-aligned.

    units: for a column, the name of the column of standard deviations that decides how many digits it needs.
    """
    head = list(rows[0])
    cells = [
        [*map(_cell, head)],
        *([_cell(row[name], row[units[name]] if name in units else None) for name in head] for row in rows),
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        f"{row[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in cells
    ]


def _cell(value: Any, unit: float | None = None) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:.{_digits(value, unit)}g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value) if str(value).isprintable() else repr(value)  # such as a name with the end of a line in it


def _digits(value: float, unit: float | None) -> int:
    """Return how many digits to show: 6, or as many as a step of STEP units needs, up to the 17 that a float has."""
    if not (unit and math.isfinite(unit) and value and math.isfinite(value)):
        return 6
    more = math.floor(math.log10(abs(value))) - math.floor(math.log10(unit) + math.log10(STEP)) + 1
    return max(6, min(17, more))
