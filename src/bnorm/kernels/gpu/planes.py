"""Which small planes a block reads together: so many channels that they are whole vectors at each outer position.

That, and so the order of their sums, follows from the shape and the type alone, whatever the device.
"""

from .limits import TWO_PER_PROCESSOR
from .shapes import THREADS, VECTOR_BYTES, cdiv

LEAST_READ = 256  # bytes side by side: shorter pieces of memory would waste parts of sectors
MOST_PLANE = 1 << 10  # bytes: longer ones are runs of vectors, or nearly so
SHORT = 256  # bytes: shorter ones are so even where they are whole vectors themselves
LITTLE = 24 << 10  # bytes of a block: up to here it may have more channels
FEW_BLOCKS, MORE_BLOCKS, ENOUGH_BLOCKS = 64, 128, 256
SMALL = 2 << 20  # bytes of the arrays, which few blocks may read, as they are in the second-level cache


def sizes(itemsize: int) -> tuple[int, int, int]:
    """How many channels a block may have. The first is less where vectors of eight bytes have several values, too."""
    few = VECTOR_BYTES // itemsize
    return few // 2 if itemsize == 2 else few, few, 4 * few


def together(outer: int, channels: int, inner: int, itemsize: int, arrays: int) -> int:
    """The channels of a block, of so many arrays; 0 where planes are not read so."""
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
    """Of the vectors that so many channels are read by."""
    return min(VECTOR_BYTES, size * itemsize)


def fits(size: int, channels: int, plane: int, itemsize: int) -> bool:
    """Whether so many are read in long pieces, by most threads of a block."""
    span = size * plane // vector_bytes(size, itemsize)
    busy = THREADS // span * span if span else 0
    return channels % size == 0 and size * plane >= LEAST_READ and 4 * busy >= 3 * THREADS
