"""The page of faults: those that `mutations.py` plants, each seen by a test that is there."""

import re
from pathlib import Path

import mutations

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_list():
    known = mutations.known()
    assert set(known) <= {fault.what for fault in mutations.FAULTS}, "python tests/support/mutations.py --save"
    assert len(known) >= 60
    assert mutations.page(known) == mutations.PAGE.read_text(encoding="utf-8")


def test_every_fault_is_seen_by_a_test_that_is_there():
    for what, seen in mutations.known().items():
        assert seen != mutations.SURVIVED, what
        for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", seen):
            assert name in (ROOT / path).read_text(encoding="utf-8"), seen


def test_every_place_is_there():
    for fault in mutations.FAULTS:
        text = (ROOT / fault.path).read_text(encoding="utf-8")
        assert mutations.planted(text, fault) != text, fault.what


def test_words_are_said_once():
    assert len({fault.what for fault in mutations.FAULTS}) == len(mutations.FAULTS) >= 100
