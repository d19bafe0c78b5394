"""Devices by name, and memory that an object owns."""

from typing import Any

import numpy as np
from numpy import ndarray

DEVICES = ("cpu", "cuda")


class DeviceError(ImportError, RuntimeError, ValueError):
    """A device that this machine or this installation does not have.

    A package may be missing (ImportError) or the hardware (RuntimeError), and the device is an argument (ValueError).
    """


def arrays_on(who: str, device: object) -> type:
    """The type of the arrays on a device, given by name."""
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
    """a itself if it owns its memory and is writeable, aligned and native; else a copy.

    An array from a pickle, a file or another process may be read-only, mapped to a file, or shared.
    """
    if not isinstance(a, ndarray):
        return a  # CuPy's arrays always are
    if type(a) is ndarray and a.flags.owndata and a.flags.carray and a.dtype.isnative:
        return a
    return np.array(a, a.dtype.newbyteorder("="), order="C")
