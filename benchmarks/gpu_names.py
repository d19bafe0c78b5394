"""The names of the kernels that plans may ask for, to compile them in advance or for other devices."""

from collections.abc import Iterable

from bnorm.kernels.activation import IDENTITY, KINDS
from bnorm.kernels.gpu.jobs import (
    CAREFUL,
    EXACT,
    FROZEN,
    MEETING,
    NO_PARAMS,
    PER_CHANNEL,
    PER_COLUMN,
    SUMS_ONLY,
    WITH_MAP,
)
from bnorm.kernels.gpu.planes import sizes
from bnorm.kernels.gpu.plans import PER_CHANNEL as PLAIN
from bnorm.kernels.gpu.row_plans import BROAD, OF_A_WARP, OF_WARPS, SHARED_AFFINE, WARP, Row, sharing, steps_of
from bnorm.kernels.gpu.shapes import (
    ITEMSIZE,
    NAMES,
    THREADS,
    VECTOR_BYTES,
    Shape,
    channel_runs,
    plane_shape,
    rows_of_channels,
    vectors_of,
)


def per_channel_kernels(family: str) -> list[str]:
    return [name for name, of in PLAIN.items() if of == family]


def cluster_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Return those of the family "clusters", for one type of elements."""
    shapes = [
        channel_runs(1, 1, vector, vector, threads)
        for vector in vectors_of(dtype)
        for threads in (THREADS, 2 * THREADS)
    ]
    names = ("cluster_moments", "cluster_sums")
    return [shape.kernel(name, dtype, kind) for shape in shapes for name in names for kind in kinds]


def exact_kernels(dtype: str) -> list[str]:
    """Return those of the family "exact"."""
    if dtype == "float64":
        return []
    names = []
    for vector in vectors_of(dtype):
        for shape in (rows_of_channels(1, vector, 1, ITEMSIZE[dtype], vector), channel_runs(1, 1, vector, vector)):
            names += [shape.kernel("exact_sums", dtype, masked) for masked in ((0, 1) if vector == 1 else (0,))]
    return names


def channel_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Return those of the family "channels"."""
    itemsize = ITEMSIZE[dtype]
    names = []
    for vector in vectors_of(dtype):
        narrow = rows_of_channels(1, vector, 1, itemsize, vector)
        runs = channel_runs(1, 1, vector, vector)
        large = channel_runs(1, 1, vector, vector, 2 * THREADS)
        careful = (CAREFUL,) if vector == 1 else ()
        for shape in (narrow, runs, large):
            if shape is not large or dtype == "float64":
                names += [shape.kernel("moments", dtype, SUMS_ONLY, IDENTITY.kind)]
            if dtype != "float64":
                names += [shape.kernel("moments", dtype, EXACT, IDENTITY.kind)]
            if shape is not large:
                names += [shape.kernel("moments", dtype, mode, IDENTITY.kind) for mode in careful]
            for kind in kinds:
                modes = (WITH_MAP, MEETING) if shape is narrow and vector * itemsize == VECTOR_BYTES else (WITH_MAP,)
                names += [shape.kernel(name, dtype, mode, kind) for mode in modes for name in ("moments", "sums")]
                names += [shape.kernel("sums", dtype, SUMS_ONLY, kind), shape.kernel("gradient", dtype, FROZEN, kind)]
                if shape is large:
                    continue
                names += [shape.kernel("normalize", dtype, kind, finite) for finite in (0, 1)]
                names += [shape.kernel("gradient", dtype, mode, kind) for mode in (SUMS_ONLY, *careful)]
                names += [shape.kernel("sums", dtype, mode, kind) for mode in careful]
    return names


def plane_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Return those of the family "planes"."""
    names = []
    for together in dict.fromkeys(sizes(ITEMSIZE[dtype])):
        shape = plane_shape(1, together, 1, together)
        names += [shape.kernel("planes_moments", dtype, SUMS_ONLY if dtype == "float64" else EXACT, IDENTITY.kind)]
        for kind in kinds:
            names += [shape.kernel(f"planes_{name}", dtype, WITH_MAP, kind) for name in ("moments", "sums")]
            names += [shape.kernel("planes_sums", dtype, SUMS_ONLY, kind)]
    return names


def weighted_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Return those of the family "rows_weighted"."""
    return [f"rows_weighted_{way}<{NAMES[dtype]}, {kind}>" for way in ("forward", "backward") for kind in kinds]


def row_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Return those of the family "rows"."""
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
    """Return those of the family "row_channels"."""
    shapes: list[Shape] = []
    for vector in vectors_of(dtype):
        shapes += [rows_of_channels(1, vector, 1, ITEMSIZE[dtype], vector), channel_runs(1, 1, vector, vector)]
    return [shape.kernel("row_channels", dtype, kind) for shape in shapes for kind in kinds]
