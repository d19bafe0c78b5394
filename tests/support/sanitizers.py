"""The tests under a sanitizer: `python tests/support/sanitizers.py address,undefined [PYTEST'S ARGUMENTS ...]`.

It builds a copy of what git would commit, for the widest SIMD level (BNORM_LEVELS chooses others), and runs
tests/kernels, or what is asked for, in it. Names are those of -fsanitize:

    address,undefined   accesses out of bounds or after a free; what C leaves undefined
    thread              races: THREADED below, and every kernel on three threads

GNU's OpenMP runtime is not compiled for ThreadSanitizer, which would report a race at each of its barriers: a small
library (openmp_for_tsan.c) tells it what they order. `thread_sanitizer.txt` lists reports that are not races.

Exit status: that of pytest, or 1 if a sanitizer reported anything.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mutations import copied

HERE = Path(__file__).parent
TESTS = ["tests/kernels", "--ignore=tests/kernels/test_fences.py"]  # it has a fault handler of its own
TESTS += ["-k", "not has_no_memory"]  # the sanitizer keeps what is freed
THREADED = ["tests/kernels/test_buffers.py", "tests/kernels/test_exact_sums.py", "tests/kernels/test_groups.py"]
THREADED += ["tests/kernels/test_threads.py", "tests/kernels/test_pieces.py", "tests/layers/test_vjp.py"]
# Not these tests: they count the threads of a process, of which the sanitizer has one itself; or they leave too little
# memory for it; or they start threads after a fork in a thread, which it cannot handle.
OTHERS = "who_says", "few_rows", "rows_without", "team_without", "refuses", "stacks", "another_thread", "has_no_memory"
THREADED += ["-k", " and ".join(f"not {name}" for name in OTHERS)]
SETTINGS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": f"exitcode=66:die_after_fork=0:history_size=7:suppressions={HERE / 'thread_sanitizer.txt'}",
    "PYTHONMALLOC": "malloc",  # so that Python's memory is watched too
}


def library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return os.path.realpath(found.stdout.strip())


def preloaded(names: str, folder: str) -> str:
    """Return the libraries that a process must load before all others."""
    if names != "thread":
        return f"{library('libasan.so')} {library('libubsan.so')}"
    told = f"{folder}/openmp_for_tsan.so"
    compiler = ["gcc", "-O1", "-shared", "-fPIC", str(HERE / "openmp_for_tsan.c"), "-o", told, "-ldl"]
    subprocess.run(compiler, check=True)
    return f"{library('libtsan.so')} {told} {library('libgomp.so.1')}"


def main(names: str, *asked: str) -> int:
    with TemporaryDirectory() as folder:
        copied(Path(folder), built=False)
        environment = os.environ | {"PYTHONPATH": f"{folder}/src", "BNORM_SANITIZE": names}
        if "BNORM_LEVELS" not in environment:
            from bnorm.kernels import cpu

            environment["BNORM_LEVELS"] = cpu.simd_levels()[-1]
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=folder, env=environment, check=True)
        environment |= SETTINGS | {"LD_PRELOAD": preloaded(names, folder)}
        python = [sys.executable]
        if names == "thread":  # needs fixed addresses; first run all kernels on several threads
            python = ["setarch", "-R", sys.executable]
            bits = [*python, "tests/support/bits.py", "3"]
            done = subprocess.run(bits, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False)
            if done.returncode:
                return done.returncode
        tests = asked or (THREADED if names == "thread" else TESTS)
        run = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        return subprocess.run(run, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
