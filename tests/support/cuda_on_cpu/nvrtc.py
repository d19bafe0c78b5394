"""Compiles CUDA C++ for real devices without one, by NVRTC, and reads what each kernel needs there.

    for arch in nvrtc.architectures():
        usage = nvrtc.compile(source, ["scale<float, 4>"], arch)["scale<float, 4>"]
        assert usage.registers <= 64 and not usage.spills

NVRTC comes as wheels, `pip install cuda-bindings nvidia-cuda-nvrtc`; `missing()` says why it cannot be used, if so.
With CuPy installed too, `cupy_options` are the options that CuPy itself compiles with. What was found is kept beside
the libraries of the emulator.
"""

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from cuda_on_cpu.building import made

WANTED = (75, 80, 90, 100)  # and whatever is newer
OPTIONS = ("--std=c++17", "--ptxas-options=-v")
PROGRAM = "kernels.cu"
PART = 16  # instances in one program, whose text is read once for all of them


class CompileError(RuntimeError):
    """The text is not CUDA C++ for this architecture; says why."""


class Usage(NamedTuple):
    """What one thread of a kernel needs, and one block of it: `spills`, `stack` and `shared` in bytes."""

    registers: int
    spills: int
    stack: int
    shared: int


@functools.cache
def missing() -> str:
    """Why NVRTC cannot be used here; empty if it can."""
    try:
        from cuda.bindings import nvrtc

        check(nvrtc.nvrtcVersion())
    except ImportError as error:
        return f"cuda-bindings: {error}"
    except Exception as error:  # each version has a class of its own for a library that is not there
        return f"nvidia-cuda-nvrtc: {error}"
    return ""


def check(answer: tuple):
    """What NVRTC answers, without its status; an error if that is one."""
    from cuda.bindings import nvrtc

    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {status.name}")
    return values[0] if len(values) == 1 else values


def version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    return tuple(check(nvrtc.nvrtcVersion()))


@functools.cache
def architectures() -> list[str]:
    """sm_75, sm_80, sm_90, sm_100 and newer ones, as far as this NVRTC knows them."""
    from cuda.bindings import nvrtc

    known = set(check(nvrtc.nvrtcGetSupportedArchs()))
    return [f"sm_{number}" for number in sorted(known) if number in WANTED or number > max(WANTED)]


def binary(source: str, names: list[str], arch: str, options: tuple[str, ...] = ()) -> tuple[bytes, dict[str, str]]:
    """The machine code of these instances, and the name in it of each; CompileError if it is no CUDA C++."""
    found: dict[str, object] = {}
    compile_now(source, names, [f"-arch={arch}", *options, *OPTIONS], found)
    return found["binary"], found["lowered"]


def compile(source: str, names: list[str], arch: str, options: tuple[str, ...] = ()) -> dict[str, Usage]:
    """What each of these instances needs on one architecture, such as "sm_90"; CompileError if it is no CUDA C++.

    On all cores. Many are compiled in parts, which are kept one by one: what is interrupted goes on from there.
    """
    flags = [f"-arch={arch}", *options, *OPTIONS]
    own = Path(__file__).read_text(encoding="utf-8")

    def usage(some: list[str]) -> dict[str, list[int]]:
        def make(target: Path) -> None:
            target.write_text(json.dumps(compile_now(source, some, flags)))

        return json.loads(made(".json", (own, version(), flags, some, source), make).read_text())

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC does not hold the interpreter's lock
        found = pool.map(usage, [names[start : start + PART] for start in range(0, len(names), PART)])
        return {name: Usage(*numbers) for part in found for name, numbers in part.items()}


def compile_now(source: str, names: list[str], flags: list[str], more: dict | None = None) -> dict[str, Usage]:
    from cuda.bindings import nvrtc

    program = check(nvrtc.nvrtcCreateProgram(source.encode(), PROGRAM.encode(), 0, None, None))
    try:
        for name in names:
            check(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0").decode(errors="replace").strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{' '.join(flags)}: {text or status.name}")
        lowered = {name: check(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names}
        if more is not None:
            code = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
            check(nvrtc.nvrtcGetCUBIN(program, code))
            more |= {"binary": bytes(code), "lowered": lowered}
    finally:
        check(nvrtc.nvrtcDestroyProgram(program))
    found = read_log(text)
    if unknown := [name for name in names if lowered[name] not in found]:
        raise CompileError(f"{' '.join(flags)}: the assembler says nothing of {', '.join(unknown)}:\n{text}")
    return {name: found[lowered[name]] for name in names}


def read_log(log: str) -> dict[str, Usage]:
    """What the assembler says of each entry function, by its lowered name."""
    found = {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        name = part.partition("'")[0]

        def number(pattern: str, part=part) -> int:
            return sum(map(int, re.findall(pattern, part)))

        found[name] = Usage(
            registers=number(r"Used (\d+) registers"),
            spills=number(r"(\d+) bytes spill (?:stores|loads)"),
            stack=number(r"(\d+) bytes stack frame"),
            shared=number(r"(\d+) bytes smem"),
        )
    return found


@functools.cache
def cupy_missing() -> str:
    """Why the options of CuPy are not known here; empty if they are."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        cupy_options("sm_90")
    except RuntimeError as error:
        return str(error).splitlines()[-1]
    return ""


@functools.cache
def cupy_options(arch: str, *options: str) -> tuple[str, ...]:
    """All that CuPy adds to the options of a RawModule, and these; its architecture is `arch`.

    Asked in a process of its own: bnorm looks at whether CuPy was imported."""
    command = [sys.executable, str(Path(__file__).with_name("cupy_options.py")), arch, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"CuPy did not say how it compiles: {done.stderr.strip()}")
    return tuple(flag for flag in json.loads(done.stdout) if not flag.startswith("-arch="))


needs_nvrtc = pytest.mark.skipif(bool(missing()), reason=f"NVRTC: {missing()}")
