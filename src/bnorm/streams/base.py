"""What RunningNorm and its trees have in common: two modes, copies, and files."""

from typing import Any, Self


class Normalizer:
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

    def copy(self) -> Any:
        """An independent copy."""
        raise NotImplementedError

    def __copy__(self) -> Any:
        return self.copy()  # two objects that update the same arrays would be a trap

    def __radd__(self, other: object) -> Any:
        return self.copy() if isinstance(other, int) and other == 0 else NotImplemented  # sum() starts with 0

    def save(self, path: Any) -> None:
        """Write statistics and settings to a file, which `bnorm.load` reads.

        Parameters
        ----------
        path : str or path-like
            A name that ends in .safetensors or .npz. An existing file is replaced.
        """
        from bnorm.streams import saving  # late, so that `import bnorm` need not wait for it

        saving.save(self, path)
