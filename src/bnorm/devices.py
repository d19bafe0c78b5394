"""Where arrays live."""

import importlib.util

DEVICES = ("cpu", "cuda")


class DeviceError(ImportError, RuntimeError, ValueError):
    """A device that this machine, or this installation, does not have.

    What is missing may be a package or the hardware, and the device was an argument: whoever expects an error of one
    of these kinds catches it.
    """


def device(who: str, name: object) -> str:
    """A device that arrays can be on, by its name."""
    if not isinstance(name, str):
        raise TypeError(f"{who}: device: expected one of {', '.join(DEVICES)}, got {name!r}")
    if name not in DEVICES:
        raise ValueError(f"{who}: device: expected one of {', '.join(DEVICES)}, got {name!r}")
    if name == "cuda":
        if importlib.util.find_spec("cupy") is None:
            raise DeviceError(f"{who}: device: 'cuda' needs CuPy, which is not installed: pip install 'bnorm[gpu]'")
        raise DeviceError(f"{who}: device: 'cuda' needs kernels for CuPy arrays, which this version does not have")
    return name
