"""The shape algebra: from any array and axis to the contiguous block that kernels see, and back.

This is the only file that knows axes and strides. The order of the axes other than the channel does not matter to batch
normalization, so they are put in memory order. Then every dense array is a contiguous (outer, C, inner) without a copy:
C or Fortran ordered, NCHW, NHWC, or NHWC memory seen through an NCHW transpose.

    channels(x, axis) -> x3, layout                     batch norm          (outer, C, inner)
    rows(x, normalized_ndim) -> x4, layout              layer and RMS norm  (N, 1, D, 1)
    groups(x, num_groups, axis) -> x4, layout           group and instance  (N, G, K, L)

    like(a, layout)         another array of x's shape (dy) in the same order: a view if possible, else one copy
    into(out, layout)       the view of `out` that a kernel may write to, or None
    restore(a, layout)      a kernel's result in the shape of x: always a view, in the memory order of x
    ordered(a, order)       an array with its axes in a memory order that `axes_in_memory` has found
    weights(w, layout)      one weight per position as (outer, inner), or (N, L) for groups
    codes(groups, layout)   one code of a group per position as an integer (outer, inner)
    put(out, a)             copy a result into an array of any memory order

Statistics of several axes at once are those of several such blocks: `kept(x, axes)` cuts an array into them, and
`first_kept(x, axes)` tells when it is better to keep more axes at first.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from bnorm.kernels.cpu.entries import contiguous, copy_into, restored

Shape = tuple[int, ...]
Array = Any  # numpy.ndarray or cupy.ndarray: this file uses only what both have
Blocks = Iterator[tuple[Array, Array | None]]  # values and weights
Dims = list[tuple[bool, int]]  # of each axis, whether it is kept, and its length

PIECE = 1 << 20  # at most so many bytes of a block that is copied, so that it stays in the cache
TWICE = 1 << 22  # the same for a block that is read twice, without a copy
DEVICE_PIECE = 1 << 26  # PIECE on a device, where launches take longer than copies
WORTHWHILE = 1 << 15  # bytes: smaller blocks are copied into larger ones, as each call of a kernel takes time too
FEW = 1 << 17  # up to so many statistics may be kept until they are merged
LONG = 32  # for so many values, the time to merge their statistics does not matter


class Layout(NamedTuple):
    """The memory order of the axes of an array, and its block. Compiled entries know the fields by their places."""

    shape: Shape  # of x
    block: Shape  # the shape that kernels see; the same object as `shape` if that is the shape of x
    order: Shape | None  # x.transpose(order) is in memory order; None if x is
    permuted: Shape  # x.shape in that order
    inverse: Shape  # a.transpose(inverse) undoes the order
    axis: int  # of the channels in x, not negative; for `rows` the first normalized axis


def channels(x: Array, axis: int, flat: bool = True) -> tuple[Array, Layout]:
    """Return x as (outer, C, inner), and its layout. A C-contiguous (N, C) with the channels on axis 1 stays as it is.

    With flat=False a C-contiguous (N, C, ...) stays as it is too: kernels treat the axes after C as one.
    """
    # The test of _plain, inlined, and faster for writeable arrays, because every small batch comes here.
    if x.flags.carray and x.dtype.isnative if type(x) is ndarray else _plain(x):
        layout = _channels(x.shape, None, axis, flat)
        return (x if layout.block is layout.shape else x.reshape(layout.block)), layout
    layout = _channels(x.shape, x.strides, axis, flat)
    return like(x, layout), layout


def rows(x: Array, normalized_ndim: int) -> tuple[Array, Layout]:
    """Return x as (N, 1, D, 1), and its layout. A row is the last `normalized_ndim` axes in C order, as in gamma.

    On a device, where making a view takes long, (N, D) stays as it is.
    """
    flat = type(x) is ndarray
    whole = x.flags.c_contiguous
    layout = _rows(x.shape, None if whole else x.strides, normalized_ndim, flat)
    return x if whole and layout.block is layout.shape else like(x, layout), layout


def groups(x: Array, num_groups: int, axis: int) -> tuple[Array, Layout]:
    """Return x as (N, G, K, L), and its layout: C = G*K channels on `axis`, samples on the first other axis.

    Instance norm has num_groups = C.
    """
    layout = _groups(x.shape, None if x.flags.c_contiguous else x.strides, num_groups, axis)
    return like(x, layout), layout


def like(a: Array, layout: Layout) -> Array:
    """Return `a`, which has the shape of x, as a block of this layout: a view if possible, else a contiguous copy."""
    if layout.order is not None:
        a = a.transpose(layout.order)
    if not _plain(a):
        a = dense(a, a.dtype.newbyteorder("="))
    return a if layout.block is layout.shape else a.reshape(layout.block)


def into(out: Array, layout: Layout) -> Array | None:
    """Return `out`, which has the shape of x, as a block that kernels can write to; None if that would need a copy.

    If it is None, let the kernel write to a new array, and then `put(out, restore(result, layout))`.
    """
    if layout.order is not None:
        out = out.transpose(layout.order)
    return out.reshape(layout.block) if _plain(out) else None


def restore(a: Array, layout: Layout) -> Array:
    """Return a view of a kernel's result with the shape and the axis order of x."""
    if type(a) is ndarray:
        return restored(a, layout)
    a = a if layout.block is layout.shape else a.reshape(layout.permuted)
    return a if layout.order is None else a.transpose(layout.inverse)


def put(out: Array, a: Array) -> None:
    """Copy `a` into `out`, which has its shape and does not overlap it."""
    if type(out) is type(a) is ndarray:
        copy_into(out, a)
    else:
        out[...] = a


def axes_in_memory(x: Array) -> Shape:
    """Return the axes of x, slowest first."""
    return tuple(sorted(range(x.ndim), key=[-abs(stride) for stride in x.strides].__getitem__))


def ordered(a: Array, order: Shape | None) -> Array:
    """Return `a` with its axes in this memory order, copied if necessary, so that it is dense even if x is not."""
    if order is None:
        return a
    a = dense(a.transpose(order), a.dtype)
    return a.transpose(sorted(range(a.ndim), key=order.__getitem__))


def weights(w: Array, layout: Layout) -> Array:
    """Return weights as (outer, inner) or (N, L), for a layout of `channels` or `groups`, as kernels take them.

    w has the shape of x without its channel axis, or (N,): one weight for each index of the first of those axes.
    """
    return _of_positions("weight", w, layout, weights_dtype(w))


def weights_dtype(w: Array) -> np.dtype[Any]:
    """Return the type in which the kernels take weights: float64, on the CPU also the type of float32 and masks."""
    return w.dtype if isinstance(w, ndarray) and w.dtype.char in "f?B" and w.dtype.isnative else np.dtype(np.float64)


def codes(groups: Array, layout: Layout) -> Array:
    """Return codes of groups as int32 or int64 (outer, inner). `groups` has a shape that `weights` accepts."""
    return _of_positions("groups", groups, layout, np.int32 if groups.dtype == np.int32 else np.int64)


def _of_positions(name: str, a: Array, layout: Layout, dtype: Any) -> Array:
    axis = layout.axis
    full = layout.shape[:axis] + layout.shape[axis + 1 :]
    if a.shape != full:
        if not full or a.shape != full[:1]:
            also = f" or {full[:1]}" if len(full) > 1 else ""
            raise ValueError(f"{name}: expected shape {full}{also} for x of shape {layout.shape}, got {a.shape}")
        a = np.broadcast_to(a.reshape(full[:1] + (1,) * (len(full) - 1)), full)
    if layout.order is not None:
        a = a.transpose([i - (i > axis) for i in layout.order if i != axis])
    outer = layout.block[0]
    return dense(a, dtype).reshape(outer, a.size // outer if outer else prod(layout.block[2:]))


def dense(a: Array, dtype: Any) -> Array:
    """Return `a` as kernels read it, with this dtype, contiguous and aligned; `a` itself if it already is."""
    same = a.dtype == dtype
    if same and _plain(a):
        return a
    return contiguous(a) if same and type(a) is ndarray else a.astype(dtype, order="C")


def writeable(a: Array) -> bool:
    """Whether an array is writeable. CuPy's always are."""
    return not isinstance(a, ndarray) or a.flags.writeable


def _plain(a: Array) -> bool:
    """Whether an array is C-contiguous, aligned, and in native byte order. CuPy's are always the latter two."""
    flags = a.flags
    return flags.c_contiguous and a.dtype.isnative and (not isinstance(a, ndarray) or flags.aligned)


class Kept(NamedTuple):
    """An array cut into blocks. Each place has channels of its own, and one or more blocks to be merged."""

    shape: Shape  # of the statistics
    places: Iterator[Blocks]  # blocks (outer, C, inner) and their weights (outer, inner)
    order: Array | None  # the index that puts the channels of all places, joined, in the order of the shape; or None


def kept(x: Array, axes: Shape, weight: Array | None = None, dtype: Any = np.float64, cached: bool = False) -> Kept:
    """Return the blocks of x whose channels are the positions along `axes`, in that order. `axes` may be empty.

    A block that lies in memory as kernels read it is not copied; the others have at most PIECE bytes. Blocks are read
    twice if there are weights, or with `cached`: then those that are not copied have at most about TWICE bytes.

    weight: an array of the shape of the other axes, maybe broadcast; it is converted to the dtype block by block.
    """
    shape = _pick(x.shape, axes)
    if x.size == 0:
        nothing = dense(x, x.dtype.newbyteorder("=")).reshape(0, prod(shape))
        w = None if weight is None else np.empty((0, 1), dtype, like=weight)
        return Kept(shape, iter([iter([(nothing, w)])]), None)
    order = _memory_order(x.shape, x.strides)
    x, keeps, steps = x.transpose(order), [axis in axes for axis in order], [0] * x.ndim
    if weight is not None:
        others = [axis for axis in range(x.ndim) if axis not in axes]
        weight = weight.transpose([others.index(axis) for axis in order if axis not in axes])
        of_weight = iter(weight.strides)
        steps = [0 if keep else next(of_weight) for keep in keeps]
    dims = _merged_axes(x, keeps, steps)
    in_memory = [axis for axis in order if axis in axes]
    positions = None
    if tuple(in_memory) != axes:
        lengths = [shape[axes.index(axis)] for axis in in_memory]
        positions = np.arange(prod(shape)).reshape(lengths).transpose([in_memory.index(a) for a in axes]).reshape(-1)
    return Kept(shape, _places(x, dims, weight, dtype, cached or weight is not None), positions)


def first_kept(x: Array, axes: Shape) -> Shape:
    """Return `axes`, preceded by others if it is faster to keep these too at first, and to merge along them afterwards.

    It is faster if the values of a channel lie in short runs, far apart, but in many rows of the array.
    """
    order = _memory_order(x.shape, x.strides)
    keeps = [axis in axes for axis in order]
    dims = _merged_axes(x.transpose(order), keeps, [0] * x.ndim) if x.size else []
    if _fits([keep for keep, _ in dims]) or dims[0][0]:
        return axes
    first = dims[0][1]
    row = x.size // first
    if first < 4 * LONG or (row > FEW and row // prod(_pick(x.shape, axes)) >= LONG):
        return axes
    at, length = 0, 1
    while length < first:
        length, at = length * x.shape[order[at]], at + 1
    return tuple(sorted(axis for axis in order[at:] if axis not in axes)) + axes


def _merged_axes(x: Array, keeps: list[bool], steps: list[int]) -> Dims:
    """Return for each group of axes that are one axis in memory: whether it is kept, and its length.

    Axes of length 1 are left out. x: its axes in memory order; steps: the strides of the weights along these axes.
    """
    dims: Dims = []
    before = 0, 0  # the strides of the group's last axis
    for keep, n, *strides in zip(keeps, x.shape, x.strides, steps, strict=True):
        if n == 1:
            continue
        if dims and dims[-1][0] == keep and before == (n * strides[0], n * strides[1]):
            dims[-1] = keep, dims[-1][1] * n
        else:
            dims.append((keep, n))
        before = strides[0], strides[1]
    return dims or [(False, 1)]


def _fits(keeps: list[bool]) -> bool:
    """Whether these axes, in memory order, are (outer, channel, inner): the kept ones lie side by side."""
    return sum(keep and not (i and keeps[i - 1]) for i, keep in enumerate(keeps)) <= 1


def _places(x: Array, dims: Dims, weight: Array | None, dtype: Any, cached: bool) -> Iterator[Blocks]:
    keeps, lengths = [keep for keep, _ in dims], [n for _, n in dims]
    x = x.reshape(lengths)  # views: only axes that are one in memory have become one
    w = None if weight is None else weight.reshape([n for keep, n in dims if not keep])
    spans = _spans(keeps, lengths, x, cached)
    leading = keeps[: len(spans)]
    inside = [keep for i, keep in enumerate(keeps) if i >= len(spans) or isinstance(spans[i][0], slice)]
    mine = [span if keep else [0] for keep, span in zip(leading, spans, strict=True)]
    others = [[0] if keep else span for keep, span in zip(leading, spans, strict=True)]

    def blocks(place: Sequence[Any]) -> Blocks:
        for reduced in product(*others):
            at = tuple(p if keep else r for keep, p, r in zip(leading, place, reduced, strict=True))
            block, shape = _block(x[at], inside)
            own = None
            if w is not None:
                own = w[tuple(r for keep, r in zip(leading, reduced, strict=True) if not keep)]
                own = dense(own, dtype).reshape(shape)
            yield block, own

    return (blocks(place) for place in product(*mine))


def _spans(keeps: list[bool], lengths: list[int], x: Array, cached: bool) -> list[Sequence[Any]]:
    """Return for each leading axis the indices or slices that cut the array. The axes after these are not cut."""
    piece = PIECE if isinstance(x, ndarray) else DEVICE_PIECE
    size = [int(x.itemsize) * prod(lengths[i:]) for i in range(len(lengths) + 1)]
    fit, whole = _fits(keeps), [slice(None)]
    if plain := _plain(x):
        fits = next(i for i in range(len(lengths) + 1) if _fits(keeps[i:]))
        if fits == 0 and not cached:
            return [whole]
        if fits and size[fits] >= WORTHWHILE and not (cached and size[fits] > piece):
            return [range(n) for n in lengths[:fits]]
    if not fit and keeps[1] and not keeps[0] and (one := size[0] // lengths[1]) <= piece:
        return [whole, _slices(lengths[1], piece // one)]  # all values of some channels
    short = prod(n for keep, n in zip(keeps[1:], lengths[1:], strict=True) if not keep)
    few = fit and not keeps[0] and max(1, piece // size[1]) < min(lengths[0], 2 * LONG / short)
    if few and keeps[1] and not plain:  # some values of some channels, as merging those of whole rows would take long
        rows = min(lengths[0], 8 * LONG // short)
        at = next(i for i in range(1, len(lengths)) if rows * size[i + 1] <= piece)
        some = _slices(lengths[at], piece // (rows * size[at + 1]))
        return [_slices(lengths[0], rows), *map(range, lengths[1:at]), some]
    at = 0 if few and plain else next(i for i in range(len(lengths)) if size[i + 1] <= piece)
    step = max(1, piece // size[at + 1])
    if plain and _fits(keeps[at:]):
        step *= TWICE // PIECE
        if not keeps[at]:  # a view may be larger: then merging takes little of the time
            short = prod(n for keep, n in zip(keeps[at + 1 :], lengths[at + 1 :], strict=True) if not keep)
            step = max(step, 2 * LONG // short)
    return [*map(range, lengths[:at]), _slices(lengths[at], step)]


def _slices(n: int, step: int) -> list[slice]:
    return [slice(i, i + step) for i in range(0, n, step)]


def _block(tile: Array, keeps: list[bool]) -> tuple[Array, Shape]:
    """Return a part of the array as (outer, C, inner), copied if necessary, and the shape (outer, inner)."""
    channels = prod(n for keep, n in zip(keeps, tile.shape, strict=True) if keep)
    values = tile.size // channels
    if _fits([keep for keep, n in zip(keeps, tile.shape, strict=True) if n > 1]):
        outer = prod(tile.shape[: next((i for i, n in enumerate(tile.shape) if keeps[i] and n > 1), tile.ndim)])
    else:
        reduced, own = ([i for i, keep in enumerate(keeps) if keep is wanted] for wanted in (False, True))
        outer = values if keeps[-1] else 1  # the fastest axis stays the fastest
        tile = tile.transpose([*reduced, *own] if keeps[-1] else [*own, *reduced])
    shape = outer, values // outer
    return dense(tile, tile.dtype.newbyteorder("=")).reshape(outer, channels, shape[1]), shape


# Layouts are pure functions of a few integers, and are cached because training asks for the same ones again and again.
# Strides are None if the array is C-contiguous, so that small calls need not make and hash another tuple.


@lru_cache(maxsize=1024)
def _channels(shape: Shape, strides: Shape | None, axis: int, flat: bool) -> Layout:
    axis = range(len(shape))[axis]
    order = _memory_order(shape, strides)
    place = order.index(axis)
    if place == axis == 1 and (len(shape) == 2 or (not flat and order == tuple(range(len(shape))))):
        return _layout(shape, shape, order, axis)
    block = (prod(_pick(shape, order[:place])), shape[axis], prod(_pick(shape, order[place + 1 :])))
    return _layout(shape, block, order, axis)


@lru_cache(maxsize=1024)
def _rows(shape: Shape, strides: Shape | None, normalized_ndim: int, flat: bool = True) -> Layout:
    first = len(shape) - normalized_ndim
    order = _memory_order(shape[:first], strides and strides[:first]) + tuple(range(first, len(shape)))
    block = (prod(shape[:first]), 1, prod(shape[first:]), 1)
    plain = len(shape) == 2 and first == 1 and shape[1] > 0 and not flat
    return _layout(shape, shape if plain else block, order, first)


@lru_cache(maxsize=1024)
def _groups(shape: Shape, strides: Shape | None, num_groups: int, axis: int) -> Layout:
    axis = range(len(shape))[axis]
    batch, *positions = [i for i in range(len(shape)) if i != axis]
    inside = _memory_order(_pick(shape, positions), strides and _pick(strides, positions))
    block = (shape[batch], num_groups, shape[axis] // max(num_groups, 1), prod(_pick(shape, positions)))
    return _layout(shape, block, (batch, axis, *_pick(positions, inside)), axis)


def _layout(shape: Shape, block: Shape, order: Shape, axis: int) -> Layout:
    natural = tuple(range(len(shape)))
    inverse = tuple(order.index(i) for i in natural)
    return Layout(shape, block, None if order == natural else order, _pick(shape, order), inverse, axis)


def _memory_order(shape: Shape, strides: Shape | None) -> Shape:
    """Return the axes, slowest first.

    An axis of length 1 or stride 0 (broadcast) has no place in memory, and its stride means nothing: it goes before the
    first axis of a higher index. The axes of an empty array keep their order.
    """
    natural = tuple(range(len(shape)))
    if strides is None or 0 in shape:
        return natural
    placed = [i for i in natural if shape[i] > 1 and strides[i]]
    order = sorted(placed, key=lambda i: -abs(strides[i]))
    for i in natural:
        if i not in placed:
            order.insert(next((k for k, j in enumerate(order) if j > i), len(order)), i)
    return tuple(order)


def _pick(items: Sequence[int], indices: Iterable[int]) -> Shape:
    return tuple(items[i] for i in indices)
