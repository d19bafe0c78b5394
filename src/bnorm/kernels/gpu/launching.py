"""Compiling and launching CUDA kernels: their source texts, the devices, and what is kept for each device.

A kernel is compiled when it is first needed, one small module per instance: CuPy keeps the binaries on disk. Launches
go to CuPy's current stream.

A call has its workspace to itself until all of its launches are in the stream, whatever other threads launch there in
between. A call that is captured in a graph takes its workspace from the pool that the graph's memory comes from, and
its tickets from those that an earlier call on its stream has set to 0, so that the graph need not do it at every run.
"""

import threading
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..cpu.launches import launch, places
from . import jobs, plans
from .limits import STATIC_SHARED, Limits

Array = Any  # cupy.ndarray

# Multiplications and additions are not contracted: kernels call `fused` where they are meant to be fused.
OPTIONS = ("-std=c++17", "-fmad=false")
SHARED_AT_FIRST = 48 << 10  # bytes of shared memory, static and dynamic, that a block gets without asking the driver
SPARE, MOST_SPARE = 1 << 16, 64  # tickets in an array for the graphs of a stream, and how many such arrays a device has
WITH_CLUSTERS = 90  # the first compute capability with clusters
# CUDA's errors for a launch whose blocks cannot run together because a program may not use all processors.
NO_ROOM = "COOPERATIVE_LAUNCH_TOO_LARGE", "INVALID_CLUSTER_SIZE", "LAUNCH_OUT_OF_RESOURCES"
FORMULAS = ("powers.h", "formulas.h")
ON_CHANNELS = ("numbers.cu", "walk.cu", "joins.cu")
BATCH_NORM = (*ON_CHANNELS, "tiles.cu", "fetching.cu", "blocks.cu", "moving.cu", "channels_sums.cu", "channels_maps.cu")
ROWS = (*ON_CHANNELS, "fetching.cu", "blocks.cu", "row_sums.cu", "rows.cu", "row_stats.cu")
FAMILIES = {
    "channels": (*BATCH_NORM, "runs.cu", "meeting.cu", "channels.cu"),
    "clusters": (*BATCH_NORM, "runs.cu", "clusters.cu"),
    "planes": (*BATCH_NORM, "planes.cu"),
    "rows": (*ROWS, "rows_forward.cu", "rows_params.cu", "rows_backward.cu"),
    "rows_weighted": (*ROWS, "rows_weighted.cu"),
    "row_channels": (*ON_CHANNELS, "tiles.cu", "row_channels.cu"),
    "statistics": ("numbers.cu", "moving.cu", "statistics.cu"),
    "exact": ("numbers.cu", "walk.cu", "exact.cu"),
}
JOBS = {fields.size: np.dtype(f"V{fields.size}") for fields in jobs.ALL}
PROBE = 'extern "C" __global__ void probe() {}'


@cache
def source(family: str) -> str:
    """Return the whole source text of a family of kernels."""
    here = Path(__file__).parent
    paths = (*(here.parent / name for name in FORMULAS), *(here / name for name in FAMILIES[family]))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    modes = [f"enum {{ {', '.join(names)} }};" for names in jobs.ENUMERATIONS]
    return "\n".join((*texts[: len(FORMULAS)], *modes, *texts[len(FORMULAS) :]))


def namespace() -> Any:
    """Return CuPy, which a caller has imported already or has asked for."""
    import cupy

    return cupy


@cache
def current_stream() -> Callable[[], Any]:
    """Return CuPy's function that returns the current stream. It is looked up once."""
    found: Callable[[], Any] = namespace().cuda.get_current_stream
    return found


@cache
def available() -> str | None:
    """Return None if CuPy arrays can be computed on, else the reason why not, in one sentence."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'bnorm[gpu]'."
    except Exception as error:  # a broken installation may raise any error
        return f"CuPy cannot be imported: {error}."
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"CuPy {cupy.__version__} finds no CUDA device: {error}."
    if not count:
        return f"CuPy {cupy.__version__} finds no CUDA device."
    try:
        cupy.RawModule(code=PROBE, options=OPTIONS).compile()
    except Exception as error:  # NVRTC, or the headers that CuPy gives it, are missing
        return (
            f"CuPy {cupy.__version__} cannot compile: {error}. "
            "pip install 'bnorm[gpu]' brings CUDA's compiler and headers."
        )
    return None


class Workspace(NamedTuple):
    """Memory that the launches of a call share: the addresses and sizes of numbers and tickets, and their arrays."""

    addresses: tuple[int, int]
    numbers: int
    tickets: int
    arrays: tuple[Array, ...]


class Workspaces(threading.local):
    """Workspaces that no call is using, by stream. Each thread has its own, as streams of several may have one number.

    spare: for each stream, tickets that are 0, and how many of them graphs have taken.
    """

    def __init__(self) -> None:
        self.free: dict[int, Workspace] = {}
        self.spare: dict[int, tuple[Array, int]] = {}


class Device:
    """A CUDA device and what is kept for it: compiled kernels, and workspaces."""

    def __init__(self, index: int) -> None:
        self.cupy = cupy = namespace()
        self.index = index
        self.addresses: Callable[..., list[int]] = partial(places, index)
        self.kernels: dict[str, Any] = {}
        self.workspaces = Workspaces()
        self.of_graphs: list[Array] = []  # tickets, which are never freed: nothing tells when a graph ends
        device = cupy.cuda.Device(index)
        attributes = device.attributes
        self.limits = Limits(
            attributes["MultiProcessorCount"],
            attributes["MaxSharedMemoryPerBlockOptin"],
            int(device.compute_capability) >= WITH_CLUSTERS,  # a string in CuPy, and not among the attributes
            bool(attributes.get("CooperativeLaunch", True)),
        )
        self.empty: Callable[[tuple[int, ...], Any], Array] = cupy.empty
        self.zeros: Callable[[tuple[int, ...], Any], Array] = cupy.zeros
        self.stream = current_stream()
        self.current: Callable[[], int] = cupy.cuda.runtime.getDevice

    def address(self, array: Array | None) -> int:
        return self.addresses(array)[0]

    def capturing(self, stream: Any) -> bool:
        """Whether calls on this stream are captured in a graph. RuntimeError if others could get the graph's memory.

        What a call allocates goes back to its pool when the call ends, but the graph still writes there.
        """
        if not stream.is_capturing():
            return False
        if getattr(self.cupy.cuda.get_allocator(), "__self__", None) is self.cupy.get_default_memory_pool():
            raise RuntimeError(
                "bnorm: expected a memory pool of its own for a captured call, got CuPy's default pool, which gives "
                "the graph's memory to others: run and capture the step inside "
                "`with cupy.cuda.using_allocator(pool.malloc)`, where pool is a cupy.cuda.MemoryPool() that lives as "
                "long as the graph, and that nothing else uses"
            )
        return True

    def workspace(self, stream: int | None, numbers: int, tickets: int) -> Workspace:
        """Return float64 numbers, and tickets that are 0 whenever no kernel runs, for one call on the current stream.

        The call leaves them in `workspaces` for the next one. stream: None for a call that is captured.
        """
        if stream is None:
            return self.workspace_of_graph(self.stream().ptr, numbers, tickets)
        kept = self.workspaces.free.pop(stream, None)
        if kept is not None and kept.numbers >= numbers and kept.tickets >= tickets:
            return kept
        least = (1 << 16, 1 << 12) if kept is None else (2 * kept.numbers, 2 * kept.tickets)
        numbers, tickets = max(numbers, least[0]), max(tickets, least[1])  # enough for most later calls
        if stream not in self.workspaces.spare and len(self.of_graphs) < MOST_SPARE:
            self.workspaces.spare[stream] = self.zeros((SPARE,), np.uint32), 0
        arrays = self.empty((numbers,), np.float64), self.zeros((tickets,), np.uint32)
        return Workspace((self.address(arrays[0]), self.address(arrays[1])), numbers, tickets, arrays)

    def workspace_of_graph(self, stream: int, numbers: int, tickets: int) -> Workspace:
        """Return the workspace of a call that is captured on this stream. If no tickets are left, the graph sets its
        own to 0 itself."""
        space = self.empty((numbers,), np.float64)
        found, taken = self.workspaces.spare.get(stream, (None, 0))
        if found is None or taken + tickets > SPARE:
            self.workspaces.spare.pop(stream, None)
            self.workspaces.free.pop(stream, None)  # so that the next call that is not captured makes new ones
            own = self.zeros((tickets,), np.uint32)
            return Workspace((self.address(space), self.address(own)), numbers, tickets, (space, own))
        if not taken:
            self.of_graphs.append(found)
        self.workspaces.spare[stream] = found, taken + tickets
        at = self.address(found) + taken * found.itemsize
        return Workspace((self.address(space), at), numbers, tickets, (space, found))

    def run(self, plan: plans.Plan, call: bytes) -> None:
        """Launch a plan. call: the part of the job that all launches of the plan share."""
        launch([self.prepared(plan, call)])

    def prepared(self, plan: plans.Plan, call: bytes) -> tuple[list[tuple[Any, ...]], bytes]:
        """Return the launches of a plan, and their call's part, for `launch`, which no signal interrupts."""
        return plan.ready.get(self) or self.prepare(plan, call), call

    def prepare(self, plan: plans.Plan, call: bytes) -> list[tuple[Any, ...]]:
        """Compile the kernels of a plan, and store in the plan what its launches need."""
        found = []
        for family, name, grid, block, shared, geometry, persistent, meeting in plan.launches:
            kernel = self.kernels.get(name) or self.compile(family, name)
            static = STATIC_SHARED.get(family, 0)
            if shared > SHARED_AT_FIRST - static:  # set to the maximum: another thread may launch it by another plan
                kernel.max_dynamic_shared_size_bytes = self.limits.shared - static
            function = kernel.kernel
            if persistent:
                resident = self.cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
                at_a_time = self.limits.processors * resident(function.ptr, block[0], shared)
                grid = min(grid[0], persistent * at_a_time), 1
            if meeting:
                function = partial(function, enable_cooperative_groups=True)
            together = "meetings" if meeting else "clusters"
            refused = partial(self.refused, together, plan.otherwise) if plan.otherwise else None
            found.append((function, grid, block, shared, geometry, JOBS[len(call) + len(geometry)], refused))
        plan.ready[self] = found
        return found

    def refused(self, together: str, otherwise: plans.Plan, call: bytes, error: Exception) -> list[tuple[Any, ...]]:
        """Return what to launch in place of a meeting, or of clusters, that CUDA has refused. From now on, plans for
        this device have none."""
        if not any(f"CUDA_ERROR_{reason}" in str(error) for reason in NO_ROOM):
            raise error
        self.limits = self.limits._replace(**{together: False})
        return self.prepared(otherwise, call)[0]

    def compile(self, family: str, name: str) -> Any:
        module = self.cupy.RawModule(code=source(family), options=OPTIONS, name_expressions=[name])
        self.kernels[name] = module.get_function(name)
        return self.kernels[name]


@lru_cache(maxsize=64)
def _device(index: int) -> Device:
    return Device(index)


def device_of(x: Array) -> Device:
    """Return the device of an array. It must be CuPy's current one, as kernels and new arrays go there."""
    index = x.data.device_id
    device = _device(index)
    if (current := device.current()) != index:
        raise ValueError(
            f"x: expected an array on the current device, {current}, got one on device {index}; "
            f"call inside `with cupy.cuda.Device({index}):`"
        )
    return device
