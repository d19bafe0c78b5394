"""The documentation: its programs run, its links lead somewhere, and every test it names is there."""

import re
import shlex
from pathlib import Path

import pytest
from benchmarks import gpu_page

from bnorm.app import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
RUN = ("getting_started", "pytorch", "layers", "conventions", "how_it_works", "guarantees", "performance", "exact")
RUN += ("reinforcement_learning", "forecasting", "padding", "streams", "functions", "groups", "datasets")


def programs(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem in RUN and programs(page)], ids=lambda page: page.stem
)
def test_programs_run(page):
    names = {}
    for program in programs(page):
        exec(compile(program, str(page), "exec"), names)
    assert names


def test_commands_are_as_the_command_expects_them():
    found = []
    for page in (*PAGES, ROOT / "README.md"):
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^(?:.* \| )?bnorm (.*)", block, re.MULTILINE):
                try:
                    found.append(cli.parser().parse_args(shlex.split(line, comments=True)))
                except SystemExit:
                    pytest.fail(f"{page.name}: bnorm {line}")
    assert len(found) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_paths_exist(page):
    text = page.read_text(encoding="utf-8")
    made = {"_static"}  # by building the documentation
    for target in re.findall(r"\]\(([^):#]+)\)", text):
        if target.split("/")[0] not in made:
            assert (page.parent / target).is_file(), target
    for path in re.findall(r"`((?:tests|examples|benchmarks)/[\w/]+\.py)`", text):
        assert (ROOT / path).is_file(), path


def test_every_example_has_a_title_and_a_picture_of_its_own():
    """In the gallery: the one that it draws when it runs, or one that is drawn for it."""
    values = {}
    exec((ROOT / "docs" / "gallery.py").read_text(encoding="utf-8"), values)
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert values["TITLES"].keys() == examples
    assert {*values["RUN"], *values["THUMBNAILS"]} == examples
    assert not values["THUMBNAILS"].keys() & set(values["RUN"])
    assert len(set(values["THUMBNAILS"].values())) == len(values["THUMBNAILS"])
    for name in values["RUN"]:
        assert "--plot" in (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"), name


def test_every_page_has_one_title():
    assert PAGES
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page.name


def test_what_was_measured_on_gpus_is_what_was_saved():
    for path, text in gpu_page.written().items():
        assert path.read_text(encoding="utf-8") == text, path.name
