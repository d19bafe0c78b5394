"""The page that says what a first contact with a GPU has found, from the files in its folder."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from .steps import FAILED, GOOD, INTERRUPTED, NOT_REACHED, Ended, lines, read
from .store import count
from .text import markdown

PAGE = "summary.md"
MOST = 8  # failures of a step that are shown
WIDTH = 300  # characters of a failure
Row = dict[str, Any]


def page(folder: Path, names: Sequence[str] = ()) -> str:
    """Return the page. names: those of all planned steps."""
    ended = {one.name: one for one in read(folder)}
    steps = [ended.get(name, Ended(name, NOT_REACHED)) for name in [*ended, *(n for n in names if n not in ended)]]
    rows = {step.name: lines(folder / f"{step.name}.log") for step in steps}
    table = measured([row for found in rows.values() for row in found if "operations" in row])
    parts = [
        ["# First contact with a GPU", "", verdict(steps, rows), ""],
        about(rows.get("facts", [])),
        ["## Steps", "", *markdown([["", "", "s", ""], *(of_step(step, rows[step.name]) for step in steps)]), ""],
        failures(steps, rows, folder),
        checked(rows),
        ["## Measured", "", *table] if table else [],
        of_host([row["host"] for found in rows.values() for row in found if "host" in row and "kind" in row]),
    ]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def verdict(steps: Sequence[Ended], rows: dict[str, list[Row]]) -> str:
    bad = [step.name for step in steps if step.state not in (*GOOD, NOT_REACHED)]
    missing = [step.name for step in steps if step.state == NOT_REACHED]
    words = [f"{count(len(steps), 'step')}: {sum(step.state in GOOD for step in steps)} good."]
    words += [f"Not good: {', '.join(bad)}."] if bad else []
    words += [f"Not reached: {', '.join(missing)}."] if missing else []
    return " ".join([*words, f"{count(sum(len(failed(found)) for found in rows.values()), 'failure')}."])


def about(facts: Sequence[Row]) -> list[str]:
    if not facts:
        return []
    found = facts[0]
    versions = ", ".join(f"{name} {text}" for name, text in found.get("versions", {}).items() if text)
    now = ", ".join(f"{name} {text}" for name, text in found.get("now", {}).items())
    free, memory = (found.get(name, 0) / 2**30 for name in ("free memory", "memory"))
    size = f"capability {found.get('capability')}, {found.get('processors')} processors"
    lines = [f"**{found.get('device')}**: {size}, {free:.1f} of {memory:.1f} GiB free", f"commit {found.get('commit')}"]
    return ["\\\n".join([*lines, *filter(None, (versions, now))]), ""]


def failed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "failed" in row]


def of_step(step: Ended, rows: Sequence[Row]) -> list[str]:
    tests = [row["outcome"] for row in rows if "test" in row]
    cases = [row for row in rows if "dtype" in row]
    words = [", ".join(f"{tests.count(o)} {o}" for o in ("passed", "failed", "skipped") if o in tests)] * bool(tests)
    if cases:
        words.append(f"{sum('failed' not in row for row in cases)} of {len(cases)} cases good")
    for row in rows:
        if "instances" in row:
            words.append(", ".join(f"{name}: {value}" for name, value in row.items()))
    begun = [row["begun"] for row in rows if "begun" in row]
    if step.state not in (*GOOD, FAILED) and begun:
        words.append(f"in {begun[-1]}")
    return [step.name, f"{step.state} {step.why}".strip(), f"{step.seconds:.1f}", "; ".join(words)]


def failures(steps: Sequence[Ended], rows: dict[str, list[Row]], folder: Path) -> list[str]:
    """The first failures of each step; for a step without rows of its own, what it printed last."""
    keys = "test", "kernel", "what", "kind", "shape", "dtype"
    told = []
    for step in steps:
        found = failed(rows[step.name])
        for row in found[:MOST]:
            which = " ".join(str(row[key]) for key in keys if key in row)
            told.append(f"- {step.name}: {which}: {shortened(row['failed'])}")
        if len(found) > MOST:
            told.append(f"- {step.name}: and {len(found) - MOST} more, in its log")
        if not found and step.state not in (*GOOD, NOT_REACHED, INTERRUPTED):
            log = folder / f"{step.name}.log"
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            told.append(f"- {step.name}: {shortened(text)}")
    return ["## Failures", "", *told, ""] if told else []


def shortened(text: str) -> str:
    """Return the end of a text: for a traceback, the error."""
    return " ".join(text.split())[-WIDTH:]


def checked(rows: dict[str, list[Row]]) -> list[str]:
    """The largest error of every family and type, as a fraction of what rounding can do."""
    families: dict[str, dict[str, list[float]]] = {}
    for row in (row for found in rows.values() for row in found if "family" in row):
        shares = [cell["of bound"] for cell in row.values() if isinstance(cell, dict)]
        families.setdefault(row["family"], {}).setdefault(row["dtype"], []).extend(shares or [inf])
    if not families:
        return []
    dtypes = list(dict.fromkeys(dtype for found in families.values() for dtype in found))
    table = [["", *dtypes]]
    for name, found in families.items():
        worst = [max(found.get(dtype, [0.0])) for dtype in dtypes]
        table.append([name, *("failed" if share == inf else f"{share:.2f}" for share in worst)])
    return ["## The largest error, in parts of what rounding can do", "", *markdown(table), ""]


def measured(rows: Sequence[Row]) -> list[str]:
    """Return a line for every case and operation: microseconds, and how many times as long others take."""
    table, untimed = [["", "us", "GB/s", "of a copy", "PyTorch, times as long"]], []
    for row in rows:
        case = f"{row['kind']} {'x'.join(map(str, row['shape']))} {row['dtype']}"
        for name, cells in row["operations"].items():
            ours = cells.get("bnorm")
            if not ours:
                continue
            others = {key.removeprefix("torch").strip(" .") or "eager": cells[key] for key in cells if "torch" in key}
            times = [f"{key} {took / ours:.2f}" for key, took in others.items() if not isinstance(took, str)]
            moved = f"{1e6 * ours:.1f}", f"{cells['GB/s']:.0f}", f"{cells['of copy']:.2f}"
            table.append([f"{case} {name}", *moved, ", ".join(times)])
            untimed += [f"- {case} {name}, {key}: {shortened(t)}" for key, t in others.items() if isinstance(t, str)]
    if len(table) == 1:
        return []
    fastest = max(row["copy GB/s"] for row in rows if "copy GB/s" in row)
    words = f"The fastest copy of a case moved {fastest:.0f} GB/s. Times are of calls replayed from a graph."
    more = ["PyTorch, not timed:", "", *untimed[:MOST], ""] if untimed else []
    return [words, "", *markdown(table), "", *more]


def of_host(found: Sequence[dict[str, float]]) -> list[str]:
    times = (", ".join(f"{name} {1e6 * took:.1f} us" for name, took in calls.items()) for calls in found)
    return [f"A call on (256, 64) costs the host: {each}." for each in times]
