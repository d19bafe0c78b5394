"""How many channels a batch left alone: known on the device, and to the host when it asks."""

from typing import Any

Array = Any  # cupy.ndarray


class LeftAlone:
    """How many channels were left alone, an int to whoever looks: only then does the host wait for the device."""

    __slots__ = ("flags",)

    def __init__(self, flags: Array) -> None:
        self.flags = flags  # int32 (C,), on the device

    def __int__(self) -> int:
        return int(self.flags.sum())

    __index__ = __int__

    def __bool__(self) -> bool:
        return int(self) != 0

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(int(self))


def refuse(flags: Array) -> None:
    """Wait for a test of the statistics, and raise where a channel would have to be left alone."""
    left = LeftAlone(flags)
    if flags.size and left:
        raise FloatingPointError(f"the batch mean or variance of {left} of {flags.size} channels is not finite")
