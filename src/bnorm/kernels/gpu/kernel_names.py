"""The names of the batch norm kernels that plans may ask for, to compile them in advance or for other devices."""

from collections.abc import Iterable

from ..activation import IDENTITY, KINDS
from .jobs import CAREFUL, EXACT, FROZEN, MEETING, SUMS_ONLY, WITH_MAP
from .planes import sizes
from .plans import PER_CHANNEL
from .shapes import ITEMSIZE, THREADS, VECTOR_BYTES, channel_runs, plane_shape, rows_of_channels, vectors_of


def per_channel_kernels(family: str) -> list[str]:
    return [name for name, of in PER_CHANNEL.items() if of == family]


def cluster_kernels(dtype: str, kinds: Iterable[int] = KINDS) -> list[str]:
    """Return every name of the family "clusters" that plans may ask for, for one type of elements."""
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
