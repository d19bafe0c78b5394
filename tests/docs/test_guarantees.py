"""The page of guarantees: each has tests, which are there and run; and none of the README's is missing."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
CITED = re.compile(r"`(tests/[\w/]+\.py)?::(\w+)`")


def rows(text):
    """(guarantee, what holds it) of each row of the tables with such a heading; a bar in a cell is written \\|."""
    found, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 2 and cells[0] == "guarantee":
            inside = True
        elif not cells:
            inside = False
        elif inside and set(cells[0]) != {"-"}:
            found.append(tuple(cells))
    return found


def cited(cell):
    """(file, name of a test or class) of each test that a cell names; a name alone is of the file before it."""
    path, found = None, []
    for given, name in CITED.findall(cell):
        path = given or path
        found.append((path, name))
    return found


@cache
def defined(path):
    """Names of the tests in a file: functions, classes, and what is assigned."""
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    names |= {target.id for target in assigned if isinstance(target, ast.Name)}
    return {name for name in names if name.lower().startswith("test")}


GUARANTEES = rows(PAGE)


@pytest.mark.parametrize(("guarantee", "cell"), GUARANTEES, ids=[name[:50] for name, _ in GUARANTEES])
def test_each_is_held_by_tests_that_are_there(guarantee, cell):
    named = cited(cell)
    assert named, guarantee
    rest = re.sub(r"[\s,]", "", CITED.sub("", cell))
    assert not rest, f"{guarantee}: expected names of tests alone, got {rest!r} too"
    for path, name in named:
        assert path is not None, f"{guarantee}: {name}: of which file?"
        assert (ROOT / path).is_file(), f"{guarantee}: no file {path}"
        assert name in defined(path), f"{guarantee}: no test {name} in {path}"


def test_none_of_the_readme_is_missing():
    page = dict(GUARANTEES)
    promised = rows((ROOT / "README.md").read_text(encoding="utf-8").replace("| tested by |", "| held by |"))
    assert len(promised) >= 5
    for guarantee, cell in promised:
        assert guarantee in page, f"docs/guarantees.md has no guarantee {guarantee!r}, which the README gives"
        files = {path for path, _ in cited(page[guarantee])}
        for path in re.findall(r"`(tests/[\w/]+\.py)`", cell):
            assert path in files, f"{guarantee}: the README names {path}, the page {sorted(files)}"


def test_no_guarantee_stands_there_twice():
    assert len(dict(GUARANTEES)) == len(GUARANTEES) >= 40
