"""Generators that run in threads of their own, ahead of the code that uses them."""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any


def alone(items: Generator[Any]) -> Generator[list[Any]]:
    """Yield what `together` yields for one generator, without a thread."""
    with closing(items):
        for item in items:
            yield [item]


def together(several: Sequence[Generator[Any]], ahead: int = 1) -> Generator[list[Any]]:
    """Yield lists of the next item of each generator, None for those that have ended, until all have. No item is None.

    While these items are in use, a thread for each generator makes its next `ahead` items.
    """
    with ExitStack() as stack:
        for items in several:
            stack.enter_context(closing(items))  # after its thread has ended
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in several]
        coming = [
            deque(pool.submit(next, items, None) for _ in range(ahead))
            for pool, items in zip(pools, several, strict=True)
        ]
        while True:
            found = []
            for items, pool, futures in zip(several, pools, coming, strict=True):
                found.append(futures.popleft().result())
                futures.append(pool.submit(next, items, None))  # before waiting for another
            if all(item is None for item in found):
                return
            yield found
