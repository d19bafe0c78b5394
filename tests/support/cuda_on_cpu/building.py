"""From CUDA C++ to shared libraries of the emulator: the compiler, its flags, and the cache."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME = ("runtime.cpp", "waiting.cpp", "copies.cpp", "messages.cpp", "races.cpp", "undefined.cpp")
RUNTIME_HEADERS = ("shim.h", "messages.h", "runtime.h", "fibers.h")
COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", f"-I{HERE}")
# A device rounds each operation, and lets a number be read as the bytes of another.
KERNELS = ("-Og", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-Wno-attributes")
# What kernels do without, and what the compiler is quicker without: tables for exceptions, and looking for its garbage.
SPARED = ("-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "--param=ggc-min-heapsize=1048576")
CHECKS = {  # undefined.cpp and races.cpp answer in place of the compiler's libraries; only "address" needs its own
    None: ("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all"),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"),
    "address": ("-fsanitize=address", "-g1"),  # these two report addresses, of which the lines are to be found
    "races": ("-fsanitize=thread", "-g1"),
}
PRELOAD = ("libasan.so", "libstdc++.so")
UCONTEXT = bool(os.environ.get("EMULATOR_UCONTEXT"))  # switch fibers as on processors other than x86-64
UNIT = 40  # kernels in one text for the compiler, which takes a while for what they share
KEEP_DAYS = 7
COMPILERS = threading.BoundedSemaphore(os.cpu_count() or 1)  # at a time, whoever calls
LOCKS: dict[Path, threading.Lock] = {}  # of the files that are being made, by this process


def bugs_of(text: str) -> set[str]:
    """What the enum Bug of a kernel's text declares; but the first, which is none."""
    declared = re.search(r"enum Bug \{(.*?)\}", text, re.DOTALL)[1]
    return set(re.findall(r"^  ([A-Z_]+)", declared, re.MULTILINE)[1:])


class EmulatorError(RuntimeError):
    """What a kernel, or its launch, did wrong; or the compiler's complaint."""


def compiler() -> str:
    return os.environ.get("CXX", "g++")


@functools.cache
def missing(sanitize: str | None = None) -> str:
    """Why there can be no emulator here, or none with this sanitizer; empty if there can."""
    if sys.platform != "linux":
        return "the emulator runs on Linux only"
    if not shutil.which(compiler()):
        return f"no C++ compiler ({compiler()})"
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.cpp"
            source.write_text("#include <sys/mman.h>\nint f(int* p) { return p[1]; }\n", encoding="utf-8")
            run_compiler(*COMMON, *CHECKS[sanitize], "-c", source, "-o", source.with_suffix(".o"))
            run_compiler("-shared", *libraries(sanitize), source.with_suffix(".o"), "-o", source.with_suffix(".so"))
    except EmulatorError as error:
        return str(error)
    return ""


def libraries(sanitize: str | None) -> tuple[str, ...]:
    return CHECKS[sanitize] if sanitize == "address" else ()


def environment(sanitize: str | None) -> dict[str, str]:
    """The variables that a Python needs in order to load a library with this sanitizer."""
    if sanitize != "address":
        return {}
    found = (subprocess.check_output([compiler(), f"-print-file-name={name}"], text=True).strip() for name in PRELOAD)
    return {"ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": " ".join(found)}


def run_compiler(*arguments: object) -> None:
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # is none of the compiler's
    with COMPILERS:
        done = subprocess.run([compiler(), *map(str, arguments)], capture_output=True, text=True, env=env)
    if done.returncode:
        raise EmulatorError(f"{compiler()} fails:\n{done.stderr[:5000]}")


def cache() -> Path:
    """Where libraries are kept: beside pytest's own cache, or where only this user can write."""
    for folder in (
        HERE.parents[2] / ".pytest_cache" / "d" / "cuda",
        Path(tempfile.gettempdir()) / f"bnorm-{os.getuid()}",
    ):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    return Path(tempfile.mkdtemp())


def forget_old(folder: Path) -> None:
    old = time.time() - KEEP_DAYS * 86400
    for path in folder.iterdir():
        if path.is_file() and path.stat().st_mtime < old:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """One thread of one process at a time makes a file; the others wait, and find it."""
    import fcntl  # which Windows has not

    with LOCKS.setdefault(target, threading.Lock()), target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made(suffix: str, parts: Iterable[object], make: Callable[[Path], None]) -> Path:
    """The file that is made of these parts: from the cache, or by `make`, which writes it where it is told."""
    folder = cache()
    target = folder / (hashlib.sha256("\0".join(map(str, (compiler(), *parts))).encode()).hexdigest()[:20] + suffix)
    with alone(target):
        if target.exists():
            os.utime(target)
            return target
        forget_old(folder)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            new = Path(work) / target.name
            make(new)
            new.replace(target)
        return target


def compiled(name: str, text: str, flags: tuple[str, ...], included: tuple[str, ...]) -> Path:
    """The object of one C++ text that includes these files of this folder."""

    def make(target: Path) -> None:
        source = target.with_name(name)
        source.write_text(text, encoding="utf-8")
        run_compiler(*COMMON, *flags, "-c", source, "-o", target)

    return made(".o", (text, COMMON, flags, *((HERE / file).read_text(encoding="utf-8") for file in included)), make)


def unit(source: str, names: list[str], start: int, label: str) -> str:
    """The text of the kernels from number `start` on: in a namespace, for others have the same functions."""
    entries = [f"BN_ENTRY({i}, {name})" for i, name in enumerate(names, start)]
    opening = ['#include "shim.h"', f"namespace unit{start} {{", f'#line 1 "{label}"']
    return "\n".join([*opening, source, '#line 1 "names"', *entries, "}", ""])


def build(source: str, names: list[str], sanitize: str | None, label: str) -> Path:
    """The shared library of a text and its instances."""
    told = [f"-DEMU_{name}={int(sanitize == mode)}" for name, mode in (("ASAN", "address"), ("RACES", "races"))]
    parts = [name for name in RUNTIME if name != "races.cpp" or sanitize == "races"]
    runtime = "".join(f'#include "{name}"\n' for name in parts)  # in one, which takes half the time of five
    flags = ("-O2", *told, *("-DEMU_UCONTEXT",) * UCONTEXT)
    jobs = [("emulator.cpp", runtime, flags, (*parts, *RUNTIME_HEADERS))]
    for start in range(0, len(names), UNIT):
        text = unit(source, names[start : start + UNIT], start, label)
        jobs.append(("unit.cpp", text, (*KERNELS, *SPARED, *CHECKS[sanitize]), ("shim.h", "messages.h")))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # its threads wait for compilers
        objects = list(pool.map(lambda job: compiled(*job), jobs))
    return made(".so", objects, lambda target: run_compiler("-shared", *libraries(sanitize), *objects, "-o", target))
