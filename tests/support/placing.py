"""Arrays at chosen places in memory, read-only ones, and masked ones."""

import numpy as np


def moved(a, by):
    """Return a copy that begins `by` values after the beginning of a cache line."""
    room = np.empty(a.size + 128, a.dtype)
    start = (-room.ctypes.data % 64) // a.itemsize + by
    copy = room[start : start + a.size].reshape(a.shape)
    copy[...] = a
    return copy


def read_only(a):
    a.flags.writeable = False
    return a


def masked(a):
    return np.ma.MaskedArray(a, mask=a > 0)
