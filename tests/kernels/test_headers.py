"""Every .pxi says in its first comment which names of its siblings it uses, and which of its own they use.

The files of a folder are included one after the other into one source, where each sees the names of all: the headers
say what an import would.
"""

import re
from functools import cache
from textwrap import wrap

import pytest

from compiled import CPU

FOLDERS = {folder: sorted(folder.glob("*.pxi")) for folder in (CPU, CPU / "loops")}
HUBS = {CPU: CPU / "entries.pyx", CPU / "loops": CPU / "loops" / "table.pyx"}
ELSEWHERE = {  # what another source includes, and no sibling sees
    CPU / "columns.pxi": CPU / "groups.pyx",
    CPU / "sparse_zeros.pxi": CPU / "sparse.pyx",
}
FILES = [path for folder, paths in FOLDERS.items() for path in paths if path != HUBS[folder]]


@cache
def code(path):
    """Without comments and docstrings."""
    text = re.sub(r'"""(?s:.*?)"""', "", path.read_text(encoding="utf-8"))
    return re.sub(r"#.*", "", text)


@cache
def defined(path):
    """Functions, types, variables and constants, by name: how each of them is found where it is used."""
    text, names = code(path), {}
    for name in re.findall(r"^(?:cdef|def)\b(?:[^\n(=]*?[ *])?(\w+)\(", text, re.MULTILINE):
        names[name] = rf"(?<![.\w]){name}\s*\(|= {name}$"  # called, or entered into the table
    for name in re.findall(r"^(?:ctypedef \w+|cdef \w+(?= \w+ =)) (\w+)", text, re.MULTILINE):
        names[name] = rf"(?<![.\w]){name}\b"
    for block in re.findall(r"^cdef enum:\n((?:(?: +.*)?\n)+)", text, re.MULTILINE):
        for name in re.findall(r"^ +(\w+)", block, re.MULTILINE):
            names[name] = rf"(?<![.\w]){name}\b"
    return names


@cache
def uses(path, sibling):
    """The names of a sibling that a file uses."""
    text = code(path)
    found = {name: use for name, use in defined(sibling).items() if name in text}  # few, and few patterns to compile
    return sorted(name for name, use in found.items() if re.search(use, text, re.MULTILINE))


def header(path):
    """The two paragraphs as they should be."""
    folder, hub = FOLDERS[path.parent], ELSEWHERE.get(path, HUBS[path.parent])
    siblings = [other for other in folder if other not in (path, hub, *ELSEWHERE)]
    found = [f"{', '.join(names)} ({other.stem})" for other in siblings if (names := uses(path, other))]
    given = sorted({name for other in [*siblings, hub] for name in uses(other, path)})
    paragraphs = [
        f"Uses {', '.join(found) or 'nothing of its siblings'}.",
        f"Gives {', '.join(given) or 'entries only'}.",
    ]
    lines = [line for text in paragraphs for line in wrap(text, 116, break_long_words=False, break_on_hyphens=False)]
    return "".join(f"# {line}\n" for line in lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_header_is_that_of_the_code(path):
    first = re.match(r"(?:#.*\n)+", path.read_text(encoding="utf-8"))[0]
    assert first.endswith(header(path)), f"{path.name} should begin with a comment that ends in\n{header(path)}"
    assert not first.startswith("# Uses"), f"{path.name} should say what it is for"


def test_names_are_found():
    loops = CPU / "loops"
    assert {"CAREFUL", "careful_sums", "Parts"} <= set(defined(loops / "channel_moments.pxi"))
    assert "block_moments" in uses(loops / "row_tasks.pxi", loops / "channel_moments.pxi")
    assert "written" in uses(CPU / "statistics.pxi", CPU / "statistics.pxi")
