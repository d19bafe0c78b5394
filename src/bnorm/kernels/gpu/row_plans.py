"""How the kernels of rows are launched: layer, group, instance and RMS norm. As in plans.py, no device is needed.

A row is held in registers: by a few lanes of a warp where it is short, so that a warp works on several rows, by a warp,
by several of them, or by a block. Rows too long for that are kept in shared memory, and longer ones are read again.

Which of these it is, and so the order of its sums, follows from the length of a row and the type alone: what a row
comes to has the same bits in any batch, at any place in it, on a device of any size. The sums over rows, for dgamma and
dbeta, are dealt out by the blocks that a device runs at a time, and are not the same everywhere.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from ..activation import IDENTITY, KINDS
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
    Shape,
    blocks_each,
    cdiv,
    channel_runs,
    cut,
    rows_of_channels,
    vectors_of,
)

HELD = (3, 4, 5)  # vectors of a thread that there are kernels for, where vectors are full, so that few lanes idle
MORE = (6, 8)  # of forwards of longer rows
OF_SHORT_VECTORS = ((4,), (8,))  # these two where vectors are short
WARP = 32
OF_A_WARP, OF_WARPS, BROAD, BROADER = range(4)  # what `wide` is, as row_sums.cu says
SHARED_AFFINE = 36 << 10  # bytes of gamma and beta, from which on all rows of a processor share them in a forward
ZEROS = 8  # numbers that a block keeps in place of beta where there is only gamma
KEPT_CHANNELS = 1024  # whose gamma and beta the blocks of a forward keep, if rows are long and channels have runs
SUMMED = 16  # vectors of a run, from which on a warp adds up the runs of a long row
JOINED = (8, 32)  # columns of a block that joins those sums in a launch of its own; the second of more than FEW_COLUMNS
FEW_COLUMNS = 1024
# Where blocks have many turns, the last rows belong to late blocks. By the sums that are made, how often the grid is to
# be halved so that only its early blocks are left, and one of how many rows is late.
LATE = {NO_PARAMS: (2, 4), PER_COLUMN: (1, 16), PER_CHANNEL: (1, 8)}
LITTLE = 20 << 10  # bytes of sums that a late block may write, or of gamma and beta that it may keep
RESIDENT_ROWS = 4  # blocks of a processor, at most
LAUNCHED = 10  # turns of a join that take as long as that launch, from its gap to its end

RowShape = tuple[int, ...]  # (N, G, K, L), or (N, D) for (N, 1, D, 1)


class Row(NamedTuple):
    """How a row is dealt out: vectors of so many elements, over so many threads, each of which holds some of them."""

    vector: int
    steps: int  # 0: not in registers
    wide: int  # whose threads these are
    lanes: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return THREADS * max(1, self.wide)

    def side(self, many: int, limits: Limits) -> int:
        """Rows of a block: of few, each processor gets some, and one turn does where it has one block. That changes no
        bit of a row."""
        share = cdiv(many, limits.processors) if self.wide >= BROAD else many // limits.processors
        return max(1, min(self.threads // self.lanes, share))

    def kernel(self, name: str, dtype: str, *more: int) -> str:
        return f"{name}<{NAMES[dtype]}, {self.vector}, {self.steps}, {self.wide}, {', '.join(map(str, more))}>"


def four(shape: RowShape) -> RowShape:
    """(N, G, K, L)."""
    return shape if len(shape) == 4 else (shape[0], 1, shape[1], 1)


def vector_of(size: int, positions: int, dtype: str) -> int:
    """Elements of a vector, which divides a row, and the values of a channel where they lie side by side.

    A row has two vectors at least, unless it is a single value or none.
    """
    vector = gcd(positions if positions > 1 else size, VECTOR_BYTES // ITEMSIZE[dtype])
    return vector if size > vector else max(1, size // 2)


def begins(shape: RowShape, dtype: str) -> int:
    """The power of two that must divide where arrays of rows begin."""
    _, _, channels, positions = four(shape)
    return vector_of(channels * positions, positions, dtype) * ITEMSIZE[dtype]


def steps_of(vector: int, dtype: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many vectors of so many elements a thread may hold, and in a forward of longer rows."""
    return (HELD, MORE) if vector * ITEMSIZE[dtype] == VECTOR_BYTES else OF_SHORT_VECTORS


def row_of(size: int, positions: int, dtype: str, backward: bool = False) -> Row:
    """By as few lanes and vectors of each as there is room for.

    backward: x and dy take more registers, so that longer rows belong to more threads.

    Of rows too long for registers, broad blocks have those which need a gamma for each value, or are so long that two
    blocks of a processor had no room to keep x and dy.
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
    """Vectors of a thread that a block keeps in shared memory, of a row that is too long for registers.

    0 where there is no room. What is not kept is read again, to the same bits.
    """
    steps = 0 if row.steps else cdiv(size, row.vector * row.threads)
    return steps if arrays * steps * step_bytes(row, dtype) <= room else 0


def step_bytes(row: Row, dtype: str) -> int:
    """Of a vector of each thread of a block."""
    return row.threads * row.vector * ITEMSIZE[dtype]


def summed_bytes(row: Row, dtype: str) -> int:
    """Of the sums over rows in the shared memory of a block."""
    return 2 * row.steps * row.threads * row.vector * max(ITEMSIZE[dtype], 4)


def summing_blocks(row: Row, shared: int, limits: Limits) -> int:
    """Blocks that write sums, per processor: as many as share one. rows_backward.cu has the registers for that."""
    return 1 if row.wide == BROAD or shared + STATIC_SHARED["rows"] > half_of(limits) else 2


def share_of(row: Row, channels: int, positions: int) -> int:
    """Threads that add up the sums of one channel of a group; of a row that is not held, all warps that have some."""
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
    """Whether sums of channels are made in the pass over rows: of long ones by warps, which pays for long runs."""
    return positions > 1 and (row.steps > 0 or positions // row.vector >= SUMMED)


def channels_bytes(row: Row, channels: int, positions: int, dtype: str) -> int:
    """In the shared memory of a block: the sums of channels and of the vectors that it holds, and gamma and beta."""
    vectors, itemsize = row.steps * row.threads, max(ITEMSIZE[dtype], 4)
    pieces = max(1, share_of(row, channels, positions) // WARP)
    affine = cdiv(2 * channels * itemsize, VECTOR_BYTES) * VECTOR_BYTES
    return 2 * (8 * channels * pieces + vectors * itemsize) + affine


def affine_bytes(shape: RowShape, dtype: str, affine: int) -> int:
    """Of gamma and beta in the shared memory of a block; 0 where rows do not have the same ones."""
    _, groups, channels, positions = shape
    if affine == NO_AFFINE or not channels or not groups == positions == 1:
        return 0
    gamma = cdiv(channels, 4) * 4
    return (gamma + (gamma if affine == GAMMA_AND_BETA else ZEROS)) * max(ITEMSIZE[dtype], 4)


def first_late(sums: int, many: int, together: int, most: int, own: int) -> tuple[int, int]:
    """The first row of late blocks, and how often the grid is to be halved for the early ones.

    together: rows of a set of blocks at a time; most: sets that run at a time; own: bytes of a block beside its rows.
    """
    turns, (halvings, one_of) = many // together, LATE[sums]
    late = turns // one_of
    if late < ((1 << halvings) - 1) * most or own > LITTLE:  # some would have none
        return many, 0
    return (turns - late) * together, halvings


class Sums(NamedTuple):
    """How the sums over rows are made in the pass over them."""

    params: int = NO_PARAMS
    shared: int = 0  # bytes of a block
    columns: int = 0  # of all blocks
    share: int = 0


def broadened(row: Row, size: int, dtype: str, room: int) -> Row:
    """The same where sums of columns are made: half as many blocks then write them, and read gamma."""
    broad, gamma = row._replace(wide=BROAD), size * max(ITEMSIZE[dtype], 4)
    fits = row.steps > 0 and summed_bytes(broad, dtype) + gamma <= room
    return broad if fits and row.wide == OF_WARPS else row


def sharing(row: Row) -> Row:
    """The same in a forward whose processors have one block each, with as many rows as several have together."""
    if row.wide != OF_WARPS or not row.steps:
        return row
    return row._replace(wide=BROADER if row.steps < 5 else BROAD)


def keeping(
    row: Row, shape: RowShape, dtype: str, affine: int, backward: bool, shared: int, limits: Limits
) -> tuple[Row, int]:
    """Whose threads a row gets where gamma and beta are kept, and how many bytes of them, beside `shared` others."""
    room, beside = limits.shared - STATIC_SHARED["rows"], two_per_processor("rows", limits)
    kept = affine_bytes(shape, dtype, affine)
    if not backward and SHARED_AFFINE <= kept <= room:
        row = sharing(row)
    alone = row.wide >= BROAD or shared > beside or (not backward and affine == GAMMA_AND_BETA and dtype != "float64")
    return row, kept if kept <= (room if alone else beside) - shared else 0


def sums_of(row: Row, shape: RowShape, dtype: str, room: int) -> Sums:
    """NO_PARAMS where they cannot be made so."""
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
    """affine: GAMMA_AND_BETA where there is a beta, else GAMMA_ALONE or NO_AFFINE.

    params: sums for dgamma and dbeta are wanted.

    Arrays lie where `begins` says.

    Where these cannot be made in the pass over the rows, the plan has no workspace, and `row_sums` makes them. Where
    they are few the last blocks of that pass join them; else a launch of its own does, by more blocks.

    Shared memory is for those sums first, then for gamma and beta, which are read for every row, and then for the row.
    """
    shape = n, groups, channels, positions = four(shape)
    size, many = channels * positions, n * groups
    backward = name == "rows_backward"
    row = row_of(size, positions, dtype, backward)
    room = limits.shared - STATIC_SHARED["rows"]
    if params and groups == positions == 1:
        row = broadened(row, size, dtype, room)
    sums, shared, columns, share = sums_of(row, shape, dtype, room) if params else Sums()
    if affine == NO_AFFINE and row.steps:
        affine = GAMMA_ALONE  # ones, as the code for what a block keeps is the shorter one
    if backward and affine != NO_AFFINE:  # beta or zeros, as kernels with an activation read them
        affine = GAMMA_ALONE if kind == IDENTITY.kind else GAMMA_AND_BETA
    arrays, row_room = 2 if backward else 1, min(room, TWO_PER_PROCESSOR)
    if not (backward or row.steps or affine == NO_AFFINE) and positions > 1 and groups * channels <= KEPT_CHANNELS:
        share = 1
        shared = cdiv(2 * groups * channels * max(ITEMSIZE[dtype], 4), VECTOR_BYTES) * VECTOR_BYTES
    row, kept = keeping(row, shape, dtype, affine, backward, shared, limits)
    shared += kept
    if positions * ITEMSIZE[dtype] >= SHORT_RUN or (row.wide == BROAD and (backward or kept)):
        row_room = room  # of a block alone, too: there is little to do for a value, as gamma is at hand
    keep = kept_steps(row, size, dtype, arrays, row_room - shared)
    shared += arrays * keep * step_bytes(row, dtype)
    if sums:
        shared = max(shared, 16 * row.threads)  # where the partial sums of blocks are joined
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
    """The sums of dgamma and dbeta in a pass of their own, cut as those of a batch norm over (N, G * K, L)."""
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
def weighted(name: str, shape: RowShape, dtype: str, kind: int, limits: Limits) -> Plan:
    """Rows whose positions have weights; name: "rows_weighted_forward" or "rows_weighted_backward"."""
    n, groups, channels, positions = four(shape)
    many, size = n * groups, channels * positions
    geometry = ROW_JOB.place(rows=many, size=size, inner=max(positions, 1), groups=max(groups, 1), channels=channels)
    kernel = f"{name}<{NAMES[dtype]}, {kind}>"
    return Plan((Launch("rows_weighted", kernel, (max(1, many), 1), (THREADS,), 0, geometry, True),), 0, 0)


def weighted_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Every name of the family "rows_weighted"."""
    return [f"rows_weighted_{way}<{NAMES[dtype]}, {kind}>" for way in ("forward", "backward") for kind in kinds]


def row_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Every name of the family "rows" that plans may ask for, for one type of elements."""
    names = ["rows_params"]
    for vector in vectors_of(dtype):
        held, more = steps_of(vector, dtype)
        forwards = [(steps, wide) for steps in held for wide in (OF_A_WARP, OF_WARPS)]
        forwards += [(steps, OF_WARPS) for steps in (*more, 0)] + [(0, BROAD)]
        longest = [sharing(Row(vector, steps, OF_WARPS, THREADS)) for steps in (*held, *more)]
        bytes_each = 2 * vector * max(ITEMSIZE[dtype], 4)
        forwards += [row[1:3] for row in longest if THREADS * row.steps * bytes_each >= SHARED_AFFINE]
        ways = (NO_PARAMS, PER_COLUMN, PER_CHANNEL)
        backwards = [(steps, wide, way) for steps in held for wide in (OF_A_WARP, OF_WARPS, BROAD) for way in ways]
        backwards += [(0, wide, way) for wide in (OF_WARPS, BROAD) for way in (NO_PARAMS, PER_CHANNEL)]
        for kind in kinds:
            for steps, wide in forwards:
                names.append(Row(vector, steps, wide, WARP).kernel("rows_forward", dtype, kind))
            for steps, wide, way in backwards:
                names.append(Row(vector, steps, wide, WARP).kernel("rows_backward", dtype, kind, way))
    return names


def row_channel_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """The same of the family "row_channels"."""
    shapes: list[Shape] = []
    for vector in vectors_of(dtype):
        shapes += [rows_of_channels(1, vector, 1, ITEMSIZE[dtype], vector), channel_runs(1, 1, vector, vector)]
    return [shape.kernel("row_channels", dtype, kind) for shape in shapes for kind in kinds]
