"""Where CUDA kernels run: the texts they are compiled from, devices, and what is kept for each of them.

A kernel is compiled when it is first needed, one small module per instance: CuPy keeps the binaries on disk. Launches
go to CuPy's current stream, and a workspace belongs to a stream.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from . import plans

Array = Any  # cupy.ndarray

# Multiplications and additions are not contracted: where they are meant to be fused, the kernels say so.
OPTIONS = ("-std=c++17", "-fmad=false")
JOB = np.dtype(f"V{plans.JOB_BYTES}")  # CuPy passes a NumPy array of one element by value
SHARED_AT_FIRST = (48 << 10) - plans.STATIC_SHARED  # of dynamic shared memory, without asking the driver
FAMILIES = {
    "channels": ("common.cu", "channels_sums.cu", "channels.cu"),
    "rows": ("common.cu", "channels_sums.cu", "rows.cu"),
}


@cache
def source(family: str) -> str:
    """The whole text of a family of kernels."""
    here = Path(__file__).parent
    texts = (here.parent / "formulas.h", *(here / name for name in FAMILIES[family]))
    return "\n".join(path.read_text(encoding="utf-8") for path in texts)


def namespace() -> Any:
    """CuPy: whoever calls this has an array of it, or asks for one."""
    import cupy

    return cupy


@cache
def available() -> str | None:
    """None where CuPy arrays can be computed on, else the reason in one sentence."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'bnorm[gpu]'."
    except Exception as error:  # a broken installation says so in many ways
        return f"CuPy cannot be imported: {error}."
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"CuPy {cupy.__version__} finds no CUDA device: {error}."
    return None if count else f"CuPy {cupy.__version__} finds no CUDA device."


class Device:
    """A CUDA device and what is kept for it: compiled kernels, and a workspace per stream."""

    def __init__(self, index: int) -> None:
        self.cupy = cupy = namespace()
        self.index = index
        self.kernels: dict[str, Any] = {}
        self.shared: dict[str, int] = {}  # bytes that a kernel may ask for, where that is more than it may at first
        self.workspaces: dict[int, tuple[Array, Array]] = {}
        attributes = cupy.cuda.Device(index).attributes
        self.limits = plans.Limits(attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerBlockOptin"])

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.cupy.zeros(shape, dtype)

    def address(self, array: Array) -> int:
        data = array.data
        if data.device_id != self.index:
            raise ValueError(f"expected arrays on device {self.index}, where x is, got one on device {data.device_id}")
        address: int = data.ptr
        return address

    def workspace(self, numbers: int, tickets: int) -> tuple[Array, Array]:
        """Float64 numbers, and tickets that are 0 whenever no kernel runs; of the current stream."""
        stream = self.cupy.cuda.get_current_stream().ptr
        kept = self.workspaces.get(stream)
        if kept is None or kept[0].size < numbers or kept[1].size < tickets:
            kept = self.empty((max(numbers, 1 << 16),), np.float64), self.zeros((max(tickets, 1 << 12),), np.uint32)
            self.workspaces[stream] = kept
        return kept

    def launch(self, family: str, launch: plans.Launch, job: bytes) -> None:
        name, shared = launch.kernel, launch.shared
        kernel = self.kernels.get(name) or self.compile(family, name)
        if shared > self.shared.get(name, SHARED_AT_FIRST):
            kernel.max_dynamic_shared_size_bytes = self.shared[name] = shared
        kernel(launch.grid, (launch.block,), (np.frombuffer(job, JOB),), shared_mem=shared)

    def compile(self, family: str, name: str) -> Any:
        module = self.cupy.RawModule(code=source(family), options=OPTIONS, name_expressions=[name])
        self.kernels[name] = module.get_function(name)
        return self.kernels[name]


@lru_cache(maxsize=64)
def _device(index: int) -> Device:
    return Device(index)


def device_of(x: Array) -> Device:
    """The device of an array, which has to be CuPy's current one: kernels and new arrays go there."""
    index = x.device.id
    device = _device(index)
    if (current := device.cupy.cuda.runtime.getDevice()) != index:
        raise ValueError(
            f"x: expected an array on the current device, {current}, got one on device {index}; "
            f"call inside `with cupy.cuda.Device({index}):`"
        )
    return device
