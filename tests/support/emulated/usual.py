"""The kernels that the default run launches, which usual.txt lists, so that a family of them is compiled at once.

An instance alone takes four times as long to compile as one of many. What is not listed is compiled alone, when it is
first launched. `python tests/support/emulated/usual.py` runs the tests and writes the list anew: do so when the kernels
have other names, or the tests launch many others.
"""

import functools
import re
import sys
import textwrap
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
TESTS = LIST.parents[2]


@functools.cache
def kernels(family: str) -> tuple[str, ...]:
    """Those of a family, sorted."""
    return listed().get(family, ())


@functools.cache
def listed() -> dict[str, tuple[str, ...]]:
    blocks = (block.partition(":\n") for block in LIST.read_text(encoding="utf-8").split("\n\n"))
    return {family: tuple(" ".join(names.split()).split("; ")) for family, _, names in blocks}


def text(launched: dict[str, set[str]]) -> str:
    """The list of these kernels by family."""
    lines = {family: textwrap.fill("; ".join(sorted(names)), 120) for family, names in sorted(launched.items())}
    return "\n\n".join(f"{family}:\n{names}" for family, names in lines.items()) + "\n"


class Recorder:
    """A plugin of pytest: what every emulator launches."""

    def __init__(self) -> None:
        self.launched: dict[str, set[str]] = {}

    def pytest_collection_finish(self) -> None:
        from bnorm.kernels.gpu import launching
        from cuda_on_cpu.emulator import Emulator

        launch = Emulator.launch

        def recorded(emulator, name, *args, **options):
            family = emulator.label.removesuffix(".cu")
            if family in launching.FAMILIES:
                self.launched.setdefault(family, set()).add(name)
            return launch(emulator, name, *args, **options)

        Emulator.launch = recorded


def main() -> None:
    import pytest

    uses = re.compile(r"^from (backends|emulated)\b", re.MULTILINE)
    paths = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if uses.search(path.read_text(encoding="utf-8"))]
    recorder = Recorder()
    of_the_list = "not test_what_is_compiled_at_once_can_be_launched"
    if status := pytest.main(["-q", "-k", of_the_list, *paths], [recorder]):
        sys.exit(status)
    LIST.write_text(text(recorder.launched), encoding="utf-8")


if __name__ == "__main__":
    main()
