"""What a plan needs to know of a device, and with how much shared memory two blocks fit on one of its processors."""

from typing import NamedTuple

STATIC_SHARED = {  # bytes of static shared memory, at most, of kernels that also get dynamic memory, by family
    "channels": 11 << 10,
    "clusters": 9 << 10,
    "planes": 6 << 10,
    "rows": 800,
}
BLOCK_OVERHEAD = 1 << 10  # bytes of shared memory that each block takes for the driver
TWO_PER_PROCESSOR = 100 << 10  # bytes of shared memory: up to here two blocks share a processor


class Limits(NamedTuple):
    """What a plan needs to know of a device."""

    processors: int = 132
    shared: int = 227 << 10  # bytes of shared memory that a block may ask for
    clusters: bool = True  # whether clusters of blocks can write to each other's shared memory
    meetings: bool = True  # whether all blocks can run at the same time, and meet; as clusters, True until CUDA refuses


def two_per_processor(family: str, limits: Limits) -> int:
    """Return up to how many bytes of dynamic shared memory two blocks share a processor, at most TWO_PER_PROCESSOR."""
    return min(TWO_PER_PROCESSOR, half_of(limits) - STATIC_SHARED[family])


def half_of(limits: Limits) -> int:
    """Return up to how many bytes of shared memory, static and dynamic, two blocks share a processor."""
    return (limits.shared + BLOCK_OVERHEAD) // 2 - BLOCK_OVERHEAD  # a block may ask for all but its own overhead
