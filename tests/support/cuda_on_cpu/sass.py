"""The loops of a kernel in the machine code of a device, by NVIDIA's disassembler: `pip install nvidia-cuda-nvdisasm`.

loops = sass.loops(source, ["scale<float, 4>"], "sm_90")["scale<float, 4>"]
assert max(loops, key=lambda loop: loop.loads).instructions <= 80
"""

import functools
import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from cuda_on_cpu import nvrtc
from cuda_on_cpu.building import made


class Loop(NamedTuple):
    """The instructions from the target of a backward branch to the branch, and how many of them are of some sorts."""

    instructions: int
    loads: int  # of global memory, 128 bits each
    stores: int
    shared: int  # of shared memory, either way
    double: int
    inner: int  # loops inside of it


@functools.cache
def disassembler() -> str:
    """Where it is; empty where it is not."""
    if found := shutil.which("nvdisasm"):
        return found
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec is not None else ():
        for path in sorted(Path(folder).glob("*/bin/nvdisasm")):
            path.chmod(0o755)
            return str(path)
    return ""


def missing() -> str:
    """Why there is no machine code to look at; empty if there is."""
    return nvrtc.missing() or ("" if disassembler() else "no nvdisasm: pip install nvidia-cuda-nvdisasm")


def loops(source: str, names: list[str], arch: str, options: tuple[str, ...] = ()) -> dict[str, list[Loop]]:
    def make(target: Path) -> None:
        code, lowered = nvrtc.binary(source, names, arch, options)
        target.write_text(json.dumps({name: loops_of(texts(code)[lowered[name]]) for name in names}))

    parts = (Path(__file__).read_text(encoding="utf-8"), nvrtc.version(), arch, options, names, source)
    found = json.loads(made(".json", parts, make).read_text())
    return {name: [Loop(*loop) for loop in found[name]] for name in names}


def texts(code: bytes) -> dict[str, list[str]]:
    """The lines of each function."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([disassembler(), "-c", file.name], capture_output=True, text=True, check=True)
    parts = re.split(r"^//-+ \.text\.(\S+).*$", done.stdout, flags=re.MULTILINE)
    return {name: text.splitlines() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def loops_of(lines: list[str]) -> list[Loop]:
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in lines:
        if label := re.match(r"\s*\.(\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(found[1])
    spans = []
    for end, instruction in enumerate(instructions):
        branch = re.search(r"\bBRA\b.*`\(\.(\w+)\)", instruction)
        if branch and labels.get(branch[1], end) < end:
            spans.append((labels[branch[1]], end))
    return [counted(instructions[a : b + 1], sum(a <= c and d < b for c, d in spans)) for a, b in spans]


def counted(body: list[str], inner: int) -> Loop:
    def number(pattern: str) -> int:
        return sum(bool(re.search(pattern, instruction)) for instruction in body)

    loads, stores = number(r"\bLDG\.E\.128"), number(r"\bSTG\.E(?:\.EF)?\.128")
    return Loop(len(body), loads, stores, number(r"\b(?:LDS|STS)\b"), number(r"\bD(?:ADD|FMA|MUL)\b"), inner)
