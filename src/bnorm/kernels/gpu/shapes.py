"""How the elements of an array are divided among the threads of a grid.

A channel lies in memory in one of two ways, and the kernels see both as columns of steps:

    rows of channels    (outer, C, inner) with a short inner: row after row of C * inner columns, `inner` columns to a
                        channel. If columns are few, they are widened: `copies` outer positions make one row. What is
                        left over, less than a row, is the rest; thread row 0 of the last chunk takes it.
    channel runs        every channel is one column, and its steps are the vectors of its runs.

A block is BX threads wide, with K columns to a thread, and BY threads high. The grid has a tile of BX * K columns for
each x, and a chunk of steps for each y. The last block of a group of tiles joins the partial sums of the group's
channels, so a group has whole channels.

For small planes, such as (outer, C, 7 x 7), a block has several whole channels, and reads them as vectors (planes.py).
"""

from math import gcd, lcm
from typing import NamedTuple

from .limits import Limits

NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "float", "float64": "double"}  # of the types in the kernels
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

THREADS = 256
VECTOR_BYTES = 16
TILE_BYTES = 128  # bytes of a row in a tile: four sectors of memory
MAX_THREADS_WIDE = 32
SHORT_RUN = 256  # bytes: shorter runs are read as rows of channels, in whole vectors
MAX_WIDENED = 1024  # columns: the last block joins all of them
RESIDENT = 2  # at least so many blocks of a kernel share a processor, by its launch bounds
LEAST_STEPS = 8  # steps of a thread: with fewer, more blocks are not worth their partial sums
MAX_CHUNKS = 1024
SPLIT = 8  # parts of a chunk in a map


class Shape(NamedTuple):
    """How the elements are divided among threads. The names are those of the struct Job."""

    channels: int
    inner: int  # columns of a channel that lie side by side
    columns: int
    copies: int
    steps: int
    total: int  # elements; there is a rest if they are more than steps * columns
    run: int
    jump: int
    unit: int
    base: int
    weight_step: int
    vector: int  # elements that are loaded at a time
    wide: int  # columns of a thread
    across: int  # threads of a block
    down: int

    @property
    def width(self) -> int:
        return self.across * self.wide

    @property
    def tiles(self) -> int:
        return -(-self.columns // self.width)

    @property
    def whole(self) -> int:
        """The steps of a chunk that has all of them, the same number for each thread."""
        return max(1, cdiv(self.steps, self.down)) * self.down

    def few(self, chunks: int) -> bool:
        """Whether each of several tiles has several columns of each channel, and joins them first."""
        several = self.copies > 1 and self.inner == 1 and 2 * self.channels <= self.width
        return several and self.wide > 1 and chunks * self.tiles > 1

    @property
    def group(self) -> int:
        """How many tiles together hold whole channels."""
        return self.tiles if self.copies > 1 else min(self.tiles, lcm(self.inner, self.width) // self.width)

    def kernel(self, name: str, dtype: str, *more: int) -> str:
        numbers = (self.vector, self.wide, self.across, self.down, *more)
        return f"{name}<{NAMES[dtype]}, {', '.join(map(str, numbers))}>"


def vectors_of(dtype: str) -> list[int]:
    """Return the numbers of elements that one load may have."""
    return [1 << power for power in range((VECTOR_BYTES // ITEMSIZE[dtype]).bit_length())]


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def rows_of_channels(outer: int, channels: int, inner: int, itemsize: int, vector: int) -> Shape:
    """Return the shape for rows of channels. vector: the most elements that one load may have."""
    plane = channels * inner
    copies = vector // gcd(plane, vector)
    if outer < copies or copies * plane > MAX_WIDENED:
        copies = 1
    tile = TILE_BYTES // itemsize
    copies *= widened(copies * plane, tile, outer // (copies * MAX_THREADS_WIDE))
    columns = copies * plane
    vector = gcd(columns, vector)
    across = min(MAX_THREADS_WIDE, tile // vector)
    return Shape(
        channels, inner, columns, copies, outer // copies, outer * plane,
        run=1, jump=columns, unit=1, base=1, weight_step=copies * inner,
        vector=vector, wide=vector, across=across, down=THREADS // across,
    )  # fmt: skip


def widened(columns: int, tile: int, most: int) -> int:
    """Return how many rows, at most `most`, become one: a tile, or whole tiles if much of them would be empty else."""
    few = max(1, min(most, cdiv(tile, columns)))
    whole = lcm(columns, tile) // columns
    empty = 8 * few * columns < 7 * cdiv(few * columns, tile) * tile
    return whole if empty and whole <= most and whole * columns <= MAX_WIDENED else few


def channel_runs(outer: int, channels: int, inner: int, vector: int, threads: int = THREADS) -> Shape:
    vector = gcd(inner, vector)
    return Shape(
        channels, 1, channels, 1, outer * inner // vector, outer * channels * inner,
        run=max(inner // vector, 1), jump=channels * inner, unit=vector, base=inner, weight_step=1,
        vector=vector, wide=1, across=1, down=threads,
    )  # fmt: skip


def plane_shape(outer: int, channels: int, inner: int, together: int) -> Shape:
    """Return runs of which a block has several side by side. Values are added up one by one, but read as vectors."""
    return channel_runs(outer, channels, inner, 1)._replace(across=together, down=THREADS // together)


def shape_of(outer: int, channels: int, inner: int, dtype: str, vectors: bool) -> Shape:
    """Return how an array is read. vectors: whether whole ones may be loaded, as all pointers are multiples of 16."""
    itemsize = ITEMSIZE[dtype]
    vector = VECTOR_BYTES // itemsize if vectors else 1
    if inner <= 1 or inner * itemsize < SHORT_RUN:
        return rows_of_channels(outer, channels, inner, itemsize, vector)
    return channel_runs(outer, channels, inner, vector)


def blocks_each(tiles: int, slots: int) -> int:
    """Return how many blocks a tile gets: so many that hardly a slot is empty while the last of the blocks run."""
    first = max(1, slots // max(tiles, 1))
    for some in range(first, first + 8):
        if 10 * some * tiles >= 9 * cdiv(some * tiles, slots) * slots:
            return some
    return first


def cut(shape: Shape, limits: Limits) -> tuple[int, int, int]:
    """Return the steps of a chunk, the number of chunks, and into how many parts a map cuts a chunk.

    There are about as many blocks as a device runs at a time.
    """
    wanted = blocks_each(shape.tiles, limits.processors * RESIDENT)
    chunks = max(1, min(wanted, MAX_CHUNKS, shape.steps // (shape.down * LEAST_STEPS)))
    steps = cdiv(shape.steps, chunks)
    split = SPLIT if steps >= SPLIT * LEAST_STEPS * shape.down else 1
    chunk = max(1, cdiv(steps, shape.down * split)) * shape.down * split
    return chunk, max(1, cdiv(shape.steps, chunk)), split


def cut_of_map(shape: Shape, limits: Limits) -> tuple[int, int, int]:
    """Return the same for a map, which writes no sums: if blocks are few it has more, of at least a step a thread."""
    chunk, chunks, split = cut(shape, limits)
    if shape.tiles * chunks < limits.processors:
        wanted = min(blocks_each(shape.tiles, limits.processors * RESIDENT), MAX_CHUNKS)
        chunk, split = max(1, cdiv(shape.steps, wanted * shape.down)) * shape.down, 1
    return chunk // split, max(1, cdiv(shape.steps, chunk)) * split, split


def kept(shape: Shape, itemsize: int) -> int:
    return cdiv(shape.steps, shape.down) * shape.across * shape.down * shape.vector * itemsize
