"""`bnorm show`: what a state file holds, for people and for programs."""

import json
from typing import Any

import numpy as np

from bnorm.app.states import Learned


def show(path: str, as_json: bool) -> None:
    """Print it."""
    learned = Learned.read(path)
    said = facts(learned)
    if as_json:
        print(json.dumps(said))
        return
    print(f"{path}: {said['rows']:,} rows in {said['batches']:,} batches, {way(learned)}\n")
    for line in table(said["features"]):
        print(line)


def way(learned: Learned) -> str:
    """How rows weigh against each other."""
    parameters = learned.stored.parameters
    if parameters["halflife"] is not None:
        return f"a row weighs half after {parameters['halflife']:g} rows"
    if parameters["momentum"] is None:
        return "all rows weighing the same" if not learned.state.weighted else "rows weighing what their weights say"
    return f"an average to which a new batch adds {parameters['momentum']:g}"


def facts(learned: Learned) -> dict[str, Any]:
    """All that is known, in JSON's types; None stands for a number that there is not."""
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
    """Lines of columns: the first one to the left, numbers to the right."""
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
