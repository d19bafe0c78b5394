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
    weights(w, layout)      one weight per position as float64 (outer, inner), or (N, L) for groups
    codes(groups, layout)   one code of a group per position as an integer (outer, inner)
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

Shape = tuple[int, ...]
Array = Any  # numpy.ndarray or cupy.ndarray: this file uses only what both have


class Layout(NamedTuple):
    """The memory order of the axes of an array, and its block. A function of shape, strides and axis."""

    shape: Shape  # of x
    block: Shape  # the shape that kernels see; the same object as `shape` if that is the shape of x
    order: Shape | None  # x.transpose(order) is in memory order; None if x is
    permuted: Shape  # x.shape in that order
    inverse: Shape  # a.transpose(inverse) undoes the order
    axis: int  # of the channels in x, not negative; for `rows` the first normalized axis


def channels(x: Array, axis: int, flat: bool = True) -> tuple[Array, Layout]:
    """x as (outer, C, inner); a C-contiguous (N, C) whose channels are axis 1 is x itself, (N, C).

    If not flat, so is a C-contiguous (N, C, ...): kernels count the axes after C as one.
    """
    # The test of _plain, inlined, and faster for writeable arrays: every small batch comes here.
    if x.flags.carray and x.dtype.isnative if type(x) is ndarray else _plain(x):
        layout = _channels(x.shape, None, axis, flat)
        return (x if layout.block is layout.shape else x.reshape(layout.block)), layout
    layout = _channels(x.shape, x.strides, axis, flat)
    return like(x, layout), layout


def rows(x: Array, normalized_ndim: int) -> tuple[Array, Layout]:
    """x as (N, 1, D, 1): one row is the last `normalized_ndim` axes in C order, as in gamma and beta."""
    layout = _rows(x.shape, None if x.flags.c_contiguous else x.strides, normalized_ndim)
    return like(x, layout), layout


def groups(x: Array, num_groups: int, axis: int) -> tuple[Array, Layout]:
    """x as (N, G, K, L): C = G*K channels on `axis`, samples on the first other axis, L positions.

    Instance norm has num_groups = C.
    """
    layout = _groups(x.shape, None if x.flags.c_contiguous else x.strides, num_groups, axis)
    return like(x, layout), layout


def like(a: Array, layout: Layout) -> Array:
    """`a`, of the shape of x, as the block of that layout: a view if possible, else one contiguous copy."""
    if layout.order is not None:
        a = a.transpose(layout.order)
    if not _plain(a):
        a = a.astype(a.dtype.newbyteorder("="), order="C")
    return a if layout.block is layout.shape else a.reshape(layout.block)


def into(out: Array, layout: Layout) -> Array | None:
    """`out`, of the shape of x, as a block that kernels can write to; None if that would need a copy.

    Then the result goes to a new array, and from there `out[...] = restore(result, layout)`.
    """
    if layout.order is not None:
        out = out.transpose(layout.order)
    return out.reshape(layout.block) if _plain(out) else None


def restore(a: Array, layout: Layout) -> Array:
    """A block, as kernels return it, in the shape and the axis order of x."""
    if layout.block is layout.shape:
        return a
    a = a.reshape(layout.permuted)
    return a if layout.order is None else a.transpose(layout.inverse)


def axes_in_memory(x: Array) -> Shape:
    """The axes of x, slowest first."""
    strides = x.strides
    return tuple(sorted(range(x.ndim), key=lambda i: -abs(strides[i])))


def ordered(a: Array, order: Shape | None) -> Array:
    """a with its axes in that memory order, copied if necessary: rows are contiguous even if those of x are not."""
    if order is None:
        return a
    a = a.transpose(order)
    return (a if a.flags.c_contiguous else a.copy()).transpose(sorted(range(a.ndim), key=order.__getitem__))


def weights(w: Array, layout: Layout) -> Array:
    """Weights as float64 (outer, inner) or (N, L), in the order of a layout of `channels` or `groups`.

    w has the shape of x without its channel axis, or (N,), one weight per index of the first of those axes.
    """
    return _of_positions("weight", w, layout, np.float64)


def codes(groups: Array, layout: Layout) -> Array:
    """Codes of groups as int32 or int64 (outer, inner). They are given as weights are."""
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
    return dense(a, dtype).reshape(layout.block[0], a.size // max(layout.block[0], 1))


def dense(a: Array, dtype: Any) -> Array:
    """a as kernels read vectors: of that dtype, contiguous, aligned; a itself if it is."""
    return a if a.dtype == dtype and _plain(a) else a.astype(dtype, order="C")


def writeable(a: Array) -> bool:
    """Whether an array is writeable. CuPy's always are."""
    return not isinstance(a, ndarray) or a.flags.writeable


def _plain(a: Array) -> bool:
    """Whether an array is C-contiguous, aligned, and in native byte order. CuPy's are always the latter two."""
    flags = a.flags
    return flags.c_contiguous and a.dtype.isnative and (not isinstance(a, ndarray) or flags.aligned)


# Layouts are pure functions of a few integers, and training repeats the same ones.
# Strides are None if the array is C-contiguous: one tuple less to make and to hash for small calls.


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
def _rows(shape: Shape, strides: Shape | None, normalized_ndim: int) -> Layout:
    first = len(shape) - normalized_ndim
    order = _memory_order(shape[:first], strides and strides[:first]) + tuple(range(first, len(shape)))
    return _layout(shape, (prod(shape[:first]), 1, prod(shape[first:]), 1), order, first)


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
    """The axes, slowest first.

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
