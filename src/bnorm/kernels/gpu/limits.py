"""What a plan needs to know of a device, and how many blocks have room on one of its processors."""

from typing import NamedTuple

STATIC_SHARED = {  # bytes that the kernels which also get dynamic memory declare at most, by family
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
    clusters: bool = True  # of blocks, which may write to each other's
    meetings: bool = True  # of all blocks that run at the same time; there are both until CUDA refuses one


def two_per_processor(family: str, limits: Limits) -> int:
    """Bytes of dynamic shared memory up to which two blocks share a processor, however little memory it has."""
    return min(TWO_PER_PROCESSOR, half_of(limits) - STATIC_SHARED[family])


def half_of(limits: Limits) -> int:
    """Bytes of shared memory, static and dynamic, up to which two blocks share a processor."""
    return (limits.shared + BLOCK_OVERHEAD) // 2 - BLOCK_OVERHEAD  # a block may ask for all but its own overhead
