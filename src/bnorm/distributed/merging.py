"""Statistics that were learned on several ranks, as one."""

import copy
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from bnorm.distributed.communicator import Communicator, Turn, checked
from bnorm.moments import Moments

Mergeable = TypeVar("Mergeable")
WHO = "merge_all"


def merge_all(obj: Mergeable, comm: Communicator) -> Mergeable:
    """The merge of what all ranks have, on every rank, as a new object; the given one is not changed.

    obj: Moments, or a fitted BatchNormTransformer that can be merged: momentum=None, or the same halflife on all ranks.
    comm: a communicator of mpi4py, or anything with its `allgather`. All ranks have to call.

    The result has the same bits on every rank. They depend on the order of the ranks, as neighbours are merged first,
    but only in the last digits. Learned parameters, gamma_ and beta_, are those of rank 0.

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
    """How several like obj are merged."""
    if isinstance(obj, Moments):
        return Moments.merge
    transformers = sys.modules.get("bnorm.transformer")  # where there is a transformer, it has been imported
    if transformers is not None and isinstance(obj, transformers.BatchNormTransformer):
        return _merged_transformers
    raise TypeError(f"{WHO}: obj: expected Moments or a BatchNormTransformer, got {type(obj).__name__}")


def _merged_transformers(items: list[Any]) -> Any:
    items = copy.deepcopy(items)  # they are merged in place, and one of them may be the caller's
    while len(items) > 1:  # neighbours in pairs, then pairs of pairs: rounding grows with the logarithm only
        pairs = zip(items[0::2], items[1::2], strict=False)
        items = [a.merge(b) for a, b in pairs] + items[len(items) & ~1 :]
    return items[0]
