"""A table that was read somewhere else: only its sums are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.moments import Moments


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

    def parts(self, weight: Any) -> ndarray:
        return self._found._parts.copy()

    def exact(self, weight: Any) -> Moments:
        return self._found
