"""From which array size does a second thread pay? `python -m benchmarks.threshold`: one thread against all of them.

bnorm keeps work of fewer than SERIAL values (kernels/cpu/threads.pyx) on one thread, so that nothing smaller could be
compared. This builds a copy of the checkout with SERIAL = 0 in a temporary folder, which takes a minute at most, and
measures the copy. The constant was chosen by what it prints.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import bnorm
from bnorm import functional

from .text import aligned
from .timing import Calls, Effort, Samples, in_turns

ROOT = Path(__file__).parents[1]
CONSTANT = re.compile(r"^( *SERIAL = )(\d+)$", re.MULTILINE)
SIZES = [1 << k for k in range(12, 23)]  # values, in 64 channels
EFFORT = Effort(processes=1, rounds=12, least=4, budget=4.0, sample=0.001)


def build(folder: Path) -> int:
    """Build a copy of bnorm that uses all threads for any amount of work. Return the value of the constant."""
    for name in ["setup.py", "pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy2(ROOT / name, folder)
    for name in ["src", "build"]:  # with the files built here, so that little has to be compiled again
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info", "lib.*"))
    source = folder / "src/bnorm/kernels/cpu/threads.pyx"
    text = source.read_text(encoding="utf-8")
    found = CONSTANT.findall(text)
    if len(found) != 1:
        raise SystemExit(f"expected one line SERIAL = ... in {source}, found {len(found)}")
    source.write_text(CONSTANT.sub(r"\g<1>0", text), encoding="utf-8")
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\nthe copy did not build; it needs what CONTRIBUTING.md installs")
    return int(found[0][1])


def measure(serial: int) -> None:
    """Print the table. This runs in a process of its own, with the copy that `build` made."""
    threads = bnorm.get_num_threads()
    if threads < 2:
        raise SystemExit("one thread is all there is here")
    print(f"microseconds, medians; float32, 64 channels; 1 thread against {threads}; SERIAL, {serial}, set aside\n")
    table = [["values", "KiB", "operation", "1", str(threads), "speed-up"]]
    pays: dict[str, list[tuple[int, bool]]] = {}
    for values in SIZES:
        for name, call in operations(values).items():
            samples: Samples = {}
            in_turns([with_threads("one", 1, call).turn, with_threads("all", threads, call).turn], EFFORT, samples)
            one, both = (1e6 * median(took for took, _ in samples[label]) for label in ("one", "all"))
            row = [str(values), str(values * 4 // 1024), name, f"{one:.1f}", f"{both:.1f}", f"{one / both:.2f}"]
            table.append(row)
            pays.setdefault(name, []).append((values, one > 1.05 * both))
    print("\n".join(aligned(table, 3)))
    for name, seen in pays.items():
        slow = [values for values, gained in seen if not gained]
        first = [values for values, _ in seen if not slow or values > slow[-1]]
        where = f"at every size from {first[0]} values on" if first else "at no size with all the larger ones"
        print(f"{name}: {threads} threads gain 5% or more {where}")


def operations(values: int) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((values // 64, 64), dtype="float32") for _ in range(2))
    gamma, beta, mean, var = np.ones(64), np.zeros(64), np.zeros(64), np.ones(64)
    y, saved = functional.batch_norm(x, gamma, beta)
    return {
        "forward": lambda: functional.batch_norm(x, gamma, beta, out=y),
        "inference": lambda: functional.batch_norm(x, gamma, beta, mean=mean, var=var, out=y),
        "backward": lambda: functional.backward(dy, saved, out=y),
    }


def with_threads(label: str, n: int, call: Callable[[], object]) -> Calls:
    """Return the call on n threads; setting them takes a third of a microsecond, on both sides of the comparison."""

    def limited() -> object:
        bnorm.set_num_threads(n)
        return call()

    return Calls({label: limited})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threshold", description=__doc__)
    parser.add_argument("--measure", type=int, metavar="SERIAL", help=argparse.SUPPRESS)  # inside, with the copy
    serial = parser.parse_args().measure
    if serial is not None:
        measure(serial)
        return
    with tempfile.TemporaryDirectory() as name:
        serial = build(Path(name))
        source = Path(name, "src")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
        where = "import bnorm; print(bnorm.__file__)"
        used = subprocess.run([sys.executable, "-c", where], env=environment, cwd=name, capture_output=True, text=True)
        if not Path(used.stdout.strip()).is_relative_to(source):
            raise SystemExit(f"expected to measure the copy in {source}, got {used.stdout}{used.stderr}")
        command = [sys.executable, "-m", "benchmarks.threshold", "--measure", str(serial)]
        raise SystemExit(subprocess.run(command, env=environment, cwd=name).returncode)


if __name__ == "__main__":
    main()
