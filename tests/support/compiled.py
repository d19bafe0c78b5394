"""C headers of the CPU kernels, compiled by themselves: to test them with sizes for which arrays would be too large,
and to see a test fail with a fault in them."""

import ctypes
import shutil
from pathlib import Path

import pytest

from cuda_on_cpu.building import made, missing, run_compiler

CPU = Path(__file__).parents[2] / "src" / "bnorm" / "kernels" / "cpu"  # an installed package has no sources
FOLDERS = [CPU.parent, CPU, CPU / "loops", CPU / "exact"]
FLAGS = ("-x", "c", "-std=c11", "-O1", "-fPIC", "-shared", "-ffp-contract=off")
needs_compiler = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a compiler")


def library(text: str, planted: tuple[str, str, str] | None = None) -> ctypes.CDLL:
    """Compile and load a C text that includes headers. planted: a header, and the text to replace in it by another."""
    headers = {path.name: path.read_text(encoding="utf-8") for folder in FOLDERS for path in folder.glob("*.h")}
    if planted:
        name, old, new = planted
        if headers[name].count(old) != 1:
            raise ValueError(f"{name}: expected {old!r} once, got it {headers[name].count(old)} times")
        headers[name] = headers[name].replace(old, new)

    def make(target: Path) -> None:
        folder = target.parent / "headers"
        folder.mkdir()
        for name, header in headers.items():
            (folder / name).write_text(header, encoding="utf-8")
        (folder / "text.c").write_text(text, encoding="utf-8")
        run_compiler(*FLAGS, f"-I{folder}", folder / "text.c", "-o", target, "-lm")
        shutil.rmtree(folder)

    return ctypes.CDLL(str(made(".so", (text, FLAGS, *headers.values()), make)))
