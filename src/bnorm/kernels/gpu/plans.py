"""How a kernel is launched, as pure functions of shape, dtype and the limits of a device: nothing here needs one.

A channel lies in memory in one of two ways, and the kernels see both as columns of steps:

    rows of channels    (outer, C, inner) with a short inner: row after row of C * inner columns, `inner` of them to a
                        channel. Few columns are widened: `copies` outer positions make one row. What is left over, less
                        than a row, is the rest; thread row 0 of the last chunk takes it.
    channel runs        every channel is one column, and its steps are the vectors of its runs.

A block is BX threads wide, of K columns each, and BY high. Tiles of BX * K columns are the x of a grid, chunks of steps
the y. The last block of a group of tiles joins what its channels are made of, so that a group holds whole channels.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import gcd, lcm
from struct import Struct
from typing import NamedTuple

NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "float", "float64": "double"}  # of the types in the kernels
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

# The fields of the struct Job of common.cu, in its order. Eight bytes each.
POINTERS = (
    *("x", "dy", "y", "weight", "gamma", "beta", "mean", "var", "scale", "shift", "a", "b", "c", "stats", "moments"),
    *("sums", "dgamma", "dbeta", "count_at", "partial", "tickets", "running_mean", "running_var", "seen", "left"),
    "infinite",
)
GEOMETRY = (
    *("channels", "inner", "columns", "copies", "steps", "total", "run", "jump", "unit", "base", "chunk", "chunks"),
    *("group", "split", "weight_step", "keep"),
)
SWITCHES = ("relu", "skipna", "weighted", "frozen", "wide_running", "nonfinite")
NUMBERS = ("eps", "count", "momentum", "ddof")
PACK_POINTERS, PACK_GEOMETRY = Struct(f"={len(POINTERS)}Q"), Struct(f"={len(GEOMETRY)}q")
PACK_OPTIONS = Struct(f"={len(SWITCHES)}q{len(NUMBERS)}d")
JOB_BYTES = PACK_POINTERS.size + PACK_GEOMETRY.size + PACK_OPTIONS.size
NONFINITE = {"skip": 0, "propagate": 1, "raise": 2}

THREADS = 256
VECTOR_BYTES = 16
TILE_BYTES = 128  # of a row: four sectors of memory
MAX_THREADS_WIDE = 32
SHORT_RUN = 256  # bytes. Shorter runs are read as rows of channels, in whole vectors
TINY_RUN = 64  # bytes. Reading such runs one by one would waste most of every sector
MAX_WIDENED = 1024  # columns: the last block joins all of them
WAVES = 4  # blocks per processor that a reduction is cut into
LEAST_STEPS = 8  # of a thread, before more blocks are worth their partial sums
MAX_CHUNKS = 1024
SPLIT = 8  # parts of a chunk in a map
ONE_LAUNCH = 2 << 20  # bytes of the array, where a block keeps its tile on chip: below, one launch beats more blocks
ONE_LAUNCH_UNKEPT = 512 << 10  # the same where it reads the array twice
STATIC_SHARED = 20 << 10  # bytes: more than any kernel declares
TWO_PER_PROCESSOR = 100 << 10  # bytes of shared memory: up to here two blocks share a processor


def job_bytes(pointers: Mapping[str, int], options: Mapping[str, float]) -> tuple[bytes, bytes]:
    """The struct Job before and after its geometry; what is not named is 0."""
    pointer, option = pointers.get, options.get
    switches = [int(option(name, 0)) for name in SWITCHES]
    numbers = [option(name, 0.0) for name in NUMBERS]
    return PACK_POINTERS.pack(*[pointer(name, 0) for name in POINTERS]), PACK_OPTIONS.pack(*switches, *numbers)


class Limits(NamedTuple):
    """What a plan needs to know of a device."""

    processors: int = 132
    shared: int = 227 << 10  # bytes of shared memory that a block may ask for


class Launch(NamedTuple):
    kernel: str  # a name expression
    grid: tuple[int, int]
    block: int
    shared: int  # bytes of dynamic shared memory
    geometry: bytes  # the middle of the struct Job


class Plan(NamedTuple):
    launches: tuple[Launch, ...]
    partial: int  # float64 numbers of workspace
    tickets: int


class Shape(NamedTuple):
    """How the elements are dealt out. The names are those of the struct Job."""

    channels: int
    inner: int  # columns of a channel that lie side by side
    columns: int
    copies: int
    steps: int
    total: int  # elements; with more than steps * columns of them there is a rest
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
    def group(self) -> int:
        """Tiles that hold whole channels."""
        return self.tiles if self.copies > 1 else min(self.tiles, lcm(self.inner, self.width) // self.width)

    def kernel(self, name: str, dtype: str, *mode: int) -> str:
        numbers = (self.vector, self.wide, self.across, self.down, *mode)
        return f"{name}<{NAMES[dtype]}, {', '.join(map(str, numbers))}>"


SUMS_ONLY, WITH_MAP, CAREFUL = 0, 1, 2  # modes of a kernel


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def rows_of_channels(outer: int, channels: int, inner: int, itemsize: int, vector: int) -> Shape:
    """vector: the most elements that one load may have."""
    plane = channels * inner
    copies = vector // gcd(plane, vector)
    if outer < copies or copies * plane > MAX_WIDENED:
        copies = 1
    tile = TILE_BYTES // itemsize
    copies *= max(1, min(outer // (copies * MAX_THREADS_WIDE), cdiv(tile, copies * plane)))
    columns = copies * plane
    vector = gcd(columns, vector)
    across = min(MAX_THREADS_WIDE, tile // vector)
    return Shape(
        channels, inner, columns, copies, outer // copies, outer * plane,
        run=1, jump=columns, unit=1, base=1, weight_step=copies * inner,
        vector=vector, wide=vector, across=across, down=THREADS // across,
    )  # fmt: skip


def channel_runs(outer: int, channels: int, inner: int, vector: int, threads: int = THREADS) -> Shape:
    vector = gcd(inner, vector)
    return Shape(
        channels, 1, channels, 1, outer * inner // vector, outer * channels * inner,
        run=max(inner // vector, 1), jump=channels * inner, unit=vector, base=inner, weight_step=1,
        vector=vector, wide=1, across=1, down=threads,
    )  # fmt: skip


def shape_of(outer: int, channels: int, inner: int, dtype: str, vectors: bool) -> Shape:
    """vectors: whether whole vectors may be loaded, that is, all pointers are multiples of 16."""
    itemsize = ITEMSIZE[dtype]
    vector = VECTOR_BYTES // itemsize if vectors else 1
    if inner <= 1 or inner * itemsize < SHORT_RUN:
        return rows_of_channels(outer, channels, inner, itemsize, vector)
    return channel_runs(outer, channels, inner, vector)


def launch(
    shape: Shape, kernel: str, chunk: int, chunks: int, split: int = 1, keep: int = 0, shared: int = 0
) -> Launch:
    geometry = PACK_GEOMETRY.pack(
        *(shape.channels, shape.inner, shape.columns, shape.copies, shape.steps),
        # a rest there is in widened rows only
        shape.total if shape.copies > 1 else 0,
        *(shape.run, shape.jump, shape.unit, shape.base, chunk, chunks, shape.group, split, shape.weight_step, keep),
    )
    return Launch(kernel, (shape.tiles, chunks), shape.across * shape.down, shared, geometry)


def cut(shape: Shape, limits: Limits) -> tuple[int, int, int]:
    """Steps of a chunk, chunks, and the parts that a map cuts a chunk into."""
    wanted = min(cdiv(limits.processors * WAVES, max(shape.tiles, 1)), MAX_CHUNKS)
    chunks = max(1, min(wanted, shape.steps // (shape.down * LEAST_STEPS)))
    steps = cdiv(shape.steps, chunks)
    split = SPLIT if steps >= SPLIT * LEAST_STEPS * shape.down else 1
    chunk = max(1, cdiv(steps, shape.down * split)) * shape.down * split
    return chunk, max(1, cdiv(shape.steps, chunk)), split


def on_chip(
    outer: int, channels: int, inner: int, dtype: str, vectors: bool, arrays: int, limits: Limits
) -> tuple[Shape, int, int] | None:
    """A shape for one launch, the steps that a thread keeps in shared memory, and their bytes; None if there is none.

    Every block has whole channels, so that it can go on to the map by itself. It keeps what it has read, or if that is
    too much, reads a small array twice.
    """
    itemsize = ITEMSIZE[dtype]
    vector = VECTOR_BYTES // itemsize if vectors else 1
    candidates = [shape_of(outer, channels, inner, dtype, vectors)]
    if candidates[0].base == 1 and inner * itemsize >= TINY_RUN:
        candidates.append(channel_runs(outer, channels, inner, vector))
    size = outer * channels * inner * itemsize
    for shape in candidates:
        if shape.group != 1:
            continue
        shared = kept(shape, itemsize) * arrays
        fits = shared <= limits.shared - STATIC_SHARED
        if fits and shape.base > 1 and shared > TWO_PER_PROCESSOR:  # one block per processor: let it be a large one
            shape = shape._replace(down=2 * THREADS)
            shared = kept(shape, itemsize) * arrays
            fits = shared <= limits.shared - STATIC_SHARED
        if fits and (shape.tiles >= limits.processors // 2 or size * arrays <= ONE_LAUNCH):
            return shape, cdiv(shape.steps, shape.down), shared
        if size * arrays <= ONE_LAUNCH_UNKEPT:
            return shape, 0, 0
    return None


def kept(shape: Shape, itemsize: int) -> int:
    return cdiv(shape.steps, shape.down) * shape.across * shape.down * shape.vector * itemsize


@lru_cache(maxsize=1024)
def reduction(
    name: str,  # "moments" or "sums"
    outer: int, channels: int, inner: int, dtype: str, vectors: bool, careful: bool, then: str, limits: Limits,
) -> Plan:  # fmt: skip
    """Sums per channel, and where `then` is the name of a map, that too. careful: with weights, or NaN to leave out."""
    parts = 4 if name == "moments" else 2
    whole = None
    if then and not careful:
        whole = on_chip(outer, channels, inner, dtype, vectors, 1 if name == "moments" else 2, limits)
    if whole is not None:
        shape, keep, shared = whole
        chunk = max(1, cdiv(shape.steps, shape.down)) * shape.down
        only = launch(shape, shape.kernel(name, dtype, WITH_MAP), chunk, 1, 1, keep, shared)
        return Plan((only,), parts * shape.columns, cdiv(shape.tiles, shape.group))
    shape = shape_of(outer, channels, inner, dtype, vectors and not careful)
    chunk, chunks, split = cut(shape, limits)
    mode = CAREFUL if careful and name == "moments" else SUMS_ONLY
    launches = [launch(shape, shape.kernel(name, dtype, mode), chunk, chunks)]
    if then:
        launches.append(map_launch(shape, then, dtype, careful, chunk, chunks, split))
    return Plan(tuple(launches), parts * chunks * shape.columns, cdiv(shape.tiles, shape.group))


@lru_cache(maxsize=1024)
def map_only(
    name: str,  # "normalize" or "gradient"
    outer: int, channels: int, inner: int, dtype: str, vectors: bool, careful: bool, limits: Limits,
) -> Plan:  # fmt: skip
    shape = shape_of(outer, channels, inner, dtype, vectors and not careful)
    chunk, chunks, split = cut(shape, limits)
    return Plan((map_launch(shape, name, dtype, careful, chunk, chunks, split),), 0, 0)


def map_launch(shape: Shape, name: str, dtype: str, careful: bool, chunk: int, chunks: int, split: int) -> Launch:
    mode = (CAREFUL if careful else SUMS_ONLY,) if name == "gradient" else ()
    return launch(shape, shape.kernel(name, dtype, *mode), chunk // split, chunks * split, split)


def move(channels: int) -> Plan:
    geometry = PACK_GEOMETRY.pack(channels, *(0 for _ in GEOMETRY[1:]))
    return Plan((Launch("move", (cdiv(channels, THREADS), 1), THREADS, 0, geometry),), 0, 0)


# Rows: layer, group, instance and RMS norm ---------------------------------------------------------------------------

ROW_BLOCKS = 8  # per processor; they go on from row to row
WARP_ROW = 4  # vectors per thread up to which a warp has a row of its own
KEPT_AFFINE = 48 << 10  # bytes of gamma and beta that a block may keep


@lru_cache(maxsize=1024)
def rows(
    name: str,  # "rows_forward" or "rows_backward"
    shape: tuple[int, int, int, int], dtype: str, vectors: bool, affine: bool, limits: Limits,
) -> Plan:  # fmt: skip
    """x is (N, G, K, L); affine: there is a gamma or a beta."""
    n, groups, channels, positions = shape
    size, itemsize, many = channels * positions, ITEMSIZE[dtype], n * groups
    vector = gcd(positions if positions > 1 else size, VECTOR_BYTES // itemsize) if vectors else 1
    across = 32 if size // vector <= 32 * WARP_ROW else THREADS
    affine_bytes = 2 * size * max(itemsize, 4)
    keeps_affine = affine and size > 0 and groups == 1 and positions == 1 and affine_bytes <= KEPT_AFFINE
    affine_bytes = cdiv(affine_bytes, 16) * 16 if keeps_affine else 0
    keep = cdiv(size // vector, across)
    kept_bytes = keep * THREADS * vector * itemsize * (1 if name == "rows_forward" else 2)
    if affine_bytes + kept_bytes > limits.shared - STATIC_SHARED:
        keep = kept_bytes = 0
    values = {"channels": groups * channels, "inner": max(positions, 1), "copies": int(keeps_affine), "steps": many}
    values |= {"run": size, "group": max(groups, 1), "keep": keep}
    geometry = PACK_GEOMETRY.pack(*[values.get(field, 0) for field in GEOMETRY])
    blocks = max(1, min(cdiv(many, THREADS // across), limits.processors * ROW_BLOCKS))
    kernel = f"{name}<{NAMES[dtype]}, {vector}, {across}>"
    return Plan((Launch(kernel, (blocks, 1), THREADS, affine_bytes + kept_bytes, geometry),), 0, 0)


@lru_cache(maxsize=1024)
def row_params(shape: tuple[int, int, int, int], dtype: str, vectors: bool, limits: Limits) -> Plan:
    """The sums of dgamma and dbeta, cut as those of a batch norm over (N, G * K, L)."""
    n, groups, channels, positions = shape
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
    only = launch(cut_of, cut_of.kernel("rows_params", dtype), chunk, chunks, split=channels)
    return Plan((only,), 2 * chunks * cut_of.columns, cdiv(cut_of.tiles, cut_of.group))


def row_kernels(dtype: str) -> list[str]:
    """Every name that the plans of rows may ask for, for one type of elements."""
    itemsize = ITEMSIZE[dtype]
    names = []
    for power in range((VECTOR_BYTES // itemsize).bit_length()):
        vector = 1 << power
        for across in (32, THREADS):
            names += [f"{name}<{NAMES[dtype]}, {vector}, {across}>" for name in ("rows_forward", "rows_backward")]
        narrow = rows_of_channels(1, vector, 1, itemsize, vector)
        names += [shape.kernel("rows_params", dtype) for shape in (narrow, channel_runs(1, 1, vector, vector))]
    return names


def channel_kernels(dtype: str) -> list[str]:
    """Every name that the plans of batch norm may ask for, for one type of elements."""
    itemsize = ITEMSIZE[dtype]
    names = []
    for power in range((VECTOR_BYTES // itemsize).bit_length()):
        vector = 1 << power
        narrow = rows_of_channels(1, vector, 1, itemsize, vector)
        runs = channel_runs(1, 1, vector, vector)
        large = channel_runs(1, 1, vector, vector, 2 * THREADS)
        for shape in (narrow, runs):
            names += [shape.kernel(name, dtype, mode) for name in ("moments", "sums") for mode in (SUMS_ONLY, WITH_MAP)]
            names += [shape.kernel("normalize", dtype), shape.kernel("gradient", dtype, SUMS_ONLY)]
            if vector == 1:
                names += [shape.kernel(name, dtype, CAREFUL) for name in ("moments", "gradient")]
        names += [large.kernel(name, dtype, WITH_MAP) for name in ("moments", "sums")]
    return names
