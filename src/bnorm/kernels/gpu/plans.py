"""How a kernel is launched, as pure functions of shape, dtype and the limits of a device. No device is needed.

The fewer launches, the fewer passes over memory: a block that holds whole channels goes on to the map by itself, and so
does a cluster of blocks that holds a channel, or all blocks of a device together (meetings.py).

A reduction is cut the same way whether the map follows in the same launch, in another, or not at all, except where
blocks meet. So in float64 `moments`, `finish` and `normalize` give the bits of `forward`. (For other types, moments
that no map follows are summed in float64, and are more exact.)
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ..activation import IDENTITY
from . import meetings, planes
from .bunches import Bunches, bunches
from .jobs import CAREFUL, EXACT, FROZEN, JOB, MEETING, STATISTICS_JOB, SUMS_ONLY, WITH_MAP
from .limits import STATIC_SHARED, Limits, two_per_processor
from .shapes import (
    ITEMSIZE,
    THREADS,
    VECTOR_BYTES,
    Shape,
    cdiv,
    channel_runs,
    cut,
    cut_of_map,
    kept,
    plane_shape,
    shape_of,
)

TINY_RUN = 64  # bytes: reading shorter runs one by one would waste most of every sector
ONE_LAUNCH = 2 << 20  # bytes of the arrays, if blocks keep their tiles: up to here, one launch beats two of more blocks
ONE_LAUNCH_UNKEPT = 512 << 10  # the same if blocks read the arrays twice
CLUSTER = 8  # blocks of a cluster, which write to each other's shared memory
STREAMED = 32 << 20  # bytes: a result of that size is no longer in the second-level cache when it is read next


class Launch(NamedTuple):
    family: str  # of source texts, in launching.py
    kernel: str  # a name expression
    grid: tuple[int, int]
    block: tuple[int]
    shared: int  # bytes of dynamic shared memory
    geometry: bytes  # the end of the job
    persistent: int = 0  # if not 0, blocks go on from row to row: so many times those that run at a time suffice
    meeting: bool = False  # all blocks have to run at the same time


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    launches: tuple[Launch, ...]
    partial: int  # float64 numbers of workspace
    tickets: int
    otherwise: "Plan | None" = None  # if CUDA refuses the meeting or the clusters; it has the same workspace
    ready: dict[Any, list[tuple[Any, ...]]] = field(default_factory=dict)  # the launches, as each device prepares them


def launch(
    shape: Shape, kernel: str, chunk: int, chunks: int, *, family: str = "channels", shared: int = 0, **more: int
) -> Launch:
    geometry = JOB.place(
        channels=shape.channels, inner=shape.inner, columns=shape.columns, copies=shape.copies, steps=shape.steps,
        total=shape.total if shape.copies > 1 else 0,  # only widened rows have a rest
        run=shape.run, jump=shape.jump, unit=shape.unit, base=shape.base, chunk=chunk, chunks=chunks,
        group=shape.group, weight_step=shape.weight_step, **({"split": 1, "bunch": chunks} | more),
    )  # fmt: skip
    return Launch(family, kernel, (shape.tiles, chunks), (shape.across * shape.down,), shared, geometry)


def on_chip(
    outer: int, channels: int, inner: int, dtype: str, vectors: bool, arrays: int, limits: Limits
) -> tuple[Shape, int, int] | None:
    """Return a shape for one launch, the steps that a thread keeps, and the bytes that a block keeps; or None.

    Every block has whole channels, so that it can go on to the map by itself. It keeps what it has read in shared
    memory; if that is too much, it reads a small array twice.
    """
    itemsize = ITEMSIZE[dtype]
    vector = VECTOR_BYTES // itemsize if vectors else 1
    candidates = [shape_of(outer, channels, inner, dtype, vectors)]
    if candidates[0].base == 1 and inner * itemsize >= TINY_RUN:
        candidates.append(channel_runs(outer, channels, inner, vector))
    size = outer * channels * inner * itemsize
    room = limits.shared - STATIC_SHARED["channels"]
    for shape in candidates:
        if shape.group != 1:
            continue
        shared = kept(shape, itemsize) * arrays
        fits = shared <= room
        # where only one block fits on a processor, let it be a large one
        if fits and shape.base > 1 and shared > two_per_processor("channels", limits):
            large = shape._replace(down=2 * THREADS)
            shared = kept(large, itemsize) * arrays
            fits = shared <= room
            shape = large if fits else shape  # only small blocks can do without what they keep
        if fits and (shape.tiles >= limits.processors // 2 or size * arrays <= ONE_LAUNCH):
            return shape, cdiv(shape.steps, shape.down), shared
        if size * arrays <= ONE_LAUNCH_UNKEPT:
            return shape, 0, 0
    return None


def in_cluster(
    outer: int, channels: int, inner: int, dtype: str, vectors: bool, arrays: int, limits: Limits
) -> tuple[Shape, int, int] | None:
    """Return the same for channel runs that fit only into the shared memory of a cluster; None if none do.

    None, too, if the last clusters would leave much of the device idle: two launches, which read twice, are as fast.
    """
    shape = shape_of(outer, channels, inner, dtype, vectors)
    if not limits.clusters or shape.base == 1:
        return None
    alone = limits.shared - STATIC_SHARED["clusters"]
    for down, room in ((THREADS, two_per_processor("clusters", limits)), (2 * THREADS, alone)):
        keep = cdiv(shape.steps, CLUSTER * down)
        shared = keep * down * shape.vector * ITEMSIZE[dtype] * arrays
        if shared <= room:
            shape = shape._replace(down=down)
            at_a_time = clusters_at_a_time(shape, limits)
            full = 4 * channels >= 3 * cdiv(channels, at_a_time) * at_a_time
            return (shape, keep, shared) if full else None
    return None


def clusters_at_a_time(shape: Shape, limits: Limits) -> int:
    """Return how many clusters run at a time, at least, if processors come in eights. Large blocks do not share one."""
    return max(1, limits.processors // CLUSTER) * (2 if shape.down == THREADS else 1)


def bunches_of(shape: Shape, chunks: int, parts: int) -> Bunches:
    if shape.few(chunks):
        return bunches(chunks * shape.tiles, 1, shape.channels, parts)
    joined = shape.channels if shape.copies > 1 else cdiv(min(shape.group * shape.width, shape.columns), shape.inner)
    return bunches(chunks, shape.copies * shape.inner, joined, parts)


@lru_cache(maxsize=1024)
def reduction(
    name: str,  # "moments" or "sums"
    outer: int, channels: int, inner: int, dtype: str, vectors: bool, careful: bool, then: str, kind: int,
    limits: Limits,
) -> Plan:  # fmt: skip
    """Return a plan for sums per channel and the map named `then`, if any. careful: with weights, or NaN to leave out.

    Moments that no map follows are summed in float64, because callers keep them and merge them with others. The sums of
    a backward with frozen statistics are cut like others, and their map is a launch of its own.
    """
    parts, arrays = (4, 1) if name == "moments" else (2, 2)
    size = outer, channels, inner, dtype, vectors, arrays, limits
    if not careful and vectors and (together := planes.together(outer, channels, inner, ITEMSIZE[dtype], arrays)):
        return of_planes(name, plane_shape(outer, channels, inner, together), dtype, arrays, then, kind, limits)
    mapped, shape = bool(then) and then != "frozen", shape_of(outer, channels, inner, dtype, vectors and not careful)

    def without(**together: bool) -> Plan:
        apart = limits._replace(**together)
        return reduction(name, outer, channels, inner, dtype, vectors, careful, then, kind, apart)

    if mapped and not careful and (met := meetings.cut(shape, ITEMSIZE[dtype], arrays, limits)):
        return of_meeting(name, shape, *met, dtype, kind, without(meetings=False))
    whole = None if careful else on_chip(*size)
    cluster = None if careful or whole else in_cluster(*size)
    if cluster and mapped:
        return of_cluster(name, *cluster, dtype, kind, limits, without(clusters=False))
    if whole:
        shape, keep, shared = whole
        chunk, chunks = shape.whole, 1
    elif cluster:
        shape, keep, _ = cluster
        chunk, chunks = keep * shape.down, CLUSTER
    else:
        chunk, chunks, _ = cut(shape, limits)
    found = bunches_of(shape, chunks, parts)
    if whole and mapped:
        kernel, sent = shape.kernel(name, dtype, WITH_MAP, kind), streams(shape, dtype)
        only = launch(shape, kernel, chunk, chunks, shared=shared, keep=keep, streams=sent, bunch=found.bunch)
        launches = [only._replace(persistent=int(keep > 0 and shape.base > 1))]  # blocks go on from channel to channel
    else:
        mode = CAREFUL if careful else mode_of_sums(name, then, dtype)
        own_kind = kind if name == "sums" else IDENTITY.kind  # moments are those of x, whatever the activation
        launches = [launch(shape, shape.kernel(name, dtype, mode, own_kind), chunk, chunks, bunch=found.bunch)]
        if then:
            launches.append(map_launch(shape, then, dtype, careful, kind, limits))
    return Plan(tuple(launches), *workspace(shape, chunks, parts, found))


def mode_of_sums(name: str, then: str, dtype: str) -> int:
    """Return how sums without a map are computed: moments that no map follows in float64."""
    return EXACT if name == "moments" and not then and dtype != "float64" else SUMS_ONLY


def of_cluster(
    name: str, shape: Shape, keep: int, shared: int, dtype: str, kind: int, limits: Limits, otherwise: Plan
) -> Plan:
    """Return a plan for clusters: as many as run at a time, which go on from channel to channel."""
    kernel, sent = shape.kernel(f"cluster_{name}", dtype, kind), streams(shape, dtype)
    chunk, grid = keep * shape.down, (min(shape.channels, clusters_at_a_time(shape, limits)), CLUSTER)
    only = launch(shape, kernel, chunk, CLUSTER, family="clusters", shared=shared, keep=keep, streams=sent)
    return Plan((only._replace(grid=grid),), otherwise.partial, max(1, otherwise.tickets), otherwise)


def of_meeting(
    name: str, shape: Shape, chunk: int, chunks: int, keep: int, shared: int, dtype: str, kind: int, otherwise: Plan
) -> Plan:
    """Return a plan for a meeting. A group of tiles has a ticket; for moments, one more says whether to sum again."""
    kernel, sent = shape.kernel(name, dtype, MEETING, kind), streams(shape, dtype)
    only = launch(shape, kernel, chunk, chunks, shared=shared, keep=keep, streams=sent)._replace(meeting=True)
    rounds = 2 if name == "moments" else 1
    partial, tickets = workspace(shape, chunks, 2 * rounds, Bunches(chunks, 0, 0, rounds))
    return Plan((only,), max(partial, otherwise.partial), max(tickets, otherwise.tickets), otherwise)


def workspace(shape: Shape, chunks: int, parts: int, found: Bunches) -> tuple[int, int]:
    """Return the numbers and tickets of a workspace; none if each block finishes whole channels, of one column each."""
    if chunks * shape.copies * shape.inner == 1:
        return 0, 0
    columns = shape.tiles * shape.channels if shape.few(chunks) else shape.columns
    groups = cdiv(shape.tiles, shape.group)
    return parts * chunks * columns + found.behind * shape.channels, groups * found.tickets


def of_planes(name: str, shape: Shape, dtype: str, arrays: int, then: str, kind: int, limits: Limits) -> Plan:
    """Return a plan for small planes. How values are added up follows from the shape alone, not from the device: one
    with little shared memory reads them twice."""
    shared = kept(shape, ITEMSIZE[dtype]) * arrays
    keep = cdiv(shape.steps, shape.down) if shared <= limits.shared - STATIC_SHARED["planes"] else 0
    mapped = bool(then) and then != "frozen"
    mode = WITH_MAP if mapped else mode_of_sums(name, then, dtype)
    kernel = shape.kernel(f"planes_{name}", dtype, mode, kind if mapped or name == "sums" else IDENTITY.kind)
    more = {"keep": keep, "streams": streams(shape, dtype)}
    launches = [launch(shape, kernel, shape.whole, 1, family="planes", shared=shared if keep else 0, **more)]
    if then == "frozen":
        size = shape.total // shape.channels // shape.run, shape.channels, shape.run, dtype, True
        launches += map_only(then, *size, False, kind, limits).launches
    return Plan(tuple(launches), 0, 0)


@lru_cache(maxsize=1024)
def exact_sums(outer: int, channels: int, inner: int, dtype: str, vectors: bool, masked: bool, limits: Limits) -> Plan:
    """Return a plan for exact sums. They are integers, so they need neither a workspace nor a block that comes last."""
    shape = shape_of(outer, channels, inner, dtype, vectors and not masked)
    chunk, chunks, _ = cut(shape, limits)
    return Plan((launch(shape, shape.kernel("exact_sums", dtype, int(masked)), chunk, chunks, family="exact"),), 0, 0)


@lru_cache(maxsize=1024)
def map_only(
    name: str,  # "normalize", "finite", "gradient" or "frozen"
    outer: int, channels: int, inner: int, dtype: str, vectors: bool, careful: bool, kind: int, limits: Limits,
) -> Plan:  # fmt: skip
    shape = shape_of(outer, channels, inner, dtype, vectors and not careful)
    return Plan((map_launch(shape, name, dtype, careful, kind, limits),), 0, 0)


def map_launch(shape: Shape, name: str, dtype: str, careful: bool, kind: int, limits: Limits) -> Launch:
    """Return a map's launch. "finite": normalize that looks for infinity; "frozen": gradient of frozen statistics."""
    if name in ("normalize", "finite"):
        kernel = shape.kernel("normalize", dtype, kind, int(name == "finite"))
    else:
        kernel = shape.kernel(
            "gradient", dtype, FROZEN if name == "frozen" else CAREFUL if careful else SUMS_ONLY, kind
        )
    chunk, chunks, split = cut_of_map(shape, limits)
    return launch(shape, kernel, chunk, chunks, split=split, streams=streams(shape, dtype))


def streams(shape: Shape, dtype: str) -> int:
    return int(shape.total * ITEMSIZE[dtype] >= STREAMED)


PER_CHANNEL = {  # kernels with one thread per channel, and their families
    "finish_stats": "channels",
    "finish_gradients": "channels",
    "move_statistics": "statistics",
    "merge_sets": "statistics",
    "add_gradients": "statistics",
    "copy_params": "statistics",
}


@lru_cache(maxsize=1024)
def per_channel(name: str, channels: int) -> Plan:
    family = PER_CHANNEL[name]
    geometry = (STATISTICS_JOB if family == "statistics" else JOB).place(channels=channels)
    return Plan((Launch(family, name, (cdiv(channels, THREADS), 1), (THREADS,), 0, geometry),), 0, 0)
