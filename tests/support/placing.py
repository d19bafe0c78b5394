"""Arrays at chosen places in memory."""

import numpy as np


def moved(a, by):
    """A copy that begins `by` values into a line of the cache."""
    room = np.empty(a.size + 128, a.dtype)
    start = (-room.ctypes.data % 64) // a.itemsize + by
    copy = room[start : start + a.size].reshape(a.shape)
    copy[...] = a
    return copy
