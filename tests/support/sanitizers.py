"""The tests under a sanitizer: `python tests/support/sanitizers.py address,undefined [PYTEST'S ARGUMENTS ...]`.

It builds a copy of what git would commit, for the widest SIMD level (BNORM_LEVELS chooses others), and runs
tests/kernels, or what is asked for, in it. Names are those of -fsanitize:

    address,undefined   accesses out of bounds or after a free; what C leaves undefined

Exit status: that of pytest, or 1 if a sanitizer reported anything.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mutations import copied

ADDRESS = {"ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:allocator_may_return_null=1"}
UNDEFINED = {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
TESTS = ["tests/kernels"]


def library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], check=True, capture_output=True, text=True)
    return os.path.realpath(found.stdout.strip())


def main(names: str, *asked: str) -> int:
    with TemporaryDirectory() as folder:
        copied(Path(folder), built=False)
        environment = os.environ | {"PYTHONPATH": f"{folder}/src", "BNORM_SANITIZE": names}
        if "BNORM_LEVELS" not in environment:
            from bnorm.kernels import cpu

            environment["BNORM_LEVELS"] = cpu.simd_levels()[-1]
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=folder, env=environment, check=True)
        environment |= {"LD_PRELOAD": f"{library('asan')} {library('ubsan')}", **ADDRESS, **UNDEFINED}
        environment["PYTHONMALLOC"] = "malloc"  # what Python allocates is watched too
        run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(asked or TESTS)]
        return subprocess.run(run, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
