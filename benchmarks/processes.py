"""A worker in a process of its own.

Where the memory of a fresh result comes from depends on what its process allocated before, other libraries included.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from .timing import Effort, Samples, Worker

_worker: Worker


class Remote:
    """A Worker, elsewhere. An error there is one here."""

    def __init__(self, *arguments: object) -> None:
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _start, arguments)

    def check(self, operation: str) -> dict[str, float]:
        return self.pool.submit(_check, operation).result()

    def turn(self, operation: str, effort: Effort, backwards: bool) -> Samples:
        return self.pool.submit(_turn, operation, effort, backwards).result()

    def close(self) -> None:
        self.pool.shutdown()


def _start(*arguments: object) -> None:
    global _worker
    _worker = Worker(*arguments)


def _check(operation: str) -> dict[str, float]:
    return _worker.check(operation)


def _turn(operation: str, effort: Effort, backwards: bool) -> Samples:
    return _worker.turn(operation, effort, backwards)
