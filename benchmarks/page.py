"""Tables of the documentation, written by their benchmarks: with the machine, and what else it did meanwhile."""

import time
from collections.abc import Sequence
from pathlib import Path

from . import machine
from .text import between, markdown

DOCS = Path(__file__).parents[1] / "docs"


def saved(text: str, name: str, table: Sequence[Sequence[str]], what: str, busy: float | None) -> str:
    """Return the text of a page with a table, and what was measured, between the markers of that name."""
    here = machine.facts("")
    head = f"{what}, on {here['processor']}, {here['cores']} cores, {here['date']}.{machine.Others.said(busy)}"
    return between(text, name, "\n".join(["", head, "", *markdown(table), ""]))


def expect(page: str, name: str) -> None:
    """Raise SystemExit unless a page has markers of that name. Called before the work, not after it."""
    try:
        between((DOCS / page).read_text(encoding="utf-8"), name, "")
    except ValueError as error:
        raise SystemExit(f"docs/{page}: {error}") from error


def save(page: str, name: str, table: Sequence[Sequence[str]], what: str, busy: float | None) -> None:
    """Write a table into a page of the documentation."""
    path = DOCS / page
    path.write_text(saved(path.read_text(encoding="utf-8"), name, table, what, busy), encoding="utf-8")


def others_now() -> float | None:
    """Return how many cores other processes use while this one waits for a second.

    For benchmarks whose own work is done by processes that are not their children.
    """
    others = machine.Others()
    time.sleep(1)
    return others.cores()
