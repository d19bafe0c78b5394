"""Build the extension modules. Every other fact is in pyproject.toml.

Switches, read from the environment:
    BNORM_NO_OPENMP=1      one thread, on purpose
    BNORM_DEBUG=1          bounds checks, no optimization, debugger symbols
    BNORM_LEVELS=avx2      only these instruction sets, with commas between: a third of the time while loops are changed
    BNORM_SANITIZE=names   any value of -fsanitize, such as address,undefined; little optimization, debugger symbols
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import Cython
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError, PlatformError

KERNELS = "src/bnorm/kernels"
CPU = f"{KERNELS}/cpu"
FOLDERS = [f"{CPU}/{name}" for name in ("loops", "exact", "extremes")]
SHARED = {"kernels", "cpu", "loops", "second"}  # folders whose headers are for all
DEBUG, NO_OPENMP = (os.environ.get(name, "") not in {"", "0"} for name in ["BNORM_DEBUG", "BNORM_NO_OPENMP"])
SANITIZE = [f"-fsanitize={names}" for names in [os.environ.get("BNORM_SANITIZE")] if names]
SANITIZE += ["-fno-sanitize=alignment"] * bool(SANITIZE)  # what another process has sent need not be aligned

# No fused multiply-add of the compiler's own and no fast-math: no result may depend on the build that computed it. The
# last two change no value, only errno and floating-point traps, which stop vectorization and which nobody reads. -g0:
# the flags that Python hands down ask for debugger symbols, three quarters of the size of what is installed.
EXACT = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
COMMON = {
    "unix": (["-O0", "-g"] if DEBUG else ["-O1", "-g"] if SANITIZE else ["-O3", "-g0"]) + EXACT + SANITIZE,
    "msvc": ["/Od" if DEBUG else "/O2", "/fp:precise", "/std:c11"],
}

# The loops are serial: one source, compiled once per instruction set. kernels/cpu picks a build at import.
LEVELS: dict[str, dict[str, list[str]]] = {}
if sysconfig.get_platform().endswith(("x86_64", "amd64")):
    avx512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mf16c", "-mprefer-vector-width=512"]
    LEVELS["avx512"] = {"unix": avx512, "msvc": ["/arch:AVX512"]}
    LEVELS["avx2"] = {"unix": ["-mavx2", "-mf16c"], "msvc": ["/arch:AVX2"]}
LEVELS["baseline"] = {"unix": [], "msvc": []}
LEVELS = {level: LEVELS[level] for level in os.environ.get("BNORM_LEVELS", ",".join(LEVELS)).split(",")}
# They and those of the exact sums are most of the work of a build. Of what -O3 adds, these passes make them fast; with
# all of it they take a seventh more time to compile, and in the geometric mean of 160 cases the speed was the same.
# (Without -funswitch-loops gradients of short runs took up to twice as long.) The baseline, which hardly a processor
# runs where there are wider levels, does without most of what -O2 adds: it takes half of the time. (The wider levels
# ran 1% slower so, SiLU 13%. The extremes ran up to 47% slower without -O3.)
LEAN = "-O2 -ftree-vectorize -fvect-cost-model=dynamic -fpeel-loops -ftree-partial-pre -funswitch-loops".split()
LEANER = [*LEAN, "-O1"]
# Products of the exact sums are written as fused multiply-adds where there are any: they round nothing.
FUSED = {"unix": ["-mfma"], "msvc": []}
LOOPS = {f"loops.{level}": flags for level, flags in LEVELS.items()} | {
    f"exact.{level}": {kind: some + (FUSED[kind] if some else []) for kind, some in flags.items()}
    for level, flags in LEVELS.items()
}
LOOPS |= {f"extremes.{level}": flags for level, flags in LEVELS.items()}
# What they are compiled from: the levels of a folder share one file, which is translated once.
SOURCES = {name: "loops.table" if name.startswith("loops.") else f"{name.partition('.')[0]}.task" for name in LOOPS}

# The threads are in these. Flags of compiler and linker, in the order they are tried: Apple's Clang wants
# -Xpreprocessor and a library of its own; omp_pause_resource_all, which makes fork() safe, is not in every runtime.
THREADED = ["entries", "exact.entries", "extremes.entries", "groups", "second", "sparse", "threads"]
PLAIN = ["buffers", "launches"]
FIRST = ["groups"]  # is compiled while the loops are translated, and these before all that is small
OPENMP = {
    "unix": [
        (["-fopenmp", "-DBNORM_OMP_PAUSE"], ["-fopenmp"]),
        (["-fopenmp"], ["-fopenmp"]),
        (["-Xpreprocessor", "-fopenmp", "-DBNORM_OMP_PAUSE"], ["-lomp"]),
    ],
    "msvc": [(["/openmp"], [])],
}
PROGRAM = """
#include <omp.h>
int main(void) {
    int i, sum = 0;
    #pragma omp parallel for num_threads(2) reduction(+ : sum)
    for (i = 1; i <= 100; i++) sum += i;
#ifdef BNORM_OMP_PAUSE
    omp_pause_resource_all(omp_pause_soft);
#endif
    return sum == 5050 ? 0 : 1;
}
"""
MISSING = """OpenMP does not work here: a ten-line program did not compile, link and run (its errors are above).
    Linux, GCC: install gcc, which brings libgomp.  Linux, Clang: install libomp-dev or libomp-devel.
    macOS: brew install libomp, then set CPATH and LIBRARY_PATH to include and lib in what `brew --prefix libomp` names.
To build without OpenMP on purpose (everything works, on one thread), set BNORM_NO_OPENMP=1."""


def first_that_runs(compiler, choices):
    """The first pair of flags, for the compiler and for the linker, with which PROGRAM compiles, links and runs."""
    for compiling, linking in choices:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "program.c")
            source.write_text(PROGRAM)
            try:
                objects = compiler.compile([str(source)], folder, extra_postargs=compiling)
                compiler.link_executable(objects, "program", folder, extra_postargs=linking)
                subprocess.run([Path(folder, "program")], check=True, timeout=60)
                return compiling, linking
            except (CompileError, LinkError, OSError, subprocess.SubprocessError):
                continue
    raise PlatformError(MISSING)


def knows(compiler, flags):
    """Whether the compiler takes these flags."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.c")
        source.touch()
        try:
            compiler.compile([str(source)], folder, extra_postargs=flags)
        except CompileError:
            return False
    return True


def unit_of(ext, source):
    """What to compile: the source, or where several modules share it a file that gives it the name of this one."""
    source, module = Path(source), ext.name.rpartition(".")[2]
    if source.stem == module:
        return str(source)
    unit = source.with_name(f"{module}.c")
    text = f'#define PyInit_{source.stem} PyInit_{module}\n#include "{source.name}"\n'
    if not unit.exists() or unit.read_text() != text:
        unit.write_text(text)
    return str(unit)


class BuildExt(build_ext):
    """Adds the flags of the compiler at hand; rebuilds all when flags or tools have changed, which time stamps miss."""

    def build_extensions(self):
        kind = "msvc" if self.compiler.compiler_type == "msvc" else "unix"
        openmp = ([], []) if NO_OPENMP else first_that_runs(self.compiler, OPENMP[kind])
        lean = kind == "unix" and not (DEBUG or SANITIZE) and knows(self.compiler, LEANER)
        for ext in self.extensions:
            name = ext.name.removeprefix("bnorm.kernels.cpu.")
            special, linking = openmp if name in THREADED else (LOOPS.get(name, {kind: []})[kind], [])
            if lean and name in LOOPS and not name.startswith("extremes."):
                special = special + (LEANER if name.endswith(".baseline") and len(LEVELS) > 1 else LEAN)
            ext.extra_compile_args = COMMON[kind] + special
            ext.extra_link_args = linking + SANITIZE
        flags = [(ext.extra_compile_args, ext.extra_link_args) for ext in self.extensions]
        facts = repr((flags, sys.version, Cython.__version__, numpy.__version__))
        stamp = Path(self.build_temp, "facts.txt")
        self.force = self.force or not stamp.exists() or stamp.read_text() != facts
        directives = {"language_level": 3, "cdivision": True, "binding": True, "freethreading_compatible": True}
        directives |= dict.fromkeys(["boundscheck", "wraparound", "initializedcheck"], DEBUG)
        options = {
            "build_dir": "build/cython",
            "include_path": ["src", CPU, *FOLDERS],
            "force": self.force,
        }
        self.check_extensions_list(self.extensions)
        with ThreadPoolExecutor(self.parallel or os.cpu_count()) as pool:  # which compiles while others are translated
            builds, translated = [], {}
            for ext in self.extensions:
                path = ext.sources[0]
                if path not in translated:
                    name = f"{ext.name.rpartition('.')[0]}.{Path(path).stem}"
                    [text] = cythonize([Extension(name, [path])], compiler_directives=directives, **options)
                    translated[path] = text.sources[0]
                ext.sources = [unit_of(ext, translated[path])]
                ext.depends.append(translated[path])
                builds.append(pool.submit(self.build_extension, ext))
        for build in builds:
            build.result()
        stamp.write_text(facts)


setup(
    cmdclass={"build_ext": BuildExt},
    ext_modules=[
        Extension(
            f"bnorm.kernels.cpu.{name}",
            [f"{CPU}/{SOURCES.get(name, name).replace('.', '/')}.pyx"],
            include_dirs=[KERNELS, CPU, *FOLDERS, numpy.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            libraries=[] if os.name == "nt" else ["m"],
            depends=[
                path.as_posix()
                for path in Path(KERNELS).rglob("*")
                if path.suffix in {".pxd", ".pxi", ".h"} and path.parent.name in {name.partition(".")[0], *SHARED}
            ],
        )
        for name in dict.fromkeys([*FIRST, *LOOPS, *THREADED, *PLAIN])
    ],
)
