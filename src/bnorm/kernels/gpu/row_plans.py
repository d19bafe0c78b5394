"""How the kernels of rows are launched: layer, group, instance and RMS norm. As in plans.py, no device is needed.

A row is held in registers: by a part of a warp if it is short, so that a warp works on several rows; by a warp, by
several warps, or by a block. Rows too long for registers are kept in shared memory, and longer ones are read twice.

Which of these it is, and so the order of its sums, follows from the length of a row and the type alone: the results of
a row have the same bits in any batch, at any place in it, and on any device. The sums over rows, for dgamma and dbeta,
are divided among the blocks that a device runs at a time, so their bits depend on the device.
"""

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from ..activation import IDENTITY
from .bunches import Bunches, bunches
from .jobs import GAMMA_ALONE, GAMMA_AND_BETA, NO_AFFINE, NO_PARAMS, PER_CHANNEL, PER_COLUMN, ROW_JOB
from .limits import STATIC_SHARED, TWO_PER_PROCESSOR, Limits, half_of, two_per_processor
from .plans import STREAMED, Launch, Plan, bunches_of, launch, workspace
from .shapes import (
    ITEMSIZE,
    NAMES,
    SHORT_RUN,
    THREADS,
    VECTOR_BYTES,
    blocks_each,
    cdiv,
    channel_runs,
    cut,
    rows_of_channels,
)

HELD = (3, 4, 5)  # a thread may hold this many full vectors; there is a kernel for each number, so that few lanes idle
MORE = (6, 8)  # the same in forwards of longer rows
OF_SHORT_VECTORS = ((4,), (8,))  # HELD and MORE for vectors of less than 16 bytes
WARP = 32
OF_A_WARP, OF_WARPS, BROAD, BROADER = range(4)  # values of `wide`; row_sums.cu says what they mean
SHARED_AFFINE = 36 << 10  # from so many bytes of gamma and beta on, all rows of a processor share them in a forward
ZEROS = 8  # numbers that a block keeps in place of beta if there is only gamma
KEPT_CHANNELS = 1024  # forwards of long rows keep gamma and beta of up to so many channels, if these have runs
SUMMED = 16  # if the runs of a long row have so many vectors or more, warps add them up in the pass over the row
JOINED = (8, 32)  # columns of a block in a launch that only joins sums; the second for more than FEW_COLUMNS columns
FEW_COLUMNS = 1024
# If blocks have many turns, the last rows belong to late blocks, which start where early ones have ended. For each kind
# of sums: how often the grid is halved to get the number of early blocks, and n, where one of n rows is late.
LATE = {NO_PARAMS: (2, 4), PER_COLUMN: (1, 16), PER_CHANNEL: (1, 8)}
LITTLE = 20 << 10  # bytes of sums that a late block may write, or of gamma and beta that it may keep
RESIDENT_ROWS = 4  # blocks of a processor, at most
LAUNCHED = 10  # turns: a longer join takes longer than a launch that only joins, with the gap before it

RowShape = tuple[int, ...]  # (N, G, K, L), or (N, D) for (N, 1, D, 1)


class Row(NamedTuple):
    """How a row is divided: into vectors, which are held by the threads (lanes) of a row."""

    vector: int  # elements
    steps: int  # vectors that a thread holds; 0: the row is not held in registers
    wide: int  # whose threads these are: OF_A_WARP to BROADER
    lanes: int

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return THREADS * max(1, self.wide)

    def side(self, many: int, limits: Limits) -> int:
        """Return the rows of a block, side by side. Few rows are spread over all processors; if each has one block, it
        needs only one turn. No bit of a row depends on this."""
        share = cdiv(many, limits.processors) if self.wide >= BROAD else many // limits.processors
        return max(1, min(self.threads // self.lanes, share))

    def kernel(self, name: str, dtype: str, *more: int) -> str:
        return f"{name}<{NAMES[dtype]}, {self.vector}, {self.steps}, {self.wide}, {', '.join(map(str, more))}>"


def four(shape: RowShape) -> RowShape:
    """Return the shape as (N, G, K, L)."""
    return shape if len(shape) == 4 else (shape[0], 1, shape[1], 1)


def vector_of(size: int, positions: int, dtype: str) -> int:
    """Return the elements of a vector. They divide those of a row, and those of a channel if these lie side by side.

    A row has at least two vectors, unless it has at most one value.
    """
    vector = gcd(positions if positions > 1 else size, VECTOR_BYTES // ITEMSIZE[dtype])
    return vector if size > vector else max(1, size // 2)


def begins(shape: RowShape, dtype: str) -> int:
    """Return the power of two that must divide the addresses of arrays of rows."""
    _, _, channels, positions = four(shape)
    return vector_of(channels * positions, positions, dtype) * ITEMSIZE[dtype]


def steps_of(vector: int, dtype: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many vectors of so many elements a thread may hold, and how many in a forward of longer rows."""
    return (HELD, MORE) if vector * ITEMSIZE[dtype] == VECTOR_BYTES else OF_SHORT_VECTORS


def row_of(size: int, positions: int, dtype: str, backward: bool) -> Row:
    """Return how a row is divided: among as few lanes, each with as few vectors, as can hold it.

    backward: x and dy take more registers, so longer rows belong to more threads.

    A row too long for registers has a broad block if it needs a gamma for each value, or if in a backward it is so long
    that x and dy would not fit into the shared memory of half a processor.
    """
    vector = vector_of(size, positions, dtype)
    held, more = steps_of(vector, dtype)
    most = 2 * THREADS if backward else THREADS
    fits = [(1 << i, steps) for i in range(most.bit_length()) for steps in held]
    fits += [] if backward else [(THREADS, steps) for steps in more]
    fits = [(lanes, steps) for lanes, steps in fits if lanes * steps * vector >= size]
    if fits:
        lanes, steps = min(fits, key=prod)
        return Row(vector, steps, BROAD if lanes > THREADS else OF_WARPS if lanes > WARP else OF_A_WARP, lanes)
    if positions == 1 or (backward and 2 * size * ITEMSIZE[dtype] > TWO_PER_PROCESSOR):
        return Row(vector, 0, BROAD, 2 * THREADS)
    return Row(vector, 0, OF_WARPS, THREADS)


def kept_steps(row: Row, size: int, dtype: str, arrays: int, room: int) -> int:
    """Return how many vectors of a thread a block keeps in shared memory, of a row that is too long for registers.

    It is 0 if there is no room. A row that is not kept is read again; its results have the same bits.
    """
    steps = 0 if row.steps else cdiv(size, row.vector * row.threads)
    return steps if arrays * steps * step_bytes(row, dtype) <= room else 0


def step_bytes(row: Row, dtype: str) -> int:
    """Return the bytes of one vector of each thread of a block."""
    return row.threads * row.vector * ITEMSIZE[dtype]


def number_bytes(dtype: str) -> int:
    """Return the bytes of a sum, or of a gamma, in shared memory."""
    return max(ITEMSIZE[dtype], 4)


def both_bytes(channels: int, dtype: str) -> int:
    """Return the bytes of gamma and beta of so many channels, in whole vectors."""
    return cdiv(2 * channels * number_bytes(dtype), VECTOR_BYTES) * VECTOR_BYTES


def summed_bytes(row: Row, dtype: str) -> int:
    """Return the bytes of the sums over rows in the shared memory of a block."""
    return 2 * row.steps * row.threads * row.vector * number_bytes(dtype)


def summing_blocks(row: Row, shared: int, limits: Limits) -> int:
    """Return how many blocks of a processor write sums: all that share it, by the launch bounds of rows_backward.cu."""
    return 1 if row.wide == BROAD or shared + STATIC_SHARED["rows"] > half_of(limits) else 2


def share_of(row: Row, channels: int, positions: int) -> int:
    """Return how many threads add up the sums of a channel; for a row not held, those of all warps that have a part."""
    if not row.steps:
        warps = row.threads // WARP
        part = cdiv(channels * positions // row.vector, 8 * warps) * 8  # vectors of a warp, side by side
        together = min(cdiv(positions // row.vector - 1, part) + 1, warps)
        return WARP << (together - 1).bit_length()
    share = 1
    while 2 * share * channels <= row.threads:
        share *= 2
    return share


def summed_by_channel(row: Row, positions: int) -> bool:
    """Whether sums of channels are made in the pass over rows. If rows are not held, warps do it, for long runs."""
    return positions > 1 and (row.steps > 0 or positions // row.vector >= SUMMED)


def channels_bytes(row: Row, channels: int, positions: int, dtype: str) -> int:
    """Return the bytes, in shared memory, of the sums of channels and of a block's vectors, and of gamma and beta."""
    pieces = max(1, share_of(row, channels, positions) // WARP)
    of_vectors = row.steps * row.threads * number_bytes(dtype)
    return 2 * (8 * channels * pieces + of_vectors) + both_bytes(channels, dtype)


def affine_bytes(shape: RowShape, dtype: str, affine: int) -> int:
    """Return the bytes of gamma and beta in the shared memory of a block; 0 if not all rows have the same ones."""
    _, groups, channels, positions = shape
    if affine == NO_AFFINE or not channels or not groups == positions == 1:
        return 0
    gamma = cdiv(channels, 4) * 4
    return (gamma + (gamma if affine == GAMMA_AND_BETA else ZEROS)) * number_bytes(dtype)


def affine_read(row: Row, affine: int, backward: bool, kind: int) -> int:
    """Return which of gamma and beta a kernel reads, or ones and zeros in their place."""
    if affine == NO_AFFINE and not row.steps:
        return NO_AFFINE
    if backward:  # with an activation, of beta too
        return GAMMA_ALONE if kind == IDENTITY.kind else GAMMA_AND_BETA
    return GAMMA_ALONE if affine == NO_AFFINE else affine  # the code for a gamma that is kept is shorter


def first_late(sums: int, many: int, together: int, most: int, own: int) -> tuple[int, int]:
    """Return the first row of late blocks, and how often to halve the grid to get the number of early ones.

    together: rows of a set of blocks at a time; most: sets that run at a time; own: bytes of a block beside its rows.
    """
    turns, (halvings, one_of) = many // together, LATE[sums]
    late = turns // one_of
    if late < ((1 << halvings) - 1) * most or own > LITTLE:  # some would have no row
        return many, 0
    return (turns - late) * together, halvings


class Sums(NamedTuple):
    """How the sums over rows are made in the pass over them."""

    params: int = NO_PARAMS
    shared: int = 0  # bytes of a block
    columns: int = 0  # of all blocks
    share: int = 0  # threads that add up the sums of a channel


def broadened(row: Row, size: int, dtype: str, room: int) -> Row:
    """Return the row with a broad block, if it can have one: half as many blocks then write sums, and read gamma."""
    broad = row._replace(wide=BROAD)
    fits = row.steps > 0 and summed_bytes(broad, dtype) + size * number_bytes(dtype) <= room
    return broad if fits and row.wide == OF_WARPS else row


def sharing(row: Row) -> Row:
    """Return the row for a forward with one block to a processor, with as many rows as several blocks would have."""
    if row.wide != OF_WARPS or not row.steps:
        return row
    return row._replace(wide=BROADER if row.steps < 5 else BROAD)


def keeping(
    row: Row, shape: RowShape, dtype: str, affine: int, backward: bool, shared: int, limits: Limits
) -> tuple[Row, int]:
    """Return the row, maybe with other threads, and how many bytes of gamma and beta a block keeps beside `shared`."""
    room, beside = limits.shared - STATIC_SHARED["rows"], two_per_processor("rows", limits)
    kept = affine_bytes(shape, dtype, affine)
    if not backward and SHARED_AFFINE <= kept <= room:
        row = sharing(row)
    alone = row.wide >= BROAD or shared > beside or (not backward and affine == GAMMA_AND_BETA and dtype != "float64")
    return row, kept if kept <= (room if alone else beside) - shared else 0


def sums_of(row: Row, shape: RowShape, dtype: str, room: int) -> Sums:
    """Return how the sums over rows are made in the pass over them; by NO_PARAMS if they cannot be."""
    n, groups, channels, positions = shape
    if not n * groups * channels * positions:
        return Sums()
    if groups == positions == 1 and 0 < (shared := summed_bytes(row, dtype)) <= room:
        return Sums(PER_COLUMN, shared, channels)
    if summed_by_channel(row, positions) and (shared := channels_bytes(row, channels, positions, dtype)) <= room:
        return Sums(PER_CHANNEL, shared, groups * channels, share_of(row, channels, positions))
    return Sums()


@lru_cache(maxsize=1024)
def rows(
    name: str,  # "rows_forward" or "rows_backward"
    shape: RowShape, dtype: str, affine: int, params: bool, kind: int, limits: Limits,
) -> Plan:  # fmt: skip
    """Return a plan for rows without weights.

    affine: GAMMA_AND_BETA if there is a beta, else GAMMA_ALONE or NO_AFFINE. params: whether sums for dgamma and dbeta
    are wanted. The addresses of arrays are multiples of `begins`.

    If these sums cannot be made in the pass over the rows, the plan has no workspace, and `row_sums` makes them. If
    there are few, the last blocks of that pass join them; else another launch does, with more blocks.

    Shared memory is for the sums first, then for gamma and beta, which are read for every row, and then for the row.
    """
    shape = n, groups, channels, positions = four(shape)
    size, many = channels * positions, n * groups
    backward = name == "rows_backward"
    row = row_of(size, positions, dtype, backward)
    room = limits.shared - STATIC_SHARED["rows"]
    if params and groups == positions == 1:
        row = broadened(row, size, dtype, room)
    sums, shared, columns, share = sums_of(row, shape, dtype, room) if params else Sums()
    affine = affine_read(row, affine, backward, kind)
    arrays, row_room = 2 if backward else 1, min(room, TWO_PER_PROCESSOR)
    if not (backward or row.steps or affine == NO_AFFINE) and positions > 1 and groups * channels <= KEPT_CHANNELS:
        share, shared = 1, both_bytes(groups * channels, dtype)
    row, kept = keeping(row, shape, dtype, affine, backward, shared, limits)
    shared += kept
    if positions * ITEMSIZE[dtype] >= SHORT_RUN or (row.wide == BROAD and (backward or kept)):
        row_room = room  # even if one block fills a processor: as gamma is kept, there is little to do for a value
    keep = kept_steps(row, size, dtype, arrays, row_room - shared)
    shared += arrays * keep * step_bytes(row, dtype)
    if sums:
        shared = max(shared, 16 * row.threads)  # to join the partial sums of blocks in
    side = row.side(many, limits)
    alike = groups if sums == PER_CHANNEL else 1  # blocks of a set: each has the channels of a group to itself
    slots = limits.processors * summing_blocks(row, shared, limits)
    most = blocks_each(alike, slots) if sums else limits.processors * RESIDENT_ROWS
    own = max(kept, 16 * columns // alike) * THREADS // row.threads  # a broad block has twice the rows
    late, halvings = first_late(sums, many, side * alike, most, own)
    sets = max(1, cdiv(many, side * alike))
    if sums:
        sets = min(sets, most << halvings)
    joined = bunches(sets, 1, channels, 2) if sums else Bunches(0, 0, 0, 0)
    if joined.turns > LAUNCHED:
        joined = Bunches(0, 0, 0, 0)
    together = JOINED[columns > FEW_COLUMNS]
    geometry = ROW_JOB.place(
        rows=many, size=size, inner=max(positions, 1), groups=max(groups, 1), lanes=row.lanes, side=side,
        affine=affine if kept else NO_AFFINE,
        streams=int(many * size * ITEMSIZE[dtype] >= STREAMED), sets=sets, columns=columns,
        channels=channels, share=share, whole=int(size == row.lanes * row.steps * row.vector), keep=keep,
        bunch=joined.bunch, joined=together, late=late, halvings=halvings,
    )  # fmt: skip
    kernel = row.kernel(name, dtype, kind, sums) if backward else row.kernel(name, dtype, kind)
    grid, again = (sets * alike, 1), 0 if sums else 1 << halvings
    launches = [Launch("rows", kernel, grid, (row.threads,), shared, geometry, again)]
    if sums and not joined.bunch:
        launches.append(Launch("rows", "rows_params", (cdiv(columns, together), 1), (THREADS,), 0, geometry))
    return Plan(tuple(launches), (2 * sets + joined.behind) * columns, max(groups, 1) * joined.tickets)


@lru_cache(maxsize=1024)
def row_sums(shape: RowShape, dtype: str, vectors: bool, kind: int, limits: Limits) -> Plan:
    """Return a plan for the sums of dgamma and dbeta in a pass of their own, cut like batch norm over (N, G * K, L)."""
    n, groups, channels, positions = four(shape)
    itemsize = ITEMSIZE[dtype]
    if positions == 0:
        n, positions = 0, 1
    # a vector is of one row: it divides the values of a row
    vector = gcd(channels * positions, VECTOR_BYTES // itemsize) if vectors else 1
    if positions == 1 or positions * itemsize < SHORT_RUN:
        cut_of = rows_of_channels(n, groups * channels, positions, itemsize, vector)
        if cut_of.copies > 1 and n % cut_of.copies:
            cut_of = rows_of_channels(1, groups * channels, positions, itemsize, vector)._replace(steps=n)
    else:
        cut_of = channel_runs(n, groups * channels, positions, vector)
    chunk, chunks, _ = cut(cut_of, limits)
    cut_of = cut_of._replace(total=0)
    kernel = cut_of.kernel("row_channels", dtype, kind)
    found = bunches_of(cut_of, chunks, 2)
    only = launch(cut_of, kernel, chunk, chunks, family="row_channels", row_channels=channels, bunch=found.bunch)
    return Plan((only,), *workspace(cut_of, chunks, 2, found))


@lru_cache(maxsize=1024)
def weighted(name: str, shape: RowShape, dtype: str, kind: int) -> Plan:
    """Return a plan for rows with weights. name: "rows_weighted_forward" or "rows_weighted_backward"."""
    n, groups, channels, positions = four(shape)
    many, size = n * groups, channels * positions
    geometry = ROW_JOB.place(rows=many, size=size, inner=max(positions, 1), groups=max(groups, 1), channels=channels)
    kernel = f"{name}<{NAMES[dtype]}, {kind}>"
    return Plan((Launch("rows_weighted", kernel, (max(1, many), 1), (THREADS,), 0, geometry, True),), 0, 0)
