"""Rows of a file as a table of the transformer, whose errors name the file, the column and the row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm import arrow
from bnorm.app.errors import DataError
from bnorm.app.sources import Place
from bnorm.kernels import cpu
from bnorm.running import Step
from bnorm.transformer.tables import InColumns, refuse_infinity_in


class Rows(InColumns):
    """A table of some rows of a file. Steps and sums of rows with infinity are an error that names the place.

    arrays: the columns as Arrow's, for exact sums.
    """

    __slots__ = ("_found", "_names", "_place")

    def __init__(
        self, columns: Sequence[ndarray], names: Sequence[str], place: Place, arrays: Sequence[Any] | None = None
    ) -> None:
        super().__init__(arrow.Columns([list(columns)], arrays and [arrays]))
        self._names, self._place = names, place
        self._found: tuple[ndarray, ndarray] | None = None  # moments and extremes

    @property
    def columns(self) -> list[ndarray]:
        found: list[ndarray] = self.x.batches[0]
        return found

    def whole(self, weight: ndarray | None) -> ndarray:
        """Compute the moments, and keep them. The extremes of each column are found at the same time, before the next
        column: a column stays in the cache, a batch does not.
        """
        if self._found is None:
            self._found = cpu.column_moments(self.columns, weight, minmax=True)
        return self._found[0]

    def extremes(self, weight: ndarray | None) -> ndarray:
        """The least and the greatest values, (2, C); NaN where there is none."""
        if self._found:
            return self._found[1]
        return np.concatenate([arrow.extremes(column, weight) for column in self.columns], axis=1)

    def steps(self, weight: ndarray | None, clock: Any, ddof: int) -> list[Step]:
        try:
            steps = super().steps(weight, clock, ddof)
        except ValueError:
            self.refuse_infinity()  # the error is that of infinity
            raise
        for step in steps:
            refuse_infinity_in(step.parts, self, weight)
        return steps

    def refuse_infinity(self, among: ndarray | None = None) -> None:
        for name, column in zip(self._names, self.columns, strict=True):
            found = np.isinf(column) if among is None else np.isinf(column) & among
            if found.any():
                raise infinite(column, int(found.argmax()), self._place, name)


def infinite(x: ndarray, i: int, place: Place, name: str) -> DataError:
    """The error for value i of a column, which is infinite."""
    return DataError(f"{place.value(name, i)}: expected a finite number, got {x[i]}")
