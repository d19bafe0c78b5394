"""A table that was read somewhere else: only its sums are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.moments import Moments
from bnorm.running import Step


class Known:
    """What `BatchNormTransformer.fit` needs of a table. Its sample_weight only tells whether there were weights.

    names: the names of the features, or None. found: their moments, exact ones if the transformer has exact=True.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, names: Sequence[str] | ndarray | None, found: Moments, rows: int, kind: type = ndarray) -> None:
        self.names = None if names is None else np.array(names, object)
        self.shape, self.rows, self.kind, self._found = (rows, *found.shape), rows, kind, found

    def weights(self, sample_weight: Any, some: bool = True) -> Any:
        return sample_weight

    def steps(self, weight: Any, clock: None, ddof: int) -> list[Step]:
        return [Step(self._found._parts.copy(), self.rows)]

    def refuse_infinity(self) -> None:
        """Do nothing: it was searched where it was read."""

    def exact(self, weight: Any) -> Moments:
        return self._found
