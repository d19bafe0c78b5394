"""Build the extension modules. All other settings of the package are in pyproject.toml.

Switches, read from the environment:
    BNORM_NO_OPENMP=1      one thread, on purpose
    BNORM_DEBUG=1          bounds checks, no optimization, debug symbols
    BNORM_LEVELS=avx2      only these SIMD levels, separated by commas: a third of the time, while you change loops
    BNORM_SANITIZE=names   any value of -fsanitize, such as address,undefined; little optimization, debug symbols
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
KINDS = ["loops", "exact", "extremes"]  # of folders with one build for each SIMD level
FOLDERS = [f"{CPU}/{name}" for name in KINDS]
SHARED = {"kernels", "cpu", "loops", "second"}  # folders whose headers all modules depend on
DEBUG, NO_OPENMP = (os.environ.get(name, "") not in {"", "0"} for name in ["BNORM_DEBUG", "BNORM_NO_OPENMP"])
SANITIZE = [f"-fsanitize={names}" for names in [os.environ.get("BNORM_SANITIZE")] if names]
SANITIZE += ["-fno-sanitize=alignment"] * bool(SANITIZE)  # arrays from another process may be unaligned

# The compiler may not contract to fused multiply-adds, and there is no fast-math: no result may depend on the build.
# The last two flags change no value, only errno and floating-point traps, which nobody reads, but which prevent
# vectorization. -g0: Python's own flags ask for debug symbols, which would be three quarters of the installed size.
EXACT = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
COMMON = {
    "unix": (["-O0", "-g"] if DEBUG else ["-O1", "-g"] if SANITIZE else ["-O3", "-g0"]) + EXACT + SANITIZE,
    "msvc": ["/Od" if DEBUG else "/O2", "/fp:precise", "/std:c11"],
}

# The loops are serial: one source, compiled once per instruction set. kernels/cpu picks a build at import.
LEVELS: dict[str, dict[str, list[str]]] = {}
if X86 := sysconfig.get_platform().endswith(("x86_64", "amd64")):
    avx2, wider = ["-mavx2", "-mfma", "-mf16c"], ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
    LEVELS["avx512"] = {"unix": [*avx2, *wider, "-mprefer-vector-width=512"], "msvc": ["/arch:AVX512"]}
    LEVELS["avx2"] = {"unix": avx2, "msvc": ["/arch:AVX2"]}
LEVELS["baseline"] = {"unix": [], "msvc": []}
WANTED = [level for level in os.environ.get("BNORM_LEVELS", "").replace(" ", "").split(",") if level] or [*LEVELS]
if not LEVELS.keys() >= set(WANTED):
    raise SystemExit(f"BNORM_LEVELS: expected some of {','.join(LEVELS)}, got {os.environ['BNORM_LEVELS']!r}")
OTHERS = [level for level in LEVELS if level not in WANTED]
LEVELS = {level: LEVELS[level] for level in WANTED}
# The loops and those of the exact sums are most of the work of a build. LEAN has the passes of -O3 that make them fast:
# with all of -O3 they take a seventh more time to compile, and in the geometric mean of 160 cases their speed was the
# same. (Without -funswitch-loops gradients of short runs took up to twice as long.) LEANER, without most of -O2 too, is
# for the baseline, which few processors run where there are wider levels: it compiles in half of the time. (Wider
# levels compiled this way ran 1% slower, SiLU 13%. The extremes ran up to 47% slower without -O3.) Small arrays are
# filled with zeros vector by vector: `rep stos`, which GCC prefers, takes longer than to sum a short row. Loops begin
# on a cache line: where chance placed them otherwise, maps of float16 with AVX2 took up to 1.4 times as long.
LEAN = "-O2 -ftree-vectorize -fvect-cost-model=dynamic -fpeel-loops -ftree-partial-pre -funswitch-loops".split()
LEAN += ["-falign-loops=64"]
LEAN += ["-mmemset-strategy=unrolled_loop:1024:noalign,libcall:-1:noalign"] * X86
LEANER = [*LEAN, "-O1"]
LOOPS = {f"{name}.{level}": flags for name in KINDS for level, flags in LEVELS.items()}
# The source of each module: the levels of a folder share one file, which is translated once.
SOURCES = {name: "loops.table" if name.startswith("loops.") else f"{name.partition('.')[0]}.task" for name in LOOPS}

# THREADED modules use OpenMP. OPENMP: flags of compiler and linker, in the order in which they are tried. Apple's Clang
# needs -Xpreprocessor and its own library; omp_pause_resource_all, which makes fork() safe, is not in every runtime of
# GNU, and LLVM's does without.
THREADED = ["entries", "exact.entries", "extremes.entries", "groups", "second", "sparse", "threads"]
PLAIN = ["buffers", "launches"]
FIRST = ["groups"]  # compiled while the loops are translated; the small modules come after the loops
OPENMP = {
    "unix": [
        (["-fopenmp", "-DBNORM_OMP_PAUSE"], ["-fopenmp"]),
        (["-fopenmp"], ["-fopenmp"]),
        (["-Xpreprocessor", "-fopenmp"], ["-lomp"]),
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
    """Return the first pair of flags, for compiler and linker, with which PROGRAM compiles, links and runs."""
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
    """Whether the compiler accepts these flags."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.c")
        source.touch()
        try:
            compiler.compile([str(source)], folder, extra_postargs=flags)
        except CompileError:
            return False
    return True


def unit_of(ext, source):
    """Return the file to compile: the source, or if modules share it, a file that includes it under this one's name."""
    source, module = Path(source), ext.name.rpartition(".")[2]
    if source.stem == module:
        return str(source)
    unit = source.with_name(f"{module}.c")
    text = f'#define PyInit_{source.stem} PyInit_{module}\n#include "{source.name}"\n'
    if not unit.exists() or unit.read_text() != text:
        unit.write_text(text)
    return str(unit)


class BuildExt(build_ext):
    """Adds the flags for the compiler, and rebuilds everything when flags or tools change, which time stamps miss.

    It removes what earlier builds left of other levels: a wheel would carry it, and the widest level is imported.
    """

    def run(self):
        super().run()
        for folder in [self.build_lib, *["src"] * bool(self.inplace)]:  # a build in place leaves files in both
            for name in [f"bnorm.kernels.cpu.{kind}.{level}" for kind in KINDS for level in OTHERS]:
                Path(folder, self.get_ext_filename(name)).unlink(missing_ok=True)

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
        tools = [getattr(self.compiler, name, None) for name in ("compiler_so", "linker_so")]  # CC, CFLAGS; not of MSVC
        facts = repr((tools, flags, sys.version, Cython.__version__, numpy.__version__))
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
        with ThreadPoolExecutor(self.parallel or os.cpu_count()) as pool:  # compiles while others are translated
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
