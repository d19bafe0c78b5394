"""The fitted attributes of a transformer of groups: views of its state."""

import numpy as np
from numpy import ndarray

from bnorm.moments import Moments
from bnorm.transformer.attributes import Fitting
from bnorm.transformer.groups import Groups


class Attributes(Fitting):
    """The fitted attributes of `GroupedTransformer`. They are read-only."""

    _WHO, _LEARNED = "GroupedTransformer", "_groups"

    _groups: Groups
    _places: list[int]

    @property
    def groups_(self) -> ndarray:
        """The keys in the order of their appearance."""
        return self._groups.index.array()

    @property
    def counts_(self) -> ndarray:
        """The number of values seen in each group, or the sum of their weights."""
        seen = self._groups.row("seen")
        return seen.copy() if self._groups.weighted else seen.astype(np.int64)

    @property
    def means_(self) -> ndarray:
        """The mean of each group."""
        return self._groups.known(np.arange(len(self._groups)), 0.0)[0]

    @property
    def vars_(self) -> ndarray:
        """The variance of each group."""
        return self._groups.known(np.arange(len(self._groups)), 0.0)[1]

    @property
    def whole_(self) -> Moments:
        """Count, mean and m2 of all rows."""
        return self._groups.moments()

    @property
    def key_places_(self) -> list[int]:
        """The positions of the columns that hold the keys."""
        return list(self._places)

    @property
    def n_batches_seen_(self) -> int:
        """The number of batches in the stream; a fit counts as the first."""
        return self._groups.batches
