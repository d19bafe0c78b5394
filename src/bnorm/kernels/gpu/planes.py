"""How many channels of small planes a block reads together, so that they are whole vectors at each outer position.

This number, and so the order of the sums, follows from the shape and the type alone, whatever the device.
"""

from .limits import TWO_PER_PROCESSOR
from .shapes import THREADS, VECTOR_BYTES, cdiv

LEAST_READ = 256  # bytes side by side: shorter pieces of memory would waste parts of sectors
MOST_PLANE = 1 << 10  # bytes of a plane: from here on, planes are read one by one, as runs
SHORT = 256  # bytes of a plane: shorter ones are read together even if each is whole vectors by itself
LITTLE = 24 << 10  # bytes that a block keeps: up to here it may have four times as many channels
FEW_BLOCKS, MORE_BLOCKS, ENOUGH_BLOCKS = 64, 128, 256
SMALL = 2 << 20  # bytes of the arrays: up to here few blocks may read them, as they are in the second-level cache


def sizes(itemsize: int) -> tuple[int, int, int]:
    """Return how many channels a block may have. For types of two bytes, the first makes vectors of eight bytes."""
    few = VECTOR_BYTES // itemsize
    return few // 2 if itemsize == 2 else few, few, 4 * few


def together(outer: int, channels: int, inner: int, itemsize: int, arrays: int) -> int:
    """Return the channels of a block that reads so many arrays; 0 if it does not read several planes together."""
    plane = inner * itemsize
    if inner < 2 or plane >= MOST_PLANE or (plane >= SHORT and plane % VECTOR_BYTES == 0):
        return 0
    least, few, many = sizes(itemsize)
    bytes_of_few = outer * few * plane * arrays
    if 4 * bytes_of_few <= LITTLE and channels >= ENOUGH_BLOCKS * many and fits(many, channels, plane, itemsize):
        return many
    for size in (few, many):
        kept = cdiv(outer * inner, THREADS // size) * THREADS * itemsize * arrays
        enough = channels >= FEW_BLOCKS * size or outer * channels * plane * arrays <= SMALL
        if fits(size, channels, plane, itemsize) and kept <= TWO_PER_PROCESSOR and enough:
            more = size == few and channels < MORE_BLOCKS * few and fits(least, channels, plane, itemsize)
            return least if more else size
    return 0


def vector_bytes(size: int, itemsize: int) -> int:
    """Return the bytes of the vectors by which so many channels are read."""
    return min(VECTOR_BYTES, size * itemsize)


def fits(size: int, channels: int, plane: int, itemsize: int) -> bool:
    """Whether blocks of `size` channels read long pieces of memory, by most of their threads."""
    span = size * plane // vector_bytes(size, itemsize)
    busy = THREADS // span * span if span else 0
    return channels % size == 0 and size * plane >= LEAST_READ and 4 * busy >= 3 * THREADS
