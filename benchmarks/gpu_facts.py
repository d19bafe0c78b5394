"""`python -m benchmarks.gpu_facts`: what a result says of the device, the software and the commit, as JSON."""

import importlib.util
import json
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import bnorm

from . import machine
from .gpu import about, need_device
from .options import parser

ROOT = Path(__file__).parents[1]
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit", "temperature.gpu")
OTHERS = ("utilization.gpu", "memory.used", "ecc.mode.current", "mig.mode.current", "pstate", "driver_version")
PACKAGES = ("numpy", "ml_dtypes", "torch", "triton", "cuda-pathfinder", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
TOOLS = ("nvidia-smi", "compute-sanitizer", "ncu", "nsys")


def main() -> None:
    need_device()
    import cupy

    print(json.dumps(facts(cupy)), flush=True)


def facts(cupy: Any) -> dict[str, Any]:
    found = about(cupy)
    del found["rows"]
    device = cupy.cuda.Device()
    free, total = device.mem_info
    attributes = device.attributes
    found["versions"] |= {"nvrtc": list(cupy.cuda.nvrtc.getVersion())} | versions()
    return found | {
        "capability": device.compute_capability,
        "processors": attributes["MultiProcessorCount"],
        "shared memory": attributes["MaxSharedMemoryPerBlockOptin"],
        "second-level cache": attributes.get("L2CacheSize"),
        "clock MHz": attributes.get("ClockRate", 0) / 1e3,
        "memory": total,
        "free memory": free,
        "now": asked(CLOCKS + OTHERS),
        "commit": commit(),
        "host": machine.facts(bnorm.kernels.cpu.simd_level()),
        "tools": {tool: shutil.which(tool) for tool in TOOLS},
    }


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a package may have none
            if importlib.util.find_spec(name.replace("-", "_")):
                found[name] = "unknown"
    return found


def asked(names: tuple[str, ...]) -> dict[str, str]:
    """Return what nvidia-smi says of the first device; nothing if it is missing."""
    said = output("nvidia-smi", "--id=0", f"--query-gpu={','.join(names)}", "--format=csv,noheader")
    values = [value.strip() for value in said.splitlines()[0].split(",")] if said else []
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def commit() -> str:
    """Return the commit, with a word if files differ from it."""
    name = output("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
    return name and name + " and changes" * bool(output("git", "-C", str(ROOT), "status", "--porcelain", "-uno"))


def output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    parser("gpu_facts", __doc__).parse_args()
    main()
