"""`python -m benchmarks.gpu_first FOLDER`: a first contact with a GPU that someone lends for minutes.

It ends at once, with status 2, if no device can be used. Otherwise it writes to FOLDER, step by step: facts about the
device and the software; all kernels, compiled on all cores (in FOLDER/kernels, which another run can use by --kernels);
all families against float64; the device tests; measurements beside a copy and PyTorch; then the sanitizer and the
profilers of CUDA, if they are installed. Every step has a time limit and a log of its own, and FOLDER/summary.md is
written anew after each step: whatever ends the run, its results so far are there. The status is 1 if anything failed or
was not reached.
"""

import argparse
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from .gpu import NO_DEVICE, replace
from .gpu_summary import PAGE, page
from .steps import CUT_OFF, FAILED, GOOD, JOURNAL, ROOT, Step, asked_to_end, lines, run, show

LONG = 30  # from this many minutes on, the longer order is taken
INTERRUPT = 130
EARLY = "bfloat16 or graph or stream"  # tests of what an emulator can check least
TESTS = ("-q", "-p", "no:cacheprovider", "-p", "benchmarks.outcomes", "--tb=short", "-o", "faulthandler_timeout=30")
KERNELS = "regex:moments|sums|normalize|gradient|rows_"
SMALL = ROOT / "tests" / "support" / "gpu_small.py"
PROFILED, FIRST = 8, 6  # cases


def python(name: str, module: str, *arguments: object) -> Step:
    return Step(name, [sys.executable, "-m", module, *map(str, arguments)])


def tests(name: str, marks: str, words: str, *paths: str) -> Step:
    return python(name, "pytest", *TESTS, "-m", marks, "-k", words, *paths)


def tool(name: str, program: str, *arguments: object) -> Step:
    """Return the step of a program that may not be installed."""
    path = shutil.which(program)
    if path is None:
        return Step(name, skipped=f"{program} is not on the PATH")
    return Step(name, [path, *map(str, arguments)])


def sanitized(name: str) -> Step:
    return tool(name, "compute-sanitizer", "--tool", name, "--error-exitcode", 9, sys.executable, SMALL)


LIMITS = {  # seconds of the steps, in a run of ten minutes and in one of forty
    "facts": (60, 60),
    "compile": (110, 360),
    "check": (60, 180),
    "tests-early": (60, 180),
    "tests": (90, 420),
    "measure": (110, 300),
    "measure-more": (80, 480),
    "memcheck": (45, 150),
    "racecheck": (45, 150),
    "ncu": (40, 150),
    "nsys": (40, 100),
    "synccheck": (0, 100),
    "initcheck": (0, 100),
    "tests-slow": (0, 600),
}
COMPILED = 3, 99  # cases with torch.compile, which takes its time


def order(folder: Path, minutes: float) -> list[Step]:
    """Return the steps. What tells most comes first, and no step can take the time of those after it."""
    long = minutes >= LONG
    limits, compiled = {name: pair[long] for name, pair in LIMITS.items()}, COMPILED[long]
    here = "tests/kernels", "tests/gpu"
    once = sys.executable, "-m", "benchmarks.gpu", "--once", "--first", PROFILED
    kernels = "--kernel-name", KERNELS, "--launch-count", 40
    steps = [
        python("facts", "benchmarks.gpu_facts"),
        python("compile", "benchmarks.gpu_compile", "--seconds", limits["compile"] - 20),
        python("check", "benchmarks.gpu_check"),
        tests("tests-early", "gpu and not slow", EARLY, *here),
        tests("tests", "gpu and not slow", f"not ({EARLY})", *here),
        python("measure", "benchmarks.gpu", "--first", FIRST, "--compiled", compiled),
        python("measure-more", "benchmarks.gpu", "--after", FIRST, "--compiled", compiled if long else 0),
        sanitized("memcheck"),
        sanitized("racecheck"),
        tool("ncu", "ncu", "--set", "basic", "--clock-control", "none", *kernels, *once),
        tool("nsys", "nsys", "profile", "--trace=cuda", "--stats=true", "-o", folder / "nsys", *once),
        sanitized("synccheck"),
        sanitized("initcheck"),
        tests("tests-slow", "gpu and slow", "not sanitizer", "tests/gpu/test_device_kernels.py"),
    ]
    return [step._replace(limit=limits[step.name]) for step in steps if limits[step.name]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_first", description=__doc__)
    parser.add_argument("folder", type=Path, help="a new one, for all that is found")
    parser.add_argument("--minutes", type=float, default=10, help=f"10, or the longer order from {LONG} on")
    parser.add_argument("--kernels", type=Path, help="the folder of kernels of another run, to be used and added to")
    parser.add_argument("--summary", action="store_true", help="only write the summary of a run that was killed")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    if options.summary:
        return told(folder, [])
    if (folder / JOURNAL).exists():
        parser.error(f"{folder} holds a run: name another, and --kernels {folder / 'kernels'} to use what it compiled")
    folder.mkdir(parents=True, exist_ok=True)
    kernels = (options.kernels or folder / "kernels").resolve()
    kernels.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"CUPY_CACHE_DIR": str(kernels), "PYTHONPATH": os.pathsep.join(paths)}
    return contact(order(folder, options.minutes), folder, 60 * options.minutes, environment)


def contact(steps: Sequence[Step], folder: Path, seconds: float, environment: dict[str, str]) -> int:
    """Run the steps, the first of which shows whether there is a device at all. Return the exit status."""
    names = [step.name for step in steps]

    def after() -> None:
        written(folder, names)

    facts, *others = steps
    with asked_to_end() as asked:
        ended = run([facts], folder, seconds, after, environment, asked)
        first = ended[0]
        silent = first.state == CUT_OFF and not lines(folder / f"{facts.name}.log")
        if first.status != NO_DEVICE and not silent:
            ended += run(others, folder, seconds - first.seconds, after, environment, asked)
            told(folder, names)
            return INTERRUPT if asked else int(any(one.state not in GOOD for one in ended))
    why = "no device can be used" if first.state == FAILED else f"the device does not answer: {first.why}"
    print(f"benchmarks.gpu_first: {why}; {folder / facts.name}.log says more", file=sys.stderr)
    (folder / JOURNAL).unlink()  # the folder can be used again
    return NO_DEVICE


def written(folder: Path, names: Sequence[str]) -> str:
    """Write the summary so far. An error in it must not end the run: all its facts are in the folder."""
    try:
        text = page(folder, names)
    except Exception:
        text = f"# First contact with a GPU\n\nThe summary failed:\n\n{traceback.format_exc()}"
    replace(folder / PAGE, text)
    return text


def told(folder: Path, names: Sequence[str]) -> int:
    show(f"\n{written(folder, names)}\nin {folder / PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
