"""The awkward arrays that every test of a kernel runs over, as data: shape, channel axis, memory, and why it is here.

`case.array(dtype)` makes the array: channel c has a mean of about 3c (up to 60) and a standard deviation of about 1, so
that nothing is symmetric, and no channel equals its neighbor by accident.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DTYPES = ("float16", "float32", "float64")


def cast(values, dtype):
    """Cast values, the same on every processor: they differ in how they cast negative floats to unsigned integers."""
    return (values.astype(np.int64) if np.dtype(dtype).kind == "u" else values).astype(dtype)


def c_order(values):
    return np.ascontiguousarray(values)


def fortran(values):
    return np.asfortranarray(values)


def channels_last(values):
    """(N, C, ...) whose memory is (N, ..., C): NHWC data seen through an NCHW transpose."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)


def channels_first(values):
    """(N, ..., C) whose memory is (N, C, ...)."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, -1, 1)), 1, -1)


def inside_out(values):
    """Dense, with the axes in a memory order that is neither C nor Fortran: 1, 2, ..., 0."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 0, -1)), -1, 0)


def strided(values):
    """Every second element of a larger array, along every axis."""
    larger = np.full([2 * n + 1 for n in values.shape], np.nan, values.dtype)
    view = larger[tuple(slice(1, 1 + 2 * n, 2) for n in values.shape)]
    view[...] = values
    return view


def columns_of_wider(values):
    """All columns but the last two: dense rows with a gap between them."""
    wider = np.full((*values.shape[:-1], values.shape[-1] + 2), np.nan, values.dtype)
    wider[..., :-2] = values
    return wider[..., :-2]


def backwards(values):
    """Negative strides on every axis."""
    every = (slice(None, None, -1),) * values.ndim
    return np.ascontiguousarray(values[every])[every]


def broadcast(values):
    """The first sample, repeated with stride 0."""
    return np.broadcast_to(values[:1], values.shape)


def byte_swapped(values):
    return values.astype(values.dtype.newbyteorder("S"))


def unaligned(values):
    """One byte off every boundary."""
    raw = np.zeros(values.nbytes + 1, np.uint8)[1:]
    view = raw.view(values.dtype).reshape(values.shape)
    view[...] = values
    return view


def read_only(values):
    values = np.ascontiguousarray(values)
    values.flags.writeable = False
    return values


DENSE = (c_order, fortran, channels_last, channels_first, inside_out, read_only)  # these need no copy


class Case(NamedTuple):
    shape: tuple[int, ...]
    axis: int
    memory: Callable[[np.ndarray], np.ndarray]
    why: str

    @property
    def name(self) -> str:
        return f"{'x'.join(map(str, self.shape))}-axis{self.axis}-{self.memory.__name__}"

    def __str__(self) -> str:
        return self.name

    @property
    def num_channels(self) -> int:
        return self.shape[self.axis]

    def array(self, dtype: str, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng([seed, *self.shape])
        lead = np.arange(self.num_channels) % 20 * 3.0
        values = rng.standard_normal(self.shape) + np.moveaxis(
            np.expand_dims(lead, tuple(range(1, len(self.shape)))), 0, self.axis
        )
        return self.memory(values.astype(dtype))

    def weight(self, seed: int = 1) -> np.ndarray:
        """Weights over the non-channel axes; about a third of them are 0."""
        shape = np.delete(self.shape, self.axis)
        rng = np.random.default_rng([seed, *self.shape])
        return rng.uniform(0.5, 2.0, shape) * (rng.random(shape) > 1 / 3)


CASES = [
    # (N, C)
    Case((32, 64), 1, c_order, "the shortest path: x is the block itself"),
    Case((2, 2), 1, c_order, "the smallest batch with a variance"),
    Case((1, 7), 1, c_order, "one value per channel: variance 0"),
    Case((1, 1), 1, c_order, "one value"),
    Case((0, 4), 1, c_order, "empty batch"),
    Case((4, 0), 1, c_order, "no channels"),
    Case((50, 1), 1, c_order, "one channel"),
    Case((100, 2), 1, c_order, "few channels: many rows are worked on as one"),
    Case((4099, 3), 1, c_order, "few channels, and a prime number of rows: the last widened row is not full"),
    Case((1023, 5), 1, c_order, "one less than a power of two"),
    Case((1025, 5), 1, c_order, "one more than a power of two"),
    Case((257, 513), 1, c_order, "one row more than a block, one column more than a tile"),
    Case((13, 1300), 1, c_order, "more channels than two tiles, primes"),
    Case((12000, 4), 1, c_order, "several pieces of blocks, merged"),
    Case((700, 70), 1, c_order, "several pieces of rows, 64 columns and 6"),
    Case((37, 11), 0, c_order, "channels first: outer is 1"),
    Case((11, 37), 1, fortran, "Fortran order: outer is 1"),
    Case((37, 11), 0, fortran, "Fortran order, channels first: inner is 1"),
    Case((600, 8), -1, c_order, "a negative axis"),
    Case((64, 12), 1, columns_of_wider, "rows with a gap: one copy"),
    Case((40, 6), 1, strided, "every second element: one copy"),
    Case((40, 6), 1, backwards, "negative strides: one copy"),
    Case((40, 6), 1, broadcast, "stride 0: one copy, and every channel is constant"),
    Case((40, 6), 1, byte_swapped, "the other byte order: one copy"),
    Case((40, 6), 1, unaligned, "off the boundary: one copy"),
    Case((40, 6), 1, read_only, "must not be written to, need not be copied"),
    # (C,), (N, C, L), (N, C, H, W), (N, C, D, H, W)
    Case((9,), 0, c_order, "one axis"),
    Case((5, 3, 17), 1, c_order, "a run of 17"),
    Case((5, 3, 31), 1, c_order, "one less than the runs mapped with the channel in registers"),
    Case((5, 3, 33), 1, c_order, "one more"),
    Case((3, 2, 511), 1, c_order, "runs one shorter than a tile"),
    Case((3, 2, 513), 1, c_order, "runs one longer than a tile"),
    Case((2, 3, 1023), 1, c_order, "long runs, one less than a power of two"),
    Case((2, 3, 1025), 1, c_order, "long runs, one more than a power of two"),
    Case((2, 2, 16500), 1, c_order, "a run longer than a block"),
    Case((6, 4, 1), 1, c_order, "inner is 1, in three axes"),
    Case((1, 6, 40), 1, c_order, "outer is 1, in three axes"),
    Case((6, 5, 4), 2, c_order, "two axes before the channels"),
    Case((7, 5, 4), 0, c_order, "the channels before all others"),
    Case((8, 5, 6), 1, inside_out, "dense in an unusual order"),
    Case((4, 6, 7, 7), 1, c_order, "7x7 images: an inner of 49"),
    Case((4, 6, 7, 7), 1, channels_last, "7x7 images, NHWC memory seen as NCHW"),
    Case((4, 7, 7, 6), 3, c_order, "NHWC"),
    Case((4, 7, 7, 6), 3, channels_first, "NCHW memory seen as NHWC"),
    Case((4, 6, 7, 7), 1, fortran, "four axes in Fortran order: width, height, channels, samples"),
    Case((4, 3, 6, 5), 1, inside_out, "four axes, the samples fastest"),
    Case((4, 3, 6, 5), 1, strided, "four axes, every second element: one copy"),
    Case((3, 200, 4, 4), 1, c_order, "short runs of many channels: more columns than a tile"),
    Case((2, 3, 4, 5, 2), 1, c_order, "five axes"),
    Case((2, 3, 0, 5), 1, c_order, "no positions"),
    Case((0, 3, 5, 5), 1, channels_last, "empty batch of images"),
]
