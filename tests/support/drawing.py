"""Few runs of many settings, in which every two values of different settings meet: faults that need both show.

What pytest does about a test takes it longer than most runs take, so one test makes all runs of a row, or of its first
value; an error says in which run it was.
"""

import functools
import inspect
import zlib
from collections.abc import Callable, Iterable, Sequence
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


def in_turn(test: Callable, names: Iterable[str], *runs: Sequence) -> Callable:
    """Return a test that calls this one for each run, which has values of these parameters. It takes the runs itself,
    as its parameter `runs`, if none are given here."""
    names = list(names)

    @functools.wraps(test)
    def each(**given: Any) -> None:
        for run in given.pop("runs", runs):
            values = dict(zip(names, run, strict=True))
            try:
                test(**given, **values)
            except pytest.skip.Exception as reason:
                raise AssertionError(f"a run would skip those after it: {reason}") from reason
            except BaseException as error:
                error.add_note("in the run of " + ", ".join(f"{name}={text(value)}" for name, value in values.items()))
                raise

    takes = [name for name in inspect.signature(test).parameters if name not in names] + ["runs"] * (not runs)
    each.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in takes])
    return each


def together(**settings: Iterable) -> Callable[[Callable], Callable]:
    """Let a test run with all combinations of these settings, one after another."""
    return lambda test: in_turn(test, settings, *product(*settings.values()))


def by_first(runs: Iterable[tuple]) -> dict[str, list[tuple]]:
    """Return the runs by the text of their first value."""
    found: dict[str, list[tuple]] = {}
    for run in runs:
        found.setdefault(text(run[0]) if run else "", []).append(run)
    return found


def every_pair(names: str | Sequence[str], rows: Iterable, **settings: Iterable) -> Callable[[Callable], Callable]:
    """A test for each value of the first of these names: rows, with settings drawn by `pairwise`. All other
    combinations are slow tests."""
    names = [names] if isinstance(names, str) else list(names)
    rows = [row if len(names) > 1 else (row,) for row in rows]
    values = list(map(list, settings.values()))
    drawn = set(pairwise(rows, *values))
    runs = [run for row in rows for more in product(*values) if (run := (*row, *more)) in drawn or ALL]
    few, rest = (by_first(run for run in runs if (run in drawn) == chosen) for chosen in (True, False))
    params = [pytest.param(of, id=name) for name, of in few.items()]
    params += [pytest.param(of, id=f"{name}-rest", marks=pytest.mark.slow) for name, of in rest.items()]
    return lambda test: pytest.mark.parametrize("runs", params)(in_turn(test, [*names, *settings]))
