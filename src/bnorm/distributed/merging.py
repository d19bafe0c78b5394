"""Merging the statistics of several ranks."""

import copy
import sys
from collections.abc import Callable
from operator import add
from typing import Any, TypeVar

from bnorm.distributed.communicator import Communicator, Turn, checked
from bnorm.moments import Moments

Mergeable = TypeVar("Mergeable")
WHO = "merge_all"
EXPECTED = "Moments, a BatchNormTransformer, a RunningNorm or a RunningNormTree"


def merge_all(obj: Mergeable, comm: Communicator) -> Mergeable:
    """Merge the statistics of all ranks. All ranks must call it, and all get the same result, to the bit.

    Neighbors are merged first, so the last digits depend on the numbering of the ranks.

    Parameters
    ----------
    obj : Moments, BatchNormTransformer, RunningNorm or RunningNormTree
        The statistics of this rank; not changed. A transformer must be fitted, with momentum=None or with the same
        halflife on all ranks. Of a RunningNorm with a history that all ranks share, merge `rn - base`: with a halflife,
        the rows of a later rank then count as later.
    comm : communicator
        A communicator of mpi4py, or any object with its `allgather`.

    Returns
    -------
    Moments, BatchNormTransformer, RunningNorm or RunningNormTree
        A new object. Its gamma_ and beta_ are those of rank 0.

    Raises
    ------
    TypeError, ValueError
        If the objects cannot be merged.
    RuntimeError
        If another rank has raised an error.

    Examples
    --------
    >>> class Alone:
    ...     def allgather(self, value):
    ...         return [value]
    >>> merge_all(Moments(count=[2], mean=[1.0], m2=[2.0]), Alone())
    Moments(count=[2.], mean=[1.], m2=[2.])
    """
    with Turn(checked(WHO, comm), WHO) as turn:
        merge = _merging(obj)
        items = turn.share((type(obj).__name__, obj))
        kinds = [kind for kind, _ in items]
        if len(set(kinds)) > 1:
            raise TypeError(f"{WHO}: obj: expected one type on all ranks, got {', '.join(kinds)}")
    return merge([item for _, item in items])  # type: ignore[no-any-return]


def _merging(obj: Any) -> Callable[[list[Any]], Any]:
    """Return the function that merges several objects like obj."""
    if isinstance(obj, Moments):
        return Moments.merge
    transformers = sys.modules.get("bnorm.transformer")  # imported already, if obj is a transformer
    if transformers is not None and isinstance(obj, transformers.BatchNormTransformer):
        return _merged_transformers
    streams = sys.modules.get("bnorm.streams")
    if streams is not None and isinstance(obj, streams.RunningNorm | streams.RunningNormTree):
        return lambda items: _in_pairs(add, items) if len(items) > 1 else items[0].copy()
    raise TypeError(f"{WHO}: obj: expected {EXPECTED}, got {type(obj).__name__}")


def _merged_transformers(items: list[Any]) -> Any:
    items = copy.deepcopy(items)  # they are merged in place, and one of them may be the caller's
    return _in_pairs(lambda a, b: a.merge(b), items)


def _in_pairs(merge: Callable[[Any, Any], Any], items: list[Any]) -> Any:
    """Merge neighbors in pairs, then pairs of pairs, and so on: rounding errors grow only with the logarithm."""
    while len(items) > 1:
        pairs = zip(items[0::2], items[1::2], strict=False)
        items = [merge(a, b) for a, b in pairs] + items[len(items) & ~1 :]
    return items[0]
