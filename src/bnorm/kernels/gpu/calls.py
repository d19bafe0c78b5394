"""What every call does first: its array, its device, its result. The host's time of a small call is spent here."""

from functools import cache
from math import prod
from typing import Any

from ..cpu.launches import launch
from . import launching, plans

Array = Any  # cupy.ndarray


@cache
def dtype_name(dtype: Any) -> str:
    name: str = dtype.name  # which NumPy makes up anew each time
    return name


class Call:
    """The arrays of one call: x, what is made of it, and dy beside it; and their addresses."""

    __slots__ = (
        *("at", "captured", "channels", "device", "dtype", "dy_at", "inner", "outer", "places", "result"),
        *("result_at", "space", "stream", "vectors"),
    )

    def __init__(self, x: Array, out: Array | None, dy: Array | None = None, writes: bool = True) -> None:
        self.device = device = launching.device_of(x)
        stream = device.stream()
        self.stream: int = stream.ptr
        self.captured = stream.ptr != 0 and device.capturing(stream)  # the default stream, 0, cannot be captured
        self.space: launching.Workspace | None = None
        shape = x.shape
        self.outer, self.channels = shape[0], shape[1]
        self.inner = 1 if len(shape) == 2 else prod(shape[2:])
        if self.inner == 0:
            self.outer, self.inner = 0, 1
        self.dtype = dtype_name(x.dtype)
        self.result = None if not writes else device.empty(shape, x.dtype) if out is None else out
        self.at, self.dy_at, self.result_at = device.addresses(x, dy, self.result)
        self.places = self.at | self.dy_at | self.result_at  # a power of two that divides this divides all of them
        self.vectors = self.places % plans.VECTOR_BYTES == 0

    @property
    def size(self) -> tuple[int, int, int, str, bool]:
        """What plans are made of. Without channels nothing is launched, whatever the plan."""
        return self.outer, self.channels or 1, self.inner, self.dtype, self.vectors

    def workspace(self, plan: plans.Plan, more: int = 0) -> tuple[int, int]:
        """The addresses of a plan's partial sums, which `more` numbers of the caller follow, and of its tickets.

        They are there for the next `run`, and no longer.
        """
        stream = None if self.captured else self.stream
        self.space = self.device.workspace(stream, plan.partial + more, plan.tickets)
        return self.space.addresses

    def run(self, plan: plans.Plan, job: bytes) -> None:
        """All launches of a call whose plan and job these are."""
        self.run_all([(plan, job)])

    def run_all(self, plans_and_jobs: list[tuple[plans.Plan, bytes]], holder: Any = None) -> None:
        """One after the other. holder: has a forward by now, and none when all are launched: no interrupt comes between
        these."""
        if self.channels:
            prepared = self.device.prepared
            launch([prepared(plan, job) for plan, job in plans_and_jobs], holder)
        if self.space is not None:  # all that comes into the stream from now on runs later
            if not self.captured:
                self.device.workspaces.free[self.stream] = self.space
            self.space = None
