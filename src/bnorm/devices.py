"""Where arrays live."""

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
        from bnorm.kernels import gpu  # which nobody else needs

        reason = gpu.available() or "the layers of this version keep their arrays in the main memory."
        raise DeviceError(f"{who}: device: expected 'cpu', got 'cuda': {reason}")
    return name
