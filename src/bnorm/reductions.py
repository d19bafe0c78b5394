"""Moments of arrays and of lazy collections for any kept axes: computed block by block, merged as a tree."""

from collections.abc import Sequence
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import checks, exact
from bnorm.kernels import BACKENDS, cpu, moved, view
from bnorm.kernels.engines import engine_of
from bnorm.moments import Moments, Tree

Shape = tuple[int, ...]


def moments(
    who: str,
    x: Any,
    axis: Any,
    weight: Any = None,
    skipna: Any = False,
    in_integers: Any = False,
    minmax: Any = False,
    scale: Any = 1.0,
) -> Moments:
    """Return what `functional.moments` returns. With one axis and no other options this is one call of a kernel."""
    if skipna is not False or in_integers is not False or minmax is not False:
        skipna, in_integers, minmax = checks.flags(who, skipna=skipna, exact=in_integers, minmax=minmax)
    if type(scale) is not float or scale != 1.0:
        scale = checks.factor(who, "scale", scale)
    if (engine := engine_of(x)) is not None:
        m = _of_blocks(engine, who, x, axis, weight, skipna, in_integers, minmax)
    elif minmax and weight is None and not in_integers and not isinstance(axis, tuple | list) and _is_one_block(x):
        x = checks.array(who, x, integers=True)
        m = _of_block(view.channels(x, checks.channel_axis(who, axis, x.shape))[0], None, skipna, False, True)
    elif minmax or isinstance(axis, tuple | list):
        x = exact.array(who, x) if in_integers else checks.array(who, x, integers=True)
        m = of_axes(who, x, kept_axes(who, axis, x.shape), weight, skipna, in_integers, minmax)
    elif in_integers:
        m = exact.moments(who, x, axis, weight, skipna)
    else:
        x = checks.array(who, x, integers=True)
        block, layout = view.channels(x, checks.channel_axis(who, axis, x.shape))
        if weight is None:
            m = Moments._from_parts(BACKENDS[type(x)].moments(block, None, skipna))
        else:
            m = Moments._from_parts(_weighted(who, block, layout, weight, skipna))
    return m if scale == 1.0 else m.scaled(scale)


def _weighted(who: str, block: Any, layout: view.Layout, weight: Any, skipna: bool) -> Any:
    """Return the parts of weighted moments. On the CPU the kernel checks the weights while it reads them, as they may
    take as many bytes as x."""
    if type(block) is not ndarray:
        weight, _ = checks.weights(who, weight, layout, type(block), keep=False)
        return BACKENDS[type(block)].moments(block, weight, skipna)
    weight = checks.placed(who, view.weights, checks.real(who, "weight", weight, ndarray), layout)
    parts = cpu.moments(block, weight, skipna)
    if not block.size or not checks.LIGHTEST <= parts[0, 0] < inf:  # an infinite count means that weights are wrong
        checks.check_weights(who, weight)
    return parts


def _is_one_block(x: Any) -> bool:
    """Whether an array is surely one block for `_in_blocks`, so that it need not be cut."""
    return type(x) is ndarray and x.flags.c_contiguous and 0 < x.nbytes <= view.PIECE


def kept_axes(who: str, axis: Any, shape: Shape) -> Shape:
    """Return the kept axes of an array of this shape, not negative, in the order in which they are given."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(checks.channel_axis(who, one, shape) % len(shape) for one in given)
    if len(set(axes)) < len(axes):
        raise ValueError(f"{who}: axis: expected different axes of x, which has shape {shape}, got {axis}")
    return axes


def of_axes(who: str, x: Any, axes: Shape, weight: Any, skipna: bool, in_integers: bool, minmax: bool) -> Moments:
    """Return the moments of an array, in the shape of the kept axes. `checks.array` or `exact.array` has checked x.

    The weights may have length 1 along an axis where all of them are equal.
    """
    if in_integers:
        x = moved(x, ndarray)
    if weight is None:
        first = view.first_kept(x, axes)
        found = _in_blocks(x, first, None, skipna, in_integers, minmax)
        return found if first == axes else over_leading(found, len(first) - len(axes))
    w = _weights(who, weight, x, axes, in_integers)
    reduced = [axis for axis in range(x.ndim) if axis not in axes]
    own = tuple(axis for axis, n in zip(reduced, w.shape, strict=True) if n > 1)
    if x.size and not in_integers and w.size * view.LONG <= prod(x.shape[axis] for axis in reduced):
        each = of_axes(who, x, own + axes, None, skipna, False, minmax)  # moments of the values of equal weight
        every = w.astype(np.float64).reshape(-1).repeat(prod(x.shape[axis] for axis in axes))
        return over_leading(each._weighing(every), len(own))
    w = np.broadcast_to(w, [x.shape[axis] for axis in reduced])
    return _in_blocks(x, axes, w, skipna, in_integers, minmax)


def over_leading(m: Moments, axes: int) -> Moments:
    """Return the moments of all channels along the first axes together: halves are merged, then halves of these."""
    n, shape = prod(m.shape[:axes]), m.shape[axes:]
    channels = prod(shape)
    if n == 0:
        raise ValueError("expected at least one set of moments, got none")
    while n > 1:
        half = n // 2 * channels
        parts = [m._picked(slice(0, half)) + m._picked(slice(half, 2 * half))]
        if n % 2:
            parts.append(m._picked(slice(2 * half, None)))
        m, n = Moments._beside(parts), n - n // 2
    return m._shaped(shape)


def assembled(items: Sequence[Moments], grid: Shape) -> Moments:
    """Return the moments of an array that was cut into parts along its kept axes.

    items: the moments of the parts, in C order. grid: the number of parts along each kept axis.
    """
    parts = np.arange(len(items)).reshape(grid)
    alone = [[items[i] for i in parts[(0,) * k + (slice(None),)].reshape(n, -1)[:, 0]] for k, n in enumerate(grid)]
    cuts = [[part.shape[k] for part in some] for k, some in enumerate(alone)]
    shape = tuple(map(sum, cuts))
    beside = Moments._beside(items)
    if len(items) > 1:
        positions, starts = np.arange(prod(shape)).reshape(shape), [np.cumsum([0, *some]) for some in cuts]
        order = np.concatenate(
            [
                positions[tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, place, strict=True))].reshape(-1)
                for place in np.ndindex(*map(len, cuts))
            ]
        )
        beside = beside._picked(np.argsort(order))
    return beside._shaped(shape)


def _of_blocks(
    engine: Any, who: str, x: Any, axis: Any, weight: Any, skipna: bool, in_integers: bool, minmax: bool
) -> Moments:
    """Return the moments of a lazy collection, block by block."""
    given, x = x, engine.array_of(who, "x", x)
    checks.array(who, x._meta)
    axes = kept_axes(who, axis, x.shape)
    of_block = partial(_of_one, who, axes if isinstance(axis, tuple | list) else axes[0], skipna, in_integers, minmax)
    if axes in ((), (1,)) and engine.is_beside(given, weight):
        found = engine.beside(partial(_of_frame, of_block), Moments.merge, engine.ordered(who, given), weight)
    else:
        if weight is not None:
            weight = engine.aligned(who, "weight", weight, given, x, axes)
        found = engine.reduced(of_block, Moments.merge, x, axes, weight)
    return Moments._beside(found) if len(axes) == 1 else assembled(found, tuple(x.numblocks[axis] for axis in axes))


def _of_one(
    who: str, axis: Any, skipna: bool, in_integers: bool, minmax: bool, block: ndarray, weight: ndarray | None = None
) -> Moments:
    return moments(who, block, axis, weight, skipna, in_integers, minmax)


def _of_frame(of_block: Any, frame: Any, weight: Any) -> Moments:
    found: Moments = of_block(frame.values, weight.values)
    return found


def _in_blocks(x: Any, axes: Shape, weight: Any, skipna: bool, in_integers: bool, minmax: bool) -> Moments:
    dtype = np.dtype(np.int64) if in_integers else view.weights_dtype(weight)
    shape, places, order = view.kept(x, axes, weight, dtype, cached=minmax)
    found = []
    for blocks in places:
        tree = Tree()
        for block, w in blocks:
            tree.add(_of_block(block, w, skipna, in_integers, minmax))
        found.append(tree.result())
    m = Moments._beside(found)
    return (m if order is None else m._picked(order))._shaped(shape)


def _of_block(block: Any, w: Any, skipna: bool, in_integers: bool, minmax: bool) -> Moments:
    kernels = BACKENDS[type(block)]
    if in_integers:
        m: Moments = exact.of_block(block, w, skipna)
    else:
        m = Moments._from_parts(kernels.moments(block, w, skipna))
    if not minmax:
        return m
    if type(block) is not ndarray and block.dtype.kind in "iu" and block.itemsize > 2:  # a device finds them in floats
        block = block.astype(np.float64)
    extremes = kernels.extremes(block, None if w is None else w.astype(np.float64, copy=False), skipna)
    return m._of(m.shape, extremes)


def _weights(who: str, weight: Any, x: Any, axes: Shape, in_integers: bool) -> Any:
    """Return checked weights, with the axes that are not kept; an axis has length 1 if its weights are equal."""
    full = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    w = exact.whole_weights(who, "weight", weight) if in_integers else checks.real(who, "weight", weight, type(x))
    if w.shape != full:
        if full and w.shape == full[:1]:
            w = w.reshape(full[:1] + (1,) * (len(full) - 1))
        elif w.ndim != len(full) or any(n not in (1, all_) for n, all_ in zip(w.shape, full, strict=True)):
            also = f" or {full[:1]}" if len(full) > 1 else ""
            raise ValueError(f"{who}: weight: expected shape {full}{also} for x of shape {x.shape}, got {w.shape}")
    if not in_integers and w.dtype.char not in "?B":  # bytes are finite and not negative
        checks.check_weights(who, w, prod(full) // max(w.size, 1))
    return w
