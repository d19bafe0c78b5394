"""Few runs of many settings, in which every two values of different settings meet: faults that need both show."""

import zlib
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest

ALL = True  # whether to make slow tests at all, as making them takes time; conftest.py sets it if they are asked for


def text(value: Any) -> str:
    """Return the name of a case, or the text of any other value."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))


def pairwise(rows: Sequence[tuple], *settings: Sequence, once: bool = False) -> list[tuple]:
    """Return each row (such as a case and a type) with one value of each setting; then some rows again, until each
    value of a setting has met each value of another and of a row. With `once` each row comes once."""
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
            start = zlib.crc32(" ".join(map(text, row)).encode()) // 7 % len(choices)  # random, but always the same
            run = max((row + choice for choice in choices[start:] + choices[:start]), key=lambda run: len(unseen(run)))
            if not again or unseen(run):
                seen |= unseen(run)
                runs.append((*row, *(values[k] for values, k in zip(settings, run[width:], strict=True))))
    return runs


def every_pair(names: str | Sequence[str], rows: Iterable, **settings: Iterable) -> pytest.MarkDecorator:
    """Parameters: rows of these names, with settings drawn by `pairwise`. All other combinations are slow tests."""
    names = [names] if isinstance(names, str) else list(names)
    rows = [row if len(names) > 1 else (row,) for row in rows]
    values = list(map(list, settings.values()))
    drawn = set(pairwise(rows, *values))
    runs = [run for row in rows for more in product(*values) if (run := (*row, *more)) in drawn or ALL]
    marks = [() if run in drawn else pytest.mark.slow for run in runs]
    ids = ["-".join(map(text, run)) for run in runs]
    params = [pytest.param(*run, id=id_, marks=mark) for run, id_, mark in zip(runs, ids, marks, strict=True)]
    return pytest.mark.parametrize([*names, *settings], params)
