"""Print, one on a line, names that the stand-in for CuPy has and the installed CuPy does not: no device is needed.

The same for the names of CuPy that the library, the benchmarks and the scripts for a device use in their source.
"""

import ast
from pathlib import Path

import cupy

from emulated import fake_array, fake_cupy, fake_streams

ROOT = Path(__file__).parents[2]

WRITTEN = (*ROOT.glob("src/bnorm/**/*.py"), *ROOT.glob("benchmarks/gpu*.py"), *ROOT.glob("tests/support/gpu_*.py"))
INSTANCES = {"ptr", "mem", "nodes", "before", "free", "host"}  # attributes of instances, or of the stand-in alone


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")} - INSTANCES


def leaves(namespace: object, prefix: str) -> set[str]:
    found = set()
    for name, value in vars(namespace).items():
        found |= leaves(value, f"{prefix}{name}.") if type(value) is type(fake_cupy.cuda) else {prefix + name}
    return found


def of_the_stand_in() -> set[str]:
    found = {*fake_array.FUNCTIONS, *fake_array.UFUNCS, *leaves(fake_cupy.cuda, "cuda.")}
    found |= {"asarray", "asnumpy", "get_default_memory_pool", "RawModule", "__version__"}
    classes = {
        "ndarray": fake_array.ndarray,
        "cuda.Device": fake_array.Device,
        "cuda.MemoryPointer": fake_array.MemoryPointer,
        "cuda.MemoryPool": fake_streams.MemoryPool,
        "cuda.Stream": fake_streams.Stream,
        "cuda.Graph": fake_streams.Graph,
        "RawModule": fake_cupy.RawModule,
    }
    found |= {f"{name}.{part}" for name, cls in classes.items() for part in public(cls)}
    found |= {f"cuda.runtime.cudaDevAttr{name}" for name in fake_array.SMALL}  # the names of a device's attributes
    return found | {
        *("cuda.Device.attributes", "cuda.Device.compute_capability", "cuda.Device.id", "cuda.Stream.null"),
        *("RawKernel.kernel", "RawKernel.max_dynamic_shared_size_bytes", "cuda.Function.ptr"),
    }


def written() -> set[str]:
    """Return every a.b.c of cupy.a.b.c and self.cupy.a.b.c in the sources."""
    found = set()
    for path in WRITTEN:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = []
            while isinstance(node, ast.Attribute):
                parts.insert(0, node.attr)
                node = node.value
            if isinstance(node, ast.Name):
                parts.insert(0, node.id)
            if "cupy" in parts[:2]:
                found.add(".".join(parts[parts.index("cupy") + 1 :]))
    return found - {""}


def has(name: str) -> bool:
    value: object = cupy
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None


def main() -> None:
    names = of_the_stand_in() | written()
    assert {"cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor", "cuda.Event", "where", "ndarray.get"} <= names
    print("\n".join(sorted(name for name in names if not has(name))))


if __name__ == "__main__":
    main()
