"""Generators that run in threads of their own, ahead of who uses them."""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any


def alone(items: Generator[Any]) -> Generator[list[Any]]:
    """What `together` makes of one, without a thread."""
    with closing(items):
        for item in items:
            yield [item]


def together(several: Sequence[Generator[Any]], ahead: int = 1) -> Generator[list[Any]]:
    """The next item of each, None of those that have ended, until all have. No item is None.

    While these are in use, a thread for each makes so many of its next ones.
    """
    with ExitStack() as stack:
        for items in several:
            stack.enter_context(closing(items))  # once its thread has ended
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in several]
        coming = [
            deque(pool.submit(next, items, None) for _ in range(ahead))
            for pool, items in zip(pools, several, strict=True)
        ]
        while True:
            found = []
            for items, pool, futures in zip(several, pools, coming, strict=True):
                found.append(futures.popleft().result())
                futures.append(pool.submit(next, items, None))  # before another is waited for
            if all(item is None for item in found):
                return
            yield found
