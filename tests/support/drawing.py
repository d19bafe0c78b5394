"""Few runs of many settings: every value of one meets every value of another, as two that go wrong together do."""

import zlib
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest

ALL = True  # whether what is slow is made at all, only to be left out: conftest.py says whether somebody asks for it


def text(value: Any) -> str:
    """The name of a case, or what any other value looks like."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))


def pairwise(rows: Sequence[tuple], *settings: Sequence, once: bool = False) -> list[tuple]:
    """Each row (a case and a type, say) with one value of each setting; then some again, until each value of a setting
    was there with each value of another and of a row. With `once` each row is there once."""
    width, choices = len(rows[0]), list(product(*map(range, map(len, settings))))
    places = [(i, j) for j in range(width, width + len(settings)) for i in range(j)]
    sizes = [*(len(set(column)) for column in zip(*rows, strict=True)), *map(len, settings)]
    seen: set[tuple] = set()
    runs: list[tuple] = []

    def unseen(run: tuple) -> set[tuple]:
        return {(i, j, run[i], run[j]) for i, j in places} - seen

    while not runs or (not once and len(seen) < sum(sizes[i] * sizes[j] for i, j in places)):
        again = bool(runs)
        for row in rows:
            start = zlib.crc32(" ".join(map(text, row)).encode()) // 7 % len(choices)  # by chance, but always the same
            run = max((row + choice for choice in choices[start:] + choices[:start]), key=lambda run: len(unseen(run)))
            if not again or unseen(run):
                seen |= unseen(run)
                runs.append((*row, *(values[k] for values, k in zip(settings, run[width:], strict=True))))
    return runs


def every_pair(names: str | Sequence[str], rows: Iterable, **settings: Iterable) -> pytest.MarkDecorator:
    """Parameters: rows of these names with settings drawn so. What is left of all combinations is slow."""
    names = [names] if isinstance(names, str) else list(names)
    rows = [row if len(names) > 1 else (row,) for row in rows]
    values = list(map(list, settings.values()))
    drawn = set(pairwise(rows, *values))
    runs = [run for row in rows for more in product(*values) if (run := (*row, *more)) in drawn or ALL]
    marks = [() if run in drawn else pytest.mark.slow for run in runs]
    ids = ["-".join(map(text, run)) for run in runs]
    params = [pytest.param(*run, id=id_, marks=mark) for run, id_, mark in zip(runs, ids, marks, strict=True)]
    return pytest.mark.parametrize([*names, *settings], params)
