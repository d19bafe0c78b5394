"""`bnorm show`: prints a state file as a table or as JSON."""

import json
from typing import Any

import numpy as np

from bnorm.app.states import Learned


def show(path: str, as_json: bool) -> None:
    """Print a state file."""
    learned = Learned.read(path)
    said = facts(learned)
    if as_json:
        print(json.dumps(said))
        return
    print(f"{path}: {counted(said['rows'], 'row')} in {counted(said['batches'], 'batch')}, {way(learned)}\n")
    for line in table(said["features"]):
        print(line)


def counted(n: int, noun: str) -> str:
    """A number of things, such as "1 row" or "1,000 batches"."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def way(learned: Learned) -> str:
    """The weights of rows relative to each other, in words."""
    parameters = learned.stored.parameters
    if parameters["halflife"] is not None:
        return f"with a half-life of {parameters['halflife']:g} rows"
    if parameters["momentum"] is None:
        return "all rows weighing the same" if not learned.state.weighted else "rows with sample weights"
    return f"averaged with momentum {parameters['momentum']:g}"


def facts(learned: Learned) -> dict[str, Any]:
    """The content of a state, in JSON's types; None means NaN or unknown."""
    state, seen = learned.state, learned.state.statistics.seen
    values = seen.tolist() if state.weighted else seen.astype(np.int64).tolist()
    columns: dict[str, list[Any]] = {
        "feature": learned.names,
        "count": values,
        "missing": [None] * len(seen) if learned.missing is None else learned.missing.tolist(),
        "mean": state.mean.tolist(),
        "std": np.sqrt(state.var).tolist(),
    }
    if learned.extremes is not None:
        columns |= dict(zip(("min", "max"), learned.extremes.tolist(), strict=True))
    if (parameters := state.parameters) is not None:
        columns |= {name: p.tolist() for name, p in zip(("gamma", "beta"), parameters, strict=True)}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {
        "rows": learned.rows,
        "batches": state.statistics.batches,
        **learned.stored.parameters,
        "features": [{name: None if value != value else value for name, value in row.items()} for row in rows],
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of a text table, with the first column left-aligned and all others right-aligned."""
    head = list(rows[0])
    cells = [head, *([_cell(row[name]) for name in head] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        f"{row[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
