"""Write the demo and the table of errors into README.md, from saved results: `python -m benchmarks.readme`.

It is the only author of both. With --save it runs `bnorm demo` and `benchmarks.wrong_answers` first, and saves what
they say in results/readme/; the demo wants a quiet machine.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnorm.kernels import cpu

from . import wrong_answers
from .machine import Others, facts
from .store import RESULTS
from .text import between, markdown

PAGE = Path(__file__).parents[1] / "README.md"
DEMO, ANSWERS = (RESULTS / "readme" / name for name in ("demo.json", "answers.json"))
FILES = ("state ", "output ", "picture ")  # beginnings of the lines that say where the demo has put its files


def demo_block(saved: Mapping[str, Any]) -> str:
    """Return what the demo printed, without the features in the middle of its table; and on which machine."""
    lines = saved["printed"]
    first = next(i for i, line in enumerate(lines) if line.startswith("feature ")) + 1
    last = lines.index("", first) - 1
    few = [*lines[: first + 1], f"  ... and {_word(last - first - 1)} more ...", *lines[last:]]
    where = f"This was on {saved['processor']}, {saved['cores']} cores.{Others.said(saved['others'])}"
    return "\n".join(["```text", *few, "```", "", where])


def table_of_errors(saved: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest error of each library that normalized the column: ours first, then by their size."""
    found = [answer for answer in saved if answer["right"] == 0]
    found.sort(key=lambda a: (not a["library"].startswith("bnorm "), a["got"]))
    rows = [[f"{a['library']}, {_asked(a['asked'])}", _plain(a["got"])] for a in found]
    return "\n".join(markdown([["library", "error"], *rows]))


def _asked(text: str) -> str:
    """Return only the name of what was asked, such as `BatchNorm1d`, and the type of the result if it is given."""
    name = re.match(r"`[\w.]+?(?=\(|\.fit_transform|`)", text)
    return f"{name[0] if name else text}`{', in float64' if text.endswith('in float64') else ''}"


def _plain(value: float) -> str:
    """Return a number without an exponent, with one digit, or two from 10 on."""
    return np.format_float_positional(value, precision=2 if value >= 10 else 1, fractional=False, trim="-")


def _word(n: int) -> str:
    return ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")[n]


def written(page: str) -> str:
    """Return the page with both blocks from the saved results."""
    page = between(page, "demo", demo_block(_read(DEMO)))
    return between(page, "errors", table_of_errors(_read(ANSWERS)))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _save(path: Path, found: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def measure_demo() -> None:
    """Run the demo, and save what it prints."""
    others = Others()
    demo = [sys.executable, "-m", "bnorm", "demo", "--quiet"]
    done = subprocess.run(demo, capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if not line.startswith(FILES)]
    _save(DEMO, facts(cpu.simd_level()) | {"others": others.cores(), "printed": printed})


def measure_answers() -> None:
    """Ask all libraries, and save their answers."""
    answers, missing = wrong_answers.answers(wrong_answers.column())
    print(f"not installed: {', '.join(missing) or 'none'}")
    _save(ANSWERS, [answer._asdict() for answer in answers])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument("--save", action="store_true", help="run both anew, and save what they say")
    if parser.parse_args().save:
        measure_demo()
        measure_answers()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
