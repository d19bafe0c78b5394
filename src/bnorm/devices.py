"""Devices by name, and memory that an object owns."""

from typing import Any

import numpy as np
from numpy import ndarray

DEVICES = ("cpu", "cuda")


class DeviceError(ImportError, RuntimeError, ValueError):
    """This machine or this installation does not have the device.

    A package may be missing (ImportError), or the hardware (RuntimeError), and the device is an argument (ValueError).
    """


def arrays_on(who: str, device: object) -> type:
    """Return the type of the arrays on a device, which is given by name."""
    if not isinstance(device, str):
        raise TypeError(f"{who}: device: expected one of {', '.join(DEVICES)}, got {device!r}")
    if device not in DEVICES:
        raise ValueError(f"{who}: device: expected one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cpu":
        return ndarray
    from bnorm.kernels import gpu  # imported only where a device is asked for

    if reason := gpu.available():
        raise DeviceError(f"{who}: device: expected 'cpu', got 'cuda': {reason}")
    kind: type = gpu.array_type()
    return kind


def owned(a: Any) -> Any:
    """Return `a` itself if it owns its memory and is writeable, aligned, contiguous and native, or else a copy.

    An array from a pickle, a file or another process may be read-only, mapped to a file, or shared.
    """
    if not isinstance(a, ndarray):
        return a  # CuPy's arrays are always so
    if type(a) is ndarray and a.flags.owndata and a.flags.carray and a.dtype.isnative:
        return a
    return np.array(a, a.dtype.newbyteorder("="), order="C")
