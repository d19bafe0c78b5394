"""Where arrays live."""

from typing import Any

import numpy as np
from numpy import ndarray

DEVICES = ("cpu", "cuda")


class DeviceError(ImportError, RuntimeError, ValueError):
    """A device that this machine, or this installation, does not have.

    What is missing may be a package or the hardware, and the device was an argument: whoever expects an error of one
    of these kinds catches it.
    """


def arrays_on(who: str, device: object) -> type:
    """The type of the arrays on a device, which is known by its name."""
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
    """a as writeable, aligned memory of its own: itself, or else a copy.

    What comes back from a pickle, a file or another process may be read-only, mapped to a file, or shared.
    """
    if not isinstance(a, ndarray):
        return a  # CuPy's arrays are nothing else
    if type(a) is ndarray and a.flags.owndata and a.flags.carray and a.dtype.isnative:
        return a
    return np.array(a, a.dtype.newbyteorder("="), order="C")
