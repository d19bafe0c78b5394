"""Dask tables: their shape and dtype before anything is computed, and operations on each block."""

from collections.abc import Callable
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.checks import FLOATS
from bnorm.kernels import moved

WHO = "BatchNormTransformer"


class Blocks:
    """A Dask array or DataFrame as a table of floats, in blocks of rows. To make one, nothing is computed.

    validate: converts a table like X to floats, or raises the error. convert: converts a block to floats, on a worker.
    """

    def __init__(self, X: Any, validate: Callable[[Any], Any], convert: Callable[[Any], Any]) -> None:
        self._X, self._validate = X, validate
        self._is_frame = is_frame(X)
        like = validate(sample(X))
        self.like = like[:0]  # an array of no rows
        self.dtype: np.dtype[Any] = like.dtype
        self._convert = partial(_declared, convert, self.dtype)
        self.shape = (nan if self._is_frame else X.shape[0], like.shape[1])
        self.rows = 0 if isnan(self.shape[0]) else int(self.shape[0])  # if unknown, a reduction counts them

    def __len__(self) -> int:
        return self.rows

    def weights(self, sample_weight: Any) -> Any:
        """Weights of rows as a Dask array with the blocks of the table."""
        from bnorm.distributed import dask

        return dask.aligned(WHO, "sample_weight", sample_weight, self._array(), 1)

    def reduced(
        self, of_block: Callable[..., Any], merge: Callable[..., Any], weight: Any = None, together: bool = False
    ) -> list[Any]:
        """`of_block(x, weight)` of all blocks, merged, for each chunk of features.

        together: put all features into one chunk first.
        """
        from bnorm.distributed import dask

        array = self._array()
        columns = dask.blocks_of(of_block, array.rechunk({1: -1}) if together else array, 1, weight)
        return dask.computed([dask.tree(parts, merge) for parts in columns])

    def refuse_no_rows(self) -> None:
        """Raise the error for a table without rows."""
        self._validate(sample(self._X)[:0])

    def mapped(self, of_block: Callable[[Any, ndarray], Any], statistics: ndarray) -> Any:
        """A lazy collection, of the type of this one, of `of_block(x, statistics)` of every block.

        statistics: (k, features); each block gets the columns of its features.
        """
        from bnorm.distributed import dask

        host = moved(statistics, ndarray).copy()
        if not self._is_frame:
            return dask.mapped(partial(_floats_mapped, of_block, self.dtype), self._array(), host, self.like)
        kept = {name: dtype if dtype in FLOATS else self.dtype for name, dtype in self._X.dtypes.items()}
        of_frame = partial(_frame_mapped, of_block, self._convert, host, self.dtype, list(kept.values()))
        return self._X.map_partitions(of_frame, meta=self._X._meta.astype(kept))

    def _array(self) -> Any:
        """The table as a Dask array of floats. Blocks may have another dtype than the one that is declared."""
        if self._is_frame:
            return self._X.map_partitions(self._convert, meta=self.like)
        return self._X.map_blocks(self._convert, dtype=self.dtype, meta=self.like)


def is_frame(X: Any) -> bool:
    """Whether a collection is a DataFrame."""
    return hasattr(type(X), "to_dask_array") and X.ndim == 2  # of the type, as a Delayed has every attribute


def sample(X: Any) -> Any:
    """At most two rows that have the dtype and features of a Dask array or DataFrame."""
    if is_frame(X):
        return X._meta_nonempty
    from bnorm.distributed import dask

    array = dask.array_of(WHO, "X", X)
    if array.ndim == 2 and isnan(array.shape[1]):
        raise ValueError(
            f"{WHO}: X: expected a known number of features, got shape {array.shape}; X.compute_chunk_sizes() finds it"
        )
    shape = [2 if isnan(n) else n for n in array.shape]
    shape[:1] = [min(n, 2) for n in shape[:1]]
    return np.zeros(shape, array.dtype, like=array._meta)


def _declared(convert: Callable[[Any], Any], dtype: np.dtype[Any], block: Any) -> Any:
    """A block, whatever its dtype is, as floats of the declared dtype."""
    return convert(block).astype(dtype, copy=False)


def _floats_mapped(of_block: Callable[..., Any], dtype: np.dtype[Any], block: Any, statistics: ndarray) -> Any:
    if not block.size:
        return block.astype(dtype)
    return of_block(block, moved(statistics, type(block)))


def _frame_mapped(
    of_block: Callable[..., Any],
    convert: Callable[[Any], Any],
    statistics: ndarray,
    dtype: np.dtype[Any],
    dtypes: list[Any],
    frame: Any,
) -> Any:
    """A partition with its index and names, and columns of these dtypes."""
    y = _floats_mapped(of_block, dtype, convert(frame), statistics)
    result = type(frame)(y, index=frame.index, columns=frame.columns)
    return result if len(set(dtypes)) < 2 else result.astype(dict(zip(frame.columns, dtypes, strict=True)))
