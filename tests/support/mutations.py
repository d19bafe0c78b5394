"""Faults planted one at a time, and the test that sees each: `python tests/support/mutations.py [--save] [WORD ...]`.

It works on a copy of what git would commit, built as this tree is. First all tests must pass there. Then it plants each
fault (listed in `faults/`; those of `faults/kernels.py` are compiled), runs the tests that should see it, and reports
the first that fails. If the code of a fault has changed, this is an error: correct its entry.

    WORD       only faults that have this word in their description, file or tests
    --kernels  compiled ones too: half a minute each, built for the widest SIMD level and without optimization, which
               changes no bit of a result
    --save     write the results into docs/faults.md, and keep those of other faults
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import faults

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
LIMIT = 400  # seconds for the tests of a fault: a fault that makes them hang is seen too
SURVIVED = "no test"


class Fault(NamedTuple):
    """what: the fault in words; old, new: the code, and the code with the fault; tests: pytest's arguments."""

    area: str
    what: str
    path: str
    old: str
    new: str
    tests: str
    compiled: bool


FAULTS = [
    Fault(area, what, f"src/bnorm/{path}", old, new, tests, compiled)
    for listed, compiled in ((faults.IN_PYTHON, False), (faults.COMPILED, True))
    for area, some in listed.items()
    for what, path, old, new, tests in some
]

HEADER = """# Faults that the tests see

`python tests/support/mutations.py --kernels --save` writes this page: it plants each fault, one at a time, in a copy of
bnorm, and runs the tests that should see it. The folder `tests/support/faults` says what is planted, and where. The
tests are those that keep [the guarantees](guarantees.md), and others.
"""


def planted(text: str, fault: Fault) -> str:
    """Return the text with the fault; ValueError unless its code is there exactly once."""
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.path}: {fault.what}: expected the place once, found it {text.count(fault.old)} times")
    return text.replace(fault.old, fault.new)


def copied(folder: Path, built: bool = True) -> None:
    """Copy what git would commit, and what has been built in place."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    compiled = [str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*") if path.suffix in (".so", ".pyd")]
    for name in filter(None, [*names, *(compiled if built else [])]):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


class Copy:
    """A copy of the tree, in which faults are planted and tests run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        copied(folder)
        self._environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        self._environment |= {"CHILD_LIMIT": "120"}  # seconds: child.py ends processes that a fault makes hang
        if shutil.which("ccache") and "CC" not in os.environ:
            self._environment |= {"CC": "ccache gcc", "CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1"}
        found = self._run("-c", "import bnorm; print(bnorm.__file__)").stdout.strip()
        if not Path(found).is_relative_to(folder):
            raise SystemExit(f"expected bnorm of the copy, found {found}")

    def _run(self, *arguments: str, limit: float = LIMIT) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *arguments]
        environment = self._environment
        return subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=limit, stdin=-3
        )

    def build(self) -> None:
        """Compile what has changed, for the widest SIMD level only, without optimization, which would take longest."""
        from bnorm.kernels import cpu

        self._environment |= {"BNORM_LEVELS": cpu.simd_levels()[-1], "BNORM_DEBUG": "1"}
        for loops in ("loops", "exact", "extremes"):  # remove those of other levels
            for path in (self._folder / "src/bnorm/kernels/cpu" / loops).glob("*.so"):
                if path.name.split(".")[0] not in ("entries", cpu.simd_levels()[-1]):
                    path.unlink()
        done = self._run("setup.py", "build_ext", "--inplace", limit=1800)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])

    def refuse_failing(self, chosen: Sequence[Fault]) -> None:
        """Raise SystemExit if one of their tests fails without any fault: it would seem to see them all."""
        if chosen[0].compiled:
            self.build()
        tests = dict.fromkeys(" ".join(fault.tests for fault in chosen).split())
        seen = self.first_failure(" ".join(tests), limit=1800)
        if seen != SURVIVED:
            raise SystemExit(f"{seen} fails without any fault")

    def seen_by(self, fault: Fault) -> str:
        """Return the first test that sees the fault, or SURVIVED."""
        path = self._folder / fault.path
        before = path.read_text(encoding="utf-8")
        path.write_text(planted(before, fault), encoding="utf-8")
        try:
            if fault.compiled:
                self.build()
            return self.first_failure(fault.tests)
        finally:
            path.write_text(before, encoding="utf-8")

    def first_failure(self, tests: str, limit: float = LIMIT) -> str:
        options = ["-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
        try:
            done = self._run("-m", "pytest", *options, *tests.split(), limit=limit)
        except subprocess.TimeoutExpired:
            return f"`{tests}`, which does not end"
        found = re.search(r"^(?:FAILED|ERROR) ([\w/.]+(?:::\w+)*)", done.stdout, re.MULTILINE)
        if found:
            return f"`{found[1]}`"
        if done.returncode < 0 or done.returncode > 5:
            return f"`{tests}`, which crashes"
        if done.returncode or " passed" not in done.stdout:
            raise SystemExit(f"{tests}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return SURVIVED


def known() -> dict[str, str]:
    """Return what the page says of each fault."""
    rows = re.findall(r"^\| (.+?) \| `.+?` \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(rows)


def page(results: dict[str, str]) -> str:
    """Return the page, with all faults whose result is known."""
    lines = [HEADER]
    for area in dict.fromkeys(fault.area for fault in FAULTS):
        lines += [f"## {area}", "", "| fault | in | seen by |", "| --- | --- | --- |"]
        for fault in FAULTS:
            if fault.area == area and fault.what in results:
                lines.append(f"| {fault.what} | `{fault.path.removeprefix('src/bnorm/')}` | {results[fault.what]} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    chosen = [f for f in FAULTS if asked.kernels or not f.compiled]
    if asked.words:
        chosen = [f for f in chosen if any(word in f"{f.area} {f.what} {f.path} {f.tests}" for word in asked.words)]
    for fault in chosen:
        planted((ROOT / fault.path).read_text(encoding="utf-8"), fault)
    results = known() if PAGE.exists() else {}
    with TemporaryDirectory() as name:
        copy = Copy(Path(name))
        for compiled in (False, True):
            some = [fault for fault in chosen if fault.compiled == compiled]
            if some:
                start = time.monotonic()
                copy.refuse_failing(some)
                print(f"{time.monotonic() - start:5.1f} s  no fault", flush=True)
            for fault in some:
                start = time.monotonic()
                results[fault.what] = copy.seen_by(fault)
                print(f"{time.monotonic() - start:5.1f} s  {fault.what}: {results[fault.what]}", flush=True)
                if asked.save:
                    PAGE.write_text(page(results), encoding="utf-8")
    survived = [fault.what for fault in chosen if results[fault.what] == SURVIVED]
    raise SystemExit(f"{len(survived)} of {len(chosen)} survived: {'; '.join(survived)}" if survived else 0)


if __name__ == "__main__":
    main()
