"""The two modes of a normalizer of streams."""

from typing import Self


class Modes:
    """In training mode calls update the statistics, in inference mode they only normalize."""

    __slots__ = ("_training",)

    _training: bool

    def train(self, mode: bool = True) -> Self:
        """Set training mode, in which calls update the statistics; train(False) is eval(). Returns the object."""
        raise NotImplementedError

    def eval(self) -> Self:
        """Set inference mode, in which calls only normalize. Returns the object."""
        return self.train(False)

    @property
    def training(self) -> bool:
        """The mode. train() and eval() set it too."""
        return self._training

    @training.setter
    def training(self, value: bool) -> None:
        self.train(value)
